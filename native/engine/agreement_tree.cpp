#include "engine/agreement_tree.hpp"

#include <algorithm>
#include <numeric>

#include "engine/tree_data.hpp"

namespace ringcore::engine {
namespace {

// Of so many operations at a time some members have the result, and others do not. Nobody has as many under way.
constexpr std::size_t kMostResults = std::size_t{1} << 20;

}  // namespace

AgreementTree::AgreementTree(TreeShape shape)
    : shape_(std::move(shape)),
      from_above_(0, shape_.size(), shape_.size()),
      up_(shape_.begin, shape_.end),
      down_(0, shape_.size()) {
  for (const TreeShape::Child& child : shape_.children) children_.emplace_back(child, shape_.size());
}

void AgreementTree::append(Entry entry, std::uint64_t position) {
  unanswered_.emplace_back(position, entry);
  hold({.begin = shape_.begin, .end = shape_.begin + 1, .position = position, .entry = std::move(entry)});
  if (open_) pass_all();
}

void AgreementTree::want_open(bool wants) {
  wants_open_ = wants;
  tell_wants();
}

void AgreementTree::end(TreeEnd why) { ask_for_end(std::make_shared<const TreeEnd>(std::move(why))); }

// Of several who leave at a time all are told the first that the root has heard of.
void AgreementTree::ask_for_end(Reason why) {
  if (asked_for_end_ || reason_) return;
  asked_for_end_ = true;
  const TreeItem item{.kind = TreeItem::Kind::kEnd, .why = why};
  if (!shape_.is_root()) return up_.add(item);
  down_.add(item);
  begin_end(std::move(why));
}

// From here on nothing is held back.
void AgreementTree::begin_end(Reason why) {
  reason_ = std::move(why);
  pass_all();
  end_if_all_have();
}

void AgreementTree::end_if_all_have() {
  const bool all = std::all_of(children_.begin(), children_.end(), [](const Below& child) { return child.has_ended; });
  if (!reason_ || !all || std::exchange(said_last_, true)) return;
  const TreeItem last{.kind = TreeItem::Kind::kLast};
  if (!shape_.is_root()) return up_.add(last);
  down_.add(last);
  ended_ = true;
}

void AgreementTree::break_off(TreeEnd why) { break_off_for(std::make_shared<const TreeEnd>(std::move(why))); }

void AgreementTree::break_off_for(Reason why) {
  if (ended_) return;
  ended_ = broken_ = true;
  held_.clear();
  const TreeItem end{.kind = TreeItem::Kind::kBroken, .why = why};
  reason_ = std::move(why);
  TreeWriter writer(0, shape_.size());
  writer.add(end);
  if (shape_.is_root()) return down_.add(end);
  up_.add(end);
  relayed_.push_back(writer.take().front());
}

bool AgreementTree::is_neighbour(int member) const {
  return member == shape_.parent || std::any_of(children_.begin(), children_.end(),
                                                [&](const Below& each) { return each.shape.member == member; });
}

void AgreementTree::receive(int member, std::span<const std::byte> body) {
  if (ended_) return;
  if (member == shape_.parent) {
    if (!children_.empty()) relayed_.emplace_back(body.begin(), body.end());
    for (TreeItem& item : from_above_.read(body)) come_down(item);
    return;
  }
  const auto child =
      std::find_if(children_.begin(), children_.end(), [&](const Below& each) { return each.shape.member == member; });
  if (child == children_.end()) throw Error(ErrorKind::kProtocol, "is no neighbour in the tree");
  receive_from_below(*child, body);
}

void AgreementTree::receive_from_below(Below& child, std::span<const std::byte> body) {
  for (TreeItem& item : child.reader.read(body)) {
    // Who has said its last may yet lose a neighbour that could not wait for the end.
    if (child.has_ended && item.kind != TreeItem::Kind::kBroken) {
      throw Error(ErrorKind::kProtocol, "goes on behind its end");
    }
    switch (item.kind) {
      case TreeItem::Kind::kEntry: hold(std::move(item)); break;
      case TreeItem::Kind::kAlike: throw Error(ErrorKind::kProtocol, "speaks for all members of the process set");
      case TreeItem::Kind::kOpen:
        child.wants_open = item.open;
        tell_wants();
        break;
      case TreeItem::Kind::kEnd: ask_for_end(item.why); break;
      case TreeItem::Kind::kLast:
        if (!reason_) throw Error(ErrorKind::kProtocol, "ends a tree that is not to end");
        child.has_ended = true;
        pass_all();
        end_if_all_have();
        break;
      case TreeItem::Kind::kBroken: return break_off_for(std::move(item.why));
      case TreeItem::Kind::kCarriedOut:
        for (std::uint64_t i = 0; i < item.count; ++i) note_result(child.shape.member, item.position + i);
        break;
    }
  }
  if (open_ || reason_) pass_all();
}

void AgreementTree::hold(TreeItem item) {
  if (ended_) return;
  const std::uint64_t position = item.position;
  Round& round = held_[position];
  round.covered += item.end - item.begin;
  round.items.push_back(std::move(item));
  if (round.covered >= shape_.end - shape_.begin) pass_until(position);
}

// What is held before that position belongs to members that have gone on: their logs stay in order.
void AgreementTree::pass_until(std::uint64_t position) {
  while (!held_.empty() && held_.begin()->first <= position) {
    pass_round(std::move(held_.extract(held_.begin()).mapped().items));
  }
}

void AgreementTree::pass_all() {
  if (!held_.empty()) pass_until(held_.rbegin()->first);
}

// Neighbours in the order of the tree that say the same are one item.
void AgreementTree::pass_round(std::vector<TreeItem> items) {
  std::stable_sort(items.begin(), items.end(), [](const TreeItem& a, const TreeItem& b) { return a.begin < b.begin; });
  // All of the subtree, or none: else what is summed up where would depend on who comes when.
  const int size = std::accumulate(items.begin(), items.end(), 0,
                                   [](int sum, const TreeItem& item) { return sum + item.end - item.begin; });
  const bool sums =
      size == shape_.end - shape_.begin &&
      std::all_of(items.begin(), items.end(), [&](const TreeItem& item) { return item.says_the_same(items.front()); });
  for (TreeItem& item : items) {
    if (!sums) drop_data(item.entry);
  }
  std::vector<TreeItem> runs;
  for (TreeItem& item : items) {
    if (!runs.empty() && runs.back().end == item.begin && runs.back().says_the_same(item)) {
      runs.back().end = item.end;
      if (carries_data(item.entry)) add_data(runs.back().entry, item.entry);
    } else {
      runs.push_back(std::move(item));
    }
  }
  for (TreeItem& run : runs) pass(std::move(run));
}

// Upwards; from the root on, down.
void AgreementTree::pass(TreeItem item) {
  if (ended_) return;
  if (!shape_.is_root()) return up_.add(item);
  const bool of_all = item.begin == 0 && item.end == shape_.size();
  if (item.kind == TreeItem::Kind::kEntry && of_all && !carries_data(item.entry)) item.kind = TreeItem::Kind::kAlike;
  down_.add(item);
  come_down(item);
}

void AgreementTree::tell_wants() {
  if (reason_) return;  // all is shown
  const bool wants = wants_open_ || std::any_of(children_.begin(), children_.end(),
                                                [](const Below& child) { return child.wants_open; });
  if (std::exchange(told_open_, wants) != wants) pass({.kind = TreeItem::Kind::kOpen, .open = wants});
}

void AgreementTree::come_down(TreeItem& item) {
  if (ended_) throw Error(ErrorKind::kProtocol, "goes on behind the end of the tree");
  switch (item.kind) {
    case TreeItem::Kind::kEntry: return deliver_entry(item);
    case TreeItem::Kind::kAlike: return deliver_alike(item);
    case TreeItem::Kind::kOpen:
      open_ = item.open;
      if (open_) pass_all();
      return;
    case TreeItem::Kind::kEnd: return begin_end(std::move(item.why));
    case TreeItem::Kind::kLast:
      if (!said_last_) throw Error(ErrorKind::kProtocol, "ends a tree in which others go on");
      ended_ = true;
      return;
    case TreeItem::Kind::kBroken: return break_off_for(std::move(item.why));
    case TreeItem::Kind::kCarriedOut: return take_results(item);
  }
}

void AgreementTree::carry_out(std::uint64_t number) {
  own_results_.insert(number);
  note_result(shape_.order[static_cast<std::size_t>(shape_.begin)], number);
}

// Where the tree ends nobody needs to hear of it any more: whoever ends it has heard that all have all results.
void AgreementTree::note_result(int member, std::uint64_t number) {
  if (ended_ || said_last_) return;
  std::vector<int>& members = results_[number];
  if (std::ranges::find(members, member) != members.end() || results_.size() > kMostResults) {
    throw Error(ErrorKind::kProtocol, "has results of operations that were never under way");
  }
  members.push_back(member);
  if (members.size() <= children_.size()) return;
  results_.erase(number);
  pass({.kind = TreeItem::Kind::kCarriedOut, .position = number});
}

void AgreementTree::take_results(const TreeItem& item) {
  for (std::uint64_t i = 0; i < item.count; ++i) {
    if (own_results_.erase(item.position + i) == 0) {
      throw Error(ErrorKind::kProtocol, "says that all have a result that this rank has not");
    }
    carried_out_.push_back(item.position + i);
  }
}

void AgreementTree::deliver_alike(const TreeItem& item) {
  for (std::uint64_t i = 0; i < item.count; ++i) {
    if (unanswered_.empty()) throw Error(ErrorKind::kProtocol, "has an answer to what this rank never said");
    Delivery delivery{.alike = true, .members = {}, .entry = unanswered_.front().second};
    drop_data(delivery.entry);
    take_answer(item.position + i);
    delivered_.push_back(std::move(delivery));
  }
}

// The sum of all members' data.
void AgreementTree::deliver_sum(TreeItem& item) {
  const bool of_all = item.begin == 0 && item.end == shape_.size();
  if (!of_all || unanswered_.empty() || unanswered_.front().second.signature != item.entry.signature ||
      unanswered_.front().second.rows != item.entry.rows) {
    throw Error(ErrorKind::kProtocol, "has a sum for what this rank never said");
  }
  take_answer(item.position);
  Delivery delivery{.alike = true, .members = {}, .entry = std::move(item.entry)};
  delivery.entry.sum = std::make_shared<const std::vector<std::byte>>(data_of_all(delivery.entry, shape_.order));
  drop_data(delivery.entry);
  delivered_.push_back(std::move(delivery));
}

void AgreementTree::deliver_entry(TreeItem& item) {
  if (carries_data(item.entry)) return deliver_sum(item);
  Delivery delivery{.members = {}, .entry = std::move(item.entry)};
  for (int i = item.begin; i < item.end; ++i) {
    if (i != shape_.begin) delivery.members.push_back(shape_.order[static_cast<std::size_t>(i)]);
    if (i == shape_.begin) take_answer(item.position);
  }
  delivered_.push_back(std::move(delivery));
}

void AgreementTree::take_answer(std::uint64_t position) {
  if (unanswered_.empty() || unanswered_.front().first != position) {
    throw Error(ErrorKind::kProtocol, "has an answer to what this rank never said");
  }
  unanswered_.pop_front();
}

AgreementTree::Bodies AgreementTree::take_down() {
  return shape_.is_root() ? down_.take() : std::exchange(relayed_, {});
}

}  // namespace ringcore::engine
