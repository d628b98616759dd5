// Process sets with many members: their logs go along a tree, see agreement_tree.hpp.
#include <algorithm>
#include <utility>

#include "engine/state.hpp"

namespace ringcore::engine {
namespace {

// Who waits for so long looks at what the others have announced. Shorter than anybody notices, and longer than ranks of
// a training loop commonly wait for the slowest of them, which has nothing to be looked at.
constexpr Nanoseconds kLookAfter = 20 * kMillisecond;

}  // namespace

// The next entry of this rank's log. The first of several goes at once, the others together when the engine moves.
void Engine::append_to_tree(ProcessSet& set, Entry entry) {
  const bool first = set.tree->answered();
  const std::uint64_t position = set.negotiation.length(set.self);
  if (entry.type == RecordType::kJoin) set.tree->want_open(true);
  set.tree->append(entry, position);
  set.negotiation.append(set.self, std::move(entry));
  set.undecided = true;
  settle_tree(set);
  if (first && set.tree != nullptr) send_along_tree(set);
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
  if (set.tree->ended()) leave_tree(set);
}

// From here on each sends to each, beginning with what the others do not know of this rank's log.
void Engine::leave_tree(ProcessSet& set) {
  send_along_tree(set);
  set.broken = set.tree->broken();
  const std::unique_ptr<AgreementTree> tree = std::move(set.tree);
  set.signatures = Signatures(set.peers.size());
  if (!set.broken) {
    for (const auto& [position, entry] : tree->take_unanswered()) send_to_each(set, position, entry);
  }
  replay_early(set.id);
  if (set.removed_here) return tell_removal(set);
  for (const Peer* peer : set.peers) {
    if (peer != nullptr && peer->left) fail_operations_needing(set, *peer);
  }
}

// The end of a tree comes before a neighbour's farewell, unless the neighbour never added the set.
void Engine::break_trees(const Peer& peer) {
  for (auto* const sets : {&sets_, &removed_sets_}) {
    for (auto& [id, set] : *sets) {
      if (set->tree == nullptr || set->peer_of(peer) == nullptr) continue;
      if (!set->tree->is_neighbour(set->member(peer.rank))) continue;
      set->tree->break_off();
      settle_tree(*set);
    }
  }
}

void Engine::send_to_each(ProcessSet& set, std::uint64_t position, const Entry& entry) {
  RecordHeader header{.type = entry.type,
                      .flags = entry.flags,
                      .process_set = set.id,
                      .position = position,
                      .signature = entry.signature,
                      .name_hash = entry.name_hash,
                      .rows = entry.rows,
                      .location = entry.location,
                      .priority = entry.priority};
  std::vector<std::byte> descriptor;
  if (entry.type == RecordType::kOperation && !set.signatures.use(set.self, entry.signature)) {
    set.signatures.describe(set.self, entry.signature, entry.descriptor);
    header.flags |= kHasDescriptor;
    descriptor = encode(*entry.descriptor);
  }
  const std::vector<std::byte> record = build_record(header, descriptor, entry.splits, entry.payload);
  for (Peer* peer : set.peers) {
    if (peer != nullptr) send(*peer, record);
  }
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
    set->tree->end();
    settle_tree(*set);
    if (set->tree != nullptr) send_along_tree(*set);
  }
}

// Whoever waits for long wants to see what others have announced: to fill its log, or to say who is missing.
void Engine::tend_tree(ProcessSet& set, Nanoseconds now) {
  const bool flush_undecided = set.negotiation.round() < set.flushed_until;
  const bool waits = (flush_undecided && !set.operations.empty()) || set.waits_for_others();
  if (!waits) set.waiting_since = 0;
  if (waits && (set.waiting_since == 0 || set.watched_round != set.negotiation.round())) set.waiting_since = now;
  set.tree->want_open(set.join != nullptr || (waits && now - set.waiting_since >= kLookAfter));
  settle_tree(set);  // what the root has held back goes out
  if (set.tree != nullptr) send_along_tree(set);
}

}  // namespace ringcore::engine
