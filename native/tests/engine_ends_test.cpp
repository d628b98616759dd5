// Who is told when an operation has ended, and what may follow then.
#include <doctest/doctest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine_fixtures.hpp"

using namespace ringcore;
using namespace ringcore::testing;

TEST_CASE("what somebody has waited for does not stay in a bucket when it is complete at last") {
  Cluster cluster({.ranks = 2, .host_of = {}});
  std::vector<float> data[6] = {{1}, {1}, {1}, {1}, {1}, {1}};
  const auto submit = [&](Rank rank, const std::string& name, int index) {
    auto operation = allreduce(name, data[index]);
    cluster.runtime(rank).submit(operation);
    return operation;
  };
  const auto wanted = submit(0, "p", 0);
  CHECK_FALSE(cluster.runtime(0).wait(*wanted, 20 * kMillisecond, {}));
  submit(0, "z", 1);  // its place in the log completes the round of rank 1's "p"
  submit(1, "u", 2);
  submit(1, "v", 3);
  const auto other = submit(1, "p", 4);
  const SteadyClock clock;
  const Nanoseconds deadline = clock.now() + 10 * kSecond;
  // Nobody waits any more: the engines' own threads bring it to its end.
  while (!(wanted->done() && other->done()) && clock.now() < deadline) std::this_thread::yield();
  CHECK(wanted->done());
  CHECK(other->done());
}

TEST_CASE("who is told of an end may submit the next operation, and nobody needs to wait") {
  on_all_clusters([](Cluster& cluster) {
    constexpr int kLength = 50;
    struct Chain {
      Runtime* runtime = nullptr;
      std::vector<float> data;
      int index = 0;
      std::shared_ptr<const Error> error;
      std::promise<void> ended;

      void submit() {
        auto operation = allreduce("link " + std::to_string(index++), data, ReduceOp::kMax);
        operation->awaited = true;
        operation->on_done = [this](const std::shared_ptr<Operation>& done) {
          error = done->error;
          if (error != nullptr || index == kLength) return ended.set_value();
          submit();
        };
        runtime->submit(operation);
      }
    };
    for (const std::size_t count : {std::size_t{1}, std::size_t{100'000}}) {
      std::vector<Chain> chains(cluster.ranks());
      for (Rank rank = 0; rank < cluster.ranks(); ++rank) {
        chains[rank].runtime = &cluster.runtime(rank);
        chains[rank].data.assign(count, rank == 0 ? 1.0F : 0.0F);
        chains[rank].submit();
      }
      for (Chain& chain : chains) {
        REQUIRE(chain.ended.get_future().wait_for(std::chrono::seconds(60)) == std::future_status::ready);
        if (chain.error != nullptr) throw *chain.error;
        CHECK(chain.data == std::vector<float>(count, 1.0F));
      }
    }
  });
}
