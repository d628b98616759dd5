// A job that goes on when ranks are lost: some steps on the real engines over a simulated network, and what must hold.
//
// Each step sums up what tells whose contribution is in it. Where all inputs stay as they are the engines see to what is
// under way, and a step some of whose sums are of earlier members than others is summed up again: nobody is told of a
// loss. Else whoever is told that the members have changed takes note of it, agrees with the others on the first step that
// one of them has not ended, and goes on from there.
//
// Behind each step all look whether somebody wants to join them whom all have met, and let it in. It begins where they are.
// There they also tell each other who leaves, and meet once more: those who stay go on then, and miss whoever has left until
// all have. Where callers go back to a commit they need not for that.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.hpp"
#include "engine/view_change.hpp"
#include "sim_device.hpp"
#include "sim_switch.hpp"
#include "transport/sim/network.hpp"

namespace ringcore::simulation {

struct ElasticOptions {
  int ranks = 3;
  bool share_memory = true;  // all are on one host, where ends are seen
  bool encrypted = false;  // between hosts
  bool witness = false;
  int joiners = 0;  // places behind those of the ranks, for `join_at`
  bool joiners_far = false;  // they are on another host than the ranks, together
  bool joiners_differ = false;  // in a setting that must be alike
  bool joiners_apart = false;  // they do not meet each other
  std::array<int, 2> joiners_prepare{};  // by place: so many events after they have come they are ready to be ranks
  bool in_place = true;  // the largest tensor is reduced where it lies
  bool from_registered = true;  // else it lies in registered memory, as its sum does
  bool goes_back = false;  // callers are told of each change, and go back to a commit
  bool may_leave = false;  // see `leave_at`
  Nanoseconds late_goodbye = 0;  // to the last of the others, of whoever leaves
  Compression compression{};  // of the middle one
  bool on_device = false;  // the largest tensor lies on a device, which ends a step after it is done for its rank
  bool device_notices = false;  // ... and whose library notices at once that a member has ended
  bool at_switch = false;  // sums are made there, see `give_up_at`
  std::array<Nanoseconds, 4> computes{};  // by place: for so long in front of each step, and of the end
  std::size_t lane_bytes = 512;
  int tree_degree = 0;  // the logs go along a tree, of so many children; 0: from each to each
  std::uint64_t seed = 1;
};

// Tells whose it is, and of which step: no two sums of different members are alike.
inline std::int64_t contribution(engine::Place place, std::int64_t step) {
  return (std::int64_t{1} << (8 * place)) * (2 * step + 1);
}

class ElasticJob {
 public:
  static constexpr int kSteps = 3;
  static constexpr Nanoseconds kHeartbeat = 200 * kMillisecond;
  static constexpr Nanoseconds kFarewellLimit = 2 * kSecond;  // as the runtime's

  explicit ElasticJob(ElasticOptions options);

  // At event `at` of the run.
  void when(int at, std::function<void(transport::SimNetwork&)> fault) { faults_.emplace(at, std::move(fault)); }
  void kill_witness_at(int event) { witness_ends_at_ = event; }
  // The process of a place that nobody has yet comes and is connected with all who are there, and with those who join. Of
  // several the lowest place comes first.
  void join_at(int event, engine::Place place) { joins_.emplace(event, place); }
  // From that event on it wants to leave: it does behind its next step, if that is not the last one.
  void leave_at(int event, engine::Place place) { leaves_.emplace(event, place); }
  // From that event on it hears nothing of the switch, and gives it up once it has a sum to make there.
  void give_up_at(int event, engine::Place place) { give_ups_.emplace(event, place); }
  // Until all that live have left or failed; what is wrong, or nothing.
  std::string run();
  int events() const { return events_; }

  bool has_joined(engine::Place place) const { return ranks_[static_cast<std::size_t>(place)].has_joined; }
  bool lives(Rank rank) const { return network_.runs(rank); }
  const engine::Engine& engine(Rank rank) const { return *ranks_[static_cast<std::size_t>(rank)].engine; }
  engine::Engine& engine(Rank rank) { return *ranks_[static_cast<std::size_t>(rank)].engine; }
  // Whether all steps are done there.
  bool finished(Rank rank) const { return has_left(rank) && !has_left_early(rank); }
  bool has_left(Rank rank) const { return ranks_[static_cast<std::size_t>(rank)].has_left; }
  bool has_left_early(Rank rank) const { return ranks_[static_cast<std::size_t>(rank)].end < kSteps; }
  // The step that it has taken part in first.
  std::int64_t first(Rank rank) const { return ranks_[static_cast<std::size_t>(rank)].first; }
  // Steps that it has summed up again since their sums were of several epochs.
  int repeated(Rank rank) const { return ranks_[static_cast<std::size_t>(rank)].repeated; }
  Nanoseconds waited(Rank rank) const { return engine(rank).waited_for_others(); }
  // Whether it has come to do without the switch.
  bool plans_only(Rank rank) const { return ranks_[static_cast<std::size_t>(rank)].plans_only; }
  int changes(Rank rank) const { return ranks_[static_cast<std::size_t>(rank)].changes; }

 private:
  enum class Phase { kJoining, kStep, kNews, kLeaving, kParting, kLettingIn, kAgreeing, kBarrier, kEnded };
  static constexpr std::size_t kTensors = 3;
  // Awaited and small in place, out of place and large, in place in memory that others see or out of it.
  static constexpr std::array<std::size_t, kTensors> kElements = {3, 200, 400};

  struct RankState {
    engine::Place place = 0;
    std::unique_ptr<engine::Engine> engine;
    Phase phase = Phase::kStep;
    std::int64_t next = 0;  // step
    int steps = 0;  // that were done, of all that were
    int repeated = 0;  // steps of several epochs
    std::uint32_t of_epoch = 0;  // what has ended last
    bool is_mixed = false;  // ... and something of it was of an earlier one
    std::vector<std::shared_ptr<engine::Operation>> operations;  // of the phase
    std::array<std::vector<std::int64_t>, kTensors> inputs;
    std::array<std::vector<std::int64_t>, kTensors> outputs;
    std::int64_t* registered = nullptr;  // for the sum of the largest tensor
    std::int64_t* registered_input = nullptr;
    std::int64_t agreed = 0;
    std::int64_t news = 0;  // for each place, how many have met who wants it
    std::int64_t all_news = 0;
    engine::Place lets_in = 0;  // in the phase of that name
    bool has_come = false;  // ... and it was a member, if not for long
    bool has_joined = false;
    std::int64_t first = 0;  // step that it took part in
    std::int64_t end = kSteps;  // ... and the one in front of which it left
    bool wants_to_leave = false;
    bool gives_up = false;
    bool gave_up = false;  // ... and has had a sum to make there since
    bool plans_only = false;  // in its present epoch
    engine::Places leaving;  // others, whom this one is to go on without
    int ready_at = 0;  // the event at which it asks to be let in
    std::optional<Nanoseconds> asked;
    std::optional<Nanoseconds> computes_until;  // what it submits then
    Nanoseconds ended_at = 0;
    std::array<std::array<std::int64_t, kTensors>, kSteps> sums{};  // of each step, as it was last done
    std::array<std::vector<std::int64_t>, kSteps> compressed{};  // sums, bit by bit
    std::array<std::uint32_t, kSteps> epoch_of{};
    std::map<std::uint32_t, int> ended;  // by epoch: operations besides those of steps that have ended well
    int changes = 0;
    bool has_left = false;
    std::string flaw;
  };

  void make_engine(RankState& rank, const std::vector<engine::Place>& peers, bool joins);
  std::vector<std::unique_ptr<engine::Carrier>> make_carriers(RankState& rank, const engine::CarrierConfig& config);
  std::unique_ptr<engine::Carrier> make_switch_carrier(RankState& rank, const engine::CarrierConfig& config);
  void join(engine::Place place);
  bool is_there(const RankState& rank) const;
  bool advance_alone(RankState& rank);
  bool computes(RankState& rank);
  bool progress(RankState& rank);
  bool advance(RankState& rank);
  void submit(RankState& rank);
  void submit_one(RankState& rank, const std::string& name, Collective collective, ReduceOp op,
                  const std::int64_t* input, std::int64_t* output, std::size_t elements, bool awaited,
                  bool compressed = false, bool on_device = false);
  void end_phase(RankState& rank);
  void take_news(RankState& rank);
  void leave_early(RankState& rank);
  void part(RankState& rank);
  std::int64_t* output_of(RankState& rank, std::size_t tensor) const;
  bool is_in_place(const RankState& rank, std::size_t tensor) const;
  const std::int64_t* place_input(RankState& rank, std::size_t tensor);
  bool is_compressed(std::size_t tensor) const { return tensor == 1 && options_.compression != Compression::kNone; }
  void take_sums(RankState& rank);
  void take_compressed(RankState& rank);
  void drive();
  void serve_witness();
  void check_timers();
  bool ended(const RankState& rank) const;
  std::string check() const;
  std::int64_t expected(const RankState& rank, std::int64_t step) const;

  ElasticOptions options_;
  transport::SimNetwork network_;
  std::map<std::uint32_t, std::shared_ptr<SimDevices>> devices_;  // by epoch
  std::map<std::uint32_t, std::shared_ptr<SimSwitch>> switches_;  // by epoch; null where there are plans only
  std::optional<engine::Witness> witness_;
  std::multimap<int, std::function<void(transport::SimNetwork&)>> faults_;
  std::multimap<int, engine::Place> joins_;
  std::multimap<int, engine::Place> leaves_;
  std::multimap<int, engine::Place> give_ups_;
  int witness_ends_at_ = -1;
  int events_ = 0;
  Nanoseconds began_ = 0;
  std::vector<RankState> ranks_;
};

}  // namespace ringcore::simulation
