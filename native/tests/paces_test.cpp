// What the planner learns from its links, and how it plans with it.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "plan/chooser.hpp"
#include "plan/paces.hpp"
#include "plan/ways.hpp"
#include "random_networks.hpp"
#include "transport/pace.hpp"

using namespace ringcore;
using namespace ringcore::plan;

namespace {

constexpr double kTenGigabit = 1.2e9;  // bytes a second

Topology one_rank_a_host(std::size_t hosts) {
  Topology topology;
  for (std::size_t host = 0; host < hosts; ++host) topology.host_of.push_back(static_cast<int>(host));
  return topology;
}

// Of all ranks, as they agree on it.
std::vector<double> table_of(const std::vector<PortPace>& paces) {
  std::vector<double> table(paces_size(static_cast<int>(paces.size())), 0);
  for (std::size_t rank = 0; rank < paces.size(); ++rank) write_pace(table, static_cast<Rank>(rank), paces[rank]);
  return table;
}

Links learnt(const Topology& topology, const std::vector<PortPace>& paces) {
  return corrected(topology, table_of(paces));
}

std::vector<PortPace> even(std::size_t ranks, double bytes_per_s, double latency_s) {
  return std::vector<PortPace>(ranks, {bytes_per_s, latency_s});
}

// The plan that has the operations in the end, on a network like `truth`, whose ranks say that of their links.
std::string settles_on(const Query& query, const Topology& truth, const std::vector<PortPace>& paces) {
  Topology unknown = truth;
  unknown.links = {};
  Chooser chooser(Planner(unknown, 0, {}), {});
  Planner judge(truth, 0, {});
  const auto forecasts = judge.forecast(query, {});
  for (int run = 0; run < 100; ++run) {
    const Chooser::Choice choice = chooser.choose(query, 1);
    if (choice.trial == nullptr) return std::string(choice.name());
    const auto same = [&](const Forecast& each) { return each.generator->name() == choice.name(); };
    const auto found = std::find_if(forecasts.begin(), forecasts.end(), same);
    const double seconds = found == forecasts.end() ? 1e3 : found->seconds;
    if (!chooser.measured(choice, static_cast<Nanoseconds>(seconds * 1e9))) continue;
    const std::span<double> numbers = chooser.numbers(*choice.trial, paces[0]);
    for (std::size_t rank = 1; rank < paces.size(); ++rank) {
      write_pace(numbers.last(paces_size(static_cast<int>(paces.size()))), static_cast<Rank>(rank), paces[rank]);
    }
    chooser.decide(*choice.trial);
  }
  return "nothing";
}

}  // namespace

TEST_CASE("paces: the ranks of a host share its port, what nobody knows stays, and one slow port is told from noise") {
  Topology pairs;
  pairs.host_of = {0, 0, 1, 1};
  const Links before = pairs.links;
  const Links nothing = learnt(pairs, even(4, 0, 0));
  CHECK(nothing.even());
  CHECK(nothing.between_hosts.latency_s == before.between_hosts.latency_s);
  CHECK(nothing.between_hosts.seconds_per_byte == before.between_hosts.seconds_per_byte);
  const Links shared = learnt(pairs, {{3e6, 1e-3}, {7e6, 0}, {4e6, 2e-3}, {5e6, 1e-3}});
  CHECK(shared.even());
  CHECK(shared.between_hosts.latency_s == 1e-3);
  CHECK(1 / shared.between_hosts.seconds_per_byte == doctest::Approx(1e7));
  const Links slow = learnt(pairs, {{3e6, 0}, {7e6, 0}, {4e6, 0}, {0, 0}});
  REQUIRE(slow.ports.size() == 2);
  CHECK(1 / slow.ports[0] == doctest::Approx(1e7));
  CHECK(1 / slow.ports[1] == doctest::Approx(4e6));
  // One that is told to be quicker than all others is noise.
  const Links quick = learnt(one_rank_a_host(4), {{1e7, 0}, {8e7, 0}, {1.2e7, 0}, {9e6, 0}});
  CHECK(quick.even());
  CHECK(1 / quick.between_hosts.seconds_per_byte == doctest::Approx(1.2e7));
  // Among many ranks the usual port stands for all.
  std::vector<PortPace> many = even(65, 1e7, 0);
  many[3].bytes_per_s = 1e6;
  CHECK(learnt(one_rank_a_host(65), many).even());
}

TEST_CASE("paces: between distant hosts few rounds are planned, on a quick network more of them") {
  constexpr std::size_t kHosts = 8;
  const Query query{.collective = Collective::kAllreduce, .bytes = 8 << 20, .dtype = DType::kFloat32};
  Topology truth = one_rank_a_host(kHosts);
  CHECK(settles_on(query, truth, even(kHosts, kTenGigabit, 25e-6)) == "ring");
  truth.links.between_hosts.latency_s = 50e-3;
  CHECK(settles_on(query, truth, even(kHosts, kTenGigabit, 50e-3)) == "direct");
  // Whose links say nothing keeps to what is usual.
  CHECK(settles_on(query, truth, even(kHosts, 0, 0)) == "ring");
}

TEST_CASE("paces: over a long way large data goes to one neighbour, and small data in few rounds") {
  constexpr std::size_t kHosts = 4;
  constexpr double kRate = 12.5e6;
  Topology truth = one_rank_a_host(kHosts);
  truth.links.between_hosts = {.latency_s = 40e-3, .seconds_per_byte = 1 / kRate, .message_s = 2.8e-6};
  const auto settled = [&](std::size_t bytes) {
    const Query query{.collective = Collective::kAllreduce, .bytes = bytes, .dtype = DType::kFloat32};
    return settles_on(query, truth, even(kHosts, kRate, 40e-3));
  };
  CHECK(settled(64 << 20) == "ring");
  CHECK(settled(256 << 10) == "direct");
}

TEST_CASE("paces: a host with a slow port is made to send less") {
  constexpr std::size_t kHosts = 8;
  constexpr std::size_t kSlow = 4;  // in the binomial tree it has children
  const Query query{.collective = Collective::kBroadcast, .bytes = 64 << 10, .dtype = DType::kFloat32};
  Topology truth = one_rank_a_host(kHosts);
  std::vector<PortPace> paces = even(kHosts, kTenGigabit, 25e-6);
  Planner planner(truth, 0, {});
  const auto planned = [&] {
    return planner.candidates(query, learnt(one_rank_a_host(kHosts), paces), 1, 1).front().plan->generator;
  };
  CHECK(planned() == "binomial_tree");
  paces[kSlow].bytes_per_s = kTenGigabit / 50;
  CHECK(planned() == "packed_trees");
  truth.links = learnt(truth, paces);
  CHECK(settles_on(query, truth, paces) == "packed_trees");
}

TEST_CASE("paces: a port that only seemed slow is no reason to go around it") {
  constexpr std::size_t kHosts = 8;
  const Query query{.collective = Collective::kBroadcast, .bytes = 64 << 10, .dtype = DType::kFloat32};
  std::vector<PortPace> paces = even(kHosts, kTenGigabit, 25e-6);
  paces[4].bytes_per_s = kTenGigabit / 50;
  CHECK(settles_on(query, one_rank_a_host(kHosts), paces) == "binomial_tree");
}

TEST_CASE("paces: of connections side by side those that have shown no rate go by the others") {
  using transport::Pace;
  const std::vector<Pace> some = {{0, 2e-3}, {3e6, 0}, {0, 0}, {5e6, 1e-3}};
  const Pace pace = transport::side_by_side(some);
  CHECK(pace.bytes_per_s == 16e6);
  CHECK(pace.latency_s == 1e-3);
  CHECK_FALSE(pace.sure);
  CHECK(transport::side_by_side(std::vector<Pace>{{3e6, 0, true}, {5e6, 0, true}}).sure);
  CHECK(transport::side_by_side(std::vector<Pace>(2)).bytes_per_s == 0);
  CHECK_FALSE(transport::side_by_side({}).sure);
}

TEST_CASE("paces: rates are sure after several measurements, and the mean of a second of sending is told beside them") {
  transport::PaceSamples samples;
  transport::SendCounters counters;
  const auto send = [&](double measured, double real, std::uint64_t milliseconds) {
    counters.bytes_per_s = measured;
    counters.sending_us += milliseconds * 1000;
    counters.bytes += static_cast<std::uint64_t>(real * static_cast<double>(milliseconds) / 1000);
    samples.take(counters);
  };
  for (int i = 0; i < 4; ++i) send(1e7, 1e7, 10);
  CHECK_FALSE(samples.pace().sure);
  for (int i = 0; i < 95; ++i) send(1e7, 1e7, 10);
  CHECK(samples.pace().bytes_per_s == 1e7);
  CHECK(samples.pace().sure);
  CHECK(samples.pace().mean_bytes_per_s == 0);
  SUBCASE("it goes on so") {
    send(1e7, 1e7, 10);
    CHECK(samples.pace().mean_bytes_per_s == doctest::Approx(1e7));
  }
  SUBCASE("single measurements are off") {
    send(1e9, 1e7, 10);
    CHECK(samples.pace().bytes_per_s == 1e7);
  }
  SUBCASE("it was quicker once, which is forgotten in the end") {
    send(1e7, 1e9, 1000);
    CHECK(samples.pace().mean_bytes_per_s > 4e8);
    for (int i = 0; i < 300; ++i) send(1e7, 1e7, 10);
    CHECK(samples.pace().mean_bytes_per_s == doctest::Approx(1e7));
  }
  SUBCASE("for want of something to send nothing is measured, but what there is counts") {
    for (int i = 0; i < 300; ++i) send(0, 1e5, 10);
    CHECK(samples.pace().bytes_per_s == 1e7);
    CHECK(samples.pace().mean_bytes_per_s == doctest::Approx(1e5));
  }
}

TEST_CASE("paces: a host that is slow twice in a row is named once, by rank 0") {
  Topology hosts = one_rank_a_host(4);
  hosts.host_of = {0, 0, 1, 2, 3};
  // Rank 2 sends to one host only: it may be that one that is slow. Of rank 4 only the latest measurements are low.
  hosts.host_of.insert(hosts.host_of.end(), {4, 5});
  std::vector<PortPace> paces = {{5e7, 0, false, 1e6},    {5e7, 0, false, 1e6},  {2.4e7, 0, false, 3e5},
                                 {2.4e7, 0, true, 0.6e6}, {2.4e7, 0, true, 2e6}, {1e8, 0, false, 2e6},
                                 {1e8, 0, false, 2e6}};
  for (const Rank self : {0, 1}) {
    CAPTURE(self);
    Chooser chooser(Planner(hosts, self, {}), {});
    std::vector<std::string> findings;
    for (std::size_t bytes = 1 << 20; bytes < 1 << 24; bytes *= 2) {  // several trials, the first of which surveys
      const Query query{.collective = Collective::kAllreduce, .bytes = bytes, .dtype = DType::kFloat32};
      for (Chooser::Choice choice = chooser.choose(query, 1); choice.trial != nullptr;
           choice = chooser.choose(query, 1)) {
        if (!chooser.measured(choice, 1'000'000)) continue;
        const std::span<double> numbers = chooser.numbers(*choice.trial, paces[0]);
        for (Rank rank = 0; rank < 7; ++rank) {
          write_pace(numbers.last(paces_size(7)), rank, paces[static_cast<std::size_t>(rank)]);
        }
        chooser.decide(*choice.trial);
        if (std::string finding = chooser.take_finding(); !finding.empty()) findings.push_back(std::move(finding));
      }
    }
    REQUIRE(findings.size() == (self == 0 ? 1 : 0));
    if (self != 0) continue;
    CHECK(findings[0].find("the host of rank 3 sends 24 MB/s to other hosts, where 100 MB/s are usual") == 0);
    CHECK(findings[0].find("Remedy:") != std::string::npos);
    CHECK(findings[0].find("the host of", 1) == std::string::npos);
  }
}

TEST_CASE("paces: a host that becomes slow when all has been tried is named as well, and what is decided stays") {
  const Topology hosts = one_rank_a_host(4);
  std::vector<PortPace> paces(4, {1e8, 1e-5, true, 1e7});
  Chooser chooser(Planner(hosts, 0, {}), {}, nullptr, 10);
  const Query query{.collective = Collective::kAllreduce, .bytes = 1 << 20, .dtype = DType::kFloat32};
  std::string finding;
  int surveys = 0;
  const auto run = [&](int operations) {
    std::string_view name;
    for (int i = 0; i < operations; ++i) {
      const Chooser::Choice choice = chooser.choose(query, 1);
      name = choice.name();
      if (choice.trial == nullptr || !chooser.measured(choice, 1'000'000)) continue;
      ++surveys;
      const std::span<double> numbers = chooser.numbers(*choice.trial, paces[0]);
      for (Rank rank = 1; rank < 4; ++rank) {
        write_pace(numbers.last(paces_size(4)), rank, paces[static_cast<std::size_t>(rank)]);
      }
      chooser.decide(*choice.trial);
      finding += chooser.take_finding();
    }
    return std::string(name);
  };
  const std::string decided = run(100);
  CHECK(finding.empty());
  paces[3] = {2e7, 1e-5, true, 2e6};
  surveys = 0;
  CHECK(run(10) == decided);
  CHECK(surveys == 1);
  CHECK(finding.empty());
  CHECK(run(90) == decided);
  CHECK(surveys == 10);
  CHECK(finding.find("the host of rank 3 sends 20 MB/s to other hosts, where 100 MB/s are usual") == 0);
  CHECK(finding.find("the host of rank 3", 1) == std::string::npos);
}

TEST_CASE("paces: large data shows what the network is like until somebody knows, and not for ever") {
  const Query query{.collective = Collective::kAllreduce, .bytes = 8 << 20, .dtype = DType::kFloat32};
  // Of 8 hosts one tells a rate from the survey of this number on; as many surveys, and whether plans were tried then.
  const auto surveys = [&](int knows) -> std::pair<int, bool> {
    Chooser chooser(Planner(one_rank_a_host(8), 0, {}), {});
    for (int done = 0; done < 100; ++done) {
      const Chooser::Choice choice = chooser.choose(query, 1);
      if (choice.trial == nullptr) return {done, false};
      if (!chooser.measured(choice, 1'000'000)) return {done, true};
      chooser.numbers(*choice.trial, {.bytes_per_s = done + 1 >= knows ? kTenGigabit : 0, .latency_s = 25e-6});
      chooser.decide(*choice.trial);
    }
    return {100, false};
  };
  CHECK(surveys(1) == std::pair(1, true));
  CHECK(surveys(3) == std::pair(3, true));
  CHECK(surveys(100) == std::pair(8, false));
}

TEST_CASE("paces: what somebody has told of the network stands, whatever transfers show") {
  const Query query{.collective = Collective::kAllreduce, .bytes = 1 << 20, .dtype = DType::kFloat32};
  Topology told = testing::star_of_four(200e6 / 8, 40e6 / 8);
  told.links.told = true;
  // Nothing has to be found out first, and the cables are planned for.
  Chooser chooser(Planner(told, 0, {}), {});
  CHECK(chooser.choose(query, 1).name() == "packed_trees");
}

TEST_CASE("ways: no host passes on what a switch can") {
  // Hosts 0 to 2; two switches, 3 and 4, between 0 and 2; host 1 is joined to both by cables of its own.
  Topology topology{.host_of = {0, 1, 2}};
  for (const auto& [from, to] : std::vector<std::pair<int, int>>{{0, 1}, {1, 2}, {0, 3}, {3, 4}, {4, 2}}) {
    topology.links.cables.push_back({from, to, 0, 1});
  }
  Ways ways(topology);
  CHECK(ways.between(0, 2) == std::vector<std::size_t>{4, 3, 2});
  CHECK(ways.between(1, 3).empty());
  topology.links.cables.erase(topology.links.cables.begin() + 3);
  Ways fewer(topology);
  CHECK(fewer.between(0, 2) == std::vector<std::size_t>{1, 0});
}
