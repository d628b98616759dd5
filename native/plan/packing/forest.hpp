// The trees of a plan: few that carry nearly as much as the network can, none through what is so slow that a chunk takes
// long, each with its share of the chunks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/packing/fabric.hpp"
#include "plan/packing/rows.hpp"

namespace ringcore::plan {

// By node: the node above it; -1 for the root.
using Parents = std::vector<Rank>;

struct Forest {
  std::vector<Parents> trees;  // of the first root, then of the next one
  std::vector<std::uint32_t> shares;  // by tree: chunks
  double rate = 0;  // bytes of a root, or of the sum, a second, without what the first chunk's way takes
  double bound = 0;  // no trees have a higher one
  double seconds = 0;  // of chunks of one byte, with that way
};

// Trees that go down from each of `roots`, which has so many chunks; without roots up and down, each from where it takes
// least. Several forests, those first that take least as far as is known before their transfers have an order; none where
// not all nodes can be reached.
std::vector<Forest> grow_forests(const Fabric& fabric, std::span<const Rank> roots, std::uint32_t chunks,
                                 Load load = Load::kSame);

// The ways of each node's block in the trees of a forest of `Load::kBlocks`: a forest of trees that are one path each.
Forest ways_of_blocks(const Fabric& fabric, const Forest& forest);

}  // namespace ringcore::plan
