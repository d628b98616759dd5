// The ciphers of TLS 1.3 by OpenSSL: AES-128-GCM and ChaCha20-Poly1305, with keys made by SHA-256.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "transport/secure_stream.hpp"
#include "transport/tcp/openssl.hpp"

namespace ringcore::transport {

// What both ends know of one direction (RFC 8446, section 7.1: client or server_application_traffic_secret_0).
using TrafficSecret = std::array<std::byte, 32>;

class TlsCipher final : public RecordCipher {
 public:
  using Suite = RecordKey::Suite;
  enum class Use : std::uint8_t { kSeals, kOpens };

  // Throws Error{kResource} where OpenSSL refuses.
  TlsCipher(Suite suite, Use use, const TrafficSecret& secret);
  ~TlsCipher() override;
  TlsCipher(const TlsCipher&) = delete;
  TlsCipher& operator=(const TlsCipher&) = delete;

  bool seal(std::uint64_t number, std::span<const std::byte> header, std::span<const std::byte> first,
            std::span<const std::byte> rest, std::byte type, std::byte* out) override;
  std::optional<std::byte> open(std::uint64_t number, std::span<const std::byte> header,
                                std::span<const std::byte> sealed, std::byte* text) override;
  bool renew() override;
  std::optional<RecordKey> key() const override;

 private:
  struct ContextDeleter {
    void operator()(evp_cipher_ctx_st* context) const { openssl::api().cipher_context_free(context); }
  };
  bool take_keys();
  bool begin(std::uint64_t number, std::span<const std::byte> header);
  bool update(std::span<const std::byte> in, std::byte* out);

  Suite suite_;
  Use use_;
  TrafficSecret secret_;
  decltype(RecordKey::nonce) nonce_{};
  std::unique_ptr<evp_cipher_ctx_st, ContextDeleter> context_;
};

}  // namespace ringcore::transport
