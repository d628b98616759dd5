#pragma once

namespace ringcore::benchmarks {

// Measures every case at every size, the cases in turn; returns the exit status.
int run_all(int ranks);

}  // namespace ringcore::benchmarks
