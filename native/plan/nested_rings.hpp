// Rings in rings: what plans for groups of groups share.
//
// Ranks stand in groups, these in larger ones, all of a level equally large. Every rank owns its block of the buffer. A ring
// reduce-scatter in each of the smallest groups collects the blocks of all ranks that stand at one's own place in their
// groups. These ranks make rings of the next level, which do the same; the outermost ring sums the blocks up, and on the
// way back an all-gather in each ring spreads what the one around it has brought. Between groups each byte goes once each
// way, as in a single ring, and there are as many rounds as the levels' rings have together. A reduce-scatter ends, and an
// all-gather begins, in the middle.
//
// A block goes in pieces, each through all rings without waiting for the others: a rank has a channel for each level.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "plan/generator.hpp"

namespace ringcore::plan {

class Nesting {
 public:
  static constexpr int kMostLevels = 3;
  // Where a rank stands in its group of each level, the innermost first.
  using Place = std::array<int, kMostLevels>;

  // `ranks`: group by group. `sizes`: of how many members the groups of each level are, the innermost first; together as
  // many as there are ranks.
  Nesting(std::vector<Rank> ranks, std::vector<int> sizes) : ranks_(std::move(ranks)), sizes_(std::move(sizes)) {}

  int levels() const { return static_cast<int>(sizes_.size()); }
  int size(int level) const { return sizes_[static_cast<std::size_t>(level)]; }
  Place place_of(Rank rank) const;
  Rank at(const Place& place) const;
  // Every level's groups are turned.
  Symmetry symmetry() const;

 private:
  std::vector<Rank> ranks_;
  std::vector<int> sizes_;
};

// An allreduce, a reduce-scatter or an all-gather.
Plan nested_rings(std::string_view generator, const PlanRequest& request, const Nesting& nesting, Rank self);

}  // namespace ringcore::plan
