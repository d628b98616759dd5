#include "runtime/sleep.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <span>
#include <sstream>
#include <string_view>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/owned.hpp"

namespace ringcore {
namespace {

namespace fs = std::filesystem;

// Of a stack's end: what waits is few calls below what waits for it.
constexpr std::size_t kWordsOfStack = 512;

struct Sleeper {
  pid_t thread;
  std::string switches;  // how often it has gone to sleep so far
  bool operator==(const Sleeper&) const = default;
};

std::string line_of(const fs::path& file, std::string_view begin) {
  std::ifstream lines(file);
  std::string line;
  while (std::getline(lines, line)) {
    if (line.starts_with(begin)) return line;
  }
  return {};
}

// A thread sleeps in a futex that only its own process knows.
struct Wait {
  std::uint64_t limit;  // where it lies; 0: there is none
  std::uint64_t stack_end;
};

std::optional<Wait> private_wait(const std::string& call) {
  std::istringstream words(call);
  long number = -1;
  std::uint64_t address = 0;
  std::uint64_t operation = 0;
  std::uint64_t value = 0;
  std::uint64_t more = 0;
  Wait wait{};
  words >> number >> std::hex >> address >> operation >> value >> wait.limit >> more >> more >> wait.stack_end;
  if (!words || number != SYS_futex || (operation & FUTEX_PRIVATE_FLAG) == 0) return std::nullopt;
  const std::uint64_t command = operation & FUTEX_CMD_MASK;
  if (command != FUTEX_WAIT && command != FUTEX_WAIT_BITSET) return std::nullopt;
  return wait;
}

struct Code {
  std::uintptr_t begin;
  std::uintptr_t end;
};
std::mutex bystanders_mutex;  // Guards: bystanders.
std::vector<Code> bystanders;

// Whether the calls that a thread is in were made by such code: their return addresses lie on its stack. It may end while
// that is looked at, and its stack with it; so the kernel is asked for it.
bool is_bystander(std::uint64_t stack_end) {
  const std::lock_guard lock(bystanders_mutex);
  if (bystanders.empty()) return false;
  const Fd memory(::open("/proc/self/mem", O_RDONLY | O_CLOEXEC));
  std::array<std::uintptr_t, kWordsOfStack> words{};
  const ssize_t bytes = ::pread(memory.get(), words.data(), sizeof(words), static_cast<off_t>(stack_end));
  if (bytes < 0) return false;
  const auto read = std::span(words).first(static_cast<std::size_t>(bytes) / sizeof(words[0]));
  return std::ranges::any_of(read, [](std::uintptr_t word) {
    return std::ranges::any_of(bystanders, [&](const Code& code) { return word >= code.begin && word < code.end; });
  });
}

// All threads but these; none where one of them is awake.
std::optional<std::vector<Sleeper>> sleepers_but(std::span<const pid_t> threads) {
  std::vector<Sleeper> sleepers;
  std::error_code error;
  for (fs::directory_iterator entry("/proc/self/task", error), end; !error && entry != end; entry.increment(error)) {
    const auto thread = static_cast<pid_t>(std::stol(entry->path().filename()));
    if (std::ranges::find(threads, thread) != threads.end()) continue;
    if (!waits_for_own_process(line_of(entry->path() / "syscall", ""))) return std::nullopt;
    sleepers.push_back({thread, line_of(entry->path() / "status", "voluntary_ctxt_switches")});
    if (sleepers.back().switches.empty()) return std::nullopt;
  }
  if (error) return std::nullopt;
  return sleepers;
}

}  // namespace

bool waits_for_own_process(const std::string& call) {
  const std::optional<Wait> wait = private_wait(call);
  return wait && (wait->limit == 0 || is_bystander(wait->stack_end));
}

void add_bystanders_code(std::uintptr_t begin, std::uintptr_t end) {
  const std::lock_guard lock(bystanders_mutex);
  bystanders.push_back({begin, end});
}

// Looked at twice: who sleeps both times, and has not gone to sleep between them, has slept all the while.
bool all_sleep_but(std::span<const pid_t> threads) {
  const auto first = sleepers_but(threads);
  return first && first == sleepers_but(threads);
}

}  // namespace ringcore
