#include "plan/offered.hpp"

#include <utility>

namespace ringcore::plan {
namespace {

// As many are kept as anybody would read.
constexpr std::size_t kMostOutcomes = 4096;

}  // namespace

bool OfferedPlan::fits(const Query& query, int ranks, bool once) const {
  return plan.collective == query.collective && plan.ranks == ranks && query.bytes >= least_bytes &&
         query.bytes <= most_bytes && (!has_root(query.collective) || plan.root == query.root) &&
         plan.compression == query.compression && (!once || plan.accumulates_once) &&
         (!plan.needs_even_blocks() || query.even_blocks);
}

void Offered::offer(std::vector<OfferedPlan> plans) {
  const std::lock_guard lock(mutex_);
  for (OfferedPlan& plan : plans) plans_.push_back(std::make_shared<const OfferedPlan>(std::move(plan)));
  ++version_;
}

std::uint64_t Offered::version() const {
  const std::lock_guard lock(mutex_);
  return version_;
}

std::vector<std::shared_ptr<const OfferedPlan>> Offered::plans() const {
  const std::lock_guard lock(mutex_);
  return plans_;
}

void Offered::note(OfferedOutcome outcome) {
  const std::lock_guard lock(mutex_);
  if (outcomes_.size() < kMostOutcomes) outcomes_.push_back(std::move(outcome));
}

std::vector<OfferedOutcome> Offered::outcomes() const {
  const std::lock_guard lock(mutex_);
  return outcomes_;
}

}  // namespace ringcore::plan
