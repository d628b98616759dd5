// Spanning trees packed into a network whose links differ (Wang et al., Blink, 2020): each tree has a share of the data, and
// all of them together carry as much at a time as the network can.
//
// An allreduce goes up a tree and down again, both ways on each of its edges: trees without a direction. A broadcast goes
// down: arborescences. An allgather is a broadcast from everybody, of blocks that are as large as each other: groups of
// arborescences, one from each rank (Zhao et al., ForestColl, 2024). The packing is a linear program with a column for each group; those that are worth their price are
// found one by one, as cheapest trees. What the prices say is also a bound that no packing exceeds, which proves how good
// this one is: it stops when it is near enough.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/packing/rows.hpp"

namespace ringcore::plan {

struct PackedGroup {
  TreeGroup trees;
  LinearProgram::Column uses;
  double rate = 0;  // of each of its trees, in units of the rows
};

struct Packing {
  std::vector<PackedGroup> groups;
  double bound = 0;  // no packing has a higher rate
  std::vector<double> prices;  // which prove the bound: what costs nothing is not what the rate depends on
  double rate() const;
};

// Nothing where no tree of a root reaches all nodes.
std::optional<Packing> pack(const Rows& rows);
// As few of its groups, with other rates, as keep at least such a fraction of the bound.
Packing with_few_trees(const Rows& rows, Packing packing, double least);

// How many of so many chunks of a root each group has, so that all of them take as little time as possible.
std::vector<std::uint32_t> shares(const Rows& rows, const Packing& packing, std::uint32_t chunks);
// What the packing's rate comes to with these shares.
double rate_of(const Rows& rows, const Packing& packing, const std::vector<std::uint32_t>& shares);

}  // namespace ringcore::plan
