// The engine under fault schedules: the real code, N ranks in one thread, virtual time, one seed.
//
// Each seed decides everything: how many ranks, on which hosts, what they submit and in which order, and what goes wrong.
// A failing seed is printed and replays exactly:
//
//   RINGCORE_SIMULATION_SEED=123 ringcore_tests -tc="*fault schedules*"
#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <string>

#include "../from_environment.hpp"
#include "carriers/standard.hpp"
#include "cluster.hpp"
#include "oracles.hpp"

using namespace ringcore;
using engine::Engine;
using engine::Operation;
using testing::from_environment;
using transport::SimNetwork;

namespace {

// One job, started anew perhaps after its end.
std::string flaw_of(std::uint64_t seed) {
  simulation::Draw draw(seed);
  const int lives = draw.one_in(5) ? 2 : 1;
  for (int life = 0; life < lives; ++life) {
    const simulation::Workload workload = simulation::draw_workload(draw);
    std::vector<simulation::Fault> faults =
        simulation::draw_faults(draw, simulation::nodes_of(workload), workload.encrypted);
    simulation::Cluster cluster(workload, std::move(faults), draw, static_cast<std::uint32_t>(7 + life));
    std::string flaw = cluster.run();
    if (flaw.empty()) flaw = cluster.flaw();
    if (flaw.empty()) flaw = simulation::check(cluster);
    if (!flaw.empty()) return "seed " + std::to_string(seed) + ": " + flaw;
  }
  return "";
}

}  // namespace

TEST_CASE("fault schedules: nothing hangs, no result is wrong") {
  const std::uint64_t only = from_environment("RINGCORE_SIMULATION_SEED", 0);
  const std::uint64_t first = only != 0 ? only : from_environment("RINGCORE_SIMULATION_FIRST", 1);
  const std::uint64_t count = only != 0 ? 1 : from_environment("RINGCORE_SIMULATION_SEEDS", 2000);
  int failures = 0;
  for (std::uint64_t seed = first; seed < first + count && failures < 5; ++seed) {
    const std::string flaw = flaw_of(seed);
    if (flaw.empty()) continue;
    ++failures;
    MESSAGE(flaw);
  }
  CHECK(failures == 0);
}

TEST_CASE("small blocking operations one after the other show that a peer is alive") {
  SimNetwork network(2, 1, {});
  engine::EngineSettings settings;
  settings.heartbeat = 200 * kMillisecond;
  std::vector<std::unique_ptr<Engine>> engines;
  for (Rank rank = 0; rank < 2; ++rank) {
    engine::EngineConfig config;
    config.rank = rank;
    config.make_carriers = carriers::standard();
    config.links.resize(2);
    config.links[1 - rank] = network.link(rank, 1 - rank);
    config.host_of = {0, 1};
    engines.push_back(std::make_unique<Engine>(std::move(config), settings, network.clock()));
  }
  std::int64_t values[2] = {1, 1};
  for (int call = 0; call < 50; ++call) {
    std::shared_ptr<Operation> operations[2];
    for (Rank rank = 0; rank < 2; ++rank) {
      Operation& operation = *(operations[rank] = std::make_shared<Operation>());
      operation.descriptor.name = "loss";
      operation.descriptor.collective = Collective::kAllreduce;
      operation.descriptor.dtype = DType::kInt64;
      operation.descriptor.op = ReduceOp::kSum;
      operation.descriptor.shape = engine::Shape::of(std::array<std::uint64_t, 1>{1});
      operation.output = reinterpret_cast<std::byte*>(&values[rank]);
      operation.input = operation.output;
      operation.awaited = operation.only_thread = true;
      engines[rank]->submit(operations[rank]);
    }
    for (int tick = 0; tick < 4; ++tick) {
      network.run_until(network.clock().now() + 5 * kMillisecond);
      for (const auto& engine : engines) {
        while (engine->progress()) {
        }
        engine->check_timers(true);
      }
    }
    for (const auto& operation : operations) {
      REQUIRE(operation->done());
      REQUIRE(operation->error == nullptr);
    }
  }
  CHECK(values[0] == std::int64_t{1} << 50);
}
