// Agreement on who goes on: members, arriving processes and the witness, under everything that can happen to them.
//
//   RINGCORE_VIEW_SEED=123 ringcore_tests -tc="views under fault schedules"
#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "from_environment.hpp"
#include "view_cluster.hpp"

using namespace ringcore;
using engine::contains;
using engine::Place;
using engine::Places;
using testing::from_environment;
using testing::ViewCluster;

namespace {

constexpr ViewCluster::Time kLong = 20'000;

Places up_to(int count) {
  Places places;
  for (Place place = 0; place < count; ++place) places.push_back(place);
  return places;
}

Places without(Places places, const Places& gone) {
  std::erase_if(places, [&](Place place) { return contains(gone, place); });
  return places;
}

// All who live are in one view, of just them, and nobody waits for anything.
std::string unsettled(const ViewCluster& cluster) {
  const Places alive = cluster.alive();
  for (const Place place : alive) {
    const engine::ViewChange& process = cluster.process(place);
    const std::string who = "rank at place " + std::to_string(place);
    if (process.view().members != alive) {
      std::string members;
      for (const Place member : process.view().members) members += " " + std::to_string(member);
      return who + " is in a view of" + members + ", of whom not all live, or others do";
    }
    if (process.changing()) return who + " waits";
    if (cluster.gave_up(place) && !process.view().plans_only) return who + " has given up a backend in vain";
  }
  return "";
}

// Of the newest view: whoever reaches more than half of all that there ever were, of whom none was ever silent or leaves, does
// not wait: it can lead them, whomever they reach themselves. (That fewer may be enough is for the tests below.) But where the
// witness is bound to a view that nobody has, and supports no other, they may.
std::string stuck(const ViewCluster& cluster) {
  const Places alive = cluster.alive();
  std::uint32_t newest = 0;
  for (const Place place : alive) newest = std::max(newest, cluster.process(place).view().epoch);
  const auto& accepted = cluster.witness().accepted();
  if (accepted && cluster.witness().view().epoch < newest && accepted->view.epoch != newest) return "";
  const auto counts = [&](Place place) {
    return cluster.is_sound(place) && cluster.process(place).view().epoch == newest &&
           cluster.needs_no_witness_or_reaches_it(place);
  };
  for (const Place place : alive) {
    const auto reached = std::count_if(alive.begin(), alive.end(), [&](Place other) {
      return counts(other) && !cluster.is_cut(place, other) && !cluster.is_cut(other, place);
    });
    const bool can_decide = counts(place) && 2 * static_cast<int>(reached) > cluster.size();
    if (can_decide && cluster.process(place).changing()) return "rank at place " + std::to_string(place) + " waits";
  }
  return "";
}

struct Drawn {
  ViewCluster::Options options;
  bool settles = true;  // all deaths are seen, and nothing is cut
};

Drawn draw_options(std::mt19937_64& random) {
  const auto below = [&](int bound) { return static_cast<int>(random() % static_cast<unsigned>(bound)); };
  Drawn drawn;
  drawn.options.members = 2 + below(5);
  drawn.options.places = drawn.options.members + (below(3) == 0 ? 1 + below(2) : 0);
  drawn.options.per_host = 1 + below(3);
  drawn.options.witness = below(5) != 0;
  if (below(2) == 0) {
    drawn.options.direct_members = 2;
    drawn.options.places += 2;
    drawn.options.members += 2;
    if (below(2) == 0) drawn.options.watched = 2;
  }
  return drawn;
}

void draw_faults(ViewCluster& cluster, Drawn& drawn, std::mt19937_64& random) {
  const auto below = [&](int bound) { return static_cast<int>(random() % static_cast<unsigned>(bound)); };
  const int members = drawn.options.members;
  for (int faults = 1 + below(4); faults > 0; --faults) {
    const ViewCluster::Time when = 1 + below(below(3) == 0 ? 400 : 120);
    const Place place = below(cluster.size());
    const Place other = below(cluster.size());
    switch (below(10)) {
      case 0:
      case 1: {
        const bool seen = below(4) != 0;
        drawn.settles = drawn.settles && seen && drawn.options.witness;
        cluster.at(when, [&cluster, place, seen] { cluster.kill(place, seen); });
        break;
      }
      case 2:
      case 3: {
        const int n = below(12);
        drawn.settles = drawn.settles && drawn.options.witness;
        cluster.at(when, [&cluster, place, n] { cluster.kill_at_message(place, n); });
        break;
      }
      case 4: {
        drawn.settles = false;
        cluster.at(when, [&cluster, place, until = when + 1 + below(200)] { cluster.stop(place, until); });
        break;
      }
      case 5: {
        drawn.settles = false;
        const bool both = below(2) == 0;
        if (place == other) break;
        cluster.at(when, [&cluster, place, other, both] {
          cluster.cut(place, other);
          if (both) cluster.cut(other, place);
        });
        break;
      }
      case 6: {  // two halves of a cluster, one of them with the witness, or neither
        drawn.settles = false;
        const auto half = random();
        const int side = below(3);
        cluster.at(when, [&cluster, half, side] {
          const auto in_first = [half](Place each) { return (half >> each & 1) != 0; };
          for (Place a = 0; a < cluster.size(); ++a) {
            for (Place b = 0; b < cluster.size(); ++b) {
              if (in_first(a) != in_first(b)) cluster.cut(a, b);
            }
            if (side == 2 || in_first(a) == (side == 1)) {
              cluster.cut(a, engine::kWitness);
              cluster.cut(engine::kWitness, a);
            }
          }
        });
        break;
      }
      case 7: cluster.at(when, [&cluster, place] { cluster.leave(place); }); break;
      case 8:
        if (cluster.size() > members) {
          const Place newcomer = members + below(cluster.size() - members);
          cluster.at(when, [&cluster, newcomer] { cluster.arrive(newcomer); });
        }
        break;
      case 9:
        drawn.settles = false;
        if (below(3) == 0) cluster.at(when, [&cluster] { cluster.kill_witness(); });
        break;
    }
  }
}

std::string flaw_of(std::uint64_t seed) {
  std::mt19937_64 random(seed * 0x9e3779b97f4a7c15ULL + 1);
  Drawn drawn = draw_options(random);
  ViewCluster cluster(drawn.options, seed);
  draw_faults(cluster, drawn, random);
  for (int gives_up = static_cast<int>(random() % 6) - 3; gives_up > 0; --gives_up) {
    const auto place = static_cast<Place>(random() % static_cast<unsigned>(cluster.size()));
    cluster.at(1 + static_cast<ViewCluster::Time>(random() % 120), [&cluster, place] { cluster.give_up(place); });
  }
  cluster.run(kLong);
  std::string flaw = cluster.flaw();
  if (flaw.empty()) flaw = drawn.settles ? unsettled(cluster) : stuck(cluster);
  return flaw.empty() ? "" : "seed " + std::to_string(seed) + ": " + flaw;
}

}  // namespace

TEST_CASE("views under fault schedules") {
  const std::uint64_t only = from_environment("RINGCORE_VIEW_SEED", 0);
  const std::uint64_t count = only != 0 ? 1 : from_environment("RINGCORE_VIEW_SEEDS", 10'000);
  for (std::uint64_t seed = only != 0 ? only : 1, end = seed + count; seed < end; ++seed) {
    const std::string flaw = flaw_of(seed);
    REQUIRE_MESSAGE(flaw.empty(), flaw);
  }
}

TEST_CASE("among many those who are silent are found out soon, though few watch them") {
  struct Silent {
    Place first;
    Place last;
    ViewCluster::Time most;
  };
  // Those who watch them lose patience after 50 at most. Of who is only asked, it lasts for 80: one of the others need not be
  // waited for, as these say that it is gone; ten that would lead are asked one, two and four at a time.
  for (const Silent& silent : {Silent{12, 12, 50 + 70}, {0, 9, 50 + 3 * 90 + 70}}) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      CAPTURE(silent.first);
      CAPTURE(seed);
      ViewCluster cluster({.members = 24, .places = 24, .direct_members = 2, .watched = 2}, seed);
      Places stopped;
      for (Place place = silent.first; place <= silent.last; ++place) {
        stopped.push_back(place);
        cluster.at(10, [&cluster, place] { cluster.stop(place, kLong); });
      }
      cluster.run(kLong / 2);
      CHECK(cluster.flaw() == "");
      for (const Place place : without(up_to(24), stopped)) {
        CHECK(cluster.process(place).view().members == without(up_to(24), stopped));
      }
      CHECK(cluster.installed_at() - 10 <= silent.most);
    }
  }
}

TEST_CASE("whoever ends at whichever message, alone or with another: the others go on in one view") {
  for (int members = 2; members <= 4; ++members) {
    for (Place first = 0; first < members; ++first) {
      for (Place second = 0; second < members; ++second) {
        // With the witness half of them are enough, though nobody sees the others end.
        const bool seen = members < (second == first ? 2 : 4);
        for (int n = 0; n < 20; ++n) {
          for (int m = 0; m < (second == first ? 1 : 20); ++m) {
            ViewCluster cluster({.members = members, .places = members + 1}, 1);
            // Something that makes all of them talk.
            cluster.at(1, [&] { seen ? cluster.leave(members - 1) : cluster.arrive(members); });
            cluster.kill_at_message(first, n, seen);
            if (second != first) cluster.kill_at_message(second, m, seen);
            cluster.run(kLong);
            CAPTURE(members);
            CAPTURE(first);
            CAPTURE(n);
            CAPTURE(second);
            CAPTURE(m);
            REQUIRE(cluster.flaw() == "");
            REQUIRE(unsettled(cluster) == "");
          }
        }
      }
    }
  }
}

TEST_CASE(
    "of two parts of a job the one with the witness goes on, if it is no smaller than the other; the other knows") {
  for (const bool witness_with_first : {true, false}) {
    ViewCluster cluster({.members = 4, .places = 4}, 7);
    cluster.at(1, [&] {
      for (const Place a : {0, 1}) {
        for (const Place b : {2, 3}) {
          cluster.cut(a, b);
          cluster.cut(b, a);
        }
      }
      for (const Place place : witness_with_first ? Places{2, 3} : Places{0, 1}) {
        cluster.cut(place, engine::kWitness);
        cluster.cut(engine::kWitness, place);
      }
    });
    cluster.run(kLong);
    REQUIRE(cluster.flaw() == "");
    const Places go_on = witness_with_first ? Places{0, 1} : Places{2, 3};
    for (const Place place : go_on) {
      CHECK(cluster.process(place).view().members == go_on);
      CHECK_FALSE(cluster.process(place).changing());
    }
    for (const Place place : without(up_to(4), go_on)) {
      CHECK(cluster.process(place).view().members == up_to(4));
      CHECK(cluster.process(place).changing());
    }
    CHECK(cluster.witness().view().members == go_on);
  }
}

TEST_CASE("one of two goes on with the witness's vote, and without proof not without it") {
  for (const bool witness : {true, false}) {
    ViewCluster cluster({.members = 2, .places = 2, .witness = witness}, 3);
    cluster.at(1, [&] { cluster.kill(0, false); });
    cluster.run(kLong);
    CHECK(cluster.process(1).view().members == (witness ? Places{1} : up_to(2)));
    CHECK(cluster.process(1).changing() == !witness);
  }
}

TEST_CASE("what shrinks step by step without the witness never goes below half of what the witness knew") {
  ViewCluster cluster({.members = 5, .places = 5}, 5);
  cluster.at(1, [&] {  // the witness hears 3 and 4 only
    for (const Place place : {0, 1, 2}) {
      cluster.cut(place, engine::kWitness);
      cluster.cut(engine::kWitness, place);
      for (const Place other : {3, 4}) {
        cluster.cut(place, other);
        cluster.cut(other, place);
      }
    }
  });
  cluster.at(500, [&] { cluster.kill(1, false); });
  cluster.run(400);
  for (const Place place : {0, 1, 2}) CHECK(cluster.process(place).view().members == Places{0, 1, 2});
  cluster.run(kLong);
  for (const Place place : {0, 2}) {
    CHECK(cluster.process(place).view().members == Places{0, 1, 2});
    CHECK(cluster.process(place).changing());
  }
  REQUIRE(cluster.flaw() == "");
}

TEST_CASE("whoever arrives becomes a member, whoever leaves is none any more, and all take over the newest step") {
  ViewCluster cluster({.members = 3, .places = 5}, 11);
  cluster.commit(1, 8);
  cluster.commit(2, 7);
  cluster.at(1, [&] { cluster.arrive(3); });
  cluster.at(3, [&] { cluster.arrive(4); });
  cluster.at(1000, [&] { cluster.leave(0); });
  cluster.run(900);
  CHECK(unsettled(cluster) == "");
  CHECK(cluster.alive() == up_to(5));
  CHECK(cluster.process(4).view().committed == 8);
  cluster.run(kLong);
  CHECK(unsettled(cluster) == "");
  CHECK(cluster.alive() == Places{1, 2, 3, 4});
  CHECK_FALSE(cluster.process(0).evicted());
  CHECK(cluster.flaw() == "");
}

TEST_CASE("a member that was stopped and wakes up is told that it is none any more") {
  ViewCluster cluster({.members = 3, .places = 3}, 2);
  cluster.at(1, [&] { cluster.stop(2, 1000); });
  cluster.run(kLong);
  CHECK(cluster.flaw() == "");
  CHECK(cluster.process(0).view().members == Places{0, 1});
  CHECK(cluster.process(2).evicted());
}

TEST_CASE("of two that cannot reach each other one stays, the lower one unless both lead") {
  for (Place low = 0; low < 4; ++low) {
    for (Place high = low + 1; high < 4; ++high) {
      ViewCluster cluster({.members = 4, .places = 4}, 17);
      cluster.at(1, [&] {
        cluster.cut(low, high);
        cluster.cut(high, low);
      });
      cluster.run(kLong);
      CAPTURE(low);
      CAPTURE(high);
      CHECK(cluster.flaw() == "");
      CHECK(unsettled(cluster) == "");
      CHECK(cluster.alive().size() == 3);
      if (high > 1) CHECK(cluster.process(high).evicted());
    }
  }
}

TEST_CASE("a process that not all members reach becomes no member, and holds nobody up") {
  ViewCluster cluster({.members = 3, .places = 4}, 19);
  cluster.at(1, [&] {
    cluster.cut(3, 2);
    cluster.cut(2, 3);
    cluster.arrive(3);
  });
  cluster.run(kLong);
  CHECK(unsettled(cluster) == "");
  CHECK(cluster.alive() == up_to(3));
}

namespace {

using Type = engine::ViewMessage::Type;

engine::ViewMessage about(Type type, std::uint32_t epoch, std::uint32_t ballot) {
  engine::ViewMessage message;
  message.type = type;
  message.epoch = epoch;
  message.ballot = ballot;
  return message;
}

engine::ViewMessage proposal(Type type, std::uint32_t epoch, std::uint32_t ballot, const engine::View& view) {
  engine::ViewMessage message = about(type, epoch, ballot);
  message.proposal = engine::Proposal{ballot, view};
  return message;
}

}  // namespace

TEST_CASE("of several views that may be decided the one with the newest ballot is proposed again") {
  engine::ViewChange leader({.epoch = 1, .members = up_to(5)}, 0, false, 1);
  leader.suspect(3);
  leader.suspect(4);
  std::uint32_t ballot = 0;
  for (const auto& [to, message] : leader.take_outbox()) {
    if (message.type == Type::kPrepare) ballot = message.ballot;
  }
  REQUIRE(ballot != 0);
  const engine::View older{.epoch = 10, .members = {0, 1, 2, 3}};
  const engine::View newer{.epoch = 11, .members = {0, 1, 2, 4}};
  for (const Place place : {1, 2}) {
    engine::ViewMessage promise = about(Type::kPromise, 1, ballot);
    promise.proposal = engine::Proposal{place == 1 ? 10U : 11U, place == 1 ? older : newer};
    leader.receive(place, promise);
  }
  int proposed = 0;
  for (const auto& [to, message] : leader.take_outbox()) {
    if (message.type != Type::kPropose) continue;
    ++proposed;
    CHECK(message.proposal->view == newer);
  }
  CHECK(proposed > 0);
}

namespace {

// What a leader has said, in short: how often, and the last of it.
std::pair<int, engine::ViewMessage> heard(engine::ViewChange& leader, Type type, std::optional<Place> to = {}) {
  std::pair<int, engine::ViewMessage> found{0, {}};
  for (auto& [place, message] : leader.take_outbox()) {
    if (message.type == type && (!to || place == *to)) found = {found.first + 1, message};
  }
  return found;
}

}  // namespace

TEST_CASE("whoever leaves does not decide, with the few who stay, what the witness is not asked about") {
  engine::ViewChange leader({.epoch = 1, .members = up_to(3)}, 0, true, 1);
  leader.suspect(2);
  engine::ViewMessage promise = about(Type::kPromise, 1, heard(leader, Type::kPrepare).second.ballot);
  promise.leaves = true;
  leader.receive(1, promise);
  const auto outbox = leader.take_outbox();
  REQUIRE(outbox.size() == 1);
  CHECK(outbox[0].to == engine::kWitness);
  CHECK(outbox[0].message.type == Type::kPrepare);
}

TEST_CASE("the last who is left asks the witness: others may have arrived that it does not know") {
  engine::ViewChange last({.epoch = 1, .members = up_to(2)}, 1, true, 1);
  last.prove_ended(0);
  CHECK(last.view().members == up_to(2));
  CHECK(heard(last, Type::kPrepare, engine::kWitness).first == 1);
}

TEST_CASE("a leader that was refused tries again with a newer ballot, after a while") {
  engine::ViewChange leader({.epoch = 1, .members = up_to(3)}, 0, false, 10);
  leader.suspect(2);
  const std::uint32_t ballot = heard(leader, Type::kPrepare).second.ballot;
  engine::ViewMessage refusal = about(Type::kRefuse, 1, ballot + 1);
  refusal.answered = ballot;
  leader.receive(1, refusal);
  leader.check_timers(9);
  CHECK(heard(leader, Type::kPrepare).first == 0);
  leader.check_timers(10);
  CHECK(heard(leader, Type::kPrepare).second.ballot > ballot + 1);
}

TEST_CASE("whoever leads those who are too few gives way to whom more can reach") {
  ViewCluster cluster({.members = 5, .places = 5}, 23);
  cluster.at(1, [&] {
    cluster.kill(0, false);
    for (const Place place : {3, 4}) {
      cluster.cut(1, place);
      cluster.cut(place, 1);
    }
  });
  cluster.run(kLong);
  REQUIRE(cluster.flaw() == "");
  for (const Place place : {2, 3, 4}) {
    CHECK(cluster.process(place).view().members == Places{2, 3, 4});
    CHECK_FALSE(cluster.process(place).changing());
  }
}

TEST_CASE(
    "who is not waited for, as others have lost it, is asked to accept all the same: those others may be lost next") {
  engine::ViewChange leader({.epoch = 1, .members = {0, 1, 2, 3}}, 0, true, 10, {}, 2);
  using Type = engine::ViewMessage::Type;
  const auto asked = [&leader](Type type) {
    Places places;
    for (const auto& [to, message] : leader.take_outbox()) {
      if (message.type == type) engine::insert(places, to);
    }
    return places;
  };
  leader.receive(2, {.type = Type::kFreeze, .epoch = 1});
  leader.receive(2, {.type = Type::kPromise, .epoch = 1, .ballot = 16384});
  leader.receive(3, {.type = Type::kPromise, .epoch = 1, .ballot = 16384, .suspects = {1}});
  CHECK(asked(Type::kPropose) == Places{1, 2, 3});
  leader.receive(2, {.type = Type::kAccept, .epoch = 1, .ballot = 16384});
  leader.suspect(3);
  leader.receive(1, {.type = Type::kAccept, .epoch = 1, .ballot = 16384});
  CHECK(asked(Type::kPrepare) == Places{engine::kWitness, 1, 2, 3});
}

TEST_CASE("whoever has proposed does not give way before those have accepted whom others have lost") {
  engine::ViewChange leader({.epoch = 1, .members = {0, 1, 2, 3, 4}}, 0, false, 10, {}, 2);
  using Type = engine::ViewMessage::Type;
  leader.receive(2, {.type = Type::kFreeze, .epoch = 1});
  for (const Place place : {1, 3, 4}) leader.receive(place, {.type = Type::kPromise, .epoch = 1, .ballot = 16384});
  leader.receive(2, {.type = Type::kPromise, .epoch = 1, .ballot = 16384, .suspects = {1}});
  leader.receive(2, {.type = Type::kAccept, .epoch = 1, .ballot = 16384, .suspects = {1}});
  leader.suspect(3);
  leader.suspect(4);
  leader.receive(1, {.type = Type::kAccept, .epoch = 1, .ballot = 16384});
  CHECK(leader.view().epoch == 16384);
}

TEST_CASE("whoever loses somebody that it has asked to accept gives way to whom more can reach") {
  int given_way = 0;
  for (ViewCluster::Time when = 41; when < 120; ++when) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      ViewCluster cluster({.members = 4, .places = 4, .witness = false}, seed);
      cluster.at(1, [&] { cluster.kill(3, false); });
      cluster.at(when, [&] {
        cluster.cut(0, 2);
        cluster.cut(2, 0);
      });
      cluster.run(kLong);
      CAPTURE(when);
      CAPTURE(seed);
      REQUIRE(cluster.flaw() == "");
      REQUIRE_FALSE(cluster.process(1).changing());
      CHECK(cluster.process(1).view().members != up_to(4));
      if (cluster.process(1).view().members == Places{1, 2}) ++given_way;
    }
  }
  CHECK(given_way > 0);
}

TEST_CASE("whoever leads does not give way before those have promised whom others have lost") {
  engine::ViewChange leader({.epoch = 1, .members = {0, 1, 2, 3}}, 0, false, 10, {}, 2);
  using Type = engine::ViewMessage::Type;
  leader.receive(2, {.type = Type::kFreeze, .epoch = 1});
  leader.suspect(3);
  leader.receive(2, {.type = Type::kPromise, .epoch = 1, .ballot = 16384, .suspects = {1}});
  for (const auto& [to, message] : leader.take_outbox()) CHECK_FALSE(message.yields);
  leader.receive(1, {.type = Type::kPromise, .epoch = 1, .ballot = 16384});
  Places asked;
  for (const auto& [to, message] : leader.take_outbox()) {
    if (message.type == Type::kPropose) engine::insert(asked, to);
  }
  CHECK(asked == Places{1, 2, 3});
}

TEST_CASE("whoever arrives and loses a member tells it: it may wait for an answer to what never came") {
  engine::ViewChange newcomer({.epoch = 1, .members = {0, 1, 2, 3}}, 4, true, 10, {}, 2);
  newcomer.suspect(1);
  const auto outbox = newcomer.take_outbox();
  REQUIRE(outbox.size() == 1);
  CHECK(outbox.front().to == 1);
  CHECK(outbox.front().message.suspects == Places{1});
}

TEST_CASE("what is asked in a view that a member has not heard of yet is answered when it has") {
  engine::ViewChange member({.epoch = 1, .members = {0, 1, 2, 3}}, 2, true, 10, {}, 2);
  using Type = engine::ViewMessage::Type;
  const engine::View next{.epoch = 16384, .members = {0, 1, 2}};
  const std::uint32_t ballot = 32768;
  member.receive(0, {.type = Type::kPrepare, .epoch = next.epoch, .ballot = ballot, .suspects = {1}});
  member.receive(0, {.type = Type::kFreeze, .epoch = next.epoch, .suspects = {1}});  // says less
  member.take_outbox();
  member.receive(1,
                 {.type = Type::kInstall, .epoch = 1, .proposal = engine::Proposal{next.epoch, next}, .since = {next}});
  bool promised = false;
  for (const auto& [to, message] : member.take_outbox()) {
    promised = promised || (to == 0 && message.type == Type::kPromise && message.ballot == ballot);
  }
  CHECK(promised);
}

TEST_CASE("those who have left in order hold nobody up, though the witness was lost before") {
  ViewCluster cluster({.members = 4, .places = 4}, 29);
  cluster.at(1, [&] { cluster.kill_witness(); });
  for (Place place = 0; place < 3; ++place) cluster.at(200 + 200 * place, [&, place] { cluster.leave(place); });
  cluster.run(kLong);
  REQUIRE(cluster.flaw() == "");
  CHECK(cluster.process(3).view().members == Places{3});
  CHECK_FALSE(cluster.process(3).changing());
}

TEST_CASE("a process of which not all members know is not let in") {
  engine::ViewChange leader({.epoch = 1, .members = up_to(2)}, 0, false, 1);
  leader.arrive(2);
  const auto asked = leader.take_outbox();
  const std::uint32_t ballot = asked.back().message.ballot;
  leader.receive(1, about(Type::kPromise, 1, ballot));  // its list of those who arrive is empty
  leader.receive(2, about(Type::kPromise, 1, ballot));
  const auto said = leader.take_outbox();
  REQUIRE_FALSE(said.empty());
  CHECK(said.back().message.proposal->view.members == up_to(2));
}

TEST_CASE("whoever arrives answers those who have missed a view that it has heard of from one whom they have lost") {
  engine::ViewChange arriving({.epoch = 1, .members = up_to(3)}, 3, false, 1);
  arriving.receive(0, about(Type::kPrepare, 20, 40));
  REQUIRE(heard(arriving, Type::kPromise, 0).first == 1);
  arriving.receive(1, about(Type::kPrepare, 1, 45));
  CHECK(heard(arriving, Type::kPromise, 1).first == 1);
}

TEST_CASE(
    "the witness votes on the view that it has, follows from that to the next, and keeps to what it has accepted") {
  const engine::View first{.epoch = 1, .members = up_to(4)};
  const engine::View left{.epoch = 20, .members = {0, 1}};
  const engine::View right{.epoch = 21, .members = {2, 3}};
  const auto decided = [](std::uint32_t epoch, const engine::View& view, std::vector<engine::View> since) {
    engine::ViewMessage message = proposal(Type::kInstall, epoch, view.epoch, view);
    message.since = std::move(since);
    return message;
  };

  engine::Witness witness(first);
  CHECK_FALSE(witness.receive(about(Type::kPrepare, 20, 40)));  // of a view that it does not have
  REQUIRE(witness.receive(proposal(Type::kPropose, 1, 21, right))->type == Type::kAccept);
  CHECK_FALSE(witness.receive(decided(1, left, {first, left})));  // another one than it has accepted
  CHECK(witness.view() == first);
  CHECK(witness.receive(about(Type::kPrepare, 1, 22))->proposal->view == right);
  CHECK(witness.receive(decided(1, right, {right}))->type == Type::kKnown);
  CHECK(witness.view() == right);

  engine::Witness other(first);
  const engine::View later{.epoch = 30, .members = {0}};
  CHECK_FALSE(other.receive(decided(20, later, {left, later})));  // that does not follow from what it has
  CHECK(other.receive(decided(20, later, {first, left, later}))->type == Type::kKnown);
  CHECK(other.view() == later);
  // Whoever was cut off hears from it what has become of the job.
  const auto answer = other.receive(about(Type::kPrepare, 1, 99));
  REQUIRE(answer);
  CHECK(answer->type == Type::kInstall);
  CHECK(answer->proposal->view == later);
}

TEST_CASE("all leave, one after the other: nobody is put out, and nobody waits") {
  ViewCluster cluster({.members = 4, .places = 4}, 13);
  for (Place place = 0; place < 4; ++place) cluster.at(1 + 30 * place, [&, place] { cluster.leave(place); });
  cluster.run(kLong);
  CHECK(cluster.alive().empty());
  for (Place place = 0; place < 4; ++place) {
    CHECK_FALSE(cluster.process(place).evicted());
    CHECK_FALSE(cluster.process(place).is_member());
  }
  CHECK(cluster.flaw() == "");
}

TEST_CASE("whoever hears late of two views that it is not in was evicted by the first, and is no newcomer") {
  engine::ViewChange change({.epoch = 1, .members = {0, 1, 2}}, 1, false, 10);
  engine::ViewMessage news{.type = engine::ViewMessage::Type::kInstall, .epoch = 1};
  for (const std::uint32_t epoch : {16384U, 32768U}) {
    news.proposal = engine::Proposal{epoch, {.epoch = epoch, .members = {0, 2}}};
    news.since = {news.proposal->view};
    change.receive(0, news);
    CHECK(change.evicted());
    news.epoch = epoch;
  }
  // What asks newcomers changes nothing here.
  change.receive(0, {.type = engine::ViewMessage::Type::kPrepare, .epoch = 16384, .ballot = 49152});
  CHECK(change.view().epoch == 32768);
}

TEST_CASE("what was under way in views before its own is nothing to whoever arrives") {
  engine::ViewChange change({.epoch = 0, .members = {0, 1}}, 3, false, 10);
  engine::ViewMessage news{.type = engine::ViewMessage::Type::kInstall};
  for (const auto& [members, released] : {std::pair(Places{0, 1, 2}, 5U), std::pair(Places{0, 1, 2, 3}, 9U)}) {
    const std::uint32_t epoch = news.epoch + 16384;
    news.proposal = engine::Proposal{
        epoch, {.epoch = epoch, .members = members, .under_way = {.released = {{std::uint16_t{0}, released}}}}};
    news.since = {news.proposal->view};
    change.receive(2, news);
    news.epoch = epoch;
  }
  REQUIRE(change.is_member());
  CHECK(change.take_under_way().released_in(0) == 9);
}

TEST_CASE("a backend that one member gives up is given up for good by all, and by who joins later") {
  for (const Place gives_up : {0, 2}) {
    ViewCluster cluster({.members = 3, .places = 4, .witness = false}, 5);
    cluster.at(5, [&] { cluster.give_up(gives_up); });
    cluster.run(200);
    for (const Place place : up_to(3)) {
      CHECK(cluster.process(place).view().members == up_to(3));
      CHECK(cluster.process(place).view().plans_only);
    }
    cluster.at(300, [&] { cluster.arrive(3); });
    cluster.at(600, [&] { cluster.kill(gives_up); });
    cluster.run(kLong);
    for (const Place place : without(up_to(4), {gives_up})) {
      CHECK(cluster.process(place).view().members == without(up_to(4), {gives_up}));
      CHECK(cluster.process(place).view().plans_only);
    }
    CHECK(cluster.flaw() == "");
  }
}

TEST_CASE("whoever has given up a backend asks again where an older proposal was adopted that does not say so") {
  engine::ViewChange change({.epoch = 1, .members = {0, 1, 2}}, 1, false, 10);
  change.give_up_backends();
  CHECK(change.changing());
  engine::ViewMessage news{.type = engine::ViewMessage::Type::kInstall, .epoch = 1};
  for (const bool plans_only : {false, true}) {
    const std::uint32_t epoch = news.epoch + 16384;
    news.proposal = engine::Proposal{epoch, {.epoch = epoch, .members = {0, 1, 2}, .plans_only = plans_only}};
    news.since = {news.proposal->view};
    change.receive(0, news);
    CHECK(change.view().epoch == epoch);
    CHECK(change.changing() == !plans_only);
    news.epoch = epoch;
  }
}

TEST_CASE("a message after whose ballot none comes, or that lets anybody decide what follows, is refused") {
  engine::ViewMessage message;
  message.type = engine::ViewMessage::Type::kInstall;
  message.proposal = engine::Proposal{16385, {.epoch = 16384, .members = {0, 2, 3}}};
  message.since = {message.proposal->view};
  engine::ViewMessage late = message;
  late.ballot = 0xfffffff0;
  CHECK_THROWS_WITH_AS(engine::decode_view_message(engine::encode(late)),
                       doctest::Contains("no ballot comes after 4294967280"), Error);
  late = message;
  late.proposal->view.epoch = late.since[0].epoch = 0xfffffff0;
  CHECK_THROWS_AS(engine::decode_view_message(engine::encode(late)), Error);
  engine::ViewMessage loose = message;
  loose.since.clear();
  CHECK_THROWS_WITH_AS(engine::decode_view_message(engine::encode(loose)),
                       doctest::Contains("do not end with this one"), Error);
  CHECK(engine::decode_view_message(engine::encode(message)).since == message.since);
  // Whoever led and heard of it from others would lead all back to it.
  engine::ViewMessage back = message;
  back.type = engine::ViewMessage::Type::kPropose;
  back.epoch = back.proposal->view.epoch;
  CHECK_THROWS_WITH_AS(engine::decode_view_message(engine::encode(back)),
                       doctest::Contains("does not follow the one that is left"), Error);
}

TEST_CASE("messages about views survive the journey, and malformed ones are refused") {
  engine::ViewMessage message;
  message.type = engine::ViewMessage::Type::kInstall;
  message.epoch = 3;
  message.committed = 1ULL << 40;
  message.leaves = true;
  message.plans_only = true;
  message.suspects = {1, 5};
  message.ended = {5};
  message.proposal =
      engine::Proposal{16385, {.epoch = 16384, .members = {0, 2, 3}, .committed = 9, .plans_only = true}};
  message.since = {{.epoch = 3, .members = {0, 1, 2, 3}}, message.proposal->view};
  const std::vector<std::byte> bytes = engine::encode(message);
  const engine::ViewMessage again = engine::decode_view_message(bytes);
  CHECK(again.proposal->view == message.proposal->view);
  CHECK(again.proposal->ballot == 16385);
  CHECK(again.since == message.since);
  CHECK(again.suspects == message.suspects);
  CHECK(again.leaves);
  CHECK(again.plans_only);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    CHECK_THROWS_AS(engine::decode_view_message(std::span(bytes).first(length)), Error);
  }
  // Whatever single byte is another one, it is refused or read, and never more than that.
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    std::vector<std::byte> other = bytes;
    other[at] ^= std::byte{0xff};
    try {
      engine::decode_view_message(other);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kProtocol);
    }
  }
}
