// Small tensors that gather in a bucket: it is closed also where nobody waits for them.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <set>
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

TEST_CASE("what comes from a late rank gathers in few buckets, though the others wait for all of it") {
  struct Case {
    int direct_members;
    Nanoseconds pause;  // of the late rank: the others move on to see what it has announced
  };
  for (const auto& [direct_members, pause] : {Case{16, 0}, Case{16, 3 * kMillisecond}, Case{2, 0}}) {
    CAPTURE(direct_members);
    CAPTURE(pause);
    constexpr int kTensors = 100;
    Submitting ranks{SimJob(Submitting::kRanks, quick(), direct_members), {}, {}};
    std::vector<std::vector<std::shared_ptr<engine::Operation>>> of_rank(Submitting::kRanks);
    const auto submit = [&](Rank rank, int number) {
      of_rank[static_cast<std::size_t>(rank)].push_back(
          ranks.job.allreduce("tensor " + std::to_string(number), ranks.tensors.emplace_back(4, 1.0F)));
      ranks.job.submit(rank, of_rank[static_cast<std::size_t>(rank)].back());
    };
    // One after the other, as a program waits for what it has submitted.
    const auto wait = [&](Rank rank) {
      for (const auto& operation : of_rank[static_cast<std::size_t>(rank)]) {
        if (operation->done()) continue;
        return ranks.job.engine(rank).wanted(*operation, true);
      }
    };
    for (Rank rank = 1; rank < Submitting::kRanks; ++rank) {
      for (int number = 0; number < kTensors; ++number) submit(rank, number);
    }
    for (int number = 0; number < kTensors; ++number) {
      for (Rank rank = 1; rank < Submitting::kRanks; ++rank) wait(rank);
      ranks.look_at_timers();
      submit(0, number);
      ranks.pass(5'000);
      if (number != kTensors / 5) continue;
      for (const Nanoseconds end = ranks.job.now() + pause; ranks.job.now() < end; ranks.pass(100'000)) {
        for (Rank rank = 1; rank < Submitting::kRanks; ++rank) wait(rank);
        ranks.look_at_timers();
      }
    }
    REQUIRE(ranks.job.run_until([&] {
      for (Rank rank = 0; rank < Submitting::kRanks; ++rank) wait(rank);
      return std::ranges::all_of(of_rank[0], [](const auto& one) { return one->done(); });
    }));
    std::set<Nanoseconds> starts;
    for (const auto& operation : of_rank[0]) starts.insert(operation->started_at);
    CHECK(starts.size() <= kTensors / 4);
  }
}

TEST_CASE("what is held goes to the others with the next progress; what is not held goes at once") {
  Submitting ranks{SimJob(Submitting::kRanks, quick()), {}, {}};
  const auto submit = [&](const std::string& name, Rank rank, bool held) {
    ranks.operations.push_back(ranks.job.allreduce(name, ranks.tensors.emplace_back(4, 1.0F)));
    ranks.job.submit(rank, ranks.operations.back(), held);
  };
  ranks.pass(kMillisecond);
  REQUIRE(!ranks.job.network().next_event());
  submit("first", 0, true);
  submit("second", 0, true);
  CHECK(!ranks.job.network().next_event());
  ranks.job.engine(0).progress();
  CHECK(ranks.job.network().next_event());
  ranks.pass(kMillisecond);
  REQUIRE(!ranks.job.network().next_event());
  submit("third", 0, false);
  CHECK(ranks.job.network().next_event());
  for (Rank rank = 1; rank < Submitting::kRanks; ++rank) {
    for (const char* const name : {"first", "second", "third"}) submit(name, rank, true);
  }
  REQUIRE(ranks.job.run_until([&] { return ranks.all_are(engine::OperationState::kDone); }));
  for (const auto& tensor : ranks.tensors) CHECK(tensor == std::vector<float>(4, 3.0F));
}
