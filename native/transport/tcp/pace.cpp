#include "transport/tcp/pace.hpp"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <utility>

namespace ringcore::transport {
namespace {

// A sample costs a system call: one for so many bytes.
constexpr std::size_t kBytesASample = 512 * 1024;
// What Linux says of a round trip that it has not seen yet.
constexpr unsigned kNoRoundTrip = ~0U;

std::optional<tcp_info> ask(int fd) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return std::nullopt;
  return info;
}

tcp_info info_of(int fd) { return ask(fd).value_or(tcp_info{}); }

}  // namespace

std::optional<Nanoseconds> silence_of(int fd) {
  const std::optional<tcp_info> info = ask(fd);
  if (!info) return std::nullopt;
  return static_cast<Nanoseconds>(info->tcpi_last_data_recv) * kMillisecond;
}

bool SocketAnswers::have_ceased(int fd, Nanoseconds now) {
  if (!is_due(now)) return false;
  const std::optional<tcp_info> info = ask(fd);
  if (!info) return false;
  // What a receiver has no room for any more, though it had offered it, is not acknowledged before it has.
  const bool is_data_under_way = info->tcpi_unacked > 0 && info->tcpi_snd_wnd > 0;
  return have_ceased(
      {.acknowledged = info->tcpi_bytes_acked, .is_under_way = is_data_under_way || info->tcpi_probes > 0});
}

bool SocketAnswers::is_due(Nanoseconds now) {
  if (now - looked_at_ < kInterval) return false;
  looked_at_ = now;
  return true;
}

bool SocketAnswers::have_ceased(const Sent& sent) {
  const bool answered = !sent.is_under_way || std::exchange(acknowledged_, sent.acknowledged) != sent.acknowledged;
  without_ = answered ? 0 : without_ + 1;
  return without_ >= kPatience;
}

void SocketPace::sent(int fd, std::size_t bytes) {
  since_ += bytes;
  if (since_ < kBytesASample) return;
  since_ = 0;
  const tcp_info info = info_of(fd);
  // Of a connection that had too little to send, the rate says nothing of the network.
  const bool tells = info.tcpi_delivery_rate_app_limited == 0;
  samples_.take({.bytes_per_s = tells ? static_cast<double>(info.tcpi_delivery_rate) : 0,
                 .bytes = info.tcpi_bytes_acked,
                 .sending_us = info.tcpi_busy_time - info.tcpi_rwnd_limited});
}

Pace SocketPace::pace(int fd) const {
  Pace pace = samples_.pace();
  const unsigned round_trip_us = info_of(fd).tcpi_min_rtt;
  if (round_trip_us != kNoRoundTrip) pace.latency_s = round_trip_us * 1e-6 / 2;
  return pace;
}

}  // namespace ringcore::transport
