// Many engines that are connected along the tree of their logs only, and what goes wrong among them: ranks die, leaders and
// several at a time among them, leave early, cables fall silent. What they run has no data. Whatever happens, all end, with
// the same for the same operation, and who is lost is named.
//
//   RINGCORE_SIMULATION_SEED=123 ringcore_tests -tc="*along the tree only*"
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "../from_environment.hpp"
#include "carriers/standard.hpp"
#include "engine/engine.hpp"
#include "engine/tree_shape.hpp"
#include "faults.hpp"
#include "transport/sim/network.hpp"

using namespace ringcore;
using namespace ringcore::simulation;
using engine::Operation;
using testing::from_environment;

namespace {

constexpr Nanoseconds kHeart = 200 * kMillisecond;
constexpr Nanoseconds kTick = 5 * kMillisecond;

class Job {
 public:
  Job(Draw& draw, int ranks) : draw_(draw), network_(ranks, draw.generator()(), {.longest_delay = kMillisecond}) {
    const int hosts = 1 + draw.below(ranks);
    for (Rank rank = 0; rank < ranks; ++rank) host_of_.push_back(draw.below(hosts));
    states_.resize(static_cast<std::size_t>(ranks));
    for (Rank rank = 0; rank < ranks; ++rank) start(rank);
    steps_ = 1 + draw.below(6);
    draw_faults(ranks);
  }

  // What went wrong, or nothing.
  std::string run() {
    for (int events = 0; !over(); ++events) {
      strike(events);
      drive();
      if (network_.clock().now() > 60 * kSecond) return describe("hang");
      const auto event = network_.next_event();
      const Nanoseconds tick = network_.clock().now() + kTick;
      if (event && *event < tick) {
        network_.step();
        continue;
      }
      network_.run_until(tick);
      for (State& state : states_) {
        if (network_.runs(state.rank)) state.engine->check_timers(true);
      }
      if (std::string flaw = check_news(); !flaw.empty()) return describe(flaw);
    }
    return check_ends();
  }

 private:
  struct State {
    Rank rank = 0;
    std::unique_ptr<engine::Engine> engine;
    std::vector<Rank> neighbours;
    std::vector<std::shared_ptr<Operation>> operations;
    std::string refused;  // an operation was, and why
    int step = 0;
    bool waits = false;
    bool left = false;
  };

  void start(Rank rank) {
    State& state = states_[static_cast<std::size_t>(rank)];
    engine::EngineConfig config;
    config.rank = state.rank = rank;
    config.host_of = host_of_;
    config.make_carriers = carriers::standard();
    config.links.resize(host_of_.size());
    const engine::TreeShape shape = engine::TreeShape::make(host_of_, rank);
    if (!shape.is_root()) state.neighbours.push_back(shape.parent);
    for (const engine::TreeShape::Child& child : shape.children) state.neighbours.push_back(child.member);
    for (const Rank peer : state.neighbours) config.links[static_cast<std::size_t>(peer)] = network_.link(rank, peer);
    engine::EngineSettings settings;
    settings.direct_members = 1;
    settings.heartbeat = kHeart;
    settings.timeout = 3 * kSecond;
    settings.stall_warning = 0;
    state.engine = std::make_unique<engine::Engine>(std::move(config), settings, network_.clock());
  }

  void draw_faults(int ranks) {
    const int count = draw_.below(4);
    for (int i = 0; i < count; ++i) {
      constexpr FaultKind kKinds[] = {FaultKind::kKill,  FaultKind::kKill,  FaultKind::kKillAtWrite,
                                      FaultKind::kLeave, FaultKind::kLeave, FaultKind::kSilence,
                                      FaultKind::kPause};
      Fault& fault = faults_.emplace_back();
      fault.kind = draw_.of(kKinds);
      fault.at_event = 1 + draw_.below(draw_.one_in(2) ? 100 : 3000);
      fault.victim = draw_.below(ranks);
      const State& victim = states_[static_cast<std::size_t>(fault.victim)];
      fault.other =
          victim.neighbours[static_cast<std::size_t>(draw_.below(static_cast<int>(victim.neighbours.size())))];
      fault.writes = draw_.below(10);
    }
  }

  void strike(int events) {
    for (Fault& fault : faults_) {
      State& victim = states_[static_cast<std::size_t>(fault.victim)];
      if (fault.injected || fault.at_event > events || !network_.runs(fault.victim)) continue;
      fault.injected = true;
      if (fault.kind == FaultKind::kLeave) {
        if (!victim.left) leave(victim, "early");
      } else {
        inject(fault, network_, 0, kHeart);
      }
    }
  }

  static void leave(State& state, const std::string& why) {
    state.engine->leave(why);
    state.left = true;
  }

  void drive() {
    for (State& state : states_) {
      while (network_.runs(state.rank) && (state.engine->progress() || advance(state))) {
      }
    }
  }

  // Each step has several operations that nobody waits for, and one that all do.
  bool advance(State& state) {
    if (state.left || (state.waits && !state.operations.back()->done())) return false;
    if (state.step == steps_) {
      if (!state.engine->wind_down()) return false;
      return leave(state, ""), true;
    }
    const int count = 1 + state.step % 3;
    for (int i = 0; i < count; ++i) {
      auto operation = std::make_shared<Operation>();
      operation->descriptor.name = "s" + std::to_string(state.step) + "." + std::to_string(i);
      operation->descriptor.collective = Collective::kBarrier;
      operation->awaited = operation->only_thread = i + 1 == count;
      try {
        state.engine->submit(operation);
      } catch (const Error& error) {
        state.refused = error.what();
        return leave(state, ""), true;
      }
      state.operations.push_back(std::move(operation));
    }
    state.waits = true;
    ++state.step;
    return true;
  }

  bool runs_on(const State& state) const { return network_.runs(state.rank) || is_paused(state.rank); }
  bool is_paused(Rank rank) const { return !network_.runs(rank) && dead_.count(rank) == 0; }

  bool over() {
    for (const Fault& fault : faults_) {
      if (fault.injected && (fault.kind == FaultKind::kKill || fault.kind == FaultKind::kKillAtWrite) &&
          !network_.runs(fault.victim)) {
        if (dead_.insert(fault.victim).second) last_death_ = network_.clock().now();
      }
    }
    return std::all_of(states_.begin(), states_.end(), [&](const State& state) {
      if (dead_.count(state.rank) > 0) return true;
      return state.left && (state.engine->farewell_seen() || state.engine->failure() != nullptr);
    });
  }

  // Who is lost is known to all within three hearts, if anybody waits at all.
  std::string check_news() {
    const bool only_deaths = std::all_of(faults_.begin(), faults_.end(), [](const Fault& fault) {
      return fault.kind == FaultKind::kKill || fault.kind == FaultKind::kKillAtWrite;
    });
    if (!only_deaths || dead_.empty() || network_.clock().now() - last_death_ <= 3 * kHeart) return "";
    for (const State& state : states_) {
      if (dead_.count(state.rank) > 0 || state.left) continue;
      const Rank lost = state.engine->lost_rank().value_or(-1);
      if (state.engine->failure() == nullptr) return "rank " + std::to_string(state.rank) + " knows of no death";
      if (dead_.count(lost) == 0) return "rank " + std::to_string(state.rank) + " blames " + std::to_string(lost);
    }
    return "";
  }

  bool may_fail() const {
    return std::any_of(faults_.begin(), faults_.end(),
                       [](const Fault& fault) { return fault.injected && fault.may_fail(); });
  }

  std::string check_ends() const {
    for (const State& state : states_) {
      if (dead_.count(state.rank) > 0) continue;
      for (const auto& operation : state.operations) {
        if (operation->done() && operation->error == nullptr) continue;
        if (!may_fail()) return describe(operation->done() ? operation->error->what() : "an operation was never done");
      }
      if (!may_fail() && !state.refused.empty()) return describe(state.refused);
    }
    return check_leaving();
  }

  // Where ranks only leave early, all agree on what was done, and name one that left.
  std::string check_leaving() const {
    std::set<std::string> leavers;
    for (const Fault& fault : faults_) {
      if (fault.kind != FaultKind::kLeave && fault.kind != FaultKind::kPause) return "";
      if (fault.injected && fault.kind == FaultKind::kLeave)
        leavers.insert("rank " + std::to_string(fault.victim) + " ");
    }
    std::set<std::string> named;
    for (const State& state : states_) {
      const bool leaves_early = leavers.count("rank " + std::to_string(state.rank) + " ") > 0;
      if (state.engine->failure() != nullptr) return describe(state.engine->failure()->what());
      for (const auto& operation : state.operations) {
        if (operation->done() && operation->error != nullptr) named.insert(operation->error->what());
        if (!operation->done() && !leaves_early) return describe("an operation was never done");
      }
      if (!state.refused.empty()) named.insert(state.refused);
    }
    for (const std::string& text : named) {
      const bool right = std::any_of(leavers.begin(), leavers.end(), [&](const std::string& leaver) {
        return text.find(": " + leaver + "has left (early)") != std::string::npos;
      });
      if (!right) return describe("nobody who left is named: " + text);
    }
    return "";
  }

  std::string describe(const std::string& what) const {
    std::string text = what + "\n  " + std::to_string(states_.size()) + " ranks, faults";
    for (const Fault& fault : faults_) {
      text += " " + std::to_string(static_cast<int>(fault.kind)) + (fault.injected ? " of " : " never of ") +
              std::to_string(fault.victim);
    }
    for (const State& state : states_) {
      text += "\n  rank " + std::to_string(state.rank) + ": step " + std::to_string(state.step) +
              (state.left ? ", left" : "") + (state.engine->farewell_seen() ? ", seen" : "");
      if (state.engine->failure() != nullptr) text += ", failed: " + std::string(state.engine->failure()->what());
    }
    return text;
  }

  Draw& draw_;
  transport::SimNetwork network_;
  std::vector<int> host_of_;
  std::vector<State> states_;
  std::vector<Fault> faults_;
  std::set<Rank> dead_;
  Nanoseconds last_death_ = 0;
  int steps_ = 0;
};

}  // namespace

TEST_CASE("fault schedules of ranks that are connected along the tree only: all end, and who is lost is named") {
  const std::uint64_t only = from_environment("RINGCORE_SIMULATION_SEED", 0);
  const std::uint64_t first = only != 0 ? only : from_environment("RINGCORE_SIMULATION_FIRST", 1);
  const std::uint64_t count = only != 0 ? 1 : from_environment("RINGCORE_SIMULATION_TREES", 300);
  int failures = 0;
  for (std::uint64_t seed = first; seed < first + count && failures < 5; ++seed) {
    Draw draw(seed);
    Job job(draw, 2 + draw.below(draw.one_in(4) ? 60 : 12));
    const std::string flaw = job.run();
    if (flaw.empty()) continue;
    ++failures;
    MESSAGE("seed " << seed << ": " << flaw);
  }
  CHECK(failures == 0);
}

TEST_CASE("who cannot wait for the ranks above it leaves in good order, when it is connected along the tree only") {
  transport::SimNetwork network(3, 1, {});
  engine::EngineSettings settings;
  settings.direct_members = 1;
  settings.heartbeat = 60 * kSecond;
  std::vector<std::unique_ptr<engine::Engine>> engines;
  for (Rank rank = 0; rank < 3; ++rank) {
    engine::EngineConfig config;
    config.rank = rank;
    config.host_of = {0, 0, 0};  // both others hang on rank 0
    config.make_carriers = carriers::standard();
    config.links.resize(3);
    for (const Rank peer : rank == 0 ? std::vector<Rank>{1, 2} : std::vector<Rank>{0}) {
      config.links[static_cast<std::size_t>(peer)] = network.link(rank, peer);
    }
    engines.push_back(std::make_unique<engine::Engine>(std::move(config), settings, network.clock()));
  }
  const auto drive = [&](Nanoseconds duration) {
    for (const Nanoseconds end = network.clock().now() + duration; network.clock().now() < end;) {
      network.run_until(network.clock().now() + kTick);
      for (const auto& each : engines) {
        while (network.runs(each->rank()) && each->progress()) {
        }
        if (network.runs(each->rank())) each->check_timers(true);
      }
    }
  };
  drive(kSecond);
  std::vector<std::shared_ptr<Operation>> waiting;
  for (const Rank rank : {0, 1}) {
    waiting.push_back(std::make_shared<Operation>());
    waiting.back()->descriptor.name = "waits";
    waiting.back()->descriptor.collective = Collective::kBarrier;
    engines[rank]->submit(waiting.back());
  }
  drive(kSecond);
  network.pause(0, 5 * kSecond);
  engines[2]->leave("it had enough");
  drive(2 * kSecond);
  REQUIRE(!engines[2]->farewell_seen());
  engines[2]->fail(std::make_shared<const Error>(ErrorKind::kShutdown, "shut down"));
  drive(5 * kSecond);
  for (const Rank rank : {0, 1}) {
    CHECK(engines[rank]->failure() == nullptr);
    // What waits for it fails now, and not when the time of the job is over.
    REQUIRE(waiting[rank]->done());
    const std::string told = waiting[rank]->error->what();
    CHECK_MESSAGE(told.find("rank 2 has left (it had enough)") != std::string::npos, told);
    auto operation = std::make_shared<Operation>();
    operation->descriptor.name = "late";
    operation->descriptor.collective = Collective::kBarrier;
    std::string text;
    try {
      engines[rank]->submit(operation);
    } catch (const Error& error) {
      text = error.what();
    }
    CHECK_MESSAGE(text.find("rank 2 has left (it had enough)") != std::string::npos, text);
  }
}
