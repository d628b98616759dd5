// Where hosts have many ranks: trees are packed between the hosts alone, and continued inside each.
#pragma once

#include "plan/packing/forest.hpp"
#include "plan/topology.hpp"

namespace ringcore::plan {

// The hosts, as if each of them had one node.
Topology one_node_a_host(const Topology& topology);

// A forest over `one_node_a_host`, over all nodes: the first one of each host, which is reached from other hosts, is the
// head of a chain. What is copied inside a host is copied once by each of its nodes, whatever their number. With a `root`,
// which is not the first one of its host, trees begin there; -1: with the first ones.
Forest continued_inside(const Topology& topology, const Forest& between, Rank root);

}  // namespace ringcore::plan
