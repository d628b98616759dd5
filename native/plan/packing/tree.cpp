#include "plan/packing/tree.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace ringcore::plan {
namespace {

// Which nodes are connected.
class Union {
 public:
  explicit Union(int nodes) : above_(static_cast<std::size_t>(nodes)) { std::iota(above_.begin(), above_.end(), 0); }
  int find(int node) {
    while (above_[node] != node) node = above_[node] = above_[above_[node]];
    return node;
  }
  bool join(int a, int b) {
    a = find(a);
    b = find(b);
    above_[a] = b;
    return a != b;
  }

 private:
  std::vector<int> above_;
};

// An arc between what nodes have become: circles of nodes are contracted to one.
struct Candidate {
  int from = 0;
  int to = 0;
  double cost = 0;
  int of = 0;  // index among the candidates of the level above
};

std::vector<int> cheapest_into_each(int nodes, int root, const std::vector<Candidate>& candidates) {
  std::vector<int> best(static_cast<std::size_t>(nodes), -1);
  for (int i = 0; i < static_cast<int>(candidates.size()); ++i) {
    const Candidate& candidate = candidates[i];
    if (candidate.to == root || candidate.from == candidate.to) continue;
    int& found = best[candidate.to];
    if (found < 0 || candidate.cost < candidates[found].cost) found = i;
  }
  return best;
}

// Numbers what becomes of each node: the nodes of a circle share one. Returns how many there are; `nodes`: no circle.
int number_circles(int nodes, int root, const std::vector<Candidate>& candidates, const std::vector<int>& best,
                   std::vector<int>& number) {
  std::vector<int> seen_from(static_cast<std::size_t>(nodes), -1);
  number.assign(static_cast<std::size_t>(nodes), -1);
  int numbers = 0;
  for (int start = 0; start < nodes; ++start) {
    int node = start;
    while (node != root && seen_from[node] < 0) {
      seen_from[node] = start;
      node = candidates[best[node]].from;
    }
    if (node == root || seen_from[node] != start || number[node] >= 0) continue;
    for (; number[node] < 0; node = candidates[best[node]].from) number[node] = numbers;
    ++numbers;
  }
  for (int& each : number) {
    if (each < 0) each = numbers++;
  }
  return numbers;
}

// Chu and Liu, Edmonds. Indices of candidates; empty where not all nodes can be reached.
std::vector<int> solve(int nodes, int root, const std::vector<Candidate>& candidates) {
  std::vector<int> best = cheapest_into_each(nodes, root, candidates);
  for (int node = 0; node < nodes; ++node) {
    if (node != root && best[node] < 0) return {};
  }
  std::vector<int> number;
  const int numbers = number_circles(nodes, root, candidates, best, number);
  if (numbers < nodes) {
    std::vector<Candidate> contracted;
    for (int i = 0; i < static_cast<int>(candidates.size()); ++i) {
      const Candidate& candidate = candidates[i];
      if (candidate.to == root || number[candidate.from] == number[candidate.to]) continue;
      const double instead = candidates[best[candidate.to]].cost;
      contracted.push_back({number[candidate.from], number[candidate.to], candidate.cost - instead, i});
    }
    const std::vector<int> chosen = solve(numbers, number[root], contracted);
    if (chosen.empty()) return {};
    for (const int i : chosen) best[candidates[contracted[i].of].to] = contracted[i].of;
  }
  best.erase(best.begin() + root);
  return best;
}

}  // namespace

std::optional<BranchSet> cheapest_tree(int nodes, std::span<const Branch> branches, std::span<const double> costs) {
  std::vector<int> order(branches.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return costs[a] < costs[b]; });
  Union connected(nodes);
  BranchSet tree;
  for (const int i : order) {
    if (connected.join(branches[i].from, branches[i].to)) tree.push_back(i);
  }
  if (static_cast<int>(tree.size()) + 1 < nodes) return std::nullopt;
  std::sort(tree.begin(), tree.end());
  return tree;
}

std::optional<BranchSet> cheapest_arborescence(int nodes, Rank root, std::span<const Branch> branches,
                                               std::span<const double> costs) {
  std::vector<Candidate> candidates;
  candidates.reserve(branches.size());
  for (std::size_t i = 0; i < branches.size(); ++i) {
    candidates.push_back({branches[i].from, branches[i].to, costs[i], static_cast<int>(i)});
  }
  BranchSet tree = solve(nodes, root, candidates);
  if (static_cast<int>(tree.size()) + 1 < nodes) return std::nullopt;
  std::sort(tree.begin(), tree.end());
  return tree;
}

std::optional<BranchSet> cheapest_ways(int nodes, Rank root, std::span<const Branch> branches,
                                       std::span<const double> costs) {
  using Way = std::pair<double, int>;  // cost, branches
  const auto size = static_cast<std::size_t>(nodes);
  std::vector<Way> ways(size, {std::numeric_limits<double>::infinity(), 0});
  std::vector<int> last(size, -1);  // the branch by which a node is reached
  std::vector<bool> known(size, false);
  ways[root] = {0, 0};
  BranchSet tree;
  for (int count = 0; count < nodes; ++count) {
    Rank nearest = -1;
    for (Rank node = 0; node < nodes; ++node) {
      if (!known[node] && (nearest < 0 || ways[node] < ways[nearest])) nearest = node;
    }
    if (nearest != root && last[nearest] < 0) return std::nullopt;
    known[nearest] = true;
    if (nearest != root) tree.push_back(last[nearest]);
    for (int i = 0; i < static_cast<int>(branches.size()); ++i) {
      if (branches[i].from != nearest) continue;
      const Way way{ways[nearest].first + costs[i], ways[nearest].second + 1};
      if (known[branches[i].to] || way >= ways[branches[i].to]) continue;
      ways[branches[i].to] = way;
      last[branches[i].to] = i;
    }
  }
  std::sort(tree.begin(), tree.end());
  return tree;
}

std::vector<Rank> parents(int nodes, Rank root, std::span<const Branch> branches, const BranchSet& tree) {
  std::vector<Rank> above(static_cast<std::size_t>(nodes), -1);
  std::vector<Rank> reached = {root};
  for (std::size_t i = 0; i < reached.size(); ++i) {
    const Rank node = reached[i];
    for (const int index : tree) {
      const Branch& branch = branches[index];
      if (branch.from != node && branch.to != node) continue;
      const Rank other = branch.from == node ? branch.to : branch.from;
      if (other == root || above[other] >= 0 || above[node] == other) continue;
      above[other] = node;
      reached.push_back(other);
    }
  }
  return above;
}

}  // namespace ringcore::plan
