#include "transport/tcp/tls.hpp"

#include <cerrno>
#include <string>
#include <utility>

#include <sys/socket.h>

#include "transport/tcp/kernel_tls.hpp"
#include "transport/tcp/send.hpp"

namespace ringcore::transport {

Tls::Tls(int fd, const TlsSecret& secret, Side side, Rank self, LinkFailure& failure)
    : self_(self),
      failure_(failure),
      socket_(fd, failure),
      stream_(socket_, std::make_unique<TlsHandshake>(secret, side)) {}

// What was taken is on its way for the engine: an orderly end sends it as far as the socket has room.
Tls::~Tls() {
  socket_.look_again();
  stream_.flush();
}

std::size_t Tls::Socket::send(std::span<const std::byte> bytes) {
  if (std::exchange(was_full_, false)) return 0;
  const std::size_t sent = taken(::send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL));
  was_full_ = sent < bytes.size();
  return sent;
}

std::size_t Tls::Socket::taken(std::ptrdiff_t sent) {
  if (sent >= 0) return static_cast<std::size_t>(sent);
  if (!is_temporary(errno)) failure_.fail_with(errno);
  return 0;
}

bool Tls::Socket::encrypt(const RecordKey& key, std::uint64_t number) { return kernel_tls::encrypt(fd_, key, number); }

std::size_t Tls::Socket::send_text(std::span<const std::byte> first, std::span<const std::byte> rest) {
  return taken(send_pieces(fd_, first, rest));
}

bool Tls::Socket::send_message(std::byte type, std::span<const std::byte> text) {
  return taken(kernel_tls::send_message(fd_, type, text)) == text.size();
}

std::size_t Tls::Socket::receive(std::span<std::byte> room) {
  const ssize_t got = ::recv(fd_, room.data(), room.size(), MSG_DONTWAIT);
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

std::size_t Tls::send(std::span<const std::byte> header, std::span<const std::byte> bytes) {
  const std::size_t taken = stream_.send(header, bytes);
  tell();
  return taken;
}

std::size_t Tls::receive(std::span<std::byte> out) {
  const std::size_t taken = stream_.receive(out);
  tell();
  return taken;
}

bool Tls::advance() {
  const bool opened = stream_.advance();
  tell();
  return opened;
}

void Tls::tell() {
  if (stream_.said_goodbye()) failure_.close();
  if (stream_.failure()) failure_.fail(stream_.failure()->told(self_));
}

}  // namespace ringcore::transport
