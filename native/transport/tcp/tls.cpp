#include "transport/tcp/tls.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include <sys/socket.h>

#include "base/error.hpp"

namespace ringcore::transport {
namespace {

using openssl::api;

// Encrypted bytes leave in pieces of this size: fewer calls than one a record, and still in the cache.
constexpr std::size_t kBatchBytes = 64 * 1024;
// A header and its data go into one record up to this: cheaper than a record each.
constexpr std::size_t kJoinedBytes = 2 * 1024;
constexpr int kAppData = 0;  // OpenSSL's index of what belongs to the application
constexpr unsigned char kAes128GcmSha256[] = {0x13, 0x01};
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

}  // namespace

// The socket as OpenSSL sees it: it reads from the kernel and writes into `unsent_`.
struct Tls::Bio {
  static int read(bio_st* bio, char* out, int size) {
    Tls& tls = *static_cast<Tls*>(api().bio_get_data(bio));
    api().bio_clear_flags(bio, openssl::kBioRetryRead);
    const ssize_t got = ::recv(tls.fd_, out, static_cast<std::size_t>(size), MSG_DONTWAIT);
    if (got > 0) return static_cast<int>(got);
    if (got < 0 && is_temporary(errno)) {
      api().bio_set_flags(bio, openssl::kBioRetryRead);
      return -1;
    }
    tls.ended_ = true;
    if (got == 0) {
      tls.failure_.fail(LinkFailure::kClosed);
    } else {
      tls.failure_.fail_with(errno);
    }
    return 0;
  }

  static int write(bio_st* bio, const char* bytes, int size) {
    Tls& tls = *static_cast<Tls*>(api().bio_get_data(bio));
    const auto piece = std::as_bytes(std::span(bytes, static_cast<std::size_t>(size)));
    tls.unsent_.insert(tls.unsent_.end(), piece.begin(), piece.end());
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

  static bio_st* make(Tls* tls) {
    static bio_method_st* const method = make_method();
    bio_st* bio = api().bio_new(method);
    if (bio == nullptr) refuse("a connection's input and output");
    api().bio_set_data(bio, tls);
    api().bio_set_init(bio, 1);
    return bio;
  }
};

// What all connections of a side have in common. Lives as long as the process, as OpenSSL does.
ssl_ctx_st* Tls::context(Side side) {
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
    api().ctx_ctrl(made, openssl::kCtrlMode, openssl::kModeReleaseBuffers, nullptr);
    // One call to the kernel brings several records.
    api().ctx_ctrl(made, openssl::kCtrlReadAhead, 1, nullptr);
    api().ctx_set_default_read_buffer_len(made, kBatchBytes + kBatchBytes / 16);
    api().ctx_set_options(made, openssl::kNoTicket);
    if (which == Side::kClient) {
      // A server that shows a certificate instead of the secret is refused: there is nobody whose word would count.
      api().ctx_set_verify(made, openssl::kVerifyPeer, nullptr);
      api().ctx_set_psk_use_session_callback(made, &Tls::use_session);
    } else {
      api().ctx_set_psk_find_session_callback(made, &Tls::find_session);
    }
    return made;
  };
  static ssl_ctx_st* const client = make(Side::kClient);
  static ssl_ctx_st* const server = make(Side::kServer);
  return side == Side::kClient ? client : server;
}

Tls::Tls(int fd, const TlsSecret& secret, Side side, Rank self, LinkFailure& failure)
    : fd_(fd), secret_(secret), self_(self), failure_(failure), ssl_(api().ssl_new(context(side))) {
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

// What was taken is on its way for the engine: an orderly end sends it as far as the socket has room.
Tls::~Tls() {
  flush();
  ::explicit_bzero(secret_.bytes.data(), secret_.bytes.size());
}

// The secret in the form in which OpenSSL wants a pre-shared key of TLS 1.3: a session that never was.
ssl_session_st* Tls::session(ssl_st* ssl) const {
  ssl_session_st* made = api().session_new();
  const auto* key = reinterpret_cast<const unsigned char*>(secret_.bytes.data());
  if (made != nullptr && api().session_set1_master_key(made, key, secret_.bytes.size()) == 1 &&
      api().session_set_cipher(made, api().cipher_find(ssl, kAes128GcmSha256)) == 1 &&
      api().session_set_protocol_version(made, openssl::kTls13) == 1) {
    return made;
  }
  if (made != nullptr) api().session_free(made);
  return nullptr;
}

int Tls::use_session(ssl_st* ssl, const evp_md_st* /*digest*/, const unsigned char** identity, std::size_t* length,
                     ssl_session_st** session) {
  *session = static_cast<Tls*>(api().ssl_get_ex_data(ssl, kAppData))->session(ssl);
  *identity = kIdentity;
  *length = sizeof(kIdentity) - 1;
  return *session != nullptr ? 1 : 0;
}

int Tls::find_session(ssl_st* ssl, const unsigned char* /*identity*/, std::size_t /*length*/,
                      ssl_session_st** session) {
  *session = static_cast<Tls*>(api().ssl_get_ex_data(ssl, kAppData))->session(ssl);
  return *session != nullptr ? 1 : 0;
}

void Tls::fail(const char* what) {
  const std::string reason = openssl::last_error();
  ended_ = true;
  failure_.fail(std::string(what) + " rank " + std::to_string(self_) + " (" + reason +
                "): something between the two hosts changes what they send");
}

bool Tls::advance() {
  flush();
  if (open_ || ended_) return false;
  api().err_clear_error();
  const int result = api().ssl_do_handshake(ssl_.get());
  flush();
  if (result == 1) {
    // A handshake by certificate would have failed; so that it does not depend on this alone:
    if (api().ssl_session_reused(ssl_.get()) != 1) {
      fail("did not use the job's key in the encrypted handshake with");
      return false;
    }
    open_ = true;
    unsent_.reserve(kBatchBytes + kMostHidden);
    ::explicit_bzero(secret_.bytes.data(), secret_.bytes.size());
    return true;
  }
  if (ended_ || api().ssl_get_error(ssl_.get(), result) == openssl::kErrorWantRead) return false;
  fail("failed in the encrypted handshake with");
  return false;
}

std::size_t Tls::send(std::span<const std::byte> header, std::span<const std::byte> bytes) {
  if (!open_) advance();
  if (!open_ || !flush()) return 0;
  const std::size_t total = header.size() + bytes.size();
  if (!header.empty() && !bytes.empty() && total <= kJoinedBytes) {
    std::array<std::byte, kJoinedBytes> joined;
    std::memcpy(joined.data(), header.data(), header.size());
    std::memcpy(joined.data() + header.size(), bytes.data(), bytes.size());
    const bool taken = encrypt({joined.data(), total});
    flush();
    return taken ? total : 0;
  }
  std::size_t taken = 0;
  for (std::span<const std::byte> piece : {header, bytes}) {
    while (!piece.empty()) {
      const auto batch = piece.first(std::min(piece.size(), kBatchBytes));
      if (!encrypt(batch)) return taken;
      taken += batch.size();
      piece = piece.subspan(batch.size());
      if (unsent_.size() - sent_ >= kBatchBytes && !flush()) return taken;
    }
  }
  flush();
  return taken;
}

// Takes all of it, because `unsent_` has room.
bool Tls::encrypt(std::span<const std::byte> bytes) {
  if (bytes_with_key_ >= bytes_per_key_) {
    if (api().ssl_key_update(ssl_.get(), openssl::kKeyUpdateNotRequested) != 1) {
      fail("could get no new key from");
      return false;
    }
    bytes_with_key_ = 0;
  }
  while (!bytes.empty()) {
    std::size_t written = 0;
    api().err_clear_error();
    if (api().ssl_write_ex(ssl_.get(), bytes.data(), bytes.size(), &written) != 1) {
      if (!ended_) fail("can be sent nothing encrypted any more by");
      return false;
    }
    bytes_with_key_ += written;
    bytes = bytes.subspan(written);
  }
  return true;
}

// False when the socket has no room for the rest, or is broken.
bool Tls::flush() {
  while (has_unsent()) {
    const ssize_t sent = ::send(fd_, unsent_.data() + sent_, unsent_.size() - sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
      if (!is_temporary(errno)) failure_.fail_with(errno);
      return false;
    }
    sent_ += static_cast<std::size_t>(sent);
  }
  unsent_.clear();
  sent_ = 0;
  return true;
}

std::size_t Tls::receive(std::span<std::byte> out) {
  if (!open_) advance();
  std::size_t taken = 0;
  while (open_ && !ended_ && taken < out.size()) {
    std::size_t got = 0;
    api().err_clear_error();
    const int result = api().ssl_read_ex(ssl_.get(), out.data() + taken, out.size() - taken, &got);
    taken += got;
    if (result == 1) continue;
    if (ended_) break;
    const int error = api().ssl_get_error(ssl_.get(), result);
    if (error == openssl::kErrorWantRead) break;
    if (error == openssl::kErrorZeroReturn) {
      ended_ = true;
      failure_.fail(LinkFailure::kClosed);
    } else {
      fail("sent what does not decrypt to");
    }
  }
  if (has_unsent()) flush();  // an answer to a new key
  return taken;
}

}  // namespace ringcore::transport
