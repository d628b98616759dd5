// Logs that travel along a tree, beside the same logs where each member sends to each: the decisions are the same.
//
//   RINGCORE_TREE_SEED=123 ringcore_tests -tc="*along a tree*"    RINGCORE_TREE_SEEDS=100000 ...
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <string>

#include "agreement_forest.hpp"
#include "from_environment.hpp"

using namespace ringcore;
using namespace ringcore::engine;
using namespace ringcore::testing;

namespace {

// A job with process sets, whose members add them at different times. Ranks leave; one may die, and the others hear of it
// sooner or later.
class Job {
 public:
  explicit Job(std::uint64_t seed, int most_ranks) : draw_(seed) {
    ranks_ = 2 + draw_.below(draw_.one_in(4) ? most_ranks - 1 : std::min(most_ranks, 8) - 1);
    const int hosts = 1 + draw_.below(ranks_);
    for (Rank rank = 0; rank < ranks_; ++rank) host_of_.push_back(draw_.below(hosts));
    std::vector<Rank> world(static_cast<std::size_t>(ranks_));
    std::iota(world.begin(), world.end(), 0);
    add_set(std::move(world));
    while (sets_.size() < 4 && draw_.one_in(3)) add_part();
    for (const int chances : {3, 6}) {
      if (!draw_.one_in(chances)) continue;
      left_.push_back(draw_.below(ranks_));
      events_.push_back({Event::kLeave, left_.back()});
    }
    if (draw_.one_in(4)) plan_death();
    plan_sets();
    std::shuffle(events_.begin(), events_.end(), draw_.generator());
  }

  // What differs, or nothing.
  std::string flaw() {
    run();
    for (std::size_t set = 0; set < sets_.size(); ++set) {
      for (int m = 0; m < sets_[set].forest.size(); ++m) {
        const std::string what = flaw_of_member(sets_[set], m);
        if (!what.empty()) return "set " + std::to_string(set) + ", member " + std::to_string(m) + ": " + what;
      }
    }
    return "";
  }

 private:
  struct Set {
    std::vector<Rank> ranks;
    Forest forest;
    bool removed = false;
  };
  struct Event {
    enum Kind { kAdd, kRemove, kLeave, kDie } kind;
    int number = 0;  // rank, or member of the set
    std::size_t set = 0;
  };

  void add_set(std::vector<Rank> ranks) {
    std::vector<int> hosts;
    for (const Rank rank : ranks) hosts.push_back(host_of_[static_cast<std::size_t>(rank)]);
    Programs programs = draw_programs(draw_, static_cast<int>(ranks.size()));
    Forest forest(std::move(programs), hosts, 1 + draw_.below(5), draw_);
    sets_.push_back({std::move(ranks), std::move(forest)});
  }

  void add_part() {
    std::vector<Rank> ranks;
    for (Rank rank = 0; rank < ranks_; ++rank) {
      if (draw_.one_in(2)) ranks.push_back(rank);
    }
    if (ranks.size() > 1) add_set(std::move(ranks));
  }

  // The first one is lost; whoever is told of it, or notices it, is at an end as well.
  void plan_death() {
    dies_ = true;
    for (Rank rank = 0; rank < ranks_; ++rank) events_.push_back({Event::kDie, rank});
  }

  void plan_sets() {
    for (std::size_t s = 1; s < sets_.size(); ++s) {
      Forest& forest = sets_[s].forest;
      for (int m = 0; m < forest.size(); ++m) {
        if (!draw_.one_in(2)) continue;
        forest.member(m).there = false;
        events_.push_back({Event::kAdd, m, s});
      }
      sets_[s].removed = draw_.one_in(4);
      if (sets_[s].removed) events_.push_back({Event::kRemove, draw_.below(forest.size()), s});
    }
  }

  void run() {
    for (bool wants = false;;) {
      if (!events_.empty() && draw_.one_in(8 * ranks_)) next_event();
      Forest& forest = sets_[static_cast<std::size_t>(draw_.below(static_cast<int>(sets_.size())))].forest;
      if (forest.move()) continue;
      if (std::any_of(sets_.begin(), sets_.end(), [](Set& set) { return set.forest.move(); })) continue;
      if (!events_.empty()) {
        next_event();
      } else if (!std::exchange(wants, true)) {
        for (Set& set : sets_) set.forest.want_all();
      } else {
        return;
      }
    }
  }

  void next_event() {
    const Event event = events_.back();
    events_.pop_back();
    switch (event.kind) {
      case Event::kAdd: sets_[event.set].forest.member(event.number).there = true; return;
      case Event::kRemove: sets_[event.set].forest.leave(event.number); return;
      case Event::kLeave: return each_of(event.number, [](Forest& forest, int m) { forest.leave(m); });
      case Event::kDie: return each_of(event.number, [](Forest& forest, int m) { forest.stop(m); });
    }
  }

  // In all of its process sets.
  template <class Act>
  void each_of(Rank rank, Act act) {
    for (Set& set : sets_) {
      const auto found = std::find(set.ranks.begin(), set.ranks.end(), rank);
      if (found != set.ranks.end()) act(set.forest, static_cast<int>(found - set.ranks.begin()));
    }
  }

  bool is_left(const Set& set) const {
    return set.removed || std::any_of(left_.begin(), left_.end(), [&](Rank rank) {
             return std::find(set.ranks.begin(), set.ranks.end(), rank) != set.ranks.end();
           });
  }

  std::string flaw_of_member(Set& set, int m) {
    Forest::Member& own = set.forest.member(m);
    const bool ends = is_left(set);
    if (!dies_ && own.ended != ends) return own.ended ? "its tree has ended" : "its tree has not ended";
    if (dies_ && own.ended && !ends) return "its tree has ended";
    if (!dies_ && own.sums != set.forest.member(0).sums) return "another sum than on member 0";
    if (std::string sum = wrong_sum(set.forest, m); !sum.empty()) return sum;
    if (!dies_ && ends && own.tree.end_reason()->member != set.forest.member(0).tree.end_reason()->member) {
      return "it knows of another one that has left";
    }
    return difference(set.forest, set.forest.announced(), m, own.ended, dies_ && !own.ended);
  }

  Draw draw_;
  int ranks_ = 0;
  std::vector<int> host_of_;
  std::vector<Set> sets_;
  std::vector<Event> events_;
  std::vector<Rank> left_;
  bool dies_ = false;
};

}  // namespace

TEST_CASE("decisions along a tree are those of logs that each sends to each, with process sets and deaths") {
  const std::uint64_t only = from_environment("RINGCORE_TREE_SEED", 0);
  const std::uint64_t count = only != 0 ? 1 : from_environment("RINGCORE_TREE_SEEDS", 300);
  int failures = 0;
  for (std::uint64_t i = 0; failures < 3 && i < count; ++i) {
    const std::uint64_t seed = std::max<std::uint64_t>(only, 1) + i;
    const std::string flaw = Job(seed, 64).flaw();
    if (flaw.empty()) continue;
    MESSAGE("seed " << seed << ", " << flaw);
    ++failures;
  }
  CHECK(failures == 0);
}

TEST_CASE("a tree has a leader a host, few children, and every member once") {
  std::vector<int> host_of;
  for (int m = 0; m < 96; ++m) host_of.push_back(m % 12);  // eight ranks on each of twelve hosts
  std::vector<int> seen(96);
  int roots = 0;
  for (int m = 0; m < 96; ++m) {
    const TreeShape shape = TreeShape::make(host_of, m);
    CHECK(shape.order[static_cast<std::size_t>(shape.begin)] == m);
    roots += shape.is_root() ? 1 : 0;
    CHECK(shape.children.size() <= 7 + TreeShape::kDegree);
    int covered = 1;
    for (const TreeShape::Child& child : shape.children) {
      ++seen[static_cast<std::size_t>(child.member)];
      CHECK(TreeShape::make(host_of, child.member).parent == m);
      CHECK(child.begin == shape.begin + covered);
      covered += child.end - child.begin;
    }
    CHECK(covered == shape.end - shape.begin);
  }
  CHECK(roots == 1);
  CHECK(std::count(seen.begin(), seen.end(), 1) == 95);
}

TEST_CASE("small data is summed up along a tree: every member gets the same bits, whoever comes first") {
  constexpr int kMembers = 21;
  std::vector<int> host_of;
  for (int m = 0; m < kMembers; ++m) host_of.push_back(m / 3);
  Sums first;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Programs programs(kMembers);
    for (int m = 0; m < kMembers; ++m) {
      for (int i = 0; i < 4; ++i) {
        Entry& entry =
            programs[static_cast<std::size_t>(m)].emplace_back(entry_for(tensor("x" + std::to_string(i), 3)));
        give_data(entry, m, kMembers);
      }
    }
    Draw draw(seed);
    Forest forest(programs, host_of, TreeShape::kDegree, draw);
    forest.run();
    if (seed == 1) first = forest.member(0).sums;
    REQUIRE(first.size() == 4);
    for (int m = 0; m < kMembers; ++m) CHECK(forest.member(m).sums == first);
  }
}

TEST_CASE("along a tree, operations that all know cost a few bytes") {
  constexpr int kMembers = 256;
  constexpr int kOperations = 50;
  std::vector<int> host_of(kMembers);
  std::iota(host_of.begin(), host_of.end(), 0);
  Programs programs(kMembers);
  for (int step = 0; step < 2; ++step) {
    for (int i = 0; i < kOperations; ++i) {
      const Entry entry = entry_for(tensor("gradient " + std::to_string(i), 10));
      for (auto& program : programs) program.push_back(entry);
    }
  }
  Draw draw(1);
  Forest forest(programs, host_of, TreeShape::kDegree, draw);
  forest.run();
  for (int m = 0; m < kMembers; ++m) {
    CHECK(forest.member(m).decided.size() == 2 * kOperations);
    // Each record with one item; the first step describes all of them.
    CHECK(forest.member(m).records <= 2 * kOperations * (1 + TreeShape::kDegree) + 10);
  }
}

TEST_CASE("a record of the tree that no correct member sends is refused") {
  const std::vector<int> host_of{0, 1, 2};
  const auto x = tensor("x", 3);
  const auto record_of = [&](int begin, int end, const Entry& entry) {
    TreeWriter writer(1, 2);
    writer.add({.begin = begin, .end = end, .entry = entry});
    return writer.take().front();
  };
  const auto refused = [&](int from, const std::vector<std::byte>& body) {
    AgreementTree tree(TreeShape::make(host_of, 0));
    CHECK_THROWS_AS(tree.receive(from, body), Error);
  };
  const std::vector<std::byte> good = record_of(1, 2, entry_for(x));
  AgreementTree(TreeShape::make(host_of, 0)).receive(1, good);
  for (std::size_t bytes = 1; bytes < good.size(); ++bytes) refused(1, {good.begin(), good.begin() + bytes});
  std::mt19937 choose(1);
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::byte> changed = good;
    for (int i = 0; i < 2; ++i) changed[choose() % changed.size()] = static_cast<std::byte>(choose());
    try {
      AgreementTree(TreeShape::make(host_of, 0)).receive(1, changed);
    } catch (const Error& error) {
      REQUIRE(error.kind() == ErrorKind::kProtocol);
    }
  }
  refused(1, record_of(2, 3, entry_for(x)));  // of somebody else's member
  refused(1, record_of(0, 3, entry_for(x)));
  Entry with_data = entry_for(x);
  with_data.payload.resize(8);
  refused(1, record_of(1, 2, with_data));
  Entry says_so = entry_for(x);
  says_so.flags |= engine::kEager;
  refused(1, record_of(1, 2, says_so));
  TreeWriter of_all(0, 3);
  of_all.add({.kind = TreeItem::Kind::kAlike});
  refused(1, of_all.take().front());
  // A leaf that never said anything is told that all said the same.
  TreeWriter alike(0, 3);
  alike.add({.kind = TreeItem::Kind::kAlike});
  AgreementTree leaf(TreeShape::make(host_of, 2));
  CHECK_THROWS_AS(leaf.receive(0, alike.take().front()), Error);
  CHECK_THROWS_AS(leaf.receive(1, good), Error);
}
