// What is more urgent overtakes what has begun. Of priorities below 0 the first operations of a kind would be tried, in
// order: most tests have others, or are deterministic.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "carriers/standard.hpp"
#include "engine/engine.hpp"
#include "transport/sim/network.hpp"

using namespace ringcore;
using engine::Engine;
using engine::Operation;
using transport::SimNetwork;

namespace {

constexpr int kRanks = 3;

struct Member {
  std::unique_ptr<Engine> engine;
  std::vector<std::vector<float>> tensors;
  std::vector<std::shared_ptr<Operation>> operations;

  std::shared_ptr<Operation> make(const engine::Call& call, std::size_t count) {
    tensors.emplace_back(count, static_cast<float>(engine->rank() + 1));
    const std::uint64_t shape[] = {count};
    const engine::Array tensor{.data = reinterpret_cast<std::byte*>(tensors.back().data()),
                               .shape = engine::Shape::of(shape),
                               .dtype = DType::kFloat32};
    return engine::make_operation(call, tensor, &tensor);
  }
  void submit(std::shared_ptr<Operation> operation) {
    operation->awaited = true;
    operations.push_back(operation);
    engine->submit(std::move(operation));
  }
  void submit(const std::string& name, std::size_t count, std::int32_t priority) {
    submit(make({.collective = Collective::kAllreduce, .name = name, .priority = priority}, count));
  }
  void submit_group(const std::string& name, std::size_t parts, std::size_t count, std::int32_t priority) {
    std::vector<std::shared_ptr<Operation>> all;
    for (std::size_t i = 0; i < parts; ++i) {
      all.push_back(make({.collective = Collective::kAllreduce, .name = name, .priority = priority}, count));
    }
    auto group = engine::make_group(name, std::move(all));
    group->priority = priority;
    submit(std::move(group));
  }
};

// Ranks on hosts of their own.
struct Job {
  explicit Job(const engine::EngineSettings& settings)
      : network(kRanks, 1, {.longest_delay = 20'000, .lane_bytes = 512}), ranks(kRanks) {
    for (Rank rank = 0; rank < kRanks; ++rank) {
      engine::EngineConfig config;
      config.rank = rank;
      config.make_carriers = carriers::standard();
      config.epoch = 1;
      config.host_of = {0, 1, 2};
      config.links.resize(kRanks);
      for (Rank peer = 0; peer < kRanks; ++peer) {
        if (peer != rank) config.links[peer] = network.link(rank, peer);
      }
      ranks[rank].engine = std::make_unique<Engine>(std::move(config), settings, network.clock());
    }
  }

  bool done(std::size_t i) const {
    return std::all_of(ranks.begin(), ranks.end(), [i](const Member& rank) { return rank.operations[i]->done(); });
  }
  bool any_done(std::size_t i) const {
    return std::any_of(ranks.begin(), ranks.end(), [i](const Member& rank) { return rank.operations[i]->done(); });
  }
  void drive_until(const std::function<bool()>& ended) {
    do {
      for (Member& rank : ranks) {
        while (rank.engine->progress()) {
        }
      }
    } while (!ended() && network.step());
    REQUIRE(ended());
  }
  void move_a_little() {
    for (int moves = 0; moves < 10; ++moves) {
      for (Member& rank : ranks) rank.engine->progress();
      network.step();
    }
  }
  void check_sums() const {
    for (const Member& rank : ranks) {
      for (const auto& operation : rank.operations) CHECK(operation->error == nullptr);
      for (const auto& tensor : rank.tensors) CHECK(tensor == std::vector<float>(tensor.size(), 6.0F));
    }
  }

  SimNetwork network;
  std::vector<Member> ranks;
};

engine::EngineSettings settings_of(std::size_t partition_bytes, std::size_t credit_bytes) {
  engine::EngineSettings settings;
  settings.execution.partition_bytes = partition_bytes;
  settings.execution.credit_bytes = credit_bytes;
  settings.eager_limit_bytes = 0;
  return settings;
}

// From its submission, while a large tensor of less priority is under way.
Nanoseconds time_of_urgent(std::size_t partition_bytes) {
  constexpr std::size_t kPartition = 4096;
  Job job(settings_of(partition_bytes, kPartition));
  for (Member& rank : job.ranks) rank.submit("large", 200'000, 1);
  job.move_a_little();
  const Nanoseconds begin = job.network.clock().now();
  for (Member& rank : job.ranks) rank.submit("urgent", 100, 2);
  job.drive_until([&] { return job.done(1); });
  const Nanoseconds end = job.network.clock().now();
  CHECK_FALSE(job.any_done(0));
  job.drive_until([&] { return job.done(0); });
  job.check_sums();
  return end - begin;
}

}  // namespace

TEST_CASE("of the operations that wait or run, the most urgent ends first") {
  constexpr int kBulk = 6;
  engine::EngineSettings settings;
  settings.execution.deterministic = true;
  Job job(settings);
  for (int i = 0; i < kBulk; ++i) {
    for (Member& rank : job.ranks) rank.submit("bulk " + std::to_string(i), 20000, i - kBulk);
    job.move_a_little();
  }
  for (const Member& rank : job.ranks) REQUIRE(rank.operations[0]->started_at > 0);
  // The last one, which is the most urgent, has overtaken all others, those that had begun as well.
  job.drive_until([&] { return job.done(kBulk - 1); });
  for (int i = 0; i < kBulk - 3; ++i) CHECK_FALSE(job.any_done(static_cast<std::size_t>(i)));
  job.drive_until([&] { return job.done(0) && job.done(1); });
  job.check_sums();
}

TEST_CASE("what is urgent waits for a partition of what is not") {
  const Nanoseconds cut = time_of_urgent(4096);
  const Nanoseconds whole = time_of_urgent(0);
  CAPTURE(cut);
  CAPTURE(whole);
  CHECK(cut < whole / 4);
}

TEST_CASE("small tensors of one priority share a bucket, and are overtaken in it") {
  constexpr std::size_t kParts = 20;
  Job job(settings_of(1 << 20, 1));  // of several tasks one would run after the other
  for (Member& rank : job.ranks) rank.submit_group("small", kParts, 5000, 1);
  job.move_a_little();
  for (Member& rank : job.ranks) rank.submit_group("urgent", kParts, 500, 2);
  job.drive_until([&] { return job.done(1); });
  CHECK_FALSE(job.any_done(0));
  job.drive_until([&] { return job.done(0); });
  job.check_sums();
  for (const Member& rank : job.ranks) {
    const auto& parts = rank.operations[1]->parts;
    for (const auto& part : parts) CHECK(part->started_at == parts.front()->started_at);
  }
}
