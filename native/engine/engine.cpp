#include "engine/engine.hpp"

#include <algorithm>
#include <utility>

#include "engine/elastic.hpp"
#include "plan/backend.hpp"

namespace ringcore::engine {

Engine::Engine(EngineConfig config, EngineSettings settings, const Clock& clock)
    : readiness_(config.readiness),
      arena_(config.arena),
      fusion_arena_(config.fusion_arena),
      make_carriers_(std::move(config.make_carriers)),
      serving_(config.serving),
      network_(std::move(config.network)),
      settings_(settings),
      clock_(clock),
      membership_(config.epoch, config.rank, std::move(config.links), std::move(config.host_of), clock.now(),
                  config.joins),
      timers_checked_(clock.now()),
      standstill_{.all = Standstills(static_cast<std::size_t>(membership_.size() - config.serving))} {
  if (serving_ < 0 || serving_ >= std::max(1, size()) || (serving_ > 0 && settings_.elastic)) {
    throw Error(ErrorKind::kInvalidArgument,
                std::to_string(serving_) + " servers of " + std::to_string(size()) +
                    " processes are none that can serve: some rank has to be left, and elastic jobs have no servers");
  }
  if (settings_.elastic) {
    elastic_ = std::make_unique<Elastic>(
        Elastic{.views = ViewChange(
                    {config.epoch, membership_.members()}, membership_.own_place(), config.has_witness,
                    settings_.heartbeat / 40, [this] { return stand_still(); },
                    static_cast<std::size_t>(settings_.direct_members))});
    elastic_->members_of.emplace(config.epoch, membership_.members());
  }
  if (membership_.is_member()) {
    std::vector<Rank> ranks = membership_.ranks();
    ranks.resize(ranks.size() - static_cast<std::size_t>(serving_));
    make_process_set(set_numbers_.take(), std::move(ranks));
  } else {
    set_numbers_.take();  // the world's, which this rank is a member of when it is let in
  }
  links_changed();
  // A server has nothing to say, and is to find out whom it cannot hear.
  for (Peer* peer : membership_.peers()) {
    if (serves() && !peer->is_known) say_hello(*peer);
  }
}

Engine::~Engine() = default;

void Engine::links_changed() {
  const Nanoseconds now = clock_.now();
  for (Peer* peer : membership_.peers()) {
    if (elastic_ != nullptr && may_hold_old_data(*peer)) elastic_->draining = true;
    if (peer->connected || !peer->link->has(transport::kControlLane)) continue;
    peer->connected = true;
    peer->last_sent = peer->last_heard = now;
    if (peer->is_known) continue;
    say_hello(*peer);
    if (failure_ != nullptr) tell_failure(*peer);  // others have heard it
    if (failure_ == nullptr && said_goodbye_) tell_goodbye(*peer);
  }
}

bool Engine::progress() {
  if (failure_ != nullptr) return flush_last_words();
  try {
    return move();
  } catch (const Error& error) {
    fail(std::make_shared<const Error>(error));
  } catch (const std::bad_alloc&) {
    fail(std::make_shared<const Error>(
        ErrorKind::kResource, "rank " + std::to_string(rank()) + " has not enough memory." + pending_summary() +
                                  " Remedy: gather or scatter less at once, or use fewer ranks a host."));
  }
  return true;
}

// After a failure: who hears of it only from this rank has to hear all of it.
bool Engine::flush_last_words() {
  bool moved = false;
  for (Peer* peer : membership_.known()) moved = flush_backlog(*peer) || moved;
  return moved;
}

bool Engine::move() {
  if (readiness_ != nullptr) readiness_->look();
  if (eager_.operation != nullptr && progress_eager()) return true;
  if (eager_.operation != nullptr) return false;
  bool moved = false;
  for (Peer* peer : membership_.known()) {
    moved = flush_backlog(*peer) || moved;
    if (!peer->heard_out || readiness_->has_news(peer->place)) moved = read_control(*peer) || moved;
    if (failure_ != nullptr) return true;
  }
  if (elastic_ != nullptr) {
    if (begin_epoch()) return true;
    ask_to_be_let_in();
    if (frozen()) return moved;
    if (draining()) moved = drain_lanes() || moved;
  }
  move_trees();
  for (auto& [id, set] : sets_) {
    if (set->undecided) decide(*set);
    if (set->end && set->tree == nullptr && !set->unwound) unwind(*set);
    const std::uint64_t until = set->negotiation.fill_until();
    if (!set->serves() && until > set->negotiation.length(set->self)) fill(*set, until, nullptr);
    if (set->tree != nullptr) send_along_tree(*set);
    if (!draining()) {
      try {
        moved = set->schedule.progress() || moved;
      } catch (const plan::BackendLost& error) {
        give_up_backends(error);
        return true;
      } catch (const Error& error) {
        give_up_carrier(error);
        return true;
      }
    }
    collect_done(*set);
    // Whoever leaves now takes nothing with it that others still need.
    if (set->all_joined && set->schedule.idle()) end_join(*set, nullptr);
    for (std::string& warning : set->schedule.take_warnings()) warnings_.push_back(std::move(warning));
  }
  return moved || (!draining() && make_way());
}

// When nothing moves and several process sets are at work: a transfer of one may stand in the way of another's.
bool Engine::make_way() {
  const auto running =
      std::count_if(sets_.begin(), sets_.end(), [](const auto& s) { return !s.second->schedule.idle(); });
  if (running < 2) return false;
  return sets_.at(kWorld)->schedule.make_way();  // which has the links of all
}

void Engine::decide(ProcessSet& set) {
  set.undecided = false;
  if (!set.watches.empty()) look_at_watches(set);  // what is decided is not to be seen any more
  decisions_.clear();
  set.negotiation.decide(decisions_);
  for (Decision& decision : decisions_) apply(set, decision);
}

void Engine::apply(ProcessSet& set, Decision& decision) {
  switch (decision.kind) {
    case Decision::Kind::kRelease: {
      const auto found = set.operations.find(decision.release.name_hash);
      const bool own = !set.serves() && decision.release.of(static_cast<std::size_t>(set.self)).present;
      const std::uint64_t number = set.released++;
      if (set.joining()) set.join->excused_until = clock_.now();
      if (own && elastic_ != nullptr && found != set.operations.end()) {
        note_released(set);
        found->second->number = number;
        for (const int member : decision.release.absent()) found->second->carried_out_by.push_back(member);
      }
      // Who has joined takes nothing from it, so that nobody waits for it to.
      const bool sits_out = !own && !decision.release.descriptor->on_device;
      if (sits_out && elastic_ != nullptr && set.tree != nullptr) set.tree->carry_out(number);
      if (own && found == set.operations.end()) {
        throw Error(ErrorKind::kProtocol, "'" + decision.release.descriptor->name +
                                              "' became complete after it had failed on rank " +
                                              std::to_string(rank()));
      }
      set.schedule.release(std::move(decision.release), own ? found->second : nullptr);
      return;
    }
    case Decision::Kind::kFail: {
      const auto found = set.operations.find(decision.name_hash);
      if (found == set.operations.end()) return;
      told_ = decision.error;
      fail_operation(found->second, std::move(decision.error));
      set.operations.erase(found);
      return;
    }
    case Decision::Kind::kStandstill: return note_standstill(set, decision);
    case Decision::Kind::kOffer: return take_offer(set, decision);
    case Decision::Kind::kFlush: set.schedule.flush(); return;
    case Decision::Kind::kJoined:
      if (set.join == nullptr) return;
      set.join->last_joined = set.negotiation.members()[decision.last_joined];
      set.all_joined = true;
      return;
  }
}

void Engine::collect_done(ProcessSet& set) {
  for (const auto& operation : set.schedule.done()) {
    if (operation->error == nullptr && carry_out(set, *operation)) continue;
    set.operations.erase(operation->name_hash);
    if (operation->error != nullptr && timeline_.enabled()) record_failure(*operation);
    complete(operation, std::exchange(operation->error, nullptr));
  }
  set.schedule.done().clear();
  if (set.tree == nullptr) return;
  settle_tree(set);
  if (set.tree != nullptr) send_along_tree(set);
}

void Engine::end_join(ProcessSet& set, const std::shared_ptr<const Error>& error) {
  set.all_joined = false;
  if (error != nullptr) return fail_operation(std::exchange(set.join, nullptr), error);
  complete(std::exchange(set.join, nullptr), nullptr);
}

void Engine::complete(const std::shared_ptr<Operation>& operation, std::shared_ptr<const Error> error) {
  operation->error = std::move(error);
  operation->epoch = membership_.epoch();
  ++completed_count_;
  if (operation->error != nullptr) gave_up();
  if (operation->on_done) {
    --callbacks_;
    completed_.push_back(operation);
  }
  operation->state.store(OperationState::kDone, std::memory_order_release);
}

void Engine::fail_operation(const std::shared_ptr<Operation>& operation, std::shared_ptr<const Error> error) {
  if (timeline_.enabled()) record_failure(*operation);
  complete(operation, std::move(error));
}

// What never came to its end is what one looks for after a failure.
void Engine::record_failure(const Operation& operation) {
  const Nanoseconds now = clock_.now();
  const Nanoseconds begin = operation.submitted_at == 0 ? now : operation.submitted_at;
  timeline_.record({operation.join ? "join" : operation.descriptor.name, "failed", transport::kControlLane, -1, begin,
                    now, operation.bytes(), operation.submitted_at, operation.blocks_program()});
  timeline_.flush();
}

Rank Engine::rank(ProcessSetId set) const {
  const auto found = sets_.find(set);
  return found == sets_.end() ? -1 : found->second->self;
}

int Engine::size(ProcessSetId set) const {
  const auto found = sets_.find(set);
  return found == sets_.end() ? -1 : static_cast<int>(found->second->peers.size());
}

bool Engine::has_served() const {
  const auto world = sets_.find(kWorld);
  return world == sets_.end() || std::ranges::all_of(world->second->peers, [](const Peer* peer) { return peer->left; });
}

std::string Engine::title_of(Rank rank) const {
  const std::string title = "rank " + std::to_string(rank);
  return is_server(rank) ? title + " (server " + std::to_string(rank - size() + serving_) + ")" : title;
}

bool Engine::running() const {
  return std::any_of(sets_.begin(), sets_.end(), [](const auto& item) { return !item.second->schedule.idle(); });
}

bool Engine::busy() const {
  if (eager_.operation != nullptr || frozen()) return true;
  const auto others = membership_.known();
  const bool backlog =
      std::any_of(others.begin(), others.end(), [](const Peer* peer) { return !peer->backlog.empty(); });
  return backlog || (serves() && running()) || std::any_of(sets_.begin(), sets_.end(), [](const auto& item) {
           const ProcessSet& set = *item.second;
           return !set.operations.empty() || set.join != nullptr || !set.watches.empty();
         });
}

ProcessSetId Engine::add_process_set(std::vector<Rank> members, std::optional<ProcessSetId> agreed) {
  const auto own = std::find(members.begin(), members.end(), rank());
  if (agreed && own == members.end()) {
    throw Error(ErrorKind::kInvalidArgument, "rank " + std::to_string(rank()) + " is no member of process set " +
                                                 std::to_string(*agreed) +
                                                 " of those that only their members add. Remedy: call this on members "
                                                 "only.");
  }
  if (change() != nullptr) throw Error(*change());  // these are ranks of the epoch before
  if (!agreed && (serves() || std::ranges::any_of(members, [this](Rank member) { return is_server(member); }))) {
    throw Error(ErrorKind::kInvalidArgument,
                "servers do not count the process sets that all ranks add, and are members of none. Remedy: let the "
                "members alone add it, under a number that they have agreed on.");
  }
  const ProcessSetId id = agreed ? set_numbers_.take_agreed(*agreed) : set_numbers_.take();
  if (own == members.end()) return id;  // the others' business; the id is used up here as well
  make_process_set(id, std::move(members));
  return id;
}

// The part of a set whose number is taken: it may have been here before, in another epoch.
void Engine::make_process_set(ProcessSetId id, std::vector<Rank> members) {
  std::vector<Rank> nodes = members;
  for (Rank server = size() - serving_; id == kWorld && server < size(); ++server) nodes.push_back(server);
  const int self = static_cast<int>(std::ranges::find(nodes, rank()) - nodes.begin());
  plan::Topology topology{.serving = static_cast<int>(nodes.size() - members.size()), .links = network_};
  std::vector<transport::Link*> links;
  std::vector<Peer*> peers;
  for (const Rank node : nodes) {
    topology.host_of.push_back(membership_.host(node));
    peers.push_back(membership_.peer(node));
    links.push_back(peers.back() == nullptr ? nullptr : peers.back()->link.get());
    if (links.back() != nullptr && membership_.shares_host(node) && !links.back()->sees_memory()) {
      topology.memory_shared_in_host = false;
    }
  }
  const std::vector<int> host_of = topology.host_of;
  // The shared fusion buffer is the world's: ranks run the tasks of several process sets in different orders, so that
  // two sets that waited for the same buffer could wait for each other.
  const bool shared = id == kWorld && topology.memory_shared_in_host;
  Schedule schedule({.process_set = id,
                     .epoch = membership_.epoch(),
                     .plans_only = elastic_ != nullptr && elastic_->plans_only,
                     .self = self,
                     .links = std::move(links),
                     .topology = std::move(topology),
                     .fusion_arena = shared ? fusion_arena_ : nullptr,
                     .settings = settings_.execution,
                     .clock = clock_,
                     .timeline = timeline_},
                    make_carriers_);
  auto set = std::make_unique<ProcessSet>(id, std::move(members), self, std::move(schedule));
  const auto servers = peers.end() - (std::ssize(nodes) - std::ssize(set->negotiation.members()));
  set->servers.assign(servers, peers.end());
  set->peers.assign(peers.begin(), servers);
  // Servers are no part of a tree: there everybody tells everybody.
  if (set->servers.empty() && static_cast<int>(set->peers.size()) > settings_.direct_members) {
    set->tree = std::make_unique<AgreementTree>(TreeShape::make(host_of, self, settings_.tree_degree));
    set->signatures = Signatures(1);
  }
  sets_.emplace(id, std::move(set));
  ProcessSet& added = *sets_.at(id);
  replay_early(id);
  break_late(added);
}

void Engine::remove_process_set(ProcessSetId id) {
  const auto found = sets_.find(id);
  if (found == sets_.end()) return set_numbers_.free(id);
  if (eager_.operation != nullptr) leave_eager();
  if (id == kWorld || !found->second->operations.empty() || found->second->join != nullptr ||
      !found->second->schedule.idle()) {
    throw Error(ErrorKind::kInvalidArgument,
                "process set " + std::to_string(id) +
                    (id == kWorld ? " is the world and stays" : " has operations that are not done"));
  }
  fail_watches(*found->second, [&](const Operation& watch) {
    return std::make_shared<const Error>(ErrorKind::kShutdown,
                                         title(watch) + ": this rank has removed process set " + std::to_string(id));
  });
  std::unique_ptr<ProcessSet> removed = std::move(found->second);
  sets_.erase(found);
  set_numbers_.free(id);
  if (removed->tree == nullptr) {
    if (!removed->end) tell_removal(*removed);  // else all are told
    return;
  }
  // Also where it is ending already: what the others say last still goes through this rank.
  removed->tree->end(end_by(*removed, true));
  settle_tree(*removed);
  if (removed->tree != nullptr) removed_sets_.emplace(id, std::move(removed));
}

bool Engine::take_stack_request() { return std::exchange(stack_requested_, false); }

void Engine::reply_stacks(const std::string& text) {
  const std::string cut = text.substr(0, kMaxRecordBytes / 2);
  const std::vector<std::byte> record =
      build_record({.type = RecordType::kStackReply}, {}, {}, std::as_bytes(std::span(cut)));
  for (Peer* peer : membership_.known()) {
    if (std::exchange(peer->wants_stacks, false)) send(*peer, record);
  }
}

}  // namespace ringcore::engine
