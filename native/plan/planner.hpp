// Chooses the plan for an operation: the cheapest of all generators' by the cost model, verified before its first use.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plan/backend.hpp"
#include "plan/cost.hpp"
#include "plan/generator.hpp"
#include "plan/plan.hpp"

namespace ringcore::plan {

// What a generator's plan takes, with as many parts as are best.
struct Forecast {
  const Generator* generator = nullptr;
  int parts = 1;
  double seconds = 0;
};

class Planner {
 public:
  // For the rank `self`. Nobody serves.
  Planner(Topology topology, Rank self, CostModel model);

  // The same plan on all ranks that ask the same, each with its own program. The reference stays valid. Throws
  // Error{kInvalidArgument} when no generator offers one, or a generator's plan is wrong.
  const Plan& choose(const Query& query);
  struct Candidate {
    const Plan* plan = nullptr;
    double seconds = 0;  // predicted
  };
  // That one, and every other generator's best that the model takes for at most `factor` times slower; `most` in all.
  std::vector<Candidate> candidates(const Query& query, double factor, std::size_t most);
  // Of the generators of these names, or where there are none of those that are not hopeless; the quickest first.
  // Nothing is proven. Throws Error{kInvalidArgument} for a name that is none, or when there is no plan.
  std::vector<Forecast> forecast(const Query& query, const std::vector<std::string>& names);
  bool between_hosts() const { return !topology_.single_host(); }

 private:
  // What can be asked of a generator.
  struct Sketch {
    const Generator* generator = nullptr;
    Collective collective{};
    Rank root = 0;
    bool memory_visible = false;
    bool inputs_ready = false;
    int parts = 1;
    auto operator<=>(const Sketch&) const = default;
  };
  // Of a sketch, what predictions need; null where there is no plan that can be proven.
  struct Simulated {
    Excerpt plan;
    bool alone = false;  // every rank is taken for one on a host of its own
  };
  using Draft = std::shared_ptr<const Simulated>;
  struct Offer {
    Sketch sketch;
    double seconds = 0;  // predicted
  };

  PlanRequest request_of(const Sketch& sketch) const;
  Draft draft(const Sketch& sketch);
  Draft make_draft(const Sketch& sketch) const;
  // What a generator's plan takes at least; see cost.hpp. Nothing where it has none, or none that accumulates at once.
  std::optional<double> least(const Sketch& sketch, std::size_t bytes, bool once) const;
  double predict(const Sketch& sketch, double chunk_bytes);
  std::optional<Offer> best_offer(Sketch sketch, std::size_t bytes);
  std::vector<Offer> offers(const Query& query, const std::vector<const Generator*>& generators, double hopeless);
  const Plan& keep(const Sketch& sketch);

  Topology topology_;
  Topology alone_;  // the same ranks, each on a host of its own
  Rank self_;
  CostModel model_;
  std::map<std::uint64_t, const Plan*> chosen_;  // by everything in a query that matters
  std::map<Sketch, Draft> drafts_;
  std::map<Sketch, std::unique_ptr<const Plan>> plans_;
};

}  // namespace ringcore::plan
