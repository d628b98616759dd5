// What must hold of a simulated job when it is over.
#pragma once

#include <string>

#include "cluster.hpp"

namespace ringcore::simulation {

// No wrong result, equal bits on all ranks, ranks that agree about what does not fit, and nothing that fails without
// something that explains it. A sentence when it does not hold.
std::string check(Cluster& cluster);

}  // namespace ringcore::simulation
