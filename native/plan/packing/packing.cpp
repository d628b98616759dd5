#include "plan/packing/packing.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace ringcore::plan {
namespace {

// It is near enough to the bound.
constexpr double kGap = 1e-3;
// So many steps a row, and what has been found has to do.
constexpr std::size_t kSteps = 100;
constexpr double kWorthIt = 1e-9;
// How far the program's prices are followed.
constexpr double kTrust = 0.5;

using Groups = std::vector<PackedGroup>;

std::vector<double> prices_of(const LinearProgram& program) {
  std::vector<double> prices(program.prices().begin(), program.prices().end());
  for (double& price : prices) price = std::max(price, 0.0);
  return prices;
}

// How long the row takes that takes longest, when each group carries so much.
template <class Amount>
double time_of(const Rows& rows, const Groups& groups, Amount amount_of) {
  std::vector<double> load(rows.room().size(), 0);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    for (const LinearProgram::Use& use : groups[i].uses) load[use.row] += use.amount * amount_of(i);
  }
  double longest = 0;
  for (std::size_t row = 0; row < load.size(); ++row) longest = std::max(longest, load[row] / rows.room()[row]);
  return longest;
}

// Those of `pool` that the program has something of, as much of all as the rows have room for.
Groups chosen(const Rows& rows, const LinearProgram& program, const Groups& pool) {
  Groups groups;
  for (const auto& [name, amount] : program.amounts()) {
    groups.push_back(pool[name]);
    groups.back().rate = amount;
  }
  const double too_much = time_of(rows, groups, [&](std::size_t i) { return groups[i].rate; });
  for (PackedGroup& group : groups) group.rate /= too_much;
  return groups;
}

double rate_of(const Groups& groups) {
  return std::accumulate(groups.begin(), groups.end(), 0.0,
                         [](double sum, const auto& group) { return sum + group.rate; });
}

// The best that these groups can do.
Groups best_of(const Rows& rows, const Groups& pool) {
  LinearProgram program(rows.room());
  for (std::size_t step = 0; step < kSteps * rows.room().size(); ++step) {
    if (program.leave_room()) continue;
    const std::vector<double> prices = prices_of(program);
    int cheapest = -1;
    double lowest = 1 - kWorthIt;
    for (int i = 0; i < static_cast<int>(pool.size()); ++i) {
      const double price = cost(pool[i].uses, prices);
      if (price >= lowest) continue;
      lowest = price;
      cheapest = i;
    }
    if (cheapest < 0) break;
    program.enter(cheapest, pool[cheapest].uses);
  }
  return chosen(rows, program, pool);
}

}  // namespace

double Packing::rate() const { return rate_of(groups); }

// Columns are looked for by prices between those of the program, which leap, and the best so far (Wentges, 1997). At first
// what is slow is dear.
std::optional<Packing> pack(const Rows& rows) {
  LinearProgram program(rows.room());
  Groups pool;
  Packing packing{.bound = std::numeric_limits<double>::max()};
  std::vector<double> best;
  for (const double room : rows.room()) best.push_back(1 / room);
  const auto look = [&](const std::vector<double>& prices) {
    PackedGroup found;
    auto group = rows.cheapest(prices);
    if (!group) return false;
    found.uses = rows.column(*group);
    found.trees = *std::move(group);
    const double price = cost(found.uses, prices);
    // By these prices a unit of any group takes this much of what all room is worth.
    const double worth = std::inner_product(prices.begin(), prices.end(), rows.room().begin(), 0.0);
    if (price > 0 && worth < packing.bound * price) {
      packing.bound = worth / price;
      best = prices;
      for (double& each : best) each /= price;
    }
    pool.push_back(std::move(found));
    return true;
  };
  if (!look(best)) return std::nullopt;
  for (std::size_t step = 0; step < kSteps * rows.room().size(); ++step) {
    if (program.total() >= (1 - kGap) * packing.bound) break;
    if (program.leave_room()) continue;
    const std::vector<double> prices = prices_of(program);
    std::vector<double> between = best;
    for (std::size_t row = 0; row < between.size(); ++row) between[row] += kTrust * (prices[row] - best[row]);
    look(between);
    if (cost(pool.back().uses, prices) >= 1 - kWorthIt) {
      look(prices);
      if (cost(pool.back().uses, prices) >= 1 - kWorthIt) break;
    }
    program.enter(static_cast<int>(pool.size()) - 1, pool.back().uses);
  }
  packing.groups = chosen(rows, program, pool);
  packing.prices = std::move(best);
  return packing;
}

// The groups that carry least are left out, half of them at first, and fewer where too much were lost.
Packing with_few_trees(const Rows& rows, Packing packing, double least) {
  const auto larger = [](const PackedGroup& a, const PackedGroup& b) { return a.rate > b.rate; };
  std::size_t out = packing.groups.size() / 2;
  while (out > 0) {
    std::stable_sort(packing.groups.begin(), packing.groups.end(), larger);
    Groups fewer(packing.groups.begin(), packing.groups.end() - static_cast<std::ptrdiff_t>(out));
    fewer = best_of(rows, fewer);
    if (rate_of(fewer) < least * packing.bound) {
      out /= 2;
      continue;
    }
    packing.groups = std::move(fewer);
    out = std::min(out, packing.groups.size() / 2);
  }
  return packing;
}

double rate_of(const Rows& rows, const Packing& packing, const std::vector<std::uint32_t>& shares) {
  const double chunks = std::accumulate(shares.begin(), shares.end(), 0.0);
  return chunks / time_of(rows, packing.groups, [&](std::size_t i) { return shares[i]; });
}

// Each group has its share rounded down; of the chunks that are left each goes where it makes what takes longest longer by
// the least.
std::vector<std::uint32_t> shares(const Rows& rows, const Packing& packing, std::uint32_t chunks) {
  const Groups& groups = packing.groups;
  const double rate = packing.rate();
  std::vector<std::uint32_t> shares;
  std::vector<double> load(rows.room().size(), 0);
  const auto give = [&](std::size_t group, double chunks) {
    for (const LinearProgram::Use& use : groups[group].uses)
      load[use.row] += chunks * use.amount / rows.room()[use.row];
  };
  for (std::size_t i = 0; i < groups.size(); ++i) {
    shares.push_back(static_cast<std::uint32_t>(chunks * (groups[i].rate / rate) * (1 - kWorthIt)));
    give(i, shares.back());
  }
  const auto longest_with = [&](const PackedGroup& group) {
    double longest = 0;
    for (const LinearProgram::Use& use : group.uses) {
      longest = std::max(longest, load[use.row] + use.amount / rows.room()[use.row]);
    }
    return longest;
  };
  for (std::uint32_t left = chunks - std::accumulate(shares.begin(), shares.end(), 0U); left > 0; --left) {
    std::size_t best = 0;
    double shortest = std::numeric_limits<double>::max();
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const double longest = longest_with(groups[i]);
      if (longest >= shortest) continue;
      shortest = longest;
      best = i;
    }
    ++shares[best];
    give(best, 1);
  }
  return shares;
}

}  // namespace ringcore::plan
