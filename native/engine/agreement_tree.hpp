// How the logs of a process set with many members reach all of them: along a tree, instead of from each to each.
//
// What holds is what holds among few: every member gets the entries of every log, in the order of that log. Negotiation
// needs no more to decide the same. The tree only spares what nobody needs to be told separately:
//
// - Upwards, what a subtree has at one position is held back until all of its members have something there. Where they
//   all say the same, that is one entry; else runs of members that do.
// - The root sends what has come together down to everybody. Where all members said the same, it is enough to say so.
//   What comes down comes in one order: also what a member itself has said counts as known to all once it comes back.
// - Somebody may have to see what is announced though not by all: to fill its log, to say who is missing, to join. It
//   wants the tree to be open; as long as somebody does, nothing is held back.
// - A member that leaves, or removes the process set, ends the tree. Its wish goes up, and the root tells all; from then on
//   nobody announces anything. What everybody had announced before goes up and comes down as ever, behind it that this
//   was all; and when the root has that of all, it tells them. Then all members know all logs to their ends.
//
// This class knows no links, no clock and no thread: records go in and come out.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "engine/negotiation.hpp"
#include "engine/tree_items.hpp"
#include "engine/tree_shape.hpp"

namespace ringcore::engine {

class AgreementTree {
 public:
  using Bodies = std::vector<std::vector<std::byte>>;

  // What all know now.
  struct Delivery {
    bool alike = false;  // the next entry of all other members is what this one has announced at its own
    std::vector<int> members;  // otherwise of these, this one left out
    Entry entry;
  };

  explicit AgreementTree(TreeShape shape);

  const TreeShape& shape() const { return shape_; }

  // The next entry of this member's log.
  void append(Entry entry, std::uint64_t position);
  // Whether this member wants to see what is announced, though not by all; and whether that is shown.
  void want_open(bool wants);
  bool open() const { return open_; }
  // This member leaves. Go on until the tree has ended: others are reached through this member.
  void end(TreeEnd why);
  // Who ends the tree, once all are told: from then on this member appends nothing.
  const std::shared_ptr<const TreeEnd>& end_reason() const { return reason_; }
  bool ended() const { return ended_; }
  // A neighbour has left that did not end the tree: nothing more will be decided. All are told.
  void break_off(TreeEnd why);
  bool broken() const { return broken_; }
  bool is_neighbour(int member) const;

  // This member has the result of the operation of that number; and of which ones all members have it.
  void carry_out(std::uint64_t number);
  std::vector<std::uint64_t> take_carried_out() { return std::exchange(carried_out_, {}); }

  // A record of a neighbour. Throws Error{kProtocol}.
  void receive(int member, std::span<const std::byte> body);

  // Nothing that this member has announced waits for an answer.
  bool answered() const { return unanswered_.empty(); }
  bool has_news() const { return !up_.empty() || !down_.empty() || !relayed_.empty(); }
  // For the parent, and for each child.
  Bodies take_up() { return up_.take(); }
  Bodies take_down();
  std::vector<Delivery> take_delivered() { return std::exchange(delivered_, {}); }

 private:
  using Reason = std::shared_ptr<const TreeEnd>;

  struct Round {
    int covered = 0;  // members of the subtree that have something there
    std::vector<TreeItem> items;
  };
  struct Below {
    Below(const TreeShape::Child& child, int members) : shape(child), reader(child.begin, child.end, members) {}
    TreeShape::Child shape;
    TreeReader reader;
    bool wants_open = false;
    bool has_ended = false;  // nothing more comes from there
  };

  void receive_from_below(Below& child, std::span<const std::byte> body);
  void hold(TreeItem item);
  void pass_until(std::uint64_t position);
  void pass_all();
  void pass_round(std::vector<TreeItem> items);
  void pass(TreeItem item);
  void tell_wants();
  void ask_for_end(Reason why);
  void begin_end(Reason why);
  void break_off_for(Reason why);
  void end_if_all_have();
  void come_down(TreeItem& item);
  void deliver_alike(const TreeItem& item);
  void deliver_sum(TreeItem& item);
  void deliver_entry(TreeItem& item);
  void take_answer(std::uint64_t position);
  void note_result(int member, std::uint64_t number);
  void take_results(const TreeItem& item);

  TreeShape shape_;
  std::vector<Below> children_;
  TreeReader from_above_;
  TreeWriter up_;
  TreeWriter down_;  // of the root
  Bodies relayed_;  // of all others
  std::map<std::uint64_t, Round> held_;  // by position
  std::deque<std::pair<std::uint64_t, Entry>> unanswered_;
  std::vector<Delivery> delivered_;
  std::map<std::uint64_t, std::vector<int>> results_;  // by number: who of this member and its children has it
  std::set<std::uint64_t> own_results_;  // that not all are known to have
  std::vector<std::uint64_t> carried_out_;
  bool wants_open_ = false;
  bool told_open_ = false;
  bool open_ = false;
  bool asked_for_end_ = false;
  bool said_last_ = false;
  Reason reason_;
  bool ended_ = false;
  bool broken_ = false;
};

}  // namespace ringcore::engine
