// Elastic jobs: at whatever moment ranks end, stop or lose each other, those that can go on do, with the same sums.
#include <doctest/doctest.h>

#include <tuple>
#include <utility>

#include "elastic_checks.hpp"

using namespace ringcore;
using simulation::check_that_others_finish;
using simulation::ElasticJob;
using simulation::ElasticOptions;
using simulation::events_of;
using simulation::every;
using transport::SimNetwork;

namespace {

void kill(SimNetwork& network, Rank victim) { network.kill(victim); }

// Each rank in turn meets its fault at every so many-th event of such a job, and the others finish; `look` at each of these.
template <class Fault, class Look>
void lose_each(const ElasticOptions& options, int events_between, Fault fault, Look look) {
  const int events = events_of(options);
  for (Rank victim = 0; victim < options.ranks; ++victim) {
    for (int at = victim; at < events; at += every(events_between)) {
      CAPTURE(victim);
      CAPTURE(at);
      ElasticJob job(options);
      job.when(at, [=](SimNetwork& network) { fault(network, victim); });
      REQUIRE(job.run() == "");
      check_that_others_finish(job, options, {victim});
      look(job);
    }
  }
}

template <class Fault>
void lose_each(const ElasticOptions& options, int events_between, Fault fault) {
  lose_each(options, events_between, fault, [](const ElasticJob&) {});
}

}  // namespace

TEST_CASE("an elastic job in which nothing happens sums up everybody's contributions") {
  for (const bool share_memory : {true, false}) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      for (const int tree_degree : {0, 1, 2}) {
        ElasticJob job({.ranks = ranks, .share_memory = share_memory, .tree_degree = tree_degree});
        REQUIRE(job.run() == "");
        for (Rank rank = 0; rank < ranks; ++rank) {
          CHECK(job.finished(rank));
          CHECK(job.changes(rank) == 0);
          CHECK(job.engine(rank).membership().epoch() == 7);  // nobody was missed, whoever was the first to leave
        }
      }
    }
  }
}

TEST_CASE("a rank ends at any event of an elastic job: the others go on, with the same sums") {
  for (const bool share_memory : {true, false}) {
    for (int ranks = share_memory ? 2 : 3; ranks <= (share_memory ? 4 : 3); ++ranks) {
      CAPTURE(share_memory);
      CAPTURE(ranks);
      lose_each({.ranks = ranks, .share_memory = share_memory}, 11, kill);
    }
    CAPTURE("along a tree");
    lose_each({.ranks = share_memory ? 4 : 3, .share_memory = share_memory, .tree_degree = 1}, 31, kill);
  }
}

TEST_CASE("a rank ends or stops at any event while devices are at work, whose library may notice first: others go on") {
  const auto pause = [](SimNetwork& network, Rank victim) { network.pause(victim, 4 * ElasticJob::kHeartbeat); };
  for (const bool share_memory : {true, false}) {
    CAPTURE(share_memory);
    lose_each({.share_memory = share_memory, .on_device = true}, 11, kill);
    lose_each({.share_memory = share_memory, .on_device = true, .device_notices = true}, 11, pause);
  }
}

TEST_CASE(
    "a rank ends while the others are on their way to a step: what they submit meanwhile is of the next members") {
  // Memory that others see, and devices: neither could be done again by ranks that have told the others of it.
  for (const bool on_device : {false, true}) {
    for (const Nanoseconds step : {40'000, 150'000}) {
      CAPTURE(on_device);
      CAPTURE(step);
      lose_each({.ranks = 4, .on_device = on_device, .computes = {0, step, 2 * step, 5 * step}}, 39, kill);
    }
  }
}

TEST_CASE("a rank ends at any event, and nothing large is reduced where it lies: no step is lost, and nobody is told") {
  int repeated = 0;
  for (const bool share_memory : {true, false}) {
    for (int ranks = share_memory ? 2 : 3; ranks <= (share_memory ? 4 : 3); ++ranks) {
      CAPTURE(share_memory);
      CAPTURE(ranks);
      const ElasticOptions options{
          .ranks = ranks, .share_memory = share_memory, .in_place = false, .from_registered = ranks != 3};
      lose_each(options, 15, kill, [&](const ElasticJob& job) {
        for (Rank rank = 0; rank < ranks; ++rank) repeated += job.repeated(rank);
      });
    }
  }
  CHECK(repeated > 0);  // some steps had sums of several epochs
}

TEST_CASE("a rank ends at any event while sums are compressed: they are done again, with the same bits everywhere") {
  int repeated = 0;
  const ElasticOptions options{.share_memory = false, .in_place = false, .compression = Compression::kInt8};
  lose_each(options, 35, kill, [&](const ElasticJob& job) {
    for (Rank rank = 0; rank < options.ranks; ++rank) repeated += job.repeated(rank);
  });
  CHECK(repeated > 0);
}

TEST_CASE("a rank gives the switch up at any event: all go on without it, with the same sums, and nobody is lost") {
  for (const auto& [share_memory, in_place, tree_degree] :
       {std::tuple(true, true, 0), {true, false, 0}, {false, false, 0}, {false, false, 1}}) {
    const ElasticOptions options{
        .share_memory = share_memory, .in_place = in_place, .at_switch = true, .tree_degree = tree_degree};
    const int events = events_of(options);
    int without = 0;
    for (Rank gives_up = 0; gives_up < options.ranks; ++gives_up) {
      for (int at = gives_up; at < events; at += every(15)) {
        CAPTURE(share_memory);
        CAPTURE(in_place);
        CAPTURE(tree_degree);
        CAPTURE(gives_up);
        CAPTURE(at);
        ElasticJob job(options);
        job.give_up_at(at, gives_up);
        REQUIRE(job.run() == "");
        for (Rank rank = 0; rank < options.ranks; ++rank) {
          REQUIRE(job.finished(rank));
          CHECK(job.engine(rank).size() == options.ranks);
          CHECK(job.plans_only(rank) == job.plans_only(0));
          CHECK(job.engine(rank).take_warnings().size() == (rank == gives_up && job.plans_only(0) ? 1U : 0U));
        }
        without += job.plans_only(0) ? 1 : 0;
      }
    }
    CHECK(without > 0);
  }
}

TEST_CASE("a rank gives the switch up, and another one ends meanwhile: the others go on, without either") {
  int without = 0;
  for (const bool in_place : {true, false}) {
    const ElasticOptions options{.ranks = 4, .in_place = in_place, .at_switch = true};
    const int events = events_of(options);
    for (int at = in_place ? 0 : 15; at < events; at += every(61)) {
      for (int later = -20; later < 60; later += 5) {
        const Rank gives_up = at % options.ranks;
        const Rank victim = (gives_up + 1 + (later + 20) % (options.ranks - 1)) % options.ranks;
        CAPTURE(in_place);
        CAPTURE(at);
        CAPTURE(later);
        ElasticJob job(options);
        job.give_up_at(at, gives_up);
        job.when(at + later, [victim](SimNetwork& network) { network.kill(victim); });
        REQUIRE(job.run() == "");
        check_that_others_finish(job, options, {victim});
        without += job.plans_only(gives_up) ? 1 : 0;
      }
    }
  }
  CHECK(without > 0);
}

TEST_CASE("two ranks end at any events of an elastic job, also while its members change: the others go on") {
  for (const auto& [ranks, in_place] : {std::pair(3, true), {4, true}, {3, false}, {4, false}}) {
    const ElasticOptions options{.ranks = ranks, .in_place = in_place, .from_registered = ranks == 4};
    const int events = events_of(options);
    for (int first = in_place ? 0 : 15; first < events; first += 61) {
      for (int second = first; second < events + 60; second += second < first + 60 ? 7 : 97) {
        const Rank victim = first % ranks;
        const Rank other = (victim + 1 + second % (ranks - 1)) % ranks;
        CAPTURE(ranks);
        CAPTURE(in_place);
        CAPTURE(victim);
        CAPTURE(first);
        CAPTURE(other);
        CAPTURE(second);
        ElasticJob job(options);
        job.when(first, [victim](SimNetwork& network) { network.kill(victim); });
        job.when(second, [other](SimNetwork& network) { network.kill(other); });
        REQUIRE(job.run() == "");
        check_that_others_finish(job, options, {victim, other});
      }
    }
  }
}

TEST_CASE("one of two ranks on two hosts ends: the other goes on with the witness's vote, and not without it") {
  for (const bool witness : {true, false}) {
    const ElasticOptions options{.ranks = 2, .share_memory = false, .witness = witness};
    const int events = events_of(options);
    for (int at = 0; at < events; at += every(11)) {
      CAPTURE(witness);
      CAPTURE(at);
      ElasticJob job(options);
      job.when(at, [](SimNetwork& network) { network.kill(1); });
      REQUIRE(job.run() == "");
      if (witness || job.finished(0)) continue;
      REQUIRE(job.engine(0).failure() != nullptr);
      CHECK(job.engine(0).failure()->kind() == ErrorKind::kEvicted);
    }
  }
}

TEST_CASE("a cable is cut at any event after a rank has ended: whoever reaches more than half goes on") {
  const ElasticOptions options{.ranks = 4, .share_memory = false};
  constexpr int kEnds = 5;
  int cut_while_changing = 0;
  ElasticJob undisturbed(options);
  undisturbed.when(kEnds, [](SimNetwork& network) { network.kill(3); });
  REQUIRE(undisturbed.run() == "");
  for (int at = kEnds; at < undisturbed.events(); ++at) {
    CAPTURE(at);
    ElasticJob job(options);
    job.when(kEnds, [](SimNetwork& network) { network.kill(3); });
    job.when(at, [&](SimNetwork& network) {
      cut_while_changing += job.engine(0).frozen() ? 1 : 0;
      network.silence(0, 2);
      network.silence(2, 0);
    });
    REQUIRE(job.run() == "");
    // Whoever has left when they learn of it is none that they reach.
    if (!job.has_left(0) && !job.has_left(2)) CHECK(job.finished(1));
  }
  CHECK(cut_while_changing > 0);
}

TEST_CASE("a network is cut at any event: the larger part goes on, and the smaller one says that it does not") {
  const ElasticOptions options{.ranks = 3, .share_memory = false};
  const int events = events_of(options);
  for (int at = 0; at < events; at += every(11)) {
    for (const bool both : {true, false}) {
      CAPTURE(at);
      CAPTURE(both);
      ElasticJob job(options);
      job.when(at, [both](SimNetwork& network) {
        for (const Rank rank : {0, 1}) {
          network.silence(2, rank);
          if (both) network.silence(rank, 2);
        }
      });
      REQUIRE(job.run() == "");
      check_that_others_finish(job, options, {2});
      if (job.finished(2)) continue;
      REQUIRE(job.engine(2).failure() != nullptr);
      CHECK(job.engine(2).failure()->kind() == ErrorKind::kEvicted);
    }
  }
}

TEST_CASE("a rank stops at any event: on one host it is ended before the others go on, else it finds that they have") {
  for (const bool share_memory : {true, false}) {
    const ElasticOptions options{.ranks = 3, .share_memory = share_memory};
    const int events = events_of(options);
    for (int at = 0; at < events; at += every(15)) {
      CAPTURE(share_memory);
      CAPTURE(at);
      ElasticJob job(options);
      job.when(at, [](SimNetwork& network) { network.pause(1, 5 * ElasticJob::kHeartbeat); });
      REQUIRE(job.run() == "");
      check_that_others_finish(job, options, {1});
      if (!job.lives(1) || job.finished(1)) continue;
      REQUIRE_FALSE(share_memory);
      REQUIRE(job.engine(1).failure() != nullptr);
      CHECK(job.engine(1).failure()->kind() == ErrorKind::kEvicted);
    }
  }
}

TEST_CASE("the witness ends at any event: more than half of the members go on without it") {
  const ElasticOptions options{.ranks = 3, .share_memory = false, .witness = true};
  const int events = events_of(options);
  for (int at = 0; at < events; at += every(7)) {
    CAPTURE(at);
    ElasticJob job(options);
    job.kill_witness_at(at);
    job.when(events / 2, [](SimNetwork& network) { network.kill(0); });
    REQUIRE(job.run() == "");
    CHECK(job.finished(1));
    CHECK(job.finished(2));
  }
}
