// Rings in rings: inside hosts, inside racks, between racks.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <tuple>
#include <vector>

#include "carriers/plans/executor.hpp"
#include "plan/cost.hpp"
#include "plan/planner.hpp"
#include "plan/verifier.hpp"
#include "transport/sim/network.hpp"

using namespace ringcore;
using namespace ringcore::plan;

namespace {

constexpr Collective kInRacks[] = {Collective::kAllreduce, Collective::kAllgather, Collective::kReduceScatter};

// So many racks of so many hosts with so many ranks: a switch for each rack, a narrower cable from each to one that connects
// them. Hosts are dealt out to the racks in turn; the ranks to the hosts, too, or host by host.
Topology told(int racks, int hosts, int local, bool in_turn) {
  Topology topology;
  const int count = racks * hosts;
  for (Rank rank = 0; rank < count * local; ++rank) {
    topology.host_of.push_back(in_turn ? rank % count : rank / local);
  }
  const auto cable = [&](int a, int b, double seconds_per_byte) {
    topology.links.cables.push_back({a, b, 1e-6, seconds_per_byte});
    topology.links.cables.push_back({b, a, 1e-6, seconds_per_byte});
  };
  for (int host = 0; host < count; ++host) cable(host, count + host % racks, 1e-9);
  for (int rack = 0; rack < racks; ++rack) cable(count + rack, count + racks, 1e-8);
  return topology;
}

// Nothing told of their network.
Topology alike(int hosts, int local) {
  Topology topology;
  for (Rank rank = 0; rank < hosts * local; ++rank) topology.host_of.push_back(rank / local);
  return topology;
}

PlanRequest request_for(const Topology& topology, Collective collective, int parts = 1) {
  return {.collective = collective, .topology = &topology, .parts = parts};
}

double seconds(const char* name, const Topology& topology, double bytes, Collective collective = Collective::kAllreduce,
               int parts = 1) {
  const PlanRequest request = request_for(topology, collective, parts);
  const Generator& generator = plan::generator(name);
  const Symmetry symmetry = symmetry_of_hosts(generator.symmetry(request), topology, true);
  const auto plan = excerpt(generator, request, symmetry, SIZE_MAX);
  REQUIRE(plan);
  return predict_seconds(*plan, topology, bytes / plan->chunks, {.step_s = 0, .touch_seconds_per_byte = 0});
}

// Racks that are not equally large, of hosts that are not: 1 to 4 hosts of 1 to 3 ranks, dealt out in turn.
Topology uneven_racks() {
  Topology topology = told(3, 4, 1, false);
  topology.host_of = {0, 1, 2, 5, 6, 3, 2, 0, 8, 9, 3, 0};
  return topology;
}

// What all ranks have in the end, where rank r begins with r + 1 at every place, or nothing where they do not get there.
std::vector<std::vector<std::int64_t>> run(const Topology& topology, const PlanRequest& request, std::size_t count) {
  const int ranks = topology.ranks();
  transport::SimNetwork network(ranks, 18);
  std::vector<std::vector<std::unique_ptr<transport::Link>>> owned(static_cast<std::size_t>(ranks));
  std::vector<std::vector<transport::Link*>> links(owned.size());
  std::vector<std::vector<std::int64_t>> data;
  std::vector<Plan> plans;
  std::vector<std::unique_ptr<carriers::PlanRun>> runs;
  for (Rank rank = 0; rank < ranks; ++rank) {
    data.emplace_back(count, rank + 1);
    plans.push_back(*generator("racks").generate(request, rank));
    for (Rank peer = 0; peer < ranks; ++peer) {
      owned[rank].push_back(peer == rank ? nullptr : network.link(rank, peer));
      links[rank].push_back(owned[rank].back().get());
    }
  }
  for (Rank rank = 0; rank < ranks; ++rank) {
    Operands operands{.dtype = DType::kInt64, .op = ReduceOp::kSum, .final_scale = 1};
    operands.data_layout = Layout::even(count, plans[rank].chunks);
    operands.data = reinterpret_cast<std::byte*>(data[rank].data());
    runs.push_back(
        std::make_unique<carriers::PlanRun>(plans[rank], operands, links[rank], transport::kFirstDataLane, 1));
  }
  const auto done = [](const auto& each) { return each->done(); };
  // The network shows less than has arrived, by chance.
  for (int still = 0; still < 100 && !std::ranges::all_of(runs, done); ++still) {
    bool moved = false;
    for (const auto& each : runs) moved = each->progress() || moved;
    if (moved || network.step()) still = 0;
  }
  if (!std::ranges::all_of(runs, done)) return {};
  return data;
}

}  // namespace

TEST_CASE("rings in racks sum up, also what goes in one message and is not evenly divided") {
  for (const Topology& topology : {alike(6, 2), alike(9, 1), told(2, 3, 2, true)}) {
    for (const int parts : {1, 3}) {
      for (const std::size_t count : {std::size_t{3}, std::size_t{5003}}) {
        const int ranks = topology.ranks();
        const auto data = run(topology, request_for(topology, Collective::kAllreduce, parts), count);
        const std::vector<std::int64_t> sum(count, ranks * (ranks + 1) / 2);
        REQUIRE(data.size() == static_cast<std::size_t>(ranks));
        CHECK(std::ranges::all_of(data, [&sum](const auto& each) { return each == sum; }));
      }
    }
  }
}

TEST_CASE("rings in racks: cables that lead one way only, in a circle, are no way without an end") {
  Topology topology = alike(4, 1);
  for (int host = 0; host < 4; ++host) topology.links.cables.push_back({host, 4, 1e-6, 1e-9});
  for (int place = 4; place < 7; ++place)
    topology.links.cables.push_back({place, place == 6 ? 4 : place + 1, 1e-6, 1e-9});
  const auto found = generator("racks").generate(request_for(topology, Collective::kAllreduce), 0);
  CHECK(!found);  // all are in one rack, and there is no ring of several
}

TEST_CASE("rings in racks are right, whole and by symmetry") {
  std::vector<Topology> topologies = {alike(4, 1), alike(6, 2), alike(18, 2), alike(20, 1), alike(16, 3)};
  for (const bool in_turn : {false, true}) {
    for (const auto& [racks, hosts, local] : {std::tuple(2, 2, 1), {2, 2, 2}, {3, 2, 2}, {2, 3, 3}, {4, 3, 1}}) {
      topologies.push_back(told(racks, hosts, local, in_turn));
    }
  }
  const Generator& racks = generator("racks");
  for (const Topology& topology : topologies) {
    for (const Collective collective : kInRacks) {
      for (const int parts : {1, 3}) {
        const PlanRequest request = request_for(topology, collective, parts);
        const auto whole = excerpt(racks, request, Symmetry::none(topology.ranks()), SIZE_MAX);
        REQUIRE(whole);
        CAPTURE(topology.ranks());
        CHECK(verify(*whole, topology).value_or("") == "");
        for (Rank self = 0; self < topology.ranks(); self += 5) {
          CHECK(verify(*racks.generate(request, self), racks, request).value_or("") == "");
        }
      }
    }
  }
}

TEST_CASE("a broadcast through racks brings everybody what the root has, from any root") {
  for (const Topology& topology : {told(2, 3, 2, true), told(4, 5, 1, false), uneven_racks()}) {
    for (const int parts : {1, 3}) {
      for (Rank root = 0; root < topology.ranks(); ++root) {
        PlanRequest request = request_for(topology, Collective::kBroadcast, parts);
        request.root = root;
        const std::size_t count = 5003;
        const auto data = run(topology, request, count);
        const std::vector<std::int64_t> expected(count, root + 1);
        REQUIRE(data.size() == static_cast<std::size_t>(topology.ranks()));
        CHECK(std::ranges::all_of(data, [&expected](const auto& each) { return each == expected; }));
      }
    }
  }
}

TEST_CASE("a broadcast through racks is right, whole and by parts, up to 64 ranks") {
  std::vector<Topology> topologies = {uneven_racks()};
  for (const bool in_turn : {false, true}) {
    for (const auto& [racks, hosts, local] : {std::tuple(2, 2, 1), {3, 2, 2}, {2, 3, 3}, {4, 3, 1}, {4, 4, 4}}) {
      topologies.push_back(told(racks, hosts, local, in_turn));
    }
  }
  const Generator& racks = generator("racks");
  for (const Topology& topology : topologies) {
    for (const int parts : {1, 3}) {
      for (Rank root = 0; root < topology.ranks(); root += 3) {
        CAPTURE(topology.ranks());
        CAPTURE(root);
        PlanRequest request = request_for(topology, Collective::kBroadcast, parts);
        request.root = root;
        const auto whole = excerpt(racks, request, Symmetry::none(topology.ranks()), SIZE_MAX);
        REQUIRE(whole);
        CHECK(verify(*whole, topology).value_or("") == "");
        for (Rank self = 0; self < topology.ranks(); self += 5) {
          CHECK(verify(*racks.generate(request, self), racks, request).value_or("") == "");
        }
      }
    }
  }
}

TEST_CASE("a broadcast through racks crosses the cable of each rack once each way, and the planner takes it") {
  const Topology network = told(3, 8, 2, false);
  const double bytes = 48e6;
  const double bound = bytes * 1e-8;
  // As many parts as the planner's most: the last rack has the data some parts later than the first.
  const double through_racks = seconds("racks", network, bytes, Collective::kBroadcast, 16);
  CHECK(through_racks < 1.6 * bound);
  CHECK(seconds("hierarchical", network, bytes, Collective::kBroadcast, 16) > 2 * through_racks);
  for (const Topology& topology : {network, told(3, 8, 2, true)}) {
    Planner planner(topology, 0, CostModel{});
    const Plan& chosen = planner.choose({.collective = Collective::kBroadcast, .bytes = 48'000'000, .root = 5});
    CHECK(chosen.generator == "racks");
  }
}

TEST_CASE("there are rings in racks only where racks and their hosts are equally large, and enough of them") {
  const Generator& racks = generator("racks");
  const auto offered = [&](const Topology& topology) {
    return racks.generate(request_for(topology, Collective::kAllreduce), 0).has_value();
  };
  CHECK(offered(told(2, 2, 1, false)));
  CHECK_FALSE(offered(told(1, 4, 2, false)));  // one switch
  CHECK_FALSE(offered(told(4, 1, 2, false)));
  Topology uneven = told(2, 2, 2, false);
  uneven.host_of.pop_back();
  CHECK_FALSE(offered(uneven));
  CHECK(offered(alike(4, 1)));
  CHECK(offered(alike(15, 4)));
  CHECK_FALSE(offered(alike(17, 1)));
  CHECK_FALSE(offered(alike(3, 4)));
  // On a network that is even a tree of hosts is as good; where each host is a rack there is nothing in between.
  const auto broadcast = [&](const Topology& topology) {
    return racks.generate(request_for(topology, Collective::kBroadcast), 0).has_value();
  };
  CHECK_FALSE(broadcast(alike(16, 1)));
  CHECK_FALSE(broadcast(told(1, 4, 2, false)));
  CHECK_FALSE(broadcast(told(4, 1, 2, false)));
  CHECK(broadcast(uneven_racks()));
}

TEST_CASE("rings in racks take rounds for a rack and for the racks, and cross their cables once each way") {
  // 100 hosts: 18 + 18 rounds instead of 198, for next to no data.
  const Topology hundred = alike(100, 1);
  CHECK(seconds("racks", hundred, 800) < 0.25 * seconds("ring", hundred, 800));
  CHECK(seconds("racks", alike(64, 8), 4096) < 0.4 * seconds("hierarchical", alike(64, 8), 4096));
  // Of large data the narrow cables of three racks of four hosts each carry two thirds each way, twice.
  const double bytes = 48e6;
  CHECK(seconds("racks", told(3, 4, 2, false), bytes) == doctest::Approx(2 * bytes * 2 / 3 * 1e-8).epsilon(0.05));
  // Where hosts are numbered in turn, rings that know no racks cross them at every step.
  CHECK(seconds("hierarchical", told(3, 4, 2, false), bytes) > 2 * seconds("racks", told(3, 4, 2, false), bytes));
}
