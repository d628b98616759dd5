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
// Of plans the best so many by the model: nobody waits long for the trials to end.
constexpr std::size_t kMostPlans = 3;
// What the model takes for so many times slower than the best is not tried.
constexpr double kHopeless = 8;
constexpr double kHopelessPlan = 3;

}  // namespace

Chooser::Choice Chooser::choose(const Query& query, int lane, bool in_order) {
  const auto offers = [&query](const auto& backend) { return backend->offers(query); };
  const bool tries = planner_.between_hosts() || std::any_of(backends_.begin(), backends_.end(), offers);
  if (query.deterministic || !in_order || !tries) return {.plan = &planner_.choose(query)};
  std::unique_ptr<Trial>& slot = trials_[{query.collective, std::bit_width(query.bytes), query.dtype, query.op,
                                          query.root, query.registered, query.inputs_ready, lane}];
  if (slot == nullptr) slot = make_trial(query);
  Trial& trial = *slot;
  if (trial.winner != nullptr) return *trial.winner;
  const std::size_t candidate = trial.started++ % trial.candidates.size();
  Choice choice = trial.candidates[candidate];
  choice.trial = &trial;
  choice.candidate = candidate;
  return choice;
}

std::unique_ptr<Chooser::Trial> Chooser::make_trial(const Query& query) {
  auto trial = std::make_unique<Trial>();
  const bool large = query.bytes >= kLargeBytes;
  trial->runs = large ? 1 : kRuns;
  const auto plans = planner_.candidates(query, large ? 0 : kHopelessPlan, kMostPlans);
  for (const Planner::Candidate& candidate : plans) trial->candidates.push_back({.plan = candidate.plan});
  const double plan_seconds = plans.front().seconds;
  for (const auto& backend : backends_) {
    if (!backend->offers(query) || backend->predict_seconds(query, query.bytes) > kHopeless * plan_seconds) continue;
    trial->candidates.push_back({.backend = backend.get()});
  }
  // Inside a host plans are not tried among themselves.
  if (!planner_.between_hosts() && trial->candidates.back().backend == nullptr) trial->candidates.resize(1);
  trial->times.assign(trial->candidates.size(), std::numeric_limits<double>::max());
  if (trial->candidates.size() == 1) trial->winner = trial->candidates.data();
  return trial;
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
