#include "plan/told_links.hpp"

#include <algorithm>
#include <cmath>

#include "plan/paces.hpp"
#include "plan/ways.hpp"

namespace ringcore::plan {
namespace {

constexpr int kMostRanks = 64;
constexpr double kLess = 2;
// More links are counted and not named.
constexpr std::size_t kMostNamed = 4;

// The table has the rates of all pairs, and behind them the means of those whose rates are sure.
std::size_t pair(Rank from, Rank to, int ranks) {
  return static_cast<std::size_t>(from) * static_cast<std::size_t>(ranks) + static_cast<std::size_t>(to);
}

// Hosts at one switch have cables to it and from it.
Topology with_cables(const Topology& topology) {
  Topology woven = topology;
  if (!woven.links.even()) return woven;
  const int hosts = topology.hosts();
  for (int host = 0; host < hosts; ++host) {
    const double seconds_per_byte = topology.links.between_hosts.seconds_per_byte;
    woven.links.cables.push_back({.from = host, .to = hosts, .seconds_per_byte = seconds_per_byte});
    woven.links.cables.push_back({.from = hosts, .to = host, .seconds_per_byte = seconds_per_byte});
  }
  return woven;
}

}  // namespace

std::size_t told_links_size(int ranks) { return ranks > kMostRanks ? 0 : 2 * pair(ranks, 0, ranks); }

void write_links(std::span<double> table, Rank self, std::span<const transport::Pace> links,
                 std::span<const transport::Pace> before) {
  const int ranks = static_cast<int>(links.size());
  const std::span<double> means = table.subspan(table.size() / 2);
  for (Rank to = 0; to < ranks; ++to) {
    const transport::Pace& now = links[static_cast<std::size_t>(to)];
    const transport::Pace then = before.empty() ? transport::Pace{} : before[static_cast<std::size_t>(to)];
    if (now.bytes_per_s == then.bytes_per_s && now.mean_bytes_per_s == then.mean_bytes_per_s) continue;
    table[pair(self, to, ranks)] = now.bytes_per_s;
    if (now.sure) means[pair(self, to, ranks)] = now.mean_bytes_per_s;
  }
}

std::vector<ToldLink> judge_links(const Topology& topology, std::span<const double> table) {
  const int ranks = topology.ranks();
  const Topology woven = with_cables(topology);
  Ways ways(woven);
  const std::vector<Cable>& cables = woven.links.cables;
  std::vector<double> loads(cables.size(), 0);
  std::vector<ToldLink> found;
  std::vector<double> share_of;  // by link found: of what was told, the mean
  for (Rank from = 0; from < ranks; ++from) {
    for (Rank to = 0; to < ranks; ++to) {
      const double rate = table[pair(from, to, ranks)];
      const double mean = table[table.size() / 2 + pair(from, to, ranks)];
      if (rate == 0) continue;
      double slowest = 0;
      for (const std::size_t cable : ways.between(topology.host_of[from], topology.host_of[to])) {
        loads[cable] += rate;
        slowest = std::max(slowest, cables[cable].seconds_per_byte);
      }
      if (mean == 0 || slowest == 0) continue;
      found.push_back({.from = from, .to = to, .bytes_per_s = rate, .told = 1 / slowest});
      share_of.push_back(mean * slowest);
    }
  }
  const double usual = median(share_of);
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto& way = ways.between(topology.host_of[found[i].from], topology.host_of[found[i].to]);
    const bool shared = std::ranges::any_of(
        way, [&](std::size_t cable) { return kLess * loads[cable] * cables[cable].seconds_per_byte >= 1; });
    found[i].slow = !shared && kLess * share_of[i] < usual;
  }
  return found;
}

std::string describe(std::span<const ToldLink> slow) {
  const auto megabytes = [](double bytes_per_s) { return std::to_string(std::lround(bytes_per_s / 1e6)); };
  std::string listed;
  for (const ToldLink& link : slow.first(std::min(slow.size(), kMostNamed))) {
    listed += std::string(listed.empty() ? "" : ", ") + "from rank " + std::to_string(link.from) + " to rank " +
              std::to_string(link.to) + " " + megabytes(link.bytes_per_s) + " MB/s instead of " + megabytes(link.told);
  }
  if (slow.size() > kMostNamed) listed += ", and " + std::to_string(slow.size() - kMostNamed) + " more";
  return "the network carries less than half of what the topology file says: " + listed +
         ". Remedy: look at the cables, the cards and what else uses them; or measure anew ('ringcore topology "
         "--save') "
         "and give that file to the job: plans go by it.";
}

}  // namespace ringcore::plan
