// Who waits until enough others have announced an operation, and does so itself only then.
#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "engine_fixtures.hpp"
#include "transport/sim/network.hpp"

using namespace ringcore;
using namespace ringcore::testing;

namespace {

std::shared_ptr<Operation> watch_for(const std::string& name, int members) {
  auto watch = std::make_shared<Operation>();
  watch->descriptor.name = name;
  watch->watched_members = members;
  return watch;
}

// Engines whose time is virtual, driven until nothing comes any more.
struct Engines {
  explicit Engines(int ranks, engine::EngineSettings settings) : network(ranks, 1, {}) {
    std::vector<int> host_of;
    for (Rank rank = 0; rank < ranks; ++rank) host_of.push_back(rank);
    for (Rank rank = 0; rank < ranks; ++rank) {
      engine::EngineConfig config;
      config.rank = rank;
      config.make_carriers = carriers::standard();
      config.links.resize(static_cast<std::size_t>(ranks));
      for (Rank peer = 0; peer < ranks; ++peer) {
        if (peer != rank) config.links[static_cast<std::size_t>(peer)] = network.link(rank, peer);
      }
      config.host_of = host_of;
      all.push_back(std::make_unique<engine::Engine>(std::move(config), settings, network.clock()));
    }
  }
  engine::Engine& operator[](int rank) { return *all[static_cast<std::size_t>(rank)]; }
  void settle() {
    for (int tick = 0; tick < 100; ++tick) {
      network.run_until(network.clock().now() + 5 * kMillisecond);
      for (const auto& engine : all) {
        while (engine->progress()) {
        }
        engine->check_timers(true);
      }
    }
  }

  transport::SimNetwork network;
  std::vector<std::unique_ptr<engine::Engine>> all;
};

}  // namespace

TEST_CASE("a watch ends when so many have announced the operation, along a tree, too") {
  for (const int direct_members : {16, 1}) {
    engine::EngineSettings settings;
    settings.direct_members = direct_members;
    Engines engines(4, settings);
    for (int use = 0; use < 3; ++use) {  // of the same name
      std::vector<std::vector<float>> data(4, std::vector<float>(500));
      std::vector<std::shared_ptr<Operation>> sums;
      for (Rank rank = 0; rank < 4; ++rank) {
        data[static_cast<std::size_t>(rank)].assign(500, mark(rank));
        sums.push_back(allreduce("sum", data[static_cast<std::size_t>(rank)]));
        sums.back()->awaited = use > 0;  // then it takes its data along, perhaps by the short cut
      }
      const auto two = watch_for("sum", 2);
      const auto three = watch_for("sum", 3);
      const auto other = watch_for("another", 1);
      for (const auto& watch : {two, three, other}) engines[3].submit(watch);
      engines[0].submit(sums[0]);
      engines.settle();
      CHECK(!two->done());
      engines[2].submit(sums[2]);
      engines.settle();
      CHECK(two->done());
      CHECK(two->error == nullptr);
      CHECK(!three->done());
      engines[3].submit(sums[3]);
      engines.settle();
      CHECK(three->done());
      CHECK(!sums[0]->done());
      engines[1].submit(sums[1]);
      for (Rank rank = 0; rank < 4; ++rank) engines[rank].wanted(*sums[static_cast<std::size_t>(rank)], false);
      engines.settle();
      for (Rank rank = 0; rank < 4; ++rank) {
        REQUIRE(sums[static_cast<std::size_t>(rank)]->done());
        CHECK(data[static_cast<std::size_t>(rank)][499] == 15.0F);
      }
      CHECK(!other->done());
    }
  }
}

TEST_CASE("ranks that follow the first make sums in its order, over all transports") {
  on_all_clusters([](Cluster& cluster) {
    cluster.run([&](Rank rank) {
      Runtime& runtime = cluster.runtime(rank);
      for (int step = 0; step < 20; ++step) {
        std::vector<float> data(step % 2 == 0 ? 3 : 3000, rank == step % cluster.ranks() ? mark(rank) : 0.0F);
        if (rank != step % cluster.ranks()) {
          const auto watch = watch_for("step", 1);
          runtime.submit(watch);
          finish(runtime, *watch);
        }
        run(runtime, allreduce("step", data));
        CHECK(data[2] == mark(step % cluster.ranks()));
      }
    });
  });
}

TEST_CASE("a watch that nobody can end any more fails, and blames nobody") {
  Engines engines(3, {});
  std::vector<float> data(10);
  const auto watch = watch_for("sum", 2);
  const auto all = watch_for("sum", 3);
  engines[0].submit(watch);
  engines[0].submit(all);
  engines[1].submit(allreduce("sum", data));
  engines.settle();
  engines[2].leave("");
  engines.settle();
  REQUIRE(watch->done());
  REQUIRE(watch->error != nullptr);
  CHECK(std::string(watch->error->what()).find("rank 2 has left") != std::string::npos);
  CHECK(all->error != nullptr);
  CHECK(!engines[0].lost_rank());
}

TEST_CASE("a watch for nobody, or for more than there are, is refused") {
  Engines engines(2, {});
  for (const int members : {-1, 3}) {
    CHECK_THROWS_WITH_AS(engines[0].submit(watch_for("sum", members)),
                         doctest::Contains("of 2 ranks have submitted it"), Error);
  }
  engine::EngineSettings elastic;
  elastic.elastic = true;
  Engines job(2, elastic);
  CHECK_THROWS_WITH_AS(job[0].submit(watch_for("sum", 1)), doctest::Contains("not elastic"), Error);
}

TEST_CASE("a process set that is removed takes its watches along") {
  Engines engines(2, {});
  const auto set = engines[0].add_process_set({0, 1});
  engines[1].add_process_set({0, 1});
  const auto watch = watch_for("sum", 2);
  watch->process_set = set;
  engines[0].submit(watch);
  engines[0].remove_process_set(set);
  REQUIRE(watch->done());
  CHECK(std::string(watch->error->what()).find("has removed process set") != std::string::npos);
}
