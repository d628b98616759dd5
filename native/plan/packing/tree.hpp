// Trees over all nodes, and the cheapest one by the costs of what they are made of.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "base/types.hpp"

namespace ringcore::plan {

// What trees are made of: an edge, or an arc where the tree has a direction.
struct Branch {
  Rank from = 0;
  Rank to = 0;
};

// Indices of branches, ascending; nothing where not all nodes can be reached.
using BranchSet = std::vector<int>;
std::optional<BranchSet> cheapest_tree(int nodes, std::span<const Branch> branches, std::span<const double> costs);
std::optional<BranchSet> cheapest_arborescence(int nodes, Rank root, std::span<const Branch> branches,
                                               std::span<const double> costs);

// The cheapest way to each node, and of several the one of fewer branches (Dijkstra, 1959).
std::optional<BranchSet> cheapest_ways(int nodes, Rank root, std::span<const Branch> branches,
                                       std::span<const double> costs);

// By node: the node above it, -1 for the root.
std::vector<Rank> parents(int nodes, Rank root, std::span<const Branch> branches, const BranchSet& tree);

}  // namespace ringcore::plan
