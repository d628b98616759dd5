// One end of an encrypted connection: TLS 1.3 over a non-blocking socket, without certificates.
//
// Both ends hold a secret that nobody else knows: it is made of the job's key and of the nonces of this one connection
// (bootstrap/auth.py), which both have proved to know before. It is the external pre-shared key of RFC 8446, section
// 4.2.11, together with an ephemeral X25519 exchange: a recording stays closed even when the job's key leaks later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/types.hpp"
#include "transport/secure_stream.hpp"
#include "transport/tcp/failure.hpp"
#include "transport/tcp/tls_handshake.hpp"

namespace ringcore::transport {

// Never blocks. The handshake goes on with every call; until it is over nothing is taken and nothing given.
class Tls {
 public:
  using Side = TlsHandshake::Side;

  // `fd`: the socket, owned by the caller and open as long as this. `self`: this rank, for errors.
  // Throws Error{kResource} where OpenSSL is missing.
  Tls(int fd, const TlsSecret& secret, Side side, Rank self, LinkFailure& failure);
  ~Tls();
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  // As those of SecureStream; what is wrong is told to `failure`.
  std::size_t send(std::span<const std::byte> header, std::span<const std::byte> bytes);
  std::size_t receive(std::span<std::byte> out);
  bool advance();
  bool is_open() const { return stream_.is_open(); }
  bool has_unsent() const { return stream_.has_unsent(); }
  std::size_t hidden() const { return stream_.hidden(); }
  bool ended() const { return stream_.ended(); }
  // By kernel_tls.hpp, since the first `send` after the handshake.
  bool kernel_encrypts() const { return stream_.wire_encrypts(); }
  // For tests.
  void limit_bytes_per_key(std::uint64_t bytes) { stream_.limit_bytes_per_key(bytes); }

 private:
  class Socket final : public Wire {
   public:
    Socket(int fd, LinkFailure& failure) : fd_(fd), failure_(failure) {}
    std::size_t send(std::span<const std::byte> bytes) override;
    std::size_t receive(std::span<std::byte> room) override;
    bool ended() const override { return ended_; }
    bool encrypt(const RecordKey& key, std::uint64_t number) override;
    std::size_t send_text(std::span<const std::byte> first, std::span<const std::byte> rest) override;
    bool send_message(std::byte type, std::span<const std::byte> text) override;
    // The next call of `send` asks the kernel, whatever the last one has found.
    void look_again() { was_full_ = false; }

   private:
    std::size_t taken(std::ptrdiff_t sent);

    int fd_;
    LinkFailure& failure_;
    bool ended_ = false;
    bool was_full_ = false;  // as that of Connection
  };

  void tell();

  Rank self_;
  LinkFailure& failure_;
  Socket socket_;
  SecureStream stream_;
};

}  // namespace ringcore::transport
