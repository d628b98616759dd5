// Benchmark of the engine between real processes of one host, with the machine's own limit beside it.
//
//   ringcore_benchmark [ranks]     JSON lines on standard output: {"case", "bytes", "ranks", "median_us", ...}
//   ringcore_benchmark messages    what a message costs the processor, for the cost model
#include <cstdlib>
#include <string_view>

#include "cases.hpp"

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "messages") return ringcore::benchmarks::run_messages();
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  return ringcore::benchmarks::run_all(ranks);
}
