// Many engines in one process that are connected only as the tree of their logs asks for.
//
//   RINGCORE_MANY_RANKS=1024 ringcore_tests -tc="*connected along the tree*"
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "carriers/standard.hpp"
#include "engine/engine.hpp"
#include "engine/tree_shape.hpp"
#include "transport/sim/network.hpp"

using namespace ringcore;
using engine::Operation;

namespace {

constexpr int kRanksPerHost = 8;
constexpr int kOperations = 50;
constexpr Nanoseconds kHeartbeat = 200 * kMillisecond;
constexpr Nanoseconds kStep = 100'000;

class Job {
 public:
  explicit Job(int ranks, bool elastic = false)
      : network_(ranks, 1, {.longest_delay = 20'000, .keep_history = !elastic}),
        processor_(static_cast<std::size_t>(ranks)) {
    std::vector<int> host_of;
    for (Rank rank = 0; rank < ranks; ++rank) host_of.push_back(rank / kRanksPerHost);
    for (Rank rank = 0; rank < ranks; ++rank) {
      const engine::TreeShape shape = engine::TreeShape::make(host_of, rank);
      neighbours_.emplace_back();
      if (!shape.is_root()) neighbours_.back().push_back(shape.parent);
      for (const engine::TreeShape::Child& child : shape.children) neighbours_.back().push_back(child.member);
      for (Rank peer = 0; elastic && peer < rank; ++peer) {  // no connection before one of them needs it
        if (shape.parent != peer && rank - peer != 1) network_.disconnect(rank, peer);
      }
    }
    engine::EngineSettings settings;
    settings.heartbeat = kHeartbeat;
    settings.stall_warning = 0;
    settings.elastic = elastic;
    for (Rank rank = 0; rank < ranks; ++rank) {
      engine::EngineConfig config;
      config.rank = rank;
      config.epoch = 1;
      config.host_of = host_of;
      config.make_carriers = carriers::standard();
      config.links.resize(static_cast<std::size_t>(ranks));
      const std::vector<Rank>& neighbours = neighbours_[static_cast<std::size_t>(rank)];
      for (Rank peer = 0; peer < ranks; ++peer) {
        const bool talks = elastic || std::ranges::find(neighbours, peer) != neighbours.end();
        if (talks && peer != rank) config.links[static_cast<std::size_t>(peer)] = network_.link(rank, peer);
      }
      engines_.push_back(std::make_unique<engine::Engine>(std::move(config), settings, network_.clock()));
    }
    drive([] { return true; });
  }

  // All ranks submit the same operations, which have no data, and wait for them.
  void run_step() {
    std::vector<std::shared_ptr<Operation>> operations;
    for (const auto& each : engines_) {
      for (int i = 0; i < kOperations && network_.runs(each->membership().own_place()); ++i) {
        auto operation = std::make_shared<Operation>();
        operation->descriptor.name = "layer " + std::to_string(i);
        operation->descriptor.collective = Collective::kBarrier;
        operation->descriptor.shape = engine::Shape::of(std::array<std::uint64_t, 1>{0});
        each->submit(operation);
        operations.push_back(std::move(operation));
      }
    }
    drive([&] {
      return std::all_of(operations.begin(), operations.end(), [](const auto& operation) { return operation->done(); });
    });
    for (const auto& operation : operations) REQUIRE(operation->error == nullptr);
  }

  void kill(Rank rank) { network_.kill(rank); }

  // Until every other rank says that this one is lost; how long that took.
  Nanoseconds run_until_told(Rank victim) {
    const Nanoseconds begin = network_.clock().now();
    drive([&] {
      return std::all_of(engines_.begin(), engines_.end(),
                         [&](const auto& each) { return each->rank() == victim || each->failure() != nullptr; });
    });
    for (const auto& each : engines_) {
      if (each->rank() == victim) continue;
      REQUIRE(each->failure() != nullptr);
      CHECK(each->failure()->kind() == ErrorKind::kPeerLost);
      const std::string text = each->failure()->what();
      CHECK_MESSAGE(text.starts_with("rank " + std::to_string(victim) + " "), text);
      // Whoever has passed it on is not to blame.
      CHECK(each->lost_rank() == victim);
      const auto& noticers = neighbours_[static_cast<std::size_t>(victim)];
      const Rank seen_by = each->loss_seen_by().value_or(-1);
      CHECK(std::find(noticers.begin(), noticers.end(), seen_by) != noticers.end());
      CHECK_MESSAGE(text.find(", as seen by rank " + std::to_string(seen_by) + ".") != std::string::npos, text);
    }
    return network_.clock().now() - begin;
  }

  // Until all others have begun an epoch without it; how long that took.
  Nanoseconds run_until_gone(int ranks) {
    const Nanoseconds begin = network_.clock().now();
    drive([&] {
      return std::ranges::all_of(engines_, [&](const auto& each) {
        REQUIRE(each->failure() == nullptr);
        return !network_.runs(each->membership().own_place()) || each->size() == ranks;
      });
    });
    for (const auto& each : engines_) each->accept_change(each->membership().epoch());
    return network_.clock().now() - begin;
  }

  // Milliseconds of processor that a rank has taken so far.
  double processor_ms(Rank place) const {
    return 1000.0 * static_cast<double>(processor_[static_cast<std::size_t>(place)]) / CLOCKS_PER_SEC;
  }

  // With how many others a rank is connected, at most.
  std::size_t most_connections() const {
    std::size_t most = 0;
    for (const auto& each : engines_) most = std::max(most, each->membership().known().size());
    return most;
  }

  // What a rank has written so far.
  std::size_t bytes_of(Rank rank) const {
    std::size_t bytes = 0;
    for (const Rank peer : neighbours_[static_cast<std::size_t>(rank)]) {
      bytes += network_.history(rank, peer, transport::kControlLane).size();
    }
    return bytes;
  }

  std::size_t records_of(Rank rank) const {
    std::size_t records = 0;
    for (const Rank peer : neighbours_[static_cast<std::size_t>(rank)]) {
      std::span<const std::byte> bytes = network_.history(rank, peer, transport::kControlLane);
      while (const auto record = engine::parse_record(bytes)) {
        bytes = bytes.subspan(record->header.bytes);
        ++records;
      }
    }
    return records;
  }

  std::vector<std::size_t> of_all(std::size_t (Job::*count)(Rank) const) const {
    std::vector<std::size_t> counts;
    for (const auto& each : engines_) counts.push_back((this->*count)(each->rank()));
    return counts;
  }

 private:
  template <class Ended>
  void drive(Ended ended) {
    for (const Nanoseconds begin = network_.clock().now();;) {
      network_.run_until(network_.clock().now() + kStep);
      const bool checks_timers = network_.clock().now() - timers_checked_ >= 5 * kMillisecond;
      if (checks_timers) timers_checked_ = network_.clock().now();
      for (const auto& each : engines_) {
        if (!network_.runs(each->membership().own_place())) continue;
        const std::clock_t began = std::clock();
        while (each->progress()) {
        }
        if (checks_timers) each->check_timers(true);
        processor_[static_cast<std::size_t>(each->membership().own_place())] += std::clock() - began;
      }
      if (ended()) return;
      REQUIRE(network_.clock().now() - begin < 10 * kSecond);
    }
  }

  transport::SimNetwork network_;
  std::vector<std::clock_t> processor_;  // time that each has taken
  std::vector<std::vector<Rank>> neighbours_;
  std::vector<std::unique_ptr<engine::Engine>> engines_;
  Nanoseconds timers_checked_ = 0;
};

std::size_t largest_difference(const std::vector<std::size_t>& before, const std::vector<std::size_t>& after) {
  std::size_t largest = 0;
  for (std::size_t i = 0; i < before.size(); ++i) largest = std::max(largest, after[i] - before[i]);
  return largest;
}

int asked_ranks() {
  const char* const asked = std::getenv("RINGCORE_MANY_RANKS");
  return asked == nullptr ? 96 : std::atoi(asked);
}

}  // namespace

TEST_CASE("ranks that are connected along the tree only agree in few bytes, and all say which of them died") {
  const int ranks = asked_ranks();
  Job job(ranks);
  job.run_step();  // every operation is described once
  constexpr int kSteps = 3;
  const std::vector<std::size_t> bytes = job.of_all(&Job::bytes_of);
  const std::vector<std::size_t> records = job.of_all(&Job::records_of);
  for (int step = 0; step < kSteps; ++step) job.run_step();
  const std::size_t most_bytes = largest_difference(bytes, job.of_all(&Job::bytes_of)) / kSteps;
  const std::size_t most_records = largest_difference(records, job.of_all(&Job::records_of)) / kSteps;
  MESSAGE(ranks << " ranks: a rank sends at most " << most_bytes << " bytes in " << most_records << " records for "
                << kOperations << " operations");
  CHECK(most_bytes < 8192);
  CHECK(most_records <= 4 * kOperations);
  const Rank victim = kRanksPerHost;  // a leader: others are reached through it
  job.kill(victim);
  CHECK(job.run_until_told(victim) <= 3 * kHeartbeat);
}

TEST_CASE("many ranks of an elastic job go on without one of them, and only its leader is connected with all") {
  const int ranks = asked_ranks();
  Job job(ranks, true);
  job.run_step();
  const std::size_t before = job.most_connections();
  const double leader = job.processor_ms(0), other = job.processor_ms(ranks - 1);
  job.kill(kRanksPerHost);  // a leader in the tree: others are reached through it
  const Nanoseconds took = job.run_until_gone(ranks - 1);
  MESSAGE(ranks << " ranks go on after " << static_cast<double>(took) / kMillisecond << " ms on the network, and "
                << job.processor_ms(0) - leader << " ms of processor of the leader's, "
                << job.processor_ms(ranks - 1) - other << " of another one's; a rank was connected with " << before
                << " others");
  job.run_step();
  CHECK(took <= 3 * kHeartbeat);
  CHECK(before <= 4 + 4 + kRanksPerHost);
}
