// What is said of an operation that some ranks have not submitted, however many wait for it.
#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "carriers/standard.hpp"
#include "engine/engine.hpp"
#include "transport/sim/network.hpp"

using namespace ringcore;

namespace {

constexpr Rank kRanks = 40;
constexpr Nanoseconds kTick = 50 * kMillisecond;

bool is_missing(Rank rank) { return rank < 2 || rank % 3 == 0; }

}  // namespace

TEST_CASE("one of the ranks that wait says who is missing, and a few of those are asked where they stand") {
  for (const int direct_members : {64, 1}) {
    CAPTURE(direct_members);
    transport::SimNetwork network(kRanks, 1, {});
    engine::EngineSettings settings;
    settings.direct_members = direct_members;
    settings.heartbeat = 100 * kSecond;
    settings.stall_warning = kSecond;
    std::vector<std::unique_ptr<engine::Engine>> engines;
    std::vector<std::shared_ptr<engine::Operation>> operations;
    std::array<float, 4> values{};
    for (Rank rank = 0; rank < kRanks; ++rank) {
      engine::EngineConfig config;
      config.rank = rank;
      config.make_carriers = carriers::standard();
      config.links.resize(kRanks);
      for (Rank peer = 0; peer < kRanks; ++peer) {
        config.host_of.push_back(peer);
        if (peer != rank) config.links[static_cast<std::size_t>(peer)] = network.link(rank, peer);
      }
      engines.push_back(std::make_unique<engine::Engine>(std::move(config), settings, network.clock()));
      if (is_missing(rank)) continue;
      auto operation = std::make_shared<engine::Operation>();
      operation->descriptor.name = "loss";
      operation->descriptor.collective = Collective::kAllreduce;
      operation->descriptor.dtype = DType::kFloat32;
      operation->descriptor.shape = engine::Shape::of(std::array<std::uint64_t, 1>{4});
      operation->input = operation->output = reinterpret_cast<std::byte*>(values.data());
      operation->awaited = operation->only_thread = true;
      engines.back()->submit(operation);
      operations.push_back(std::move(operation));
    }
    while (network.clock().now() < 5 * kSecond) {
      for (const auto& engine : engines) {
        while (engine->progress()) {
        }
        engine->check_timers(true);
      }
      network.run_until(network.clock().now() + kTick);
    }
    int asked = 0;
    for (Rank rank = 0; rank < kRanks; ++rank) {
      engine::Engine& engine = *engines[static_cast<std::size_t>(rank)];
      const bool is_asked = engine.take_stack_request();
      CHECK(!(is_asked && !is_missing(rank)));
      asked += is_asked ? 1 : 0;
      const std::vector<std::string> warnings = engine.take_warnings();
      REQUIRE(warnings.size() == (rank == 2 ? 1 : 0));
      if (rank != 2) continue;
      CHECK(
          warnings[0].find("ranks 0, 1, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 33, 36, 39 did not submit it; ranks 2, 4, "
                           "5, 7, 8, 10, 11, 13, 14, 16, 17, 19, 20, 22, 23, 25 and 9 more did.") != std::string::npos);
    }
    CHECK(asked == 4);
  }
}
