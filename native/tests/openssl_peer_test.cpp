// Our records with OpenSSL's own record layer as the peer, in both roles: it is TLS that is on the wire.
#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <string>

#include <fcntl.h>

#include "base/library.hpp"
#include "link_fixtures.hpp"
#include "transport/tcp/openssl.hpp"
#include "wiretap.hpp"

namespace ringcore::test {
namespace {

namespace openssl = transport::openssl;
using openssl::api;
using transport::Tls;

constexpr unsigned char kSuite[] = {0x13, 0x01};
constexpr unsigned char kIdentity[] = "ringcore";
constexpr int kUpdateNotRequested = 0;  // SSL_KEY_UPDATE_NOT_REQUESTED
constexpr int kUpdateRequested = 1;  // SSL_KEY_UPDATE_REQUESTED

// What the engine has no use for.
struct MoreOfOpenssl {
  int (*set_fd)(ssl_st*, int);
  int (*read)(ssl_st*, void*, int);
  int (*write)(ssl_st*, const void*, int);
  int (*key_update)(ssl_st*, int);
  int (*shutdown)(ssl_st*);

  MoreOfOpenssl() {
    const std::string name = api().path;
    const Library library("OpenSSL 3 (libssl)", {&name, 1});
    library.load("SSL_set_fd", set_fd);
    library.load("SSL_read", read);
    library.load("SSL_write", write);
    library.load("SSL_key_update", key_update);
    library.load("SSL_shutdown", shutdown);
  }
};

const MoreOfOpenssl& more() {
  static const MoreOfOpenssl loaded;
  return loaded;
}

ssl_session_st* session(ssl_st* ssl) {
  const transport::TlsSecret secret = SocketPair::secret(7);
  ssl_session_st* const made = api().session_new();
  REQUIRE(api().session_set1_master_key(made, reinterpret_cast<const unsigned char*>(secret.bytes.data()), 32) == 1);
  REQUIRE(api().session_set_cipher(made, api().cipher_find(ssl, kSuite)) == 1);
  REQUIRE(api().session_set_protocol_version(made, openssl::kTls13) == 1);
  return made;
}

int use_session(ssl_st* ssl, const evp_md_st* /*digest*/, const unsigned char** identity, std::size_t* length,
                ssl_session_st** made) {
  *identity = kIdentity;
  *length = sizeof(kIdentity) - 1;
  *made = session(ssl);
  return 1;
}

int find_session(ssl_st* ssl, const unsigned char* /*identity*/, std::size_t /*length*/, ssl_session_st** made) {
  *made = session(ssl);
  return 1;
}

// One end is ours, the other one OpenSSL's.
class Mixed {
 public:
  explicit Mixed(Tls::Side ours, const char* suites = "TLS_AES_128_GCM_SHA256")
      : sockets_(tcp_pair()),
        tls(sockets_.first.get(), SocketPair::secret(7), ours, 0, failure),
        context_(api().ctx_new(api().tls_method())),
        ssl_((prepare(suites), api().ssl_new(context_.get()))) {
    for (const Fd* socket : {&sockets_.first, &sockets_.second}) {
      REQUIRE(::fcntl(socket->get(), F_SETFL, O_NONBLOCK) == 0);
    }
    REQUIRE(more().set_fd(ssl_.get(), sockets_.second.get()) == 1);
    if (ours == Tls::Side::kServer) {
      api().ssl_set_connect_state(ssl_.get());
    } else {
      api().ssl_set_accept_state(ssl_.get());
    }
    for (const Patience patience; !(tls.is_open() && done_) && patience.left();) {
      tls.advance();
      done_ = done_ || api().ssl_do_handshake(ssl_.get()) == 1;
    }
    REQUIRE(done_);
    REQUIRE(tls.is_open());
  }

  // All of it arrives, sent as ours sends and read in pieces.
  void from_ours(std::size_t bytes) {
    const std::vector<std::byte> data = pattern(bytes);
    std::vector<std::byte> arrived(bytes);
    std::size_t sent = 0;
    std::size_t got = 0;
    for (const Patience patience; got < bytes && patience.left();) {
      sent += tls.send({}, std::span(data).subspan(sent));
      tls.advance();
      const int now = more().read(ssl_.get(), arrived.data() + got, static_cast<int>(bytes - got));
      if (now <= 0) continue;
      got += static_cast<std::size_t>(now);
    }
    CHECK(got == bytes);
    CHECK(arrived == data);
  }

  void from_openssl(std::size_t bytes) {
    const std::vector<std::byte> data = pattern(bytes);
    std::vector<std::byte> arrived(bytes);
    std::size_t sent = 0;
    std::size_t got = 0;
    for (const Patience patience; got < bytes && patience.left();) {
      // A write that was refused is made again with the same memory and size.
      const std::size_t piece = std::min<std::size_t>(bytes - sent, 20'000);
      const int taken = piece == 0 ? 0 : more().write(ssl_.get(), data.data() + sent, static_cast<int>(piece));
      if (taken > 0) sent += static_cast<std::size_t>(taken);
      const std::size_t now = tls.receive(std::span(arrived).subspan(got, std::min<std::size_t>(bytes - got, 30'000)));
      got += now;
    }
    CHECK(got == bytes);
    CHECK(arrived == data);
  }

  ssl_st* ssl() const { return ssl_.get(); }
  int fd_of_openssl() const { return sockets_.second.get(); }
  int fd_of_ours() const { return sockets_.first.get(); }

 private:
  struct Free {
    void operator()(ssl_st* ssl) const { api().ssl_free(ssl); }
    void operator()(ssl_ctx_st* context) const {
      const std::string name = api().path;
      void (*free)(ssl_ctx_st*) = nullptr;
      Library("OpenSSL 3 (libssl)", {&name, 1}).load("SSL_CTX_free", free);
      free(context);
    }
  };

  void prepare(const char* suites) {
    REQUIRE(api().ctx_set_ciphersuites(context_.get(), suites) == 1);
    REQUIRE(api().ctx_set_num_tickets(context_.get(), 0) == 1);
    api().ctx_set_psk_use_session_callback(context_.get(), use_session);
    api().ctx_set_psk_find_session_callback(context_.get(), find_session);
  }

  std::pair<Fd, Fd> sockets_;
  bool done_ = false;

 public:
  transport::LinkFailure failure;
  Tls tls;

 private:
  std::unique_ptr<ssl_ctx_st, Free> context_;
  std::unique_ptr<ssl_st, Free> ssl_;
};

}  // namespace

TEST_CASE("openssl as the peer: all that either end sends arrives, in both roles and with both ciphers") {
  for (const Tls::Side ours : {Tls::Side::kClient, Tls::Side::kServer}) {
    for (const char* suites : {"TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256"}) {
      CAPTURE(suites);
      Mixed mixed(ours, suites);
      for (const std::size_t bytes : {1, 100, 16'384, 16'385, 1'000'000}) {
        CAPTURE(bytes);
        mixed.from_ours(bytes);
        mixed.from_openssl(bytes);
      }
      CHECK_FALSE(mixed.failure.reason);
    }
  }
}

TEST_CASE("openssl as the peer: either end renews its key, and asks the other one to") {
  Mixed mixed(Tls::Side::kClient);
  mixed.tls.limit_bytes_per_key(30'000);
  for (int round = 0; round < 10; ++round) {
    CAPTURE(round);
    mixed.from_ours(50'000);
    REQUIRE(more().key_update(mixed.ssl(), round % 2 == 0 ? kUpdateRequested : kUpdateNotRequested) == 1);
    mixed.from_openssl(50'000);
  }
  mixed.from_ours(50'000);
  CHECK_FALSE(mixed.failure.reason);
}

TEST_CASE("openssl as the peer: its goodbye is the end, after what it has sent before") {
  Mixed mixed(Tls::Side::kServer);
  mixed.from_openssl(100);
  REQUIRE(more().write(mixed.ssl(), "last", 4) == 4);
  more().shutdown(mixed.ssl());
  std::array<std::byte, 100> out{};
  std::size_t got = 0;
  for (const Patience patience; !mixed.tls.ended() && patience.left();)
    got += mixed.tls.receive(std::span(out).subspan(got));
  CHECK(got == 4);
  CHECK(mixed.tls.ended());
  CHECK(mixed.failure.reason == std::string(transport::LinkFailure::kClosed));
  CHECK(mixed.tls.send({}, out) == 0);
}

TEST_CASE("openssl as the peer: each says to the other what does not decrypt") {
  Mixed mixed(Tls::Side::kClient);
  mixed.from_ours(100);
  mixed.from_openssl(100);
  constexpr std::array<unsigned char, 40> kNobodysRecord{23, 3, 3, 0, 35};
  std::array<std::byte, 100> out{};
  SUBCASE("ours") {
    REQUIRE(::send(mixed.fd_of_openssl(), kNobodysRecord.data(), kNobodysRecord.size(), 0) == 40);
    for (const Patience patience; !mixed.failure.reason && patience.left();) mixed.tls.receive(out);
    REQUIRE(mixed.failure.reason);
    CHECK(mixed.failure.reason->find("sent what does not decrypt to rank 0") == 0);
    int result = 0;
    for (const Patience patience; patience.left();) {
      result = more().read(mixed.ssl(), out.data(), 100);
      if (api().ssl_get_error(mixed.ssl(), result) != openssl::kErrorWantRead) break;
    }
    CHECK(openssl::last_error().find("bad record mac") != std::string::npos);
  }
  SUBCASE("openssl") {
    REQUIRE(::send(mixed.fd_of_ours(), kNobodysRecord.data(), kNobodysRecord.size(), 0) == 40);
    for (const Patience patience; !mixed.failure.reason && patience.left();) {
      more().read(mixed.ssl(), out.data(), 100);
      mixed.tls.receive(out);
    }
    REQUIRE(mixed.failure.reason);
    CHECK(mixed.failure.reason->find("could not decrypt what was sent by rank 0 (TLS alert 20)") == 0);
  }
  CHECK(mixed.tls.ended());
}

}  // namespace ringcore::test
