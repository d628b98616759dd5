#pragma once

namespace ringcore::benchmarks {

// Measures every case at every size, the cases in turn; returns the exit status.
int run_all(int ranks);

// Measures what a message costs, by shared memory and by TCP: the constants of plan/cost.hpp.
int run_messages();

}  // namespace ringcore::benchmarks
