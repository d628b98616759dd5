// Chooses who carries out an operation: a plan, or a backend.
//
// Inside a host the model knows the best plan. Between hosts, and beside a backend or a plan from outside, it leaves out what is hopeless. The
// others take turns at the first operations of a kind and size, and are timed; the ranks agree on the times, and the
// quickest has it from then on. Between hosts the model first learns how quick the network is: until somebody knows, the
// first operation of a kind and size, of large data a few, is no trial, but shows it. Every rank starts the operations of a
// lane that have no priority in the same order, so that all of them try the same at the same time, and learn the same,
// lane by lane; where there are backends, all operations.
//
// Ranks begin operations with a priority in different orders. So many of a kind and size that are enough for a trial are
// begun in the order of their release all the same, at first, and learn by themselves. What comes later begins when they
// have ended on this rank, which is when it knows what the others know.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "plan/backend.hpp"
#include "plan/offered.hpp"
#include "plan/paces.hpp"
#include "plan/planner.hpp"
#include "plan/told_links.hpp"

namespace ringcore::plan {

class Chooser {
 public:
  // `backends` may be empty. `offered`: null where no plans can come from outside. Of a lane's operations between
  // hosts that are decided each `survey_every`-th is a survey: the ranks tell each other of their links. 0: none is.
  Chooser(Planner planner, std::vector<std::unique_ptr<Backend>> backends, std::shared_ptr<Offered> offered = nullptr,
          int survey_every = 0);
  ~Chooser();

  // Whether others than the planner's own plans may carry something out.
  bool has_others() const { return !backends_.empty() || (offered_ != nullptr && offered_->version() > 0); }

  // What one kind of operation is tried with; or nothing, where the ranks only tell each other of their links.
  struct Trial;
  // Either a plan or a backend.
  struct Choice {
    const Plan* plan = nullptr;
    Backend* backend = nullptr;
    Trial* trial = nullptr;  // null: decided, and no survey
    const OfferedPlan* offered = nullptr;  // whose plan it is
    double predicted_s = 0;  // of an offered plan
    std::size_t candidate = 0;
    std::string_view name() const { return plan != nullptr ? plan->generator : backend->name(); }
  };
  // The same on all ranks whose lanes have seen the same: every rank starts it after the same operations of the lane.
  // Pointers stay valid. Throws what Planner::choose throws.
  Choice choose(const Query& query, int lane);
  // In place of the lane, for those of the operations with a priority that keep their places.
  static constexpr int kPriorityLane = -1;
  // Whether the next allreduce with a priority of this kind and size that is released is one of these.
  bool lets_in(const Query& query);
  // One of them has ended on this rank.
  void note_end(const Query& query);
  // Whether some have not ended on this rank.
  bool is_trying(const Query& query) const;
  // For those that come later: what has been found, or what the model takes for the best. Is no trial.
  Choice choose_found(const Query& query);
  // Without backends and trials.
  const Plan& choose_plan(const Query& query) { return planner_.choose(query); }
  // For what all nodes have to know, those who serve among them: a plan in which they are ranks as all others.
  const Plan& choose_plan_of_equals(const Query& query) {
    return equals_ ? equals_->choose(query) : choose_plan(query);
  }

  // A run of `choice` has taken so long on this rank. True after the last run of a trial: the ranks have to agree.
  bool measured(const Choice& choice, Nanoseconds time);
  // What this rank has measured, and its quickest link between hosts has shown, and its links to other hosts, by rank,
  // where anything has: each number is to be replaced by the largest of all ranks; then `decide`.
  std::span<double> numbers(Trial& trial, const PortPace& pace, std::span<const transport::Pace> links = {});
  void decide(Trial& trial);
  // Which hosts' ports are slow, or in a network that was told which links, when they have shown it twice: once for each,
  // and on rank 0 only, as all find out the same.
  std::string take_finding() { return std::exchange(finding_, {}); }

 private:
  using Key = std::tuple<Collective, int, DType, ReduceOp, Rank, bool, bool, bool, Compression, int>;

  // What a lane's operations have shown of the network.
  struct Known {
    Links links;
    bool rates = false;
    int chosen = 0;  // operations since the last survey
    std::unique_ptr<Trial> survey;  // without candidates
    std::vector<transport::Pace>
        seen;  // of this rank's links, when the ranks last told each other; where they were told
  };

  // How many operations with a priority of a kind and size keep their places, and have ended on this rank.
  struct Admitted {
    std::size_t released = 0;
    std::size_t ended = 0;
  };

  static Key key_of(const Query& query, int lane);
  std::size_t table_size() const;
  bool is_news(int number, bool slow);
  void note_slow_hosts(std::span<const double> table);
  void tell(const std::string& finding);
  void note_slow_links(std::span<const double> table);
  static bool offers(const Backend& backend, const Query& query);
  Known& known_of(int lane);
  void follow_offers();
  std::vector<const OfferedPlan*> offers_for(const Query& query) const;
  void add_offers(Trial& trial, double best_plan_s);
  void note_offers(const Trial& trial) const;
  void begin(Trial& trial);
  void make_candidates(Trial& trial);
  void add_plain(Trial& trial);
  void make_room(Trial& trial) const;
  bool try_close_again(Trial& trial) const;
  Trial* survey_due(int lane);

  Planner planner_;
  std::optional<Planner> equals_;  // where somebody serves
  std::vector<std::unique_ptr<Backend>> backends_;
  std::shared_ptr<Offered> offered_;
  int survey_every_;
  std::uint64_t offers_seen_ = 0;  // its version
  std::vector<std::shared_ptr<const OfferedPlan>> offers_;
  std::map<Key, std::unique_ptr<Trial>> trials_;
  std::vector<std::unique_ptr<Trial>>
      former_trials_;  // of before the last offer: whoever has a choice of them may look at it
  std::map<Key, Admitted> admitted_;
  std::map<int, Known> known_;  // by lane
  std::string finding_;
  // Hosts, or pairs of ranks: how often in a row they were; as often as kTelling and more: this has been told.
  std::map<int, int> slow_;
};

}  // namespace ringcore::plan
