// Ends: of a peer, of an operation that needs it, of this rank, of everything.
#include <algorithm>

#include "engine/state.hpp"

namespace ringcore::engine {
namespace {

// " (it raised ...)", " (after rank 2 had left: it raised ...)" or nothing.
std::string describe_farewell(Rank rank, Rank first, const std::string& why) {
  if (rank == first) return why.empty() ? "" : " (" + why + ")";
  return " (after rank " + std::to_string(first) + " had left" + (why.empty() ? "" : ": " + why) + ")";
}

}  // namespace

// Whoever left because of another has said so: the first is to blame.
void Engine::suffer_from(const Blame& blame) {
  if (blame_ || left_) return;
  blame_ = {first_farewell_ ? first_farewell_->first : blame.rank, blame.seen_by};
  loss_unreported_ = true;
}

void Engine::lose(Peer& peer, const std::string& why) {
  if (goes_on_without_others()) return part_with(peer, why, peer.left);
  if (elastic_ != nullptr) {
    peer.left = true;  // it will not see this rank's farewell, and this rank needs nothing of it
    return;
  }
  if (failure_ == nullptr) suffer_from({peer.rank, rank()});
  fail(std::make_shared<const Error>(
      ErrorKind::kPeerLost, title_of(peer.rank) + " " + why + ", as seen by rank " + std::to_string(rank()) + "." +
                                pending_summary() + " Remedy: look at the output of rank " + std::to_string(peer.rank) +
                                " for the cause; shutdown() and init() make this process usable again."));
}

// " Pending on rank 0: ..." or nothing: other ranks read it, too, and may have waited themselves.
std::string Engine::pending_summary() const {
  std::string running;
  std::vector<std::string> waiting;
  if (eager_.operation != nullptr) waiting.push_back(title(*eager_.operation));
  for (const auto& [id, set] : sets_) {
    if (const std::string text = set->schedule.describe_running(); !text.empty()) running = text;
    if (set->join != nullptr) waiting.push_back(title(*set->join));
    for (const auto& [name_hash, operation] : set->operations) waiting.push_back(title(*operation));
  }
  if (waiting.empty() && running.empty()) return "";
  constexpr std::size_t kNamed = 3;
  std::string text =
      " Pending on rank " + std::to_string(rank()) + ": " + (waiting.empty() ? "nothing of its own" : "");
  for (std::size_t i = 0; i < std::min(waiting.size(), kNamed); ++i) text += (i > 0 ? ", " : "") + waiting[i];
  if (waiting.size() > kNamed) text += " and " + std::to_string(waiting.size() - kNamed) + " more";
  return text + (running.empty() ? "." : " (" + running + ").");
}

void Engine::fail_operations_needing(Peer& peer) {
  for (auto& [id, set] : sets_) {
    // Along a tree its log comes to its end when all others do: see `drop_tree`.
    if (set->tree == nullptr && !set->end && set->peer_of(peer) != nullptr) fail_operations_needing(*set, peer);
  }
}

void Engine::fail_operations_needing(ProcessSet& set, Peer& peer) {
  if (!end_log(set, set.member(peer.rank), leaving(peer))) return;
  goes_on_without_others() ? part_with(peer, leaving(peer).what, true) : suffer_from({peer.rank, rank()});
}

Engine::LogEnd Engine::leaving(Rank rank, Rank first, const std::string& why) {
  return {.kind = ErrorKind::kPeerLost,
          .rank = rank,
          .what = "has left" + describe_farewell(rank, first, why),
          .remedy = "let every rank run the same number of operations, or call join() on ranks that finish early.",
          .first_left = first,
          .why = why};
}

// Whoever removes a set behind another one that did may have been kept from the rest by that one.
Engine::LogEnd Engine::removal(const ProcessSet& set, Rank by) {
  return {
      .kind = ErrorKind::kMismatch,
      .rank = by,
      .what = "has removed process set " + std::to_string(set.id),
      .remedy = "let every member run the same operations in it, and wait for all of them before the set is removed.",
      .first_left = by,
      .why = {}};
}

// Whoever has found a deadlock may be told, and gone, before others have found the same one.
std::shared_ptr<const Error> Engine::told_as(const LogEnd& end) const {
  constexpr std::size_t kTelling = 200;
  if (told_ != nullptr && end.why.find(std::string(told_->what()).substr(0, kTelling)) != std::string::npos) {
    return told_;
  }
  const std::size_t deadlock = end.why.find(kEveryRankWaits);
  if (deadlock == std::string::npos) return nullptr;
  return std::make_shared<const Error>(ErrorKind::kDeadlock, end.why.substr(deadlock));
}

// The others need not wait for what this rank has left out.
void Engine::tell_removal(const ProcessSet& set) {
  const Rank first = set.removed_by.value_or(rank());
  const RecordHeader header{
      .type = RecordType::kRemoved, .process_set = set.id, .rows = static_cast<std::uint64_t>(first)};
  const std::vector<std::byte> record = build_record(header, {}, {}, {});
  for (Peer* peer : set.peers) {
    if (peer != nullptr) send(*peer, record);
  }
}

// What needs more of the member's log fails: true if anything does. What the member has announced may still be decided,
// and run as far as its data was sent.
bool Engine::end_log(ProcessSet& set, int member, const LogEnd& end) {
  if (eager_.operation != nullptr && eager_.set == &set) leave_eager();
  if (set.undecided) decide(set);  // what its last words complete, or make impossible for all
  const Rank rank = set.negotiation.members()[member];
  // Else it ends when all know who goes on.
  const bool for_good = end.kind != ErrorKind::kPeerLost || !goes_on_without_others();
  bool failed = false;
  for (auto it = set.operations.begin(); it != set.operations.end();) {
    const std::vector<Rank> missing = set.negotiation.missing(it->first);
    const bool needs = it->second->state.load(std::memory_order_relaxed) == OperationState::kSubmitted &&
                       std::find(missing.begin(), missing.end(), rank) != missing.end();
    if (needs && for_good) fail_operation(it->second, ended_error(set, *it->second, end));
    failed = failed || needs;
    it = needs && for_good ? set.operations.erase(it) : std::next(it);
  }
  if (set.joining() && !set.negotiation.announced_join(member)) {
    if (for_good) end_join(set, ended_error(set, *set.join, end));
    failed = true;
  }
  fail_watches(set, [&](const Operation& watch) -> std::shared_ptr<const Error> {
    const std::vector<Rank> missing = set.negotiation.missing(watch.name_hash);
    return std::ranges::binary_search(missing, rank) ? ended_error(set, watch, end) : nullptr;
  });
  set.negotiation.leave(member);
  set.undecided = true;
  return failed;
}

// Of an operation that not all members have announced.
std::shared_ptr<const Error> Engine::ended_error(ProcessSet& set, const Operation& operation, const LogEnd& end) const {
  if (auto cause = told_as(end)) return cause;
  const Negotiation& logs = set.negotiation;
  const std::vector<Rank> missing = operation.join ? logs.not_joining() : logs.missing(operation.name_hash);
  const bool is_missing = missing.empty() || std::ranges::binary_search(missing, end.rank);
  // Along a tree nobody knows what each of the others has used.
  const bool again = !operation.join && !set.end && set.signatures.was_used(set.member(end.rank), operation.signature);
  const std::string how = is_missing
                              ? std::string(" without ") + (operation.join ? "joining" : "submitting it")
                              : " before " + list_ranks(missing) + (operation.join ? " joined" : " submitted it");
  return std::make_shared<const Error>(end.kind, title(operation) + ": rank " + std::to_string(end.rank) + " " +
                                                     end.what + how + (is_missing && again ? " again" : "") +
                                                     ". Remedy: " + end.remedy);
}

void Engine::fail(const std::shared_ptr<const Error>& error) {
  if (failure_ != nullptr) return;
  // Who could not wait for the ends of its trees leaves all the same.
  if (error->kind() == ErrorKind::kShutdown && goodbye_ && !said_goodbye_) tell_goodbye();
  failure_ = error;
  if (eager_.operation != nullptr) {
    fail_operation(eager_.operation, error);
    eager_ = {};
  }
  for (Peer* peer : membership_.known()) tell_failure(*peer);
  for (auto& [id, set] : sets_) {
    set->schedule.fail(error->kind() == ErrorKind::kShutdown);
    for (const auto& [name_hash, operation] : set->operations) fail_operation(operation, error);
    set->operations.clear();
    if (set->join != nullptr) end_join(*set, error);
    fail_watches(*set, [&](const Operation&) { return error; });
  }
}

// As the record says, whoever has passed it on. A rank that others have lost, and that hears of it, blames them.
Engine::Blame Engine::blame_for(const RecordHeader& abort) const {
  const auto ranks = static_cast<std::uint64_t>(size());
  const auto seen_by = static_cast<std::uint64_t>(std::int64_t{abort.priority});
  if (abort.location >= ranks || seen_by >= ranks) {
    throw Error(ErrorKind::kProtocol, "blames a rank that is none of the " + std::to_string(size()));
  }
  const Blame blame{static_cast<Rank>(abort.location), abort.priority};
  return blame.rank == rank() ? Blame{blame.seen_by, blame.seen_by} : blame;
}

void Engine::tell_failure(Peer& peer) {
  if (failure_->kind() == ErrorKind::kShutdown) return;
  const std::string text = failure_->what();
  // What has no other cause has happened here.
  const Blame blame = blame_.value_or(Blame{rank(), rank()});
  const RecordHeader header{.type = RecordType::kAbort,
                            .rows = static_cast<std::uint64_t>(failure_->kind()),
                            .location = static_cast<std::uint64_t>(blame.rank),
                            .priority = blame.seen_by};
  send(peer, build_record(header, {}, {}, std::as_bytes(std::span(text))));
}

bool Engine::wind_down() {
  if (failure_ != nullptr) return true;
  if (eager_.operation != nullptr) leave_eager();
  const auto ends = [](const ProcessSet& set, const Operation& operation) {
    return operation.state.load(std::memory_order_relaxed) != OperationState::kSubmitted ||
           set.negotiation.announced_by_all(operation.name_hash);
  };
  bool ended = true;
  for (auto& [id, set] : sets_) {
    const auto& operations = set->operations;
    const bool wanted =
        std::any_of(operations.begin(), operations.end(), [&](const auto& item) { return ends(*set, *item.second); });
    if (wanted && !set->joining()) close_buckets(*set, {.type = RecordType::kNoop, .flags = kFlush});
    ended = ended && !wanted && set->schedule.idle() && set->schedule.drained();
    // What stands in all logs shows once the tree is open.
    if (set->tree == nullptr || !set->waits_for_others()) continue;
    set->waiting_since = 1;
    set->tree->want_open(true);
    ended = ended && set->tree->open();
    settle_tree(*set);
  }
  return ended;
}

void Engine::leave(const std::string& reason) {
  if (left_) return;
  left_ = true;
  if (failure_ != nullptr) return;
  goodbye_ = reason;
  leave_trees();
  say_goodbye();
}

// When nobody is reached through this rank any more.
void Engine::say_goodbye() {
  const auto along_tree = [](const auto& item) { return item.second->tree != nullptr; };
  if (!goodbye_ || said_goodbye_ || !removed_sets_.empty() || std::any_of(sets_.begin(), sets_.end(), along_tree))
    return;
  tell_goodbye();
}

// To all that wait for records of this rank: along a tree, to those that it talks to.
void Engine::tell_goodbye() {
  const std::vector<std::byte> record = goodbye_record();
  const auto world = sets_.find(kWorld);  // none of who was no member yet
  const bool along_tree = world != sets_.end() && (world->second->tree != nullptr || world->second->end);
  for (Peer* peer : along_tree ? membership_.known() : std::span<Peer* const>(membership_.peers())) send(*peer, record);
  said_goodbye_ = true;
}

// To one that is connected with only now, as it has something for this rank: it would wait for an answer.
void Engine::tell_goodbye(Peer& peer) { send(peer, goodbye_record()); }

std::vector<std::byte> Engine::goodbye_record() const {
  const auto [first, why] = farewell();
  const RecordHeader header{.type = RecordType::kBye, .rows = static_cast<std::uint64_t>(first)};
  return build_record(header, {}, {}, std::as_bytes(std::span(why)));
}

// Whoever leaves because another has left passes on who was the first, and why.
std::pair<Rank, std::string> Engine::farewell() const {
  const bool follows = goodbye_->empty() && first_farewell_;
  return follows ? *first_farewell_ : std::pair(rank(), *goodbye_);
}

void Engine::disconnect() {
  sets_.clear();
  removed_sets_.clear();
  membership_.disconnect();
}

bool Engine::farewell_seen() const {
  const auto peers = membership_.known();
  if (failure_ != nullptr) {
    // What it failed of may not have gone: on a lane that is encrypted the two have to agree on keys before.
    return std::all_of(peers.begin(), peers.end(), [](const Peer* peer) {
      return !peer->connected || peer->left || peer->backlog.empty() || peer->link->failure();
    });
  }
  return (!goodbye_ || said_goodbye_) && !holds_unsent() &&
         std::all_of(peers.begin(), peers.end(), [](const Peer* peer) {
           return peer->saw_farewell || (peer->left && peer->backlog.empty()) || peer->link->failure();
         });
}

bool Engine::holds_unsent() const {
  const auto peers = membership_.known();
  return std::ranges::any_of(peers,
                             [](const Peer* peer) { return peer->link->holds_unsent() && !peer->link->failure(); });
}

}  // namespace ringcore::engine
