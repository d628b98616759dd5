#include "plan/offered.hpp"

#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "plan/forms/whole.hpp"

namespace ringcore::plan {
namespace {

// As many are kept as anybody would read.
constexpr std::size_t kMostOutcomes = 4096;

// Least and most bytes, and whether always.
using Bounds = std::array<std::uint64_t, 3>;

std::string nodes_text(int ranks, int servers) {
  return std::to_string(ranks) + " ranks and " + std::to_string(servers) + (servers == 1 ? " server" : " servers");
}

// Nothing where it can run.
std::optional<std::string> flaw_of(const WholePlan& plan, const Topology& topology) {
  const int serving = plan.nodes - plan.ranks;
  if (plan.ranks != topology.ranks() || serving > topology.serving) {
    return "it is for " + nodes_text(plan.ranks, serving) + ", and there are " +
           nodes_text(topology.ranks(), topology.serving);
  }
  if (plan.one_sided || plan.inputs_ready) return "it reads other ranks' memory";
  if (steps_of(plan) > kMostSteps) return "it has too many steps to be verified";
  return verify(plan, topology.with_servers(serving));
}

}  // namespace

bool OfferedPlan::fits(const Query& query, int ranks, bool once) const {
  return plan.collective == query.collective && plan.ranks == ranks && query.bytes >= least_bytes &&
         query.bytes <= most_bytes && (!has_root(query.collective) || plan.root == query.root) &&
         plan.compression == query.compression && (!once || plan.accumulates_once) &&
         (!plan.needs_even_blocks() || query.even_blocks);
}

std::vector<std::byte> to_bytes(const Offer& offer) {
  const Bounds bounds = {offer.least_bytes, offer.most_bytes, offer.always ? 1U : 0U};
  const std::vector<std::byte> plan = to_binary(offer.plan);
  std::vector<std::byte> bytes(sizeof(bounds) + plan.size());
  std::memcpy(bytes.data(), bounds.data(), sizeof(bounds));
  std::memcpy(bytes.data() + sizeof(bounds), plan.data(), plan.size());
  return bytes;
}

Offer offer_from(std::span<const std::byte> bytes) {
  Bounds bounds{};
  if (bytes.size() < sizeof(bounds)) {
    throw Error(ErrorKind::kInvalidArgument,
                "a plan from outside was cut off: it has come in " + std::to_string(bytes.size()) + " bytes");
  }
  std::memcpy(bounds.data(), bytes.data(), sizeof(bounds));
  return {from_binary(bytes.subspan(sizeof(bounds))), bounds[0], bounds[1], bounds[2] != 0};
}

OfferedPlan offered_to(Rank self, const Offer& offer, const Topology& topology) {
  const WholePlan& plan = offer.plan;
  if (const auto flaw = flaw_of(plan, topology)) {
    throw Error(ErrorKind::kInvalidArgument,
                "the plan '" + plan.generator + "' from outside is wrong and will not run: " + *flaw);
  }
  OfferedPlan offered{.excerpt = excerpt_of(plan),
                      .least_bytes = offer.least_bytes,
                      .most_bytes = offer.most_bytes,
                      .always = offer.always};
  if (self < plan.nodes) {
    offered.plan = part_of(plan, self);
  } else {
    static_cast<Header&>(offered.plan) = plan;
  }
  return offered;
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
