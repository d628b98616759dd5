// Plans that come from outside the engine, and what has become of them.
//
// All ranks offer the same ones while none of their operations is under way: so each finds them at the same operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "plan/backend.hpp"
#include "plan/excerpt.hpp"
#include "plan/plan.hpp"

namespace ringcore::plan {

// It has been verified.
struct OfferedPlan {
  Plan plan;        // this rank's part
  Excerpt excerpt;  // of all ranks, for predictions
  // Of which data it is taken into account.
  std::size_t least_bytes = 0;
  std::size_t most_bytes = 0;
  bool always = false;  // it has such operations without being compared

  // Whether the operation can be carried out by it. `once`: its sums have to be made at once.
  bool fits(const Query& query, int ranks, bool once) const;
};

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
