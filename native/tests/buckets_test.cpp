// Small tensors that gather in a bucket: it is closed also where nobody waits for them.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
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

TEST_CASE("what is submitted within a millisecond shares a bucket, which is closed some milliseconds later") {
  transport::SimOptions quick;
  quick.shortest_delay = quick.longest_delay = 10'000;
  SimJob job(3, quick);
  std::vector<std::vector<float>> tensors(9, std::vector<float>(4, 1.0F));
  std::vector<std::shared_ptr<Operation>> operations;
  const auto submit = [&](const std::string& name) {
    for (Rank rank = 0; rank < 3; ++rank) {
      operations.push_back(job.allreduce(name, tensors[operations.size()]));
      job.submit(rank, operations.back());
    }
  };
  const auto are = [&](engine::OperationState state) {
    return [&operations, state] {
      return std::ranges::all_of(operations, [&](const auto& one) { return one->state.load() == state; });
    };
  };
  const Nanoseconds begin = job.now();
  submit("first");
  while (!are(engine::OperationState::kReleased)()) {
    for (Rank rank = 0; rank < 3; ++rank) job.engine(rank).progress();
    REQUIRE(job.now() - begin < kMillisecond);
    job.network().run_until(job.now() + quick.longest_delay);
  }
  for (Rank rank = 0; rank < 3; ++rank) job.engine(rank).check_timers(true);
  submit("second");
  submit("third");
  REQUIRE(job.run_until(are(engine::OperationState::kDone)));
  CHECK(job.now() - begin <= 20 * kMillisecond);
  for (std::size_t i = 0; i < operations.size(); ++i) {
    CHECK(operations[i]->error == nullptr);
    CHECK(operations[i]->started_at == operations[i % 3]->started_at);
  }
  for (const auto& tensor : tensors) CHECK(tensor == std::vector<float>(4, 3.0F));
}
