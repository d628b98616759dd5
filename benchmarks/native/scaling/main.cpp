// The cost model's times of a ring and of parameter servers, for 1 to 64 workers, each on a host of its own.
//
//   ringcore_scaling BYTES_PER_S LATENCY_S BYTES TENSORS     JSON lines: {"system", "workers", "seconds"}
#include <cstdio>
#include <cstdlib>

#include "plan/cost.hpp"
#include "plan/generators.hpp"
#include "servers.hpp"

namespace {

using namespace ringcore;

constexpr int kMostWorkers = 64;
constexpr int kParts = 8;  // of the ring's blocks

double ring_seconds(int workers, std::size_t bytes, const plan::CostModel& model) {
  if (workers == 1) return 0;
  const plan::Topology topology = benchmarks::separate_hosts(workers);
  const auto plan =
      plan::ring().generate({.collective = Collective::kAllreduce, .topology = &topology, .parts = kParts});
  return predict_seconds(*plan, topology, bytes, model);
}

double server_seconds(int workers, int servers, std::size_t bytes, int tensors, const plan::CostModel& model) {
  const plan::Plan plan = benchmarks::server_plan(workers, servers, tensors);
  return predict_seconds(plan, benchmarks::separate_hosts(workers + servers), bytes, model);
}

void print(const char* system, int workers, double seconds) {
  std::printf("{\"system\": \"%s\", \"workers\": %d, \"seconds\": %.6g}\n", system, workers, seconds);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fputs("usage: ringcore_scaling BYTES_PER_S LATENCY_S BYTES TENSORS\n", stderr);
    return 2;
  }
  plan::CostModel model;
  model.between_hosts = {.latency_s = std::atof(argv[2]), .seconds_per_byte = 1 / std::atof(argv[1])};
  const std::size_t bytes = std::strtoull(argv[3], nullptr, 10);
  const int tensors = std::atoi(argv[4]);
  for (int workers = 1; workers <= kMostWorkers; workers *= 2) {
    print("ringcore", workers, ring_seconds(workers, bytes, model));
    print("1 server", workers, server_seconds(workers, 1, bytes, tensors, model));
    print("1:1 servers", workers, server_seconds(workers, workers, bytes, tensors, model));
    print("2:1 servers", workers, server_seconds(workers, 2 * workers, bytes, tensors, model));
  }
}
