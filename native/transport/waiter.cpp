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

// One that spins takes no more from others than they get while it sleeps, where it is slowly woken.
constexpr Nanoseconds kMostSpins = 20;
// On a shared core: a quarter and twice the time to spin. Waits that take longer are those for ranks that do something
// else, or cannot run: nobody stays awake for them.
constexpr Nanoseconds kLeastShared = 4, kMostShared = 2;
// A core that comes back so late has gone to a program that does not wait: the scheduler lets that have its turn, which
// takes milliseconds, while whoever sleeps may run as soon as it is woken. Ranks that only look for each other's news
// are back sooner, and several of them find it together.
constexpr Nanoseconds kLate = 10;
// Such turns take so much of the time at most: one part in that many. A single one says nothing: the system's own programs
// have theirs now and then. What was longer away than any turn was stopped.
constexpr Nanoseconds kSeldom = 20;
constexpr Nanoseconds kLongestTurn = 100 * kMillisecond;
// So many times as long as waits have taken lately, as they vary.
constexpr Nanoseconds kWaits = 2;
constexpr Nanoseconds kWeight = 8;

inline void pause_once() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Waiter::Waiter(Nanoseconds spin) : spin_(spin), wait_(spin), bell_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!bell_) throw Error(ErrorKind::kResource, with_errno("cannot create an eventfd", errno));
}

void Waiter::active(const Clock& clock) {
  if (awake_since_ != 0 && shared_) note_wait(clock.now() - awake_since_);
  awake_since_ = 0;
}

bool Waiter::stay_awake(const Clock& clock, Nanoseconds now, bool shares) {
  if (awake_since_ == 0) awake_since_ = now;
  shared_ = shares;
  if (now - awake_since_ >= limit(shares) || (shares && now < yields_from_)) return false;
  if (shares) {
    const Nanoseconds begin = clock.now();
    ::sched_yield();
    note_yield(begin, clock.now());
  } else {
    pause_once();
  }
  return true;
}

void Waiter::look_again() { pause_once(); }

void Waiter::note_wake(Nanoseconds took) { wake_ += (took - wake_) / kWeight; }

void Waiter::note_yield(Nanoseconds begin, Nanoseconds end) {
  const Nanoseconds away = end - begin;
  if (away <= spin_ * kLate) return;
  const Nanoseconds rest = kSeldom * std::min(away, kLongestTurn);
  if (begin < suspects_until_) yields_from_ = end + rest;
  suspects_until_ = std::max(end, yields_from_) + rest;
}

void Waiter::note_wait(Nanoseconds took) {
  if (took <= spin_ * kMostShared) wait_ += (took - wait_) / kWeight;
}

Nanoseconds Waiter::limit(bool shares) const {
  if (shares) return std::clamp(kWaits * wait_, spin_ / kLeastShared, spin_ * kMostShared);
  return std::clamp(2 * wake_, spin_, spin_ * kMostSpins);
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
