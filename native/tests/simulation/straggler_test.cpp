// A rank of an elastic job is slower than the others: these wait for it, and it waits for nobody.
#include <doctest/doctest.h>

#include "elastic_checks.hpp"

using namespace ringcore;
using simulation::ElasticJob;
using simulation::ElasticOptions;
using simulation::events_of;
using simulation::every;
using transport::SimNetwork;

namespace {

constexpr Nanoseconds kQuick = 20 * kMillisecond;
constexpr Nanoseconds kSlow = 60 * kMillisecond;
// All of a job's messages, and how exactly its ranks see the time.
constexpr Nanoseconds kSlack = 30 * kMillisecond;
// In front of each step, and of the end.
constexpr Nanoseconds kLate = (ElasticJob::kSteps + 1) * (kSlow - kQuick);

}  // namespace

TEST_CASE("whoever is the last to announce waits for nobody, and the others wait for it alone") {
  for (const bool share_memory : {true, false}) {
    ElasticJob job({.ranks = 3, .share_memory = share_memory, .computes = {kQuick, kSlow, kQuick}});
    REQUIRE(job.run() == "");
    CHECK(job.waited(1) < kSlack);
    for (const Rank rank : {0, 2}) {
      CHECK(job.waited(rank) > kLate - kSlack);
      CHECK(job.waited(rank) < kLate + kSlack);
    }
  }
}

TEST_CASE("a rank ends at any event of a job that waits for another one: those who go on still know who is slow") {
  for (const bool share_memory : {true, false}) {
    const ElasticOptions options{
        .ranks = 3, .share_memory = share_memory, .in_place = false, .computes = {kQuick, kSlow, kQuick}};
    const int events = events_of(options);
    for (const Rank victim : {0, 2}) {
      for (int at = 0; at < events; at += every(5)) {
        CAPTURE(share_memory);
        CAPTURE(victim);
        CAPTURE(at);
        ElasticJob job(options);
        job.when(at, [victim](SimNetwork& network) { network.kill(victim); });
        REQUIRE(job.run() == "");
        simulation::check_that_others_finish(job, options, {victim});
        CHECK(job.waited(2 - victim) - job.waited(1) > kLate - kSlack);
      }
    }
  }
}

TEST_CASE("whoever joins a job with a slow rank at any event has waited for that one, too") {
  const ElasticOptions options{.ranks = 2, .joiners = 1, .goes_back = true, .computes = {kQuick, kSlow, kQuick}};
  const int events = events_of(options);
  int joined = 0;
  for (int at = 0; at < events; at += 3) {
    CAPTURE(at);
    ElasticJob job(options);
    job.join_at(at, 2);
    REQUIRE(job.run() == "");
    CHECK(job.waited(0) > job.waited(1));
    if (!job.has_joined(2)) continue;
    ++joined;
    CHECK(job.waited(2) > job.waited(1));
  }
  CHECK(joined > 0);
}
