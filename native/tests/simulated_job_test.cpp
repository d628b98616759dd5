// Jobs of many ranks that are not there: what their collectives and their agreement take.
//
//   RINGCORE_SIMULATED_RANKS=10000 ringcore_tests -tc="*simulated job*"
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>

#include "base/error.hpp"
#include "engine/tree_shape.hpp"
#include "simulation/agreement.hpp"
#include "simulation/collective.hpp"

using namespace ringcore;
using namespace ringcore::simulation;

namespace {

plan::Links hundred_gigabit() {
  plan::Links links;
  links.between_hosts = {.latency_s = 10e-6, .seconds_per_byte = 8 / 100e9, .message_s = 2.8e-6};
  return links;
}

int asked_ranks() {
  const char* const asked = std::getenv("RINGCORE_SIMULATED_RANKS");
  return asked == nullptr ? 1000 : std::atoi(asked);
}

const CollectiveTime& of(const std::vector<CollectiveTime>& times, const std::string& name) {
  const auto found = std::find_if(times.begin(), times.end(), [&](const auto& time) { return time.algorithm == name; });
  REQUIRE(found != times.end());
  return *found;
}

}  // namespace

TEST_CASE("a simulated job of many ranks has a time for every algorithm, and the ring is not the best of them") {
  const int ranks = asked_ranks();
  const Network network = Network::of(ranks, ranks / 8, hundred_gigabit());
  const plan::Query query{.collective = Collective::kAllreduce, .bytes = 1'000'000, .dtype = DType::kFloat32};
  const auto begin = std::chrono::steady_clock::now();
  const auto times = simulate_collective(network, query, {"ring", "hierarchical", "double_tree", "pat"});
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  for (const CollectiveTime& time : times) {
    MESSAGE(time.algorithm << ": " << time.seconds << " s, " << time.parts << " parts, " << time.steps << " steps, "
                           << time.program_bytes << " B of program, " << time.sent_bytes << " B sent");
  }
  MESSAGE("simulated in " << took.count() << " s");
  // 2 (R - 1) messages behind each other, of which one of eight crosses the network.
  CHECK(of(times, "ring").seconds > 2.0 * ranks / 8 * 10e-6);
  CHECK(times.front().algorithm != "ring");
  CHECK(of(times, "ring").sent_bytes == doctest::Approx(2e6).epsilon(0.01));
  CHECK(of(times, "double_tree").peers <= 6);
}

TEST_CASE("a simulated job with a slow host or with jitter takes longer, rank by rank") {
  Network network = Network::of(128, 16, hundred_gigabit());
  const plan::Query query{.collective = Collective::kAllreduce, .bytes = 1 << 20, .dtype = DType::kFloat32};
  const std::vector<std::string> names = {"ring", "hierarchical", "double_tree"};
  const auto even = simulate_collective(network, query, names);
  network.disturbance = {.jitter_s = 20e-6, .slow_hosts = {{3, 4.0}}};
  const auto disturbed = simulate_collective(network, query, names);
  for (const std::string& name : names) CHECK(of(disturbed, name).seconds > 1.2 * of(even, name).seconds);
}

TEST_CASE("a simulated job with servers may go through them, and takes as long without them as if there were none") {
  const Network without = Network::of(4, 4, hundred_gigabit());
  Network with = without;
  with.topology.host_of.insert(with.topology.host_of.end(), {4, 5, 6, 7});
  with.topology.serving = 4;
  const plan::Query query{.collective = Collective::kAllreduce, .bytes = 256 << 20, .dtype = DType::kFloat32};
  const std::vector<std::string> names = {"ring", "binomial_tree"};
  const auto few = simulate_collective(without, query, names);
  const auto all = simulate_collective(with, query, {"ring", "binomial_tree", "servers"});
  for (const std::string& name : names) CHECK(of(all, name).seconds == of(few, name).seconds);
  // Each cable carries the data once, and in a ring one and a half times.
  CHECK(of(all, "servers").sent_bytes == query.bytes);
  CHECK(of(all, "servers").seconds < 0.9 * of(all, "ring").seconds);
}

TEST_CASE("a simulated job refuses what is none") {
  CHECK_THROWS_AS(Network::of(4, 5, {}), Error);
  const Network network = Network::of(4, 2, {});
  const plan::Query query{.collective = Collective::kAllreduce, .bytes = 4};
  CHECK_THROWS_WITH_AS(simulate_collective(network, query, {"rings"}), "there is no plan generator 'rings'", Error);
}

TEST_CASE("the trees of all members are those of each") {
  const std::vector<int> host_of = {0, 0, 1, 2, 1, 3, 3, 3, 4, 5, 6, 0};
  const auto all = engine::TreeShape::of_all(host_of);
  for (int member = 0; member < static_cast<int>(host_of.size()); ++member) {
    const engine::TreeShape one = engine::TreeShape::make(host_of, member);
    const engine::TreeShape& same = all[static_cast<std::size_t>(member)];
    CHECK(one.order == same.order);
    CHECK(one.parent == same.parent);
    CHECK(one.begin == same.begin);
    CHECK(one.end == same.end);
    CHECK(one.children.size() == same.children.size());
  }
}

TEST_CASE("a simulated job agrees along its tree in two journeys, with few records") {
  const int ranks = asked_ranks();
  const Network network = Network::of(ranks, ranks / 8, hundred_gigabit());
  const auto begin = std::chrono::steady_clock::now();
  const AgreementTime time = simulate_agreement(network, 50);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  MESSAGE(ranks << " ranks: " << time.first_s * 1e6 << " us, again " << time.again_s * 1e6 << " us, 50 operations "
                << time.step_s * 1e6 << " us, at most " << time.step_bytes << " B in " << time.step_records
                << " records; simulated in " << took.count() << " s");
  // From the host that is farthest from the root up to it and down again.
  int depth = 0;
  for (int hosts = 1, level = 4; hosts < ranks / 8; hosts += level, level *= 4) ++depth;
  CHECK(time.again_s >= 2 * depth * 10e-6);
  CHECK(time.again_s < 2 * (depth + 1) * 100e-6);
  CHECK(time.step_bytes < 8192);
  CHECK(time.neighbours <= 12);
}
