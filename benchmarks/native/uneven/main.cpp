// What benchmarks/uneven.py needs of the planner.
//
//   ringcore_uneven save GENERATOR HOSTS BITS_PER_S BYTES FILE
//   ringcore_uneven ready HOSTS SEED BYTES
//
// `save` writes the allreduce of one generator for an even network, in as many parts as the model takes for best there: a
// job that registers it runs no other plan. `ready` prints a JSON line: how long a rank takes for a network of random
// rates, from the question to a plan that is verified.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "plan/forms/binary.hpp"
#include "plan/generator.hpp"
#include "plan/planner.hpp"
#include "tests/random_networks.hpp"

namespace {

using namespace ringcore;

plan::Query sum_of(const char* bytes) {
  return {.collective = Collective::kAllreduce,
          .bytes = std::strtoull(bytes, nullptr, 10),
          .dtype = DType::kFloat32,
          .op = ReduceOp::kSum};
}

void save(const std::string& name, int hosts, double bits_per_s, const char* bytes, const char* file) {
  plan::Topology topology{.host_of = std::vector<int>(static_cast<std::size_t>(hosts))};
  std::iota(topology.host_of.begin(), topology.host_of.end(), 0);
  topology.links.between_hosts.seconds_per_byte = 8 / bits_per_s;
  const plan::Forecast best = plan::Planner(topology, 0, {}).forecast(sum_of(bytes), {name}).front();
  const plan::PlanRequest request{.collective = Collective::kAllreduce, .topology = &topology, .parts = best.parts};
  plan::WholePlan whole;
  for (Rank rank = 0; rank < hosts; ++rank) {
    plan::Plan part = *best.generator->generate(request, rank);
    static_cast<plan::Header&>(whole) = part;
    whole.programs.push_back(std::move(part.program));
  }
  const std::vector<std::byte> binary = plan::to_binary(whole);
  std::ofstream(file, std::ios::binary)
      .write(reinterpret_cast<const char*>(binary.data()), static_cast<std::streamsize>(binary.size()));
}

void ready(int hosts, std::uint64_t seed, const char* bytes) {
  plan::Topology topology = testing::RandomNetworks(seed).draw(hosts);
  topology.links.told = true;
  const auto cables = topology.links.cables.size();
  const auto begin = std::chrono::steady_clock::now();
  plan::Planner planner(std::move(topology), 0, {});
  const plan::Plan& best = planner.choose(sum_of(bytes));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::printf(
      "{\"hosts\": %d, \"seed\": %llu, \"cables\": %zu, \"taken\": \"%s\", \"chunks\": %u, \"seconds\": %.4f}\n", hosts,
      static_cast<unsigned long long>(seed), cables, best.generator.c_str(), best.chunks, took.count());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view action = argc > 1 ? argv[1] : "";
  try {
    if (action == "save" && argc == 7) {
      save(argv[2], std::atoi(argv[3]), std::atof(argv[4]), argv[5], argv[6]);
    } else if (action == "ready" && argc == 5) {
      ready(std::atoi(argv[2]), std::strtoull(argv[3], nullptr, 10), argv[4]);
    } else {
      std::fputs("usage: ringcore_uneven save GENERATOR HOSTS BITS_PER_S BYTES FILE | ready HOSTS SEED BYTES\n",
                 stderr);
      return 2;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ringcore_uneven: %s\n", error.what());
    return 1;
  }
}
