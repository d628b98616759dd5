#include "plan/chooser.hpp"

#include <algorithm>
#include <bit>
#include <limits>

namespace ringcore::plan {
namespace {

// The first run of a candidate sets up its connections and is not counted; of the others the best counts.
constexpr std::size_t kWarmups = 1;
constexpr std::size_t kRuns = 3;
// Of large data one, which says enough; and of plans only the model's best one: how much they move decides.
constexpr std::size_t kLargeBytes = std::size_t{4} << 20;
// What the model takes for so many times slower than the best is not tried.
constexpr double kHopeless = 8;
constexpr double kHopelessPlan = 3;

}  // namespace

Chooser::Choice Chooser::choose(const Query& query, int lane) {
  const auto offers = [&query](const auto& backend) { return backend->offers(query); };
  if (query.deterministic || std::none_of(backends_.begin(), backends_.end(), offers)) {
    return {.plan = &planner_.choose(query)};
  }
  std::unique_ptr<Trial>& slot = trials_[{query.collective, std::bit_width(query.bytes), query.dtype, query.op,
                                          query.root, query.registered, query.inputs_ready, lane}];
  if (slot == nullptr) {
    slot = std::make_unique<Trial>();
    const bool large = query.bytes >= kLargeBytes;
    slot->runs = large ? 1 : kRuns;
    for (const Plan* plan : planner_.candidates(query, large ? 0 : kHopelessPlan)) {
      slot->candidates.push_back({.plan = plan});
    }
    const double plan_seconds = planner_.predict(*slot->candidates.front().plan, query.bytes);
    for (const auto& backend : backends_) {
      if (!offers(backend) || backend->predict_seconds(query, query.bytes) > kHopeless * plan_seconds) continue;
      slot->candidates.push_back({.backend = backend.get()});
    }
    slot->times.assign(slot->candidates.size(), std::numeric_limits<double>::max());
    if (slot->candidates.back().backend == nullptr) slot->winner = slot->candidates.data();
  }
  Trial& trial = *slot;
  if (trial.winner != nullptr) return *trial.winner;
  const std::size_t candidate = trial.started++ % trial.candidates.size();
  Choice choice = trial.candidates[candidate];
  choice.trial = &trial;
  choice.candidate = candidate;
  return choice;
}

std::span<double> Chooser::measured(const Choice& choice, Nanoseconds time) {
  Trial& trial = *choice.trial;
  const std::size_t candidates = trial.candidates.size();
  if (trial.ended++ >= kWarmups * candidates) {
    double& best = trial.times[choice.candidate];
    best = std::min(best, static_cast<double>(time));
  }
  return trial.ended == (kWarmups + trial.runs) * candidates ? std::span(trial.times) : std::span<double>();
}

void Chooser::decide(Trial& trial) {
  const auto best = std::min_element(trial.times.begin(), trial.times.end());
  trial.winner = &trial.candidates[static_cast<std::size_t>(best - trial.times.begin())];
}

}  // namespace ringcore::plan
