#include "plan/packing/inside.hpp"

#include <numeric>
#include <vector>

namespace ringcore::plan {

Topology one_node_a_host(const Topology& topology) {
  Topology hosts{.host_of = std::vector<int>(static_cast<std::size_t>(topology.hosts())), .links = topology.links};
  std::iota(hosts.host_of.begin(), hosts.host_of.end(), 0);
  return hosts;
}

Forest continued_inside(const Topology& topology, const Forest& between, Rank root) {
  std::vector<std::vector<Rank>> nodes(static_cast<std::size_t>(topology.hosts()));
  for (Rank node = 0; node < topology.nodes(); ++node) nodes[topology.host_of[node]].push_back(node);
  Forest all{.shares = between.shares, .rate = between.rate, .bound = between.bound, .seconds = between.seconds};
  for (const Parents& hosts : between.trees) {
    Parents& tree = all.trees.emplace_back(static_cast<std::size_t>(topology.nodes()), -1);
    for (std::size_t host = 0; host < nodes.size(); ++host) {
      const Rank first = nodes[host].front();
      if (hosts[host] >= 0) tree[first] = nodes[hosts[host]].front();
      Rank above = first;
      for (const Rank node : nodes[host]) {
        if (node == first || node == root) continue;
        tree[node] = above;
        above = node;
      }
    }
    if (root < 0) continue;
    const Rank first = nodes[topology.host_of[root]].front();
    if (first != root) tree[first] = root;
  }
  return all;
}

}  // namespace ringcore::plan
