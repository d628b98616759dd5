#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>

#include "link_fixtures.hpp"
#include "transport/shm/ring_buffer.hpp"

namespace ringcore::test {
namespace {

// Polls until the link has failed; the deadline is in the loop's length, not in a clock.
bool notices_failure(Link& link) {
  for (int i = 0; i < kHangMilliseconds && !link.failure(); ++i) {
    sleep_on(link);
    link.check();
  }
  return link.failure().has_value();
}

}  // namespace

TEST_CASE("shm: streams in both directions through every lane, between processes") {
  ShmPair pair;
  Child child([&] {
    pair.drop(0);
    return exchange_streams(*pair.link(1), 1, 6'000'000, 7);
  });
  pair.drop(1);
  CHECK(exchange_streams(*pair.link(0), 0, 6'000'000, 7));
  CHECK(child.wait() == 0);
}

TEST_CASE("shm: streams between threads") {
  ShmPair pair;
  bool right = false;
  std::thread other([&] { right = exchange_streams(*pair.link(1), 1, 1'000'000, 3); });
  CHECK(exchange_streams(*pair.link(0), 0, 1'000'000, 3));
  other.join();
  CHECK(right);
}

TEST_CASE("shm: a full lane takes no more, and everything when it was drained") {
  ShmPair pair;
  const auto sender = pair.link(0);
  const auto receiver = pair.link(1);
  const std::vector<std::byte> noise(100'000, std::byte{42});
  for (int lane = 0; lane < kLaneCount; ++lane) {
    for (int lap = 0; lap < 3; ++lap) {
      std::size_t written = 0;
      while (const std::size_t taken = sender->write(lane, noise)) written += taken;
      CHECK(written == transport::InboxLayout(2).lane_bytes(lane));
      CHECK(receiver->peek(lane).size() == written);
      receiver->consume(lane, written);
      CHECK(receiver->peek(lane).empty());
    }
  }
}

TEST_CASE("shm: a record is contiguous wherever in the ring it lies") {
  ShmPair pair;
  const auto sender = pair.link(0);
  const auto receiver = pair.link(1);
  std::vector<std::byte> record(Link::kMaxContiguous);
  for (int round = 0; round < 40; ++round) {
    for (std::size_t i = 0; i < record.size(); ++i) record[i] = stream_byte(round, 0, i);
    const std::size_t size = record.size() - static_cast<std::size_t>(round) * 1001;
    REQUIRE(sender->write(0, std::span(record).first(size)) == size);
    const auto view = receiver->peek(0);
    REQUIRE(view.size() == size);
    CHECK(std::memcmp(view.data(), record.data(), size) == 0);
    receiver->consume(0, size);
  }
}

TEST_CASE("shm: no wake-up is lost") {
  ShmPair pair;
  int rounds = 100'000;
  unsigned awake_reads = 16;
  SUBCASE("both sleep at random") {}
  SUBCASE("both always sleep") {
    rounds = 5'000;
    awake_reads = 1;
  }
  Child child([&] {
    pair.drop(0);
    return play_ping_pong(*pair.link(1), 1, rounds, awake_reads);
  });
  pair.drop(1);
  CHECK(play_ping_pong(*pair.link(0), 0, rounds, awake_reads));
  CHECK(child.wait() == 0);
}

TEST_CASE("shm: a writer that sleeps on a full lane is woken by the reader") {
  ShmPair pair;
  const auto sender = pair.link(0);
  const auto receiver = pair.link(1);
  const std::vector<std::byte> noise(1 << 20);
  while (sender->write(1, noise) > 0) {
  }
  CHECK_FALSE(sender->arm());
  std::vector<pollfd> fds;
  sender->add_wait_fds(fds);
  CHECK(::poll(fds.data(), fds.size(), 0) == 0);
  receiver->consume(1, receiver->peek(1).size());
  CHECK(::poll(fds.data(), fds.size(), kHangMilliseconds) == 1);
  sender->disarm();
  CHECK(sender->write(1, noise) > 0);

  SUBCASE("room that came before it armed") {
    while (sender->write(1, noise) > 0) {
    }
    receiver->consume(1, 1);
    CHECK_FALSE(sender->arm());  // not blocked: nothing to wait for but data
    sender->disarm();
  }
  SUBCASE("the bell rings once, and not for those awake") {
    receiver->write(1, noise);
    CHECK(sender->arm());  // has arrived already
    sender->disarm();
    CHECK_FALSE(sender->arm());  // seen, though not consumed
    receiver->write(2, noise);
    receiver->write(3, noise);
    std::byte bells[8];
    CHECK(::recv(fds[0].fd, bells, sizeof(bells), MSG_DONTWAIT) == 1);
    sender->disarm();
    receiver->write(0, noise);
    CHECK(::poll(fds.data(), fds.size(), 0) == 0);
  }
}

TEST_CASE("shm: the death of the peer is noticed, and what it wrote stays readable") {
  ShmPair pair;
  Child child([&]() -> bool {
    pair.drop(0);
    const auto link = pair.link(1);
    const std::vector<std::byte> last_words(1000, std::byte{9});
    link->write(1, last_words);
    for (;;) ::pause();
  });
  pair.drop(1);
  const auto link = pair.link(0);
  while (link->peek(1).size() < 1000) REQUIRE(sleep_on(*link));
  link->check();
  CHECK_FALSE(link->failure());
  child.kill();
  CHECK(child.wait() == -SIGKILL);
  REQUIRE(notices_failure(*link));
  CHECK(*link->failure() == "closed the connection");
  CHECK(link->peek(1).size() == 1000);
  std::byte words[1000];
  CHECK(link->read(1, words) == 1000);
  CHECK(words[999] == std::byte{9});
  CHECK(link->write(1, words) == 0);
  std::vector<pollfd> fds;
  link->add_wait_fds(fds);
  CHECK(fds.empty());
}

TEST_CASE("shm: impossible indices fail the link and never leave the ring") {
  ShmPair pair;
  const auto link = pair.link(0);
  const auto peer = pair.link(1);
  const Mapping page_in = pair.segment(0).map_inbox_page(1);
  const Mapping page_out = pair.segment(1).map_inbox_page(0);
  auto* rings_in = reinterpret_cast<transport::RingIndices*>(page_in.data());
  auto* rings_out = reinterpret_cast<transport::RingIndices*>(page_out.data());
  const std::vector<std::byte> bytes(100);
  peer->write(2, bytes);
  REQUIRE(link->peek(2).size() == 100);

  SUBCASE("tail beyond the ring") {
    rings_in[2].tail = std::uint64_t{1} << 40;
    CHECK(link->peek(2).size() == 100);  // what was there before
  }
  SUBCASE("tail behind the head") {
    link->consume(2, 100);
    rings_in[2].tail = 50;
    CHECK(link->peek(2).empty());
  }
  SUBCASE("head beyond the tail") {
    const std::vector<std::byte> large(transport::InboxLayout(2).lane_bytes(2));
    CHECK(link->write(2, large) == large.size());
    rings_out[2].head = large.size() + 77;
    CHECK(link->write(2, large) == 0);
  }
  REQUIRE(link->failure());
  CHECK(link->failure()->find("lane 2") != std::string::npos);
  CHECK(link->write(1, bytes) == 0);
}

TEST_CASE("shm: registered memory is seen by the peer, where the owner says it is") {
  ShmPair pair;
  transport::Arena arena(pair.segment(0));
  std::byte* bucket = arena.allocate(1 << 20);
  std::memset(bucket, 0, 1 << 20);
  const auto offset = arena.offset_of(bucket + 100, 50);
  REQUIRE(offset);
  Child child([&] {
    pair.drop(0);
    const auto link = pair.link(1);
    while (link->peek(0).empty()) {
      if (link->failure() || !sleep_on(*link)) return false;
    }
    std::byte* seen = link->peer_memory(*offset, 50);
    const bool right = std::to_integer<int>(seen[0]) == 1 && std::to_integer<int>(seen[49]) == 50;
    seen[49] = std::byte{99};
    const std::byte done{1};
    return right && link->write(0, {&done, 1}) == 1;
  });
  pair.drop(1);
  const auto link = pair.link(0);
  for (int i = 0; i < 50; ++i) bucket[100 + i] = static_cast<std::byte>(i + 1);
  const std::byte go{1};
  REQUIRE(link->write(0, {&go, 1}) == 1);
  while (link->peek(0).empty()) REQUIRE(sleep_on(*link));
  CHECK(bucket[149] == std::byte{99});
  CHECK(bucket[150] == std::byte{0});
  CHECK(child.wait() == 0);
  CHECK(link->transport() == "shm");
}

// With both ends on one mapping the sanitizer of threads sees each byte and each index of both sides.
TEST_CASE("ring: producer and consumer share nothing unordered") {
  constexpr std::size_t kBytes = 64 << 10;
  const Segment segment = Segment::create(0, 1, 1 << 20);
  const transport::RingMapping memory(segment.fd(), segment.arena_offset(), kBytes);
  transport::RingIndices indices{};
  constexpr std::uint64_t kTotal = 3'000'000;
  std::thread producer([&] {
    transport::RingProducer ring(indices, memory.data(), kBytes);
    std::mt19937 random(1);
    std::vector<std::byte> piece(40'000);
    for (std::uint64_t sent = 0; sent < kTotal;) {
      const std::size_t size = std::min<std::uint64_t>(1 + random() % piece.size(), kTotal - sent);
      for (std::size_t i = 0; i < size; ++i) piece[i] = stream_byte(0, 0, sent + i);
      sent += ring.write(std::span(piece).first(size));
    }
  });
  transport::RingConsumer ring(indices, memory.data(), kBytes);
  bool right = true;
  for (std::uint64_t received = 0; received < kTotal;) {
    const auto view = ring.peek();
    for (const std::byte b : view) right &= b == stream_byte(0, 0, received++);
    ring.consume(view.size());
  }
  producer.join();
  CHECK(right);
}

}  // namespace ringcore::test
