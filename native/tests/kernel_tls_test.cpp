// TLS by the kernel, where it has it: `nox -s kernel_tls` boots kernels that do. Elsewhere its refusal, and what is done then.
#include <doctest/doctest.h>

#include <functional>
#include <string>

#include "from_environment.hpp"
#include "link_fixtures.hpp"
#include "transport/tcp/kernel_tls.hpp"
#include "transport/tcp/send.hpp"
#include "transport/tcp/tls_cipher.hpp"
#include "wiretap.hpp"

namespace ringcore::test {
namespace {

namespace kernel_tls = transport::kernel_tls;
using transport::Tls;

// Connections ask the kernel while it lives.
struct KernelIsAsked {
  KernelIsAsked() { kernel_tls::use(true); }
  KernelIsAsked(const KernelIsAsked&) = delete;
  KernelIsAsked& operator=(const KernelIsAsked&) = delete;
  ~KernelIsAsked() { kernel_tls::use(false); }
};

Wiretap over_tcp() {
  return Wiretap(SocketPair::secret(7), SocketPair::secret(7), [] { return tcp_pair(8'192); });
}

// Has one end send so much, and the other one read all of it; returns what was on the wire.
std::vector<std::byte> carry(Wiretap& tap, bool from_client, std::size_t bytes) {
  Tls& from = from_client ? tap.client : tap.server;
  Tls& to = from_client ? tap.server : tap.client;
  const std::vector<std::byte> data = pattern(bytes);
  std::vector<std::byte> arrived(bytes);
  std::vector<std::byte> wire;
  std::size_t sent = 0;
  std::size_t got = 0;
  for (const Patience patience; got < bytes && patience.left();) {
    // A header and what follows it, as connections send.
    const auto left = std::span(data).subspan(sent);
    const auto header = left.first(std::min<std::size_t>(left.size(), 5));
    sent += from.send(header, left.subspan(header.size()));
    from.advance();
    const auto carried = tap.carry(from_client);
    wire.insert(wire.end(), carried.begin(), carried.end());
    const std::size_t now = to.receive(std::span(arrived).subspan(got));
    got += now;
  }
  CHECK(got == bytes);
  CHECK(arrived == data);
  return wire;
}

}  // namespace

TEST_CASE("kernel tls: the kernel is used, or says why not") {
  // Session kernel_tls says what the kernel that it has booted can do.
  const std::string expected = testing::text_from_environment("RINGCORE_TEST_KERNEL_TLS");
  if (expected == "offered") CHECK(kernel_tls::refusal().empty());
  if (!expected.empty() && expected != "offered") CHECK(kernel_tls::refusal().find(expected) != std::string::npos);
  CHECK_FALSE(kernel_tls::is_used());
  const KernelIsAsked asked;
  CHECK(kernel_tls::is_used() == kernel_tls::refusal().empty());
}

TEST_CASE("kernel tls: what it sends is what was given to it, under one key after the other") {
  const KernelIsAsked asked;
  Wiretap tap = over_tcp();
  REQUIRE(tap.shake_hands());
  tap.client.limit_bytes_per_key(20'000);
  for (const std::size_t bytes : {1, 100, 5'000, 60'000, 500'000}) {
    CAPTURE(bytes);
    const std::vector<std::byte> wire = carry(tap, true, bytes);
    CHECK(wire.size() >= bytes + 22);
    const std::vector<std::byte> data = pattern(bytes);
    if (bytes >= 100) CHECK(std::search(wire.begin(), wire.end(), data.begin(), data.begin() + 16) == wire.end());
    carry(tap, false, bytes);
  }
  CHECK(tap.client.kernel_encrypts() == kernel_tls::is_used());
  CHECK(tap.server.kernel_encrypts() == kernel_tls::is_used());
  CHECK_FALSE(tap.client_failure.reason);
  CHECK_FALSE(tap.server_failure.reason);
}

TEST_CASE("kernel tls: its records are those that the ciphers make") {
  using transport::TlsCipher;
  const KernelIsAsked asked;
  constexpr std::uint64_t kNumber = 0x0102030405;
  constexpr std::byte kData{23};
  constexpr std::byte kHandshake{22};
  for (const auto suite : {TlsCipher::Suite::kAes128Gcm, TlsCipher::Suite::kChaCha20Poly1305}) {
    CAPTURE(static_cast<int>(suite));
    transport::TrafficSecret secret;
    secret.fill(std::byte{42});
    TlsCipher seals(suite, TlsCipher::Use::kSeals, secret);
    auto [sender, receiver] = tcp_pair();
    const auto key = seals.key();
    REQUIRE(key);
    REQUIRE(kernel_tls::encrypt(sender.get(), *key, kNumber) == kernel_tls::is_used());
    if (!kernel_tls::is_used()) continue;
    const std::vector<std::byte> text = pattern(100);
    const auto is_sent = [&](std::byte type, std::uint64_t number) {
      std::array<std::byte, 5 + 100 + 17> record{};
      REQUIRE(::recv(receiver.get(), record.data(), record.size(), MSG_WAITALL) == record.size());
      std::array<std::byte, 100 + 17> expected{};
      REQUIRE(seals.seal(number, std::span(record).first(5), text, {}, type, expected.data()));
      CHECK(std::equal(expected.begin(), expected.end(), record.begin() + 5));
    };
    REQUIRE(transport::send_pieces(sender.get(), std::span(text).first(10), std::span(text).subspan(10)) == 100);
    is_sent(kData, kNumber);
    REQUIRE(kernel_tls::send_message(sender.get(), kHandshake, text) == 100);
    is_sent(kHandshake, kNumber + 1);
    REQUIRE(seals.renew());
    REQUIRE(kernel_tls::encrypt(sender.get(), *seals.key(), 0));
    REQUIRE(transport::send_pieces(sender.get(), text, {}) == 100);
    is_sent(kData, 0);
  }
}

TEST_CASE("kernel tls: streams in both directions through every lane, between processes") {
  const KernelIsAsked asked;
  int buffer_bytes = 0;
  int stripes = 1;
  SUBCASE("with the kernel's buffers") {}
  SUBCASE("striped, with tiny buffers") {
    buffer_bytes = 4096;
    stripes = 2;
  }
  const std::uint64_t total = buffer_bytes == 0 ? 2'000'000 : 200'000;
  SocketPair pair([&] { return tcp_pair(buffer_bytes); }, stripes, SocketPair::Wire::kEncrypted);
  Child child([&] {
    pair.drop(0);
    return exchange_streams(*pair.link(1), 1, total, 5);
  });
  pair.drop(1);
  const auto link = pair.link(0);
  CHECK(link->transport() == "tls");
  CHECK(exchange_streams(*link, 0, total, 5));
  CHECK(child.wait() == 0);
}

TEST_CASE("kernel tls: the peer is told that something has changed what it sends") {
  const KernelIsAsked asked;
  Wiretap tap = over_tcp();
  REQUIRE(tap.shake_hands());
  carry(tap, true, 100);
  carry(tap, false, 100);
  REQUIRE(tap.client.send({}, pattern(50)) == 50);
  std::vector<std::byte> out(100);
  const auto changed = [](auto& bytes) { bytes.back() ^= std::byte{1}; };
  for (const Patience patience; !tap.server_failure.reason && patience.left();) {
    tap.carry(true, changed);
    CHECK(tap.server.receive(out) == 0);
  }
  REQUIRE(tap.server_failure.reason);
  CHECK(tap.server_failure.reason->find("sent what does not decrypt to rank 1") == 0);
  for (const Patience patience; !tap.client_failure.reason && patience.left();) {
    tap.carry(false);
    tap.client.receive(out);
  }
  REQUIRE(tap.client_failure.reason);
  CHECK(tap.client_failure.reason->find("could not decrypt what was sent by rank 0 (TLS alert 20)") == 0);
}

}  // namespace ringcore::test
