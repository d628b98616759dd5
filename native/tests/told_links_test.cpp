// Links that carry less than they were told to are found, and others are not.
#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "plan/chooser.hpp"
#include "plan/told_links.hpp"
#include "random_networks.hpp"

using namespace ringcore;
using namespace ringcore::plan;

namespace {

constexpr double kRate = 1e8;  // bytes a second

Topology even_hosts(int hosts) {
  Topology topology;
  for (int host = 0; host < hosts; ++host) topology.host_of.push_back(host);
  topology.links.between_hosts.seconds_per_byte = 1 / kRate;
  topology.links.told = true;
  return topology;
}

struct Shown {
  Rank from;
  Rank to;
  double rate;
  double mean;
  bool sure = true;
};

std::vector<double> table_of(int ranks, const std::vector<Shown>& shown) {
  std::vector<double> table(told_links_size(ranks), 0);
  for (const Shown& one : shown) {
    std::vector<transport::Pace> links(static_cast<std::size_t>(ranks));
    links[static_cast<std::size_t>(one.to)] = {.bytes_per_s = one.rate, .sure = one.sure, .mean_bytes_per_s = one.mean};
    write_links(table, one.from, links, {});
  }
  return table;
}

using Pairs = std::vector<std::pair<Rank, Rank>>;

Pairs slow_pairs(const Topology& topology, const std::vector<Shown>& shown) {
  Pairs pairs;
  for (const ToldLink& link : judge_links(topology, table_of(topology.ranks(), shown))) {
    if (link.slow) pairs.emplace_back(link.from, link.to);
  }
  return pairs;
}

// Each rank sends to the next one, at a rate that belongs to the sender.
std::vector<Shown> around(const std::vector<double>& rates) {
  std::vector<Shown> shown;
  const Rank ranks = static_cast<Rank>(rates.size());
  for (Rank rank = 0; rank < ranks; ++rank) {
    shown.push_back(
        {rank, (rank + 1) % ranks, rates[static_cast<std::size_t>(rank)], rates[static_cast<std::size_t>(rank)]});
  }
  return shown;
}

}  // namespace

TEST_CASE(
    "told links: one that carries less than half is found, with what was told of the narrowest place on its way") {
  Topology star = testing::star_of_four(200e6 / 8, 40e6 / 8);
  star.links.told = true;
  std::vector<Shown> shown = {{0, 1, 25e6, 25e6}, {0, 2, 24e6, 24e6}, {1, 2, 2e6, 2e6}, {2, 3, 4e6, 4e6}};
  CHECK(slow_pairs(star, shown) == Pairs{{1, 2}});
  const auto links = judge_links(star, table_of(4, shown));
  REQUIRE(links.size() == 4);
  CHECK(links[2].told == doctest::Approx(5e6));
  CHECK(links[2].bytes_per_s == 2e6);
  shown[2].rate = shown[2].mean = 2.6e6;
  CHECK(slow_pairs(star, shown).empty());
}

TEST_CASE("told links: what links through a port have together counts, and a slow port makes all of its links slow") {
  // All send to all at once: each link has a third of the ports at its ends.
  std::vector<Shown> shown;
  for (Rank from = 0; from < 4; ++from) {
    for (Rank to = 0; to < 4; ++to) {
      if (from != to) shown.push_back({from, to, kRate / 3, kRate / 3});
    }
  }
  CHECK(slow_pairs(even_hosts(4), shown).empty());
  // All send to one: the port there is full.
  CHECK(slow_pairs(even_hosts(4), {{0, 3, 3e7, 3e7}, {1, 3, 3e7, 3e7}, {2, 3, 3e7, 3e7}}).empty());
  // Also where others have ports for themselves.
  std::vector<Shown> gathered = around({kRate, kRate, kRate, kRate});
  for (Rank from = 0; from < 4; ++from) gathered.push_back({from, 4, kRate / 4, kRate / 4});
  CHECK(slow_pairs(even_hosts(5), gathered).empty());
  CHECK(slow_pairs(even_hosts(4), around({kRate, kRate, kRate / 4, kRate})) == Pairs{{2, 3}});
  // Two ranks of a host share its port.
  Topology pairs = even_hosts(2);
  pairs.host_of = {0, 0, 1, 1};
  CHECK(slow_pairs(pairs, {{0, 2, 4e7, 4e7}, {1, 3, 4e7, 4e7}, {2, 0, 9e7, 9e7}}).empty());
  CHECK(slow_pairs(pairs, {{0, 2, 1e7, 1e7}, {1, 3, 1e7, 1e7}, {2, 0, 9e7, 9e7}, {3, 1, 9e7, 9e7}}) ==
        Pairs{{0, 2}, {1, 3}});
}

TEST_CASE("told links: single measurements, those of busy machines and those of one moment say nothing") {
  std::vector<Shown> shown = around({kRate, kRate, kRate / 4, kRate});
  SUBCASE("the mean says otherwise") { shown[2].mean = kRate; }
  SUBCASE("all have as little to send") {
    for (Shown& one : shown) one.mean = 1e6;
  }
  SUBCASE("it was not measured often") { shown[2].sure = false; }
  CHECK(slow_pairs(even_hosts(4), shown).empty());
}

TEST_CASE("told links: one that is slow twice in a row is named once, by rank 0, and what is idle says nothing") {
  for (const Rank self : {0, 1}) {
    CAPTURE(self);
    Chooser chooser(Planner(even_hosts(4), self, {}), {}, nullptr, 10);
    const Query query{.collective = Collective::kAllreduce, .bytes = 1 << 20, .dtype = DType::kFloat32};
    std::vector<Shown> shown = around({kRate, kRate, kRate, kRate});
    double moved = 0;  // the mean of a link that is used is never quite the same again
    std::string finding;
    const auto run = [&](int operations) {
      for (int i = 0; i < operations; ++i) {
        const Chooser::Choice choice = chooser.choose(query, 1);
        if (choice.trial == nullptr || !chooser.measured(choice, 1'000'000)) continue;
        std::vector<transport::Pace> own(4);
        own[static_cast<std::size_t>(self + 1)] = {.bytes_per_s = shown[static_cast<std::size_t>(self)].rate,
                                                   .sure = true,
                                                   .mean_bytes_per_s = kRate + ++moved};
        const std::span<double> numbers = chooser.numbers(*choice.trial, {}, own);
        for (const Shown& one : shown) {
          if (one.from == self || one.rate == 0) continue;
          std::vector<transport::Pace> links(4);
          links[static_cast<std::size_t>(one.to)] = {
              .bytes_per_s = one.rate, .sure = true, .mean_bytes_per_s = one.mean};
          write_links(numbers.last(told_links_size(4)), one.from, links, {});
        }
        chooser.decide(*choice.trial);
        finding += chooser.take_finding();
      }
      return std::string(chooser.choose(query, 1).name());
    };
    const std::string decided = run(100);
    CHECK(finding.empty());
    shown[2].rate = shown[2].mean = kRate / 5;
    run(9);
    CHECK(finding.empty());
    shown[2].rate = 0;
    run(30);
    CHECK(finding.empty());
    shown[2].rate = kRate / 5;
    CHECK(run(50) == decided);
    if (self == 0) {
      const std::string text = "from rank 2 to rank 3 20 MB/s instead of 100. Remedy: ";
      CHECK(finding.find("the network carries less than half of what the topology file says: " + text) == 0);
      CHECK(finding.find("from rank 2", finding.find("from rank 2") + 1) == std::string::npos);
    } else {
      CHECK(finding.empty());
    }
  }
}

TEST_CASE("told links: what has shown nothing new since the ranks last told each other is left out") {
  std::vector<transport::Pace> before(4);
  before[1] = {.bytes_per_s = 1e8, .sure = true, .mean_bytes_per_s = 9e7};
  before[2] = {.bytes_per_s = 1e8, .sure = true, .mean_bytes_per_s = 8e7};
  std::vector<transport::Pace> now = before;
  now[2].mean_bytes_per_s = 7e7;
  std::vector<double> table(told_links_size(4), 0);
  write_links(table, 0, now, before);
  CHECK(table[1] == 0);
  CHECK(table[2] == 1e8);
  CHECK(table[16 + 2] == 7e7);
  CHECK(told_links_size(65) == 0);  // none are told of among so many
}
