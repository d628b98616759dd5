// Process sets beside the world: added, used and removed.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine_fixtures.hpp"

using namespace ringcore;
using namespace ringcore::testing;

namespace {

// Rank 1 removes a process set without what the others wait for in it, and goes on in the world.
std::string told_of_removal(Cluster& cluster, Rank rank, int uses) {
  Runtime& runtime = cluster.runtime(rank);
  std::vector<Rank> everyone(static_cast<std::size_t>(cluster.ranks()));
  std::iota(everyone.begin(), everyone.end(), 0);
  const engine::ProcessSetId id = runtime.add_process_set(everyone);
  std::vector<float> data(4, 1.0F);
  const auto in_set = [&] {
    auto operation = allreduce("x", data);
    operation->process_set = id;
    return operation;
  };
  for (int use = 0; use < uses; ++use) run(runtime, in_set());
  std::string told;
  if (rank == 1) {
    runtime.remove_process_set(id);
  } else {
    try {
      run(runtime, in_set());
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kMismatch);
      told = error.what();
    }
    runtime.remove_process_set(id);
  }
  run(runtime, allreduce("y", data));
  return told;
}

}  // namespace

TEST_CASE("process sets run side by side with the world") {
  Cluster cluster({.ranks = 4, .host_of = {}});
  cluster.run([&](Rank rank) {
    Runtime& runtime = cluster.runtime(rank);
    const auto even = runtime.add_process_set({0, 2});
    const auto odd = runtime.add_process_set({1, 3});
    for (int step = 0; step < 20; ++step) {
      std::vector<float> mine(50000, mark(rank));
      std::vector<float> world(50000, mark(rank));
      auto in_set = allreduce("set", mine);
      in_set->process_set = rank % 2 == 0 ? even : odd;
      auto in_world = allreduce("world", world);
      if ((step + rank) % 2 == 0) {
        runtime.submit(in_set);
        runtime.submit(in_world);
      } else {
        runtime.submit(in_world);
        runtime.submit(in_set);
      }
      finish(runtime, *in_set);
      finish(runtime, *in_world);
      CHECK(mine[49999] == (rank % 2 == 0 ? 5.0F : 10.0F));
      CHECK(world[49999] == 15.0F);
    }
  });
}

TEST_CASE("process sets that only their members add, each rank in an order of its own") {
  constexpr engine::ProcessSetId kAgreed = 8190;  // the pairs have the last three numbers
  Cluster cluster({.ranks = 3, .host_of = {}});
  cluster.run([&](Rank rank) {
    Runtime& runtime = cluster.runtime(rank);
    const Rank next = (rank + 1) % 3;
    const Rank previous = (rank + 2) % 3;
    std::vector<float> data[2] = {std::vector<float>(5000, mark(rank)), std::vector<float>(5000, mark(rank))};
    std::vector<std::shared_ptr<engine::Operation>> operations;
    for (const Rank peer : {next, previous}) {  // the pair without rank r has the number kAgreed + r
      auto operation = allreduce("pair", data[operations.size()]);
      operation->process_set = runtime.add_process_set({std::min(rank, peer), std::max(rank, peer)},
                                                       static_cast<engine::ProcessSetId>(kAgreed + 3 - rank - peer));
      runtime.submit(operation);
      operations.push_back(std::move(operation));
    }
    for (const auto& operation : operations) finish(runtime, *operation);
    CHECK(data[0][4999] == mark(rank) + mark(next));
    CHECK(data[1][4999] == mark(rank) + mark(previous));
    // Records that come late for a removed set must not be taken for those of a new one.
    runtime.remove_process_set(operations[0]->process_set);
    const auto refused = [&](std::vector<Rank> members, engine::ProcessSetId agreed) -> std::optional<Error> {
      try {
        runtime.add_process_set(std::move(members), agreed);
      } catch (const Error& error) {
        return error;
      }
      return std::nullopt;
    };
    CHECK(refused({0, 1, 2}, kAgreed + previous).value().kind() == ErrorKind::kInvalidArgument);
    CHECK(refused({0, 1, 2}, 0).value().kind() == ErrorKind::kInvalidArgument);
    const Error too_many = refused({0, 1, 2}, kAgreed + 3).value();
    CHECK(too_many.kind() == ErrorKind::kResource);
    CHECK(std::string(too_many.what()).find("a job can have 8192. Remedy: keep") != std::string::npos);
    // Whoever is no member has not used the number up.
    const std::vector<Rank> others = {std::min(next, previous), std::max(next, previous)};
    CHECK(refused(others, 1).value().kind() == ErrorKind::kInvalidArgument);
    CHECK(!refused({0, 1, 2}, 1));
  });
}

TEST_CASE("a rank that removes a process set ends what the others wait for in it, and nothing else") {
  on_all_clusters([](Cluster& cluster) {
    for (const int uses : {0, 1, 2}) {
      cluster.run([&](Rank rank) {
        const std::string told = told_of_removal(cluster, rank, uses);
        if (rank == 1) return;
        CAPTURE(told);
        CHECK(told.starts_with("allreduce 'x': rank 1 has removed process set "));
        // Where it was quick, even before the others submitted anything.
        const bool before = told.find("without submitting it") == std::string::npos;
        CHECK((before || (told.find("submitting it again.") != std::string::npos) == (uses > 0)));
        CHECK(told.find("Remedy: let every member run the same operations in it") != std::string::npos);
      });
    }
  });
}

TEST_CASE("records of a process set that this rank has not added yet wait for it, whole") {
  Cluster cluster({.ranks = 2, .host_of = {0, 1}});
  std::vector<float> data[2] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
  const auto exchange = [&](Rank rank) {
    auto operation = make(Collective::kAlltoall, "a", {4}, DType::kFloat32, data[rank].data(), nullptr);
    operation->process_set = cluster.runtime(rank).add_process_set({0, 1});
    operation->splits = {1, 3};
    cluster.runtime(rank).submit(operation);
    return operation;
  };
  const auto early = exchange(1);
  // What rank 1 has sent arrives before this, on the same lane.
  cluster.run([&](Rank rank) {
    std::vector<float> one(1, 1.0F);
    run(cluster.runtime(rank), allreduce("order", one));
  });
  const auto late = exchange(0);
  finish(cluster.runtime(0), *late);
  finish(cluster.runtime(1), *early);
  CHECK(late->result_rows == std::vector<std::uint64_t>{1, 1});
  CHECK(early->result_rows == std::vector<std::uint64_t>{3, 3});
}
