// Elastic jobs under schedules that a seed draws: who is lost, stops, is cut off, comes, leaves, gives up a switch, and when.
//
// RINGCORE_ELASTIC_SEEDS says how many, RINGCORE_ELASTIC_FIRST from which on; a seed that fails is run alone by
//   RINGCORE_ELASTIC_SEED=123 ringcore_tests -tc="elastic jobs under fault schedules"
#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <string>

#include "../from_environment.hpp"
#include "elastic_job.hpp"

using namespace ringcore;
using simulation::ElasticJob;
using simulation::ElasticOptions;
using transport::SimNetwork;

namespace {

constexpr int kMostPlaces = 4;
constexpr int kMostEvents = 900;  // a job in which nothing happens has about half as many, and with small lanes ...
constexpr int kManyEvents = 9000;

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed * 0x9e3779b97f4a7c15ULL + 1) {}
  int below(int limit) { return static_cast<int>(random_() % static_cast<std::uint64_t>(limit)); }
  bool coin() { return below(2) == 0; }

 private:
  std::mt19937_64 random_;
};

ElasticOptions draw_options(Draw& draw, std::uint64_t seed) {
  ElasticOptions options{.ranks = 2 + draw.below(3)};
  options.joiners = draw.below(kMostPlaces - options.ranks + 1);
  options.share_memory = draw.coin();
  options.joiners_far = draw.coin();
  options.encrypted = draw.coin();
  options.witness = draw.coin();
  options.in_place = draw.coin();
  options.from_registered = draw.coin();
  options.goes_back = draw.coin();
  for (int& prepares : options.joiners_prepare) prepares = draw.coin() ? 0 : draw.below(300);
  options.may_leave = draw.below(3) == 0;
  options.lane_bytes = draw.coin() ? 512 : 64 << 10;
  options.on_device = draw.below(4) == 0;
  options.device_notices = draw.coin();
  options.tree_degree = draw.below(3);
  options.seed = seed;
  options.at_switch = seed % 4 == 0;
  return options;
}

void draw_fault(ElasticJob& job, const ElasticOptions& options, Draw& draw) {
  const int places = options.ranks + options.joiners;
  const bool many = !options.share_memory && options.lane_bytes <= 512 && draw.coin();
  const int at = draw.below(many ? kManyEvents : kMostEvents);
  const Rank rank = draw.below(places);
  const Rank other = (rank + 1 + draw.below(places - 1)) % places;
  const Nanoseconds longest = 4 * ElasticJob::kHeartbeat;
  // Memory that ranks share is not cut.
  switch (draw.below(options.share_memory ? 4 : options.encrypted ? 8 : 7)) {
    case 0: return job.when(at, [=](SimNetwork& network) { network.kill(rank); });
    case 1: {
      const auto writes = static_cast<std::uint64_t>(draw.below(40));
      return job.when(at, [=](SimNetwork& network) { network.kill_at_write(rank, writes); });
    }
    case 2: {
      const Nanoseconds pause = longest / 8 * (1 + draw.below(8));
      return job.when(at, [=](SimNetwork& network) { network.pause(rank, pause); });
    }
    case 3: return job.kill_witness_at(at);
    case 4: return job.when(at, [=](SimNetwork& network) { network.silence(rank, other); });
    case 5: {
      const Nanoseconds kept_back = longest / 8 * (1 + draw.below(8));
      return job.when(at, [=](SimNetwork& network) { network.delay(rank, other, transport::kControlLane, kept_back); });
    }
    case 7: return job.when(at, [=](SimNetwork& network) { network.tamper(rank, other); });
    default:
      return job.when(at, [=](SimNetwork& network) {
        for (Rank peer = 0; peer < places; ++peer) {
          if (peer == rank) continue;
          network.silence(rank, peer);
          network.silence(peer, rank);
        }
      });
  }
}

std::string flaw_of(std::uint64_t seed) {
  Draw draw(seed);
  const ElasticOptions options = draw_options(draw, seed);
  ElasticJob job(options);
  for (int joiner = 0, at = draw.below(kMostEvents / 2); joiner < options.joiners; ++joiner) {
    job.join_at(at, options.ranks + joiner);
    at += draw.coin() ? draw.below(30) : 150;  // one may still be joining when the next one comes
  }
  for (int leavers = options.may_leave ? 1 + draw.below(2) : 0; leavers > 0; --leavers) {
    job.leave_at(draw.below(kMostEvents / 2), draw.below(options.ranks + options.joiners));
  }
  for (int faults = draw.below(4); faults > 0; --faults) draw_fault(job, options, draw);
  for (int gives_up = options.at_switch ? draw.below(3) : 0; gives_up > 0; --gives_up) {
    job.give_up_at(draw.below(kMostEvents), draw.below(options.ranks + options.joiners));
  }
  const std::string flaw = job.run();
  return flaw.empty() ? "" : "seed " + std::to_string(seed) + ": " + flaw;
}

}  // namespace

TEST_CASE("elastic jobs under fault schedules: nobody hangs, and each sum is that of the members of its epoch") {
  const std::uint64_t only = testing::from_environment("RINGCORE_ELASTIC_SEED", 0);
  const std::uint64_t count = only != 0 ? 1 : testing::from_environment("RINGCORE_ELASTIC_SEEDS", 2000);
  const std::uint64_t first = testing::from_environment("RINGCORE_ELASTIC_FIRST", 1);
  for (std::uint64_t seed = only != 0 ? only : first, end = seed + count; seed < end; ++seed) {
    const std::string flaw = flaw_of(seed);
    REQUIRE_MESSAGE(flaw.empty(), flaw);
  }
}
