// The engine under fault schedules: the real code, N ranks in one thread, virtual time, one seed.
//
// Each seed decides everything: how many ranks, on which hosts, what they submit and in which order, and what goes wrong.
// Oracles: nothing hangs (every operation ends by its deadline), no wrong result ever, all ranks agree about mismatches,
// and without a fault that explains it nothing fails. A failing seed is printed and replays exactly:
//
//   RINGCORE_SIMULATION_SEED=123 ringcore_tests -tc="*fault schedules*"
#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>

#include "engine/engine.hpp"
#include "transport/sim.hpp"

using namespace ringcore;
using engine::Engine;
using engine::Operation;
using transport::SimNetwork;

namespace {

enum class Fault { kNone, kPause, kKill, kKillAtWrite, kCut, kSilence, kStaleEpoch, kDuplicate };
constexpr int kFaultKinds = 8;

bool may_fail(Fault fault) { return fault != Fault::kNone && fault != Fault::kPause; }

// What is submitted under one name: the same on all ranks, except where a mismatch is planted.
struct Plan {
  std::string name;
  Collective collective{};
  std::uint64_t count = 1;  // elements, or rows of 2 elements
  Rank root = 0;
  int priority = 0;
  std::uint64_t parts = 0;  // above 0: the rows are submitted as a group of so many tensors
  Rank misfit = -1;  // this rank submits another dtype
};

// One operation of one rank, with its memory.
struct Task {
  const Plan* plan = nullptr;
  std::vector<std::int64_t> input;
  std::vector<std::int64_t> output;
  std::shared_ptr<Operation> operation;
};

// What a rank does, one after the other.
struct Action {
  enum class Kind { kSubmit, kWait, kRun, kJoin } kind{};
  std::size_t task = 0;
};

struct RankState {
  std::unique_ptr<Engine> engine;
  std::vector<Action> script;
  std::size_t next = 0;
  std::vector<Task> tasks;
  std::shared_ptr<Operation> waiting;
  bool refused = false;  // the engine has failed and takes nothing more
  std::string trouble;
};

class Simulation {
 public:
  explicit Simulation(std::uint64_t seed) : seed_(seed), choose_(seed * 0x9e3779b97f4a7c15ULL + 1) {
    ranks_ = 2 + pick(3);
    transport::SimOptions options;
    options.longest_delay = pick(2) == 0 ? 20'000 : 3 * kMillisecond;
    options.lane_bytes = pick(2) == 0 ? 512 : 8192;
    if (pick(2) == 0) {
      for (Rank r = 0; r < ranks_; ++r) options.host_of.push_back(pick(2) == 0 ? 0 : r % 2);
      options.reserved_bytes = 3 * kFusionBytes;
    }
    network_ = std::make_unique<SimNetwork>(ranks_, seed, options);
    fault_ = static_cast<Fault>(pick(kFaultKinds));
    make_plans();
    for (Rank r = 0; r < ranks_; ++r) make_rank(r, options);
    fault_at_ = 1 + pick(60);
  }

  // Empty when all oracles hold.
  std::string run() {
    const Nanoseconds begin = network_->clock().now();
    int events = 0;
    while (!finished()) {
      if (events++ == fault_at_) inject();
      drive();
      if (network_->clock().now() - begin > kDeadline) return describe("hang: not finished in time");
      const auto event = network_->next_event();
      const Nanoseconds tick = network_->clock().now() + kTick;
      if (event && *event < tick) {
        network_->step();
      } else {
        network_->run_until(tick);
        tend();
      }
    }
    return check();
  }

 private:
  static constexpr std::size_t kFusionBytes = 4096;
  static constexpr Nanoseconds kTick = 5 * kMillisecond;
  static constexpr Nanoseconds kHeartbeat = 200 * kMillisecond;
  static constexpr Nanoseconds kTimeout = 2 * kSecond;
  static constexpr Nanoseconds kDeadline = 30 * kSecond;

  int pick(int below) { return static_cast<int>(choose_() % static_cast<unsigned>(below)); }

  void make_plans() {
    const int count = 1 + pick(6);
    for (int i = 0; i < count; ++i) {
      Plan plan;
      plan.name = "t" + std::to_string(i);
      plan.collective = static_cast<Collective>(pick(kCollectiveCount));
      plan.count = static_cast<std::uint64_t>(pick(4) == 0 ? pick(2000) : pick(40));
      plan.root = pick(ranks_);
      plan.priority = pick(2) == 0 ? 0 : pick(7) - 4;
      if (pick(8) == 0) plan.misfit = pick(ranks_);
      plans_.push_back(plan);
    }
    blocking_ = pick(3) == 0;  // everything in blocking calls, in one order
    joins_ = pick(4) == 0;
    for (Plan& plan : plans_) {
      if (joins_) plan.collective = Collective::kAllreduce, plan.misfit = -1;
      if (plan.collective == Collective::kAllreduce && pick(4) == 0) plan.parts = 1 + static_cast<unsigned>(pick(5));
    }
  }

  void make_rank(Rank rank, const transport::SimOptions& options) {
    RankState& state = states_.emplace_back();
    engine::EngineConfig config;
    config.rank = rank;
    config.epoch = 7;
    config.links.resize(ranks_);
    for (Rank peer = 0; peer < ranks_; ++peer) {
      if (peer != rank) config.links[peer] = network_->link(rank, peer);
    }
    config.host_of = options.host_of;
    if (config.host_of.empty()) {
      for (Rank r = 0; r < ranks_; ++r) config.host_of.push_back(r);
    }
    config.arena = network_->arena(rank);
    if (config.arena != nullptr) config.fusion_arena = network_->arena_memory(rank).data();
    engine::EngineSettings settings;
    settings.execution.fusion_threshold_bytes = kFusionBytes;
    settings.eager_limit_bytes = 256;
    settings.timeout = kTimeout;
    settings.stall_warning = 0;
    settings.heartbeat = kHeartbeat;
    state.engine = std::make_unique<Engine>(std::move(config), settings, network_->clock());
    // A joining rank leaves out the last operations.
    std::size_t own = plans_.size();
    if (joins_) own = static_cast<std::size_t>(pick(static_cast<int>(plans_.size()) + 1));
    for (std::size_t i = 0; i < own; ++i) state.tasks.push_back(make_task(rank, plans_[i]));
    std::vector<std::size_t> order(own);
    std::iota(order.begin(), order.end(), 0);
    if (!blocking_) std::shuffle(order.begin(), order.end(), choose_);
    for (const std::size_t task : order) {
      state.script.push_back({blocking_ ? Action::Kind::kRun : Action::Kind::kSubmit, task});
    }
    // A rank may join before it waits for what it has submitted.
    const bool joins_early = joins_ && pick(2) == 0;
    if (joins_early) state.script.push_back({Action::Kind::kJoin, 0});
    if (!blocking_) {
      std::shuffle(order.begin(), order.end(), choose_);
      for (const std::size_t task : order) state.script.push_back({Action::Kind::kWait, task});
    }
    if (joins_ && !joins_early) state.script.push_back({Action::Kind::kJoin, 0});
  }

  // Rank r contributes 8^r times something that depends on the element: a lost or doubled share shows whose it was.
  static std::int64_t value(Rank rank, std::uint64_t element) {
    return (std::int64_t{1} << (3 * rank)) + static_cast<std::int64_t>(element % 5) * 4096 * (rank + 1);
  }

  Task make_task(Rank rank, const Plan& plan) {
    Task task{.plan = &plan, .input = {}, .output = {}, .operation = std::make_shared<Operation>()};
    Operation& operation = *task.operation;
    engine::Descriptor& descriptor = operation.descriptor;
    descriptor.name = plan.name;
    descriptor.collective = plan.collective;
    descriptor.dtype = plan.misfit == rank ? DType::kFloat64 : DType::kInt64;
    descriptor.op = ReduceOp::kSum;
    descriptor.root = plan.root;
    operation.priority = plan.priority;
    std::uint64_t rows = plan.count;
    switch (plan.collective) {
      case Collective::kAllgather: rows = plan.count + static_cast<std::uint64_t>(rank); break;
      case Collective::kAlltoall:
        rows = 0;
        for (Rank to = 0; to < ranks_; ++to) {
          operation.splits.push_back(split(rank, to, plan.count));
          rows += operation.splits.back();
        }
        break;
      case Collective::kBarrier: rows = 0; break;
      case Collective::kAllreduce:
      case Collective::kBroadcast:
      case Collective::kReduceScatter: break;
    }
    const std::uint64_t shape[] = {rows, 2};
    descriptor.shape = engine::Shape::of(shape);
    for (std::uint64_t e = 0; e < rows * 2; ++e) task.input.push_back(value(rank, e));
    operation.input = reinterpret_cast<const std::byte*>(task.input.data());
    if (plan.collective == Collective::kAllreduce || plan.collective == Collective::kBroadcast) {
      task.output.assign(rows * 2, -1);
      operation.output = reinterpret_cast<std::byte*>(task.output.data());
    }
    if (plan.parts > 0) task.operation = in_parts(operation, plan.parts);
    return task;
  }

  // The rows of an allreduce dealt out to the tensors of a group.
  static std::shared_ptr<Operation> in_parts(const Operation& whole, std::uint64_t count) {
    std::vector<std::shared_ptr<Operation>> parts;
    const std::uint64_t rows = whole.descriptor.shape.rows();
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t begin = rows * i / count;
      auto part = std::make_shared<Operation>();
      part->descriptor = whole.descriptor;
      part->descriptor.shape.extent[0] = rows * (i + 1) / count - begin;
      part->input = whole.input + begin * 16;
      part->output = whole.output + begin * 16;
      part->priority = whole.priority;
      parts.push_back(std::move(part));
    }
    return engine::make_group(whole.descriptor.name, std::move(parts));
  }

  static std::uint64_t split(Rank from, Rank to, std::uint64_t count) {
    return (count + static_cast<std::uint64_t>(from * 3 + to)) % 7;
  }

  void drive() {
    for (Rank rank = 0; rank < ranks_; ++rank) {
      RankState& state = states_[rank];
      while (network_->runs(rank) && (state.engine->progress() || advance(state))) {
      }
    }
  }

  void tend() {
    for (Rank rank = 0; rank < ranks_; ++rank) {
      if (network_->runs(rank)) states_[rank].engine->tend(true);
    }
  }

  // The next action of the script; false when it has to wait or is at its end.
  bool advance(RankState& state) {
    if (state.waiting != nullptr) {
      if (!state.waiting->done()) return false;
      state.waiting = nullptr;
      return true;
    }
    if (state.refused || state.next == state.script.size()) return false;
    const Action action = state.script[state.next++];
    try {
      switch (action.kind) {
        case Action::Kind::kSubmit: state.engine->submit(state.tasks[action.task].operation); break;
        case Action::Kind::kRun: {
          const auto& operation = state.tasks[action.task].operation;
          operation->awaited = operation->only_thread = true;
          state.engine->submit(operation);
          state.waiting = operation;
          break;
        }
        case Action::Kind::kWait:
          state.waiting = state.tasks[action.task].operation;
          state.engine->wanted(*state.waiting, true);
          break;
        case Action::Kind::kJoin:
          state.waiting = std::make_shared<Operation>();
          state.waiting->join = true;
          state.engine->submit(state.waiting);
          break;
      }
    } catch (const Error& error) {
      state.refused = true;
      state.trouble = error.what();
      state.waiting = nullptr;
    }
    return true;
  }

  bool finished() {
    for (Rank rank = 0; rank < ranks_; ++rank) {
      const RankState& state = states_[rank];
      if (rank == victim_ && lost_) continue;
      if (!state.refused && (state.next < state.script.size() || state.waiting != nullptr)) return false;
      for (const Task& task : state.tasks) {
        if (!state.refused && !task.operation->done()) return false;
      }
    }
    return true;
  }

  void inject() {
    victim_ = pick(ranks_);
    const Rank other = (victim_ + 1 + pick(ranks_ - 1)) % ranks_;
    switch (fault_) {
      case Fault::kNone: break;
      case Fault::kPause: network_->pause(victim_, kHeartbeat / 2); break;
      case Fault::kKill:
        network_->kill(victim_);
        lost_ = true;
        break;
      case Fault::kKillAtWrite:
        network_->kill_at_write(victim_, static_cast<std::uint64_t>(pick(20)));
        lost_ = true;
        break;
      case Fault::kCut: network_->cut(victim_, other); break;
      case Fault::kSilence: network_->silence(victim_, other); break;
      case Fault::kStaleEpoch: {
        engine::RecordHeader header{.bytes = sizeof(engine::RecordHeader), .type = engine::RecordType::kHeartbeat};
        header.epoch = 6;
        network_->inject(victim_, other, transport::kControlLane, std::as_bytes(std::span(&header, 1)));
        break;
      }
      case Fault::kDuplicate: {
        engine::RecordHeader header{.bytes = sizeof(engine::RecordHeader), .type = engine::RecordType::kHeartbeat};
        header.epoch = 7;  // right in everything but its number: record 0 was the greeting
        network_->inject(victim_, other, transport::kControlLane, std::as_bytes(std::span(&header, 1)));
        break;
      }
    }
  }

  std::string check() {
    for (std::size_t i = 0; i < plans_.size(); ++i) {
      std::map<std::string, int> messages;
      for (Rank rank = 0; rank < ranks_; ++rank) {
        RankState& state = states_[rank];
        if (rank == victim_ && lost_) continue;
        if (state.refused && !may_fail(fault_)) return describe("rank " + std::to_string(rank) + ": " + state.trouble);
        if (i >= state.tasks.size()) continue;
        const Task& task = state.tasks[i];
        if (!task.operation->done()) continue;  // never submitted: the engine had failed before
        if (task.operation->error != nullptr) {
          ++messages[task.operation->error->what()];
          const bool explained = may_fail(fault_) || task.plan->misfit >= 0;
          if (!explained) return describe(plans_[i].name + " failed: " + task.operation->error->what());
          continue;
        }
        if (task.plan->misfit >= 0) return describe(plans_[i].name + ": a mismatch was not noticed");
        if (const std::string wrong = check_result(rank, task); !wrong.empty()) return describe(wrong);
      }
      if (messages.size() > 1 && !may_fail(fault_)) {
        return describe(plans_[i].name + " failed differently on the ranks:\n    " + messages.begin()->first +
                        "\n    " + std::next(messages.begin())->first);
      }
    }
    if (fault_ == Fault::kStaleEpoch || fault_ == Fault::kDuplicate) return check_noticed();
    return "";
  }

  // A record that no correct peer sends must end the job, if it came before the job was over.
  std::string check_noticed() {
    if (victim_ < 0) return "";
    drive();
    for (int i = 0; i < 2000 && network_->step(); ++i) drive();
    const char* reason = fault_ == Fault::kStaleEpoch ? "of epoch 6 in epoch 7" : "where record";
    for (const RankState& state : states_) {
      if (state.engine->failure() == nullptr) continue;
      if (std::string(state.engine->failure()->what()).find(reason) != std::string::npos) return "";
    }
    return describe("a wrong record was accepted");
  }

  std::vector<Rank> contributors(std::size_t plan_index) const {
    std::vector<Rank> ranks;
    for (Rank rank = 0; rank < ranks_; ++rank) {
      if (plan_index < states_[rank].tasks.size()) ranks.push_back(rank);
    }
    return ranks;
  }

  std::string check_result(Rank rank, const Task& task) const {
    const Plan& plan = *task.plan;
    const std::vector<Rank> from = contributors(static_cast<std::size_t>(task.plan - plans_.data()));
    const auto total = [&](std::uint64_t element) {
      std::int64_t sum = 0;
      for (const Rank r : from) sum += value(r, element);
      return sum;
    };
    std::vector<std::int64_t> got(task.output);
    std::vector<std::int64_t> expected;
    if (task.output.empty()) {
      got.resize(task.operation->result.size() / 8);
      if (!got.empty()) std::memcpy(got.data(), task.operation->result.data(), got.size() * 8);
    }
    switch (plan.collective) {
      case Collective::kAllreduce:
        for (std::uint64_t e = 0; e < plan.count * 2; ++e) expected.push_back(total(e));
        break;
      case Collective::kBroadcast:
        for (std::uint64_t e = 0; e < plan.count * 2; ++e) expected.push_back(value(plan.root, e));
        break;
      case Collective::kAllgather:
        for (Rank r = 0; r < ranks_; ++r) {
          for (std::uint64_t e = 0; e < (plan.count + static_cast<std::uint64_t>(r)) * 2; ++e) {
            expected.push_back(value(r, e));
          }
        }
        break;
      case Collective::kReduceScatter: {
        const auto n = static_cast<std::uint64_t>(ranks_);
        const auto r = static_cast<std::uint64_t>(rank);
        const std::uint64_t begin = plan.count / n * r + std::min(r, plan.count % n);
        const std::uint64_t rows = plan.count / n + (r < plan.count % n ? 1 : 0);
        for (std::uint64_t e = begin * 2; e < (begin + rows) * 2; ++e) expected.push_back(total(e));
        break;
      }
      case Collective::kAlltoall:
        for (Rank r = 0; r < ranks_; ++r) {
          std::uint64_t begin = 0;
          for (Rank to = 0; to < rank; ++to) begin += split(r, to, plan.count);
          for (std::uint64_t e = begin * 2; e < (begin + split(r, rank, plan.count)) * 2; ++e) {
            expected.push_back(value(r, e));
          }
        }
        break;
      case Collective::kBarrier: return "";
    }
    if (got == expected) return "";
    return plan.name + " (" + std::string(name_of(plan.collective)) + "): wrong result on rank " + std::to_string(rank);
  }

  std::string describe(const std::string& what) const {
    std::string text = "seed " + std::to_string(seed_) + ", fault " + std::to_string(static_cast<int>(fault_)) + ", " +
                       std::to_string(ranks_) + " ranks" + (blocking_ ? ", blocking" : "") +
                       (joins_ ? ", joining" : "") + ": " + what;
    for (Rank rank = 0; rank < ranks_; ++rank) {
      const RankState& state = states_[rank];
      text += "\n  rank " + std::to_string(rank) + ": action " + std::to_string(state.next) + " of " +
              std::to_string(state.script.size());
      if (state.engine->failure() != nullptr) text += ", failed: " + std::string(state.engine->failure()->what());
    }
    return text;
  }

  std::uint64_t seed_;
  std::mt19937_64 choose_;
  int ranks_ = 0;
  Fault fault_ = Fault::kNone;
  int fault_at_ = 0;
  Rank victim_ = -1;
  bool lost_ = false;  // the victim is dead: nothing is expected of it
  bool blocking_ = false;
  bool joins_ = false;
  std::vector<Plan> plans_;
  std::unique_ptr<SimNetwork> network_;
  std::vector<RankState> states_;
};

std::uint64_t from_environment(const char* name, std::uint64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
}

}  // namespace

TEST_CASE("fault schedules: nothing hangs, no result is wrong") {
  const std::uint64_t only = from_environment("RINGCORE_SIMULATION_SEED", 0);
  const std::uint64_t count = from_environment("RINGCORE_SIMULATION_SEEDS", 8000);
  int failures = 0;
  for (std::uint64_t seed = only != 0 ? only : 1; seed <= (only != 0 ? only : count) && failures < 5; ++seed) {
    const std::string flaw = Simulation(seed).run();
    if (flaw.empty()) continue;
    ++failures;
    MESSAGE(flaw);
  }
  CHECK(failures == 0);
}

TEST_CASE("small blocking operations one after the other show that a peer is alive") {
  SimNetwork network(2, 1, {});
  engine::EngineSettings settings;
  settings.heartbeat = 200 * kMillisecond;
  std::vector<std::unique_ptr<Engine>> engines;
  for (Rank rank = 0; rank < 2; ++rank) {
    engine::EngineConfig config;
    config.rank = rank;
    config.links.resize(2);
    config.links[1 - rank] = network.link(rank, 1 - rank);
    config.host_of = {0, 1};
    engines.push_back(std::make_unique<Engine>(std::move(config), settings, network.clock()));
  }
  std::int64_t values[2] = {1, 1};
  for (int call = 0; call < 50; ++call) {
    std::shared_ptr<Operation> operations[2];
    for (Rank rank = 0; rank < 2; ++rank) {
      Operation& operation = *(operations[rank] = std::make_shared<Operation>());
      operation.descriptor.name = "loss";
      operation.descriptor.collective = Collective::kAllreduce;
      operation.descriptor.dtype = DType::kInt64;
      operation.descriptor.op = ReduceOp::kSum;
      operation.descriptor.shape = engine::Shape::of(std::array<std::uint64_t, 1>{1});
      operation.output = reinterpret_cast<std::byte*>(&values[rank]);
      operation.input = operation.output;
      operation.awaited = operation.only_thread = true;
      engines[rank]->submit(operations[rank]);
    }
    for (int tick = 0; tick < 4; ++tick) {
      network.run_until(network.clock().now() + 5 * kMillisecond);
      for (const auto& engine : engines) {
        while (engine->progress()) {
        }
        engine->tend(true);
      }
    }
    for (const auto& operation : operations) {
      REQUIRE(operation->done());
      REQUIRE(operation->error == nullptr);
    }
  }
  CHECK(values[0] == std::int64_t{1} << 50);
}
