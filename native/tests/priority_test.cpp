// What is more urgent overtakes what has begun.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "carriers/standard.hpp"
#include "engine/engine.hpp"
#include "transport/sim.hpp"

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

  void submit(const std::string& name, std::size_t count, std::int32_t priority) {
    tensors.emplace_back(count, static_cast<float>(engine->rank() + 1));
    auto* data = reinterpret_cast<std::byte*>(tensors.back().data());
    auto operation = std::make_shared<Operation>();
    operation->descriptor.collective = Collective::kAllreduce;
    operation->descriptor.name = name;
    operation->descriptor.dtype = DType::kFloat32;
    const std::uint64_t shape[] = {count};
    operation->descriptor.shape = engine::Shape::of(shape);
    operation->input = operation->output = data;
    operation->priority = priority;
    operation->awaited = true;
    operations.push_back(operation);
    engine->submit(operation);
  }
};

}  // namespace

TEST_CASE("of the operations that wait or run, the most urgent ends first") {
  constexpr int kBulk = 6;
  SimNetwork network(kRanks, 1, {.longest_delay = 20'000, .lane_bytes = 512});
  std::vector<Member> ranks(kRanks);
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
    ranks[rank].engine = std::make_unique<Engine>(std::move(config), engine::EngineSettings{}, network.clock());
  }
  const auto drive_until = [&](const auto& ended) {
    do {
      for (Member& rank : ranks) {
        while (rank.engine->progress()) {
        }
      }
    } while (!ended() && network.step());
    REQUIRE(ended());
  };
  const auto done = [&](std::size_t i) {
    return std::all_of(ranks.begin(), ranks.end(), [i](const Member& rank) { return rank.operations[i]->done(); });
  };
  const auto any_done = [&](std::size_t i) {
    return std::any_of(ranks.begin(), ranks.end(), [i](const Member& rank) { return rank.operations[i]->done(); });
  };
  for (int i = 0; i < kBulk; ++i) {
    for (Member& rank : ranks) rank.submit("bulk " + std::to_string(i), 20000, i - kBulk);
    for (int moves = 0; moves < 10; ++moves) {
      for (Member& rank : ranks) rank.engine->progress();
      network.step();
    }
  }
  for (const Member& rank : ranks) REQUIRE(rank.operations[0]->started_at > 0);
  // The last one, which is the most urgent, has overtaken all others, those that had begun as well.
  drive_until([&] { return done(kBulk - 1); });
  for (int i = 0; i < kBulk - 3; ++i) CHECK_FALSE(any_done(static_cast<std::size_t>(i)));
  drive_until([&] { return done(0) && done(1); });
  for (const Member& rank : ranks) {
    for (const auto& operation : rank.operations) CHECK(operation->error == nullptr);
    for (const auto& tensor : rank.tensors) CHECK(tensor == std::vector<float>(tensor.size(), 6.0F));
  }
}
