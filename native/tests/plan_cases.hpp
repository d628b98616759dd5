// What the tests of plans try.
#pragma once

#include <vector>

#include "plan/topology.hpp"

namespace ringcore::testing {

inline constexpr Collective kCollectives[] = {
    Collective::kAllreduce, Collective::kAllgather, Collective::kBroadcast, Collective::kReduceScatter,
    Collective::kAlltoall,  Collective::kReduce,    Collective::kGather,    Collective::kScatter};

// One host; as many hosts as ranks; hosts of four ranks, the last one perhaps smaller; ranks dealt out to `hosts` in turn.
inline std::vector<plan::Topology> topologies(int ranks, int hosts) {
  std::vector<plan::Topology> all(4);
  for (Rank rank = 0; rank < ranks; ++rank) {
    all[0].host_of.push_back(0);
    all[1].host_of.push_back(rank);
    all[2].host_of.push_back(rank / 4);
    all[3].host_of.push_back(rank % hosts);
  }
  return all;
}

}  // namespace ringcore::testing
