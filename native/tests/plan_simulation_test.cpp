// What is predicted of plans, rank by rank, on networks that are not even, and inside hosts.
#include <doctest/doctest.h>

#include <string>

#include "plan/simulation.hpp"

using namespace ringcore;
using namespace ringcore::plan;

namespace {

constexpr double kBytes = 1 << 20;
constexpr CostModel kNoSteps{.step_s = 0, .touch_seconds_per_byte = 0};
// It changes nothing but that every rank is simulated by itself.
const Disturbance kHardlyAny{.slow_hosts = {{0, 1.0}}};

Topology hosts_of(int ranks, int local) {
  Topology topology;
  for (Rank rank = 0; rank < ranks; ++rank) topology.host_of.push_back(rank / local);
  return topology;
}

double seconds(const char* name, const Topology& topology, int parts, std::uint32_t repeats,
               const Disturbance& disturbance, const CostModel& model = {}) {
  const PlanRequest request{.collective = Collective::kAllreduce, .topology = &topology, .parts = parts};
  const Generator& generator = plan::generator(name);
  const bool even = disturbance.none();
  const Symmetry symmetry = even ? Symmetry::none(topology.nodes()) : generator.symmetry(request);
  const auto plan = excerpt(generator, request, symmetry, kMostSteps);
  REQUIRE(plan);
  return Simulation(*plan, topology, model, kBytes / plan->chunks / repeats, repeats, disturbance).run();
}

}  // namespace

TEST_CASE("a rank copies to its neighbours in a host one after the other") {
  Topology topology = hosts_of(4, 4);
  topology.links.in_host = {.latency_s = 0, .seconds_per_byte = 1e-9};
  const PlanRequest request{.collective = Collective::kAllgather, .topology = &topology};
  const auto plan = excerpt(generator("direct"), request, Symmetry::none(4), kMostSteps);
  REQUIRE(plan);
  const double predicted = Simulation(*plan, topology, kNoSteps, kBytes, 1, {}).run();
  CHECK(predicted >= 3 * kBytes * 1e-9);
  CHECK(predicted <= 4 * kBytes * 1e-9);
}

TEST_CASE("ranks by themselves, as images of one, take what all programs take") {
  for (const auto& [ranks, local] : {std::pair{8, 1}, {12, 3}, {16, 4}}) {
    const Topology topology = hosts_of(ranks, local);
    for (const char* name : {"ring", "double_tree", "pat", "hierarchical"}) {
      if (std::string(name) == "hierarchical" && local == 1) continue;
      CAPTURE(name);
      CAPTURE(ranks);
      CHECK(seconds(name, topology, 4, 1, kHardlyAny) ==
            doctest::Approx(seconds(name, topology, 4, 1, {})).epsilon(1e-6));
    }
  }
}

TEST_CASE("a program that repeats its segments takes what the plan of so many parts takes") {
  const Topology topology = hosts_of(24, 4);
  for (const Disturbance& disturbance : {Disturbance{}, Disturbance{.slow_hosts = {{1, 3.0}}}}) {
    CHECK(seconds("double_tree", topology, 1, 16, disturbance) ==
          doctest::Approx(seconds("double_tree", topology, 16, 1, disturbance)));
  }
}

TEST_CASE("parts of large data go behind each other along two trees") {
  Topology topology = hosts_of(64, 1);
  topology.links.between_hosts = {.latency_s = 0, .seconds_per_byte = 1e-8};
  const double in_one = seconds("double_tree", topology, 1, 1, {}, kNoSteps);
  const double in_many = seconds("double_tree", topology, 1, 64, {}, kNoSteps);
  CHECK(in_many < 0.6 * in_one);
  // Two children send at once, up one tree and then the other, and as much goes down.
  CHECK(in_many < 5 * kBytes * 1e-8);
}

TEST_CASE("one slow host slows a ring as much as all of them, and messages that are late slow it more") {
  Topology topology = hosts_of(16, 1);
  topology.links.between_hosts = {.latency_s = 1e-6, .seconds_per_byte = 1e-8};
  const double even = seconds("ring", topology, 1, 1, {}, kNoSteps);
  CHECK(seconds("ring", topology, 1, 1, {.slow_hosts = {{5, 4.0}}}, kNoSteps) ==
        doctest::Approx(4 * even).epsilon(0.15));
  // The latest of 16 neighbours holds up all, again in each of 30 rounds.
  const double late = seconds("ring", topology, 1, 1, {.jitter_s = 1e-3}, kNoSteps);
  CHECK(late > even + 30 * 0.5e-3);
  CHECK(late < even + 30 * 1e-3);
  CHECK(late == seconds("ring", topology, 1, 1, {.jitter_s = 1e-3}, kNoSteps));
  CHECK(late != seconds("ring", topology, 1, 1, {.jitter_s = 1e-3, .seed = 2}, kNoSteps));
}

TEST_CASE("over a long way connections that share a port keep to their parts of it, and leave some of it idle") {
  constexpr double kLatency = 0.04;
  Topology near = hosts_of(4, 1);
  near.links.between_hosts = {.latency_s = 0, .seconds_per_byte = 1e-6};
  Topology far = near;
  far.links.between_hosts.latency_s = kLatency;
  const auto longer = [&](const char* name, int parts, int journeys) {
    return (seconds(name, far, parts, 1, {}, kNoSteps) - journeys * kLatency) /
           seconds(name, near, parts, 1, {}, kNoSteps);
  };
  CHECK(longer("ring", 1, 6) == doctest::Approx(1));  // to one rank, and from one
  CHECK(longer("direct", 1, 2) == doctest::Approx(1.3));
  // One transfer after the other, each with a third of a port.
  CHECK(longer("halving_doubling", 1, 4) == doctest::Approx(2 * 1.3));
}
