// Ranks leave an elastic job in order, behind a step: the others go on without them, and nobody is ended or told of a loss.
#include <doctest/doctest.h>

#include <initializer_list>
#include <tuple>
#include <utility>

#include "elastic_checks.hpp"

using namespace ringcore;
using simulation::check_that_others_finish;
using simulation::ElasticJob;
using simulation::ElasticOptions;
using simulation::events_of;
using transport::SimNetwork;

namespace {

// Whoever leaves has come to its end by itself, though others may have seen it go before it said so to all.
void check_that_they_left(const ElasticJob& job, std::initializer_list<Rank> leavers, int& left) {
  for (const Rank leaver : leavers) {
    REQUIRE(job.has_left(leaver));
    REQUIRE(job.lives(leaver));
    left += job.has_left_early(leaver) ? 1 : 0;
  }
}

}  // namespace

TEST_CASE("a rank leaves an elastic job at any event: the others go on, and it is not ended by them") {
  int left = 0;
  for (const bool share_memory : {true, false}) {
    for (const auto& [in_place, goes_back, tree_degree] :
         {std::tuple(true, true, 0), {false, false, 0}, {false, true, 0}, {true, true, 1}, {false, false, 1}}) {
      for (int ranks = 2; ranks <= 4; ++ranks) {
        const ElasticOptions options{.ranks = ranks,
                                     .share_memory = share_memory,
                                     .witness = ranks == 2 && !share_memory,
                                     .in_place = in_place,
                                     .goes_back = goes_back,
                                     .may_leave = true,
                                     .late_goodbye = 20 * kMillisecond,
                                     .tree_degree = tree_degree};
        const int events = events_of(options);
        for (Rank leaver = 0; leaver < ranks; ++leaver) {
          for (int at = 0; at < events; at += events / 6) {
            CAPTURE(share_memory);
            CAPTURE(in_place);
            CAPTURE(goes_back);
            CAPTURE(tree_degree);
            CAPTURE(ranks);
            CAPTURE(leaver);
            CAPTURE(at);
            ElasticJob job(options);
            job.leave_at(at, leaver);
            REQUIRE(job.run() == "");
            check_that_others_finish(job, options, {leaver});
            check_that_they_left(job, {leaver}, left);
            for (Rank rank = 0; rank < ranks; ++rank) REQUIRE(job.changes(rank) == 0);
          }
        }
      }
    }
  }
  CHECK(left > 0);
}

TEST_CASE("two ranks leave an elastic job behind one step or two: none of them is ended") {
  int left = 0;
  for (const bool share_memory : {true, false}) {
    for (const bool goes_back : {true, false}) {
      const ElasticOptions options{.ranks = 4,
                                   .share_memory = share_memory,
                                   .witness = true,
                                   .goes_back = goes_back,
                                   .may_leave = true,
                                   .late_goodbye = 20 * kMillisecond};
      const int events = events_of(options);
      for (int at = 0, turn = 0; at < events / 2; at += events / 60, ++turn) {
        const Rank first = turn % 4;
        const Rank second = (first + 1 + turn / 4 % 3) % 4;
        CAPTURE(share_memory);
        CAPTURE(goes_back);
        CAPTURE(at);
        CAPTURE(first);
        CAPTURE(second);
        ElasticJob job(options);
        job.leave_at(at, first);
        job.leave_at(at + at % 50, second);
        REQUIRE(job.run() == "");
        check_that_others_finish(job, options, {first, second});
        check_that_they_left(job, {first, second}, left);
      }
    }
  }
  CHECK(left > 0);
}

TEST_CASE("a rank ends at any event while another leaves: those who are left go on") {
  int left = 0;
  for (const bool share_memory : {true, false}) {
    for (const bool goes_back : {true, false}) {
      const ElasticOptions options{
          .ranks = 4, .share_memory = share_memory, .witness = true, .goes_back = goes_back, .may_leave = true};
      const int events = events_of(options);
      for (int at = 0, turn = 0; at < events; at += events / 60, ++turn) {
        const Rank leaver = turn % 4;
        const Rank victim = (leaver + turn / 4 % 4) % 4;
        CAPTURE(share_memory);
        CAPTURE(goes_back);
        CAPTURE(at);
        CAPTURE(leaver);
        CAPTURE(victim);
        ElasticJob job(options);
        job.leave_at(events / 4, leaver);
        job.when(at, [victim](SimNetwork& network) { network.kill(victim); });
        REQUIRE(job.run() == "");
        check_that_others_finish(job, options, {leaver, victim});
        if (leaver != victim) check_that_they_left(job, {leaver}, left);
      }
    }
  }
  CHECK(left > 0);
}
