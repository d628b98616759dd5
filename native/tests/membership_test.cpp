// Who watches whom, and what the others are told.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "sim_job.hpp"

namespace ringcore::testing {
namespace {

constexpr int kRanks = 8;
constexpr Nanoseconds kHeart = 200 * kMillisecond;  // of SimJob

bool are_neighbours(Rank a, Rank b) {
  const int distance = std::abs(a - b);
  return std::min(distance, kRanks - distance) <= 2;
}

void pass(SimJob& job, int hearts) {
  const Nanoseconds end = job.now() + hearts * kHeart;
  CHECK(job.run_until([&] { return job.now() >= end; }));
}

std::string failure(SimJob& job, Rank rank) {
  return job.engine(rank).failure() == nullptr ? "" : job.engine(rank).failure()->what();
}

// Whether all ranks but one have failed within three hearts.
bool others_fail(SimJob& job, Rank lost) {
  const Nanoseconds begin = job.now();
  const auto all = [&] {
    for (Rank rank = 0; rank < kRanks; ++rank) {
      if (rank != lost && failure(job, rank).empty()) return false;
    }
    return true;
  };
  return job.run_until(all) && job.now() - begin <= 3 * kHeart;
}

}  // namespace

TEST_CASE("membership: idle ranks hear from their neighbours, and from nobody else") {
  SimJob job(kRanks);
  pass(job, 1);
  std::vector<std::vector<std::uint32_t>> before(kRanks);
  for (Rank rank = 0; rank < kRanks; ++rank) {
    for (const engine::Peer* peer : job.engine(rank).membership().peers()) {
      before[rank].push_back(peer->sent_records);
    }
  }
  pass(job, 5);
  for (Rank rank = 0; rank < kRanks; ++rank) {
    std::size_t index = 0;
    for (const engine::Peer* peer : job.engine(rank).membership().peers()) {
      const std::uint32_t beats = peer->sent_records - before[rank][index++];
      CHECK((beats > 0) == are_neighbours(rank, peer->rank));
      CHECK(beats <= 5 * 4 + 1);
    }
    CHECK(failure(job, rank).empty());
  }
}

TEST_CASE("membership: the neighbours of a rank that falls silent tell all others, also where nothing is to be done") {
  SimJob job(kRanks);
  pass(job, 2);
  for (Rank peer = 0; peer < kRanks; ++peer) {
    if (peer != 3) job.network().silence(3, peer);
  }
  CHECK(others_fail(job, 3));
  for (Rank rank = 0; rank < kRanks; ++rank) {
    if (rank != 3) CHECK(failure(job, rank).find("rank 3 has sent nothing for") != std::string::npos);
  }
}

TEST_CASE("membership: a rank that wants to run and gets no processor is waited for, but not for ever") {
  SimJob job(kRanks);
  pass(job, 2);
  job.network().starve(3, 5 * kHeart);
  pass(job, 6);
  for (Rank rank = 0; rank < kRanks; ++rank) CHECK(failure(job, rank).empty());
  const std::vector<std::string> warnings = job.engine(2).take_warnings();
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("rank 3 has sent nothing for") != std::string::npos);
  CHECK(warnings[0].find("It wants to run, but gets no processor") != std::string::npos);
  std::vector<std::vector<float>> data(kRanks, std::vector<float>(16, 1.0F));
  for (Rank rank = 0; rank < kRanks; ++rank) {
    const auto operation = SimJob::allreduce("after", data[rank]);
    operation->awaited = true;
    job.submit(rank, operation);
  }
  pass(job, 1);
  for (Rank rank = 0; rank < kRanks; ++rank) CHECK(data[rank][0] == kRanks);
  job.network().starve(3, 20 * kHeart);
  pass(job, 9);
  for (Rank rank = 0; rank < kRanks; ++rank) CHECK(failure(job, rank).empty());
  CHECK(others_fail(job, 3));
  CHECK(failure(job, 2).find("rank 3 has sent nothing for") != std::string::npos);
  CHECK(failure(job, 2).find("it wanted to run, but its host had no processor for it") != std::string::npos);
}

TEST_CASE("membership: who has got its processor back may be silent for a while, as any other") {
  SimJob job(kRanks);
  pass(job, 2);
  job.network().starve(3, 3 * kHeart);
  job.network().pause(3, 3 * kHeart + kHeart / 2);
  pass(job, 6);
  for (Rank rank = 0; rank < kRanks; ++rank) CHECK(failure(job, rank).empty());
  job.network().starve(3, 3 * kHeart);
  job.network().pause(3, 9 * kHeart);
  pass(job, 6);
  CHECK(others_fail(job, 3));
}

TEST_CASE("membership: whoever sends data is not silent, though its records are kept back on their way") {
  SimJob job(2);
  std::vector<std::vector<float>> data(2, std::vector<float>(1 << 20, 1.0F));
  std::vector<std::shared_ptr<engine::Operation>> operations;
  for (Rank rank : {0, 1}) {
    operations.push_back(SimJob::allreduce("long", data[rank]));
    job.submit(rank, operations.back());
  }
  const Nanoseconds begin = job.now();
  CHECK(job.run_until([&] { return job.now() >= begin + kHeart / 4; }));
  for (Rank rank : {0, 1}) job.network().delay(rank, 1 - rank, transport::kControlLane, 3 * kHeart);
  pass(job, 2);
  CHECK_FALSE(operations.front()->done());
  CHECK(job.run_until([&] { return operations.front()->done() && operations.back()->done(); }));
  for (Rank rank : {0, 1}) {
    CHECK(failure(job, rank).empty());
    CHECK(std::ranges::all_of(data[rank], [](float value) { return value == 2; }));
  }
}

TEST_CASE("membership: over a long way a rank may be silent for some round trips more, but not for ever") {
  SimJob job(kRanks, {.paces = std::vector<transport::Pace>(kRanks, {.latency_s = 0.02})});
  pass(job, 2);
  for (Rank peer = 0; peer < kRanks; ++peer) {
    if (peer != 3) job.network().delay(3, peer, transport::kControlLane, 5 * kHeart);
  }
  pass(job, 6);
  for (Rank rank = 0; rank < kRanks; ++rank) CHECK(failure(job, rank).empty());
  for (Rank peer = 0; peer < kRanks; ++peer) {
    if (peer != 3) job.network().silence(3, peer);
  }
  pass(job, 5);
  CHECK(others_fail(job, 3));
}

TEST_CASE("membership: who is waited for is asked whether it lives, and the slow are not taken for dead") {
  SimJob job(kRanks);
  std::vector<std::vector<float>> data(kRanks, std::vector<float>(16, 1.0F));
  // All wait for rank 0, which is long in coming.
  for (Rank rank = 1; rank < kRanks; ++rank) job.submit(rank, SimJob::allreduce("late", data[rank]));
  pass(job, 5);
  for (Rank rank = 0; rank < kRanks; ++rank) CHECK(failure(job, rank).empty());
  // Rank 4 is no neighbour of rank 0, and the only one that it cannot be heard by any more.
  job.network().silence(0, 4);
  CHECK(others_fail(job, 0));
  CHECK(failure(job, 4).find("rank 0 has sent nothing for") != std::string::npos);
}

TEST_CASE("membership: a cable that is cut between ranks that do not need each other disturbs nobody until they do") {
  SimJob job(kRanks);
  pass(job, 2);
  job.network().silence(0, 4);
  pass(job, 10);
  for (Rank rank = 0; rank < kRanks; ++rank) CHECK(failure(job, rank).empty());
  std::vector<std::vector<float>> data(kRanks, std::vector<float>(16, 1.0F));
  for (Rank rank = 0; rank < kRanks; ++rank) job.submit(rank, SimJob::allreduce("needed", data[rank]));
  CHECK(others_fail(job, 0));
  CHECK(failure(job, 4).find("rank 0 has sent nothing for") != std::string::npos);
}

TEST_CASE("membership: who goes on keeps its place, and has the next free rank") {
  transport::SimNetwork network(4, 1);
  std::vector<std::unique_ptr<transport::Link>> links(4);
  for (const Rank peer : {0, 1, 3}) links[static_cast<std::size_t>(peer)] = network.link(2, peer);
  engine::Membership members(1, 2, std::move(links), {0, 0, 1, 1}, 0);
  for (engine::Peer* peer : members.peers()) members.get_to_know(*peer);
  const auto former = members.go_on_with(9, {0, 2, 3});
  REQUIRE(former.size() == 1);
  CHECK(former.front()->place == 1);
  CHECK(members.epoch() == 9);
  CHECK(members.size() == 3);
  CHECK(members.places() == 4);
  CHECK(members.self() == 1);
  CHECK(members.peer(1) == nullptr);
  CHECK(members.peer(2)->place == 3);
  CHECK(members.host(2) == 1);
  CHECK(members.shares_host(2));
  CHECK(members.rank_of(1) == -1);
  CHECK(members.peer_at(1) == nullptr);
  CHECK(members.known().size() == 2);
}

TEST_CASE("membership: who comes has no rank before it is a member, is watched by all, and takes nobody's place") {
  transport::SimNetwork network(9, 1);
  std::vector<std::unique_ptr<transport::Link>> links(8);
  for (Rank peer = 1; peer < 8; ++peer) links[static_cast<std::size_t>(peer)] = network.link(0, peer);
  engine::Membership members(1, 0, std::move(links), std::vector<int>(8, 0), 0);
  members.go_on_with(2, {0, 1, 2, 3, 4, 5, 6});
  CHECK_THROWS_AS(members.meet(4, network.link(0, 4), 0), Error);
  members.meet(8, network.link(0, 8), 0);
  engine::Peer& comer = *members.peer_at(8);
  CHECK(comer.rank == -1);
  CHECK(comer.is_neighbour);
  CHECK(members.size() == 7);
  // It stays while the members change without it.
  CHECK(members.go_on_with(3, {0, 1, 2, 3, 4, 6}).size() == 1);
  REQUIRE(members.peer_at(8) == &comer);
  members.set_host(8, 1);
  CHECK(members.go_on_with(4, {0, 1, 2, 3, 4, 6, 8}).empty());
  CHECK(comer.rank == 6);
  CHECK_FALSE(comer.arriving);
  CHECK(members.host(6) == 1);
  CHECK_FALSE(members.shares_host(6));
}

}  // namespace ringcore::testing
