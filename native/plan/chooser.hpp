// Chooses who carries out an operation: a plan, or a backend.
//
// Inside a host the model knows the best plan. Between hosts, and beside a backend, it leaves out what is hopeless. The
// others take turns at the first operations of a kind and size, and are timed; the ranks agree on the times, and the
// quickest has it from then on. Every rank starts the operations of a lane that have no priority in the same order, so that
// all of them try the same at the same time; where there are backends, all operations.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/clock.hpp"
#include "plan/backend.hpp"
#include "plan/planner.hpp"

namespace ringcore::plan {

class Chooser {
 public:
  // `backends` may be empty.
  Chooser(Planner planner, std::vector<std::unique_ptr<Backend>> backends)
      : planner_(std::move(planner)), backends_(std::move(backends)) {}

  bool has_backends() const { return !backends_.empty(); }

  // Times of the candidates for one kind of operation, in nanoseconds.
  struct Trial;
  // Either a plan or a backend.
  struct Choice {
    const Plan* plan = nullptr;
    Backend* backend = nullptr;
    Trial* trial = nullptr;  // null: decided
    std::size_t candidate = 0;
    std::string_view name() const { return plan != nullptr ? plan->generator : backend->name(); }
  };
  // The same on all ranks whose lanes have seen the same. `in_order`: every rank starts it after the same operations of
  // the lane that are in order. Pointers stay valid. Throws what Planner::choose throws.
  Choice choose(const Query& query, int lane, bool in_order);
  // Without backends and trials.
  const Plan& choose_plan(const Query& query) { return planner_.choose(query); }

  // A run of `choice` has taken so long on this rank. After the last run of a trial: this rank's times, each to be
  // replaced by the longest of all ranks; then `decide`. Empty otherwise.
  std::span<double> measured(const Choice& choice, Nanoseconds time);
  static void decide(Trial& trial);

 private:
  using Key = std::tuple<Collective, int, DType, ReduceOp, Rank, bool, bool, int>;

  std::unique_ptr<Trial> make_trial(const Query& query);

  Planner planner_;
  std::vector<std::unique_ptr<Backend>> backends_;
  std::map<Key, std::unique_ptr<Trial>> trials_;
};

struct Chooser::Trial {
  std::vector<Choice> candidates;
  std::vector<double> times;
  std::size_t runs = 0;  // of each candidate, that count
  std::size_t started = 0;
  std::size_t ended = 0;
  const Choice* winner = nullptr;
};

}  // namespace ringcore::plan
