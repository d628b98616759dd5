#include "transport/tcp/pace.hpp"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace ringcore::transport {
namespace {

// What Linux says of a round trip that it has not seen yet.
constexpr unsigned kNoRoundTrip = ~0U;

}  // namespace

Pace pace_of_socket(int fd) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return {};
  Pace pace;
  // Of a connection that had too little to send, the rate says nothing of the network.
  if (info.tcpi_delivery_rate_app_limited == 0) pace.bytes_per_s = static_cast<double>(info.tcpi_delivery_rate);
  if (info.tcpi_min_rtt != kNoRoundTrip) pace.latency_s = info.tcpi_min_rtt * 1e-6 / 2;
  return pace;
}

}  // namespace ringcore::transport
