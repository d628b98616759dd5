// A process joins an elastic job: at whatever moment it comes, and whoever ends, stops or is cut off meanwhile.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "elastic_checks.hpp"
#include "engine/view.hpp"

using namespace ringcore;
using simulation::check_that_others_finish;
using simulation::ElasticJob;
using simulation::ElasticOptions;
using simulation::events_of;
using simulation::every;
using transport::SimNetwork;

namespace {

std::string failure_of(const ElasticJob& job, Rank rank) {
  return job.engine(rank).failure() == nullptr ? "" : job.engine(rank).failure()->what();
}

// Who joins is on the host that all are on, on another one than the ranks are, or each on one of its own.
enum class Hosts { kOne, kOther, kEach };

struct Joins {
  int had_joined = 0;
  int had_not = 0;  // the job was over before, or it was not let in
};

// Whoever came is a member that has done all steps from then on, or says why it is none.
void check_joiner(const ElasticJob& job, Rank place, Joins& joins) {
  job.has_joined(place) ? ++joins.had_joined : ++joins.had_not;
  if (job.has_joined(place)) CHECK(job.finished(place));
}

}  // namespace

TEST_CASE("a process joins an elastic job at any event: no rank is told of a loss, and it goes on with them") {
  Joins joins;
  for (const Hosts hosts : {Hosts::kOne, Hosts::kOther, Hosts::kEach}) {
    for (const auto& [in_place, tree_degree] : {std::pair(true, 0), {false, 0}, {false, 1}}) {
      for (int ranks = 1; ranks <= 3; ++ranks) {
        const ElasticOptions options{.ranks = ranks,
                                     .share_memory = hosts != Hosts::kEach,
                                     .joiners = 1,
                                     .joiners_far = hosts == Hosts::kOther,
                                     .in_place = in_place,
                                     .tree_degree = tree_degree};
        const int events = events_of(options);
        for (int at = 0; at < events; at += every(59)) {
          CAPTURE(hosts);
          CAPTURE(in_place);
          CAPTURE(tree_degree);
          CAPTURE(ranks);
          CAPTURE(at);
          ElasticJob job(options);
          job.join_at(at, ranks);
          REQUIRE(job.run() == "");
          for (Rank rank = 0; rank < ranks; ++rank) {
            REQUIRE_MESSAGE(job.finished(rank), failure_of(job, rank));
            REQUIRE(job.changes(rank) == 0);
          }
          check_joiner(job, ranks, joins);
          // Ballots tell how often the members have changed: once, and not before all were where it could be.
          if (job.has_joined(ranks)) {
            const auto epoch = job.engine(0).membership().epoch();
            REQUIRE(epoch / engine::kMaxPlaces == 1);
          }
        }
      }
    }
  }
  CHECK(3 * joins.had_joined > joins.had_not);  // about half of them come before the job has ended
}

TEST_CASE("who joins after the ranks have given a switch up, or meanwhile, does without it as they do") {
  Joins joins;
  int without = 0;
  for (const bool share_memory : {true, false}) {
    const ElasticOptions options{.share_memory = share_memory, .joiners = 1, .in_place = false, .at_switch = true};
    const int events = events_of(options);
    for (int at = 0; at < events / 2; at += every(43)) {
      for (int later = -20; later < 120; later += 20) {
        CAPTURE(share_memory);
        CAPTURE(at);
        CAPTURE(later);
        ElasticJob job(options);
        job.give_up_at(at, 1);
        job.join_at(std::max(at + later, 0), options.ranks);
        REQUIRE(job.run() == "");
        check_joiner(job, options.ranks, joins);
        for (Rank rank = 0; rank < options.ranks; ++rank) REQUIRE(job.finished(rank));
        if (!job.has_joined(options.ranks)) continue;
        CHECK(job.plans_only(options.ranks) == job.plans_only(0));
        without += job.plans_only(0) ? 1 : 0;
      }
    }
  }
  CHECK(joins.had_joined > 0);
  CHECK(without > 0);
}

TEST_CASE("whoever is connected with the members and has yet to prepare itself keeps none of them waiting") {
  for (const int prepares : {0, 1'000'000}) {
    CAPTURE(prepares);
    ElasticJob job({.ranks = 2, .joiners = 1, .joiners_prepare = {prepares, 0}});
    job.join_at(0, 2);
    REQUIRE(job.run() == "");
    for (const Rank rank : {0, 1}) {
      REQUIRE(job.finished(rank));
      CHECK(job.changes(rank) == 0);
    }
    CHECK(job.has_joined(2) == (prepares == 0));
  }
}

TEST_CASE("a member or who joins ends at any event while it joins: those who are left go on, in one epoch") {
  Joins joins;
  for (const Hosts hosts : {Hosts::kOne, Hosts::kOther, Hosts::kEach}) {
    for (const bool in_place : {true, false}) {
      const ElasticOptions options{.ranks = 3,
                                   .share_memory = hosts != Hosts::kEach,
                                   .joiners = 1,
                                   .joiners_far = hosts == Hosts::kOther,
                                   .in_place = in_place};
      const int events = events_of(options);
      const int come = events / 4;
      for (Rank victim = 0; victim <= 3; ++victim) {
        for (int at = come; at < 2 * events; at += at < come + events / 2 ? 11 : 97) {
          CAPTURE(hosts);
          CAPTURE(in_place);
          CAPTURE(victim);
          CAPTURE(at);
          ElasticJob job(options);
          job.join_at(come, 3);
          job.when(at, [victim](SimNetwork& network) { network.kill(victim); });
          REQUIRE(job.run() == "");
          check_that_others_finish(job, options, {victim});
          if (victim != 3) check_joiner(job, 3, joins);
        }
      }
    }
  }
  CHECK(3 * joins.had_joined > joins.had_not);  // about half of them come before the job has ended
}

TEST_CASE("a process joins an elastic job while its members go on without one that was lost") {
  Joins joins;
  for (const bool in_place : {true, false}) {
    const ElasticOptions options{.ranks = 3, .joiners = 1, .in_place = in_place};
    const int events = events_of(options);
    for (int lost = 10; lost < events / 2; lost += 23) {
      for (int come = lost; come < lost + 60; come += 5) {
        const Rank victim = come % 3;
        CAPTURE(in_place);
        CAPTURE(lost);
        CAPTURE(victim);
        CAPTURE(come);
        ElasticJob job(options);
        job.when(lost, [victim](SimNetwork& network) { network.kill(victim); });
        job.join_at(come, 3);
        REQUIRE(job.run() == "");
        check_that_others_finish(job, options, {victim});
        check_joiner(job, 3, joins);
      }
    }
  }
  CHECK(joins.had_joined > 0);
}

TEST_CASE("a process that stops while it joins, or that not all members can reach, holds nobody up") {
  for (const bool cut : {true, false}) {
    const ElasticOptions options{.ranks = 3, .share_memory = false, .joiners = 1};
    const int events = events_of(options);
    for (int at = events / 4; at < events; at += every(19)) {
      CAPTURE(cut);
      CAPTURE(at);
      ElasticJob job(options);
      job.join_at(events / 4, 3);
      job.when(at, [cut](SimNetwork& network) {
        if (cut) {
          network.silence(3, 1);
          network.silence(1, 3);
        } else {
          network.pause(3, 5 * ElasticJob::kHeartbeat);
        }
      });
      REQUIRE(job.run() == "");
      // Of two that cannot reach each other the higher place goes, also when it has become a member.
      check_that_others_finish(job, options, {3});
    }
  }
}

TEST_CASE("two processes join an elastic job one after the other, also with the witness's vote") {
  Joins joins;
  for (const auto& [witness, far] : {std::pair(true, false), std::pair(false, false), std::pair(false, true)}) {
    const ElasticOptions options{
        .ranks = 2, .share_memory = !witness, .witness = witness, .joiners = 2, .joiners_far = far};
    const int events = events_of(options);
    for (int at = 0; at < events / 3; at += every(15)) {
      CAPTURE(witness);
      CAPTURE(far);
      CAPTURE(at);
      ElasticJob job(options);
      job.join_at(at, 2);
      job.join_at(at + 150, 3);
      REQUIRE(job.run() == "");
      check_that_others_finish(job, options, {2, 3});
      check_joiner(job, 2, joins);
      check_joiner(job, 3, joins);
    }
  }
  CHECK(3 * joins.had_joined > joins.had_not);  // about half of them come before the job has ended
}

TEST_CASE("two processes join an elastic job at once, whichever is ready first, and whoever ends meanwhile") {
  Joins joins;
  // The second one to come waits for the first where that is ready, and for nobody where it is not.
  for (const Hosts hosts : {Hosts::kOne, Hosts::kOther, Hosts::kEach}) {
    for (const auto& [first, second] : {std::pair(0, 0), std::pair(60, 0), std::pair(0, 60), std::pair(1'000'000, 0)}) {
      const ElasticOptions options{.ranks = 2,
                                   .share_memory = hosts != Hosts::kEach,
                                   .witness = hosts == Hosts::kEach,
                                   .joiners = 2,
                                   .joiners_far = hosts == Hosts::kOther,
                                   .joiners_prepare = {first, second}};
      const int events = events_of(options);
      for (int apart : {0, 1, 2, 3, 5, 8, 20, 60}) {
        for (Rank victim = 0; victim <= 4; ++victim) {  // 4: nobody
          for (int at = 0; at < events; at += victim == 4 ? events : every(163)) {
            CAPTURE(hosts);
            CAPTURE(first);
            CAPTURE(second);
            CAPTURE(apart);
            CAPTURE(victim);
            CAPTURE(at);
            ElasticJob job(options);
            job.join_at(0, 2);
            job.join_at(apart, 3);
            if (victim < 4) job.when(at, [victim](SimNetwork& network) { network.kill(victim); });
            REQUIRE(job.run() == "");
            check_that_others_finish(job, options, {victim, 2, 3});
            if (victim == 4 && first < 1'000'000) REQUIRE(job.has_joined(2));
            if (victim == 4) REQUIRE(job.has_joined(3));
            if (job.has_joined(2) && job.has_joined(3)) {
              const engine::Membership& members = job.engine(3).membership();
              REQUIRE((members.host_at(2) == members.host_at(3)) == (hosts != Hosts::kEach));
            }
            for (const Rank place : {2, 3}) {
              if (place != victim) check_joiner(job, place, joins);
            }
          }
        }
      }
    }
  }
  CHECK(3 * joins.had_joined > joins.had_not);  // about half of them come before the job has ended
}

TEST_CASE("whoever has asked to join asks again when another one has come that is let in before it") {
  bool came_first = false;
  for (int apart = 0; apart < 60; ++apart) {
    CAPTURE(apart);
    const Nanoseconds step = 40 * kMillisecond;
    ElasticJob job({.ranks = 2, .joiners = 2, .computes = {step, step, step, step}});
    // Rank 1 has not heard of it when all look for the first time who has come.
    job.when(0, [](SimNetwork& network) { network.delay(2, 1, transport::kControlLane, 60 * kMillisecond); });
    job.join_at(0, 2);
    job.join_at(apart, 3);
    REQUIRE(job.run() == "");
    CHECK(job.has_joined(2));
    CHECK(job.has_joined(3));
    came_first = came_first || job.first(3) < job.first(2);
  }
  CHECK(came_first);
}

TEST_CASE("of two that join and have not met each other one becomes a rank, and the other one is turned away") {
  for (const int apart : {0, 5, 40}) {
    CAPTURE(apart);
    const Nanoseconds step = 3 * ElasticJob::kHeartbeat;
    ElasticJob job({.ranks = 2, .joiners = 2, .joiners_apart = true, .computes = {step, step, step, step}});
    job.join_at(0, 2);
    job.join_at(apart, 3);
    REQUIRE(job.run() == "");
    REQUIRE(job.has_joined(2) != job.has_joined(3));
    const Rank other = job.has_joined(2) ? 3 : 2;
    CHECK_MESSAGE(failure_of(job, other).find("rank 0 has sent nothing") != std::string::npos, "while they went on");
  }
}

TEST_CASE("a process with other settings than the members is turned away, and told why; they go on") {
  const ElasticOptions options{.ranks = 2, .joiners = 1, .joiners_differ = true};
  const int events = events_of(options);
  for (int at = 0; at < events / 2; at += every(15)) {
    CAPTURE(at);
    ElasticJob job(options);
    job.join_at(at, 2);
    REQUIRE(job.run() == "");
    for (Rank rank = 0; rank < 2; ++rank) {
      REQUIRE_MESSAGE(job.finished(rank), failure_of(job, rank));
      REQUIRE(job.changes(rank) == 0);
    }
    REQUIRE_FALSE(job.has_joined(2));
    REQUIRE(failure_of(job, 2).find("has RINGCORE_FUSION_THRESHOLD_BYTES = 4096") != std::string::npos);
  }
}

TEST_CASE("whoever joins counts process sets as the others do, however many these have added and removed") {
  ElasticJob job({.ranks = 2, .joiners = 1});
  for (Rank rank = 0; rank < 2; ++rank) {
    engine::Engine& engine = job.engine(rank);
    for (int i = 0; i < 5; ++i) engine.remove_process_set(engine.add_process_set({0, 1}));
    engine.add_process_set({0, 1});
  }
  job.join_at(0, 2);
  REQUIRE(job.run() == "");
  REQUIRE(job.has_joined(2));
  const engine::ProcessSetId number = job.engine(0).add_process_set({0, 1, 2});
  CHECK(number == 7);
  for (Rank rank = 1; rank < 3; ++rank) CHECK(job.engine(rank).add_process_set({0, 1, 2}) == number);
}

TEST_CASE("what members have said of who joins they say again when one was lost before all had said it") {
  Joins joins;
  const ElasticOptions options{.ranks = 3, .joiners = 1};
  const int events = events_of(options);
  for (int at = 0; at < events; at += every(7)) {
    CAPTURE(at);
    ElasticJob job(options);
    job.join_at(0, 3);
    // Rank 1 learns from the change only what the others have known before.
    job.when(at, [](SimNetwork& network) { network.delay(2, 1, transport::kControlLane, 100 * kMillisecond); });
    job.when(at + 20, [](SimNetwork& network) { network.kill(2); });
    REQUIRE(job.run() == "");
    check_that_others_finish(job, options, {2});
    check_joiner(job, 3, joins);
  }
  CHECK(3 * joins.had_joined > joins.had_not);  // about half of them come before the job has ended
}
