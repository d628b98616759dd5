// Which threads nothing wakes but their own process.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <sys/syscall.h>

#include "runtime/sleep.hpp"

using namespace ringcore;

namespace {

std::vector<pid_t> threads() {
  std::thread([] {}).join();  // ThreadSanitizer starts one of its own with the first
  std::vector<pid_t> threads;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    threads.push_back(static_cast<pid_t>(std::stol(entry.path().filename())));
  }
  return threads;
}

// A thread that sleeps by a clock until `ended`.
[[gnu::noinline, gnu::noclone]] void doze(const bool& ended, std::mutex& mutex, std::condition_variable& changed) {
  std::unique_lock lock(mutex);
  while (!ended) changed.wait_for(lock, std::chrono::hours(1));
}

bool sleep_before_long(const std::vector<pid_t>& others) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!all_sleep_but(others) && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
  return all_sleep_but(others);
}

// Whether a thread of this process sleeps in a futex with a limit.
bool one_dozes() {
  for (const pid_t thread : threads()) {
    std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/syscall");
    std::string words[5];
    for (std::string& word : words) file >> word;
    if (words[0] == std::to_string(SYS_futex) && words[4] != "0x0") return true;
  }
  return false;
}

}  // namespace

#if defined(__x86_64__)  // system calls have other numbers elsewhere
TEST_CASE("sleep: a thread that a limit, another process or a descriptor may wake does not wait for its own process") {
  CHECK(waits_for_own_process("202 0x7fdf31d80640 0x189 0x0 0x0 0x0 0x0 0x7ffd 0x7f12"));  // a condition variable
  CHECK(waits_for_own_process("202 0x7fdf31d80640 0x80 0x10 0x0 0x0 0xca 0x7ffd 0x7f12"));  // OpenMP
  CHECK_FALSE(waits_for_own_process("202 0x7fdf31d80640 0x189 0x0 0x7fd92b3fbd20 0x0 0x0 0x7ffd 0x7f12"));
  CHECK_FALSE(waits_for_own_process("202 0x7fdf31d80640 0x109 0x0 0x0 0x0 0x0 0x7ffd 0x7f12"));
  CHECK_FALSE(waits_for_own_process("202 0x7fdf31d80640 0x81 0x1 0x0 0x0 0x0 0x7ffd 0x7f12"));  // it wakes somebody
  CHECK_FALSE(waits_for_own_process("271 0x7fd948001930 0x2 0x0 0x0 0x8 0x0 0x7ffd 0x7f12"));
  CHECK_FALSE(waits_for_own_process("running"));
  CHECK_FALSE(waits_for_own_process("-1 0x7ffd 0x7f12"));
  CHECK_FALSE(waits_for_own_process(""));
}
#endif

TEST_CASE("sleep: a process sleeps when each of its threads waits for another one") {
  const std::vector<pid_t> others = threads();
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;
  std::thread sleeper([&] {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return ended; });
  });
  CHECK(sleep_before_long(others));

  std::atomic<bool> spinning = false;
  std::atomic<bool> stop = false;
  std::thread awake([&] {
    while (!stop) spinning = true;
  });
  while (!spinning) std::this_thread::yield();
  CHECK_FALSE(all_sleep_but(others));
  stop = true;
  awake.join();
  {
    const std::lock_guard lock(mutex);
    ended = true;
  }
  changed.notify_all();
  sleeper.join();
}

TEST_CASE("sleep: of the threads that a clock wakes only those are asleep that are known to do nothing then") {
  const std::vector<pid_t> others = threads();
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;
  std::thread dozer([&] { doze(ended, mutex, changed); });
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!one_dozes() && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
  CHECK(one_dozes());
  CHECK_FALSE(all_sleep_but(others));
  const auto code = reinterpret_cast<std::uintptr_t>(&doze);
  add_bystanders_code(code, code + 1024);
  CHECK(sleep_before_long(others));
  {
    const std::lock_guard lock(mutex);
    ended = true;
  }
  changed.notify_all();
  dozer.join();
}
