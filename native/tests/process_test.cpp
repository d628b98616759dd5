#include <doctest/doctest.h>

#include <atomic>
#include <csignal>

#include <sys/wait.h>

#include "link_fixtures.hpp"
#include "transport/process.hpp"

namespace ringcore::test {
namespace {

using transport::Process;

void await(pid_t pid, int what) {
  siginfo_t told{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(pid), &told, what | WNOWAIT) == 0);
}

// Whether it comes to that; each look is at what happened since the last one.
bool comes_to_sleep(Process& process) {
  for (int i = 0; i < kHangMilliseconds; ++i) {
    if (!process.wants_to_run()) return true;
    ::usleep(1000);
  }
  return false;
}

}  // namespace

TEST_CASE("process: one that computes wants to run, unless it is stopped or has ended") {
  const Child child([] {
    for (std::atomic<int> laps = 0; laps >= 0;) laps.store(laps ^ 1);
    return true;
  });
  Process process(child.pid());
  CHECK(process.wants_to_run());
  CHECK(process.wants_to_run());
  ::kill(child.pid(), SIGSTOP);
  await(child.pid(), WSTOPPED);
  CHECK_FALSE(process.wants_to_run());
  ::kill(child.pid(), SIGCONT);
  await(child.pid(), WCONTINUED);
  CHECK(process.wants_to_run());
  ::kill(child.pid(), SIGKILL);
  await(child.pid(), WEXITED);
  CHECK_FALSE(process.wants_to_run());
}

TEST_CASE("process: one that sleeps does not want to run, and of strangers nothing is known") {
  const Child child([] { return ::pause() == 0; });
  Process process(child.pid());
  CHECK(comes_to_sleep(process));
  CHECK_FALSE(process.wants_to_run());
  CHECK_FALSE(Process(0).wants_to_run());
  CHECK_FALSE(Process(INT32_MAX).wants_to_run());
}

TEST_CASE("process: one that is stopped can be ended, and is seen to end") {
  const Child child([] { return ::pause() == 0; });
  const Process process(child.pid());
  ::kill(child.pid(), SIGSTOP);
  await(child.pid(), WSTOPPED);
  CHECK_FALSE(process.has_ended());
  CHECK(process.end());
  await(child.pid(), WEXITED);
  CHECK(process.has_ended());
  CHECK_FALSE(Process(0).has_ended());
  CHECK_FALSE(Process(0).end());
}

}  // namespace ringcore::test
