// Small tensors that gather in a bucket: it is closed also where nobody waits for them.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "engine_fixtures.hpp"
#include "sim_job.hpp"

using namespace ringcore;
using namespace ringcore::testing;

namespace {

bool ends(const Operation& operation) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!operation.done() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  return operation.done();
}

}  // namespace

TEST_CASE("what nobody waits for ends beside what its submitters do") {
  on_all_clusters([](Cluster& cluster) {
    cluster.run([&](Rank rank) {
      for (int round = 0; round < 3; ++round) {
        std::vector<std::vector<float>> tensors(4, std::vector<float>(1000, mark(rank)));
        std::vector<std::shared_ptr<Operation>> operations;
        for (auto& tensor : tensors) {
          operations.push_back(allreduce("round " + std::to_string(round) + std::to_string(operations.size()), tensor));
          cluster.runtime(rank).submit(operations.back());
        }
        for (const auto& operation : operations) {
          REQUIRE(ends(*operation));
          REQUIRE(operation->error == nullptr);
        }
        const float sum = mark(cluster.ranks()) - 1;
        for (const auto& tensor : tensors) CHECK(tensor == std::vector<float>(1000, sum));
      }
    });
  });
}

namespace {

transport::SimOptions quick() {
  transport::SimOptions options;
  options.shortest_delay = options.longest_delay = 10'000;
  return options;
}

// A job whose ranks submit alike.
struct Submitting {
  SimJob job;
  std::deque<std::vector<float>> tensors;
  std::vector<std::shared_ptr<Operation>> operations;

  void submit(const std::string& name, Rank first = 0) {
    for (Rank rank = first; rank < kRanks; ++rank) {
      operations.push_back(job.allreduce(name, tensors.emplace_back(4, 1.0F)));
      job.submit(rank, operations.back());
    }
  }
  bool all_are(engine::OperationState state) const {
    return std::ranges::all_of(operations, [&](const auto& one) { return one->state.load() == state; });
  }
  // Without a look at timers.
  void pass(Nanoseconds time) {
    for (const Nanoseconds end = job.now() + time; job.now() < end; job.network().run_until(job.now() + 10'000)) {
      for (Rank rank = 0; rank < kRanks; ++rank) job.engine(rank).progress();
    }
  }
  void look_at_timers() {
    for (Rank rank = 0; rank < kRanks; ++rank) job.engine(rank).check_timers(true);
  }

  static constexpr int kRanks = 3;
};

}  // namespace

TEST_CASE("what is submitted within a millisecond shares a bucket, which is closed some milliseconds later") {
  for (const int direct_members : {16, 2}) {  // among few, and along a tree
    CAPTURE(direct_members);
    Submitting ranks{SimJob(Submitting::kRanks, quick(), direct_members), {}, {}};
    const Nanoseconds begin = ranks.job.now();
    ranks.submit("first");
    while (!ranks.all_are(engine::OperationState::kReleased)) {
      REQUIRE(ranks.job.now() - begin < kMillisecond);
      ranks.pass(10'000);
    }
    ranks.look_at_timers();
    ranks.submit("second");
    ranks.submit("third");
    REQUIRE(ranks.job.run_until([&] { return ranks.all_are(engine::OperationState::kDone); }));
    CHECK(ranks.job.now() - begin <= 20 * kMillisecond);
    for (std::size_t i = 0; i < ranks.operations.size(); ++i) {
      CHECK(ranks.operations[i]->error == nullptr);
      CHECK(ranks.operations[i]->started_at == ranks.operations[i % 3]->started_at);
    }
    for (const auto& tensor : ranks.tensors) CHECK(tensor == std::vector<float>(4, 3.0F));
  }
}

TEST_CASE("a bucket is closed after some time also where more comes all the while") {
  Submitting ranks{SimJob(Submitting::kRanks, quick()), {}, {}};
  const Nanoseconds begin = ranks.job.now();
  for (int number = 0; ranks.operations.empty() || !ranks.operations.front()->done(); ++number) {
    REQUIRE(ranks.job.now() - begin < 60 * kMillisecond);  // it is not full yet
    ranks.submit(std::to_string(number));
    ranks.pass(kMillisecond / 2);
    ranks.look_at_timers();
  }
  CHECK(ranks.operations.front()->error == nullptr);
  REQUIRE(ranks.job.run_until([&] { return ranks.all_are(engine::OperationState::kDone); }));
  for (const auto& tensor : ranks.tensors) CHECK(tensor == std::vector<float>(4, 3.0F));
}

TEST_CASE("the others close a bucket where the first member has joined") {
  Submitting ranks{SimJob(Submitting::kRanks, quick()), {}, {}};
  const auto join = std::make_shared<Operation>();
  join->join = true;
  ranks.job.submit(0, join);
  ranks.submit("of the others", 1);
  REQUIRE(ranks.job.run_until([&] { return ranks.all_are(engine::OperationState::kDone); }));
  for (const auto& tensor : ranks.tensors) CHECK(tensor == std::vector<float>(4, 2.0F));
}
