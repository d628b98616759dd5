// Chooses the plan for an operation: the cheapest of all generators' by the cost model, verified before its first use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "plan/backend.hpp"
#include "plan/cost.hpp"
#include "plan/plan.hpp"

namespace ringcore::plan {

class Planner {
 public:
  Planner(Topology topology, CostModel model) : topology_(std::move(topology)), model_(model) {}

  // The same plan on all ranks that ask the same. The reference stays valid. Throws Error{kInvalidArgument} when no
  // generator offers one, or a generator's plan is wrong.
  const Plan& choose(const Query& query);
  // That one, and every other generator's best that the model takes for at most `factor` times slower; `most` in all.
  std::vector<const Plan*> candidates(const Query& query, double factor, std::size_t most);
  bool between_hosts() const { return !topology_.single_host(); }
  // By the cost model.
  double predict(const Plan& plan, std::size_t bytes) const { return predict_seconds(plan, topology_, bytes, model_); }

 private:
  struct Offer {
    Plan plan;
    int parts = 0;
    double seconds = 0;  // predicted
  };
  std::vector<Offer> offers(const Query& query) const;
  const Plan& keep(Offer offer);

  Topology topology_;
  CostModel model_;
  std::map<std::uint64_t, const Plan*> chosen_;  // by everything in a query that matters
  std::map<std::string, std::unique_ptr<const Plan>> plans_;
};

}  // namespace ringcore::plan
