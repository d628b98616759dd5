#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <netinet/tcp.h>

#include "base/error.hpp"
#include "link_fixtures.hpp"
#include "transport/tcp/stripes.hpp"

namespace ringcore::test {
namespace {

std::unique_ptr<Link> connected(Rank self, SocketPair& pair) {
  pair.drop(1 - self);
  return pair.link(self);
}

// Waits until as many bytes are there to be peeked at.
bool arrive(Link& link, int lane, std::size_t bytes) {
  while (link.peek(lane).size() < bytes) {
    if (link.ended() || !sleep_on(link)) return link.peek(lane).size() >= bytes;
  }
  return true;
}

// Waits for whatever wakes a sleeper; false when there is nothing to wait for, or it does not come.
bool is_woken(const Link& link) {
  std::vector<pollfd> fds;
  link.add_wait_fds(fds);
  return !fds.empty() && ::poll(fds.data(), fds.size(), kHangMilliseconds) > 0;
}

void close_with_reset(int fd) {
  const linger hard{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
}

}  // namespace

TEST_CASE("tcp: streams in both directions through every lane, between processes") {
  int buffer_bytes = 0;
  SUBCASE("with the kernel's buffers") {}
  SUBCASE("with tiny buffers, so that writes come short") { buffer_bytes = 4096; }
  const std::uint64_t total = buffer_bytes == 0 ? 4'000'000 : 400'000;
  SocketPair pair([&] { return tcp_pair(buffer_bytes); });
  Child child([&] { return exchange_streams(*connected(1, pair), 1, total, 5); });
  CHECK(exchange_streams(*connected(0, pair), 0, total, 5));
  CHECK(child.wait() == 0);
}

TEST_CASE("tcp: what has been sent shows how quick the connection is") {
  SocketPair pair([] { return tcp_pair(); });
  const std::array<std::unique_ptr<Link>, 2> links{pair.link(0), pair.link(1)};
  CHECK(links[0]->pace().bytes_per_s == 0);
  CHECK(links[0]->pace().latency_s < 1);
  const std::vector<std::byte> sent(1 << 20);
  std::vector<std::byte> got(sent.size());
  const SteadyClock clock;
  const Nanoseconds begin = clock.now();
  while (!links[0]->pace().sure && clock.now() - begin < kHangMilliseconds * kMillisecond) {
    for (int i = 0; i < 100; ++i) {
      links[0]->write(transport::kFirstDataLane, sent);
      links[1]->read(transport::kFirstDataLane, got);
    }
  }
  CHECK(links[0]->pace().sure);
  CHECK(links[0]->pace().bytes_per_s > 1e6);
  CHECK(links[0]->pace().latency_s > 0);
  CHECK(links[0]->pace().latency_s < 1);
}

TEST_CASE("tcp: the kernel knows for how long no data has come, whatever comes on the lane for control") {
  constexpr Nanoseconds kLong = 100 * kMillisecond;
  constexpr Nanoseconds kTick = 20 * kMillisecond;  // of the kernel's clock, at the most
  SocketPair pair([] { return tcp_pair(); }, 2);
  const std::array<std::unique_ptr<Link>, 2> links{pair.link(0), pair.link(1)};
  const SteadyClock clock;
  const Nanoseconds begin = clock.now();
  const auto hangs = [&] { return clock.now() - begin > kHangMilliseconds * kMillisecond; };
  const std::array<std::byte, 64> sent{};
  while (links[0]->data_silence().value_or(0) < kLong && !hangs()) {
    links[1]->write(transport::kControlLane, sent);
    while (links[0]->peek(transport::kControlLane).empty() && !hangs()) continue;
    links[0]->consume(transport::kControlLane, links[0]->peek(transport::kControlLane).size());
  }
  CHECK(links[0]->data_silence().value_or(0) >= kLong);
  const Nanoseconds before = clock.now();
  REQUIRE(links[1]->write(transport::kFirstDataLane + 1, sent) == sent.size());
  links[0]->expect(transport::kFirstDataLane + 1, sent.size());
  while (links[0]->peek(transport::kFirstDataLane + 1).empty() && !hangs()) continue;
  CHECK_FALSE(hangs());
  const std::optional<Nanoseconds> silence = links[0]->data_silence();
  REQUIRE(silence);
  CHECK(*silence <= clock.now() - before + kTick);
}

TEST_CASE("tcp: the kernel keeps idle connections alive for who tracks them on the way") {
  SocketPair pair([] { return tcp_pair(); });
  const int fd = pair.fd(0, 1);
  const auto link = connected(0, pair);
  int on = 0;
  int seconds = 0;
  socklen_t length = sizeof(on);
  REQUIRE(::getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, &length) == 0);
  REQUIRE(::getsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, &length) == 0);
  CHECK(on != 0);
  CHECK(seconds <= 60);
}

TEST_CASE("tcp: a Unix socket knows nothing of a network") {
  SocketPair pair([] { return unix_pair(); });
  const std::unique_ptr<Link> link = pair.link(0);
  CHECK(link->pace().bytes_per_s == 0);
  CHECK(link->pace().latency_s == 0);
  CHECK_FALSE(link->data_silence());
}

TEST_CASE("tcp: striped streams in both directions, between processes") {
  int connections = 0;
  std::function<std::pair<Fd, Fd>()> connect = [] { return tcp_pair(); };
  std::uint64_t total = 4'000'000;
  SUBCASE("with the kernel's buffers") {}
  SUBCASE("with tiny buffers, so that writes come short within a block's header") {
    connect = [] { return tcp_pair(2048); };
    total = 400'000;
  }
  SUBCASE("with one connection that takes far less than the others") {
    connect = [&] { return tcp_pair(connections++ % 3 == 0 ? 2048 : 0); };
  }
  SocketPair pair(connect, 3);
  Child child([&] { return exchange_streams(*connected(1, pair), 1, total, 5); });
  CHECK(exchange_streams(*connected(0, pair), 0, total, 5));
  CHECK(child.wait() == 0);
}

TEST_CASE("tcp: connections that share what is to be sent pace it, and a single one does not") {
  for (const int count : {1, 3}) {
    auto [own, others] = several(count, [] { return tcp_pair(); });
    const int last = own.back().get();
    transport::LinkFailure failure;
    const transport::Stripes stripes(std::move(own), failure);
    unsigned long bytes_per_s = 0;
    socklen_t length = sizeof(bytes_per_s);
    REQUIRE(::getsockopt(last, SOL_SOCKET, SO_MAX_PACING_RATE, &bytes_per_s, &length) == 0);
    CHECK((bytes_per_s == ~0UL) == (count == 1));
  }
}

// A long way is one of tests/hosts/test_between_hosts.py.
TEST_CASE("tcp: over a short way what controls congestion stays as the system has it") {
  constexpr std::string_view kReno = "reno";  // is allowed everywhere, and the default nowhere
  auto [own, others] = several(2, [&] {
    auto pair = tcp_pair();
    REQUIRE(::setsockopt(pair.first.get(), IPPROTO_TCP, TCP_CONGESTION, kReno.data(), kReno.size()) == 0);
    return pair;
  });
  const int first = own.front().get();
  transport::LinkFailure failure;
  const transport::Stripes stripes(std::move(own), failure);
  std::array<char, 16> congestion{};
  socklen_t length = congestion.size();
  REQUIRE(::getsockopt(first, IPPROTO_TCP, TCP_CONGESTION, congestion.data(), &length) == 0);
  CHECK(std::string_view(congestion.data()) == kReno);
}

TEST_CASE("tcp: no wake-up is lost between striped lanes") {
  SocketPair pair([] { return tcp_pair(); }, 2);
  Child child([&] { return play_ping_pong(*connected(1, pair), 1, 10'000, 4); });
  CHECK(play_ping_pong(*connected(0, pair), 0, 10'000, 4));
  CHECK(child.wait() == 0);
}

TEST_CASE("tcp: a striped lane goes on over the other connections while one is full") {
  SocketPair pair([] { return tcp_pair(); }, 2);
  const auto sender = pair.link(0);
  const auto receiver = pair.link(1);
  std::vector<std::byte> block(std::size_t{64} * 1024);
  std::size_t blocks = 0;
  // One connection after the other; nobody reads.
  while (sender->write(1, block) == block.size()) ++blocks;
  CHECK(blocks > 2);
  CHECK(sender->blocked());
  std::vector<pollfd> fds;
  sender->add_wait_fds(fds);
  // Only the connection in the middle of a block is waited for: another would keep the sleeper awake.
  CHECK(std::count_if(fds.begin(), fds.end(), [](const pollfd& fd) { return (fd.events & POLLOUT) != 0; }) <= 2);
  // What one write gave is contiguous as far as a header of a transfer has to be.
  std::size_t seen = 0;
  for (std::size_t got = 0; got < blocks * block.size(); got += seen) {
    REQUIRE(arrive(*receiver, 1, 1));
    seen = receiver->peek(1).size() / 64 * 64;
    receiver->consume(1, seen);
    if (seen == 0) REQUIRE(sleep_on(*receiver));
  }
}

TEST_CASE("tcp: a striped lane has ended when a block was lost with its connection") {
  SocketPair pair([] { return tcp_pair(); }, 2);
  constexpr int kSecondOfLane1 = kLaneCount;
  // The first block never comes. What stands behind it is more than the lane reads ahead.
  const std::vector<std::byte> block(std::size_t{64} * 1024);
  for (std::uint32_t number = 2; number < 5; ++number) {
    const std::uint32_t head[] = {number, static_cast<std::uint32_t>(block.size())};
    REQUIRE(::send(pair.fd(1, kSecondOfLane1), head, sizeof(head), 0) == sizeof(head));
    REQUIRE(::send(pair.fd(1, kSecondOfLane1), block.data(), block.size(), 0) == std::ssize(block));
  }
  pair.drop(1);
  const auto link = pair.link(0);
  for (int i = 0; i < kHangMilliseconds && !link->ended(); ++i) {
    CHECK(link->peek(1).empty());
    link->check();
    link->arm();
  }
  CHECK(link->ended());
}

TEST_CASE("tcp: the short writes of a striped lane arrive contiguously") {
  SocketPair pair([] { return tcp_pair(); }, 3);
  const auto sender = pair.link(0);
  const auto receiver = pair.link(1);
  for (int round = 0; round < 100; ++round) {
    const std::vector<std::byte> header(16, static_cast<std::byte>(round));
    REQUIRE(sender->write(2, header) == 16);
    REQUIRE(sender->write(2, std::span(header).first(15)) == 15);
    for (const std::size_t size : {16, 15}) {
      REQUIRE(arrive(*receiver, 2, size));
      CHECK(receiver->peek(2).size() == size);
      CHECK(receiver->peek(2).front() == header.front());
      receiver->consume(2, size);
    }
  }
}

TEST_CASE("tcp: streams over Unix sockets between threads") {
  SocketPair pair(unix_pair);
  const auto first = pair.link(0);
  const auto second = pair.link(1);
  CHECK(first->transport() == "unix");
  bool right = false;
  std::thread other([&] { right = exchange_streams(*second, 1, 1'000'000, 5); });
  CHECK(exchange_streams(*first, 0, 1'000'000, 5));
  other.join();
  CHECK(right);
}

TEST_CASE("tcp: no wake-up is lost") {
  SocketPair pair([] { return tcp_pair(); });
  Child child([&] { return play_ping_pong(*connected(1, pair), 1, 20'000, 4); });
  CHECK(play_ping_pong(*connected(0, pair), 0, 20'000, 4));
  CHECK(child.wait() == 0);
}

TEST_CASE("tcp: the longest record is contiguous, behind the rest of another") {
  SocketPair pair([] { return tcp_pair(); });
  const auto sender = pair.link(0);
  const auto receiver = pair.link(1);
  CHECK(receiver->transport() == "tcp");
  std::vector<std::byte> record(Link::kMaxContiguous);
  for (int round = 0; round < 20; ++round) {
    for (std::size_t i = 0; i < record.size(); ++i) record[i] = stream_byte(round, 0, i);
    const std::size_t first = 1 + static_cast<std::size_t>(round) * 3001;
    for (const std::size_t size : {first, record.size()}) {
      for (std::size_t sent = 0; sent < size;) {
        sent += sender->write(0, std::span(record).subspan(sent, size - sent));
        receiver->peek(0);
      }
    }
    REQUIRE(arrive(*receiver, 0, first));
    receiver->consume(0, first);
    REQUIRE(arrive(*receiver, 0, record.size()));
    CHECK(std::memcmp(receiver->peek(0).data(), record.data(), record.size()) == 0);
    receiver->consume(0, record.size());
  }
}

TEST_CASE("tcp: data that nobody consumes does not keep the sleeper awake") {
  SocketPair pair([] { return tcp_pair(); });
  const auto sender = pair.link(0);
  const auto receiver = pair.link(1);
  const std::vector<std::byte> bytes(1000);
  const auto wait_fds = [&] {
    std::vector<pollfd> fds;
    receiver->add_wait_fds(fds);
    return fds;
  };
  CHECK(wait_fds().size() == 1);  // that of control
  REQUIRE(sender->write(2, bytes) == 1000);
  SUBCASE("because it was looked at") {
    REQUIRE(arrive(*receiver, 2, 1000));
    CHECK(wait_fds().size() == 2);
  }
  SUBCASE("because it was taken") {
    REQUIRE(arrive(*receiver, 2, 1000));
    receiver->consume(2, 1000);
    REQUIRE(sender->write(2, bytes) == 1000);
    CHECK(wait_fds().size() == 1);
  }
  SUBCASE("because it was all that was wanted") {
    std::vector<std::byte> out(1000);
    for (std::size_t got = 0; got < out.size();) got += receiver->read(2, std::span(out).subspan(got));
    REQUIRE(sender->write(2, bytes) == 1000);
    CHECK(wait_fds().size() == 1);
  }
  SUBCASE("because nobody looked at that lane") { CHECK(wait_fds().size() == 1); }
  CHECK_FALSE(receiver->arm());
  std::vector<pollfd> fds = wait_fds();
  CHECK(::poll(fds.data(), fds.size(), 0) == 0);
  REQUIRE(sender->write(0, bytes) == 1000);
  CHECK(::poll(fds.data(), fds.size(), kHangMilliseconds) == 1);
  receiver->disarm();
}

TEST_CASE("tcp: data that came before anybody wanted it wakes whoever wants more") {
  SocketPair pair([] { return tcp_pair(); });
  const auto sender = pair.link(0);
  const auto receiver = pair.link(1);
  const std::vector<std::byte> bytes(1000);
  REQUIRE(sender->write(2, bytes) == 1000);
  CHECK_FALSE(receiver->arm());
  std::vector<std::byte> out(2000);
  std::size_t got = 0;
  for (const Patience patience; got < 1000 && patience.left();) got += receiver->read(2, std::span(out).subspan(got));
  REQUIRE(got == 1000);
  CHECK_FALSE(receiver->arm());
  REQUIRE(sender->write(2, bytes) == 1000);
  CHECK(is_woken(*receiver));
  CHECK(receiver->read(2, std::span(out).subspan(1000)) == 1000);
}

TEST_CASE("tcp: a sleeper is woken for what is expected, and not for less") {
  SocketPair pair([] { return tcp_pair(); });
  const auto sender = pair.link(0);
  const auto receiver = pair.link(1);
  const std::vector<std::byte> bytes(1000);
  std::size_t expected = 1000;
  std::size_t enough = 1000;
  SUBCASE("with nothing before") {}
  SUBCASE("behind the rest of what was seen") {
    REQUIRE(sender->write(1, std::span(bytes).first(3)) == 3);
    REQUIRE(arrive(*receiver, 1, 3));
    enough -= 3;
  }
  SUBCASE("more than is ever there at once") {
    expected = std::size_t{1} << 30;
    enough = std::size_t{1} << 18;
  }
  receiver->expect(1, expected);
  receiver->peek(1);
  receiver->peek(2);
  while (receiver->arm()) {
  }
  std::vector<pollfd> fds;
  receiver->add_wait_fds(fds);
  const auto send = [&](std::size_t size) {
    for (int calls = 0; size > 0; ++calls) {
      REQUIRE(calls < 1'000'000);
      size -= sender->write(1, std::span(bytes).first(std::min(size, bytes.size())));
    }
  };
  send(enough - 1);
  REQUIRE(sender->write(2, std::span(bytes).first(1)) == 1);
  REQUIRE(::poll(fds.data(), fds.size(), kHangMilliseconds) == 1);
  CHECK(fds[1].revents == 0);
  CHECK(fds[2].revents == POLLIN);
  send(1);
  CHECK(::poll(&fds[1], 1, kHangMilliseconds) == 1);
}

TEST_CASE("tcp: a full socket is waited for until it is writable") {
  SocketPair pair([] { return tcp_pair(4096); });
  const auto sender = pair.link(0);
  const auto receiver = pair.link(1);
  const std::vector<std::byte> bytes(1 << 20);
  std::size_t sent = 0;
  while (const std::size_t taken = sender->write(1, bytes)) sent += taken;
  sender->peek(2);
  std::vector<pollfd> fds;
  sender->add_wait_fds(fds);
  CHECK(fds[1].events == POLLOUT);
  CHECK(fds[2].events == (POLLIN | POLLRDHUP));
  std::vector<std::byte> out(1 << 20);
  for (std::size_t got = 0; got < sent;) {
    got += receiver->read(1, out);
    REQUIRE_FALSE(receiver->failure());
  }
  CHECK(::poll(fds.data(), fds.size(), kHangMilliseconds) == 1);
  CHECK(sender->write(1, bytes) > 0);
}

TEST_CASE("tcp: the end of a connection") {
  SocketPair pair([] { return tcp_pair(); });
  const int peer_control = pair.fd(1, kControlLane);
  const int peer_socket = pair.fd(1, 1);
  auto peer = pair.link(1);
  const auto link = pair.link(0);
  const std::vector<std::byte> last_words(500, std::byte{3});
  REQUIRE(peer->write(1, last_words) == 500);
  bool all_ended = true;
  const auto fails = [&] {
    for (int i = 0; i < kHangMilliseconds && !link->failure(); ++i) {
      sleep_on(*link);
      link->check();
    }
    return link->failure().value_or("");
  };

  SUBCASE("closed by the peer") {
    peer.reset();
    CHECK(fails() == "closed the connection");
    CHECK(arrive(*link, 1, 500));
  }
  SUBCASE("closed by the peer, which has not read everything") {
    REQUIRE(link->write(kControlLane, last_words) == 500);
    REQUIRE(link->write(1, last_words) == 500);
    for (const int lane : {kControlLane, 1}) {
      pollfd unread{.fd = lane == 1 ? peer_socket : peer_control, .events = POLLIN, .revents = 0};
      REQUIRE(::poll(&unread, 1, kHangMilliseconds) == 1);
    }
    peer.reset();
    CHECK(fails() == "closed the connection");
    CHECK(arrive(*link, 1, 500));
  }
  SUBCASE("half closed") {
    ::shutdown(peer_socket, SHUT_WR);
    all_ended = false;
    CHECK(fails() == "closed the connection");
    CHECK(arrive(*link, 1, 500));
  }
  SUBCASE("reset by the peer") {
    REQUIRE(arrive(*link, 1, 500));
    close_with_reset(peer_socket);
    peer.reset();
    const std::string reason = fails();
    // The other lanes end in an orderly way; which lane is seen first is not determined.
    CHECK((reason.starts_with("reset the connection") || reason == "closed the connection"));
    CHECK(arrive(*link, 1, 500));
  }
  SUBCASE("every lane reset, noticed by writing") {
    REQUIRE(arrive(*link, 1, 500));
    peer->failure();
    peer.reset();
    const std::vector<std::byte> bytes(1000);
    for (int i = 0; i < kHangMilliseconds && !link->failure(); ++i) {
      link->write(1, bytes);
      link->arm();
    }
    REQUIRE(link->failure());
    CHECK(arrive(*link, 1, 500));
  }
  CHECK(link->write(1, last_words) == 0);
  for (int i = 0; i < kHangMilliseconds && link->ended() != all_ended; ++i) link->arm();
  CHECK(link->ended() == all_ended);
  if (all_ended) CHECK_FALSE(is_woken(*link));
}

TEST_CASE("tcp: what is still on its way when another connection has ended arrives") {
  SocketPair pair([] { return tcp_pair(); });
  const int control = pair.fd(1, kControlLane);
  const int data = pair.fd(1, 1);
  const auto peer = pair.link(1);
  const auto link = pair.link(0);
  ::shutdown(control, SHUT_WR);
  for (int i = 0; i < kHangMilliseconds && !link->failure(); ++i) {
    link->arm();
    link->check();
  }
  REQUIRE(link->failure());
  CHECK_FALSE(link->ended());
  const std::vector<std::byte> late(500, std::byte{3});
  REQUIRE(peer->write(1, late) == 500);
  CHECK(is_woken(*link));
  CHECK(arrive(*link, 1, 500));
  ::shutdown(data, SHUT_WR);
  CHECK_FALSE(link->ended());
}

TEST_CASE("tcp: the reason of a reset has the system's words") {
  SocketPair pair([] { return tcp_pair(); });
  for (int lane = 0; lane < kLaneCount; ++lane) close_with_reset(pair.fd(1, lane));
  pair.drop(1);
  const auto link = pair.link(0);
  link->check();
  REQUIRE(link->failure());
  CHECK(link->failure()->starts_with("reset the connection: "));
  CHECK(link->failure()->find("errno 104") != std::string::npos);
}

TEST_CASE("tcp: the death of the peer is noticed") {
  SocketPair pair([] { return tcp_pair(); });
  Child child([&]() -> bool {
    const auto link = connected(1, pair);
    for (;;) ::pause();
  });
  const auto link = connected(0, pair);
  link->check();
  CHECK_FALSE(link->failure());
  child.kill();
  CHECK(child.wait() == -SIGKILL);
  CHECK((sleep_on(*link) && (link->check(), link->failure().has_value())));
}

// Of this process, in pages.
std::size_t resident_pages() {
  std::ifstream statistics("/proc/self/statm");
  std::size_t all = 0;
  std::size_t in_memory = 0;
  statistics >> all >> in_memory;
  return in_memory;
}

// Sanitizers keep a shadow of what is allocated, which lies in memory whether it is used or not.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kMostPagesALane = 400;
#else
constexpr std::size_t kMostPagesALane = 4;
#endif

TEST_CASE("tcp: links keep little memory, whatever they have carried") {
  constexpr std::size_t kLinks = 32;
  std::size_t bytes = 0;
  SUBCASE("short records") { bytes = 64; }
  SUBCASE("as much as is read at once") { bytes = 128 * 1024; }
  const std::size_t rounds = bytes < 1024 ? 1000 : 2 * kLaneCount;
  Child child([&] {
    std::vector<SocketPair> pairs;
    std::vector<std::unique_ptr<Link>> links;
    for (std::size_t i = 0; i < kLinks; ++i) {
      pairs.emplace_back([] { return unix_pair(); });
      links.push_back(pairs.back().link(0));
      links.push_back(pairs.back().link(1));
    }
    const std::vector<std::byte> record(bytes, std::byte{1});
    const std::size_t before = resident_pages();
    for (std::size_t round = 0; round < rounds; ++round) {
      for (std::size_t i = 0; i < links.size(); ++i) {
        const int lane = static_cast<int>(round % kLaneCount);
        if (links[i]->write(lane, record) != bytes) return false;
        Link& other = *links[i ^ 1];
        if (!arrive(other, lane, bytes)) return false;
        other.consume(lane, bytes);
        other.arm();
      }
    }
    return resident_pages() - before < links.size() * kLaneCount * kMostPagesALane;
  });
  CHECK(child.wait() == 0);
}

TEST_CASE("tcp: a link needs as many sockets for each lane of data") {
  for (const int count : {1, kLaneCount - 1, kLaneCount + 1, kLaneCount + 2}) {
    std::vector<Fd> sockets;
    for (int i = 0; i < count; ++i) sockets.push_back(std::move(unix_pair().first));
    CHECK_THROWS_AS(transport::make_tcp_link(0, 1, std::move(sockets)), Error);
  }
}

}  // namespace ringcore::test
