// Inside a host first, then between hosts: rings in rings (nested_rings.hpp), so that each byte crosses the network once each
// way, on as many streams of a host as it has ranks. Hosts with different numbers of ranks: the first rank of each host acts
// for its host in an allreduce. A broadcast goes along a tree of hosts.
#include <algorithm>

#include "plan/builder.hpp"
#include "plan/nested_rings.hpp"

namespace ringcore::plan {
namespace {

using Hosts = std::vector<std::vector<Rank>>;

struct Place {
  int host = 0;
  int local = 0;
};

Place place_of(const Hosts& hosts, Rank rank) {
  for (int host = 0; host < static_cast<int>(hosts.size()); ++host) {
    const auto found = std::lower_bound(hosts[host].begin(), hosts[host].end(), rank);
    if (found != hosts[host].end() && *found == rank) return {host, static_cast<int>(found - hosts[host].begin())};
  }
  __builtin_unreachable();
}

bool even(const Hosts& hosts) {
  return std::all_of(hosts.begin(), hosts.end(), [&](const auto& ranks) { return ranks.size() == hosts[0].size(); });
}

// The part of the member at `position` in an allreduce among `members`, each of which owns `parts` chunks.
void ring_among(Builder& builder, const std::vector<Rank>& members, int position, int parts) {
  const int size = static_cast<int>(members.size());
  const Rank next = members[(position + 1) % size];
  const Rank previous = members[(position + size - 1) % size];
  const auto chunk = [&](int round, int part) {
    return static_cast<std::uint32_t>((position - round + 2 * size) % size * parts + part);
  };
  for (int part = 0; part < parts; ++part) builder.send(next, chunk(0, part));
  for (int round = 1; round <= 2 * (size - 1); ++round) {
    for (int part = 0; part < parts; ++part) {
      if (round < size) {
        builder.recv_reduce(previous, chunk(round, part), round == size - 1);
      } else {
        builder.recv(previous, chunk(round, part));
      }
      if (round < 2 * (size - 1)) builder.send(next, chunk(round, part));
    }
  }
}

class Hierarchical final : public Generator {
 public:
  std::string_view name() const override { return "hierarchical"; }

  std::optional<Plan> generate(const PlanRequest& request, Rank self) const override {
    const Hosts hosts = request.topology->ranks_by_host();
    const bool several = std::any_of(hosts.begin(), hosts.end(), [](const auto& ranks) { return ranks.size() > 1; });
    if (hosts.size() < 2 || !several) return std::nullopt;
    switch (request.collective) {
      case Collective::kAllreduce:
        return even(hosts) ? nested_rings(name(), request, nesting_of(hosts), self) : leaders(request, hosts, self);
      case Collective::kReduceScatter:
      case Collective::kAllgather:
        if (!even(hosts)) return std::nullopt;
        return nested_rings(name(), request, nesting_of(hosts), self);
      case Collective::kBroadcast: return broadcast(request, hosts, self);
      case Collective::kAlltoall:
      case Collective::kReduce:
      case Collective::kGather:
      case Collective::kScatter:
      case Collective::kBarrier: return std::nullopt;
    }
    __builtin_unreachable();
  }

  Symmetry symmetry(const PlanRequest& request) const override {
    const Hosts hosts = request.topology->ranks_by_host();
    if (request.collective == Collective::kBroadcast || !even(hosts)) return Symmetry::none(request.ranks());
    return nesting_of(hosts).symmetry();
  }

 private:
  static Nesting nesting_of(const Hosts& hosts) {
    std::vector<Rank> ranks;
    for (const auto& host : hosts) ranks.insert(ranks.end(), host.begin(), host.end());
    return {std::move(ranks), {static_cast<int>(hosts[0].size()), static_cast<int>(hosts.size())}};
  }

  static Plan leaders(const PlanRequest& request, const Hosts& hosts, Rank self) {
    const int host_count = static_cast<int>(hosts.size());
    const int parts = request.parts;
    const Place place = place_of(hosts, self);
    const std::vector<Rank>& local = hosts[place.host];
    Builder builder("hierarchical", request, self, static_cast<std::uint32_t>(host_count * parts));
    const std::uint32_t chunks = builder.plan().chunks;
    if (place.local != 0) {
      for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) builder.send(local.front(), chunk);
      for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) builder.recv(local.front(), chunk);
      return std::move(builder.plan());
    }
    for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) {
      for (std::size_t i = 1; i < local.size(); ++i) builder.recv_reduce(local[i], chunk, false);
    }
    std::vector<Rank> leading;
    for (const auto& ranks : hosts) leading.push_back(ranks.front());
    ring_among(builder, leading, place.host, parts);
    for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) {
      for (std::size_t i = 1; i < local.size(); ++i) builder.send(local[i], chunk);
    }
    return std::move(builder.plan());
  }

  // Along a binary tree of hosts, and through each host from rank to rank.
  static Plan broadcast(const PlanRequest& request, const Hosts& hosts, Rank self) {
    const int host_count = static_cast<int>(hosts.size());
    const Place root = place_of(hosts, request.root);
    const Place place = place_of(hosts, self);
    const int node = (place.host - root.host + host_count) % host_count;
    // The first of a host; of the root's host the root.
    const auto at = [&](int node, int step) {
      const auto& ranks = hosts[(node + root.host) % host_count];
      return ranks[(step + (node == 0 ? root.local : 0)) % static_cast<int>(ranks.size())];
    };
    const int local = static_cast<int>(hosts[place.host].size());
    const int step = (place.local - (node == 0 ? root.local : 0) + local) % local;
    Builder builder("hierarchical", request, self, static_cast<std::uint32_t>(request.parts));
    for (std::uint32_t chunk = 0; chunk < builder.plan().chunks; ++chunk) {
      if (step > 0) {
        builder.recv(at(node, step - 1), chunk);
      } else if (node > 0) {
        builder.recv(at((node - 1) / 2, 0), chunk);
      }
      for (int child = 2 * node + 1; step == 0 && child <= 2 * node + 2 && child < host_count; ++child) {
        builder.send(at(child, 0), chunk);
      }
      if (step + 1 < local) builder.send(at(node, step + 1), chunk);
    }
    builder.end_segment();
    return std::move(builder.plan());
  }
};

}  // namespace

const Generator& hierarchical() {
  static const Hierarchical generator;
  return generator;
}

}  // namespace ringcore::plan
