// How long a collective takes, by each algorithm.
//
// On an even network the ranks that are images of each other are simulated once, host by host, which is exact. Where
// messages are late or a host is slow, every rank is simulated.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "plan/backend.hpp"
#include "simulation/network.hpp"

namespace ringcore::simulation {

struct CollectiveTime {
  std::string algorithm;
  int parts = 1;  // of a block, as the planner divides it
  double seconds = 0;
  double steps = 0;              // that were simulated
  std::size_t program_bytes = 0;  // of memory, the longest program of a rank
  std::size_t sent_bytes = 0;     // at most by a rank
  std::size_t peers = 0;          // at most of a rank
};

// The quickest first. `algorithms`: names of generators; empty: those that are not hopeless by what a port must carry at
// least. Those that do not offer the collective to so many ranks, or only by so much that some minutes and gigabytes
// would not do for the simulation, are left out. Throws Error{kInvalidArgument} for a name that is none.
std::vector<CollectiveTime> simulate_collective(const Network& network, const plan::Query& query,
                                                const std::vector<std::string>& algorithms);

}  // namespace ringcore::simulation
