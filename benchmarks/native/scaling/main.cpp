// The cost model's times of a ring and of parameter servers, for 1 to 64 workers, each on a host of its own.
//
//   ringcore_scaling BYTES_PER_S LATENCY_S BYTES TENSORS     JSON lines: {"system", "workers", "seconds"}
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "plan/cost.hpp"
#include "plan/generator.hpp"

namespace {

using namespace ringcore;

constexpr int kMostWorkers = 64;
constexpr int kParts = 8;  // of the ring's blocks
constexpr plan::CostModel kModel;

plan::Topology separate_hosts(int workers, int servers, const plan::Links& links) {
  plan::Topology topology{
      .host_of = std::vector<int>(static_cast<std::size_t>(workers + servers)), .serving = servers, .links = links};
  std::iota(topology.host_of.begin(), topology.host_of.end(), 0);
  return topology;
}

double seconds(const char* generator, int parts, const plan::Topology& topology, std::size_t bytes) {
  const plan::PlanRequest request{.collective = Collective::kAllreduce, .topology = &topology, .parts = parts};
  const auto plan =
      plan::excerpt(plan::generator(generator), request, plan::Symmetry::none(topology.nodes()), 2 * plan::kMostSteps);
  return plan::predict_seconds(*plan, topology, static_cast<double>(bytes) / plan->chunks, kModel);
}

double ring_seconds(int workers, std::size_t bytes, const plan::Links& links) {
  return workers == 1 ? 0 : seconds("ring", kParts, separate_hosts(workers, 0, links), bytes);
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
  plan::Links links;
  links.between_hosts = {.latency_s = std::atof(argv[2]), .seconds_per_byte = 1 / std::atof(argv[1])};
  const std::size_t bytes = std::strtoull(argv[3], nullptr, 10);
  const int tensors = std::atoi(argv[4]);
  const auto server_seconds = [&](int workers, int servers) {
    return seconds("servers", tensors, separate_hosts(workers, servers, links), bytes);
  };
  for (int workers = 1; workers <= kMostWorkers; workers *= 2) {
    print("ringcore", workers, ring_seconds(workers, bytes, links));
    print("1 server", workers, server_seconds(workers, 1));
    print("1:1 servers", workers, server_seconds(workers, workers));
    print("2:1 servers", workers, server_seconds(workers, 2 * workers));
  }
}
