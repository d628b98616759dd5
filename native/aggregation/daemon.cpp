#include "aggregation/daemon.hpp"

#include <algorithm>
#include <random>

#include <poll.h>

#include "base/clock.hpp"

namespace ringcore::aggregation {
namespace {

constexpr Nanoseconds kAskInterval = 100 * kMillisecond;
// What cannot be sent for so long is lost, as packets are.
constexpr int kFullMilliseconds = 100;

SwitchConfig complete(const DaemonConfig& config, const Socket& socket) {
  SwitchConfig settings = config.settings;
  std::random_device random;
  settings.seed = random();
  if (!config.parent) return settings;
  settings.parent = resolve(config.parent->first, config.parent->second);
  // Among the members of the parent, none of which is a rank.
  const Address own = socket.address();
  std::uint32_t hash = 2166136261U;  // FNV-1a
  for (const std::byte byte : std::span(own.bytes).first(own.size)) {
    hash = (hash ^ std::to_integer<std::uint32_t>(byte)) * 16777619U;
  }
  settings.own_id = static_cast<MemberId>(0x8000U | ((hash ^ hash >> 16) & 0x7ffeU));
  return settings;
}

}  // namespace

Daemon::Daemon(const DaemonConfig& config)
    : socket_(Socket::bound_to(resolve(config.host, config.port))), switch_(complete(config, socket_)) {}

Daemon::State Daemon::state() const {
  const std::lock_guard lock(mutex_);
  return {switch_.counts(), switch_.sessions(), switch_.held_bytes()};
}

void Daemon::run(const std::function<bool()>& interrupted) {
  const SteadyClock clock;
  Outbox out;
  Nanoseconds asked = clock.now();
  while (true) {
    std::size_t received = 0;
    Nanoseconds next = 0;
    {
      const std::lock_guard lock(mutex_);
      received = socket_.receive([&](std::span<const std::byte> packet, const Address& from) {
        switch_.receive(packet, from, clock.now(), out);
      });
      switch_.check_timers(clock.now(), out);
      next = switch_.next_timer();
    }
    flush(out);
    const Nanoseconds now = clock.now();
    if (now - asked >= kAskInterval) {
      asked = now;
      if (interrupted()) break;
    }
    if (received > 0) continue;
    pollfd readable{.fd = socket_.fd(), .events = POLLIN, .revents = 0};
    const Nanoseconds nap = std::clamp<Nanoseconds>(next - now, 0, kAskInterval);
    const timespec timeout{.tv_sec = 0, .tv_nsec = nap};
    ::ppoll(&readable, 1, &timeout, nullptr);
  }
  const std::lock_guard lock(mutex_);
  switch_.leave(out);
  flush(out);
}

void Daemon::flush(Outbox& out) {
  out.sort();
  for (std::size_t sent = 0; (sent = socket_.send(out, sent)) < out.items().size();) {
    pollfd writable{.fd = socket_.fd(), .events = POLLOUT, .revents = 0};
    if (::poll(&writable, 1, kFullMilliseconds) == 0) break;
  }
  out.clear();
}

}  // namespace ringcore::aggregation
