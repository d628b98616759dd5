#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <string>

#include "base/error.hpp"
#include "link_fixtures.hpp"
#include "transport/sim/network.hpp"

namespace ringcore::test {
namespace {

using transport::SimNetwork;
using transport::SimOptions;

// Every ordered pair of ranks sends `total` bytes on every lane; checks each byte that arrives.
class Traffic {
 public:
  Traffic(SimNetwork& network, int ranks, std::uint64_t total) : network_(network), ranks_(ranks), total_(total) {
    for (Rank from = 0; from < ranks; ++from) {
      for (Rank to = 0; to < ranks; ++to) {
        if (from != to) links_[{from, to}] = network.link(from, to);
      }
    }
  }

  Link& link(Rank from, Rank to) { return *links_.at({from, to}); }
  std::uint64_t received(Rank at, Rank from, int lane) { return received_[{at, from}][lane]; }

  // Each rank that runs does what it can.
  void drive() {
    for (auto& [ends, link] : links_) {
      for (int lane = 0; lane < kLaneCount && network_.runs(ends.first); ++lane) {
        send(ends, *link, lane);
        while (receive(ends, *link, lane)) {
        }
      }
    }
  }
  // Until nothing is in flight; false when it does not end.
  bool run(int most_steps = 200'000) {
    for (int i = 0; i < most_steps; ++i) {
      drive();
      if (!network_.step()) return true;
    }
    return false;
  }
  bool complete() {
    return std::all_of(links_.begin(), links_.end(), [&](const auto& entry) {
      const auto& lanes = received_[entry.first];
      return std::all_of(lanes.begin(), lanes.end(), [&](std::uint64_t n) { return n == total_; });
    });
  }
  int wrong = 0;
  int short_writes = 0;
  int short_views = 0;

 private:
  using Ends = std::pair<Rank, Rank>;
  using Counts = std::array<std::uint64_t, kLaneCount>;

  // What `from` sends to `to`: a byte that is delivered to somebody else is wrong there.
  static std::byte expected(Rank from, Rank to, int lane, std::uint64_t index) {
    return stream_byte(from * 100 + to, lane, index);
  }
  void send(Ends ends, Link& link, int lane) {
    std::uint64_t& sent = sent_[ends][lane];
    std::byte piece[700];
    const std::size_t size = std::min<std::uint64_t>(1 + network_.random_below(sizeof(piece)), total_ - sent);
    for (std::size_t i = 0; i < size; ++i) piece[i] = expected(ends.first, ends.second, lane, sent + i);
    const std::size_t taken = link.write(lane, {piece, size});
    sent += taken;
    short_writes += taken < size;
  }
  bool receive(Ends ends, Link& link, int lane) {
    const auto view = link.peek(lane);
    short_views += lane != 0 && !view.empty() && link.peek(lane).size() != view.size();
    for (const std::byte b : view) wrong += b != expected(ends.second, ends.first, lane, received_[ends][lane]++);
    link.consume(lane, view.size());
    return !view.empty();
  }

  SimNetwork& network_;
  int ranks_;
  std::uint64_t total_;
  std::map<Ends, std::unique_ptr<Link>> links_;
  std::map<Ends, Counts> sent_;
  std::map<Ends, Counts> received_;
};

}  // namespace

TEST_CASE("sim: everything arrives, in order inside each lane, whatever the seed") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SimNetwork network(3, seed, {.lane_bytes = 1000});
    Traffic traffic(network, 3, 5000);
    REQUIRE(traffic.run());
    CHECK(traffic.complete());
    CHECK(traffic.wrong == 0);
    CHECK(traffic.short_writes > 0);
    CHECK(traffic.short_views > 0);
  }
}

TEST_CASE("sim: the same seed gives the same schedule, another gives another") {
  const auto run = [](std::uint64_t seed) {
    SimNetwork network(3, seed);
    Traffic traffic(network, 3, 3000);
    for (int i = 0; i < 50; ++i) {
      traffic.drive();
      network.step();
    }
    network.kill(2);
    network.pause(1, 5 * kMillisecond);
    traffic.run();
    return network.digest();
  };
  CHECK(run(1) == run(1));
  CHECK(run(2) == run(2));
  CHECK(run(1) != run(2));
}

TEST_CASE("sim: lanes and peers overtake each other, a lane never itself") {
  bool overtaken = false;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SimNetwork network(2, seed);
    const auto sender = network.link(0, 1);
    const auto receiver = network.link(1, 0);
    const std::byte first[] = {std::byte{1}, std::byte{2}};
    for (std::size_t sent = 0; sent < 2;) sent += sender->write(1, std::span(first).subspan(sent));
    sender->write(2, std::span(first).first(1));
    while (network.step() && receiver->peek(2).empty()) {
    }
    overtaken |= receiver->peek(1).size() < 2;
    while (network.step()) {
    }
    std::byte all[2];
    for (std::size_t got = 0; got < 2;) got += receiver->read(1, std::span(all).subspan(got));
    CHECK(std::memcmp(all, first, 2) == 0);
  }
  CHECK(overtaken);
}

TEST_CASE("sim: time moves only with events, or when told to") {
  SimNetwork network(2, 1, {.shortest_delay = 500, .longest_delay = 500});
  const Nanoseconds begin = network.clock().now();
  CHECK_FALSE(network.step());
  const auto sender = network.link(0, 1);
  const auto receiver = network.link(1, 0);
  const std::byte byte{1};
  sender->write(0, {&byte, 1});
  CHECK(network.next_event() == begin + 500);
  network.run_until(begin + 499);
  CHECK(receiver->peek(0).empty());
  CHECK(network.clock().now() == begin + 499);
  network.run_until(begin + 2000);
  CHECK(receiver->peek(0).size() == 1);
  CHECK(network.clock().now() == begin + 2000);
  CHECK_FALSE(network.next_event());
}

TEST_CASE("sim: a whole record is contiguous on the control lane") {
  SimNetwork network(2, 3);
  const auto sender = network.link(0, 1);
  const auto receiver = network.link(1, 0);
  std::vector<std::byte> record(Link::kMaxContiguous, std::byte{8});
  std::size_t sent = 0;
  while (sent < record.size()) sent += sender->write(0, std::span(record).subspan(sent));
  while (network.step()) {
  }
  CHECK(receiver->peek(0).size() == record.size());
}

TEST_CASE("sim: a lane is full until its reader makes room, and the writer's turn comes then") {
  SimNetwork network(2, 4, {.lane_bytes = 100});
  const auto sender = network.link(0, 1);
  const auto receiver = network.link(1, 0);
  const std::vector<std::byte> bytes(60);
  std::size_t sent = 0;
  while (const std::size_t taken = sender->write(1, bytes)) sent += taken;
  CHECK(sent == 100);
  while (network.step()) {
  }
  CHECK(receiver->arm());
  CHECK_FALSE(receiver->arm());
  CHECK(sender->write(1, bytes) == 0);
  std::byte out[10];
  CHECK(receiver->read(1, out) > 0);
  CHECK(network.step());
  CHECK(sender->write(1, bytes) > 0);
}

TEST_CASE("sim: a killed rank") {
  bool some_lost = false;
  bool some_kept = false;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    SimNetwork network(3, seed);
    Traffic traffic(network, 3, 2000);
    for (int i = 0; i < 30; ++i) {
      traffic.drive();
      network.step();
    }
    network.kill(1);
    CHECK_FALSE(network.runs(1));
    CHECK_FALSE(traffic.link(0, 1).failure());  // nobody knows at once
    REQUIRE(traffic.run());
    CHECK(traffic.wrong == 0);
    CHECK(traffic.link(0, 1).failure() == "closed the connection");
    CHECK(traffic.link(2, 1).failure() == "closed the connection");
    CHECK_FALSE(traffic.link(0, 2).failure());
    CHECK(traffic.received(0, 2, 1) == 2000);
    const std::byte byte{1};
    CHECK(traffic.link(0, 1).write(0, {&byte, 1}) == 0);
    some_lost |= traffic.received(0, 1, 1) < 2000;
    some_kept |= traffic.received(0, 1, 1) > 0;
  }
  CHECK(some_lost);
  CHECK(some_kept);
}

TEST_CASE("sim: bytes that arrived before the failure stay readable") {
  SimNetwork network(2, 5);
  const auto sender = network.link(0, 1);
  const auto receiver = network.link(1, 0);
  const std::vector<std::byte> bytes(10);
  std::size_t sent = 0;
  while (sent < 10) sent += sender->write(1, std::span(bytes).subspan(sent));
  while (network.step()) {
  }
  network.kill(0);
  while (network.step()) {
  }
  REQUIRE(receiver->failure());
  std::byte out[10];
  std::size_t got = 0;
  while (got < 10) got += receiver->read(1, std::span(out).subspan(got));
  CHECK(receiver->peek(1).empty());
}

TEST_CASE("sim: a rank dies between its store and its signal") {
  SimNetwork network(2, 6, {.host_of = {0, 0}});
  const auto sender = network.link(0, 1);
  const auto receiver = network.link(1, 0);
  std::byte* piece = network.arena(1)->allocate(100);
  const auto offset = *network.arena(1)->offset_of(piece, 100);
  const std::byte signal{1};
  network.kill_at_write(0, 1);
  CHECK(sender->write(0, {&signal, 1}) == 1);
  CHECK(network.runs(0));
  while (network.step()) {
  }
  receiver->consume(0, receiver->peek(0).size());
  *sender->peer_memory(offset, 1) = std::byte{77};
  sender->write(0, {&signal, 1});
  CHECK_FALSE(network.runs(0));
  while (network.step()) {
  }
  CHECK(piece[0] == std::byte{77});
  CHECK(receiver->peek(0).empty());
  CHECK(receiver->failure() == "closed the connection");
}

TEST_CASE("sim: memory is shared inside a host only") {
  SimNetwork network(3, 1, {.host_of = {0, 0, 1}});
  const std::span<std::byte> memory = network.arena_memory(1);
  CHECK(network.link(0, 1)->peer_memory(0, memory.size()) == memory.data());
  CHECK_THROWS_AS(network.link(0, 1)->peer_memory(1, memory.size()), ringcore::Error);
  CHECK_FALSE(network.link(0, 2)->sees_memory());
  SimNetwork apart(2, 1);
  CHECK_FALSE(apart.link(0, 1)->sees_memory());
  CHECK(apart.arena(0) == nullptr);
}

TEST_CASE("sim: a cut connection is lost on both sides, and only that one") {
  SimNetwork network(3, 8);
  Traffic traffic(network, 3, 2000);
  for (int i = 0; i < 10; ++i) {
    traffic.drive();
    network.step();
  }
  network.cut(0, 1);
  REQUIRE(traffic.run());
  CHECK(traffic.wrong == 0);
  CHECK(traffic.link(0, 1).failure() == "reset the connection");
  CHECK(traffic.link(1, 0).failure() == "reset the connection");
  CHECK_FALSE(traffic.link(0, 2).failure());
  CHECK(traffic.received(2, 0, 3) == 2000);
  CHECK(traffic.received(0, 2, 3) == 2000);
}

TEST_CASE("sim: a pause delays and loses nothing") {
  SimNetwork network(2, 9);
  Traffic traffic(network, 2, 2000);
  traffic.drive();
  const Nanoseconds resumes = network.clock().now() + 700 * kMillisecond;
  network.pause(1, 700 * kMillisecond);
  CHECK_FALSE(network.runs(1));
  CHECK(network.runs(0));
  network.run_until(resumes - 1);
  for (int lane = 0; lane < kLaneCount; ++lane) {
    CHECK(traffic.link(0, 1).peek(lane).empty());
    CHECK(traffic.link(1, 0).peek(lane).empty());
  }
  REQUIRE(traffic.run());
  CHECK(network.runs(1));
  CHECK(network.clock().now() >= resumes);
  CHECK(traffic.complete());
  CHECK(traffic.wrong == 0);
}

TEST_CASE("sim: silence tells nobody") {
  SimNetwork network(2, 10);
  Traffic traffic(network, 2, 2000);
  network.silence(0, 1);
  REQUIRE(traffic.run());
  CHECK_FALSE(traffic.link(0, 1).failure());
  CHECK_FALSE(traffic.link(1, 0).failure());
  CHECK(traffic.received(0, 1, 2) == 2000);
  for (int lane = 0; lane < kLaneCount; ++lane) CHECK(traffic.received(1, 0, lane) == 0);
}

TEST_CASE("sim: planted bytes arrive behind those written") {
  SimNetwork network(2, 11, {.keep_history = true});
  const auto sender = network.link(0, 1);
  const auto receiver = network.link(1, 0);
  const std::byte record[] = {std::byte{1}, std::byte{2}, std::byte{3}};
  std::size_t sent = 0;
  while (sent < 3) sent += sender->write(0, std::span(record).subspan(sent));
  const auto history = network.history(0, 1, 0);
  REQUIRE(history.size() == 3);
  const std::vector<std::byte> copy(history.begin(), history.end());
  network.inject(0, 1, 0, copy);
  while (network.step()) {
  }
  const auto view = receiver->peek(0);
  REQUIRE(view.size() == 6);
  CHECK(std::memcmp(view.data(), record, 3) == 0);
  CHECK(std::memcmp(view.data() + 3, record, 3) == 0);
}

}  // namespace ringcore::test
