// Logs that travel along a tree, beside the same logs where each member sends to each: the decisions are the same.
//
//   RINGCORE_TREE_SEED=123 ringcore_tests -tc="*along a tree*"
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <numeric>
#include <random>
#include <string>

#include "engine/agreement_tree.hpp"
#include "engine/tree_data.hpp"
#include "entries.hpp"
#include "from_environment.hpp"

using namespace ringcore;
using namespace ringcore::engine;
using testing::entry_for;
using testing::from_environment;
using testing::tensor;

namespace {

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : generator_(seed) {}
  int below(int bound) { return static_cast<int>(generator_() % static_cast<unsigned>(bound)); }
  bool one_in(int chances) { return below(chances) == 0; }
  std::mt19937_64& generator() { return generator_; }

 private:
  std::mt19937_64 generator_;
};

// What each member announces, in order. Most of it is alike; some members swap, leave out, misfit, give up, join, or stop.
using Programs = std::vector<std::vector<Entry>>;

Entry drawn_operation(Draw& draw, int members, int index) {
  constexpr Collective kKinds[] = {Collective::kAllreduce, Collective::kAllreduce, Collective::kAllgather,
                                   Collective::kBroadcast, Collective::kBarrier,   Collective::kAlltoall};
  const Collective kind = kKinds[draw.below(6)];
  const int root = draw.one_in(20) ? members : draw.below(members);
  Entry entry = entry_for(tensor("t" + std::to_string(index % 7), static_cast<std::uint64_t>(draw.below(5)), kind,
                                 kind == Collective::kBroadcast ? root : 0));
  if (draw.one_in(3)) entry.priority = draw.below(9) - 4;
  if (draw.one_in(4)) entry.flags |= kFlush;
  if (draw.one_in(4)) entry.flags |= kInPlace;
  if (draw.one_in(3)) entry.location = static_cast<std::uint64_t>(draw.below(3));
  return entry;
}

// What one member makes of the operation that all announce.
Entry own_form(Draw& draw, Entry entry, int members) {
  if (draw.one_in(40)) {
    Entry other = entry_for(tensor(entry.descriptor->name, 77));
    return other;
  }
  if (draw.one_in(30)) entry.location += 1;
  if (draw.one_in(30)) entry.flags ^= kFlush;
  if (entry.descriptor->collective == Collective::kAllgather && draw.one_in(8)) entry.rows += 3;
  if (entry.descriptor->collective == Collective::kAlltoall) {
    entry.splits.assign(static_cast<std::size_t>(members), 1);
    if (draw.one_in(10)) entry.splits[0] = 2;
    entry.rows = static_cast<std::uint64_t>(members) + (draw.one_in(10) ? 1 : 0);
  }
  return entry;
}

Entry cancel_of(const Entry& operation, int member) {
  Entry entry{.type = RecordType::kCancel, .flags = kFlush, .name_hash = operation.name_hash};
  const std::string text = "rank " + std::to_string(member) + " gave up";
  const auto bytes = std::as_bytes(std::span(text));
  entry.payload.assign(bytes.begin(), bytes.end());
  return entry;
}

Entry blocked_in(const Entry& operation) {
  Entry entry{.type = RecordType::kNoop, .flags = kBlocked};
  entry.name_hash = operation.name_hash;
  return entry;
}

// The data that a member takes along with its announcement.
void give_data(Entry& entry, int member) {
  if (entry.type != RecordType::kOperation || !may_carry_data(*entry.descriptor)) return;
  entry.flags |= kEager;
  const std::vector<float> data(entry.descriptor->shape.elements(), 0.1F + static_cast<float>(member));
  const auto bytes = std::as_bytes(std::span(data));
  entry.payload.assign(bytes.begin(), bytes.end());
}

Programs draw_programs(Draw& draw, int members) {
  Programs programs(static_cast<std::size_t>(members));
  const int steps = 1 + draw.below(12);
  const bool strict = draw.one_in(3);  // nothing but the same on all
  const int join_at = draw.one_in(4) ? draw.below(steps) : -1;
  for (int step = 0; step < steps; ++step) {
    const Entry operation = drawn_operation(draw, members, step);
    for (int m = 0; m < members; ++m) {
      std::vector<Entry>& program = programs[static_cast<std::size_t>(m)];
      if (step == join_at && !strict && draw.one_in(2)) program.push_back({.type = RecordType::kJoin});
      if (!strict && draw.one_in(25)) continue;
      program.push_back(strict ? operation : own_form(draw, operation, members));
      if (step % 3 == 0) give_data(program.back(), m);
      if (!strict && draw.one_in(30)) program.push_back(cancel_of(operation, m));
      if (!strict && draw.one_in(30)) program.push_back({.type = RecordType::kNoop, .flags = kFlush});
      if (!strict && draw.one_in(10)) program.push_back(blocked_in(operation));
      if (!strict && draw.one_in(10) && program.size() > 1) std::swap(program.back(), program[program.size() - 2]);
    }
  }
  return programs;
}

std::string text_of(const Contribution& contribution) {
  std::string text = contribution.present ? " " : " absent";
  text += std::to_string(contribution.flags) + "/" + std::to_string(contribution.signature) + "/" +
          std::to_string(contribution.rows) + "/" + std::to_string(contribution.location);
  for (const std::uint64_t split : contribution.splits) text += "," + std::to_string(split);
  return text;
}

std::string text_of(const Decision& decision, int members) {
  switch (decision.kind) {
    case Decision::Kind::kRelease: {
      Descriptor described = *decision.release.descriptor;
      if (described.has_free_rows()) described.shape.extent[0] = 0;  // whose it is depends on who described it first
      std::string text =
          "release " + described.to_string() + " of priority " + std::to_string(decision.release.priority);
      for (int m = 0; m < members; ++m) text += text_of(decision.release.of(static_cast<std::size_t>(m)));
      return text;
    }
    case Decision::Kind::kFail: return "fail " + std::to_string(decision.name_hash) + ": " + decision.error->what();
    case Decision::Kind::kStandstill: return "standstill of " + std::to_string(decision.member);
    case Decision::Kind::kFlush: return "flush";
    case Decision::Kind::kJoined: return "joined, last " + std::to_string(decision.last_joined);
  }
  return "";
}

std::vector<Rank> ranks_up_to(int members) {
  std::vector<Rank> ranks(static_cast<std::size_t>(members));
  std::iota(ranks.begin(), ranks.end(), 100);
  return ranks;
}

using Sums = std::vector<std::pair<std::string, std::vector<std::byte>>>;

void decide(Negotiation& negotiation, std::vector<std::string>& decided, Sums& sums) {
  std::vector<Decision> decisions;
  negotiation.decide(decisions);
  for (const Decision& decision : decisions) {
    if (decision.kind == Decision::Kind::kRelease && decision.release.sum != nullptr) {
      sums.emplace_back(decision.release.descriptor->name, *decision.release.sum);
    }
  }
  for (const Decision& decision : decisions)
    decided.push_back(text_of(decision, static_cast<int>(negotiation.members().size())));
}

// What the member decides when all entries come to it one by one. `ends`: and no others come behind them.
std::vector<std::string> decided_flat(const Programs& programs, int self, Negotiation& negotiation, bool ends) {
  std::vector<std::string> decided;
  Sums sums;
  std::size_t longest = 0;
  for (const auto& program : programs) longest = std::max(longest, program.size());
  for (std::size_t k = 0; k < longest; ++k) {
    for (std::size_t i = 0; i < programs.size(); ++i) {
      // Beginning with this rank, as nobody hears of its own entries before it.
      const std::size_t m = (i + static_cast<std::size_t>(self)) % programs.size();
      if (k >= programs[m].size()) continue;
      Entry entry = programs[m][k];
      drop_data(entry);
      negotiation.append(static_cast<int>(m), std::move(entry));
    }
  }
  decide(negotiation, decided, sums);
  for (std::size_t m = 0; ends && m < programs.size(); ++m) negotiation.leave(static_cast<int>(m));
  decide(negotiation, decided, sums);
  return decided;
}

// All members, and what is on its way between them.
class Forest {
 public:
  Forest(const Programs& programs, const std::vector<int>& host_of, int degree, Draw& draw)
      : programs_(programs), draw_(draw) {
    const int members = static_cast<int>(programs.size());
    for (int m = 0; m < members; ++m) {
      members_.push_back({.tree = AgreementTree(TreeShape::make(host_of, m, degree)),
                          .negotiation = Negotiation(ranks_up_to(members), m)});
    }
  }

  // Until nothing more happens; a member that waits then wants to see everything. Leavers leave sooner or later.
  void run(std::vector<int> leavers) {
    for (bool wants = false;;) {
      std::vector<int> able;
      for (int m = 0; m < size(); ++m) {
        if (member(m).next < program(m).size() && !member(m).tree.end_reason()) able.push_back(m);
      }
      if (!leavers.empty() && (draw_.one_in(8 * size()) || (able.empty() && ways_.empty()))) {
        leave(leavers.back());
        leavers.pop_back();
        continue;
      }
      const int chosen = draw_.below(static_cast<int>(able.size() + ways_.size()) + 1);
      if (able.empty() && ways_.empty()) {
        if (wants) return;
        wants = true;
        for (int m = 0; m < size(); ++m) {
          member(m).tree.want_open(true);
          settle(m);
          send(m);
        }
      } else if (chosen < static_cast<int>(able.size())) {
        announce(able[static_cast<std::size_t>(chosen)]);
      } else if (!ways_.empty()) {
        carry(draw_.below(static_cast<int>(ways_.size())));
      }
    }
  }

  struct Member {
    AgreementTree tree;
    Negotiation negotiation;
    std::size_t next = 0;  // entry of its program
    std::vector<std::string> decided;
    Sums sums;
    bool ended = false;
    std::size_t records = 0;
    std::size_t bytes = 0;
  };
  Member& member(int m) { return members_[static_cast<std::size_t>(m)]; }
  int size() const { return static_cast<int>(members_.size()); }

 private:
  using Message = std::vector<std::byte>;
  const std::vector<Entry>& program(int m) const { return programs_[static_cast<std::size_t>(m)]; }

  void announce(int m) {
    Member& own = member(m);
    const std::uint64_t position = own.negotiation.length(m);
    Entry entry = program(m)[own.next++];
    entry.position = position;
    own.tree.append(entry, position);
    drop_data(entry);
    own.negotiation.append(m, std::move(entry));
    settle(m);
    if (draw_.one_in(2)) send(m);
    if (own.next == program(m).size()) send(m);
  }

  void settle(int m) {
    Member& own = member(m);
    for (AgreementTree::Delivery& delivery : own.tree.take_delivered()) {
      if (delivery.alike) own.negotiation.append_alike(delivery.entry);
      for (const int each : delivery.members) own.negotiation.append(each, delivery.entry);
      if (draw_.one_in(2)) decide(own.negotiation, own.decided, own.sums);
    }
    if (own.tree.ended() && !std::exchange(own.ended, true)) {
      for (int each = 0; each < size(); ++each) own.negotiation.leave(each);
    }
    decide(own.negotiation, own.decided, own.sums);
  }

  void send(int m) {
    Member& own = member(m);
    for (Message& body : own.tree.take_up()) put(m, own.tree.shape().parent, std::move(body));
    for (const Message& body : own.tree.take_down()) {
      for (const TreeShape::Child& child : own.tree.shape().children) put(m, child.member, body);
    }
  }

  void put(int from, int to, Message body) {
    ++member(from).records;
    member(from).bytes += body.size();
    ways_[{from, to}].push_back(std::move(body));
  }

  void leave(int m) {
    member(m).tree.end({.member = m, .first_left = m, .why = "it had enough"});
    settle(m);
    send(m);
  }

  void carry(int index) {
    const auto way = std::next(ways_.begin(), index);
    const auto [from, to] = way->first;
    const Message body = std::move(way->second.front());
    way->second.pop_front();
    if (way->second.empty()) ways_.erase(way);
    member(to).tree.receive(from, body);
    settle(to);
    send(to);
  }

  const Programs& programs_;
  Draw& draw_;
  std::vector<Member> members_;
  std::map<std::pair<int, int>, std::deque<Message>> ways_;
};

// What differs in one drawn job, or nothing.
std::string flaw_of(std::uint64_t seed, int most_members) {
  Draw draw(seed);
  const int members = 2 + draw.below(draw.one_in(4) ? most_members - 1 : std::min(most_members, 8) - 1);
  Programs programs = draw_programs(draw, members);
  std::vector<int> host_of;
  const int hosts = 1 + draw.below(members);
  for (int m = 0; m < members; ++m) host_of.push_back(draw.below(hosts));
  Forest forest(programs, host_of, 1 + draw.below(5), draw);
  std::vector<int> leavers;
  if (draw.one_in(3)) leavers.push_back(draw.below(members));
  if (draw.one_in(6)) leavers.push_back(draw.below(members));
  forest.run(leavers);
  // Who is told of the end announces nothing more.
  for (int m = 0; m < members; ++m) programs[static_cast<std::size_t>(m)].resize(forest.member(m).next);
  for (int m = 0; m < members; ++m) {
    Negotiation flat(ranks_up_to(members), m);
    const std::vector<std::string> expected = decided_flat(programs, m, flat, !leavers.empty());
    Forest::Member& own = forest.member(m);
    const std::string where = "seed " + std::to_string(seed) + ", member " + std::to_string(m) + ": ";
    if (own.ended == leavers.empty()) return where + (own.ended ? "its tree has ended" : "its tree has not ended");
    if (own.sums != forest.member(0).sums) return where + "another sum than on member 0";
    for (const auto& [name, sum] : own.sums) {
      float value = 0;
      std::memcpy(&value, sum.data(), sizeof(value));
      const float right = 0.1F * static_cast<float>(members) + static_cast<float>(members * (members - 1)) / 2;
      if (std::abs(value - right) > 1e-4F * right)
        return where + "the sum of '" + name + "' is " + std::to_string(value);
    }
    if (own.ended && own.tree.end_reason()->member != forest.member(0).tree.end_reason()->member) {
      return where + "it knows of another one that has left";
    }
    for (std::size_t i = 0; i < std::max(expected.size(), own.decided.size()); ++i) {
      const std::string right = i < expected.size() ? expected[i] : "nothing";
      const std::string got = i < own.decided.size() ? own.decided[i] : "nothing";
      if (right != got) return where + "decided\n  " + got + "\n  instead of\n  " + right;
    }
    for (const Entry& entry : programs[static_cast<std::size_t>(m)]) {
      if (flat.missing(entry.name_hash) != own.negotiation.missing(entry.name_hash))
        return where + "others are missing";
    }
    for (int each = 0; each < members; ++each) {
      if (flat.length(each) != own.negotiation.length(each)) return where + "a log has another length";
    }
  }
  return "";
}

}  // namespace

TEST_CASE("decisions along a tree are those of logs that each sends to each") {
  const std::uint64_t only = from_environment("RINGCORE_TREE_SEED", 0);
  const std::uint64_t count = only != 0 ? 1 : from_environment("RINGCORE_TREE_SEEDS", 300);
  int failures = 0;
  for (std::uint64_t seed = std::max<std::uint64_t>(only, 1); failures < 3 && count > 0; ++seed) {
    const std::string flaw = flaw_of(seed, 64);
    if (!flaw.empty()) MESSAGE(flaw);
    failures += flaw.empty() ? 0 : 1;
    if (seed >= only + count) break;
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
        give_data(entry, m);
      }
    }
    Draw draw(seed);
    Forest forest(programs, host_of, TreeShape::kDegree, draw);
    forest.run({});
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
  forest.run({});
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
