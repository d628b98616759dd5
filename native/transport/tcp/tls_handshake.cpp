#include "transport/tcp/tls_handshake.hpp"

#include <charconv>
#include <cstring>
#include <string>
#include <string_view>

#include "base/error.hpp"

namespace ringcore::transport {
namespace {

using openssl::api;

constexpr int kAppData = 0;  // OpenSSL's index of what belongs to the application
constexpr unsigned char kSuiteOfSecret[] = {0x13, 0x01};  // its hash is what counts
constexpr unsigned char kIdentity[] = "ringcore";

[[noreturn]] void refuse(const char* what) {
  throw Error(ErrorKind::kResource, std::string("OpenSSL (") + api().path + ") refuses " + what + ": " +
                                        openssl::last_error() +
                                        ". Remedy: where the network between the hosts is private, set "
                                        "RINGCORE_ENCRYPTION=off on all ranks");
}

// AES-GCM first where the processor has instructions for it, else ChaCha20-Poly1305. Both hash with SHA-256, as the
// pre-shared key does.
const char* cipher_suites() {
#if defined(__x86_64__)
  const bool has_aes = __builtin_cpu_supports("aes") != 0;
#else
  const bool has_aes = true;
#endif
  return has_aes ? "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"
                 : "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256";
}

std::optional<TrafficSecret> from_hex(std::string_view digits) {
  TrafficSecret made;
  if (digits.size() != 2 * made.size()) return std::nullopt;
  for (std::size_t i = 0; i < made.size(); ++i) {
    const char* const pair = digits.data() + 2 * i;
    unsigned char byte = 0;
    if (std::from_chars(pair, pair + 2, byte, 16).ptr != pair + 2) return std::nullopt;
    made[i] = std::byte{byte};
  }
  return made;
}

}  // namespace

// The wire as OpenSSL sees it. It reads one record after the other and no further, because nothing tells it to.
struct TlsHandshake::Bio {
  static int read(bio_st* bio, char* out, int size) {
    TlsHandshake& self = *static_cast<TlsHandshake*>(api().bio_get_data(bio));
    api().bio_clear_flags(bio, openssl::kBioRetryRead);
    const std::size_t got = self.wire_->receive(std::as_writable_bytes(std::span(out, static_cast<std::size_t>(size))));
    if (got > 0) return static_cast<int>(got);
    if (self.wire_->ended()) return 0;
    api().bio_set_flags(bio, openssl::kBioRetryRead);
    return -1;
  }

  // All that both ends say fits many times over.
  static int write(bio_st* bio, const char* bytes, int size) {
    TlsHandshake& self = *static_cast<TlsHandshake*>(api().bio_get_data(bio));
    const std::span<std::byte> room = self.unsent_->room();
    if (static_cast<std::size_t>(size) > room.size()) return 0;
    std::memcpy(room.data(), bytes, static_cast<std::size_t>(size));
    self.unsent_->add(static_cast<std::size_t>(size));
    return size;
  }

  static long control(bio_st* /*bio*/, int what, long /*number*/, void* /*pointer*/) {
    return what == openssl::kBioCtrlFlush ? 1 : 0;
  }

  static bio_method_st* make_method() {
    bio_method_st* method =
        api().bio_meth_new(api().bio_get_new_index() | openssl::kBioSourceSink, "socket of ringcore");
    if (method == nullptr) refuse("a method of input and output");
    api().bio_meth_set_read(method, &Bio::read);
    api().bio_meth_set_write(method, &Bio::write);
    api().bio_meth_set_ctrl(method, &Bio::control);
    return method;
  }

  static bio_st* make(TlsHandshake* self) {
    static bio_method_st* const method = make_method();
    bio_st* bio = api().bio_new(method);
    if (bio == nullptr) refuse("a connection's input and output");
    api().bio_set_data(bio, self);
    api().bio_set_init(bio, 1);
    return bio;
  }
};

// What all connections of a side have in common. Lives as long as the process, as OpenSSL does.
ssl_ctx_st* TlsHandshake::context(Side side) {
  const auto make = [](Side which) {
    ssl_ctx_st* made = api().ctx_new(api().tls_method());
    if (made == nullptr) refuse("a context");
    const auto group = const_cast<char*>("X25519");
    const bool well = api().ctx_ctrl(made, openssl::kCtrlMinProtocol, openssl::kTls13, nullptr) == 1 &&
                      api().ctx_ctrl(made, openssl::kCtrlMaxProtocol, openssl::kTls13, nullptr) == 1 &&
                      api().ctx_ctrl(made, openssl::kCtrlGroupsList, 0, group) == 1 &&
                      api().ctx_set_ciphersuites(made, cipher_suites()) == 1 && api().ctx_set_num_tickets(made, 0) == 1;
    if (!well) refuse("TLS 1.3 with X25519");
    api().ctx_ctrl(made, openssl::kCtrlSessionCache, 0, nullptr);
    api().ctx_set_options(made, openssl::kNoTicket);
    api().ctx_set_keylog_callback(made, &TlsHandshake::take_secret);
    if (which == Side::kClient) {
      // A server that shows a certificate instead of the secret is refused: there is nobody whose word would count.
      api().ctx_set_verify(made, openssl::kVerifyPeer, nullptr);
      api().ctx_set_psk_use_session_callback(made, &TlsHandshake::use_session);
    } else {
      api().ctx_set_psk_find_session_callback(made, &TlsHandshake::find_session);
    }
    return made;
  };
  static ssl_ctx_st* const client = make(Side::kClient);
  static ssl_ctx_st* const server = make(Side::kServer);
  return side == Side::kClient ? client : server;
}

TlsHandshake::TlsHandshake(const TlsSecret& secret, Side side)
    : secret_(secret), side_(side), ssl_(api().ssl_new(context(side))) {
  if (ssl_ == nullptr) refuse("a connection");
  bio_st* const bio = Bio::make(this);
  api().ssl_set_bio(ssl_.get(), bio, bio);
  api().ssl_set_ex_data(ssl_.get(), kAppData, this);
  if (side == Side::kClient) {
    api().ssl_set_connect_state(ssl_.get());
  } else {
    api().ssl_set_accept_state(ssl_.get());
  }
}

TlsHandshake::~TlsHandshake() {
  ::explicit_bzero(secret_.bytes.data(), secret_.bytes.size());
  ::explicit_bzero(&traffic_, sizeof(traffic_));
}

std::optional<RecordCiphers> TlsHandshake::advance(Wire& wire, Buffer& unsent) {
  wire_ = &wire;
  unsent_ = &unsent;
  api().err_clear_error();
  const int result = api().ssl_do_handshake(ssl_.get());
  if (result == 1) {
    // A handshake by certificate would have failed; so that it does not depend on this alone:
    if (api().ssl_session_reused(ssl_.get()) != 1) throw Failure("the job's key was not used");
    return ciphers();
  }
  if (wire.ended() || api().ssl_get_error(ssl_.get(), result) == openssl::kErrorWantRead) return std::nullopt;
  throw Failure(openssl::last_error());
}

RecordCiphers TlsHandshake::ciphers() {
  const auto& [of_client, of_server] = traffic_;
  if (!of_client || !of_server) throw Failure("OpenSSL tells no keys");
  const std::uint32_t agreed = api().cipher_id(api().ssl_get_current_cipher(ssl_.get()));
  if (agreed != openssl::kAes128GcmSha256 && agreed != openssl::kChaCha20Poly1305Sha256) {
    throw Failure("a cipher that nobody asked for");
  }
  const TlsCipher::Suite suite =
      agreed == openssl::kAes128GcmSha256 ? TlsCipher::Suite::kAes128Gcm : TlsCipher::Suite::kChaCha20Poly1305;
  const bool client = side_ == Side::kClient;
  return {std::make_unique<TlsCipher>(suite, TlsCipher::Use::kSeals, client ? *of_client : *of_server),
          std::make_unique<TlsCipher>(suite, TlsCipher::Use::kOpens, client ? *of_server : *of_client)};
}

// The secret in the form in which OpenSSL wants a pre-shared key of TLS 1.3: a session that never was.
ssl_session_st* TlsHandshake::session(ssl_st* ssl) const {
  ssl_session_st* made = api().session_new();
  const auto* key = reinterpret_cast<const unsigned char*>(secret_.bytes.data());
  if (made != nullptr && api().session_set1_master_key(made, key, secret_.bytes.size()) == 1 &&
      api().session_set_cipher(made, api().cipher_find(ssl, kSuiteOfSecret)) == 1 &&
      api().session_set_protocol_version(made, openssl::kTls13) == 1) {
    return made;
  }
  if (made != nullptr) api().session_free(made);
  return nullptr;
}

TlsHandshake& TlsHandshake::of(const ssl_st* ssl) {
  return *static_cast<TlsHandshake*>(api().ssl_get_ex_data(ssl, kAppData));
}

int TlsHandshake::use_session(ssl_st* ssl, const evp_md_st* /*digest*/, const unsigned char** identity,
                              std::size_t* length, ssl_session_st** session) {
  *session = of(ssl).session(ssl);
  *identity = kIdentity;
  *length = sizeof(kIdentity) - 1;
  return *session != nullptr ? 1 : 0;
}

int TlsHandshake::find_session(ssl_st* ssl, const unsigned char* /*identity*/, std::size_t /*length*/,
                               ssl_session_st** session) {
  *session = of(ssl).session(ssl);
  return *session != nullptr ? 1 : 0;
}

// OpenSSL tells applications the secrets of a connection in lines: what it is, a random number of the client's, itself.
void TlsHandshake::take_secret(const ssl_st* ssl, const char* line) {
  const std::string_view text(line);
  const std::string_view digits = text.substr(text.rfind(' ') + 1);
  if (text.starts_with("CLIENT_TRAFFIC_SECRET_0 ")) of(ssl).traffic_[0] = from_hex(digits);
  if (text.starts_with("SERVER_TRAFFIC_SECRET_0 ")) of(ssl).traffic_[1] = from_hex(digits);
}

}  // namespace ringcore::transport
