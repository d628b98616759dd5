// Chooses the plan for an operation: the cheapest of all generators' by the cost model, verified before its first use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "plan/cost.hpp"
#include "plan/plan.hpp"

namespace ringcore::plan {

struct Query {
  Collective collective{};
  std::size_t bytes = 0;  // the same on all ranks
  DType dtype{};
  ReduceOp op{};
  Rank root = 0;
  bool registered = false;    // every rank's data lies in memory that its host's ranks see
  bool inputs_ready = false;  // see plan.hpp
  bool deterministic = false; // the bits may depend on nothing but the values
};

class Planner {
 public:
  Planner(Topology topology, CostModel model) : topology_(std::move(topology)), model_(model) {}

  // The same plan on all ranks that ask the same. The reference stays valid. Throws Error{kInvalidArgument} when no
  // generator offers one, or a generator's plan is wrong.
  const Plan& choose(const Query& query);

 private:
  const Plan& find(const Query& query, std::size_t bytes);

  Topology topology_;
  CostModel model_;
  std::map<std::uint64_t, const Plan*> chosen_;  // by everything in a query that matters
  std::map<std::string, std::unique_ptr<const Plan>> plans_;
};

}  // namespace ringcore::plan
