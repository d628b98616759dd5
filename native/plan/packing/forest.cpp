#include "plan/packing/forest.hpp"

#include <algorithm>
#include <utility>

#include "plan/packing/packing.hpp"

namespace ringcore::plan {
namespace {

// What trees are tried without: links of less than such a fraction of the bound. A chunk takes long through them.
constexpr double kTooSlow[] = {0, 0.005, 0.01, 0.02, 0.04, 0.08};
// What is full has queues: things that the rate does not depend on are used less, if trees can be found that do.
constexpr double kRoom[] = {0.5, 0.7, 0.85};
constexpr double kNearly = 0.99;
// So much longer it takes where everything is full.
constexpr double kQueues = 0.1;
// Such a fraction of the bound is enough, if it takes fewer trees.
constexpr double kEnough[] = {0.97, 0.985};

Fabric without_slow(const Fabric& fabric, double slow) {
  Fabric quick{.nodes = fabric.nodes, .rates = fabric.rates};
  const auto is_quick = [&](std::uint32_t thing) { return fabric.rates[thing] >= slow; };
  for (const Arc& arc : fabric.arcs) {
    if (std::all_of(arc.through.begin(), arc.through.end(), is_quick)) quick.arcs.push_back(arc);
  }
  return quick;
}

double seconds_of(const Fabric& fabric, const Arc& arc) {
  double longest = 0;
  for (const std::uint32_t thing : arc.through) longest = std::max(longest, 1 / fabric.rates[thing]);
  return longest;
}

// What a byte takes from the root to the node that is reached last.
double seconds_down(const Fabric& fabric, const Parents& tree) {
  double longest = 0;
  for (Rank node = 0; node < fabric.nodes; ++node) {
    double seconds = 0;
    for (Rank at = node; tree[at] >= 0; at = tree[at]) seconds += seconds_of(fabric, *fabric.arc(tree[at], at));
    longest = std::max(longest, seconds);
  }
  return longest;
}

// From where it takes least to get everywhere.
Parents planted(const Fabric& fabric, const Rows& rows, const BranchSet& branches) {
  std::pair<double, Parents> best;
  for (Rank node = 0; node < fabric.nodes; ++node) {
    Parents tree = parents(fabric.nodes, node, rows.branches(), branches);
    const double seconds = seconds_down(fabric, tree);
    if (node == 0 || seconds < best.first) best = {seconds, std::move(tree)};
  }
  return std::move(best.second);
}

Forest forest_of(const Fabric& fabric, const Rows& rows, const Packing& packing, std::span<const Rank> roots,
                 std::uint32_t chunks) {
  Forest forest;
  const std::vector<std::uint32_t> all = shares(rows, packing, chunks);
  double way = 0;
  const std::size_t trees_of_group = std::max<std::size_t>(roots.size(), 1);
  for (std::size_t tree = 0; tree < trees_of_group; ++tree) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i] == 0) continue;
      const BranchSet& branches = packing.groups[i].trees[tree];
      forest.trees.push_back(roots.empty() ? planted(fabric, rows, branches)
                                           : parents(fabric.nodes, roots[tree], rows.branches(), branches));
      forest.shares.push_back(all[i]);
      way = std::max(way, (roots.empty() ? 2 : 1) * seconds_down(fabric, forest.trees.back()));
    }
  }
  forest.rate = rate_of(rows, packing, all) * rows.unit();
  forest.seconds = chunks / forest.rate + way;
  return forest;
}

}  // namespace

std::vector<Forest> grow_forests(const Fabric& fabric, std::span<const Rank> roots, std::uint32_t chunks, Load load) {
  std::vector<Forest> forests;
  double bound = 0;
  for (const double slow : kTooSlow) {
    const Fabric quick = without_slow(fabric, slow * bound);
    if (quick.arcs.empty()) break;
    const Rows rows(quick, roots, load);
    const auto packing = pack(rows);
    if (!packing) break;
    if (forests.empty()) bound = packing->bound * rows.unit();
    const auto consider = [&](const Rows& within, const Packing& packed, double room) {
      for (const double enough : kEnough) {
        Packing few = with_few_trees(within, packed, enough);
        Forest forest = forest_of(quick, rows, few, roots, chunks);
        forest.seconds *= 1 + kQueues * room;
        forests.push_back(std::move(forest));
      }
    };
    consider(rows, *packing, 1);
    for (const double room : kRoom) {
      const Rows loose = rows.loosened(packing->prices, room);
      auto apart = pack(loose);
      if (!apart || apart->rate() < kNearly * packing->rate()) continue;
      apart->bound = packing->bound;
      consider(loose, *apart, room);
    }
  }
  for (Forest& forest : forests) forest.bound = bound;
  std::ranges::stable_sort(forests, {}, &Forest::seconds);
  const auto same = [](const Forest& a, const Forest& b) { return a.trees == b.trees && a.shares == b.shares; };
  forests.erase(std::unique(forests.begin(), forests.end(), same), forests.end());
  return forests;
}

Forest ways_of_blocks(const Fabric& fabric, const Forest& forest) {
  Forest ways{.rate = forest.rate, .bound = forest.bound, .seconds = forest.seconds};
  for (Rank node = 0; node < fabric.nodes; ++node) {
    for (std::size_t i = 0; i < forest.trees.size(); ++i) {
      const Parents& tree = forest.trees[i];
      Parents& way = ways.trees.emplace_back(tree.size(), -1);
      for (Rank at = node; tree[at] >= 0; at = tree[at]) way[at] = tree[at];
      ways.shares.push_back(forest.shares[i]);
    }
  }
  return ways;
}

}  // namespace ringcore::plan
