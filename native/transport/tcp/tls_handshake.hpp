// The handshake of TLS 1.3 without certificates, by OpenSSL; the record layer that follows is ours.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "transport/secure_stream.hpp"
#include "transport/tcp/openssl.hpp"
#include "transport/tcp/tls_cipher.hpp"

namespace ringcore::transport {

// What the two ends of one connection know.
struct TlsSecret {
  static constexpr std::size_t kBytes = 32;
  std::array<std::byte, kBytes> bytes{};
};

class TlsHandshake final : public Handshake {
 public:
  enum class Side : std::uint8_t { kClient, kServer };

  // Throws Error{kResource} where OpenSSL is missing.
  TlsHandshake(const TlsSecret& secret, Side side);
  ~TlsHandshake() override;
  TlsHandshake(const TlsHandshake&) = delete;
  TlsHandshake& operator=(const TlsHandshake&) = delete;

  std::optional<RecordCiphers> advance(Wire& wire, Buffer& unsent) override;

 private:
  struct Bio;
  struct SslDeleter {
    void operator()(ssl_st* ssl) const { openssl::api().ssl_free(ssl); }
  };

  RecordCiphers ciphers();
  ssl_session_st* session(ssl_st* ssl) const;
  static ssl_ctx_st* context(Side side);
  static TlsHandshake& of(const ssl_st* ssl);
  static int use_session(ssl_st* ssl, const evp_md_st* digest, const unsigned char** identity, std::size_t* length,
                         ssl_session_st** session);
  static int find_session(ssl_st* ssl, const unsigned char* identity, std::size_t length, ssl_session_st** session);
  static void take_secret(const ssl_st* ssl, const char* line);

  TlsSecret secret_;
  Side side_;
  std::unique_ptr<ssl_st, SslDeleter> ssl_;
  Wire* wire_ = nullptr;  // during `advance`
  Buffer* unsent_ = nullptr;  // during `advance`
  // Of what the client sends, and the server.
  std::array<std::optional<TrafficSecret>, 2> traffic_;
};

}  // namespace ringcore::transport
