// A deadlock is told to all ranks, whoever finds it first: a script that is told of it raises, and leaves.
#include <doctest/doctest.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sim_job.hpp"

namespace ringcore::testing {
namespace {

constexpr int kRanks = 3;

// What each rank is told that waits for what no other rank submits, and leaves as soon as it is told.
std::vector<std::shared_ptr<const Error>> told_in_deadlock(std::uint64_t seed, int direct_members, bool one_thread) {
  SimJob job(kRanks, {.longest_delay = 20 * kMillisecond}, direct_members, {}, {}, seed);
  std::vector<std::vector<float>> values(2 * kRanks, std::vector<float>(4));
  std::vector<std::shared_ptr<engine::Operation>> waits;
  for (Rank rank = 0; rank < kRanks; ++rank) {
    job.submit(rank, SimJob::allreduce("of all", values[2 * rank]));
    waits.push_back(SimJob::allreduce("of rank " + std::to_string(rank), values[2 * rank + 1]));
    job.submit(rank, waits.back());
    job.engine(rank).wanted(*waits.back(), one_thread);
  }
  std::vector<bool> left(kRanks);
  const auto all_leave = [&] {
    bool over = true;
    for (Rank rank = 0; rank < kRanks; ++rank) {
      const engine::Operation* operation = waits[rank].get();
      if (!operation->done()) {
        job.engine(rank).all_wait(std::span(&operation, 1));
      } else if (!left[rank]) {
        left[rank] = true;
        job.engine(rank).leave(std::string("it raised an error: ") + operation->error->what());
      }
      over = over && left[rank] && job.engine(rank).farewell_seen();
    }
    return over;
  };
  REQUIRE(job.run_until(all_leave));
  std::vector<std::shared_ptr<const Error>> told;
  for (const auto& operation : waits) told.push_back(operation->error);
  return told;
}

}  // namespace

TEST_CASE("all are told of a deadlock, also where another rank leaves before they have found it themselves") {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    for (const int direct_members : {1, 16}) {
      for (const bool one_thread : {false, true}) {
        CAPTURE(seed);
        CAPTURE(direct_members);
        CAPTURE(one_thread);
        for (const auto& error : told_in_deadlock(seed, direct_members, one_thread)) {
          CHECK_MESSAGE(error->kind() == ErrorKind::kDeadlock, std::string(error->what()));
        }
      }
    }
  }
}

}  // namespace ringcore::testing
