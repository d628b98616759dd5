// What is announced at an unusual time, or in an unusual size.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "sim_job.hpp"

namespace ringcore::testing {
namespace {

std::shared_ptr<engine::Operation> barrier(const std::string& name) {
  auto operation = std::make_shared<engine::Operation>();
  operation->descriptor.name = name;
  operation->descriptor.collective = Collective::kBarrier;
  return operation;
}

std::shared_ptr<engine::Operation> join() {
  auto operation = std::make_shared<engine::Operation>();
  operation->join = true;
  return operation;
}

}  // namespace

TEST_CASE("a rank that announces before it knows that its join has ended is understood") {
  for (const int direct_members : {16, 1}) {
    CAPTURE(direct_members);
    SimJob job(2, {}, direct_members);
    CHECK(job.run_until([&] { return job.now() > 2 * kSecond; }));
    const auto run_alone = [&](Rank rank) {
      job.network().run_until(job.now() + 2 * kMillisecond);
      while (job.engine(rank).progress()) {
      }
    };
    const std::shared_ptr<engine::Operation> joins[] = {join(), join()};
    job.submit(0, joins[0]);
    run_alone(1);
    // All of this is decided on rank 1, and rank 0 has not looked.
    for (int i = 0; i < 3; ++i) job.submit(1, barrier("only on rank 1, " + std::to_string(i)));
    job.submit(1, joins[1]);
    run_alone(1);
    const std::shared_ptr<engine::Operation> next[] = {barrier("next"), barrier("next")};
    job.submit(0, next[0]);
    run_alone(1);
    REQUIRE(job.engine(1).failure() == nullptr);
    job.submit(1, next[1]);
    CHECK(job.run_until([&] { return next[0]->done() && next[1]->done(); }));
    for (Rank rank : {0, 1}) {
      CHECK(joins[rank]->done());
      CHECK(joins[rank]->error == nullptr);
      CHECK_MESSAGE(next[rank]->error == nullptr, next[rank]->error->what());
    }
  }
}

TEST_CASE("a small operation with a long name that takes its data along is one record") {
  SimJob job(2);
  std::vector<std::vector<float>> data(2, std::vector<float>(engine::kMaxPayloadBytes / sizeof(float), 1.5F));
  std::vector<std::shared_ptr<engine::Operation>> operations;
  for (Rank rank : {0, 1}) {
    operations.push_back(SimJob::allreduce(std::string(engine::kMaxNameBytes, 'n'), data[rank]));
    operations.back()->awaited = true;
    job.submit(rank, operations.back());
  }
  CHECK(job.run_until([&] { return operations[0]->done() && operations[1]->done(); }));
  for (Rank rank : {0, 1}) {
    CHECK_MESSAGE(operations[rank]->error == nullptr, operations[rank]->error->what());
    CHECK(data[rank].front() == 3.0F);
    CHECK(data[rank].back() == 3.0F);
  }
}

}  // namespace ringcore::testing
