// Process sets with many members: their logs go along a tree, see agreement_tree.hpp.
#include <algorithm>
#include <utility>

#include "engine/state.hpp"
#include "engine/tree_data.hpp"

namespace ringcore::engine {
namespace {

// Who waits for so long looks at what the others have announced. Shorter than anybody notices, and longer than ranks of
// a training loop commonly wait for the slowest of them, which has nothing to be looked at.
constexpr Nanoseconds kLookAfter = 20 * kMillisecond;
// Where a round takes that long anyway (the network is slow, or ranks outnumber cores), whoever waits looks only after
// several rounds' time: what is looked at brings no data along, and a plan for it takes longer still.
constexpr Nanoseconds kLongestRound = 100 * kMillisecond;
constexpr Nanoseconds kRounds = 4;
constexpr Nanoseconds kRoundWeight = 8;

}  // namespace

// The next entry of this rank's log. The first of several goes at once, the others together when the engine moves.
void Engine::append_to_tree(ProcessSet& set, Entry entry) {
  const bool first = set.tree->answered();
  const std::uint64_t position = set.negotiation.length(set.self);
  if (entry.type == RecordType::kJoin) set.tree->want_open(true);
  entry.position = position;
  set.tree->append(entry, position);
  drop_data(entry);  // what comes back is the sum of all
  set.negotiation.append(set.self, std::move(entry));
  set.undecided = true;
  settle_tree(set);
  if (first && set.tree != nullptr) send_along_tree(set);
}

// Whether the data of the operation goes along with its announcement.
bool Engine::goes_along_tree(const ProcessSet& set, const Operation& operation, bool registered) const {
  // Whether a plan does it depends on who comes when, and what it sums up in another order.
  return set.tree != nullptr && !settings_.execution.deterministic && settings_.eager_limit_bytes > 0 &&
         may_carry_data(operation.descriptor) && operation.bytes() > 0 &&
         is_eager(operation, set.peers.size(),
                  std::min(settings_.eager_limit_bytes, most_tree_data(operation.descriptor, set.peers.size())),
                  registered);
}

void Engine::send_along_tree(ProcessSet& set) {
  if (!set.tree->has_news()) return;
  const TreeShape& shape = set.tree->shape();
  for (const auto& body : set.tree->take_up()) send_tree_record(*set.peers[shape.parent], set.id, body);
  for (const auto& body : set.tree->take_down()) {
    for (const TreeShape::Child& child : shape.children) send_tree_record(*set.peers[child.member], set.id, body);
  }
}

void Engine::receive_tree(Peer& peer, const RecordView& record) {
  const ProcessSetId id = record.header.process_set;
  const bool removed = sets_.count(id) == 0;
  if (removed && set_numbers_.is_to_come(id)) return keep_early(peer, record);
  if (removed && removed_sets_.count(id) == 0) return;  // nobody is reached through this rank any more
  ProcessSet& set = removed ? *removed_sets_.at(id) : *sets_.at(id);
  if (set.peer_of(peer) == nullptr) {
    throw Error(ErrorKind::kProtocol, "is not a member of process set " + std::to_string(id));
  }
  if (set.tree == nullptr) return;
  set.tree->receive(set.member(peer.rank), record.payload);
  settle_tree(set);
}

// What has come goes into the logs.
void Engine::settle_tree(ProcessSet& set) {
  for (AgreementTree::Delivery& delivery : set.tree->take_delivered()) {
    if (delivery.alike) set.negotiation.append_alike(delivery.entry);
    for (const int member : delivery.members) set.negotiation.append(member, delivery.entry);
    set.undecided = true;
  }
  end_carried_out(set, set.tree->take_carried_out());
  if (set.tree->end_reason() && !set.end) set.end = end_of(set, *set.tree->end_reason());
  if (set.tree->ended()) drop_tree(set);
}

// All logs are here, to their ends, unless a member left the tree without ending it.
void Engine::drop_tree(ProcessSet& set) {
  send_along_tree(set);
  const bool broken = set.tree->broken();
  set.tree = nullptr;
  set.undecided = true;
  for (std::size_t m = 0; m < set.peers.size() && !broken; ++m) set.negotiation.leave(static_cast<int>(m));
}

// Behind the end of a tree: what is decided runs, and everything else fails.
void Engine::unwind(ProcessSet& set) {
  set.unwound = true;
  set.schedule.flush();
  if (!first_farewell_ && set.end->kind == ErrorKind::kPeerLost) first_farewell_ = {set.end->first_left, set.end->why};
  if (left_) return;  // and tells its callers so
  if (goes_on_without_others() && set.end->kind == ErrorKind::kPeerLost) {
    // The others go on, with another tree, as soon as one of them needs more of this one.
    if (!set.operations.empty() || set.joining()) part_with(*membership_.peer(set.end->rank), set.end->what, true);
    return;
  }
  bool failed = false;
  for (auto it = set.operations.begin(); it != set.operations.end();) {
    const bool waits = it->second->state.load(std::memory_order_relaxed) == OperationState::kSubmitted;
    if (waits) fail_operation(it->second, ended_error(set, *it->second, *set.end));
    failed = failed || waits;
    it = waits ? set.operations.erase(it) : std::next(it);
  }
  failed = failed || set.joining();
  if (set.joining()) end_join(set, ended_error(set, *set.join, *set.end));
  fail_watches(set, [&](const Operation& watch) { return ended_error(set, watch, *set.end); });
  if (failed && set.end->kind == ErrorKind::kPeerLost) suffer_from({set.end->rank, rank()});
}

// By this rank.
TreeEnd Engine::end_by(const ProcessSet& set, bool removes) const {
  if (removes) return {.member = set.self, .removes = true, .first_left = rank()};
  const auto [first, why] = farewell();
  return {.member = set.self, .first_left = first, .why = why.substr(0, kMaxPayloadBytes / 2)};
}

// By a peer that has said its farewell.
TreeEnd Engine::end_by(const ProcessSet& set, const Peer& peer) {
  return {.member = set.member(peer.rank), .first_left = peer.first_left, .why = peer.farewell};
}

Engine::LogEnd Engine::end_of(const ProcessSet& set, const TreeEnd& end) {
  const Rank rank = set.negotiation.members()[end.member];
  return end.removes ? removal(set, rank) : leaving(rank, end.first_left, end.why);
}

// The end of a tree comes before a neighbour's farewell, unless the neighbour never added the set, or could not wait.
void Engine::break_trees(const Peer& peer) {
  for (auto* const sets : {&sets_, &removed_sets_}) {
    for (auto& [id, set] : *sets) {
      if (set->tree == nullptr || set->peer_of(peer) == nullptr) continue;
      if (!set->tree->is_neighbour(set->member(peer.rank))) continue;
      set->tree->break_off(end_by(*set, peer));
      settle_tree(*set);
    }
  }
}

// A set that is added after one of its members has left.
void Engine::break_late(ProcessSet& set) {
  if (elastic_ != nullptr) return;  // the others go on without it, once one of them needs it
  const auto left = [](const Peer* peer) { return peer != nullptr && peer->left; };
  const auto found = std::find_if(set.peers.begin(), set.peers.end(), left);
  if (set.tree == nullptr || found == set.peers.end()) return;
  set.tree->break_off(end_by(set, **found));
  settle_tree(set);
}

// Sends what has come together, in sets that are removed here, too.
void Engine::move_trees() {
  for (auto& [id, set] : sets_) {
    if (set->tree != nullptr) send_along_tree(*set);
  }
  for (auto it = removed_sets_.begin(); it != removed_sets_.end();) {
    if (it->second->tree != nullptr) send_along_tree(*it->second);
    it = it->second->tree == nullptr ? removed_sets_.erase(it) : std::next(it);
  }
  if (goodbye_) say_goodbye();
}

// This rank leaves: others are no longer to be reached through it.
void Engine::leave_trees() {
  for (auto& [id, set] : sets_) {
    if (set->tree == nullptr) continue;
    if (eager_.operation != nullptr) leave_eager();
    set->tree->end(end_by(*set, false));
    settle_tree(*set);
    if (set->tree != nullptr) send_along_tree(*set);
  }
}

// Whoever waits for long wants to see what others have announced: to fill its log, or to say who is missing.
void Engine::advance_tree(ProcessSet& set, Nanoseconds now) {
  if (set.end && set.ending_since == 0) set.ending_since = now;
  if (set.end && now - set.ending_since > settings_.timeout) {
    // A member that never added the set does not end it either.
    set.tree->break_off(*set.tree->end_reason());
    return settle_tree(set);
  }
  const bool flush_undecided = set.negotiation.round() < set.flushed_until;
  const bool waits = (flush_undecided && !set.operations.empty()) || set.waits_for_others();
  const bool goes_on = waits && set.watched_round == set.negotiation.round();
  if (set.waiting_since != 0 && !goes_on) {
    const Nanoseconds took = std::min(now - std::exchange(set.waiting_since, 0), kLongestRound);
    set.common_wait += (took - set.common_wait) / kRoundWeight;
  }
  if (waits && set.waiting_since == 0) set.waiting_since = now;
  const Nanoseconds patience = kLookAfter + kRounds * set.common_wait;
  const bool stands_still = set.id == kWorld && !standstill_.said.empty();
  const bool looks = waits && now - set.waiting_since >= patience;
  set.tree->want_open(set.join != nullptr || looks || stands_still || !set.watches.empty());
  settle_tree(set);  // what the root has held back goes out
  if (set.tree != nullptr) send_along_tree(set);
}

}  // namespace ringcore::engine
