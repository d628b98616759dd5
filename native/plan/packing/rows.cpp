#include "plan/packing/rows.hpp"

#include <algorithm>

namespace ringcore::plan {

Rows::Rows(const Fabric& fabric, std::span<const Rank> roots, Load load)
    : nodes_(fabric.nodes), roots_(roots.begin(), roots.end()), load_(load) {
  std::map<std::uint32_t, UsedBy> used_by;
  const auto use = [&](const Arc& arc) {
    const int branch = static_cast<int>(branches_.size()) - 1;
    for (const std::uint32_t thing : arc.through) {
      UsedBy& users = used_by[thing];
      if (users.empty() || users.back().first != branch) users.emplace_back(branch, 0);
      ++users.back().second;
    }
  };
  for (const Arc& arc : fabric.arcs) {
    const Arc* back = roots.empty() ? fabric.arc(arc.to, arc.from) : nullptr;
    const bool is_never_used = roots.size() == 1 && arc.to == roots.front();
    if (roots.empty() ? (arc.from > arc.to || back == nullptr) : is_never_used) continue;
    branches_.push_back({arc.from, arc.to});
    use(arc);
    if (back != nullptr) use(*back);
  }
  uses_.resize(branches_.size());
  add(used_by, fabric.rates);
}

void Rows::add(const std::map<std::uint32_t, UsedBy>& used_by, const std::vector<double>& rates) {
  for (const auto& [thing, users] : used_by) unit_ = std::max(unit_, rates[thing]);
  std::map<UsedBy, std::size_t> rows;
  for (const auto& [thing, users] : used_by) {
    const double room = rates[thing] / unit_;
    const auto [found, fresh] = rows.try_emplace(users, room_.size());
    if (!fresh) {
      room_[found->second] = std::min(room_[found->second], room);
      continue;
    }
    room_.push_back(room);
    for (const auto& [branch, amount] : users) uses_[branch].push_back({found->second, amount});
  }
}

Rows Rows::loosened(const std::vector<double>& prices, double fraction) const {
  constexpr double kNothing = 0.01;  // of what all room is worth
  double worth = 0;
  for (std::size_t row = 0; row < room_.size(); ++row) worth += prices[row] * room_[row];
  Rows loose = *this;
  for (std::size_t row = 0; row < room_.size(); ++row) {
    if (prices[row] * room_[row] < kNothing * worth) loose.room_[row] *= fraction;
  }
  return loose;
}

std::optional<TreeGroup> Rows::cheapest(const std::vector<double>& prices) const {
  std::vector<double> costs;
  costs.reserve(branches_.size());
  for (const LinearProgram::Column& uses : uses_) costs.push_back(cost(uses, prices));
  TreeGroup trees;
  const std::size_t many = std::max<std::size_t>(roots_.size(), 1);
  for (std::size_t i = 0; i < many; ++i) {
    auto tree = roots_.empty()           ? cheapest_tree(nodes_, branches_, costs)
                : load_ == Load::kBlocks ? cheapest_ways(nodes_, roots_[i], branches_, costs)
                                         : cheapest_arborescence(nodes_, roots_[i], branches_, costs);
    if (!tree) return std::nullopt;
    trees.push_back(*std::move(tree));
  }
  return trees;
}

// How much goes along each branch of a tree: as many blocks as there are nodes below it.
std::vector<int> Rows::times_used(const BranchSet& tree) const {
  std::vector<int> times(tree.size(), load_ == Load::kSame ? 1 : 0);
  if (load_ == Load::kSame) return times;
  std::vector<int> above(static_cast<std::size_t>(nodes_), -1);  // by node: index of the branch to it
  for (std::size_t i = 0; i < tree.size(); ++i) above[branches_[tree[i]].to] = static_cast<int>(i);
  for (Rank node = 0; node < nodes_; ++node) {
    for (int i = above[node]; i >= 0; i = above[branches_[tree[i]].from]) ++times[i];
  }
  return times;
}

LinearProgram::Column Rows::column(const TreeGroup& trees) const {
  std::vector<double> amounts(room_.size(), 0);
  for (const BranchSet& tree : trees) {
    const std::vector<int> times = times_used(tree);
    for (std::size_t i = 0; i < tree.size(); ++i) {
      for (const LinearProgram::Use& use : uses_[tree[i]]) amounts[use.row] += use.amount * times[i];
    }
  }
  LinearProgram::Column column;
  for (std::size_t row = 0; row < amounts.size(); ++row) {
    if (amounts[row] > 0) column.push_back({row, amounts[row]});
  }
  return column;
}

double cost(const LinearProgram::Column& column, const std::vector<double>& prices) {
  double cost = 0;
  for (const LinearProgram::Use& use : column) cost += use.amount * prices[use.row];
  return cost;
}

}  // namespace ringcore::plan
