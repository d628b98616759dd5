// Plans that come from outside the engine, and what has become of them.
//
// All ranks offer the same ones while none of their operations is under way: so each finds them at the same operation.
// Servers are told of them by the first rank, at the same place of the logs (engine/engine.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "plan/backend.hpp"
#include "plan/excerpt.hpp"
#include "plan/forms/binary.hpp"
#include "plan/plan.hpp"
#include "plan/topology.hpp"

namespace ringcore::plan {

// As it comes.
struct Offer {
  WholePlan plan;
  // See OfferedPlan.
  std::size_t least_bytes = 0;
  std::size_t most_bytes = 0;
  bool always = false;
};

// As servers are told of it.
std::vector<std::byte> to_bytes(const Offer& offer);
// Throws Error{kInvalidArgument}. What the programs do is left to `offered_to`.
Offer offer_from(std::span<const std::byte> bytes);
inline constexpr std::size_t kMostOfferBytes = kMostBinaryBytes + 3 * sizeof(std::uint64_t);

// It has been verified.
struct OfferedPlan {
  Plan plan;        // this node's part; nobody's where it takes none
  Excerpt excerpt;  // of all nodes, for predictions
  // Of which data it is taken into account.
  std::size_t least_bytes = 0;
  std::size_t most_bytes = 0;
  bool always = false;  // it has such operations without being compared

  // Whether the operation can be carried out by it. `once`: its sums have to be made at once.
  bool fits(const Query& query, int ranks, bool once) const;
};

// What the node `self` has of it: the plan is of all ranks of the topology, and of as many of its servers as it needs, from
// the first one on. Throws Error{kInvalidArgument} where it is not, or is wrong.
OfferedPlan offered_to(Rank self, const Offer& offer, const Topology& topology);

// What was found of an offered plan for a kind of operation.
struct OfferedOutcome {
  std::string generator;
  Collective collective{};
  std::size_t bytes = 0;
  double predicted_s = 0;
  double measured_s = 0;    // 0: it was not tried
  double best_other_s = 0;  // of what stood beside it, measured, or predicted where it was not tried
  bool chosen = false;
};

class Offered {
 public:
  void offer(std::vector<OfferedPlan> plans);
  // Changes with every offer; 0: there was none.
  std::uint64_t version() const;
  std::vector<std::shared_ptr<const OfferedPlan>> plans() const;

  void note(OfferedOutcome outcome);
  std::vector<OfferedOutcome> outcomes() const;

 private:
  mutable std::mutex mutex_;  // Guards all below.
  std::uint64_t version_ = 0;
  std::vector<std::shared_ptr<const OfferedPlan>> plans_;
  std::vector<OfferedOutcome> outcomes_;
};

}  // namespace ringcore::plan
