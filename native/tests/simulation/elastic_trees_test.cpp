// Elastic jobs of more ranks than tell each other everything: along a tree, with connections only where they are needed,
// some ranks end, and those that are left go on with sums of just them.
//
//   RINGCORE_ELASTIC_TREE_SEED=123 ringcore_tests -tc="elastic jobs along trees"
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "../from_environment.hpp"
#include "../sim_job.hpp"
#include "engine/tree_shape.hpp"

using namespace ringcore;
using testing::from_environment;
using testing::SimJob;

namespace {

constexpr int kRanks = 8;
constexpr int kSteps = 4;

// Not connected from the start: all but neighbours in the tree, and those that watch each other.
std::vector<std::pair<Rank, Rank>> apart_of(int ranks, int tree_degree) {
  std::vector<int> hosts(static_cast<std::size_t>(ranks));
  std::iota(hosts.begin(), hosts.end(), 0);
  const std::vector<engine::TreeShape> shapes = engine::TreeShape::of_all(hosts, tree_degree);
  std::vector<std::pair<Rank, Rank>> apart;
  for (Rank a = 0; a < ranks; ++a) {
    for (Rank b = a + 1; b < ranks; ++b) {
      const int distance = std::min(b - a, ranks - (b - a));
      const bool in_tree =
          shapes[static_cast<std::size_t>(a)].parent == b || shapes[static_cast<std::size_t>(b)].parent == a;
      if (distance > 2 && !in_tree) apart.emplace_back(a, b);
    }
  }
  return apart;
}

SimJob::Change elastic(int tree_degree) {
  return [=](engine::EngineConfig& config, engine::EngineSettings& settings) {
    config.epoch = 7;
    settings.elastic = true;
    settings.tree_degree = tree_degree;
    settings.eager_limit_bytes = 512;
    settings.timeout = 20 * kSecond;
    settings.elastic_timeout = 5 * kSecond;
  };
}

class Job {
 public:
  explicit Job(std::uint64_t seed) : random_(seed * 0x9e3779b97f4a7c15ULL + 1), job_(make(seed)) {
    const bool somebody_leaves = below(3) == 0;
    if (somebody_leaves) leaves_at_[static_cast<std::size_t>(below(kRanks))] = 1 + below(kSteps - 1);
    // More than half are left, and go on though nobody sees processes end.
    for (int kills = 1 + below(somebody_leaves ? 2 : 3); kills > 0; --kills) {
      const Rank rank = below(kRanks);
      const bool is_silent = below(3) == 0;
      faults_.emplace(below(4000), [=, this] {
        if (!is_silent) return job_.network().kill(rank);
        job_.network().pause(rank, 100 * kSecond);
        ranks_[static_cast<std::size_t>(rank)].is_silent = true;
      });
    }
    // Some hear late of what happens, but for what one of the others says.
    for (int late = below(3); late > 0; --late) {
      const Rank to = below(kRanks);
      const Rank in_time = below(kRanks);
      const int at = below(below(2) == 0 ? 100 : 4000);
      for (Rank from = 0; from < kRanks; ++from) {
        if (from == to || from == in_time) continue;
        const Nanoseconds how_long = kMillisecond * (1 + below(20));
        faults_.emplace(at, [=, this] { job_.network().delay(from, to, transport::kControlLane, how_long); });
      }
    }
  }

  // What is wrong, or nothing.
  std::string run() {
    const auto ended = [this] { return advance(); };
    if (!job_.run_until(ended)) return "hang";
    return flaw_;
  }

 private:
  struct RankState {
    int step = 0;
    bool has_left = false;
    bool is_silent = false;
    std::vector<float> small, large;
    std::vector<std::shared_ptr<engine::Operation>> operations;
  };

  int below(int bound) { return static_cast<int>(random_() % static_cast<unsigned>(bound)); }

  SimJob make(std::uint64_t seed) {
    const int tree_degree = 1 + below(3);
    transport::SimOptions options;
    options.longest_delay = 50'000;
    options.lane_bytes = below(2) == 0 ? 512 : 64 << 10;
    return SimJob(kRanks, options, 1, apart_of(kRanks, tree_degree), elastic(tree_degree), seed);
  }

  bool takes_part(Rank rank) { return job_.network().runs(rank) && !ranks_[static_cast<std::size_t>(rank)].has_left; }

  bool advance() {
    ++looks_;
    for (; !faults_.empty() && faults_.begin()->first <= looks_; faults_.erase(faults_.begin()))
      faults_.begin()->second();
    bool all = true;
    for (Rank rank = 0; rank < kRanks; ++rank) {
      if (!takes_part(rank)) continue;
      if (!advance(rank)) return true;
      all = all && (!takes_part(rank) || ranks_[static_cast<std::size_t>(rank)].step == kSteps);
    }
    return all;
  }

  // False where something is wrong.
  bool advance(Rank rank) {
    RankState& state = ranks_[static_cast<std::size_t>(rank)];
    engine::Engine& engine = job_.engine(rank);
    if (engine.failure() != nullptr) return is_wrong(rank, engine.failure()->what());
    const auto is_done = [](const auto& operation) { return operation->done(); };
    if (!std::ranges::all_of(state.operations, is_done)) return true;
    for (const auto& operation : state.operations) {
      if (operation->error != nullptr) return is_wrong(rank, operation->error->what());
    }
    if (engine.change() != nullptr) engine.accept_change(engine.membership().epoch());
    if (!state.operations.empty()) {
      state.operations.clear();
      if (!check_sums(rank, state)) return false;
      ++state.step;
    }
    if (state.step == kSteps) return true;
    if (state.step > 0 && state.step == leaves_at_[static_cast<std::size_t>(rank)]) {
      state.has_left = true;
      engine.leave("");
      return true;
    }
    const float own = static_cast<float>(1 << rank);
    state.small.assign(4, own);
    state.large.assign(600, own);
    const std::string of_step = " of step " + std::to_string(state.step);
    submit(rank, "large" + of_step, state.large, false);
    submit(rank, "small" + of_step, state.small, true);
    return true;
  }

  void submit(Rank rank, const std::string& name, std::vector<float>& data, bool awaited) {
    // Its input stays as it is, so that it can be done again.
    auto& results = results_[static_cast<std::size_t>(rank)][awaited ? 1 : 0];
    results.assign(data.size(), 0.0F);
    const engine::Call call{.collective = Collective::kAllreduce, .name = name, .op = ReduceOp::kSum};
    const auto shape = engine::Shape::of(std::array<std::uint64_t, 1>{data.size()});
    const engine::Array input{reinterpret_cast<std::byte*>(data.data()), shape, DType::kFloat32};
    const engine::Array output{reinterpret_cast<std::byte*>(results.data()), shape, DType::kFloat32};
    auto operation = engine::make_operation(call, input, &output);
    operation->awaited = awaited;
    job_.submit(rank, operation);
    ranks_[static_cast<std::size_t>(rank)].operations.push_back(std::move(operation));
  }

  // All elements are the sum of the same ranks, this one and all that live now among them, as all others have it.
  bool check_sums(Rank rank, const RankState& state) {
    for (const auto& results : results_[static_cast<std::size_t>(rank)]) {
      const float first = results.front();
      if (!std::ranges::all_of(results, [first](float each) { return each == first; })) {
        return is_wrong(rank, "elements are sums of different ranks");
      }
      const auto members = static_cast<unsigned>(first);
      for (Rank other = 0; other < kRanks; ++other) {
        if (takes_part(other) && (members >> other & 1) == 0) return is_wrong(rank, "the sum lacks a rank that lives");
      }
      const auto key = std::pair(state.step, results.size());
      const auto [known, is_new] = sums_.emplace(key, first);
      if (!is_new && known->second != first) return is_wrong(rank, "another rank has another sum");
    }
    return true;
  }

  bool is_wrong(Rank rank, const std::string& what) {
    flaw_ = "rank " + std::to_string(rank) + ": " + what;
    return false;
  }

  std::mt19937_64 random_;
  SimJob job_;
  std::multimap<int, std::function<void()>> faults_;  // by look
  std::array<int, kRanks> leaves_at_{};  // in front of that step; 0: never
  int looks_ = 0;
  std::array<RankState, kRanks> ranks_;
  std::array<std::array<std::vector<float>, 2>, kRanks> results_;
  std::map<std::pair<int, std::size_t>, float> sums_;  // by step and tensor
  std::string flaw_;
};

}  // namespace

TEST_CASE("elastic jobs along trees: ranks end at any moment, and the others go on with sums of just them") {
  const std::uint64_t only = from_environment("RINGCORE_ELASTIC_TREE_SEED", 0);
  const std::uint64_t count = only != 0 ? 1 : from_environment("RINGCORE_ELASTIC_TREE_SEEDS", 200);
  for (std::uint64_t seed = only != 0 ? only : 1, end = seed + count; seed < end; ++seed) {
    CAPTURE(seed);
    const std::string flaw = Job(seed).run();
    REQUIRE_MESSAGE(flaw.empty(), flaw);
  }
}

TEST_CASE("elastic jobs along trees: a whole host is silent, with whose ranks few are connected: the others go on") {
  constexpr int kMany = 16;
  constexpr int kSilent = 6;
  SimJob job(kMany, {}, 1, apart_of(kMany, engine::TreeShape::kDegree), elastic(engine::TreeShape::kDegree));
  std::vector<std::vector<float>> data(kMany);
  std::vector<std::shared_ptr<engine::Operation>> operations;
  const auto sum_up = [&](const std::string& name, Rank first) {
    operations.clear();
    for (Rank rank = first; rank < kMany; ++rank) {
      auto& own = data[static_cast<std::size_t>(rank)];
      own.assign(4, 1.0F);
      operations.push_back(SimJob::allreduce(name, own));
      operations.back()->awaited = true;
      job.submit(rank, operations.back());
    }
    REQUIRE(
        job.run_until([&] { return std::ranges::all_of(operations, [](const auto& each) { return each->done(); }); }));
    for (const auto& operation : operations) {
      REQUIRE_MESSAGE(operation->error == nullptr, std::string(operation->error->what()));
    }
    for (Rank rank = first; rank < kMany; ++rank) {
      CHECK(data[static_cast<std::size_t>(rank)] == std::vector<float>(4, static_cast<float>(kMany - first)));
    }
  };
  sum_up("x", 0);
  for (Rank rank = 0; rank < kSilent; ++rank) job.network().pause(rank, 100 * kSecond);
  sum_up("y", kSilent);
}
