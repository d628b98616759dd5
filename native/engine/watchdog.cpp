// Time: lost peers, heartbeats, operations that wait too long, logs of different length.
#include <algorithm>
#include <utility>

#include "engine/elastic.hpp"
#include "engine/state.hpp"

namespace ringcore::engine {
namespace {

// Of so many that are missing somebody wants to know where they stand: the others mostly stand where these do.
constexpr int kMostAsked = 4;
// Who waits for whom is told of so many: one record has to hold what is said of an error.
constexpr std::size_t kMostInChain = 16;
// How long it may take to be connected with each of the members: all of them turn to one who leads a change.
constexpr Nanoseconds kConnecting = 5 * kMillisecond;
// How many times as long as others a peer may be silent that wants to run and gets no processor.
constexpr int kStarvedPatience = 10;
// TCP sends again what was lost after a round trip and a while, then after twice as long, and so on: what is lost four
// times comes after some fifteen round trips. Queues on the way make twice of that.
constexpr int kRoundTripsOfPatience = 30;
// Where nobody waits for what is in a bucket, it is closed when nothing more was announced for so long, and nothing has
// been that others have yet to announce; or a longer while after it was opened. The other members leave it to the first
// one for some times as long, as one wish is enough.
constexpr Nanoseconds kBurstGap = kMillisecond;
constexpr Nanoseconds kLongestOpen = 20 * kMillisecond;
constexpr int kOthersPatience = 4;

}  // namespace

Nanoseconds Engine::timer_interval() const {
  return std::clamp(settings_.heartbeat / 8, kMillisecond, 250 * kMillisecond);
}

void Engine::check_timers(bool idle) {
  const Nanoseconds now = clock_.now();
  const Nanoseconds since_last = now - timers_checked_;
  timers_checked_ = now;
  if (failure_ != nullptr) return;
  const bool stood_still = since_last > settings_.heartbeat / 2;
  if (stood_still) {
    // This rank itself (it was stopped, or the machine was): it cannot judge others by its clock.
    membership_.excuse_silence(now);
    if (elastic_ != nullptr) elastic_->noticed_at = now;
  }
  check_patience(now);
  advance_links(now, idle);
  if (goes_on_without_others() && failure_ == nullptr) advance_views(now);
  withheld_by_ = -1;
  if (failure_ != nullptr || frozen()) return;
  for (auto& [id, set] : sets_) {
    if (set->tree != nullptr) advance_tree(*set, now);
    if (eager_.operation == nullptr) close_old_buckets(*set, now);
    if (std::exchange(set->heard, false)) set->heard_at = now;
    if (idle && eager_.operation == nullptr) advance_alignment(*set, now);
    check_stalls(*set, now);
    if (failure_ != nullptr) return;
    try {
      set->schedule.watch(now, settings_.timeout);
    } catch (const Error& error) {
      return give_up_carrier(error);
    }
    advance_runs(*set, stood_still ? 0 : since_last);
    if (failure_ != nullptr) return;
  }
  if (standstill_.now) check_standstill(now);
}

// Heartbeats go behind the data that a library has on the same wire, which may take longer than a peer may be silent.
void Engine::check_patience(Nanoseconds now) {
  std::size_t bytes = 0;
  std::uint64_t ended = 0;
  for (const auto& [id, set] : sets_) {
    const Schedule::LibraryWork work = set->schedule.library_work();
    bytes += work.bytes;
    ended += work.ended;
  }
  if (ended != library_ended_) {
    // The others were there, and what stood behind the data has yet to come.
    membership_.excuse_silence(now);
  }
  library_ended_ = ended;
  const Nanoseconds slow = static_cast<Nanoseconds>(bytes) * kNanosecondsPerLibraryByte;
  // A lost rank is the better explanation than an operation that takes too long.
  patience_ = std::max(settings_.heartbeat, std::min(settings_.heartbeat + slow, settings_.timeout / 2));
}

Nanoseconds Engine::patience_for(const Peer& peer) const {
  if (!peer.connected) return patience_ + size() * kConnecting;
  return peer.greeted ? patience_ : std::max(patience_, settings_.start);
}

// Whether it is lost, as far as its records tell.
bool Engine::is_silent(const Peer& peer, Nanoseconds now) const {
  return !peer.left && (peer.connected || frozen()) && now - peer.last_heard > patience_for(peer);
}

// Of a silent peer: a network that is full or loses much may keep its records back while its data comes, and over a long
// way for some round trips all that it sends.
bool Engine::may_be_heard_yet(Peer& peer, Nanoseconds now) const {
  if (const auto silence = peer.link->data_silence()) peer.last_heard = std::max(peer.last_heard, now - *silence);
  const double round_trip_s = 2 * peer.link->pace().latency_s;
  const auto more = static_cast<Nanoseconds>(kRoundTripsOfPatience * round_trip_s * kSecond);
  return now - peer.last_heard <= patience_for(peer) + more;
}

void Engine::advance_links(Nanoseconds now, bool idle) {
  const bool checks = now - last_check_ >= kMillisecond;  // it costs a system call each
  if (checks) last_check_ = now;
  for (Peer* peer : membership_.known()) {
    const bool awaited = awaits(*peer);
    if (awaited || peer->is_neighbour) {
      if (checks) peer->link->check();
    } else {
      peer->last_heard = now;  // its heart beats for others; and its end wakes whoever sleeps
    }
    // What it sent before has been looked at since its end was noticed.
    if (idle && peer->left && peer->link->ended() && std::exchange(peer->gone, true) && runs_wait_for(*peer)) {
      return lose(*peer, leaving(*peer).what + " in the middle of an operation");
    }
    if (const auto failure = peer->link->failure(); failure && !peer->left) {
      if (eager_.operation != nullptr) leave_eager();
      read_control(*peer);  // its last words
      // To a rank that has left before, its goodbye is not said: that it saw that farewell are its last words.
      if (peer->saw_farewell) peer->left = true;
      if (!peer->left && failure_ == nullptr && !may_say_why(*peer, now)) lose(*peer, *failure);
    } else if (checks && is_silent(*peer, now) && !may_be_heard_yet(*peer, now)) {
      if (eager_.operation != nullptr) leave_eager();
      // Before its last words are read: once it has spoken it may sleep.
      const bool starved = lacks_processor(*peer, now);
      read_control(*peer);
      if (!peer->left && now - peer->last_heard > patience_for(*peer) && failure_ == nullptr && !starved) {
        lose(*peer, describe_silence(*peer, now));
      }
    }
    if (failure_ != nullptr) return;
    if (!peer->left && peer->connected) beat(*peer, now, awaited);
  }
}

// Where a peer has several connections, the end of one may overtake what it has said on another: why it ends. Who lives,
// and has only lost that one, is waited for no longer than one that is silent.
bool Engine::may_say_why(Peer& peer, Nanoseconds now) const {
  if (!peer.link->last_words_may_come()) return false;
  if (!peer.failed_at) peer.failed_at = now;
  return now - *peer.failed_at <= patience_for(peer);
}

// Whether a silent peer is to be waited for, as this host's scheduler is all that keeps it from speaking.
bool Engine::lacks_processor(Peer& peer, Nanoseconds now) {
  if (now < peer.excused_until) return true;
  const Nanoseconds silent = now - peer.last_heard;
  if (silent > kStarvedPatience * patience_ || !peer.link->peer_wants_to_run()) return false;
  if (peer.excused_until <= peer.last_heard) {
    warnings_.push_back(
        "rank " + std::to_string(peer.rank) + " has sent nothing for " + std::to_string(silent / kMillisecond) +
        " ms. It wants to run, but gets no processor: its host has too few for all that runs there. It is "
        "waited for, " +
        std::to_string(kStarvedPatience) + " times as long as RINGCORE_HEARTBEAT_S.");
  }
  // Who has got its processor back may still be kept from speaking, as any other.
  peer.excused_until = now + patience_;
  return true;
}

std::string Engine::describe_silence(const Peer& peer, Nanoseconds now) {
  const bool was_starved = peer.excused_until > peer.last_heard;
  return "has sent nothing for " + std::to_string((now - peer.last_heard) / kMillisecond) +
         (was_starved ? " ms (it wanted to run, but its host had no processor for it)"
                      : " ms (it was stopped, or the network between the hosts is cut)");
}

// Neighbours hear from each other all the time: what each of them costs a rank does not grow with their number. Whoever is
// waited for is asked, where there is a connection; and when a rank is lost, those who notice it tell all.
void Engine::beat(Peer& peer, Nanoseconds now, bool awaited) {
  const Nanoseconds interval = settings_.heartbeat / 4;
  const bool ask =
      !peer.is_neighbour && awaited && now - peer.last_heard >= interval && now - peer.last_asked >= interval;
  const bool due = peer.is_neighbour && now - peer.last_sent >= interval;
  if (!ask && !due) return;
  if (ask) peer.last_asked = now;
  send_heartbeat(peer, ask);
}

void Engine::send_heartbeat(Peer& peer, bool asks) {
  send(peer,
       {.bytes = sizeof(RecordHeader),
        .type = RecordType::kHeartbeat,
        .position = static_cast<std::uint64_t>(withheld_by_ + 1),
        .rows = asks},
       {});
}

// Whether this rank waits for something that may need the peer.
bool Engine::awaits(const Peer& peer) const {
  if (frozen() || (left_ && !peer.saw_farewell)) return true;
  const auto has_left = [](const Peer* other) { return other != nullptr && other->left; };
  return std::any_of(sets_.begin(), sets_.end(), [&](const auto& item) {
    const ProcessSet& set = *item.second;
    // A server waits for the end of all whom it serves, once one of them has come to it.
    if (set.serves() && std::ranges::any_of(set.peers, has_left)) return set.peer_of(peer) != nullptr;
    const bool short_cut = eager_.operation != nullptr && eager_.set == &set;
    const bool idle = set.operations.empty() && set.join == nullptr && set.schedule.idle() && set.schedule.drained();
    if (!short_cut && idle) return false;
    return set.node_of(peer).has_value();
  });
}

// What nobody waits for yet runs beside what its submitters do meanwhile.
void Engine::close_old_buckets(ProcessSet& set, Nanoseconds now) {
  const auto since = set.schedule.open_since();
  if (!since || left_ || set.joining()) return;
  const int patience = set.self == 0 ? 1 : kOthersPatience;
  const Nanoseconds quiet = now - std::max(*since, set.announced_at);
  const bool more_may_come = quiet < patience * kBurstGap || !set.negotiation.settled();
  if (more_may_come && now - *since < patience * kLongestOpen) return;
  close_buckets(set, {.type = RecordType::kNoop, .flags = kFlush});
}

bool Engine::has_open_buckets() const {
  return std::ranges::any_of(sets_, [](const auto& item) { return item.second->schedule.open_since().has_value(); });
}

// Logs of different length keep operations from being decided that all ranks have announced, and wishes that stand behind
// what a rank has not announced yet. While it announces more, that gathers for a while, and is not closed one by one.
void Engine::advance_alignment(ProcessSet& set, Nanoseconds now) {
  const std::uint64_t longest = set.negotiation.longest();
  if (set.operations.empty() || set.joining() || set.filled_for == longest + 1) return;
  const auto open_since = set.schedule.open_since();
  const bool more_comes = now - set.heard_at < kBurstGap && open_since && now - *open_since < kLongestOpen;
  const bool flush_undecided = set.negotiation.round() < set.flushed_until && !more_comes;
  for (const auto& [name_hash, operation] : set.operations) {
    if (operation->carried_out) continue;
    const bool released = operation->state.load(std::memory_order_relaxed) != OperationState::kSubmitted;
    if (released && (!flush_undecided || operation->started_at != 0)) continue;
    if (released || set.negotiation.announced_by_all(name_hash)) {
      fill(set, longest, operation->only_thread ? operation.get() : nullptr);
      return align(set);
    }
    if (operation->only_thread && set.negotiation.length(set.self) < longest) {
      fill(set, longest, operation.get());
      return;
    }
  }
}

// Asks all to fill their logs up to the longest.
void Engine::align(ProcessSet& set) {
  fill(set, set.negotiation.longest(), nullptr);
  append_own(set, {.type = RecordType::kNoop, .flags = kFill});
  set.filled_for = set.negotiation.longest() + 1;
}

void Engine::check_stalls(ProcessSet& set, Nanoseconds now) {
  for (const auto& [name_hash, operation] : set.operations) {
    check_stall(set, *operation, now);
    if (failure_ != nullptr) return;
  }
  if (set.joining()) check_join(set, now);
  if (eager_.set != &set || eager_.operation == nullptr) return;
  // The short cut is over before a clock is worth asking; what is still under way is as old as the first look at it.
  if (eager_.operation->submitted_at == 0) eager_.operation->submitted_at = now;
  if (now - eager_.operation->submitted_at > std::min(settings_.stall_warning, settings_.timeout) / 2) leave_eager();
}

// Data goes from rank to rank: who withholds it may wait itself, and all of them lose patience at the same time.
std::string Engine::describe_withheld(const std::vector<Rank>& ranks) const {
  std::string text;
  std::vector<Rank> seen;
  for (Rank rank = ranks.empty() ? this->rank() : ranks.front();
       rank != this->rank() && seen.size() < kMostInChain && std::ranges::find(seen, rank) == seen.end();) {
    const Rank next = membership_.peer(rank)->withheld_by;
    if (next < 0 || next >= membership_.size()) break;
    text += (text.empty() ? ". As far as is known rank " : ", rank ") + std::to_string(rank) + " waits for rank " +
            std::to_string(next);
    seen.push_back(std::exchange(rank, next));
  }
  return text;
}

// Whoever beats its heart also sends its data, and lets its log go on as soon as somebody asks for it.
void Engine::advance_runs(ProcessSet& set, Nanoseconds elapsed) {
  const auto withheld = [&](const std::string& what, const std::vector<Rank>& ranks, Nanoseconds limit) {
    fail(std::make_shared<const Error>(
        ErrorKind::kTimeout, what + " by " + (ranks.empty() ? "some rank" : list_ranks(ranks)) + " for " +
                                 std::to_string(limit / kMillisecond) + " ms, although connected and alive" +
                                 describe_withheld(ranks) +
                                 ". Remedy: look there (is a program stopped in a debugger, does a host swap?), or "
                                 "raise RINGCORE_TIMEOUT_S if the network may be that slow."));
  };
  if (const auto still = set.schedule.find_still(elapsed, settings_.timeout)) {
    std::vector<Rank> ranks;
    const std::vector<Rank>& members = set.negotiation.members();
    for (const int m : still->members) {
      ranks.push_back(std::cmp_less(m, members.size()) ? members[static_cast<std::size_t>(m)]
                                                       : m);  // the world's servers
    }
    if (!ranks.empty()) withheld_by_ = ranks.front();
    if (still->too_long) {
      // A plan counts the members of the process set.
      const std::string where = set.id == kWorld ? " (it waits for " + still->waits_for + ")" : "";
      return withheld(still->operation + ": of its " + std::to_string(still->bytes) + " bytes on rank " +
                          std::to_string(rank()) + " nothing has moved" + where + ": data is withheld",
                      ranks, settings_.timeout);
    }
  }
  const std::uint64_t round = set.negotiation.round();
  const std::vector<Rank> behind = set.negotiation.behind();
  set.unanswered_for = behind.empty() || set.watched_round != round ? 0 : set.unanswered_for + elapsed;
  set.watched_round = round;
  // Before that a slow one is given as long as it may be silent: the operation's own time is over already.
  const Nanoseconds limit = settings_.timeout + settings_.heartbeat;
  if (set.unanswered_for <= limit) return;
  const std::string what =
      set.operations.empty() ? "process set " + std::to_string(set.id) : title(*set.operations.begin()->second);
  withheld(what + ": it was neither submitted nor refused", behind, limit);
}

std::vector<Pending> Engine::pending() const {
  std::vector<Pending> found;
  if (eager_.operation != nullptr) {
    Pending small{title(*eager_.operation), eager_.operation->submitted_at, false, {}};
    for (Peer* peer : eager_.set->peers) {
      const bool silent = peer != nullptr && peek_control(*peer).empty();
      if (silent) small.missing.push_back(peer->rank);
    }
    found.push_back(std::move(small));
  }
  for (const auto& [id, set] : sets_) {
    for (const auto& [name_hash, operation] : set->operations) {
      const bool released = operation->state.load(std::memory_order_relaxed) != OperationState::kSubmitted;
      found.push_back({title(*operation), operation->submitted_at, released,
                       released ? std::vector<Rank>() : set->negotiation.missing(name_hash)});
    }
    if (set->join != nullptr) found.push_back({title(*set->join), set->join->submitted_at, set->all_joined, {}});
  }
  return found;
}

std::string Engine::who_submitted(const ProcessSet& set, const Operation& operation) {
  const std::vector<Rank> missing = set.negotiation.missing(operation.name_hash);
  const std::vector<Rank> present = set.negotiation.present(operation.name_hash);
  if (missing.empty()) return "all ranks submitted it";
  return list_ranks(missing) + " did not submit it" + (present.empty() ? "" : "; " + list_ranks(present) + " did");
}

bool Engine::is_excused(const ProcessSet& set, const std::vector<Rank>& missing) const {
  if (elastic_ == nullptr || elastic_->excused.empty() || set.id != kWorld) return false;
  return std::ranges::all_of(
      missing, [&](Rank rank) { return std::ranges::find(elastic_->excused, rank) != elastic_->excused.end(); });
}

void Engine::check_stall(ProcessSet& set, Operation& operation, Nanoseconds now) {
  const Nanoseconds waited = now - std::max(operation.submitted_at, operation.excused_until);
  if (operation.state.load(std::memory_order_relaxed) != OperationState::kSubmitted) {
    // What runs on hosts may take as long as it likes while it moves, see `advance_runs`.
    if (operation.descriptor.on_device && now - operation.released_at > settings_.timeout) {
      fail(std::make_shared<const Error>(
          ErrorKind::kTimeout, title(operation) + " was started on all ranks and has not ended within " +
                                   in_seconds(settings_.timeout) + ": " + set.schedule.describe_running() + "."));
    }
    return;
  }
  if (waited > std::min(settings_.stall_warning, settings_.timeout) &&
      is_excused(set, set.negotiation.missing(operation.name_hash))) {
    operation.excused_until = now;
    return;
  }
  if (settings_.stall_warning > 0 && waited > settings_.stall_warning && !operation.stall_reported) {
    operation.stall_reported = true;
    if (set.negotiation.is_first_to_wait(operation.name_hash)) {
      report_stall(operation, waited, who_submitted(set, operation), set.negotiation.missing(operation.name_hash));
    }
  }
  if (waited > settings_.timeout && !operation.cancel_sent && !set.joining()) {
    cancel(set, operation, 0,
           title(operation) + ": " + who_submitted(set, operation) + ", for " +
               std::to_string(settings_.timeout / kMillisecond) +
               " ms. Remedy: make all ranks submit the same tensors (look at the reported stacks), or "
               "raise RINGCORE_TIMEOUT_S if a rank may be that slow.");
  }
}

// Who has joined waits while the others go on, however long they take for all of it.
void Engine::check_join(ProcessSet& set, Nanoseconds now) {
  Operation& join = *set.join;
  const std::vector<Rank> missing = set.negotiation.not_joining();
  if (!set.schedule.idle() || is_excused(set, missing)) join.excused_until = now;
  const Nanoseconds waited = now - std::max(join.submitted_at, join.excused_until);
  if (missing.empty()) return;
  const std::string why = list_ranks(missing) + " did not join, and nothing else was submitted by all who have not";
  if (settings_.stall_warning > 0 && waited > settings_.stall_warning && !join.stall_reported) {
    join.stall_reported = true;
    const std::vector<Rank>& members = set.negotiation.members();
    const auto joined =
        std::ranges::find_if(members, [&](Rank member) { return std::ranges::find(missing, member) == missing.end(); });
    if (*joined == rank()) report_stall(join, waited, why, missing);
  }
  if (waited <= settings_.timeout) return;
  fail(std::make_shared<const Error>(
      ErrorKind::kTimeout,
      title(join) + ": " + why + ", for " + std::to_string(settings_.timeout / kMillisecond) +
          " ms. Remedy: let every rank call join() at its end (look at the reported stacks), or raise "
          "RINGCORE_TIMEOUT_S if a rank may be that slow."));
}

void Engine::report_stall(const Operation& operation, Nanoseconds waited, const std::string& why,
                          const std::vector<Rank>& missing) {
  warnings_.push_back(title(operation) + " has waited for " + std::to_string(waited / kMillisecond) + " ms: " + why +
                      ". It fails after RINGCORE_TIMEOUT_S = " + in_seconds(settings_.timeout) + ".");
  int asked = 0;
  for (const Rank rank : missing) {
    Peer* peer = membership_.peer(rank);
    if (peer == nullptr) continue;
    if (++asked > kMostAsked) return;
    send(*peer, RecordHeader{.bytes = sizeof(RecordHeader), .type = RecordType::kStackRequest}, {});
  }
}

// Ends on all ranks what this one waits for.
void Engine::cancel(ProcessSet& set, Operation& operation, std::uint8_t flags, const std::string& why) {
  operation.cancel_sent = true;
  fill(set, set.negotiation.longest(), nullptr);
  const auto whole = std::as_bytes(std::span(why));
  RecordHeader header{.type = RecordType::kCancel, .name_hash = operation.name_hash};
  header.flags = static_cast<std::uint8_t>(kFlush | kFill | flags);
  append_own(set, header, whole.first(std::min(whole.size(), kMaxPayloadBytes / 2)));
}

bool Engine::needs_lane(Place place, int lane) const {
  const Peer* peer = membership_.peer_at(place);
  return peer != nullptr && (lane == transport::kControlLane || runs_wait_for(*peer, lane));
}

// Whether a run that has begun can go on only with the peer; in this lane, or in any.
bool Engine::runs_wait_for(const Peer& peer, std::optional<int> lane) const {
  return std::any_of(sets_.begin(), sets_.end(), [&peer, lane](const auto& item) {
    const ProcessSet& set = *item.second;
    const std::optional<int> node = set.node_of(peer);
    return node && set.schedule.waits_for(*node, lane);
  });
}

}  // namespace ringcore::engine
