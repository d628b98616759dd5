// What is predicted for parameter servers (generators/servers.cpp), against closed formulas.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "plan/cost.hpp"
#include "plan/verifier.hpp"

using namespace ringcore;

TEST_CASE("a rank is a few parts ahead of each server's answers, and waits for no other server with them") {
  for (const int servers : {1, 4, 8}) {
    CAPTURE(servers);
    plan::Topology topology{.host_of = std::vector<int>(static_cast<std::size_t>(4 + servers)), .serving = servers};
    std::iota(topology.host_of.begin(), topology.host_of.end(), 0);
    const plan::PlanRequest request{.collective = Collective::kAllreduce, .topology = &topology, .parts = 32};
    const auto plan = plan::generator("servers").generate(request, 1);
    REQUIRE(plan);
    std::vector<int> ahead(static_cast<std::size_t>(servers));
    int left = 32 * servers;  // to be sent
    for (const plan::Step& step : plan->program.channels.front()) {
      int& own = ahead[static_cast<std::size_t>(step.peer - 4)];
      if (step.kind == plan::StepKind::kSend) {
        CHECK(++own <= 8);
        --left;
        continue;
      }
      if (left >= servers) CHECK(std::ranges::count(ahead, own) == servers);
      CHECK(--own >= 0);
    }
    CHECK(left == 0);
    CHECK(std::ranges::count(ahead, 0) == servers);
  }
}

TEST_CASE("parameter servers take the time that the narrower cables need for all tensors and one more") {
  constexpr double kRate = 12e6;
  constexpr std::size_t kBytes = 8 << 20;
  constexpr int kTensors = 8;
  plan::CostModel model;
  model.step_s = model.touch_seconds_per_byte = 0;
  for (const int workers : {1, 2, 4, 8, 64}) {
    for (const int servers : {1, workers, 2 * workers}) {
      CAPTURE(workers);
      CAPTURE(servers);
      plan::Topology topology{.host_of = std::vector<int>(static_cast<std::size_t>(workers + servers)),
                              .serving = servers};
      std::iota(topology.host_of.begin(), topology.host_of.end(), 0);
      topology.links.between_hosts = {.latency_s = 0, .seconds_per_byte = 1 / kRate};
      const plan::PlanRequest request{.collective = Collective::kAllreduce, .topology = &topology, .parts = kTensors};
      const auto plan = plan::excerpt(plan::generator("servers"), request, plan::Symmetry::none(topology.nodes()),
                                      2 * plan::kMostSteps);
      REQUIRE(plan);
      if (workers > 1 && workers <= 8) CHECK(plan::verify(*plan, topology) == std::nullopt);
      const double narrower = std::max(1.0, static_cast<double>(workers) / servers);
      // A server with room to spare answers its last worker while the last share of the next one arrives. Of many workers
      // some come at the same time, and who of them goes first is up to the simulation: that takes up to 5 % longer.
      const double saved = servers > workers ? 1.0 / (kTensors * servers) : 0;
      const double closed = narrower * kBytes / kRate * (1 + 1.0 / kTensors - saved);
      CHECK(predict_seconds(*plan, topology, static_cast<double>(kBytes) / plan->chunks, model) ==
            doctest::Approx(closed).epsilon(servers > workers && workers > 4 ? 0.05 : 1e-5));
    }
  }
}
