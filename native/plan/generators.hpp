// The plan generators: each knows one algorithm for one or more collectives.
//
// To add one, write a file with a class like those here and name it in generators.cpp.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "plan/plan.hpp"

namespace ringcore::plan {

struct PlanRequest {
  Collective collective{};
  const Topology* topology = nullptr;
  Rank root = 0;
  int parts = 1;               // sub-chunks of each block, for pipelining; generators without a pipeline ignore it
  bool memory_visible = false; // all ranks see each other's kData
  bool inputs_ready = false;   // see plan.hpp; only with memory_visible

  int ranks() const { return topology->ranks(); }
};

class Generator {
 public:
  virtual ~Generator() = default;
  virtual std::string_view name() const = 0;
  // Nothing where the algorithm does not apply. There are at least two ranks.
  virtual std::optional<Plan> generate(const PlanRequest& request) const = 0;
};

// All of them, in a fixed order.
const std::vector<const Generator*>& generators();

// Patarasuk & Yuan 2009: reduce-scatter, then all-gather, round a ring. Optimal in bytes.
const Generator& ring();
// Thakur, Rabenseifner & Gropp 2005, section 4.5: halving reduce-scatter, then doubling all-gather.
const Generator& halving_doubling();
// The same, section 4.4: whole vectors exchanged in log2(R) rounds. Lowest latency of the two-sided ones.
const Generator& recursive_doubling();
// Reduction and broadcast along a binomial tree.
const Generator& binomial_tree();
// Every rank reduces its share straight from, and into, all ranks' memory.
const Generator& flat();
// Every rank sends each share to its owner, who adds all of them once, in the order of the ranks.
const Generator& direct();
// Reduce-scatter inside the hosts, a ring between them, all-gather inside.
const Generator& hierarchical();

}  // namespace ringcore::plan
