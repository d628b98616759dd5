// Jobs with servers: the last processes have no data, carry out what the ranks agree on, and stay until these have left.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine_fixtures.hpp"
#include "sim_job.hpp"

using namespace ringcore;
using engine::Operation;
using testing::SimJob;

namespace {

struct Served {
  // `apart`: pairs that have no connection before one of the two needs it.
  Served(int ranks, int servers, const std::vector<std::pair<Rank, Rank>>& apart = {})
      : ranks(ranks),
        servers(servers),
        job(ranks + servers, {}, 1, apart, [servers](auto& config, auto&) { config.serving = servers; }) {}

  bool is_done(const std::vector<std::shared_ptr<Operation>>& operations) {
    return job.run_until([&] {
      return std::all_of(operations.begin(), operations.end(), [](const auto& each) { return each->done(); });
    });
  }

  std::size_t sent_to_servers() {
    std::size_t sent = 0;
    for (Rank rank = 0; rank < ranks; ++rank) {
      for (Rank server = ranks; server < ranks + servers; ++server) {
        sent += job.engine(rank).membership().peer(server)->link->traffic().sent;
      }
    }
    return sent;
  }

  int ranks;
  int servers;
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
