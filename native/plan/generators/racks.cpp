// Inside a host first, then between the hosts of a rack, then between racks: rings in rings (nested_rings.hpp). Between
// hosts as many bytes go as in one ring of them, in as many rounds as there are hosts in a rack, and racks, instead of as
// there are hosts. Racks are what hangs on one switch, where the network was told; on a network that is even, where that
// changes nothing but the number of rounds, as many hosts as there are racks.
//
// A broadcast goes from rack to rack along a chain, from host to host of a rack along a binary tree, and through a host
// from rank to rank: each byte goes once into each rack and once out of it, and twice out of a host at most. Racks and
// hosts may have any size. On a network that is even a tree of hosts is as good, and has fewer hops.
#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "plan/builder.hpp"
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
    std::set<int> passed;  // Cables that lead one way only may end in a circle.
    for (int at = host; passed.insert(at).second;) {
      const auto found = to_.find(at);
      if (found == to_.end()) return at;
      std::set<int> onwards = found->second;
      onwards.erase(from);
      if (onwards.size() != 1 || *onwards.begin() == host) return at;
      from = std::exchange(at, *onwards.begin());
    }
    return from;
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

// What a rank has to do with a broadcast.
struct Role {
  Rank parent = -1;
  std::vector<Rank> children;
};

// So that what was at `first` comes to the front, and what was before it to the end.
template <class T>
void turn_to_front(std::vector<T>& items, std::ptrdiff_t first) {
  std::rotate(items.begin(), items.begin() + first, items.end());
}

// The racks, their hosts and the hosts' ranks, each from the one on that the root is on.
std::vector<std::vector<std::vector<Rank>>> from_root(const Racks& found, Rank root) {
  std::vector<std::vector<std::vector<Rank>>> racks;
  for (const auto& [place, hosts] : found) racks.push_back(hosts);
  for (std::size_t rack = 0; rack < racks.size(); ++rack) {
    for (std::size_t host = 0; host < racks[rack].size(); ++host) {
      std::vector<Rank>& ranks = racks[rack][host];
      const auto at = std::find(ranks.begin(), ranks.end(), root);
      if (at == ranks.end()) continue;
      turn_to_front(ranks, at - ranks.begin());
      turn_to_front(racks[rack], static_cast<std::ptrdiff_t>(host));
      turn_to_front(racks, static_cast<std::ptrdiff_t>(rack));
      return racks;
    }
  }
  return racks;
}

// The first host of a rack passes on to the next rack, and to the first of its rack's other hosts, which are a binary tree.
Role role_in(const std::vector<std::vector<std::vector<Rank>>>& racks, Rank self) {
  for (std::size_t rack = 0; rack < racks.size(); ++rack) {
    const auto& hosts = racks[rack];
    for (std::size_t host = 0; host < hosts.size(); ++host) {
      const auto at = std::find(hosts[host].begin(), hosts[host].end(), self);
      if (at == hosts[host].end()) continue;
      Role role;
      if (at != hosts[host].begin()) {
        role.parent = *std::prev(at);
      } else if (host > 0) {
        role.parent = hosts[host / 2].front();
      } else if (rack > 0) {
        role.parent = racks[rack - 1].front().front();
      }
      const bool first = at == hosts[host].begin();
      if (first && host == 0 && rack + 1 < racks.size()) role.children.push_back(racks[rack + 1].front().front());
      for (std::size_t child = std::max<std::size_t>(2 * host, 1); first && child <= 2 * host + 1; ++child) {
        if (child < hosts.size()) role.children.push_back(hosts[child].front());
      }
      if (std::next(at) != hosts[host].end()) role.children.push_back(*std::next(at));
      return role;
    }
  }
  __builtin_unreachable();
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
      case Collective::kBroadcast: return broadcast(request, self);
      case Collective::kAlltoall:
      case Collective::kReduce:
      case Collective::kGather:
      case Collective::kScatter:
      case Collective::kBarrier: return std::nullopt;
    }
    const std::optional<Nesting> nesting = nesting_of(*request.topology);
    if (!nesting) return std::nullopt;
    return nested_rings(name(), request, *nesting, self);
  }

  Symmetry symmetry(const PlanRequest& request) const override {
    if (request.collective == Collective::kBroadcast) return Symmetry::none(request.ranks());
    const std::optional<Nesting> nesting = nesting_of(*request.topology);
    return nesting ? nesting->symmetry() : Symmetry::none(request.ranks());
  }

 private:
  std::optional<Plan> broadcast(const PlanRequest& request, Rank self) const {
    if (request.topology->links.cables.empty()) return std::nullopt;
    const Racks racks = told_racks(*request.topology);
    // Where each host is a rack of its own, or all are one, there is nothing between hosts and racks.
    const bool several = std::ranges::any_of(racks, [](const auto& rack) { return rack.second.size() > 1; });
    if (racks.size() < 2 || !several) return std::nullopt;
    const Role role = role_in(from_root(racks, request.root), self);
    Builder builder(name(), request, self, static_cast<std::uint32_t>(request.parts));
    for (std::uint32_t chunk = 0; chunk < builder.plan().chunks; ++chunk) {
      if (role.parent >= 0) builder.recv(role.parent, chunk);
      for (const Rank child : role.children) builder.send(child, chunk);
    }
    builder.end_segment();
    return std::move(builder.plan());
  }
};

}  // namespace

const Generator& racks() {
  static const InRacks generator;
  return generator;
}

}  // namespace ringcore::plan
