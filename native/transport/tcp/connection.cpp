#include "transport/tcp/connection.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "base/error.hpp"
#include "base/long_way.hpp"
#include "transport/tcp/send.hpp"

namespace ringcore::transport {
namespace {

// A connection on which nobody says anything: who tracks connections on the way, as firewalls do, forgets them after some
// minutes. The heart beats on the lane for control alone.
constexpr unsigned kIdleSeconds = 30;

// A sleeper is woken when so much is there, though it waits for more: it reduces this while the rest is on its way.
constexpr std::size_t kMostAtOnce = 256 * 1024;

// More than the kernel keeps for a socket; a peer that goes on sending holds nobody up who leaves.
constexpr int kMostDropped = 16 << 20;

// Over a long way a packet is often lost without a queue that is full, and most ways of TCP halve the rate then, which
// takes seconds to grow again. BBR (Cardwell et al. 2016) keeps to what the way has shown that it carries. Nearly every
// Linux has it, and lets root choose it, and others where its administrator allows it.
constexpr std::string_view kBbr = "bbr";

[[noreturn]] void refuse(const char* option) {
  throw Error(ErrorKind::kResource, with_errno(std::string("a lane's socket refuses ") + option, errno));
}

void set_tcp_option(int fd, int option, const char* name, unsigned value) {
  if (::setsockopt(fd, IPPROTO_TCP, option, &value, sizeof(value)) != 0) refuse(name);
}

}  // namespace

Connection::Connection(Fd socket, LinkFailure& failure) : socket_(std::move(socket)), failure_(failure) {
  const int flags = ::fcntl(fd(), F_GETFL);
  if (flags < 0 || ::fcntl(fd(), F_SETFL, flags | O_NONBLOCK) != 0) refuse("O_NONBLOCK");
  int domain = AF_UNSPEC;
  socklen_t length = sizeof(domain);
  if (::getsockopt(fd(), SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0) refuse("SO_DOMAIN");
  is_tcp_ = domain == AF_INET || domain == AF_INET6;
  if (!is_tcp_) return;
  set_tcp_option(fd(), TCP_NODELAY, "TCP_NODELAY", 1);
  set_tcp_option(fd(), TCP_KEEPIDLE, "TCP_KEEPIDLE", kIdleSeconds);
  set_tcp_option(fd(), TCP_KEEPINTVL, "TCP_KEEPINTVL", kIdleSeconds);
  const int on = 1;
  if (::setsockopt(fd(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on)) != 0) refuse("SO_KEEPALIVE");
  // The sizes of the kernel's buffers are left to its own tuning, which setting them would end.
}

void Connection::encrypt(const TlsSecret& secret, Tls::Side side, Rank self) {
  tls_ = std::make_unique<Tls>(fd(), secret, side, self, failure_);
}

void Connection::watch(SocketReadiness& readiness, std::optional<Rank> bytes_of) {
  watch_ = readiness.watch(fd(), bytes_of);
  reads_when_seen_ = bytes_of.has_value();
}

void Connection::limit_unsent(unsigned bytes) {
  if (is_tcp_) set_tcp_option(fd(), TCP_NOTSENT_LOWAT, "TCP_NOTSENT_LOWAT", bytes);
}

// A limit that is none: with any, TCP paces itself, by its window and its round trips.
void Connection::pace_sends() {
  const unsigned long bytes_per_s = 1UL << 48;
  if (is_tcp_) ::setsockopt(fd(), SOL_SOCKET, SO_MAX_PACING_RATE, &bytes_per_s, sizeof(bytes_per_s));
}

void Connection::keep_rate_over_long_way() {
  if (!is_tcp_ || pace_.pace(fd()).latency_s < kLongWaySeconds) return;
  ::setsockopt(fd(), IPPROTO_TCP, TCP_CONGESTION, kBbr.data(), kBbr.size());
}

void Connection::check_answers(Nanoseconds now) {
  if (is_tcp_ && answers_.have_ceased(fd(), now)) failure_.fail_with(ETIMEDOUT);
}

std::size_t Connection::send(std::span<const std::byte> header, std::span<const std::byte> bytes) {
  const std::size_t taken = tls_ != nullptr ? tls_->send(header, bytes) : send_clear(header, bytes);
  if (is_tcp_) pace_.sent(fd(), taken);
  return taken;
}

std::size_t Connection::send_clear(std::span<const std::byte> header, std::span<const std::byte> bytes) {
  if (std::exchange(was_full_, false)) return 0;
  const std::ptrdiff_t sent = send_pieces(fd(), header, bytes);
  if (sent < 0) {
    if (!is_temporary(errno)) failure_.fail_with(errno);
    return 0;
  }
  const auto taken = static_cast<std::size_t>(sent);
  was_full_ = taken < header.size() + bytes.size();
  return taken;
}

std::span<const std::byte> Connection::peek() {
  // Asks the kernel only when the caller has seen all there is: it wants more than that.
  if (buffer_.empty() || shown_) fill();
  shown_ = true;
  return std::as_const(buffer_).bytes();
}

void Connection::consume(std::size_t bytes) {
  expected_ = 1;
  shown_ = false;
  buffer_.drop(bytes);
}

std::size_t Connection::read(std::span<std::byte> out) {
  expected_ = 1;
  if (buffer_.empty()) return receive(out);
  const std::size_t taken = std::min(buffer_.size(), out.size());
  std::memcpy(out.data(), buffer_.bytes().data(), taken);
  consume(taken);
  return taken + (taken < out.size() ? receive(out.subspan(taken)) : 0);
}

void Connection::wake_for_expected() {
  // Of what is encrypted a part may have been received already; a record shows nothing before it is whole.
  const std::size_t there = buffer_.size() + (tls_ != nullptr ? tls_->hidden() : 0);
  const std::size_t missing = expected_ > there ? expected_ - there : 1;
  const std::size_t wanted = std::min(missing, kMostAtOnce);
  if (wanted == wakes_for_ || !is_tcp_) return;
  const int bytes = static_cast<int>(wanted);
  if (::setsockopt(fd(), SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof(bytes)) == 0) wakes_for_ = wanted;
}

bool Connection::fill() {
  const bool opened = advance();
  if (!wants_bytes()) return opened;
  const std::size_t got = receive(buffer_.room());
  if (got > 0) shown_ = false;
  buffer_.add(got);
  return opened || got > 0;
}

std::size_t Connection::receive(std::span<std::byte> out) {
  if (ended_ || out.empty()) return 0;
  // Last words may have come since the last look, if it was a write that has found the end.
  if (reads_when_seen_ && !watch_->readable() && !failure_.reason) return 0;
  const std::size_t taken = tls_ != nullptr ? tls_->receive(out) : receive_clear(out);
  if (tls_ != nullptr) ended_ = tls_->ended();
  // What is encrypted may have been read with the handshake, and shows when that is over.
  if (reads_when_seen_ && taken < out.size() && takes_bytes()) watch_->drained();
  return taken;
}

void Connection::drop_unread() {
  std::array<std::byte, 16 * 1024> dropped;
  for (int left = kMostDropped; left > 0;) {
    const ssize_t got = ::recv(fd(), dropped.data(), dropped.size(), MSG_DONTWAIT);
    if (got <= 0) return;
    left -= static_cast<int>(got);
  }
}

std::size_t Connection::receive_clear(std::span<std::byte> out) {
  const ssize_t got = ::recv(fd(), out.data(), out.size(), MSG_DONTWAIT);
  if (got > 0) return static_cast<std::size_t>(got);
  if (got < 0 && is_temporary(errno)) return 0;
  ended_ = true;
  if (got == 0) {
    failure_.close();
  } else {
    failure_.fail_with(errno);
  }
  return 0;
}

}  // namespace ringcore::transport
