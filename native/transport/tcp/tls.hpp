// One end of an encrypted connection: TLS 1.3 over a non-blocking socket, without certificates.
//
// Both ends hold a secret that nobody else knows: it is made of the job's key and of the nonces of this one connection
// (bootstrap/auth.py), which both have proved to know before. It is the external pre-shared key of RFC 8446, section
// 4.2.11, together with an ephemeral X25519 exchange: a recording stays closed even when the job's key leaks later.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/types.hpp"
#include "transport/tcp/failure.hpp"
#include "transport/tcp/openssl.hpp"

namespace ringcore::transport {

// What the two ends of one connection know.
struct TlsSecret {
  static constexpr std::size_t kBytes = 32;
  std::array<std::byte, kBytes> bytes{};
};

// Never blocks. The handshake goes on with every call; until it is over nothing is taken and nothing given.
class Tls {
 public:
  enum class Side : std::uint8_t { kClient, kServer };

  // `fd`: the socket, owned by the caller and open as long as this. `self`: this rank, for errors.
  // Throws Error{kResource} where OpenSSL is missing.
  Tls(int fd, const TlsSecret& secret, Side side, Rank self, LinkFailure& failure);
  ~Tls();
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  // As those of Connection. What was taken is encrypted at once; what the socket has no room for is kept and leaves with
  // `advance`.
  std::size_t send(std::span<const std::byte> header, std::span<const std::byte> bytes);
  std::size_t receive(std::span<std::byte> out);

  // Goes on with the handshake and with what is unsent; true when the handshake has just ended.
  bool advance();
  bool is_open() const { return open_; }
  bool has_unsent() const { return sent_ < unsent_.size(); }
  // Nothing more can be received.
  bool ended() const { return ended_; }

  // So many bytes may have been received that show nothing yet: the beginning of a record.
  static constexpr std::size_t kMostHidden = 18 * 1024;
  // A key encrypts no more than this. AES-GCM may have 2^24.5 records of 16 KiB (RFC 8446, section 5.5): a third of it.
  static constexpr std::uint64_t kBytesPerKey = std::uint64_t{128} << 30;
  // For tests.
  void limit_bytes_per_key(std::uint64_t bytes) { bytes_per_key_ = bytes; }

 private:
  struct Bio;
  struct SslDeleter {
    void operator()(ssl_st* ssl) const { openssl::api().ssl_free(ssl); }
  };

  bool encrypt(std::span<const std::byte> bytes);
  bool flush();
  void fail(const char* what);
  ssl_session_st* session(ssl_st* ssl) const;
  static ssl_ctx_st* context(Side side);
  static int use_session(ssl_st* ssl, const evp_md_st* digest, const unsigned char** identity, std::size_t* length,
                         ssl_session_st** session);
  static int find_session(ssl_st* ssl, const unsigned char* identity, std::size_t length, ssl_session_st** session);

  int fd_;
  TlsSecret secret_;  // wiped when the handshake has ended
  Rank self_;
  LinkFailure& failure_;
  std::unique_ptr<ssl_st, SslDeleter> ssl_;
  bool open_ = false;
  bool ended_ = false;
  std::vector<std::byte> unsent_;  // encrypted, of which `sent_` bytes have left
  std::size_t sent_ = 0;
  std::uint64_t bytes_per_key_ = kBytesPerKey;
  std::uint64_t bytes_with_key_ = 0;
};

}  // namespace ringcore::transport
