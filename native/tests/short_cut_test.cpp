// Records at the front of a lane that are not what the short cut waits for.
#include <doctest/doctest.h>

#include <algorithm>

#include "sim_job.hpp"

using namespace ringcore;
using testing::SimJob;

namespace {

std::shared_ptr<engine::Operation> awaited(engine::ProcessSetId set, std::vector<float>& data) {
  const auto operation = SimJob::allreduce("x", data);
  operation->process_set = set;
  operation->awaited = true;
  return operation;
}

}  // namespace

TEST_CASE("the short cut of one process set takes no record of another, though name, shape and position are the same") {
  SimJob job(2, {.short_writes = false});
  engine::ProcessSetId first = 0;
  engine::ProcessSetId second = 0;
  for (Rank rank = 0; rank < 2; ++rank) {
    first = job.engine(rank).add_process_set({0, 1});
    second = job.engine(rank).add_process_set({0, 1});
  }
  // Once over, so that no greeting lies in front of what follows.
  for (const engine::ProcessSetId set : {first, second}) {
    std::vector<float> data[2] = {{0, 0}, {0, 0}};
    const std::shared_ptr<engine::Operation> both[] = {awaited(set, data[0]), awaited(set, data[1])};
    for (Rank rank = 0; rank < 2; ++rank) job.submit(rank, both[rank]);
    REQUIRE(job.run_until([&] { return both[0]->done() && both[1]->done(); }));
  }
  std::vector<float> in_first[2] = {{1, 1}, {2, 2}};
  std::vector<float> in_second[2] = {{10, 10}, {20, 20}};
  const std::shared_ptr<engine::Operation> operations[] = {awaited(first, in_first[0]), awaited(second, in_second[1]),
                                                           awaited(second, in_second[0]), awaited(first, in_first[1])};
  job.submit(0, operations[0]);
  job.submit(1, operations[1]);
  REQUIRE(job.engine(0).in_short_cut());
  REQUIRE(job.engine(1).in_short_cut());
  job.run_until([&] { return !job.engine(0).in_short_cut() && !job.engine(1).in_short_cut(); });
  CHECK_FALSE(operations[0]->done());
  CHECK_FALSE(operations[1]->done());
  job.submit(0, operations[2]);
  job.submit(1, operations[3]);
  REQUIRE(job.run_until([&] {
    return std::all_of(std::begin(operations), std::end(operations), [](const auto& each) { return each->done(); });
  }));
  for (Rank rank = 0; rank < 2; ++rank) {
    CHECK(in_first[rank] == std::vector<float>{3, 3});
    CHECK(in_second[rank] == std::vector<float>{30, 30});
  }
}

TEST_CASE("a record that comes a second time ends the job with the rank that sent it") {
  SimJob job(2);
  std::vector<float> data[2] = {{1, 1}, {2, 2}};
  const auto operation = awaited(engine::kWorld, data[0]);
  job.submit(0, operation);
  job.submit(1, awaited(engine::kWorld, data[1]));
  REQUIRE(job.run_until([&] { return operation->done(); }));
  // The greeting had this number.
  const engine::RecordHeader again{
      .bytes = sizeof(engine::RecordHeader), .type = engine::RecordType::kHeartbeat, .sequence = 0};
  job.network().inject(1, 0, transport::kControlLane, std::as_bytes(std::span(&again, 1)));
  REQUIRE(job.run_until([&] { return job.engine(0).failure() != nullptr; }));
  const std::string told = job.engine(0).failure()->what();
  CHECK(job.engine(0).failure()->kind() == ErrorKind::kProtocol);
  CHECK_MESSAGE(told.find("rank 1: sent record 0 where record ") != std::string::npos, told);
}
