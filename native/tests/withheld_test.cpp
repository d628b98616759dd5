// Peers that are connected and alive, and hold back what others wait for; and how much of what they send is kept.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "sim_job.hpp"

using namespace ringcore;
using testing::SimJob;

namespace {

std::string error_of(const engine::Operation& operation) {
  return operation.error == nullptr ? "" : operation.error->what();
}

}  // namespace

TEST_CASE("a peer that is alive and withholds its data ends the operation after the limit, by name") {
  SimJob job(2);
  std::vector<float> data[2] = {std::vector<float>(50'000, 1.0F), std::vector<float>(50'000, 2.0F)};
  const auto operation = job.allreduce("x", data[0]);
  job.submit(0, operation);
  job.submit(1, job.allreduce("x", data[1]));
  engine::Engine& waiting = job.engine(0);
  waiting.wanted(*operation, true);
  job.run_until([&] { return operation->started_at != 0; });
  job.withhold(1);
  const Nanoseconds begin = job.now();
  REQUIRE(job.run_until([&] { return operation->done(); }));
  CHECK(job.now() - begin > SimJob::kTimeout);
  CHECK(job.now() - begin < SimJob::kTimeout + kSecond);
  CHECK(waiting.failure()->kind() == ErrorKind::kTimeout);
  for (const char* part : {"allreduce 'x'", "200000 bytes", "data is withheld by rank 1 for 2000 ms", "Remedy: "}) {
    CHECK_MESSAGE(error_of(*operation).find(part) != std::string::npos, error_of(*operation));
  }
}

TEST_CASE("where data goes from rank to rank, whoever gives up says who waits for whom") {
  constexpr Rank kRanks = 4;
  SimJob job(kRanks);
  std::vector<std::vector<float>> data(kRanks, std::vector<float>(50'000, 1.0F));
  std::vector<std::shared_ptr<engine::Operation>> operations;
  for (Rank rank = 0; rank < kRanks; ++rank) {
    operations.push_back(job.allreduce("x", data[static_cast<std::size_t>(rank)]));
    job.submit(rank, operations.back());
    job.engine(rank).wanted(*operations.back(), true);
  }
  job.run_until([&] { return operations[0]->started_at != 0; });
  job.withhold(1);
  REQUIRE(
      job.run_until([&] { return std::ranges::all_of(operations, [](const auto& each) { return each->done(); }); }));
  for (const auto& operation : operations) {
    CHECK_MESSAGE(error_of(*operation).find("As far as is known rank 1 waits for rank 0") != std::string::npos,
                  error_of(*operation));
  }
}

TEST_CASE("a rank that has joined does not wait for ever for data that is withheld") {
  SimJob job(3);
  std::vector<float> data[3];
  for (auto& each : data) each.assign(50'000, 1.0F);
  const auto join = std::make_shared<engine::Operation>();
  join->join = true;
  job.submit(0, join);
  job.submit(1, job.allreduce("x", data[1]));
  const auto operation = job.allreduce("x", data[2]);
  job.submit(2, operation);
  job.engine(2).wanted(*operation, true);
  job.run_until([&] { return operation->started_at != 0; });
  job.withhold(1);
  job.withhold(2);
  REQUIRE(job.run_until([&] { return join->done(); }));
  CHECK_MESSAGE(error_of(*join).find("data is withheld by ") != std::string::npos, error_of(*join));
}

TEST_CASE("an operation that moves may take longer than the limit") {
  transport::SimOptions slow;
  slow.shortest_delay = slow.longest_delay = 40 * kMillisecond;
  SimJob job(2, slow);
  std::vector<float> large[2] = {std::vector<float>(300'000, 1.0F), std::vector<float>(300'000, 2.0F)};
  std::vector<std::shared_ptr<engine::Operation>> operations;
  for (Rank rank = 0; rank < 2; ++rank) {
    operations.push_back(job.allreduce("large", large[rank]));
    job.submit(rank, operations.back());
  }
  const Nanoseconds begin = job.now();
  REQUIRE(job.run_until([&] { return operations[0]->done() && operations[1]->done(); }));
  CHECK(job.now() - begin > 2 * SimJob::kTimeout);
  for (Rank rank = 0; rank < 2; ++rank) {
    REQUIRE_MESSAGE(job.engine(rank).failure() == nullptr, job.engine(rank).failure()->what());
    CHECK(large[rank] == std::vector<float>(300'000, 3.0F));
  }
}

TEST_CASE("a peer that is alive and lets its log stand still ends what waits for it") {
  SimJob job(2);
  std::vector<float> data(4, 1.0F);
  job.only_beat(1);
  const auto operation = job.allreduce("x", data);
  job.submit(0, operation);
  REQUIRE(job.run_until([&] { return operation->done(); }));
  CHECK_MESSAGE(
      error_of(*operation).find("allreduce 'x': it was neither submitted nor refused by rank 1 for 2200 ms") == 0,
      error_of(*operation));
}

TEST_CASE("a transfer too large to be set aside is refused") {
  SimJob job(2);
  // What two process sets have under way at once is taken out of each other's way.
  std::vector<float> data[2] = {std::vector<float>(50'000, 1.0F), std::vector<float>(50'000, 1.0F)};
  std::vector<std::shared_ptr<engine::Operation>> operations;
  for (Rank rank = 0; rank < 2; ++rank) job.engine(rank).add_process_set({0, 1});
  for (engine::ProcessSetId set = 0; set < 2; ++set) {
    for (Rank rank = 0; rank < 2; ++rank) {
      operations.push_back(job.allreduce("x", data[set]));
      operations.back()->process_set = set;
      job.submit(rank, operations.back());
      job.engine(rank).wanted(*operations.back(), false);
    }
  }
  const carriers::TransferHeader header{.run = 12345, .bytes = std::uint64_t{5} << 30};
  job.network().inject(1, 0, transport::kFirstDataLane, std::as_bytes(std::span(&header, 1)));
  REQUIRE(job.run_until([&] { return job.engine(0).failure() != nullptr; }));
  const std::string why = job.engine(0).failure()->what();
  CHECK_MESSAGE(why.find("rank 1 of the process set has sent 5368709120 bytes for operations that this rank has not "
                         "begun, and 4294967296 are kept. Remedy:") != std::string::npos,
                why);
}

TEST_CASE("what comes for a process set that is not there yet is kept up to a limit") {
  SimJob job(2);
  const engine::ProcessSetId set = job.engine(1).add_process_set({0, 1});
  std::vector<float> data(16 * 1024, 1.0F);
  for (int i = 0; i < 1100; ++i) {
    const auto operation = job.allreduce(std::to_string(i), data);
    operation->process_set = set;
    operation->awaited = true;
    job.submit(1, operation);
  }
  REQUIRE(job.run_until([&] { return job.engine(0).failure() != nullptr; }));
  const std::string why = job.engine(0).failure()->what();
  CHECK_MESSAGE(why.find("rank 1: uses process set 1, which this rank has not added, and ") == 0, why);
  CHECK_MESSAGE(why.find("Remedy: add process sets") != std::string::npos, why);
}

TEST_CASE("data that comes along with announcements is kept up to a limit, and only as long as it is needed") {
  engine::Negotiation negotiation({0, 1}, 0);
  std::vector<engine::Decision> decisions;
  const auto announce = [&](int member, int number, std::size_t bytes) {
    engine::Descriptor descriptor;
    descriptor.name = std::to_string(number);
    descriptor.collective = Collective::kAllreduce;
    engine::Entry entry{.type = engine::RecordType::kOperation, .flags = engine::kEager};
    entry.descriptor = std::make_shared<const engine::Descriptor>(descriptor);
    entry.signature = descriptor.signature();
    entry.name_hash = descriptor.name_hash();
    entry.payload.resize(bytes);
    negotiation.append(member, std::move(entry));
    negotiation.decide(decisions);
  };
  // Ten times as much as is kept at a time, decided one after the other.
  for (int i = 0; i < 10 * 1024; ++i) {
    announce(1, i, 64 * 1024);
    announce(0, i, 0);
    REQUIRE(decisions.size() == 1);
    decisions.clear();
  }
  for (int i = 0; i < 1024; ++i) announce(1, i, 64 * 1024);
  CHECK_THROWS_WITH_AS(announce(1, 1024, 64 * 1024), doctest::Contains("Remedy: wait for blocking calls"), Error);
}

TEST_CASE("a lost rank's consequences name what this rank waits in: a join, and a small call") {
  for (const bool joins : {true, false}) {
    SimJob job(2);
    std::vector<float> data(4, 1.0F);
    auto operation = job.allreduce("x", data);
    if (joins) operation = std::make_shared<engine::Operation>();
    operation->join = joins;
    operation->awaited = true;
    job.submit(0, operation);
    job.network().kill(1);
    job.only_beat(1);
    job.network().silence(1, 0);
    REQUIRE(job.run_until([&] { return operation->done(); }));
    CHECK(operation->error->kind() == ErrorKind::kPeerLost);
    const std::string pending = std::string("Pending on rank 0: ") + (joins ? "join." : "allreduce 'x'.");
    CHECK_MESSAGE(error_of(*operation).find(pending) != std::string::npos, error_of(*operation));
  }
}

TEST_CASE("what a rank gives to a broadcast or an all-gather departs from where it lies, and is copied meanwhile") {
  constexpr std::size_t kCount = std::size_t{1} << 18;
  const auto array_of = [](std::vector<float>& values) {
    return engine::Array{reinterpret_cast<std::byte*>(values.data()), engine::Shape::of(std::array{values.size()}),
                         DType::kFloat32};
  };
  for (const Collective collective : {Collective::kBroadcast, Collective::kAllgather}) {
    CAPTURE(name_of(collective));
    transport::SimOptions options;
    options.keep_history = true;
    options.lane_bytes = std::size_t{1} << 16;
    SimJob job(2, options);
    const std::size_t blocks = collective == Collective::kAllgather ? 2 : 1;
    std::array<std::vector<float>, 2> own{std::vector<float>(kCount, 1), std::vector<float>(kCount, 2)};
    std::array<std::vector<float>, 2> results;
    std::vector<std::shared_ptr<engine::Operation>> operations;
    for (const Rank rank : {0, 1}) {
      results[rank].assign(blocks * kCount, -1);
      const engine::Array result = array_of(results[rank]);
      operations.push_back(
          engine::make_operation({.collective = collective, .name = "rows"}, array_of(own[rank]), &result));
      job.submit(rank, operations.back());
    }
    // Some of it is copied, and not all.
    REQUIRE(job.run_until([&] { return results[0].front() == 1; }));
    REQUIRE(results[0][kCount - 1] == -1);
    std::size_t sent = 0;
    for (int lane = transport::kFirstDataLane; lane < transport::kLaneCount; ++lane) {
      sent += job.network().history(0, 1, lane).size();
    }
    CHECK(sent > 0);
    REQUIRE(job.run_until([&] { return operations[0]->done() && operations[1]->done(); }));
    for (const std::vector<float>& result : results) {
      CHECK(std::equal(own[0].begin(), own[0].end(), result.begin()));
      CHECK((blocks == 1 || std::equal(own[1].begin(), own[1].end(), result.begin() + kCount)));
    }
    CHECK(own[1].front() == 2);
  }
}
