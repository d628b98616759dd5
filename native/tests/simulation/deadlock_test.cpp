// Deadlocks under random programs: ranks of several threads, which have several operations under way in several process
// sets, forget some and come to others in another order. What an ideal job would come to is known beforehand: whoever goes
// on there is never told of a deadlock, and every deadlock is found.
//
//   RINGCORE_SIMULATION_SEED=123 ringcore_tests -tc="*random programs*"
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "../from_environment.hpp"
#include "carriers/standard.hpp"
#include "engine/engine.hpp"
#include "program.hpp"
#include "transport/sim/network.hpp"

using namespace ringcore;
using namespace ringcore::simulation;
using engine::Operation;
using testing::from_environment;

namespace {

constexpr Nanoseconds kTick = 25 * kMillisecond;
// Longer than any program runs that ends; what is left of one that does not, ends by this at last.
constexpr Nanoseconds kTimeout = 120 * kSecond;
constexpr Nanoseconds kDeadline = 10 * kTimeout;

class Job {
 public:
  explicit Job(Draw& draw)
      : draw_(draw),
        program_(draw_program(draw)),
        ends_(ends_of(program_)),
        direct_members_(draw.one_in(3) ? 1 : 16),
        network_(program_.ranks, draw.generator()(),
                 {.longest_delay = draw.one_in(2) ? kMillisecond : 1500 * kMillisecond, .watched = draw.one_in(2)}) {
    for (Rank rank = 0; rank < program_.ranks; ++rank) start(rank);
    pauses_ = draw.below(4);
  }

  // What went wrong, or nothing.
  std::string run() {
    const auto over = [](const State& state) { return state.left && state.engine->farewell_seen(); };
    while (!std::all_of(states_.begin(), states_.end(), over)) {
      drive();
      if (!flaw_.empty()) return describe(flaw_);
      if (network_.clock().now() > kDeadline) return describe(told_ ? "hang after a deadlock" : "hang");
      const auto event = network_.next_event();
      const Nanoseconds tick = network_.clock().now() + kTick;
      if (event && *event < tick) {
        network_.step();
        continue;
      }
      network_.run_until(tick);
      if (pauses_ > 0 && draw_.one_in(40)) {
        --pauses_;
        network_.pause(draw_.below(program_.ranks), 1 + draw_.below(3000) * kMillisecond);
      }
      check_timers();
    }
    return told_ || !deadlocks() ? "" : describe("a deadlock was not found");
  }

 private:
  struct Thread {
    std::size_t next = 0;
    std::shared_ptr<Operation> waits_for;
    Nanoseconds computes_until = 0;
  };
  struct State {
    Rank rank = 0;
    std::unique_ptr<engine::Engine> engine;
    std::vector<engine::ProcessSetId> sets;
    std::vector<Thread> threads;
    std::vector<std::shared_ptr<Operation>> operations;  // by what is shared
    bool ends = false;  // its first thread is at the barrier that all end at
    bool left = false;
    std::vector<std::array<std::int32_t, 4>> values;
  };

  void start(Rank rank) {
    State& state = states_.emplace_back();
    engine::EngineConfig config;
    config.rank = state.rank = rank;
    config.make_carriers = carriers::standard();
    config.readiness = &network_.readiness(rank);
    config.links.resize(static_cast<std::size_t>(program_.ranks));
    for (Rank peer = 0; peer < program_.ranks; ++peer) {
      config.host_of.push_back(peer);
      if (peer != rank) config.links[static_cast<std::size_t>(peer)] = network_.link(rank, peer);
    }
    engine::EngineSettings settings;
    settings.direct_members = direct_members_;
    settings.heartbeat = 2 * kDeadline;
    settings.timeout = kTimeout;
    settings.stall_warning = 0;
    state.engine = std::make_unique<engine::Engine>(std::move(config), settings, network_.clock());
    for (std::size_t set = 0; set < program_.sets.size(); ++set) {
      state.sets.push_back(set == 0 ? engine::kWorld : state.engine->add_process_set(program_.sets[set]));
    }
    state.threads.resize(program_.threads[static_cast<std::size_t>(rank)].size());
    state.operations.resize(program_.shared.size());
    state.values.resize(program_.shared.size());
  }

  const std::vector<Step>& steps(const State& state, std::size_t thread) const {
    return program_.threads[static_cast<std::size_t>(state.rank)][thread];
  }

  void drive() {
    for (State& state : states_) {
      while (network_.runs(state.rank) && (state.engine->progress() || advance(state))) {
      }
    }
  }

  // As the runtime does, of which any thread may be awake just now.
  void check_timers() {
    for (State& state : states_) {
      if (!network_.runs(state.rank)) continue;
      state.engine->all_wait(all_waits(state));
      state.engine->check_timers(true);
    }
  }

  // What the threads of the rank wait for, if all do that are not at their ends.
  std::vector<const Operation*> all_waits(const State& state) const {
    std::vector<const Operation*> waits;
    for (std::size_t t = 0; t < state.threads.size(); ++t) {
      const Thread& thread = state.threads[t];
      if (thread.waits_for != nullptr) {
        waits.push_back(thread.waits_for.get());
      } else if (thread.next < steps(state, t).size()) {
        return {};
      }
    }
    return waits;
  }

  bool advance(State& state) {
    bool moved = false;
    bool all_end = true;
    for (std::size_t t = 0; t < state.threads.size(); ++t) {
      moved = advance(state, t) || moved;
      all_end = all_end && state.threads[t].next == steps(state, t).size() && state.threads[t].waits_for == nullptr;
    }
    if (!all_end || state.left) return moved;
    if (state.ends) {
      state.engine->leave("");
      return state.left = true;
    }
    state.ends = true;
    submit(state, program_.shared.size() - 1, true);
    wait(state, state.threads[0], program_.shared.size() - 1);
    return true;
  }

  bool advance(State& state, std::size_t index) {
    Thread& thread = state.threads[index];
    if (thread.waits_for != nullptr) {
      if (!thread.waits_for->done()) return false;
      check(state, *thread.waits_for);
      thread.waits_for = nullptr;
      state.engine->all_wait({});
      return true;
    }
    if (thread.next == steps(state, index).size() || network_.clock().now() < thread.computes_until) return false;
    const Step& step = steps(state, index)[thread.next++];
    switch (step.kind) {
      case Step::Kind::kCompute: thread.computes_until = network_.clock().now() + step.duration; return true;
      case Step::Kind::kSubmit: {
        const auto& next = steps(state, index);
        const bool runs = thread.next < next.size() && next[thread.next].kind == Step::Kind::kWait &&
                          next[thread.next].shared == step.shared;
        submit(state, step.shared, runs);
        return true;
      }
      case Step::Kind::kWait: wait(state, thread, step.shared); return true;
    }
    return false;
  }

  void submit(State& state, std::size_t index, bool awaited) {
    auto operation = std::make_shared<Operation>();
    const bool barrier = program_.shared[index].collective == Collective::kBarrier;
    operation->descriptor.name = "s" + std::to_string(index);
    operation->descriptor.collective = program_.shared[index].collective;
    operation->descriptor.dtype = DType::kInt32;
    operation->descriptor.op = ReduceOp::kSum;
    operation->descriptor.shape = engine::Shape::of(std::array<std::uint64_t, 1>{barrier ? 0U : 4U});
    operation->process_set = state.sets[program_.shared[index].set];
    operation->input = operation->output = reinterpret_cast<std::byte*>(state.values[index].data());
    operation->awaited = awaited;
    operation->only_thread = awaited && state.threads.size() == 1;
    try {
      state.engine->submit(operation);
      state.operations[index] = std::move(operation);
    } catch (const Error& error) {
      if (!told_) flaw_ = std::string("it was refused: ") + error.what();
    }
  }

  void wait(State& state, Thread& thread, std::size_t index) {
    if (state.operations[index] == nullptr) return;
    thread.waits_for = state.operations[index];
    state.engine->wanted(*thread.waits_for, state.threads.size() == 1);
  }

  // Whoever is told of a deadlock, and those who could end it, have come to where they would stay for ever.
  void check(const State& state, const Operation& operation) {
    if (operation.error == nullptr || told_) return;
    told_ = true;
    const std::string text = operation.error->what();
    if (operation.error->kind() != ErrorKind::kDeadlock) flaw_ = "another error: " + text;
    const bool of_all = text.find("did not submit it") != std::string::npos;
    const auto set = std::find(state.sets.begin(), state.sets.end(), operation.process_set) - state.sets.begin();
    for (const State& other : states_) {
      if (!of_all && !std::ranges::binary_search(program_.sets[static_cast<std::size_t>(set)], other.rank)) continue;
      for (std::size_t t = 0; t < other.threads.size(); ++t) {
        // The step of a wait is behind it while it lasts.
        const std::size_t stands = other.threads[t].next - (is_waiting(other, t) ? 1 : 0);
        if (stands < ends_[static_cast<std::size_t>(other.rank)][t]) flaw_ = "a false alarm: " + text;
      }
    }
  }

  static bool is_waiting(const State& state, std::size_t thread) {
    return state.threads[thread].waits_for != nullptr && !(thread == 0 && state.ends);
  }

  bool deadlocks() const {
    for (Rank rank = 0; rank < program_.ranks; ++rank) {
      for (std::size_t t = 0; t < program_.threads[static_cast<std::size_t>(rank)].size(); ++t) {
        const auto& threads = program_.threads[static_cast<std::size_t>(rank)];
        if (ends_[static_cast<std::size_t>(rank)][t] < threads[t].size()) return true;
      }
    }
    return false;
  }

  std::string describe(const std::string& what) const {
    std::string text = what + "\n  after " + std::to_string(network_.clock().now() / kMillisecond) + " ms, " +
                       (direct_members_ == 1 ? "along a tree, " : "") + (deadlocks() ? "a deadlock" : "no deadlock");
    for (const State& state : states_) {
      text += "\n  rank " + std::to_string(state.rank) + (state.ends ? ", ends" : "") + (state.left ? ", left" : "");
      for (std::size_t t = 0; t < state.threads.size(); ++t) {
        const Thread& thread = state.threads[t];
        text += "; step " + std::to_string(thread.next) + " of " + std::to_string(steps(state, t).size());
        if (thread.waits_for != nullptr) text += " in " + thread.waits_for->descriptor.name;
        text += ", end " + std::to_string(ends_[static_cast<std::size_t>(state.rank)][t]);
      }
    }
    return text;
  }

  Draw& draw_;
  Program program_;
  std::vector<std::vector<std::size_t>> ends_;
  int direct_members_;
  transport::SimNetwork network_;
  std::vector<State> states_;
  int pauses_ = 0;
  bool told_ = false;
  std::string flaw_;
};

}  // namespace

TEST_CASE("random programs of several threads: no deadlock is overlooked, and none is told where there is none") {
  const std::uint64_t only = from_environment("RINGCORE_SIMULATION_SEED", 0);
  const std::uint64_t first = only != 0 ? only : from_environment("RINGCORE_SIMULATION_FIRST", 1);
  const std::uint64_t count = only != 0 ? 1 : from_environment("RINGCORE_SIMULATION_PROGRAMS", 2000);
  int failures = 0;
  for (std::uint64_t seed = first; seed < first + count && failures < 5; ++seed) {
    Draw draw(seed);
    Job job(draw);
    const std::string flaw = job.run();
    if (flaw.empty()) continue;
    ++failures;
    MESSAGE("seed " << seed << ": " << flaw);
  }
  CHECK(failures == 0);
}

TEST_CASE("what all have submitted is done although another thread of a rank waits in a call that others never make") {
  transport::SimNetwork network(2, 1, {});
  engine::EngineSettings settings;
  settings.heartbeat = kDeadline;
  std::vector<std::unique_ptr<engine::Engine>> engines;
  for (Rank rank = 0; rank < 2; ++rank) {
    engine::EngineConfig config;
    config.rank = rank;
    config.host_of = {0, 1};
    config.make_carriers = carriers::standard();
    config.links.resize(2);
    config.links[static_cast<std::size_t>(1 - rank)] = network.link(rank, 1 - rank);
    engines.push_back(std::make_unique<engine::Engine>(std::move(config), settings, network.clock()));
  }
  std::array<std::array<float, 4>, 3> values{};
  const auto submit = [&](Rank rank, const std::string& name, std::array<float, 4>& data, bool awaited) {
    auto operation = std::make_shared<Operation>();
    operation->descriptor.name = name;
    operation->descriptor.collective = Collective::kAllreduce;
    operation->descriptor.dtype = DType::kFloat32;
    operation->descriptor.shape = engine::Shape::of(std::array<std::uint64_t, 1>{4});
    operation->input = operation->output = reinterpret_cast<std::byte*>(data.data());
    operation->awaited = awaited;
    engines[static_cast<std::size_t>(rank)]->submit(operation);
    return operation;
  };
  const auto shared = submit(0, "shared", values[0], false);
  submit(0, "own", values[1], true);
  engines[0]->wanted(*shared, false);
  submit(1, "shared", values[2], false);
  for (int tick = 0; tick < 40 && !shared->done(); ++tick) {
    network.run_until(network.clock().now() + kTick);
    for (const auto& engine : engines) {
      while (engine->progress()) {
      }
      engine->check_timers(true);
    }
  }
  CHECK(shared->done());
}
