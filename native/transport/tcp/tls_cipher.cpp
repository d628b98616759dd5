#include "transport/tcp/tls_cipher.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/error.hpp"

namespace ringcore::transport {
namespace {

using openssl::api;

const unsigned char* chars(const std::byte* bytes) { return reinterpret_cast<const unsigned char*>(bytes); }
unsigned char* chars(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }

// HKDF-Expand-Label (RFC 8446, section 7.1) without a context, for outputs that one hash is long enough for.
bool expand(const TrafficSecret& secret, std::string_view label, std::span<std::byte> out) {
  constexpr std::string_view kPrefix = "tls13 ";
  std::array<unsigned char, 64> info{};
  std::size_t size = 0;
  info[size++] = 0;
  info[size++] = static_cast<unsigned char>(out.size());
  info[size++] = static_cast<unsigned char>(kPrefix.size() + label.size());
  for (const std::string_view part : {kPrefix, label}) {
    std::memcpy(info.data() + size, part.data(), part.size());
    size += part.size();
  }
  info[size++] = 0;  // the context's length
  info[size++] = 1;  // the first block of HKDF-Expand
  TrafficSecret block;
  unsigned length = 0;
  const bool well = api().hmac(api().sha256(), secret.data(), static_cast<int>(secret.size()), info.data(), size,
                               chars(block.data()), &length) != nullptr &&
                    length == block.size();
  std::copy_n(block.begin(), out.size(), out.begin());
  ::explicit_bzero(block.data(), block.size());
  return well;
}

}  // namespace

TlsCipher::TlsCipher(Suite suite, Use use, const TrafficSecret& secret)
    : suite_(suite), use_(use), secret_(secret), context_(api().cipher_context_new()) {
  if (context_ == nullptr || !take_keys()) {
    throw Error(ErrorKind::kResource, "OpenSSL (" + api().path + ") refuses a cipher: " + openssl::last_error());
  }
}

TlsCipher::~TlsCipher() {
  ::explicit_bzero(secret_.data(), secret_.size());
  ::explicit_bzero(nonce_.data(), nonce_.size());
}

std::optional<RecordKey> TlsCipher::key() const {
  RecordKey made;
  made.suite = suite_;
  const std::size_t bytes = suite_ == Suite::kAes128Gcm ? 16 : 32;
  if (!expand(secret_, "key", std::span(made.key).first(bytes)) || !expand(secret_, "iv", made.nonce)) {
    return std::nullopt;
  }
  return made;
}

bool TlsCipher::take_keys() {
  const std::optional<RecordKey> keys = key();
  if (!keys) return false;
  nonce_ = keys->nonce;
  const evp_cipher_st* const cipher = suite_ == Suite::kAes128Gcm ? api().aes_128_gcm() : api().chacha20_poly1305();
  return api().cipher_init(context_.get(), cipher, nullptr, chars(keys->key.data()), nullptr,
                           use_ == Use::kSeals ? 1 : 0) == 1;
}

bool TlsCipher::renew() {
  TrafficSecret next;
  const bool well = expand(secret_, "traffic upd", next);
  secret_ = next;
  ::explicit_bzero(next.data(), next.size());
  return well && take_keys();
}

// The nonce of a record (RFC 8446, section 5.3), and its header as additional data.
bool TlsCipher::begin(std::uint64_t number, std::span<const std::byte> header) {
  auto nonce = nonce_;
  for (std::size_t i = 0; i < sizeof(number); ++i)
    nonce[nonce.size() - 1 - i] ^= static_cast<std::byte>(number >> 8 * i);
  int length = 0;
  return api().cipher_init(context_.get(), nullptr, nullptr, nullptr, chars(nonce.data()), -1) == 1 &&
         api().cipher_update(context_.get(), nullptr, &length, chars(header.data()), static_cast<int>(header.size())) ==
             1;
}

bool TlsCipher::update(std::span<const std::byte> in, std::byte* out) {
  int length = 0;
  return in.empty() ||
         api().cipher_update(context_.get(), chars(out), &length, chars(in.data()), static_cast<int>(in.size())) == 1;
}

bool TlsCipher::seal(std::uint64_t number, std::span<const std::byte> header, std::span<const std::byte> first,
                     std::span<const std::byte> rest, std::byte type, std::byte* out) {
  std::byte* const tag = out + first.size() + rest.size() + 1;
  int length = 0;
  return begin(number, header) && update(first, out) && update(rest, out + first.size()) &&
         update({&type, 1}, tag - 1) && api().cipher_final(context_.get(), chars(tag), &length) == 1 &&
         api().cipher_control(context_.get(), openssl::kCipherGetTag, kTagBytes, tag) == 1;
}

std::optional<std::byte> TlsCipher::open(std::uint64_t number, std::span<const std::byte> header,
                                         std::span<const std::byte> sealed, std::byte* text) {
  const std::span<const std::byte> tag = sealed.last(kTagBytes);
  const std::span<const std::byte> behind = sealed.subspan(sealed.size() - kTagBytes - 1, 1);
  std::byte type{};
  int length = 0;
  const bool well =
      begin(number, header) && update(sealed.first(sealed.size() - kTagBytes - 1), text) && update(behind, &type) &&
      api().cipher_control(context_.get(), openssl::kCipherSetTag, kTagBytes, const_cast<std::byte*>(tag.data())) ==
          1 &&
      api().cipher_final(context_.get(), chars(&type) + 1, &length) == 1;
  if (!well) {
    api().err_clear_error();
    return std::nullopt;
  }
  return type;
}

}  // namespace ringcore::transport
