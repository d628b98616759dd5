// Chooses the plan for an operation: the cheapest of all generators' by the cost model, verified before its first use.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
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

// Whether a sum has to be made at once: 16-bit floats round once, deterministic results do not depend on the plan.
bool must_accumulate_once(const Query& query, int ranks);

class Planner {
 public:
  // For the node `self`. Whoever serves takes part in the plans of generators that serve; of others it has an empty
  // program.
  Planner(Topology topology, Rank self, CostModel model);

  // The same plan on all ranks that ask the same, each with its own program. The reference stays valid. Throws
  // Error{kInvalidArgument} when no generator offers one, or a generator's plan is wrong.
  const Plan& choose(const Query& query);
  struct Candidate {
    const Plan* plan = nullptr;
    double seconds = 0;  // predicted
  };
  // The cheapest where the network is as `links` says, and every other generator's best that the model takes for at most
  // `factor` times slower; `most` in all, and where that is more than one, also what goes through servers, which somebody
  // has asked for, unless it is hopeless.
  std::vector<Candidate> candidates(const Query& query, const Links& links, double factor, std::size_t most);
  // Of the generators of these names, or where there are none of those that are not hopeless; the quickest first.
  // Nothing is proven. Throws Error{kInvalidArgument} for a name that is none, or when there is no plan.
  std::vector<Forecast> forecast(const Query& query, const std::vector<std::string>& names);
  // Of a plan that is not one of ours, on the same ranks and as many of the servers as it has.
  double predict(const Excerpt& plan, const Links& links, std::size_t bytes) const;
  // Whether the model does not know the best plan without trying: between hosts, and with servers.
  bool has_to_try() const { return !topology_.single_host() || served_.serving > 0; }
  // All nodes, those who serve among them.
  const Topology& nodes() const { return served_; }
  // Of the ranks alone.
  const Topology& topology() const { return topology_; }
  Rank self() const { return self_; }

 private:
  // What can be asked of a generator.
  struct Sketch {
    const Generator* generator = nullptr;
    Collective collective{};
    Rank root = 0;
    bool memory_visible = false;
    bool inputs_ready = false;
    Compression compression{};
    int parts = 1;
    std::size_t network = 0;  // of `networks_`: whose rates the plan follows
    auto operator<=>(const Sketch&) const = default;
  };
  // What predictions are made for.
  struct Network {
    Network(Topology topology, Topology served);
    Topology topology;  // of the ranks alone
    Topology alone;  // the same ranks, each on a host of its own
    Topology served;  // with those who serve
    const Topology& of(const Generator& generator) const { return generator.serves() ? served : topology; }
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

  // Of the topology with these links.
  std::size_t network_of(const Links& links);
  PlanRequest request_of(const Sketch& sketch) const;
  Draft draft(const Sketch& sketch, const Network& network);
  Draft make_draft(const Sketch& sketch, const Topology& topology) const;
  struct Demands {
    bool once = false;  // the plan must accumulate at once
    bool has_even_blocks = false;
  };
  // What a generator's plan takes at least; see cost.hpp. Nothing where it has none, or none that will do.
  std::optional<double> least(const Sketch& sketch, const Topology& topology, std::size_t bytes, Demands demands) const;
  double predict(const Sketch& sketch, const Network& network, double chunk_bytes);
  std::optional<Offer> best_offer(Sketch sketch, const Network& network, std::size_t bytes);
  std::vector<Offer> offers(const Query& query, const Links& links, const std::vector<const Generator*>& generators,
                            double hopeless);
  const Plan& keep(const Sketch& sketch);

  Topology topology_;
  Topology served_;
  Rank self_;
  CostModel model_;
  std::vector<std::unique_ptr<const Network>> networks_;  // all that were planned for
  std::map<std::uint64_t, const Plan*> chosen_;  // by everything in a query that matters
  std::map<std::pair<Sketch, bool>, Draft> drafts_;  // also by whether the network is even
  std::map<Sketch, std::unique_ptr<const Plan>> plans_;
};

}  // namespace ringcore::plan
