// The ranks of a simulated job: the real engines over a simulated network, driven in one thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.hpp"
#include "faults.hpp"
#include "plan/offered.hpp"
#include "sim_device.hpp"
#include "sim_library.hpp"
#include "transport/sim/network.hpp"
#include "workload.hpp"

namespace ringcore::simulation {

// One request of one rank, with its memory.
struct Task {
  std::size_t phase = 0;
  const Request* request = nullptr;
  int member = 0;
  int members = 0;
  bool submitted = false;
  bool taken = false;  // its results lie in `got`
  std::shared_ptr<engine::Operation> operation;
  std::shared_ptr<engine::Operation> watch;  // of the others' announcements of it
  bool watch_seen = false;  // it has ended
  std::vector<std::vector<std::byte>> inputs;   // of each tensor
  std::vector<std::vector<std::byte>> outputs;  // of each tensor
  std::vector<std::span<std::byte>> results;  // of each tensor, where the member gives a place for its result
  std::vector<std::byte*> pieces;             // registered memory of these
  bool overrun = false;                         // something was written behind one of them
  std::byte* piece = nullptr;                   // registered memory instead, of all tensors
  std::vector<std::vector<std::byte>> got;      // of each tensor
  std::shared_ptr<const Error> error;           // also when it was not taken at all
};

// What a rank does, one after the other.
struct Action {
  enum class Kind : std::uint8_t {
    kSubmit,
    kWait,
    kRun,
    kWatch,
    kAwaitWatch,
    kJoin,
    kMeet,
    kOffer,
    kAddSet,
    kRemoveSet,
    kLeave
  } kind{};
  std::size_t index = 0;  // of a task, of a set, or of a phase
};

struct RankState {
  Rank rank = 0;
  std::unique_ptr<engine::Engine> engine;
  std::vector<Action> script;
  std::size_t next = 0;
  std::vector<Task> tasks;
  std::vector<engine::ProcessSetId> sets;  // by index in Workload::sets
  std::map<engine::ProcessSetId, std::size_t> uses;  // of a number: sets so far
  std::shared_ptr<engine::Operation> waiting;
  Task* waits_for = nullptr;
  std::shared_ptr<const Error> join_error;
  std::shared_ptr<const Error> meet_error;
  std::shared_ptr<plan::Offered> offered = std::make_shared<plan::Offered>();
  bool left = false;
  std::optional<Nanoseconds> ended_at;  // when it had nothing left to do, and had failed
  bool gone = false;  // nothing is expected of it
  bool leaves_early = false;  // its process ends when it has said goodbye
  bool asleep = false;  // since it has armed its links
};

// One life of a job, from its start to its end.
class Cluster {
 public:
  static constexpr Nanoseconds kHeartbeat = 200 * kMillisecond;
  static constexpr Nanoseconds kTimeout = 2 * kSecond;
  static constexpr Nanoseconds kFarewellLimit = 2 * kSecond;  // as the runtime's
  static constexpr Nanoseconds kDeadline = 30 * kSecond;

  Cluster(const Workload& workload, std::vector<Fault> faults, Draw& draw, std::uint32_t epoch);

  // Until nothing is left to do; what hangs, or nothing.
  std::string run();
  // What the carriers have noticed to be wrong, or who had something to do in its sleep, or nothing.
  std::string flaw() const;
  // Lets what is under way arrive.
  void settle();

  const Workload& workload() const { return workload_; }
  const std::vector<Fault>& faults() const { return faults_; }
  // The servers are the last ones.
  const std::vector<RankState>& ranks() const { return states_; }
  // The members that submit a request of a phase, and have not joined instead.
  std::vector<int> contributors(std::size_t phase, std::size_t request) const;
  std::string describe(const std::string& what) const;

 private:
  static constexpr Nanoseconds kTick = 5 * kMillisecond;

  // What the members of a process set share: their devices, and their library.
  struct Shared {
    std::shared_ptr<SimDevices> devices;
    std::shared_ptr<SimMeetings> meetings;
  };

  int nodes() const { return nodes_of(workload_); }
  bool is_server(const RankState& state) const { return state.rank >= workload_.ranks; }
  void connect_along_tree();
  void make_engine(RankState& state);
  std::vector<std::unique_ptr<engine::Carrier>> make_carriers(RankState& state, const engine::CarrierConfig& config);
  static bool has_result(const RankState& state, const Task& task);
  void write_script(RankState& state);
  void write_phase(RankState& state, std::size_t phase);
  static std::shared_ptr<engine::Operation> group_of(RankState& state, const Request& request,
                                                     std::vector<std::shared_ptr<engine::Operation>> tensors);
  void make_task(RankState& state, Task& task);
  std::shared_ptr<engine::Operation> make_tensor(RankState& state, Task& task, std::size_t tensor, std::byte* at);
  std::byte* place_result(RankState& state, Task& task, const engine::Operation& tensor);
  void place(RankState& state, Task& task, std::vector<std::byte*>& places);
  void take_results(RankState& state, Task& task);
  void submit(RankState& state, Task& task);
  static void meet(RankState& state);
  void offer(RankState& state, const OfferedBefore& offered);
  bool is_watched(const Phase& phase, const Request& request) const;
  void watch(RankState& state, Task& task);
  void look_at_watches(RankState& state);
  bool advance(RankState& state);
  void add_set(RankState& state, std::size_t set);
  void act(RankState& state, const Action& action);
  void inject_due(int events);
  void drive();
  void drive(RankState& state);
  static bool arm(const RankState& state);
  void find_oversleepers();
  void check_timers();
  bool finished(const RankState& state) const;

  const Workload& workload_;
  std::vector<Fault> faults_;
  Draw& draw_;
  std::uint32_t epoch_;
  std::vector<std::vector<std::size_t>> own_counts_;  // by phase and rank: of its requests
  std::unique_ptr<transport::SimNetwork> network_;
  std::map<std::pair<engine::ProcessSetId, std::size_t>, Shared> shared_;  // by process set, and use of its number
  std::vector<RankState> states_;
  std::string watch_flaw_;
  std::string overslept_;
};

}  // namespace ringcore::simulation
