// How long ranks take to agree on what runs next: their trees of logs (engine/agreement_tree.hpp), all of them, with every
// record over a simulated network.
#pragma once

#include <cstddef>
#include <vector>

#include "simulation/network.hpp"

namespace ringcore::simulation {

struct AgreementTime {
  double first_s = 0;  // until all know an operation that nobody has met
  double again_s = 0;  // the next time
  double step_s = 0;  // so many operations, known, that all ranks announce at once
  std::size_t step_bytes = 0;  // at most by a rank, for these
  std::size_t step_records = 0;  // at most by a rank
  int neighbours = 0;  // at most of a rank
};

// A tree among two ranks or more. `operations`: of a step.
AgreementTime simulate_agreement(const Network& network, int operations);

}  // namespace ringcore::simulation
