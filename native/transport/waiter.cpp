#include "transport/waiter.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/error.hpp"

namespace ringcore::transport {
namespace {

inline void pause_once() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

int usable_cores() {
  cpu_set_t cores;
  if (::sched_getaffinity(0, sizeof(cores), &cores) != 0) return 1;
  return std::max(1, CPU_COUNT(&cores));
}

Waiter::Waiter(Nanoseconds awake, bool share_cores)
    : awake_(awake), share_cores_(share_cores), bell_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!bell_) throw Error(ErrorKind::kResource, with_errno("cannot create an eventfd", errno));
}

bool Waiter::stay_awake(Nanoseconds now) {
  if (awake_since_ == 0) awake_since_ = now;
  if (now - awake_since_ >= awake_) return false;
  if (share_cores_) {
    ::sched_yield();
  } else {
    pause_once();
  }
  return true;
}

bool Waiter::look_again() const {
  if (share_cores_) return false;
  pause_once();
  return true;
}

std::vector<pollfd> Waiter::wait_set(std::span<Link* const> links) const {
  std::vector<pollfd> fds = {{.fd = bell_.get(), .events = POLLIN, .revents = 0}};
  for (const Link* link : links) link->add_wait_fds(fds);
  return fds;
}

void Waiter::sleep(std::vector<pollfd> wait_set, Nanoseconds limit) {
  const timespec timeout{.tv_sec = limit / kSecond, .tv_nsec = limit % kSecond};
  ::ppoll(wait_set.data(), wait_set.size(), &timeout, nullptr);
  std::uint64_t rings;
  if ((wait_set.front().revents & POLLIN) != 0) {
    [[maybe_unused]] const auto drained = ::read(bell_.get(), &rings, sizeof(rings));
  }
}

void Waiter::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(bell_.get(), &one, sizeof(one));
}

}  // namespace ringcore::transport
