// What the first plan of an allreduce costs a rank: generate, predict, verify.
//
//   ringcore_plans RANKS RANKS_OF_A_HOST BYTES     a JSON line; the memory is the process's, so run it once a size
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include <sys/resource.h>

#include "plan/planner.hpp"

namespace {

using namespace ringcore;

double processor_ms() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

double peak_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: ringcore_plans RANKS RANKS_OF_A_HOST BYTES\n", stderr);
    return 2;
  }
  const int ranks = std::atoi(argv[1]);
  plan::Topology topology;
  for (Rank rank = 0; rank < ranks; ++rank) topology.host_of.push_back(rank / std::atoi(argv[2]));
  const plan::Query query{.collective = Collective::kAllreduce,
                          .bytes = std::strtoull(argv[3], nullptr, 10),
                          .dtype = DType::kFloat32,
                          .op = ReduceOp::kSum};
  const double memory = peak_mib();
  const double begin = processor_ms();
  plan::Planner planner(std::move(topology), ranks / 2, {});
  const plan::Planner::Candidate best = planner.candidates(query, {}, 0, 1).front();
  const double end = processor_ms();
  std::printf(
      "{\"ranks\": %d, \"generator\": \"%s\", \"chunks\": %u, \"predicted_ms\": %.3g, \"processor_ms\": %.3g, "
      "\"memory_mib\": %.3g}\n",
      ranks, best.plan->generator.c_str(), best.plan->chunks, best.seconds * 1e3, end - begin, peak_mib() - memory);
}
