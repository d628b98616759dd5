// Benchmark of the engine between real processes of one host, with the machine's own limit beside it.
//
//   ringcore_benchmark [ranks]     JSON lines on standard output: {"case", "bytes", "ranks", "median_us", ...}
#include <cstdlib>

#include "cases.hpp"

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  return ringcore::benchmarks::run_all(ranks);
}
