// The trees of one process set's members as tests drive them: logs that are drawn, what is on its way between members,
// and the same logs where each sends to each.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/agreement_tree.hpp"
#include "engine/tree_data.hpp"
#include "entries.hpp"

namespace ringcore::testing {

using namespace ringcore::engine;

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

inline Entry drawn_operation(Draw& draw, int members, int index) {
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
inline Entry own_form(Draw& draw, Entry entry, int members) {
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

inline Entry cancel_of(const Entry& operation, int member) {
  Entry entry{.type = RecordType::kCancel, .flags = kFlush, .name_hash = operation.name_hash};
  const std::string text = "rank " + std::to_string(member) + " gave up";
  const auto bytes = std::as_bytes(std::span(text));
  entry.payload.assign(bytes.begin(), bytes.end());
  return entry;
}

inline Entry blocked_in(const Entry& operation) {
  Entry entry{.type = RecordType::kNoop, .flags = kBlocked};
  entry.name_hash = operation.name_hash;
  return entry;
}

// What the members' data adds up to.
inline float sum_of_data(int members) {
  return 0.1F * static_cast<float>(members) + static_cast<float>(members * (members - 1)) / 2;
}

// What a member gives; the root of a broadcast the whole sum.
inline float own_value(const Descriptor& descriptor, int member, int members) {
  if (descriptor.collective != Collective::kBroadcast) return 0.1F + static_cast<float>(member);
  return descriptor.root == member ? sum_of_data(members) : 0.0F;
}

// The data that a member takes along with its announcement.
inline void give_data(Entry& entry, int member, int members) {
  if (entry.type != RecordType::kOperation || !may_carry_data(*entry.descriptor) || entry.rows == 0) return;
  entry.flags |= kEager;
  const std::vector<float> data(entry.rows * entry.descriptor->shape.row_elements(),
                                own_value(*entry.descriptor, member, members));
  const auto bytes = std::as_bytes(std::span(data));
  entry.payload.assign(bytes.begin(), bytes.end());
}

inline Programs draw_programs(Draw& draw, int members) {
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
      if (step % 3 == 0) give_data(program.back(), m, members);
      if (!strict && draw.one_in(30)) program.push_back(cancel_of(operation, m));
      if (!strict && draw.one_in(30)) program.push_back({.type = RecordType::kNoop, .flags = kFlush});
      if (!strict && draw.one_in(10)) program.push_back(blocked_in(operation));
      if (!strict && draw.one_in(10) && program.size() > 1) std::swap(program.back(), program[program.size() - 2]);
    }
  }
  return programs;
}

inline std::string text_of(const Contribution& contribution) {
  std::string text = contribution.present ? " " : " absent";
  text += std::to_string(contribution.flags) + "/" + std::to_string(contribution.signature) + "/" +
          std::to_string(contribution.rows) + "/" + std::to_string(contribution.location);
  for (const std::uint64_t split : contribution.splits) text += "," + std::to_string(split);
  return text;
}

inline std::string text_of(const Decision& decision, int members) {
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
    case Decision::Kind::kOffer: return "offer";
    case Decision::Kind::kJoined: return "joined, last " + std::to_string(decision.last_joined);
  }
  return "";
}

inline std::vector<Rank> ranks_up_to(int members) {
  std::vector<Rank> ranks(static_cast<std::size_t>(members));
  std::iota(ranks.begin(), ranks.end(), 100);
  return ranks;
}

// What came along of all members.
struct Sum {
  std::shared_ptr<const Descriptor> descriptor;
  std::vector<std::byte> bytes;
  bool operator==(const Sum& other) const {
    return descriptor->signature() == other.descriptor->signature() && bytes == other.bytes;
  }
};
using Sums = std::vector<Sum>;

inline void decide(Negotiation& negotiation, std::vector<std::string>& decided, Sums& sums) {
  std::vector<Decision> decisions;
  negotiation.decide(decisions);
  for (const Decision& decision : decisions) {
    if (decision.kind == Decision::Kind::kRelease && decision.release.sum != nullptr) {
      sums.push_back({decision.release.descriptor, *decision.release.sum});
    }
  }
  for (const Decision& decision : decisions)
    decided.push_back(text_of(decision, static_cast<int>(negotiation.members().size())));
}

// What the member decides when all entries come to it one by one. `ends`: and no others come behind them.
inline std::vector<std::string> decided_flat(const Programs& programs, int self, Negotiation& negotiation, bool ends) {
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
  using Message = std::vector<std::byte>;
  struct Member {
    AgreementTree tree;
    Negotiation negotiation;
    bool there = true;  // has added the process set; what is sent to it before waits for it
    bool dead = false;  // says nothing more, and hears nothing: it has died, or knows that another one has
    std::size_t next = 0;  // entry of its program
    std::vector<std::string> decided;
    Sums sums;
    bool ended = false;
    std::size_t records = 0;
    std::size_t bytes = 0;
  };

  Forest(Programs programs, const std::vector<int>& host_of, int degree, Draw& draw)
      : programs_(std::move(programs)), draw_(draw) {
    const int members = static_cast<int>(programs_.size());
    for (int m = 0; m < members; ++m) {
      members_.push_back({.tree = AgreementTree(TreeShape::make(host_of, m, degree)),
                          .negotiation = Negotiation(ranks_up_to(members), m)});
    }
  }

  Member& member(int m) { return members_[static_cast<std::size_t>(m)]; }
  int size() const { return static_cast<int>(members_.size()); }
  // What the members have announced; whoever was told of the end announces nothing more.
  Programs announced() const {
    Programs said = programs_;
    for (std::size_t m = 0; m < said.size(); ++m) said[m].resize(members_[m].next);
    return said;
  }

  // Something drawn happens: a member announces, or a record arrives. False: nothing can.
  bool move() {
    std::vector<int> able;
    for (int m = 0; m < size(); ++m) {
      const Member& own = member(m);
      if (own.there && !own.dead && own.next < program(m).size() && !own.tree.end_reason()) able.push_back(m);
    }
    std::vector<Way> open;
    for (const auto& [way, messages] : ways_) {
      if (member(way.second).there) open.push_back(way);
    }
    if (able.empty() && open.empty()) return false;
    const auto chosen = static_cast<std::size_t>(draw_.below(static_cast<int>(able.size() + open.size())));
    if (chosen < able.size()) {
      announce(able[chosen]);
    } else {
      carry(open[chosen - able.size()]);
    }
    return true;
  }

  void want_all() {
    for (int m = 0; m < size(); ++m) {
      if (!member(m).there || member(m).dead) continue;
      member(m).tree.want_open(true);
      settle(m);
      send(m);
    }
  }

  void leave(int m) {
    if (member(m).dead) return;
    member(m).there = true;
    member(m).tree.end({.member = m, .first_left = m, .why = "it had enough"});
    settle(m);
    send(m);
  }

  void stop(int m) {
    member(m).dead = true;
    std::erase_if(ways_, [m](const auto& way) { return way.first.second == m; });
  }

  // Until nothing more happens; a member that waits then wants to see everything.
  void run() {
    while (move()) {
    }
    want_all();
    while (move()) {
    }
  }

 private:
  using Way = std::pair<int, int>;
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
    if (member(to).dead) return;
    ++member(from).records;
    member(from).bytes += body.size();
    ways_[{from, to}].push_back(std::move(body));
  }

  void carry(const Way& way) {
    const auto [from, to] = way;
    std::deque<Message>& messages = ways_[way];
    const Message body = std::move(messages.front());
    messages.pop_front();
    if (messages.empty()) ways_.erase(way);
    member(to).tree.receive(from, body);
    settle(to);
    send(to);
  }

  Programs programs_;
  Draw& draw_;
  std::vector<Member> members_;
  std::map<Way, std::deque<Message>> ways_;
};

// How the decisions of a member differ from those of logs that each sends to each, or nothing. Of an agreement that broke
// off they may be the first ones.
inline std::string difference(Forest& forest, const Programs& programs, int m, bool ends, bool broken) {
  Negotiation flat(ranks_up_to(forest.size()), m);
  const std::vector<std::string> expected = decided_flat(programs, m, flat, ends);
  Forest::Member& own = forest.member(m);
  for (std::size_t i = 0; i < (broken ? own.decided.size() : std::max(expected.size(), own.decided.size())); ++i) {
    const std::string right = i < expected.size() ? expected[i] : "nothing";
    const std::string got = i < own.decided.size() ? own.decided[i] : "nothing";
    if (right != got) return "decided\n  " + got + "\n  instead of\n  " + right;
  }
  if (broken) return "";
  for (const Entry& entry : programs[static_cast<std::size_t>(m)]) {
    if (flat.missing(entry.name_hash) != own.negotiation.missing(entry.name_hash)) return "others are missing";
  }
  for (int each = 0; each < forest.size(); ++each) {
    if (flat.length(each) != own.negotiation.length(each)) return "a log has another length";
  }
  return "";
}

// What is wrong with the sums that a member got of data that came along, or nothing. What is gathered is what each gave, in
// the order of the members.
inline std::string wrong_sum(Forest& forest, int m) {
  const int members = forest.size();
  for (const auto& [descriptor, sum] : forest.member(m).sums) {
    const bool gathers = descriptor->collective == Collective::kAllgather;
    const std::size_t block = gathers ? sum.size() / static_cast<std::size_t>(members) : sum.size();
    for (std::size_t at = 0; at < sum.size(); at += sizeof(float)) {
      float value = 0;
      std::memcpy(&value, sum.data() + at, sizeof(value));
      const float right =
          gathers ? own_value(*descriptor, static_cast<int>(at / block), members) : sum_of_data(members);
      if (std::abs(value - right) > 1e-4F * right) {
        return "the sum of '" + descriptor->name + "' is " + std::to_string(value) + " at byte " + std::to_string(at);
      }
    }
  }
  return "";
}

}  // namespace ringcore::testing
