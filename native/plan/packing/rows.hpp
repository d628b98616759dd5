// What trees use of a network: a row for each thing that transfers share.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "plan/packing/fabric.hpp"
#include "plan/packing/linear_program.hpp"
#include "plan/packing/tree.hpp"

namespace ringcore::plan {

// What goes along a tree: the same to all nodes, once along each branch, or to each node a block of its own, along all
// branches above that node.
enum class Load : std::uint8_t { kSame, kBlocks };

// A tree from each root, all of the same rate; without roots one tree.
using TreeGroup = std::vector<BranchSet>;

// Things that all branches use alike are one row, which has the room of the slowest of them. Room and rates are fractions
// of `unit`.
class Rows {
 public:
  // Branches are arcs of trees that go down from `roots`; without any, edges, used both ways.
  Rows(const Fabric& fabric, std::span<const Rank> roots, Load load = Load::kSame);

  const std::vector<Branch>& branches() const { return branches_; }
  const std::vector<double>& room() const { return room_; }
  double unit() const { return unit_; }  // bytes a second

  // With less room where nothing depends on it.
  Rows loosened(const std::vector<double>& prices, double fraction) const;

  // The trees that cost least where a row's use has these prices, and what they use together.
  std::optional<TreeGroup> cheapest(const std::vector<double>& prices) const;
  LinearProgram::Column column(const TreeGroup& trees) const;

 private:
  using UsedBy = std::vector<std::pair<int, double>>;  // branches, how often
  std::vector<int> times_used(const BranchSet& tree) const;
  void add(const std::map<std::uint32_t, UsedBy>& used_by, const std::vector<double>& rates);

  int nodes_;
  std::vector<Rank> roots_;
  Load load_;
  std::vector<Branch> branches_;
  std::vector<LinearProgram::Column> uses_;  // by branch
  std::vector<double> room_;
  double unit_ = 0;
};

double cost(const LinearProgram::Column& column, const std::vector<double>& prices);

}  // namespace ringcore::plan
