#include "plan/topology.hpp"

#include <algorithm>
#include <map>

namespace ringcore::plan {

bool Topology::single_host() const {
  return std::all_of(host_of.begin(), host_of.begin() + ranks(), [this](int host) { return host == host_of.front(); });
}

int Topology::hosts() const { return 1 + *std::max_element(host_of.begin(), host_of.end()); }

Topology Topology::with_servers(int servers) const {
  Topology topology = *this;
  topology.host_of.resize(static_cast<std::size_t>(ranks() + servers));
  topology.serving = servers;
  return topology;
}

Topology Topology::of_equals() const {
  Topology topology = *this;
  topology.serving = 0;
  return topology;
}

std::vector<std::vector<Rank>> Topology::ranks_by_host() const {
  std::map<int, std::vector<Rank>> by_host;
  for (Rank rank = 0; rank < ranks(); ++rank) by_host[host_of[rank]].push_back(rank);
  std::vector<std::vector<Rank>> hosts;
  hosts.reserve(by_host.size());
  for (auto& [host, ranks] : by_host) hosts.push_back(std::move(ranks));
  return hosts;
}

}  // namespace ringcore::plan
