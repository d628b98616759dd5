// Members of a small process set of a large job, whose farewell goes along the tree of all ranks.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine_fixtures.hpp"
#include "sim_job.hpp"

namespace ringcore::testing {
namespace {

constexpr int kRanks = 8;
constexpr Rank kLeaver = 2;
constexpr Rank kOther = 6;

}  // namespace

TEST_CASE("a member that is connected with only after it has said goodbye says so to the one that waits for it") {
  // Neither neighbours in the tree nor such as watch each other.
  SimJob job(kRanks, {.shortest_delay = 5 * kMillisecond, .longest_delay = 6 * kMillisecond}, 4, {{kLeaver, kOther}});
  engine::ProcessSetId set = engine::kWorld;
  for (Rank rank = 0; rank < kRanks; ++rank) set = job.engine(rank).add_process_set({kLeaver, kOther});
  job.engine(kLeaver).leave("");
  const auto told = [&] {
    for (Rank rank = 0; rank < kRanks; ++rank) {
      const engine::Peer* peer = rank == kLeaver ? nullptr : job.engine(rank).membership().peer(kLeaver);
      if (peer != nullptr && peer->is_known && !peer->left) return false;
    }
    return true;
  };
  REQUIRE(job.run_until(told));
  std::vector<float> data{1.0F};
  const auto waits = SimJob::allreduce("waits", data);
  waits->process_set = set;
  job.submit(kOther, waits);
  REQUIRE(job.run_until([&] { return waits->done(); }));
  REQUIRE(waits->error != nullptr);
  CHECK(std::string(waits->error->what()).find("rank 2 has left without submitting it") != std::string::npos);
  CHECK(job.engine(kOther).failure() == nullptr);
  REQUIRE(job.run_until([&] { return job.engine(kLeaver).farewell_seen(); }));
}

TEST_CASE("the end of a rank that has seen this one's farewell is no loss, though it says no goodbye itself") {
  SimJob job(2);
  job.engine(0).leave("");
  REQUIRE(job.run_until([&] { return job.engine(1).membership().peer(0)->left; }));
  REQUIRE_FALSE(job.engine(0).farewell_seen());
  job.engine(1).leave("");
  REQUIRE(job.run_until([&] { return job.engine(1).farewell_seen(); }));  // now it may go
  job.network().run_until(job.now() + 20 * kMillisecond);
  job.network().kill(1);
  job.network().run_until(job.now() + 100 * kMillisecond);
  job.engine(0).check_timers(false);  // before it looks at what has arrived
  CHECK(job.engine(0).failure() == nullptr);
  CHECK(job.engine(0).farewell_seen());
}

TEST_CASE("a rank whose links still hold something that it has sent does not go") {
  SimJob job(2);
  job.withhold(0);
  for (const Rank rank : {0, 1}) job.engine(rank).leave("");
  REQUIRE(job.run_until([&] { return job.engine(1).farewell_seen(); }));
  REQUIRE(job.run_until([&] { return job.engine(0).membership().peer(1)->left; }));
  CHECK_FALSE(job.engine(0).farewell_seen());
  job.withhold(0, false);
  CHECK(job.engine(0).farewell_seen());
}

TEST_CASE("the end of a connection for data that overtakes the peer's last words is not taken for the reason") {
  SimJob job(2);
  std::vector<float> data{1.0F};
  const auto waits = SimJob::allreduce("waits", data);
  job.submit(0, waits);
  const auto greeted = [&](Rank rank) { return job.engine(rank).membership().peer(1 - rank)->greeted; };
  REQUIRE(job.run_until([&] { return greeted(0) && greeted(1); }));
  const auto fails = [&] {
    job.engine(1).fail(std::make_shared<const Error>(ErrorKind::kPeerLost, "why rank 1 ends"));
    while (job.engine(1).progress()) {  // until all of it is on its way
    }
    job.network().end_data(1, 0);
    REQUIRE(job.run_until([&] { return waits->done(); }));
    return std::string(waits->error->what());
  };
  SUBCASE("they are waited for") {
    job.network().delay(1, 0, transport::kControlLane, 50 * kMillisecond);
    const std::string said = fails();
    CAPTURE(said);
    CHECK(said.find("why rank 1 ends") != std::string::npos);
  }
  SUBCASE("as long as a rank may be silent") {
    const Nanoseconds before = job.now();
    job.network().delay(1, 0, transport::kControlLane, 10 * kSecond);
    CHECK(fails().find("rank 1 closed the connection, as seen by rank 0") != std::string::npos);
    CHECK(job.now() - before < kSecond);
  }
}

TEST_CASE("whoever removes a process set that others are ending still passes on what comes from below it") {
  SimJob job(kRanks, {}, 4);
  // Of the one rank 1 is the root, and rank 2 is between it and rank 6; of the other rank 1 is between ranks 0 and 5.
  const std::vector<std::vector<Rank>> members{{1, 2, 3, 4, 5, 6}, {0, 1, 2, 3, 4, 5}};
  std::vector<engine::ProcessSetId> sets(members.size());
  for (std::size_t i = 0; i < sets.size(); ++i) {
    for (Rank rank = 0; rank < kRanks; ++rank) sets[i] = job.engine(rank).add_process_set(members[i]);
  }
  const auto pass = [&](Nanoseconds duration) {
    const Nanoseconds end = job.now() + duration;
    REQUIRE(job.run_until([&] { return job.now() >= end; }));
  };
  pass(20 * kMillisecond);
  for (const Rank late : {5, 6}) job.network().pause(late, 60 * kMillisecond);
  const std::vector<Rank> between{2, 1};
  for (std::size_t i = 0; i < sets.size(); ++i) {
    for (const Rank rank : members[i]) {
      if (rank != between[i]) job.engine(rank).remove_process_set(sets[i]);
    }
  }
  pass(30 * kMillisecond);  // now these two know that the sets end, and wait for the late ones
  for (std::size_t i = 0; i < sets.size(); ++i) job.engine(between[i]).remove_process_set(sets[i]);
  for (Rank rank = 0; rank < kRanks; ++rank) job.engine(rank).leave("");
  for (Rank rank = 0; rank < kRanks; ++rank) {
    CHECK(job.run_until([&] { return job.engine(rank).farewell_seen(); }));
  }
}

TEST_CASE("an alltoall of more ranks than a record has room for is refused with the reason") {
  constexpr int kMany = 9000;
  transport::VirtualClock clock;
  engine::EngineConfig config;
  config.links.resize(kMany);
  for (Rank rank = 0; rank < kMany; ++rank) config.host_of.push_back(rank);
  config.make_carriers = carriers::standard();
  engine::Engine engine(std::move(config), {}, clock);
  std::vector<float> data(kMany);
  std::vector<float> dealt(kMany);
  const auto operation = make(Collective::kAlltoall, "many", {kMany}, DType::kFloat32, data.data(), dealt.data());
  std::string refusal;
  try {
    engine.submit(operation);
  } catch (const Error& error) {
    refusal = error.what();
  }
  CHECK(refusal.find("alltoall 'many': splits for 9000 ranks need ") == 0);
  CHECK(refusal.find("are possible. Remedy: use process sets of fewer ranks.") != std::string::npos);
}

}  // namespace ringcore::testing
