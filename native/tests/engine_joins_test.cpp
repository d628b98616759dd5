// Ranks that join and ranks that leave, and what ends then.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "engine_fixtures.hpp"
#include "sim_job.hpp"

using namespace ringcore;
using namespace ringcore::testing;

TEST_CASE("joined ranks contribute nothing") {
  on_all_clusters([](Cluster& cluster) {
    std::vector<Rank> last(cluster.ranks(), -2);
    cluster.run([&](Rank rank) {
      Runtime& runtime = cluster.runtime(rank);
      for (int round = 0; round < 2; ++round) {
        for (int step = 0; step <= rank; ++step) {
          std::vector<float> data(3000, mark(rank));
          run(runtime, allreduce("step", data));
          float expected = 0;
          for (int r = step; r < cluster.ranks(); ++r) expected += mark(r);
          CHECK(data[2999] == expected);
        }
        auto join = std::make_shared<Operation>();
        join->join = true;
        runtime.submit(join);
        finish(runtime, *join);
        last[rank] = join->last_joined;
      }
    });
    for (const Rank rank : last) CHECK(rank == last[0]);
  });
}

TEST_CASE("a bucket that is open when a rank joins takes no tensors that this rank does not have") {
  Cluster cluster({.ranks = 2, .host_of = {}});
  cluster.run([&](Rank rank) {
    Runtime& runtime = cluster.runtime(rank);
    for (int step = 0; step < 20; ++step) {
      std::vector<float> before(10, mark(rank));
      std::vector<float> after(2000, mark(rank));
      const auto first = allreduce("before", before);
      runtime.submit(first);  // nobody waits for it yet
      auto join = std::make_shared<Operation>();
      join->join = true;
      if (rank == 0) {
        const auto second = allreduce("after", after);
        runtime.submit(second);
        finish(runtime, *second);
        CHECK(after[1999] == 1.0F);
      }
      runtime.submit(join);
      finish(runtime, *join);
      finish(runtime, *first);
      CHECK(before[9] == 3.0F);
    }
  });
}

TEST_CASE("who waits in a join for a rank that leaves is told that it has not joined") {
  Cluster cluster({.ranks = 2, .host_of = {}});
  cluster.run([&](Rank rank) {
    if (rank == 1) return cluster.runtime(rank).leave("");
    auto join = std::make_shared<engine::Operation>();
    join->join = true;
    std::string told;
    try {
      cluster.runtime(rank).submit(join);
      finish(cluster.runtime(rank), *join);
    } catch (const Error& error) {
      told = error.what();
    }
    CAPTURE(told);
    CHECK(told.starts_with("join: rank 1 has left"));
    CHECK(told.find("submit") == std::string::npos);
  });
}

TEST_CASE("who waits in a join for a rank that does nothing is told so, and not for ever") {
  SimJob job(3, {}, 16, {}, [](engine::EngineConfig&, engine::EngineSettings& settings) {
    settings.stall_warning = SimJob::kTimeout / 2;
  });
  std::shared_ptr<engine::Operation> joins[2];
  for (Rank rank = 0; rank < 2; ++rank) {
    joins[rank] = std::make_shared<engine::Operation>();
    joins[rank]->join = true;
    job.submit(rank, joins[rank]);
  }
  // While rank 2 trains on they have patience, however long that is.
  std::vector<float> data(4, 1.0F);
  for (int step = 0; step < 4; ++step) {
    const auto operation = job.allreduce("x", data);
    job.submit(2, operation);
    REQUIRE(job.run_until([&] { return operation->done(); }));
    CHECK(operation->error == nullptr);
    const Nanoseconds begin = job.now();
    CHECK(job.run_until([&] { return job.now() - begin > SimJob::kTimeout * 3 / 4; }));
    CHECK(!joins[0]->done());
  }
  const std::vector<std::string> warnings = job.engine(0).take_warnings();
  REQUIRE(warnings.size() == 1);
  CHECK_MESSAGE(warnings[0].find("join has waited for") != std::string::npos, warnings[0]);
  CHECK_MESSAGE(warnings[0].find("rank 2 did not join") != std::string::npos, warnings[0]);
  CHECK(job.engine(1).take_warnings().empty());
  const Nanoseconds begin = job.now();
  REQUIRE(job.run_until([&] { return joins[0]->done() && joins[1]->done(); }));
  CHECK(job.now() - begin < SimJob::kTimeout);
  REQUIRE(joins[0]->error != nullptr);
  CHECK(joins[0]->error->kind() == ErrorKind::kTimeout);
  const std::string told = joins[0]->error->what();
  CHECK_MESSAGE(told.find("join: rank 2 did not join") != std::string::npos, told);
  CHECK_MESSAGE(told.find("RINGCORE_TIMEOUT_S") != std::string::npos, told);
}

TEST_CASE("a rank that leaves fails what needs it, with its reason") {
  on_all_clusters([](Cluster& cluster) {
    cluster.run([&](Rank rank) {
      std::vector<float> data(4, 1.0F);
      run(cluster.runtime(rank), allreduce("first", data));
      if (rank == 1) {
        cluster.runtime(rank).leave("it raised ValueError: no");
        return;
      }
      try {
        run(cluster.runtime(rank), allreduce("second", data));
        FAIL("no error");
      } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::kPeerLost);
        CHECK(std::string(error.what()).find("rank 1 has left (it raised ValueError: no)") != std::string::npos);
        CHECK(cluster.runtime(rank).lost_rank() == 1);
      }
    });
  });
}

TEST_CASE("what a leaving rank has announced ends") {
  Cluster cluster({.ranks = 2, .host_of = {}});
  std::vector<float> data[4] = {{1}, {2}, {3}, {4}};
  std::vector<std::shared_ptr<Operation>> operations;
  for (int i = 0; i < 3; ++i) {
    operations.push_back(allreduce(std::string(1, "abx"[i]), data[i]));
    cluster.runtime(0).submit(operations.back());
  }
  cluster.runtime(1).submit(allreduce("x", data[3]));
  cluster.runtime(1).leave("");
  for (const auto& operation : operations) CHECK(cluster.runtime(0).wait(*operation, 10 * kSecond, {}));
}

TEST_CASE("join and leaving let operations end that are under way on all ranks") {
  for (const std::vector<int>& hosts : {std::vector<int>{0, 0, 0}, std::vector<int>{0, 1, 2}}) {
    for (const std::size_t count : {std::size_t{10}, std::size_t{4'000'000}}) {
      for (const bool joins : {true, false}) {
        CAPTURE(hosts.back());
        CAPTURE(count);
        CAPTURE(joins);
        Cluster cluster({.ranks = 3, .host_of = hosts});
        cluster.run([&](Rank rank) {
          Runtime& runtime = cluster.runtime(rank);
          const engine::ProcessSetId other = runtime.add_process_set({0, 1, 2});
          std::vector<float> data(count, mark(rank));
          const auto handle = allreduce("x", data);
          runtime.submit(handle);
          if (joins) {
            const auto join = std::make_shared<Operation>();
            join->join = true;
            run(runtime, join);
          } else {
            // In another process set: nobody asks for open buckets to be closed.
            const auto barrier = make(Collective::kBarrier, "submitted", {0}, DType::kUInt8, nullptr, nullptr);
            barrier->process_set = other;
            run(runtime, barrier);
          }
          runtime.leave("");
          REQUIRE(handle->done());
          if (handle->error) throw *handle->error;
          REQUIRE(std::count(data.begin(), data.end(), 7.0F) == static_cast<std::ptrdiff_t>(count));
        });
      }
    }
  }
}
