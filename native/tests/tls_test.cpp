#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "from_environment.hpp"
#include "link_fixtures.hpp"
#include "transport/tcp/tls_cipher.hpp"
#include "wiretap.hpp"

namespace ringcore::test {
namespace {

using transport::LinkFailure;
using transport::Tls;
using transport::TlsSecret;
using Wire = SocketPair::Wire;

std::unique_ptr<Link> connected(Rank self, SocketPair& pair) {
  pair.drop(1 - self);
  return pair.link(self);
}

// Both ends agree on their keys on every lane: from then on a write is taken.
bool agree_on_keys(Link& link) {
  for (int lane = 0; lane < kLaneCount; ++lane) {
    std::byte word{1};
    while (link.write(lane, {&word, 1}) == 0) {
      if (link.failure() || !sleep_on(link)) return false;
    }
    while (link.read(lane, {&word, 1}) == 0) {
      if (link.failure() || !sleep_on(link)) return false;
    }
  }
  return true;
}

template <std::size_t kBytes>
std::array<std::byte, kBytes> from_hex(const char* digits) {
  std::array<std::byte, kBytes> made{};
  for (std::size_t i = 0; i < kBytes; ++i) {
    made[i] = static_cast<std::byte>(std::stoul(std::string(digits + 2 * i, 2), nullptr, 16));
  }
  return made;
}

bool has_any_16_bytes_of(const std::vector<std::byte>& wire, const std::vector<std::byte>& secret) {
  for (std::size_t i = 0; i + 16 <= secret.size(); i += 16) {
    if (std::search(wire.begin(), wire.end(), secret.begin() + static_cast<std::ptrdiff_t>(i),
                    secret.begin() + static_cast<std::ptrdiff_t>(i + 16)) != wire.end()) {
      return true;
    }
  }
  return false;
}

// Changes the bytes on the wire once, at any place of the handshake or of what follows, in any way.
class Tampering {
 public:
  explicit Tampering(std::uint64_t seed) : generator_(seed) {
    from_client_ = below(2) == 0;
    // More than the longest record follows, so that who waits for the rest of one gets it.
    at_ = below(3) == 0 ? below(kTotal / 2) : below(1'000);
  }

  // Both ends greet and send, as much as it takes until one of them has noticed, or all has come.
  void talk(Wiretap& tap) {
    for (int turn = 0; turn < 200 && !failed(tap) && !complete; ++turn) {
      exchange(tap, true, tap.client, tap.server);
      exchange(tap, false, tap.server, tap.client);
      complete = sent_[0] == kTotal && got_[0] == kTotal && sent_[1] == kTotal && got_[1] == kTotal;
    }
  }
  static bool failed(const Wiretap& tap) { return tap.client_failure.reason || tap.server_failure.reason; }

  bool wrong = false;
  bool complete = false;

 private:
  static constexpr std::size_t kTotal = 60'000;
  static constexpr std::size_t kPiece = 3'000;

  std::size_t below(std::size_t bound) { return generator_() % bound; }

  void exchange(Wiretap& tap, bool from_client, Tls& from, Tls& to) {
    const std::vector<std::byte> data = pattern(kTotal);
    std::size_t& sent = sent_[from_client ? 0 : 1];
    std::size_t& got = got_[from_client ? 0 : 1];
    sent += from.send({}, std::span(data).subspan(sent, std::min(kPiece, kTotal - sent)));
    tap.carry(from_client, [&](auto& bytes) {
      if (from_client == from_client_) tamper(bytes);
    });
    std::vector<std::byte> room(2 * kTotal);
    const std::size_t arrived = to.receive(room);
    wrong = wrong || arrived > kTotal - got ||
            !std::equal(room.begin(), room.begin() + static_cast<std::ptrdiff_t>(arrived),
                        data.begin() + static_cast<std::ptrdiff_t>(got));
    got += arrived;
  }

  void tamper(std::vector<std::byte>& bytes) {
    const std::size_t begin = std::exchange(carried_, carried_ + bytes.size());
    if (at_ < begin || at_ >= carried_) return;
    const auto at = bytes.begin() + static_cast<std::ptrdiff_t>(at_ - begin);
    const auto left = static_cast<std::size_t>(bytes.end() - at);
    const auto end = at + static_cast<std::ptrdiff_t>(1 + below(std::min<std::size_t>(left, 100)));
    const std::vector<std::byte> piece(at, end);
    switch (below(5)) {
      case 0: *at ^= static_cast<std::byte>(1 + below(255)); break;
      case 1: bytes.erase(at, end); break;
      case 2: bytes.insert(end, piece.begin(), piece.end()); break;
      case 3: std::rotate(at, end, bytes.end()); break;
      case 4: bytes.insert(at, 1 + below(100), std::byte{0x17}); break;
    }
  }

  std::mt19937_64 generator_;
  bool from_client_;
  std::size_t at_;
  std::size_t carried_ = 0;
  std::size_t sent_[2] = {};
  std::size_t got_[2] = {};
};

}  // namespace

TEST_CASE("tls: streams in both directions through every lane, between processes") {
  int buffer_bytes = 0;
  int stripes = 1;
  SUBCASE("with the kernel's buffers") {}
  SUBCASE("striped") { stripes = 3; }
  SUBCASE("with tiny buffers, so that a record leaves and comes in pieces") { buffer_bytes = 4096; }
  SUBCASE("striped, with tiny buffers") {
    buffer_bytes = 2048;
    stripes = 2;
  }
  const std::uint64_t total = buffer_bytes == 0 ? 4'000'000 : 400'000;
  SocketPair pair([&] { return tcp_pair(buffer_bytes); }, stripes, Wire::kEncrypted);
  Child child([&] { return exchange_streams(*connected(1, pair), 1, total, 5); });
  const auto link = connected(0, pair);
  CHECK(link->transport() == "tls");
  CHECK(exchange_streams(*link, 0, total, 5));
  CHECK(child.wait() == 0);
}

TEST_CASE("tls: no wake-up is lost") {
  SocketPair pair([] { return tcp_pair(); }, 1, Wire::kEncrypted);
  Child child([&] {
    const auto link = connected(1, pair);
    return agree_on_keys(*link) && play_ping_pong(*link, 1, 10'000, 4);
  });
  const auto link = connected(0, pair);
  REQUIRE(agree_on_keys(*link));
  CHECK(play_ping_pong(*link, 0, 10'000, 4));
  CHECK(child.wait() == 0);
}

TEST_CASE("tls: who waits for much is woken, though a part of it is hidden in a record that is not whole") {
  SocketPair pair([] { return tcp_pair(); }, 1, Wire::kEncrypted);
  constexpr std::size_t kBytes = 40'000;
  Child child([&] {
    const auto link = connected(1, pair);
    std::vector<std::byte> bytes = pattern(kBytes);
    for (int round = 0; round < 200; ++round) {
      for (std::size_t sent = 0; sent < kBytes;) {
        const std::size_t taken =
            link->write(1, std::span(bytes).subspan(sent, std::min<std::size_t>(7'001, kBytes - sent)));
        sent += taken;
        if (taken == 0 && !sleep_on(*link)) return false;
      }
      std::byte answer{};
      while (link->read(1, {&answer, 1}) == 0) {
        if (!sleep_on(*link)) return false;
      }
    }
    return true;
  });
  const auto link = connected(0, pair);
  std::vector<std::byte> bytes(kBytes);
  for (int round = 0; round < 200; ++round) {
    for (std::size_t got = 0; got < kBytes;) {
      got += link->read(1, std::span(bytes).subspan(got));
      if (got == kBytes) break;
      link->expect(1, kBytes - got);
      REQUIRE(sleep_on(*link));
    }
    REQUIRE(bytes == pattern(kBytes));
    const std::byte answer{1};
    while (link->write(1, {&answer, 1}) == 0) REQUIRE(sleep_on(*link));
  }
  CHECK(child.wait() == 0);
}

TEST_CASE("tls: what was taken and has no room yet is held, and leaves with the next looks") {
  SocketPair pair([] { return tcp_pair(4096); }, 1, Wire::kEncrypted);
  Child child([&] {
    const auto link = connected(1, pair);
    if (!agree_on_keys(*link)) return false;
    std::uint64_t total = 0;  // of the other lane, which is not read before this has come
    while (link->read(2, std::as_writable_bytes(std::span(&total, 1))) == 0) {
      if (!sleep_on(*link)) return false;
    }
    std::vector<std::byte> bytes(total);
    for (std::size_t got = 0; got < total;) {
      got += link->read(1, std::span(bytes).subspan(got));
      if (got < total && !sleep_on(*link)) return false;
    }
    return bytes == std::vector<std::byte>(total, std::byte{7});
  });
  auto link = connected(0, pair);
  REQUIRE(agree_on_keys(*link));
  CHECK_FALSE(link->holds_unsent());
  const std::vector<std::byte> piece(10'000, std::byte{7});
  std::uint64_t total = 0;
  for (std::size_t taken = piece.size(); taken == piece.size(); total += taken) taken = link->write(1, piece);
  REQUIRE(link->holds_unsent());
  REQUIRE(link->write(2, std::as_bytes(std::span(&total, 1))) == sizeof(total));
  for (int i = 0; i < kHangMilliseconds && link->holds_unsent(); ++i) sleep_on(*link);
  CHECK_FALSE(link->holds_unsent());
  link.reset();
  CHECK(child.wait() == 0);
}

TEST_CASE("tls: nothing of the data is on the wire") {
  Wiretap tap(SocketPair::secret(7), SocketPair::secret(7));
  REQUIRE(tap.shake_hands());
  const std::vector<std::byte> data = pattern(100'000);
  std::vector<std::byte> wire;
  std::vector<std::byte> arrived(data.size());
  std::size_t sent = 0;
  std::size_t got = 0;
  for (int turn = 0; turn < 1000 && got < data.size(); ++turn) {
    sent += tap.client.send({}, std::span(data).subspan(sent, std::min<std::size_t>(30'000, data.size() - sent)));
    const auto carried = tap.carry(true);
    wire.insert(wire.end(), carried.begin(), carried.end());
    got += tap.server.receive(std::span(arrived).subspan(got));
    tap.client.advance();
  }
  CHECK(arrived == data);
  CHECK(wire.size() > data.size());
  CHECK_FALSE(has_any_16_bytes_of(wire, data));
}

TEST_CASE("tls: whoever does not know the secret is refused") {
  Wiretap tap(SocketPair::secret(7), SocketPair::secret(8));
  CHECK_FALSE(tap.shake_hands());
  REQUIRE(tap.server_failure.reason);
  CHECK(tap.server_failure.reason->find("failed in the encrypted handshake with rank 1") != std::string::npos);
  CHECK(tap.client_failure.reason);
  CHECK(tap.client.send({}, pattern(10)) == 0);
}

TEST_CASE("tls: a changed byte anywhere is found, and nothing of it is given") {
  Wiretap tap(SocketPair::secret(7), SocketPair::secret(7));
  REQUIRE(tap.shake_hands());
  const std::vector<std::byte> data = pattern(1000);
  REQUIRE(tap.client.send({}, data) == data.size());
  std::function<void(std::vector<std::byte>&)> change;
  const auto offset = [](std::vector<std::byte>& bytes, std::size_t at) {
    return bytes.begin() + static_cast<std::ptrdiff_t>(at);
  };
  SUBCASE("in the data") {
    change = [&](auto& bytes) { *offset(bytes, 500) ^= std::byte{1}; };
  }
  SUBCASE("in the tag") {
    change = [&](auto& bytes) { bytes.back() ^= std::byte{1}; };
  }
  SUBCASE("in the length") {
    change = [&](auto& bytes) {
      *offset(bytes, 4) ^= std::byte{1};
      bytes.push_back({});
    };
  }
  SUBCASE("sent twice") {
    change = [&](auto& bytes) { bytes.insert(bytes.begin(), bytes.begin(), bytes.end()); };
  }
  tap.carry(true, change);
  std::vector<std::byte> arrived(5000);
  const std::size_t got = tap.server.receive(arrived);
  // A doubled record follows one that is right.
  CHECK((got == 0 || got == data.size()));
  REQUIRE(tap.server_failure.reason);
  CHECK(tap.server_failure.reason->find("sent what does not decrypt to rank 1") != std::string::npos);
  CHECK(tap.server.ended());
  CHECK(tap.server.receive(arrived) == 0);
}

TEST_CASE("tls: whatever somebody in between does to the bytes, nothing wrong arrives, and it is noticed") {
  const std::uint64_t rounds = testing::from_environment("RINGCORE_TAMPERINGS", 300);
  std::uint64_t noticed = 0;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    CAPTURE(round);
    Wiretap tap(SocketPair::secret(7), SocketPair::secret(7));
    Tampering tampering(round);
    tampering.talk(tap);
    CHECK_FALSE(tampering.wrong);
    // What TLS does not cover means nothing: then all of it has arrived. Where a part of the handshake is missing, both
    // ends wait for the rest: nothing is taken, and the heartbeat finds a peer that is silent.
    const bool agreed = tap.client.is_open() && tap.server.is_open();
    CHECK((tampering.failed(tap) || tampering.complete || !agreed));
    noticed += tampering.failed(tap) ? 1 : 0;
  }
  CHECK(noticed > rounds * 9 / 10);
}

TEST_CASE("tls: a connection that is cut is a peer that is gone") {
  SocketPair pair([] { return tcp_pair(); }, 1, Wire::kEncrypted);
  Child child([&] {
    const auto link = connected(1, pair);
    return agree_on_keys(*link) && play_ping_pong(*link, 1, 8, 1);
  });
  const auto link = connected(0, pair);
  REQUIRE(agree_on_keys(*link));
  CHECK(play_ping_pong(*link, 0, 8, 1));
  CHECK(child.wait() == 0);
  while (!link->ended()) REQUIRE(sleep_on(*link));
  CHECK(link->failure() == std::string(LinkFailure::kClosed));
}

TEST_CASE("tls: records are those of RFC 8448, section 3") {
  const transport::TrafficSecret of_client =
      from_hex<32>("9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5");
  const auto record = from_hex<72>(
      "1703030043a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b9819a8a5b46b395bd54a9a20441e2b62974e1f5a6292a2"
      "977014bd1e3deae63aeebb21694915e4");
  std::array<std::byte, 50> text{};
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<std::byte>(i);
  const std::span<const std::byte> header = std::span(record).first<5>();
  using transport::TlsCipher;
  constexpr std::byte kData{23};

  TlsCipher seals(TlsCipher::Suite::kAes128Gcm, TlsCipher::Use::kSeals, of_client);
  std::array<std::byte, 67> sealed{};
  REQUIRE(seals.seal(0, header, std::span(text).first(16), std::span(text).subspan(16), kData, sealed.data()));
  CHECK(std::equal(sealed.begin(), sealed.end(), record.begin() + 5));

  TlsCipher opens(TlsCipher::Suite::kAes128Gcm, TlsCipher::Use::kOpens, of_client);
  std::array<std::byte, 50> opened{};
  CHECK(opens.open(0, header, std::span(record).subspan(5), opened.data()) == kData);
  CHECK(opened == text);
  // Under another number it is another record.
  CHECK_FALSE(opens.open(1, header, std::span(record).subspan(5), opened.data()));
}

TEST_CASE("tls: keys change on the way") {
  Wiretap tap(SocketPair::secret(7), SocketPair::secret(7));
  REQUIRE(tap.shake_hands());
  tap.client.limit_bytes_per_key(10'000);
  const std::vector<std::byte> data = pattern(9'000);
  std::vector<std::byte> arrived(data.size());
  for (int round = 0; round < 20; ++round) {
    REQUIRE(tap.client.send({}, data) == data.size());
    tap.carry(true);
    REQUIRE(tap.server.receive(arrived) == data.size());
    REQUIRE(arrived == data);
    // The other direction goes on with its own key.
    REQUIRE(tap.server.send({}, data) == data.size());
    tap.carry(false);
    REQUIRE(tap.client.receive(arrived) == data.size());
    REQUIRE(arrived == data);
  }
}

TEST_CASE("tls: a link has a secret for each socket or for none") {
  auto [sockets, others] = several(kLaneCount, unix_pair);
  const std::vector<TlsSecret> too_few(1);
  CHECK_THROWS_WITH_AS(transport::make_tcp_link(0, 1, std::move(sockets), too_few),
                       "the link from rank 0 to rank 1 has 4 sockets, but 1 secrets", Error);
}

}  // namespace ringcore::test
