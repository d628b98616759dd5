// What does not fit, and who does not come: the same error on every rank, and the engine goes on.
#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine_fixtures.hpp"
#include "sim_job.hpp"

using namespace ringcore;
using namespace ringcore::testing;

TEST_CASE("a mismatch fails on every rank with the same message, and the engine stays usable") {
  on_all_clusters([](Cluster& cluster) {
    std::vector<std::string> messages(cluster.ranks());
    cluster.run([&](Rank rank) {
      std::vector<float> data(rank == 1 ? 5 : 4, 1.0F);
      auto wrong = allreduce("tensor", data);
      try {
        run(cluster.runtime(rank), wrong);
        FAIL("no error");
      } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::kMismatch);
        messages[rank] = error.what();
      }
      std::vector<float> right(4, mark(rank));
      run(cluster.runtime(rank), allreduce("tensor", right));
      CHECK(right[0] == static_cast<float>((1 << cluster.ranks()) - 1));
    });
    for (const std::string& message : messages) CHECK(message == messages[0]);
    CHECK(messages[0].find("'tensor'") != std::string::npos);
    CHECK(messages[0].find("rank 1: allreduce sum of float32 [5]") != std::string::npos);
    CHECK(messages[0].find("shape") != std::string::npos);
  });
}

TEST_CASE("blocking calls in opposite order are a deadlock that every rank is told") {
  Cluster cluster({.ranks = 2, .host_of = {}});
  cluster.run([&](Rank rank) {
    std::vector<float> data(4, 1.0F);
    try {
      run(cluster.runtime(rank), allreduce(rank == 0 ? "a" : "b", data));
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kDeadlock);
    }
    run(cluster.runtime(rank), allreduce("c", data));
    CHECK(data[0] == 2.0F);
  });
}

TEST_CASE("who waits in a barrier while the others wait for something else is met there") {
  Cluster cluster({.ranks = 3, .host_of = {}});
  cluster.run([&](Rank rank) {
    std::vector<float> data(4, 1.0F);
    for (int round = 0; round < 3; ++round) {
      if (rank != round) {
        try {
          run(cluster.runtime(rank), allreduce("a", data));
          FAIL("no error");
        } catch (const Error& error) {
          CHECK(error.kind() == ErrorKind::kDeadlock);
          CHECK(std::string(error.what()).find("in barrier 'b'") != std::string::npos);
        }
      }
      run(cluster.runtime(rank), make(Collective::kBarrier, "b", {0}, DType::kUInt8, nullptr, nullptr));
    }
    run(cluster.runtime(rank), allreduce("c", data));
    CHECK(data[0] == 3.0F);
  });
}

TEST_CASE("an operation that one rank never submits ends in a timeout on all that did") {
  testing::ClusterOptions options{.ranks = 3, .host_of = {}};
  options.settings.timeout = 300 * kMillisecond;
  options.settings.stall_warning = 100 * kMillisecond;
  Cluster cluster(options);
  std::atomic<int> failed = 0;
  cluster.run([&](Rank rank) {
    if (rank != 2) {
      std::vector<float> data(4, 1.0F);
      try {
        run(cluster.runtime(rank), allreduce("lonely", data));
      } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::kTimeout);
        CHECK(std::string(error.what()).find("rank 2 did not submit it") != std::string::npos);
        ++failed;
      }
    } else {
      REQUIRE(cluster.runtime(rank).wait_for_attention(10 * kSecond));
      CHECK(cluster.runtime(rank).take_attention().stacks_wanted);
      while (failed < 2) std::this_thread::yield();
    }
    std::vector<float> data(4, mark(rank));
    // The late rank's part of the failed operation would fail as well; a new name works everywhere.
    run(cluster.runtime(rank), allreduce("next", data));
    CHECK(data[0] == 7.0F);
  });
}

TEST_CASE("the second try of an operation that a rank does not submit has a deadline as well") {
  testing::ClusterOptions options{.ranks = 2, .host_of = {}};
  options.settings.timeout = 200 * kMillisecond;
  Cluster cluster(options);
  for (int attempt = 0; attempt < 3; ++attempt) {
    std::vector<float> data(4, 1.0F);
    auto operation = allreduce("x", data);
    cluster.runtime(0).submit(operation);
    REQUIRE(cluster.runtime(0).wait(*operation, 10 * kSecond, {}));
    REQUIRE(operation->error != nullptr);
    CHECK(operation->error->kind() == ErrorKind::kTimeout);
  }
}

TEST_CASE("what a rank refuses is told at once also where the others wait in different operations") {
  SimJob job(3);
  std::vector<std::vector<float>> data(2, std::vector<float>(4));
  std::vector<std::shared_ptr<engine::Operation>> operations;
  for (const Rank rank : {0, 1}) {
    operations.push_back(SimJob::allreduce("t" + std::to_string(rank), data[static_cast<std::size_t>(rank)]));
    job.submit(rank, operations.back());
    job.engine(rank).wanted(*operations.back(), false);
  }
  // More than the others have announced: what they wait for comes last.
  const Nanoseconds begin = job.now();
  for (const char* name : {"a", "b", "c", "d", "t1", "t0"}) job.engine(2).refuse(engine::kWorld, name, "all of it");
  REQUIRE(job.run_until([&] { return operations[0]->done() && operations[1]->done(); }));
  CHECK(job.now() - begin < kSecond);  // and not when somebody asks who is missing
  for (const auto& operation : operations) {
    REQUIRE(operation->error != nullptr);
    CHECK(operation->error->kind() == ErrorKind::kMismatch);
    CHECK(std::string(operation->error->what()) == "rank 2 refused all of it");
  }
}
