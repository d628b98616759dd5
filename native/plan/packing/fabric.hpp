// What lies between the nodes of an uneven network, as transfers use it: each goes through things that it shares with
// others, ports, cables and what copies inside a host.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/topology.hpp"

namespace ringcore::plan {

// From one node to another, without going through a third one's host.
struct Arc {
  Rank from = 0;
  Rank to = 0;
  std::vector<std::uint32_t> through;  // indices of `Fabric::rates`
};

struct Fabric {
  int nodes = 0;
  std::vector<double> rates;  // bytes a second
  std::vector<Arc> arcs;      // by `from`, then `to`

  // Between hosts only the first node of each has arcs: the others reach it inside.
  static Fabric of(const Topology& topology);
  // With every arc the other way round, through the same things.
  Fabric reversed() const;
  // Null where there is none.
  const Arc* arc(Rank from, Rank to) const;
};

}  // namespace ringcore::plan
