// Jobs with servers: the last processes have no data, carry out what the ranks agree on, and stay until these have left.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "engine_fixtures.hpp"
#include "outside_plan.hpp"
#include "plan/offered.hpp"
#include "sim_job.hpp"

using namespace ringcore;
using engine::Operation;
using testing::SimJob;

namespace {

struct Served {
  // `apart`: pairs that have no connection before one of the two needs it.
  Served(int ranks, int servers, const std::vector<std::pair<Rank, Rank>>& apart = {})
      : ranks(ranks), servers(servers), job(ranks + servers, {}, 1, apart, [this](auto& config, auto&) {
          config.serving = this->servers;
          offered.push_back(std::make_shared<plan::Offered>());
          config.make_carriers = carriers::standard(nullptr, false, offered.back());
        }) {}

  // As `plans.register` does when all ranks have nothing under way.
  void offer(const plan::WholePlan& plan) {
    plan::Topology topology{.serving = servers};
    for (Rank node = 0; node < ranks + servers; ++node) topology.host_of.push_back(node);
    const plan::Offer offer{.plan = plan, .most_bytes = std::size_t{1} << 40, .always = true};
    for (Rank rank = 0; rank < ranks; ++rank) {
      offered[static_cast<std::size_t>(rank)]->offer({plan::offered_to(rank, offer, topology)});
    }
    job.engine(0).offer(plan::to_bytes(offer));
  }

  bool is_done(const std::vector<std::shared_ptr<Operation>>& operations) {
    return job.run_until([&] {
      return std::all_of(operations.begin(), operations.end(), [](const auto& each) { return each->done(); });
    });
  }

  std::size_t sent_to(Rank server) {
    std::size_t sent = 0;
    for (Rank rank = 0; rank < ranks; ++rank) {
      sent += job.engine(rank).membership().peer(server)->link->traffic().sent;
    }
    return sent;
  }
  std::size_t sent_to_servers() {
    std::size_t sent = 0;
    for (Rank server = ranks; server < ranks + servers; ++server) sent += sent_to(server);
    return sent;
  }

  int ranks;
  int servers;
  std::vector<std::shared_ptr<plan::Offered>> offered;  // by node
  SimJob job;
};

// Every rank submits such an operation; the errors, and what the operations have left in `data`.
std::vector<std::shared_ptr<Operation>> submit(Served& served, const std::string& name,
                                               std::vector<std::vector<float>>& data) {
  std::vector<std::shared_ptr<Operation>> operations;
  for (Rank rank = 0; rank < served.ranks; ++rank) {
    operations.push_back(SimJob::allreduce(name, data[static_cast<std::size_t>(rank)]));
    served.job.submit(rank, operations.back());
    served.job.engine(rank).wanted(*operations.back(), true);
  }
  return operations;
}

std::vector<std::vector<float>> marks(const Served& served, std::size_t count) {
  std::vector<std::vector<float>> data;
  for (Rank rank = 0; rank < served.ranks; ++rank) data.emplace_back(count, testing::mark(rank));
  return data;
}

}  // namespace

TEST_CASE("ranks get their sums, and servers carry what they carry quickest") {
  for (const auto& [ranks, servers] : {std::pair(1, 1), {2, 1}, {3, 2}, {4, 4}, {3, 6}}) {
    CAPTURE(ranks);
    CAPTURE(servers);
    Served served(ranks, servers);
    CHECK(served.job.engine(0).size(engine::kWorld) == ranks);
    const auto sum = static_cast<float>((1 << ranks) - 1);
    for (int step = 0; step < 20; ++step) {  // the trials are over before
      for (const std::size_t count : {std::size_t{1}, std::size_t{300}, std::size_t{20000}}) {
        auto data = marks(served, count);
        REQUIRE(served.is_done(submit(served, "t" + std::to_string(count), data)));
        for (const auto& result : data) CHECK(result == std::vector<float>(count, sum));
      }
    }
    CHECK((served.sent_to_servers() > 0) == (ranks > 1));
  }
}

TEST_CASE("a server that is lost fails the ranks, and is named") {
  Served served(3, 2);
  auto data = marks(served, 50000);
  const auto operations = submit(served, "gradient", data);
  served.job.network().kill(4);
  REQUIRE(served.is_done(operations));
  for (const auto& operation : operations) {
    REQUIRE(operation->error != nullptr);
    CHECK(operation->error->kind() == ErrorKind::kPeerLost);
    CHECK(std::string(operation->error->what()).find("rank 4 (server 1) ") == 0);
  }
  CHECK(served.job.engine(0).lost_rank() == 4);
}

TEST_CASE("a server that leaves before the ranks is a lost one") {
  Served served(2, 1);
  auto data = marks(served, 100);
  served.job.engine(2).leave("");
  const auto operations = submit(served, "gradient", data);
  REQUIRE(served.is_done(operations));
  for (const auto& operation : operations) {
    REQUIRE(operation->error != nullptr);
    CHECK(std::string(operation->error->what()).find("rank 2 (server 0) has left, and those that it serves have not") ==
          0);
  }
}

TEST_CASE("a server says so when it cannot be connected with a rank") {
  Served served(2, 1, {{0, 2}});
  served.job.network().refuse_lanes(0, 2);
  CHECK(served.job.run_until([&] { return served.job.engine(2).failure() != nullptr; }));
  CHECK(served.job.run_until([&] { return served.job.engine(0).failure() != nullptr; }));
}

namespace {

constexpr std::size_t kCount = 5000;
constexpr std::size_t kBytes = kCount * sizeof(float);
// In each lane the first ones show what the network is like, and go by no plan from outside.
constexpr int kFirst = 16;

// Whether all ranks get the right sums, one after the other.
bool sums_are_right(Served& served, int sums = 1) {
  for (; sums > 0; --sums) {
    auto data = marks(served, kCount);
    if (!served.is_done(submit(served, "gradient", data))) return false;
    const std::vector<float> right(kCount, static_cast<float>((1 << served.ranks) - 1));
    if (!std::ranges::all_of(data, [&](const auto& result) { return result == right; })) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("a plan from outside has the servers that it names, from its place in the order of all operations on") {
  Served served(3, 3);
  for (const int serving : {1, 2, 3, 0}) {
    CAPTURE(serving);
    // One without an end in sight comes to the servers in several pieces.
    served.offer(testing::outside_plan(3, serving, serving == 2 ? 1500 : 0));
    REQUIRE(sums_are_right(served, kFirst));
    for (int step = 0; step < 3; ++step) {
      std::vector<std::size_t> before;
      for (Rank server = 3; server < 6; ++server) before.push_back(served.sent_to(server));
      REQUIRE(sums_are_right(served));
      for (int server = 0; server < 3; ++server) {
        const std::size_t sent = served.sent_to(3 + server) - before[static_cast<std::size_t>(server)];
        CHECK((sent > kBytes / 2) == (server < serving));
      }
    }
  }
}

TEST_CASE("a server that is late does by the plan of before what came before a plan from outside") {
  Served served(3, 1);
  served.offer(testing::outside_plan(3, 0));  // which the server has no part in
  REQUIRE(sums_are_right(served, kFirst));
  const std::size_t before = served.sent_to(3);
  served.job.network().delay(1, 3, transport::kControlLane, 100 * kMillisecond);
  REQUIRE(sums_are_right(served, 5));
  CHECK(served.sent_to(3) - before < kBytes);
  served.offer(testing::outside_plan(3, 1));
  REQUIRE(sums_are_right(served, kFirst));
  CHECK(served.sent_to(3) - before > 3 * kBytes);
}

TEST_CASE("a server that is lost in a plan from outside fails the ranks, and is named") {
  Served served(3, 2);
  served.offer(testing::outside_plan(3, 2));
  REQUIRE(sums_are_right(served, kFirst));
  auto data = marks(served, kCount);
  const auto operations = submit(served, "gradient", data);
  served.job.network().kill(3);
  REQUIRE(served.is_done(operations));
  for (const auto& operation : operations) {
    REQUIRE(operation->error != nullptr);
    CHECK(std::string(operation->error->what()).find("rank 3 (server 0) ") == 0);
  }
}

TEST_CASE("a server proves what it is offered, and nobody but the first rank offers it anything") {
  Served served(2, 1);
  plan::WholePlan wrong = testing::outside_plan(2, 1);
  wrong.programs[2].channels.front().pop_back();
  served.job.engine(0).offer(plan::to_bytes({.plan = wrong}));
  REQUIRE(served.job.run_until([&] { return served.job.engine(1).failure() != nullptr; }));
  const std::string why = served.job.engine(1).failure()->what();
  CHECK(why.find("server 0 was offered what no rank can have proven: the plan 'outside' from outside is wrong") !=
        std::string::npos);

  for (const auto& [from, to] : {std::pair(1, 2), {0, 1}}) {
    CAPTURE(from);
    Served mad(2, 1);
    REQUIRE(mad.job.run_until([&] { return mad.job.engine(to).membership().peer(from)->greeted; }));
    mad.job.only_beat(from);
    const engine::RecordHeader offer{.bytes = sizeof(engine::RecordHeader),
                                     .type = engine::RecordType::kOffer,
                                     .sequence = mad.job.engine(to).membership().peer(from)->received_records,
                                     .position = 0};
    mad.job.network().inject(from, to, transport::kControlLane, std::as_bytes(std::span(&offer, 1)));
    REQUIRE(mad.job.run_until([&] { return mad.job.engine(to).failure() != nullptr; }));
    CHECK(std::string(mad.job.engine(to).failure()->what()).find("offers a plan, as only the first rank does") !=
          std::string::npos);
  }
}

namespace {

constexpr engine::ProcessSetId kWithServer = 5;

// The ranks and the first server add a set of their own, each when it likes.
std::vector<engine::ProcessSetId> add_with_server(Served& served) {
  std::vector<Rank> members(static_cast<std::size_t>(served.ranks) + 1);
  std::iota(members.begin(), members.end(), 0);
  std::vector<engine::ProcessSetId> ids;
  for (const Rank member : members) ids.push_back(served.job.engine(member).add_process_set(members, kWithServer));
  return ids;
}

std::shared_ptr<Operation> in_set(engine::ProcessSetId set, std::vector<float>& data) {
  auto operation = SimJob::allreduce("inside", data);
  operation->process_set = set;
  return operation;
}

}  // namespace

TEST_CASE("a server is a member of process sets that their members alone add, and gives what it has there") {
  Served served(2, 2);
  const auto ids = add_with_server(served);
  CHECK(served.job.engine(2).size(ids[2]) == 3);
  CHECK(served.job.engine(2).rank(ids[2]) == 2);
  std::vector<std::vector<float>> data(3, std::vector<float>(3000, 2.0F));
  auto watch = std::make_shared<Operation>();
  watch->descriptor.name = "inside";
  watch->process_set = ids[2];
  watch->watched_members = 1;
  served.job.submit(2, watch);
  CHECK(!served.job.run_until([&] { return watch->done(); }));
  std::vector<std::shared_ptr<Operation>> operations;
  for (const Rank rank : {0, 1}) {
    const auto at = static_cast<std::size_t>(rank);
    operations.push_back(in_set(ids[at], data[at]));
    served.job.submit(rank, operations.back());
  }
  REQUIRE(served.job.run_until([&] { return watch->done(); }));
  CHECK(watch->error == nullptr);
  operations.push_back(in_set(ids[2], data[2]));
  served.job.submit(2, operations.back());
  for (const Rank rank : {0, 1, 2}) {
    served.job.engine(rank).wanted(*operations[static_cast<std::size_t>(rank)], true);
  }
  REQUIRE(served.is_done(operations));
  for (const auto& result : data) CHECK(result == std::vector<float>(3000, 6.0F));
  REQUIRE(sums_are_right(served));  // and the world has its own
}

TEST_CASE("a server that is lost fails what it was a member of, and is named") {
  Served served(2, 2);
  const auto ids = add_with_server(served);
  std::vector<std::vector<float>> data(2, std::vector<float>(3000, 2.0F));
  std::vector<std::shared_ptr<Operation>> operations;
  for (const Rank rank : {0, 1}) {
    const auto at = static_cast<std::size_t>(rank);
    operations.push_back(in_set(ids[at], data[at]));
    served.job.submit(rank, operations.back());
  }
  served.job.network().kill(2);
  REQUIRE(served.is_done(operations));
  for (const auto& operation : operations) {
    REQUIRE(operation->error != nullptr);
    CHECK(operation->error->kind() == ErrorKind::kPeerLost);
    CHECK(std::string(operation->error->what()).find("rank 2 (server 0) ") == 0);
  }
}

TEST_CASE("a server learns that a rank has left what it is a member of, and serves the others' end") {
  Served served(2, 1);
  const auto ids = add_with_server(served);
  auto watch = std::make_shared<Operation>();
  watch->descriptor.name = "inside";
  watch->process_set = ids[2];
  watch->watched_members = 1;
  served.job.submit(2, watch);
  for (const Rank rank : {0, 1}) served.job.engine(rank).leave("");
  REQUIRE(served.job.run_until([&] { return watch->done() && served.job.engine(2).has_served(); }));
  REQUIRE(watch->error != nullptr);
  CHECK(served.job.engine(2).failure() == nullptr);
}

TEST_CASE("servers are no members of process sets that all ranks count") {
  Served served(2, 1);
  for (const Rank node : {0, 2}) {
    CHECK_THROWS_WITH_AS(served.job.engine(node).add_process_set({0, 2}),
                         doctest::Contains("servers do not count the process sets that all ranks add"), Error);
  }
  CHECK_THROWS_AS(served.job.engine(2).add_process_set({0, 1}), Error);
}

TEST_CASE("servers have served when all ranks have left") {
  Served served(2, 2);
  auto data = marks(served, 1000);
  REQUIRE(served.is_done(submit(served, "gradient", data)));
  served.job.engine(0).leave("");
  REQUIRE(served.job.run_until([&] { return served.job.engine(0).farewell_seen(); }));
  CHECK(!served.job.engine(2).has_served());
  served.job.engine(1).leave("");
  REQUIRE(served.job.run_until([&] { return served.job.engine(2).has_served() && served.job.engine(3).has_served(); }));
  for (const Rank server : {2, 3}) {
    CHECK(served.job.engine(server).failure() == nullptr);
    served.job.engine(server).leave("");
  }
  CHECK(served.job.run_until(
      [&] { return served.job.engine(2).farewell_seen() && served.job.engine(3).farewell_seen(); }));
}

TEST_CASE("nobody submits anything on a server, and ranks agree on who serves") {
  Served served(2, 1);
  std::vector<float> data(4);
  CHECK_THROWS_WITH_AS(served.job.submit(2, SimJob::allreduce("x", data)),
                       "allreduce 'x': rank 2 (server 0) has no data of its own", Error);
  SimJob torn(3, {}, 16, {}, [](auto& config, auto&) { config.serving = config.rank == 0 ? 1 : 0; });
  CHECK(torn.run_until([&] { return torn.engine(0).failure() != nullptr; }));
  CHECK(std::string(torn.engine(0).failure()->what()).find("RINGCORE_SERVERS") != std::string::npos);
  const auto all_serve = [](auto& config, auto&) { config.serving = 2; };
  CHECK_THROWS_AS(SimJob(2, {}, 16, {}, all_serve), Error);
}
