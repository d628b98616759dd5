// Inside a host first, then between the hosts of a rack, then between racks: rings in rings (nested_rings.hpp). Between
// hosts as many bytes go as in one ring of them, in as many rounds as there are hosts in a rack, and racks, instead of as
// there are hosts. Racks are what hangs on one switch, where the network was told; on a network that is even, where that
// changes nothing but the number of rounds, as many hosts as there are racks.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "plan/nested_rings.hpp"

namespace ringcore::plan {
namespace {

using Racks = std::map<int, std::vector<std::vector<Rank>>>;  // the ranks of each host of a rack

// Of fewer hosts a single ring has as few rounds.
constexpr int kFewestHosts = 4;

// To where the only way out of a host leads: past its port, to the first place from where there are several.
class WaysOut {
 public:
  explicit WaysOut(const std::vector<Cable>& cables) {
    for (const Cable& cable : cables) to_[cable.from].insert(cable.to);
  }
  int end(int host) const {
    int from = host;
    for (int at = host;;) {
      const auto found = to_.find(at);
      if (found == to_.end()) return at;
      std::set<int> onwards = found->second;
      onwards.erase(from);
      if (onwards.size() != 1 || *onwards.begin() == host) return at;
      from = std::exchange(at, *onwards.begin());
    }
  }

 private:
  std::map<int, std::set<int>> to_;  // by place
};

Racks told_racks(const Topology& topology) {
  const WaysOut ways(topology.links.cables);
  Racks racks;
  for (auto& ranks : topology.ranks_by_host()) {
    const int host = topology.host_of[ranks.front()];
    racks[ways.end(host)].push_back(std::move(ranks));
  }
  return racks;
}

// About as many as each has hosts.
Racks even_racks(const Topology& topology) {
  std::vector<std::vector<Rank>> hosts = topology.ranks_by_host();
  const int count = static_cast<int>(hosts.size());
  int size = 1;
  for (int divisor = 1; divisor * divisor <= count; ++divisor) {
    if (count % divisor == 0) size = divisor;
  }
  Racks racks;
  for (int host = 0; count >= kFewestHosts && host < count; ++host) {
    racks[host / size].push_back(std::move(hosts[static_cast<std::size_t>(host)]));
  }
  return racks;
}

// Nothing where there are no racks, or these or their hosts are not equally large.
std::optional<Nesting> nesting_of(const Topology& topology) {
  const Racks racks = topology.links.cables.empty() ? even_racks(topology) : told_racks(topology);
  if (racks.size() < 2) return std::nullopt;
  const auto& first = racks.begin()->second;
  std::vector<Rank> ranks;
  for (const auto& [place, hosts] : racks) {
    if (hosts.size() != first.size()) return std::nullopt;
    for (const auto& host : hosts) {
      if (host.size() != first.front().size()) return std::nullopt;
      ranks.insert(ranks.end(), host.begin(), host.end());
    }
  }
  if (first.size() < 2) return std::nullopt;
  std::vector<int> sizes = {static_cast<int>(first.size()), static_cast<int>(racks.size())};
  if (first.front().size() > 1) sizes.insert(sizes.begin(), static_cast<int>(first.front().size()));
  return Nesting(std::move(ranks), std::move(sizes));
}

class InRacks final : public Generator {
 public:
  std::string_view name() const override { return "racks"; }

  std::optional<Plan> generate(const PlanRequest& request, Rank self) const override {
    switch (request.collective) {
      case Collective::kAllreduce:
      case Collective::kReduceScatter:
      case Collective::kAllgather: break;
      case Collective::kBroadcast:
      case Collective::kAlltoall:
      case Collective::kBarrier: return std::nullopt;
    }
    const std::optional<Nesting> nesting = nesting_of(*request.topology);
    if (!nesting) return std::nullopt;
    return nested_rings(name(), request, *nesting, self);
  }

  Symmetry symmetry(const PlanRequest& request) const override {
    const std::optional<Nesting> nesting = nesting_of(*request.topology);
    return nesting ? nesting->symmetry() : Symmetry::none(request.ranks());
  }
};

}  // namespace

const Generator& racks() {
  static const InRacks generator;
  return generator;
}

}  // namespace ringcore::plan
