#include "plan/chooser.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <utility>

#include "plan/paces.hpp"

namespace ringcore::plan {
namespace {

// The first run of a candidate sets up its connections and is not counted; of the others the best counts.
constexpr std::size_t kWarmups = 1;
constexpr std::size_t kRuns = 3;
// Those that come so close to the best are tried again, more often: between them three runs decide by chance.
constexpr double kClose = 1.15;
constexpr std::size_t kRunsOfClose = 6;
// Of large data one, which says enough; and of plans only those that the model, once it knows how quick the network is,
// takes for nearly as good as the best: how much they move decides.
constexpr std::size_t kLargeBytes = std::size_t{4} << 20;
// So many operations show what the network is like, until somebody knows its rate: divided among many links, one may be
// too short for that.
constexpr int kMostSurveys = 8;
constexpr double kNearlyAsGood = 1.25;
// Of plans the best so many by the model: nobody waits long for the trials to end.
constexpr std::size_t kMostPlans = 3;
// What the model takes for so many times slower than the best is not tried.
constexpr double kHopeless = 8;
constexpr double kHopelessPlan = 3;
// As often in a row a host is found slow before that is told.
constexpr int kTelling = 2;

// So many operations with a priority of a kind and size are let in: enough for a trial of plans, and to find out before
// what the network is like.
constexpr std::size_t kMostCandidates = kMostPlans + 1;  // one that knows of no difference between ports
constexpr std::size_t kMostLetIn =
    std::max(1 + (kWarmups + kRuns) * kMostCandidates, kMostSurveys + (kWarmups + 1) * kMostCandidates);

bool is_large(const Query& query) { return query.bytes >= kLargeBytes; }

}  // namespace

struct Chooser::Trial {
  Query query;
  int lane = 0;
  bool surveys = false;  // its one run shows what the network is like; then it begins anew
  int surveyed = 0;  // so often
  std::vector<Choice> candidates;
  std::vector<std::size_t>
      turns;  // the candidates that take turns: all of them, and then those that are close to the best
  std::vector<double> numbers;  // the candidates' times in nanoseconds, then what is known of links (paces.hpp)
  std::size_t runs = 0;  // of each candidate, that count
  std::size_t warmups = 0;
  std::size_t started = 0;
  std::size_t ended = 0;
  const Choice* winner = nullptr;
};

Chooser::Chooser(Planner planner, std::vector<std::unique_ptr<Backend>> backends, std::shared_ptr<Offered> offered,
                 int survey_every)
    : planner_(std::move(planner)),
      backends_(std::move(backends)),
      offered_(std::move(offered)),
      survey_every_(survey_every) {
  if (planner_.nodes().serving > 0) equals_.emplace(planner_.nodes().of_equals(), planner_.self(), CostModel{});
}
Chooser::~Chooser() = default;

Chooser::Key Chooser::key_of(const Query& query, int lane) {
  return {query.collective, std::bit_width(query.bytes), query.dtype,       query.op,          query.root,
          query.registered, query.inputs_ready,          query.even_blocks, query.compression, lane};
}

Chooser::Choice Chooser::choose(const Query& query, int lane) {
  follow_offers();
  const auto offered = [&query](const auto& backend) { return offers(*backend, query); };
  const bool tries =
      planner_.has_to_try() || std::any_of(backends_.begin(), backends_.end(), offered) || !offers_for(query).empty();
  if (query.deterministic || !tries) return {.plan = &planner_.choose(query)};
  std::unique_ptr<Trial>& slot = trials_[key_of(query, lane)];
  if (slot == nullptr) {
    slot = std::make_unique<Trial>(Trial{.query = query, .lane = lane});
    begin(*slot);
  }
  Trial& trial = *slot;
  if (trial.winner != nullptr) {
    Choice choice = *trial.winner;
    choice.trial = survey_due(lane);
    return choice;
  }
  // Each round begins one further on: a step has as many buckets as there are candidates, or twice as many, and the first
  // of them has the network to itself for a while.
  const std::size_t count = trial.turns.size();
  const std::size_t candidate = trial.turns[(trial.started + trial.started / count) % count];
  ++trial.started;
  Choice choice = trial.candidates[candidate];
  choice.trial = &trial;
  choice.candidate = candidate;
  return choice;
}

bool Chooser::lets_in(const Query& query) {
  if (query.deterministic || !planner_.has_to_try()) return false;
  Admitted& admitted = admitted_[key_of(query, kPriorityLane)];
  if (admitted.released == kMostLetIn) return false;
  ++admitted.released;
  return true;
}

void Chooser::note_end(const Query& query) { ++admitted_.at(key_of(query, kPriorityLane)).ended; }

bool Chooser::is_trying(const Query& query) const {
  const auto found = admitted_.find(key_of(query, kPriorityLane));
  return found != admitted_.end() && found->second.ended < found->second.released;
}

Chooser::Choice Chooser::choose_found(const Query& query) {
  const auto found = trials_.find(key_of(query, kPriorityLane));
  if (found != trials_.end() && found->second->winner != nullptr) return *found->second->winner;
  return {.plan = &planner_.choose(query)};
}

// What was decided without the new ones is decided anew.
void Chooser::follow_offers() {
  if (offered_ == nullptr || offered_->version() == offers_seen_) return;
  offers_seen_ = offered_->version();
  offers_ = offered_->plans();
  for (auto& [key, trial] : trials_) former_trials_.push_back(std::move(trial));
  trials_.clear();
}

std::vector<const OfferedPlan*> Chooser::offers_for(const Query& query) const {
  std::vector<const OfferedPlan*> fitting;
  const int ranks = planner_.topology().ranks();
  const bool once = must_accumulate_once(query, ranks);
  for (const auto& offer : offers_) {
    if (offer->fits(query, ranks, once)) fitting.push_back(offer.get());
  }
  return fitting;
}

// Those that are to be tried; or the last one that is to be taken always, alone.
void Chooser::add_offers(Trial& trial, double best_plan_s) {
  const Links& links = known_of(trial.lane).links;
  std::vector<const OfferedPlan*> offers = offers_for(trial.query);
  const auto always = std::find_if(offers.rbegin(), offers.rend(), [](const auto* offer) { return offer->always; });
  if (always != offers.rend()) offers = {*always};
  for (const OfferedPlan* offer : offers) {
    const double seconds = planner_.predict(offer->excerpt, links, trial.query.bytes);
    const Choice choice{.plan = &offer->plan, .offered = offer, .predicted_s = seconds};
    if (offer->always) {
      trial.candidates = {choice};
      return;
    }
    if (seconds <= kHopeless * best_plan_s) {
      trial.candidates.push_back(choice);
    } else {
      offered_->note(
          {offer->plan.generator, trial.query.collective, trial.query.bytes, seconds, 0, best_plan_s, false});
    }
  }
}

void Chooser::note_offers(const Trial& trial) const {
  const auto seconds_of = [&](std::size_t candidate) {
    return trial.candidates.size() == 1 ? 0 : trial.numbers[candidate] / static_cast<double>(kSecond);
  };
  for (std::size_t i = 0; i < trial.candidates.size(); ++i) {
    const Choice& choice = trial.candidates[i];
    if (choice.offered == nullptr) continue;
    double other = 0;
    for (std::size_t j = 0; j < trial.candidates.size(); ++j) {
      if (j != i && (other == 0 || seconds_of(j) < other)) other = seconds_of(j);
    }
    offered_->note({choice.plan->generator, trial.query.collective, trial.query.bytes, choice.predicted_s,
                    seconds_of(i), other, trial.winner == &choice});
  }
}

// Libraries send sums as they are.
bool Chooser::offers(const Backend& backend, const Query& query) {
  return query.compression == Compression::kNone && backend.offers(query);
}

Chooser::Known& Chooser::known_of(int lane) {
  const auto [found, is_new] = known_.try_emplace(lane);
  if (is_new) found->second = {.links = planner_.topology().links, .rates = planner_.topology().links.told};
  return found->second;
}

void Chooser::begin(Trial& trial) {
  const Known& known = known_of(trial.lane);
  trial.surveys = planner_.has_to_try() && !known.rates;
  if (!trial.surveys) return make_candidates(trial);
  trial.candidates = {{.plan = planner_.candidates(trial.query, known.links, 0, 1).front().plan}};
  trial.runs = 1;
  trial.started = trial.ended = 0;
  make_room(trial);
}

void Chooser::make_candidates(Trial& trial) {
  const Query& query = trial.query;
  const Known& known = known_of(trial.lane);
  const bool large = is_large(query);
  const double hopeless = !large ? kHopelessPlan : known.rates ? kNearlyAsGood : 0;
  trial.candidates.clear();
  const auto plans = planner_.candidates(query, known.links, hopeless, kMostPlans);
  for (const Planner::Candidate& candidate : plans) trial.candidates.push_back({.plan = candidate.plan});
  if (!known.links.ports.empty() && !known.links.told) add_plain(trial);
  const double plan_seconds = plans.front().seconds;
  for (const auto& backend : backends_) {
    if (!offers(*backend, query) || backend->predict_seconds(query, query.bytes) > kHopeless * plan_seconds) continue;
    trial.candidates.push_back({.backend = backend.get()});
  }
  // Inside a host plans are not tried among themselves.
  add_offers(trial, plan_seconds);
  const bool only_plans = trial.candidates.back().backend == nullptr && trial.candidates.back().offered == nullptr;
  if (!planner_.has_to_try() && only_plans) trial.candidates.resize(1);
  if (trial.candidates.size() == 1) {
    trial.winner = trial.candidates.data();
    note_offers(trial);
  }
  trial.runs = large ? 1 : kRuns;
  trial.warmups = kWarmups;
  trial.started = trial.ended = 0;
  make_room(trial);
}

// What links have shown may be chance, and a plan that makes the most of a difference that there is not is slow for ever:
// beside those one is tried that knows of no difference.
void Chooser::add_plain(Trial& trial) {
  Links even = known_of(trial.lane).links;
  even.ports.clear();
  const Plan* const plain = planner_.candidates(trial.query, even, 0, 1).front().plan;
  const auto is_plain = [plain](const Choice& choice) { return choice.plan == plain; };
  if (std::ranges::none_of(trial.candidates, is_plain)) trial.candidates.push_back({.plan = plain});
}

// A port may become slow long after all has been tried. Null: no survey.
Chooser::Trial* Chooser::survey_due(int lane) {
  Known& known = known_of(lane);
  const bool learns = planner_.has_to_try() && survey_every_ > 0 && table_size() > 0;
  if (!learns || ++known.chosen < survey_every_) return nullptr;
  known.chosen = 0;
  if (known.survey == nullptr) known.survey = std::make_unique<Trial>(Trial{.lane = lane});
  make_room(*known.survey);
  return known.survey.get();
}

void Chooser::make_room(Trial& trial) const {
  trial.numbers.assign(trial.candidates.size(), std::numeric_limits<double>::max());
  trial.numbers.resize(trial.candidates.size() + table_size(), 0);
  trial.turns.resize(trial.candidates.size());
  std::iota(trial.turns.begin(), trial.turns.end(), std::size_t{0});
}

// Where the links were told, what all ranks compare with that, and else what they learn of ports.
std::size_t Chooser::table_size() const {
  const int ranks = planner_.topology().ranks();
  return planner_.topology().links.told ? told_links_size(ranks) : paces_size(ranks);
}

bool Chooser::measured(const Choice& choice, Nanoseconds time) {
  Trial& trial = *choice.trial;
  if (trial.candidates.empty()) return true;
  const std::size_t candidates = trial.turns.size();
  if (trial.ended++ >= trial.warmups * candidates) {
    double& best = trial.numbers[choice.candidate];
    best = std::min(best, static_cast<double>(time));
  }
  return trial.ended == (trial.warmups + trial.runs) * candidates;
}

std::span<double> Chooser::numbers(Trial& trial, const PortPace& pace, std::span<const transport::Pace> links) {
  const bool serves = planner_.self() >= planner_.topology().ranks();  // and is no part of what ranks plan between them
  const std::span<double> table = std::span(trial.numbers).subspan(trial.candidates.size());
  if (serves || table.empty()) return trial.numbers;
  if (planner_.topology().links.told) {
    Known& known = known_of(trial.lane);
    write_links(table, planner_.self(), links, known.seen);
    known.seen.assign(links.begin(), links.end());
  } else {
    write_pace(table, planner_.self(), pace);
  }
  return trial.numbers;
}

// Once may be chance: whoever was busy with something else sends late.
bool Chooser::is_news(int number, bool slow) {
  int& times = slow_[number];
  if (times >= kTelling) return false;
  times = slow ? times + 1 : 0;
  return times == kTelling;
}

void Chooser::tell(const std::string& finding) { finding_ += (finding_.empty() ? "" : " ") + finding; }

void Chooser::note_slow_hosts(std::span<const double> table) {
  const std::vector<SlowHost> slow = slow_hosts(planner_.topology(), table);
  for (int host = 0; host < planner_.topology().hosts(); ++host) {
    const auto found = std::ranges::find(slow, host, &SlowHost::host);
    if (!is_news(host, found != slow.end())) continue;
    tell(describe(*found, planner_.topology()));
  }
}

// What has shown nothing since the ranks last told each other is neither slow nor quick.
void Chooser::note_slow_links(std::span<const double> table) {
  std::vector<ToldLink> links = judge_links(planner_.topology(), table);
  std::erase_if(links, [this](const ToldLink& link) {
    return !is_news(link.from * planner_.topology().ranks() + link.to, link.slow);
  });
  if (!links.empty()) tell(describe(links));
}

// True if several are close to the best. What has a priority waits for the end of its trial, and large data takes long.
bool Chooser::try_close_again(Trial& trial) const {
  if (trial.runs == kRunsOfClose || trial.lane == kPriorityLane || is_large(trial.query)) return false;
  const double most = kClose * *std::ranges::min_element(std::span(trial.numbers).first(trial.candidates.size()));
  std::erase_if(trial.turns, [&](std::size_t candidate) { return trial.numbers[candidate] > most; });
  if (trial.turns.size() == 1) return false;
  std::fill(trial.numbers.begin() + static_cast<std::ptrdiff_t>(trial.candidates.size()), trial.numbers.end(), 0);
  for (const std::size_t candidate : trial.turns) trial.numbers[candidate] = std::numeric_limits<double>::max();
  trial.runs = kRunsOfClose;
  trial.warmups = trial.started = trial.ended = 0;
  return true;
}

void Chooser::decide(Trial& trial) {
  const std::span<const double> table = std::span(trial.numbers).subspan(trial.candidates.size());
  Known& known = known_of(trial.lane);
  if (known.links.told) {
    if (planner_.self() == 0 && !table.empty()) note_slow_links(table);
  } else {
    Topology topology = planner_.topology();
    topology.links = known.links;
    known.links = corrected(topology, table);
    known.rates = known.rates || knows_rates(table);
    if (planner_.self() == 0) note_slow_hosts(table);
  }
  if (trial.candidates.empty()) return;
  if (trial.surveys) {
    const bool has_to_know = is_large(trial.query) && ++trial.surveyed < kMostSurveys;
    if (has_to_know && !known.rates) return begin(trial);
    trial.surveys = false;
    return make_candidates(trial);
  }
  if (try_close_again(trial)) return;
  const auto time_of = [&trial](std::size_t candidate) { return trial.numbers[candidate]; };
  trial.winner = &trial.candidates[*std::ranges::min_element(trial.turns, {}, time_of)];
  note_offers(trial);
}

}  // namespace ringcore::plan
