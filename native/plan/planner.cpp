#include "plan/planner.hpp"

#include <algorithm>
#include <bit>
#include <optional>

#include "base/error.hpp"
#include "plan/generators.hpp"
#include "plan/verifier.hpp"

namespace ringcore::plan {
namespace {

constexpr int kParts[] = {1, 2, 4, 8, 16};
// Smaller pieces than this are not worth a step of their own: in shared memory a reader close behind the writer disturbs
// it (see transport/ring.cpp), between hosts the next hop should start early.
constexpr std::size_t kMinPartBytesInHost = 128 * 1024;
constexpr std::size_t kMinPartBytesBetweenHosts = 32 * 1024;

// Whether the sum must be made at once: 16-bit floats round once, deterministic results do not depend on the plan.
bool must_accumulate_once(const Query& query, int ranks) {
  const bool sums = query.op == ReduceOp::kSum || query.op == ReduceOp::kProduct;
  return query.deterministic || (sums && ranks > 2 && is_half(query.dtype));
}

std::uint64_t key_of(const Query& query, bool once) {
  const auto size_class = static_cast<std::uint64_t>(std::bit_width(query.bytes));
  return size_class | static_cast<std::uint64_t>(query.collective) << 8 | static_cast<std::uint64_t>(once) << 16 |
         static_cast<std::uint64_t>(query.registered) << 17 | static_cast<std::uint64_t>(query.inputs_ready) << 18 |
         static_cast<std::uint64_t>(static_cast<std::uint32_t>(query.root)) << 32;
}

}  // namespace

const Plan& Planner::choose(const Query& query) {
  const std::uint64_t key = key_of(query, must_accumulate_once(query, topology_.ranks()));
  const auto known = chosen_.find(key);
  if (known != chosen_.end()) return *known->second;
  return *chosen_.emplace(key, &keep(std::move(offers(query).front()))).first->second;
}

std::vector<const Plan*> Planner::candidates(const Query& query, double factor, std::size_t most) {
  std::vector<const Plan*> plans = {&choose(query)};
  std::vector<Offer> offered = offers(query);
  const std::size_t count = std::min(offered.size(), most);
  for (std::size_t i = 1; i < count && offered[i].seconds <= factor * offered[0].seconds; ++i) {
    plans.push_back(&keep(std::move(offered[i])));
  }
  return plans;
}

// The best plan of each generator, the best of all first; at least one.
std::vector<Planner::Offer> Planner::offers(const Query& query) const {
  // The middle of the size class stands for all of it.
  const std::size_t bytes = query.bytes == 0 ? 0 : std::bit_floor(query.bytes) + std::bit_floor(query.bytes) / 2;
  const bool reduces = query.collective == Collective::kAllreduce || query.collective == Collective::kReduceScatter;
  const bool once = reduces && must_accumulate_once(query, topology_.ranks());
  const std::size_t min_part_bytes = topology_.single_host() ? kMinPartBytesInHost : kMinPartBytesBetweenHosts;
  std::vector<Offer> found;
  for (const Generator* generator : generators()) {
    std::optional<Offer> best;
    for (const int parts : kParts) {
      if (parts > 1 && bytes / topology_.ranks() / parts < min_part_bytes) break;
      const PlanRequest request{
          .collective = query.collective,
          .topology = &topology_,
          .root = query.root,
          .parts = parts,
          .memory_visible = query.registered && topology_.memory_shared_in_host && topology_.single_host(),
          .inputs_ready = query.inputs_ready};
      std::optional<Plan> plan = generator->generate(request);
      if (!plan || (once && !plan->accumulates_once)) continue;
      const double seconds = predict_seconds(*plan, topology_, bytes, model_);
      if (!best || seconds < best->seconds) best = Offer{std::move(*plan), parts, seconds};
    }
    if (best) found.push_back(std::move(*best));
  }
  if (found.empty()) {
    throw Error(ErrorKind::kInvalidArgument, "no plan generator offers " + std::string(name_of(query.collective)) +
                                                 " for " + std::to_string(topology_.ranks()) + " ranks");
  }
  std::stable_sort(found.begin(), found.end(), [](const Offer& a, const Offer& b) { return a.seconds < b.seconds; });
  return found;
}

const Plan& Planner::keep(Offer offer) {
  Plan& plan = offer.plan;
  const std::string key = plan.generator + "/" + std::to_string(offer.parts) + "/" +
                          std::to_string(static_cast<int>(plan.collective)) + "/" + std::to_string(plan.root) + "/" +
                          std::to_string(plan.inputs_ready);
  auto& slot = plans_[key];
  if (slot == nullptr) {
    if (const auto flaw = verify(plan, topology_)) {
      throw Error(ErrorKind::kInvalidArgument, "the plan is wrong and will not run: " + *flaw);
    }
    slot = std::make_unique<const Plan>(std::move(plan));
  }
  return *slot;
}

}  // namespace ringcore::plan
