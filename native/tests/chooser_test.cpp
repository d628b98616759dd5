#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <limits>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "base/reduce.hpp"
#include "cluster.hpp"
#include "plan/chooser.hpp"
#include "plan/forms/text.hpp"
#include "plan/forms/whole.hpp"

namespace ringcore::testing {
namespace {

// Where the ranks of a process meet to sum, as a library that does whole collectives would: lane by lane, in order.
struct Meeting {
  explicit Meeting(int ranks) : ranks(ranks) {}
  struct Lane {
    std::vector<plan::Operands> operands;
    int arrived = 0;
    std::atomic<int> rounds = 0;
  };
  const int ranks;
  std::function<void()> before_sum = [] {};  // by the rank that comes last
  std::function<void()> after_sum = [] {};
  std::mutex mutex;  // Guards: lanes' operands and arrived.
  std::array<Lane, transport::kLaneCount> lanes;
  std::atomic<int> runs = 0;
};

class MeetingRun final : public plan::Run {
 public:
  MeetingRun(Meeting& meeting, plan::Operands operands, int lane)
      : meeting_(meeting), lane_(meeting.lanes[static_cast<std::size_t>(lane)]), operands_(std::move(operands)) {}

  bool progress() override {
    if (std::exchange(started_, true)) return false;
    ++meeting_.runs;
    const std::lock_guard lock(meeting_.mutex);
    round_ = lane_.rounds;
    lane_.operands.push_back(std::move(operands_));
    if (++lane_.arrived < meeting_.ranks) return true;
    meeting_.before_sum();
    std::vector<const std::byte*> sources;
    std::vector<std::byte*> targets;
    for (const plan::Operands& own : lane_.operands) {
      sources.push_back(own.data);
      targets.push_back(own.data);
    }
    const plan::Operands& own = lane_.operands.front();
    const std::size_t count = own.data_layout.size(0);
    std::vector<std::byte> sum(count * size_of(own.dtype));
    std::byte* const to[] = {sum.data()};
    reduce_many(own.dtype, own.op, sources, to, count, own.final_scale);
    for (std::byte* target : targets) std::memcpy(target, sum.data(), sum.size());
    lane_.operands.clear();
    lane_.arrived = 0;
    ++lane_.rounds;
    meeting_.after_sum();
    return true;
  }
  bool done() const override { return started_ && lane_.rounds != round_; }
  bool waits_for(Rank) const override { return !done(); }
  std::string waiting_for() const override { return "the others"; }

 private:
  Meeting& meeting_;
  Meeting::Lane& lane_;
  plan::Operands operands_;
  bool started_ = false;
  int round_ = 0;
};

class MeetingBackend final : public plan::Backend {
 public:
  explicit MeetingBackend(std::shared_ptr<Meeting> meeting, double seconds = 0)
      : meeting_(std::move(meeting)), seconds_(seconds) {}
  std::string_view name() const override { return "meeting"; }
  bool offers(const plan::Query& query) const override { return query.collective == Collective::kAllreduce; }
  double predict_seconds(const plan::Query&, std::size_t) const override { return seconds_; }
  std::unique_ptr<plan::Run> start(const plan::Query&, plan::Operands operands, int lane) override {
    return std::make_unique<MeetingRun>(*meeting_, std::move(operands), lane);
  }

 private:
  std::shared_ptr<Meeting> meeting_;
  double seconds_;
};

ClusterOptions with_library(const std::shared_ptr<Meeting>& meeting) {
  ClusterOptions options{.ranks = meeting->ranks};
  options.make_backends = [meeting](const engine::CarrierConfig&) {
    std::vector<std::unique_ptr<plan::Backend>> backends;
    backends.push_back(std::make_unique<MeetingBackend>(meeting));
    return backends;
  };
  return options;
}

plan::Chooser chooser_with(double predicted_seconds) {
  std::vector<std::unique_ptr<plan::Backend>> backends;
  backends.push_back(std::make_unique<MeetingBackend>(std::make_shared<Meeting>(2), predicted_seconds));
  return {plan::Planner({.host_of = {0, 0}}, 0, {}), std::move(backends)};
}

constexpr plan::Query kQuery{.collective = Collective::kAllreduce, .bytes = 1 << 20, .dtype = DType::kFloat32};

// What has the kind of operation after a trial in which the backend takes so long, and the plan 100.
std::string winner(Nanoseconds first, Nanoseconds later, double peer) {
  plan::Chooser chooser = chooser_with(0);
  std::size_t backend = 0;
  bool set_up = false;
  for (int run = 0; run < 100; ++run) {
    const plan::Chooser::Choice choice = chooser.choose(kQuery, 1);
    if (choice.trial == nullptr) return std::string(choice.name());
    if (choice.backend != nullptr) backend = choice.candidate;
    const Nanoseconds own = choice.backend == nullptr ? 100 : std::exchange(set_up, true) ? later : first;
    if (!chooser.measured(choice, own)) continue;
    double& of_backend = chooser.numbers(*choice.trial, {})[backend];
    of_backend = std::max(of_backend, peer);
    chooser.decide(*choice.trial);
  }
  return "";
}

// Rank 1 gives what it has to rank 0, which gives back the sum.
plan::OfferedPlan pair_plan(bool always) {
  plan::WholePlan pair = plan::from_text(
      R"({"ringcore_plan": 1, "generator": "pair", "collective": "allreduce", "ranks": 2, "chunks": 1, "programs": [
      [[{"kind": "recv_reduce", "peer": 1, "targets": [0], "final": true}, {"kind": "send", "peer": 1, "sources": [0]}]],
      [[{"kind": "send", "peer": 0, "sources": [0]}, {"kind": "recv", "peer": 0, "targets": [0]}]]]})");
  return {plan::part_of(pair, 0), plan::excerpt_of(pair), std::size_t{1} << 19, std::size_t{1} << 21, always};
}

// What has the kind of operation after a trial in which the plan from outside takes so long, and others 100.
std::string winner_beside(const std::shared_ptr<plan::Offered>& offered, Nanoseconds time) {
  plan::Chooser chooser(plan::Planner({.host_of = {0, 0}}, 0, {}), {}, offered);
  CHECK(chooser.choose(kQuery, 1).trial == nullptr);  // inside a host nothing is tried
  CHECK(!chooser.has_others());
  offered->offer({pair_plan(false)});
  CHECK(chooser.has_others());
  for (int run = 0; run < 100; ++run) {
    const plan::Chooser::Choice choice = chooser.choose(kQuery, 1);
    if (choice.trial == nullptr) return std::string(choice.name());
    if (chooser.measured(choice, choice.name() == "pair" ? time : 100)) {
      chooser.numbers(*choice.trial, {});
      chooser.decide(*choice.trial);
    }
  }
  return "";
}

}  // namespace

TEST_CASE("chooser: a plan from outside is tried beside the others, and what was found is told") {
  const auto quick = std::make_shared<plan::Offered>();
  CHECK(winner_beside(quick, 50) == "pair");
  REQUIRE(quick->outcomes().size() == 1);
  CHECK(quick->outcomes()[0].chosen);
  CHECK(quick->outcomes()[0].measured_s == doctest::Approx(50e-9));
  CHECK(quick->outcomes()[0].best_other_s == doctest::Approx(100e-9));
  CHECK(quick->outcomes()[0].predicted_s > 0);
  const auto slow = std::make_shared<plan::Offered>();
  CHECK(winner_beside(slow, 150) != "pair");
  CHECK(!slow->outcomes().at(0).chosen);
}

TEST_CASE("chooser: a plan from outside has only what it is for") {
  const auto offered = std::make_shared<plan::Offered>();
  offered->offer({pair_plan(true)});
  plan::Chooser chooser(plan::Planner({.host_of = {0, 0}}, 0, {}), {}, offered);
  CHECK(chooser.choose(kQuery, 1).name() == "pair");
  CHECK(chooser.choose(kQuery, 1).trial == nullptr);
  CHECK(chooser.choose_found(kQuery).name() != "pair");  // ranks begin it in different orders
  plan::Query query = kQuery;
  query.bytes = std::size_t{1} << 22;
  CHECK(chooser.choose(query, 1).name() != "pair");
  query = kQuery;
  query.collective = Collective::kBroadcast;
  CHECK(chooser.choose(query, 1).name() != "pair");
  query = kQuery;
  query.compression = Compression::kInt8;
  CHECK(chooser.choose(query, 1).name() != "pair");
  query = kQuery;
  query.deterministic = true;
  CHECK(chooser.choose(query, 1).name() != "pair");
  plan::Chooser of_three(plan::Planner({.host_of = {0, 0, 0}}, 0, {}), {}, offered);
  CHECK(of_three.choose(kQuery, 1).name() != "pair");
}

TEST_CASE("chooser: the quickest by measurement has the operations of a kind") {
  CHECK(winner(50, 50, 0) == "meeting");
  CHECK(winner(150, 150, 0) != "meeting");
  CHECK(winner(5000, 50, 0) == "meeting");  // the first run sets up
  CHECK(winner(50, 50, 150) != "meeting");  // slow on another rank
}

TEST_CASE("chooser: what is close to the best is tried again, and no candidate has the better place in all rounds") {
  // The backend takes so long in the first trial, and then so long; a plan 100; what is second of two steps takes longer.
  const auto winner_of = [](Nanoseconds at_first, Nanoseconds again, Nanoseconds as_second) {
    plan::Chooser chooser = chooser_with(0);
    int ends = 0;
    for (int run = 0; run < 100; ++run) {
      const plan::Chooser::Choice choice = chooser.choose(kQuery, 1);
      if (choice.trial == nullptr) return std::pair(std::string(choice.name()), ends);
      const Nanoseconds time = choice.backend == nullptr ? 100 : ends == 0 ? at_first : again;
      if (!chooser.measured(choice, time + (run % 2 == 1 ? as_second : 0))) continue;
      chooser.numbers(*choice.trial, {});
      chooser.decide(*choice.trial);
      ++ends;
    }
    return std::pair(std::string(), ends);
  };
  CHECK(winner_of(95, 95, 0) == std::pair(std::string("meeting"), 2));
  CHECK(winner_of(95, 105, 0).first != "meeting");  // chance
  CHECK(winner_of(110, 90, 0).first == "meeting");
  CHECK(winner_of(50, 150, 0) == std::pair(std::string("meeting"), 1));  // close to nothing
  CHECK(winner_of(90, 90, 1000).first == "meeting");
  CHECK(winner_of(110, 110, 1000).first != "meeting");
}

TEST_CASE("chooser: what is not to be tried is not tried") {
  plan::Chooser hopeless = chooser_with(10);
  CHECK(hopeless.choose(kQuery, 1).plan != nullptr);
  CHECK(hopeless.choose(kQuery, 1).trial == nullptr);
  plan::Chooser chooser = chooser_with(0);
  plan::Query deterministic = kQuery;
  deterministic.deterministic = true;
  CHECK(chooser.choose(deterministic, 1).trial == nullptr);
  plan::Query other = kQuery;
  other.collective = Collective::kBroadcast;
  CHECK(chooser.choose(other, 1).trial == nullptr);
  // Each kind, size and lane has a trial of its own.
  plan::Query larger = kQuery;
  larger.bytes *= 4;
  const std::set<plan::Chooser::Trial*> trials{chooser.choose(kQuery, 1).trial, chooser.choose(kQuery, 2).trial,
                                               chooser.choose(larger, 1).trial};
  CHECK(trials.size() == 3);
  CHECK(trials.count(nullptr) == 0);
}

TEST_CASE("chooser: between hosts a few plans are tried, in order, and the quickest has the operations") {
  const plan::Query query{.collective = Collective::kAllreduce, .bytes = 64 << 10, .dtype = DType::kFloat32};
  plan::Chooser chooser(plan::Planner({.host_of = {0, 1, 2, 3, 4, 5, 6, 7}}, 0, {}), {});
  std::set<std::string> tried;
  std::string quick;
  int runs = 0;
  for (;; ++runs) {
    REQUIRE(runs < 100);
    CHECK(chooser.choose_found(query).trial == nullptr);  // what has a priority may come at any time
    const plan::Chooser::Choice choice = chooser.choose(query, 1);
    if (choice.trial == nullptr) {
      CHECK(choice.name() == quick);
      break;
    }
    tried.insert(std::string(choice.name()));
    if (choice.candidate == 1) quick = choice.name();
    if (!chooser.measured(choice, choice.candidate == 1 ? 50 : 100)) continue;
    chooser.numbers(*choice.trial, {});
    chooser.decide(*choice.trial);
  }
  CHECK(tried.size() == 3);
  CHECK(runs == 13);  // the first one has shown what the network is like
  plan::Query deterministic = query;
  deterministic.deterministic = true;
  CHECK(chooser.choose(deterministic, 2).trial == nullptr);
  plan::Chooser one_host(plan::Planner({.host_of = {0, 0, 0, 0}}, 0, {}), {});
  CHECK(one_host.choose(query, 1).trial == nullptr);
}

TEST_CASE("chooser: of operations with a priority the first ones are tried, and the others have what was found") {
  const plan::Query query{.collective = Collective::kAllreduce, .bytes = 64 << 10, .dtype = DType::kFloat32};
  plan::Chooser chooser(plan::Planner({.host_of = {0, 1, 2, 3, 4, 5, 6, 7}}, 0, {}), {});
  const std::string of_model(chooser.choose_found(query).name());
  int let_in = 0;
  while (chooser.lets_in(query)) REQUIRE(++let_in < 100);
  std::string quick;
  for (int run = 0; run < let_in; ++run) {
    CHECK(chooser.is_trying(query));
    CHECK(chooser.choose(query, 1).trial != nullptr);  // lanes learn by themselves
    const plan::Chooser::Choice choice = chooser.choose(query, plan::Chooser::kPriorityLane);
    if (choice.trial != nullptr) {
      if (choice.candidate == 1) quick = choice.name();
      if (chooser.measured(choice, choice.candidate == 1 ? 50 : 100)) {
        chooser.numbers(*choice.trial, {});
        chooser.decide(*choice.trial);
      }
    }
    chooser.note_end(query);
  }
  CHECK(!chooser.is_trying(query));
  CHECK(!chooser.lets_in(query));
  CHECK(quick != of_model);
  CHECK(chooser.choose_found(query).name() == quick);
  CHECK(chooser.choose_found(query).trial == nullptr);
  plan::Query other = query;
  other.bytes *= 4;
  CHECK(!chooser.is_trying(other));
  CHECK(chooser.lets_in(other));
  other.deterministic = true;
  CHECK(!chooser.lets_in(other));
  plan::Chooser one_host(plan::Planner({.host_of = {0, 0, 0, 0}}, 0, {}), {});
  CHECK(!one_host.lets_in(query));
}

TEST_CASE("chooser: ranks on several hosts try the same plans and settle on one") {
  constexpr int kRanks = 4;
  ClusterOptions options{.ranks = kRanks, .host_of = {0, 1, 2, 3}};
  options.settings.execution.fusion_threshold_bytes = 0;
  Cluster cluster(std::move(options));
  std::array<std::vector<std::string>, kRanks> plans;
  std::array<std::vector<std::string>, kRanks> prioritised;  // step by step
  constexpr int kSteps = 30;
  cluster.run([&](Rank rank) {
    Runtime& runtime = cluster.runtime(rank);
    runtime.start_timeline();
    // Of the calls side by side some have a priority: they are tried apart from the others, and disturb nothing.
    std::array<std::vector<float>, 3> values;
    for (int step = 0; step < kSteps; ++step) {
      std::vector<std::shared_ptr<engine::Operation>> operations;
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i].assign(20'000, static_cast<float>(rank + step));
        const engine::Array array{reinterpret_cast<std::byte*>(values[i].data()),
                                  engine::Shape::of(std::array{values[i].size()}), DType::kFloat32};
        const engine::Call call{
            .collective = Collective::kAllreduce, .name = "v" + std::to_string(i), .op = ReduceOp::kAverage};
        operations.push_back(engine::make_operation(call, array, &array));
        operations.back()->priority = i == 2 ? -1 - step % 3 : 0;
        runtime.submit(operations.back());
      }
      for (std::size_t i = 0; i < values.size(); ++i) {
        runtime.wait(*operations[i], Runtime::kForever, {});
        REQUIRE(operations[i]->error == nullptr);
        const float expected = static_cast<float>(step) + 1.5F;
        CHECK(std::all_of(values[i].begin(), values[i].end(), [&](float value) { return value == expected; }));
      }
    }
    for (const engine::Span& span : runtime.stop_timeline()) {
      const bool of_a_plan = span.channel == -1 && span.lane != engine::kProgramLane && span.activity != "negotiate" &&
                             span.activity != "queue" && span.activity != "copy";
      if (!of_a_plan) continue;
      const auto self = static_cast<std::size_t>(rank);
      if (span.name == "v2") {
        prioritised[self].push_back(span.activity);
      } else {
        plans[self].push_back(std::to_string(span.lane) + span.activity);
      }
    }
  });
  // The lanes run side by side.
  const auto by_lane = [](const std::string& a, const std::string& b) { return a.front() < b.front(); };
  for (std::vector<std::string>& own : plans) std::stable_sort(own.begin(), own.end(), by_lane);
  CHECK(plans[0].size() == 60);
  CHECK(std::set(plans[0].begin(), plans[0].end()).size() > 2);  // more than one in each of two lanes
  for (const auto& own : plans) CHECK(own == plans[0]);
  CHECK(prioritised[0].size() == kSteps);
  CHECK(std::set(prioritised[0].begin(), prioritised[0].end()).size() > 1);
  for (const auto& own : prioritised) CHECK(own == prioritised[0]);
}

TEST_CASE("chooser: pieces with a priority wait on each rank until the first of them have been tried there") {
  constexpr int kRanks = 4;
  ClusterOptions options{.ranks = kRanks, .host_of = {0, 1, 2, 3}};
  options.settings.timeout = 20 * kSecond;
  options.settings.execution.partition_bytes = 8 << 10;
  Cluster cluster(std::move(options));
  cluster.run([&](Rank rank) {
    cluster.runtime(rank).start_timeline();
    std::vector<float> values(96 * 2048);  // pieces of one size
    const engine::Array array{reinterpret_cast<std::byte*>(values.data()), engine::Shape::of(std::array{values.size()}),
                              DType::kFloat32};
    for (int step = 0; step < 3; ++step) {
      std::fill(values.begin(), values.end(), static_cast<float>(rank));
      const engine::Call call{
          .collective = Collective::kAllreduce, .name = "values", .op = ReduceOp::kSum, .priority = -1};
      const auto operation = engine::make_operation(call, array, &array);
      cluster.runtime(rank).run(operation, {});
      if (operation->error) throw *operation->error;
      CHECK(std::ranges::all_of(values, [](float value) { return value == 6.0F; }));
    }
    int tried = 0;
    Nanoseconds all_tried = 0;
    Nanoseconds first_of_others = std::numeric_limits<Nanoseconds>::max();
    for (const engine::Span& span : cluster.runtime(rank).stop_timeline()) {
      if (span.channel != -1 || span.lane == engine::kProgramLane) continue;
      if (span.lane == transport::kFirstDataLane) {
        tried += span.activity == "queue" ? 1 : 0;
        all_tried = std::max(all_tried, span.end);
      } else if (span.activity == "queue") {
        first_of_others = std::min(first_of_others, span.end);  // when it began
      }
    }
    CHECK(tried > 1);
    CHECK(first_of_others >= all_tried);
  });
}

TEST_CASE("chooser: a rank is not lost while a library holds it for longer than it may be silent") {
  const auto meeting = std::make_shared<Meeting>(2);
  ClusterOptions options = with_library(meeting);
  const Nanoseconds heartbeat = options.settings.heartbeat = kSecond;
  const SteadyClock clock;
  const auto once_silent_for = [&clock](Nanoseconds silence) {
    return [&clock, silence]() mutable {
      for (const Nanoseconds begin = clock.now(); clock.now() - begin < silence;) std::this_thread::yield();
      silence = 0;
    };
  };
  meeting->before_sum = once_silent_for(2 * heartbeat);
  meeting->after_sum = once_silent_for(heartbeat / 2);  // the heartbeat does not come at once
  Cluster cluster(std::move(options));
  cluster.run([&](Rank rank) {
    std::vector<float> values(4'000'000);
    const engine::Array array{reinterpret_cast<std::byte*>(values.data()), engine::Shape::of(std::array{values.size()}),
                              DType::kFloat32};
    for (int step = 0; step < 6; ++step) {
      const engine::Call call{.collective = Collective::kAllreduce, .name = "values", .op = ReduceOp::kSum};
      const auto operation = engine::make_operation(call, array, &array);
      cluster.runtime(rank).run(operation, {});
      if (operation->error) throw *operation->error;
    }
  });
  CHECK(meeting->runs > 0);
}

TEST_CASE("chooser: ranks agree, and every run of a trial has the right result") {
  // Beside a library what has a priority keeps its place as well.
  for (const auto& [ranks, registered, priority] : {std::tuple(2, false, 0), {3, false, -2}, {3, true, 0}}) {
    const auto meeting = std::make_shared<Meeting>(ranks);
    Cluster cluster(with_library(meeting));
    cluster.run([&, registered = registered, priority = priority](Rank rank) {
      constexpr std::size_t kCount = 40'000;
      std::vector<float> elsewhere(2 * kCount);
      std::byte* const arena = cluster.arena(rank).allocate(2 * kCount * sizeof(float));
      float* const memory = registered ? reinterpret_cast<float*>(arena) : elsewhere.data();
      const std::span input(memory, kCount);
      const std::span values(memory + kCount, kCount);
      const auto array_of = [](std::span<float> elements) {
        return engine::Array{reinterpret_cast<std::byte*>(elements.data()),
                             engine::Shape::of(std::array{elements.size()}), DType::kFloat32};
      };
      const engine::Array source = array_of(input);
      const engine::Array target = array_of(values);
      for (int step = 0; step < 40; ++step) {
        std::fill(input.begin(), input.end(), static_cast<float>(rank + step));
        const engine::Call call{
            .collective = Collective::kAllreduce, .name = "values", .op = ReduceOp::kAverage, .priority = priority};
        const auto operation = engine::make_operation(call, source, &target);
        cluster.runtime(rank).run(operation, {});
        REQUIRE(operation->error == nullptr);
        const float expected = static_cast<float>(step) + static_cast<float>(ranks - 1) / 2;
        CHECK(std::all_of(values.begin(), values.end(), [&](float value) { return value == expected; }));
      }
      cluster.arena(rank).release(arena);
    });
    CHECK(meeting->runs >= 3 * ranks);
    CHECK(meeting->runs % ranks == 0);
  }
}

}  // namespace ringcore::testing
