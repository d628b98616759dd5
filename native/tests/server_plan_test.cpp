// What the benchmark predicts for parameter servers (benchmarks/native/scaling), against closed formulas.
#include <doctest/doctest.h>

#include <algorithm>

#include "../../benchmarks/native/scaling/servers.hpp"
#include "plan/cost.hpp"

using namespace ringcore;

TEST_CASE("parameter servers take the time that the narrower cables need for all tensors and one more") {
  constexpr double kRate = 12e6;
  constexpr std::size_t kBytes = 8 << 20;
  constexpr int kTensors = 8;
  plan::CostModel model;
  model.between_hosts = {.latency_s = 0, .seconds_per_byte = 1 / kRate};
  model.step_s = model.touch_seconds_per_byte = 0;
  for (const int workers : {1, 2, 4, 8, 64}) {
    for (const int servers : {1, workers, 2 * workers}) {
      CAPTURE(workers);
      CAPTURE(servers);
      const plan::Plan plan = benchmarks::server_plan(workers, servers, kTensors);
      const double narrower = std::max(1.0, static_cast<double>(workers) / servers);
      // A server with room to spare answers its last worker while the last share of the next one arrives.
      const double saved = servers > workers ? 1.0 / (kTensors * servers) : 0;
      const double closed = narrower * kBytes / kRate * (1 + 1.0 / kTensors - saved);
      const double predicted = predict_seconds(plan, benchmarks::separate_hosts(workers + servers), kBytes, model);
      CHECK(predicted == doctest::Approx(closed));
    }
  }
}
