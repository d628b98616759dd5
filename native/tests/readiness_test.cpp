#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/socket.h>

#include "base/clock.hpp"
#include "link_fixtures.hpp"
#include "transport/tcp/link.hpp"
#include "transport/tcp/readiness.hpp"

namespace ringcore::test {
namespace {

constexpr int kPeers = 5;

void await(int fd, short events) {
  pollfd one{.fd = fd, .events = events, .revents = 0};
  REQUIRE(::poll(&one, 1, kHangMilliseconds) == 1);
}

class NoLanes final : public transport::LaneOpener {
 public:
  void open(Rank /*peer*/, int /*lane*/) override {}
};

// Rank 0 with a link to each of several others, which are no more than the other ends of their sockets.
struct Star {
  explicit Star(int peers) {
    for (Rank peer = 1; peer <= peers; ++peer) {
      auto [own, other] = tcp_pair();
      fds.push_back(own.get());
      links.push_back(transport::make_tcp_link(0, peer, std::move(own), {}, opener, readiness));
      ends.push_back(std::move(other));
    }
    for (auto& link : links) CHECK(link->peek(kControlLane).empty());  // nothing has come so far
  }
  void send(int peer, std::byte byte) {
    REQUIRE(::send(ends[index(peer)].get(), &byte, 1, 0) == 1);
    await(fds[index(peer)], POLLIN);
  }
  void close(int peer) {
    ends[index(peer)] = Fd();
    await(fds[index(peer)], POLLRDHUP);
  }
  transport::LaneLink& link(int peer) { return *links[index(peer)]; }
  static std::size_t index(int peer) { return static_cast<std::size_t>(peer); }

  NoLanes opener;
  transport::SocketReadiness readiness;
  std::vector<std::unique_ptr<transport::LaneLink>> links;
  std::vector<Fd> ends;
  std::vector<int> fds;  // of the links
};

}  // namespace

TEST_CASE("readiness: what nobody has seen to be readable is not read, and one look sees all") {
  Star star(kPeers);
  star.send(1, std::byte{1});
  star.send(3, std::byte{3});
  CHECK(star.link(1).peek(kControlLane).empty());
  star.readiness.look();
  for (const int peer : {1, 3}) {
    const auto seen = star.link(peer).peek(kControlLane);
    REQUIRE(seen.size() == 1);
    CHECK(seen.front() == std::byte(peer));
    star.link(peer).consume(kControlLane, 1);
  }
  for (const int peer : {0, 2, 4}) CHECK(star.link(peer).peek(kControlLane).empty());
  star.send(3, std::byte{4});
  star.readiness.look();
  CHECK(star.link(3).peek(kControlLane).size() == 1);
}

TEST_CASE("readiness: last words are read where a write has found the end, and nobody has looked since they came") {
  Star star(kPeers);
  const std::byte unread{1};
  REQUIRE(star.link(1).write(kControlLane, std::span(&unread, 1)) == 1);
  await(star.ends[Star::index(1)].get(), POLLIN);
  star.readiness.look();
  REQUIRE(star.link(1).peek(kControlLane).empty());
  star.send(1, std::byte{7});
  star.close(1);  // by a reset
  REQUIRE(star.link(1).write(kControlLane, std::span(&unread, 1)) == 0);
  REQUIRE(star.link(1).failure());
  const auto last_words = star.link(1).peek(kControlLane);
  REQUIRE(last_words.size() == 1);
  CHECK(last_words.front() == std::byte{7});
}

TEST_CASE("readiness: few are read without asking for all of them first") {
  Star star(2);
  star.send(1, std::byte{1});
  CHECK(star.link(1).peek(kControlLane).size() == 1);
}

TEST_CASE("readiness: what a peer sent before it closed is read, and then the end is known") {
  Star star(kPeers);
  star.send(2, std::byte{2});
  SUBCASE("seen together") { star.close(2); }
  SUBCASE("seen one after the other") {
    star.readiness.look();
    star.close(2);
  }
  star.link(2).check();
  star.readiness.look();
  CHECK(star.link(2).peek(kControlLane).size() == 1);
  star.link(2).consume(kControlLane, 1);
  star.link(2).check();
  CHECK(star.link(2).failure() == "closed the connection");
  CHECK(star.link(2).peek(kControlLane).empty());
  CHECK(star.link(2).ended());
  star.link(1).check();
  CHECK_FALSE(star.link(1).failure());
}

TEST_CASE("readiness: the end of a lane of data is known, and its bytes are read as ever") {
  Star star(kPeers);
  auto [own, other] = tcp_pair();
  const int fd = own.get();
  std::vector<Fd> sockets;
  sockets.push_back(std::move(own));
  star.link(4).attach(transport::kFirstDataLane, std::move(sockets), {});
  const std::byte sent{7};
  REQUIRE(::send(other.get(), &sent, 1, 0) == 1);
  await(fd, POLLIN);
  std::byte got{};
  CHECK(star.link(4).read(transport::kFirstDataLane, {&got, 1}) == 1);
  CHECK(got == sent);
  star.link(4).check();
  CHECK_FALSE(star.link(4).failure());
  other = Fd();
  await(fd, POLLRDHUP);
  star.readiness.look();
  star.link(4).check();
  CHECK(star.link(4).failure() == "closed the connection");
}

TEST_CASE("readiness: a link that is gone is told of no more, though a forked child may hold its socket") {
  Star star(kPeers);
  auto [own, other] = tcp_pair();
  const Fd copy(::dup(own.get()));
  star.links.push_back(transport::make_tcp_link(0, kPeers + 1, std::move(own), {}, star.opener, star.readiness));
  star.links.pop_back();
  const std::byte sent{1};
  REQUIRE(::send(other.get(), &sent, 1, 0) == 1);
  await(copy.get(), POLLIN);
  star.readiness.look();
  star.send(0, std::byte{9});
  star.readiness.look();
  CHECK(star.link(0).peek(kControlLane).size() == 1);
}

TEST_CASE("readiness: encrypted links, from the handshake on") {
  constexpr int kRounds = 200;
  NoLanes opener;
  std::array<transport::SocketReadiness, 2> readiness;
  std::array<std::vector<std::unique_ptr<transport::LaneLink>>, 2> links;
  for (Rank other = 0; other < kPeers; ++other) {
    const Rank far = other + kPeers;  // each is another one's peer
    auto [first, second] = tcp_pair();
    const std::array secret{SocketPair::secret(static_cast<unsigned char>(other + 1))};
    links[0].push_back(transport::make_tcp_link(other, far, std::move(first), secret, opener, readiness[0]));
    links[1].push_back(transport::make_tcp_link(far, other, std::move(second), secret, opener, readiness[1]));
  }
  // Both sides send from the first moment on, so that bytes come right behind the handshake.
  const SteadyClock clock;
  const Nanoseconds begin = clock.now();
  std::array<std::array<int, kPeers>, 2> sent{};
  std::array<std::array<int, kPeers>, 2> got{};
  for (bool done = false; !done;) {
    REQUIRE(clock.now() - begin < kHangMilliseconds * kMillisecond);
    done = true;
    for (std::size_t side = 0; side < 2; ++side) {
      readiness[side].look();
      for (std::size_t i = 0; i < kPeers; ++i) {
        transport::LaneLink& link = *links[side][i];
        const auto ball = static_cast<std::byte>(sent[side][i]);
        if (sent[side][i] < kRounds) sent[side][i] += static_cast<int>(link.write(kControlLane, {&ball, 1}));
        const auto seen = link.peek(kControlLane);
        for (const std::byte byte : seen) CHECK(byte == static_cast<std::byte>(got[side][i]++));
        if (!seen.empty()) link.consume(kControlLane, seen.size());
        done = done && sent[side][i] == kRounds && got[side][i] == kRounds;
        REQUIRE_FALSE(link.failure());
      }
    }
  }
}

}  // namespace ringcore::test
