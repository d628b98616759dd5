#include "engine/engine.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/quantise.hpp"
#include "engine/elastic.hpp"

namespace ringcore::engine {
namespace {

// Floats may be multiplied by anything, integers by what is whole: the product wraps like their sum.
void check_factor(const Descriptor& descriptor, std::string_view which, double factor) {
  if (factor == 1.0) return;
  constexpr double kLargestExact = 0x1p53;
  const bool whole = std::abs(factor) <= kLargestExact && factor == std::trunc(factor);
  if (is_float(descriptor.dtype) || (whole && descriptor.dtype != DType::kBool)) return;
  throw Error(ErrorKind::kInvalidArgument, title(descriptor) + ": " + std::string(name_of(descriptor.dtype)) +
                                               " is not multiplied by a " + std::string(which) + " of " +
                                               std::to_string(factor) +
                                               ": integers take whole factors only, and bool none. Remedy: convert "
                                               "the tensor to a float dtype, or scale the result yourself.");
}

// Sums of floats of full length, whose bits may depend on how they were sent.
void check_compression(const Descriptor& descriptor) {
  if (descriptor.compression == Compression::kNone) return;
  const std::string title_of_it = title(descriptor) + ": compression " + std::string(name_of(descriptor.compression));
  const bool sums = descriptor.op == ReduceOp::kSum || descriptor.op == ReduceOp::kAverage;
  if (descriptor.collective != Collective::kAllreduce || !sums) {
    throw Error(ErrorKind::kInvalidArgument,
                title_of_it + " is for sums and averages of an allreduce. Remedy: leave it out here.");
  }
  if (!can_quantise(descriptor.dtype)) {
    throw Error(ErrorKind::kInvalidArgument, title_of_it + " takes float32 and float64, not " +
                                                 std::string(name_of(descriptor.dtype)) +
                                                 ". Remedy: convert the tensor, or leave the compression out.");
  }
}

// What a rank can tell without the others.
void check(const Descriptor& descriptor) {
  if (descriptor.is_group()) {
    for (const auto& part : descriptor.parts) check(*part);
    return;
  }
  const bool reduces =
      descriptor.collective == Collective::kAllreduce || descriptor.collective == Collective::kReduceScatter;
  if (reduces && descriptor.op == ReduceOp::kAverage && !is_float(descriptor.dtype)) {
    throw Error(ErrorKind::kInvalidArgument, title(descriptor) + ": the average of " +
                                                 std::string(name_of(descriptor.dtype)) +
                                                 " is not defined without rounding. Remedy: use op=Sum and divide, or "
                                                 "convert the tensor to a float dtype.");
  }
  check_compression(descriptor);
  if (reduces) {
    check_factor(descriptor, "prescale_factor", descriptor.prescale);
    check_factor(descriptor, "postscale_factor", descriptor.postscale);
  }
  const bool deals_rows =
      descriptor.collective == Collective::kReduceScatter || descriptor.collective == Collective::kAlltoall;
  if (deals_rows && descriptor.shape.dims == 0) {
    throw Error(ErrorKind::kInvalidArgument, title(descriptor) +
                                                 ": a scalar has no rows to deal out. Remedy: pass a tensor of at "
                                                 "least one dimension.");
  }
}

// Of an alltoall without splits.
std::vector<std::uint64_t> even_splits(const Descriptor& descriptor, std::size_t members) {
  const std::uint64_t rows = descriptor.shape.rows();
  if (rows % members != 0) {
    throw Error(ErrorKind::kInvalidArgument, title(descriptor) + ": " + std::to_string(rows) +
                                                 " rows cannot be divided evenly among " + std::to_string(members) +
                                                 " ranks. Remedy: pass splits.");
  }
  return std::vector<std::uint64_t>(members, rows / members);
}

// The caller's place for this rank's share of a reducescatter has its rows, and lies apart from the tensor or where the
// share comes from.
void check_share(const Operation& operation, int self, std::size_t members) {
  const Shape& shape = operation.descriptor.shape;
  const auto before = shape.rows() / members * static_cast<std::uint64_t>(self) +
                      std::min<std::uint64_t>(static_cast<std::uint64_t>(self), shape.rows() % members);
  const std::uint64_t share =
      shape.rows() / members + (static_cast<std::uint64_t>(self) < shape.rows() % members ? 1 : 0);
  if (operation.output_rows != share) {
    throw Error(ErrorKind::kInvalidArgument, title(operation) + ": an output of " +
                                                 std::to_string(operation.output_rows) + " rows was given, and of " +
                                                 std::to_string(shape.rows()) + " rows this rank gets " +
                                                 std::to_string(share) + ". Remedy: pass an output of so many rows.");
  }
  const std::size_t row_bytes = shape.row_elements() * size_of(operation.descriptor.dtype);
  const bool apart = operation.output + share * row_bytes <= operation.input ||
                     operation.input + operation.bytes() <= operation.output || share * row_bytes == 0;
  if (apart || operation.output == operation.input + before * row_bytes) return;
  throw Error(ErrorKind::kInvalidArgument,
              title(operation) +
                  ": the output shares memory with other rows of the tensor than those that this rank "
                  "gets. Remedy: pass these rows, or another output.");
}

// What the caller gave for results: announced where only all ranks together know whether it fits.
void place_outputs(Operation& operation, int self, std::size_t members) {
  const auto place = [&](const Operation& one) {
    if (one.output == nullptr) return;
    if (one.descriptor.collective == Collective::kReduceScatter) check_share(one, self, members);
    if (one.descriptor.has_free_rows()) operation.splits.push_back(one.output_rows);
  };
  if (operation.parts.empty()) return place(operation);
  for (const auto& part : operation.parts) place(*part);
}

// What is announced goes into one record: a group with all its tensors, an alltoall with a split for each rank.
void check_record_size(const Operation& operation, std::size_t members) {
  const bool is_group = operation.descriptor.is_group();
  if (!is_group && operation.splits.size() * 8 + kMaxNameBytes <= kMaxPayloadBytes) return;
  const std::size_t bytes =
      sizeof(RecordHeader) + encode(operation.descriptor).size() + operation.splits.size() * 8 + 7;
  if (bytes <= kMaxRecordBytes) return;
  const std::string what = is_group ? "a group of " + std::to_string(operation.parts.size()) + " tensors"
                                    : "splits for " + std::to_string(members) + " ranks";
  throw Error(ErrorKind::kInvalidArgument,
              title(operation) + ": " + what + " need " + std::to_string(bytes) + " bytes to be announced, and " +
                  std::to_string(kMaxRecordBytes) + " are possible. Remedy: " +
                  (is_group ? "submit them as several groups." : "use process sets of fewer ranks."));
}

}  // namespace

Engine::Engine(EngineConfig config, EngineSettings settings, const Clock& clock)
    : readiness_(config.readiness),
      arena_(config.arena),
      fusion_arena_(config.fusion_arena),
      make_carriers_(std::move(config.make_carriers)),
      network_(std::move(config.network)),
      settings_(settings),
      clock_(clock),
      membership_(config.epoch, config.rank, std::move(config.links), std::move(config.host_of), clock.now(),
                  config.joins),
      timers_checked_(clock.now()),
      standstill_{.all = Standstills(static_cast<std::size_t>(membership_.size()))} {
  if (settings_.elastic) {
    elastic_ = std::make_unique<Elastic>(
        Elastic{.views = ViewChange({config.epoch, membership_.members()}, membership_.own_place(), config.has_witness,
                                    settings_.heartbeat / 40, [this] { return stand_still(); })});
    elastic_->members_of.emplace(config.epoch, membership_.members());
  }
  if (membership_.is_member()) {
    add_process_set(membership_.ranks());
  } else {
    set_numbers_.take();  // the world's, which this rank is a member of when it is let in
  }
  links_changed();
}

Engine::~Engine() = default;

void Engine::links_changed() {
  const Nanoseconds now = clock_.now();
  for (Peer* peer : membership_.peers()) {
    if (peer->connected || !peer->link->has(transport::kControlLane)) continue;
    peer->connected = true;
    peer->last_sent = peer->last_heard = now;
    if (peer->is_known) continue;
    say_hello(*peer);
    if (failure_ != nullptr) tell_failure(*peer);  // others have heard it
    if (failure_ == nullptr && said_goodbye_) tell_goodbye(*peer);
  }
}

void Engine::submit(const std::shared_ptr<Operation>& operation) {
  all_wait({});
  standstill_.waits.clear();
  if (sets_.count(operation->process_set) == 0) {
    throw Error(ErrorKind::kInvalidArgument, title(*operation) + ": there is no process set " +
                                                 std::to_string(operation->process_set) + " on rank " +
                                                 std::to_string(rank()));
  }
  if (!operation->join) claim_name(*operation);
  ProcessSet& set = *sets_.at(operation->process_set);
  if (failure_ != nullptr) throw Error(failure_->kind(), title(*operation) + ": " + failure_->what());
  const Descriptor& descriptor = operation->descriptor;
  // First of all what is wrong with it here: whoever has made the same mistake has left meanwhile.
  if (!operation->join) {
    try {
      prepare(set, *operation);
    } catch (const Error& error) {
      refuse(set.id, descriptor.name, error.what());
      throw;
    }
  }
  if (goes_on_without_others() && hold_back(set, operation)) return;
  if (set.end) {
    if (set.end->kind == ErrorKind::kPeerLost) suffer_from({set.end->rank, rank()});
    throw_ended(set, *operation, *set.end);
  }
  for (const Peer* peer : set.peers) {
    if (set.tree != nullptr) break;  // which tells of those who leave
    if (peer != nullptr && peer->left) {
      suffer_from({peer->rank, rank()});
      throw_ended(set, *operation, leaving(*peer));
    }
  }
  if (set.removed_by) throw_ended(set, *operation, removal(set, *set.removed_by));
  if (operation->join) {
    operation->submitted_at = clock_.now();
    if (set.join != nullptr) throw Error(ErrorKind::kDuplicateName, "join: this rank has joined already");
    if (eager_.operation != nullptr) leave_eager();
    set.join = operation;
    if (operation->on_done) ++callbacks_;
    return append_own(set, {.type = RecordType::kJoin});
  }
  if (operation->on_done) ++callbacks_;
  if (eager_.operation != nullptr) leave_eager();
  const bool eager = goes_eagerly(set, *operation);
  if (eager && start_eager(set, operation)) return;
  operation->submitted_at = clock_.now();
  enter(set, operation, eager);
}

// Whether it takes its data along.
bool Engine::goes_eagerly(const ProcessSet& set, const Operation& operation) const {
  const std::size_t others = std::max<std::size_t>(set.peers.size() - 1, 1);
  const std::size_t limit = set.tree != nullptr ? 0 : std::min(settings_.eager_limit_bytes, kMaxPayloadBytes) / others;
  return is_eager(operation, set.peers.size(), limit, registered_at(operation).has_value());
}

// Announces the operation to the members, which decide when it is released.
void Engine::enter(ProcessSet& set, const std::shared_ptr<Operation>& operation, bool eager) {
  set.operations.emplace(operation->name_hash, operation);
  const Descriptor& descriptor = operation->descriptor;
  const std::optional<std::uint64_t> registered = registered_at(*operation);
  RecordHeader header{.type = RecordType::kOperation, .process_set = set.id};
  header.signature = operation->signature;
  header.name_hash = operation->name_hash;
  header.rows = descriptor.shape.rows();
  header.priority = operation->priority;
  if (registered) header.location = *registered + 1;
  header.flags |= flags_of(*operation);
  if (eager || goes_along_tree(set, *operation, registered.has_value())) header.flags |= kEager;
  const bool closes_buckets = set.unflushed && operation->awaited;
  set.unflushed = !operation->awaited;
  try {
    announce(set, header, *operation);
    if (closes_buckets) set.flushed_until = set.negotiation.length(set.self);
  } catch (const std::bad_alloc&) {
    // Some ranks may know of it already: from here on it ends as all others do.
    fail(std::make_shared<const Error>(
        ErrorKind::kResource,
        title(*operation) + ": rank " + std::to_string(rank()) +
            " has not enough memory to announce it. Remedy: submit less at once, or use fewer ranks a host."));
  }
}

void Engine::throw_ended(const ProcessSet& set, const Operation& operation, const LogEnd& end) const {
  if (const auto cause = told_as(end)) throw *cause;
  if (const auto refusal = set.negotiation.refusal(set.member(end.rank), operation.name_hash)) throw *refusal;
  throw Error(end.kind,
              title(operation) + ": rank " + std::to_string(end.rank) + " " + end.what + ". Remedy: " + end.remedy);
}

// Looks at what this rank can tell without the others, and lets the carrier prepare what it needs.
void Engine::prepare(ProcessSet& set, Operation& operation) {
  if (operation.renewed) return;
  const Descriptor& descriptor = operation.descriptor;
  check(descriptor);
  if (descriptor.on_device) set.schedule.admit(operation);
  operation.signature = descriptor.signature();
  if (descriptor.collective == Collective::kAlltoall && operation.splits.empty()) {
    operation.splits = even_splits(descriptor, set.peers.size());
  }
  place_outputs(operation, set.self, set.peers.size());
  if (descriptor.is_group() || !operation.splits.empty()) check_record_size(operation, set.peers.size());
}

void Engine::refuse(ProcessSetId id, const std::string& name, const std::string& why) {
  const auto found = sets_.find(id);
  if (found == sets_.end() || failure_ != nullptr || left_ || frozen()) return;
  if (eager_.operation != nullptr) leave_eager();
  const std::string text = ("rank " + std::to_string(rank()) + " refused " + why).substr(0, kMaxPayloadBytes / 2);
  append_own(*found->second, {.type = RecordType::kRefused, .name_hash = hash_bytes(name)},
             std::as_bytes(std::span(text)));
}

// Whether an operation of that name is under way, by the short cut or not.
bool Engine::has_operation(const ProcessSet& set, std::uint64_t name_hash) const {
  const bool in_short_cut = eager_.set == &set && eager_.operation->name_hash == name_hash;
  return in_short_cut || set.operations.count(name_hash) > 0;
}

void Engine::claim_name(Operation& operation) {
  operation.name_hash = operation.descriptor.name_hash();
  const auto is_claimed = [&] { return has_operation(*sets_.at(operation.process_set), operation.name_hash); };
  if (!is_claimed()) return;
  progress();  // the others may have answered, and nobody has looked
  if (!is_claimed()) return;
  throw Error(ErrorKind::kDuplicateName,
              title(operation) + ": rank " + std::to_string(rank()) +
                  " submitted this name again before its first use was done. Remedy: synchronize the first one, or "
                  "give each tensor a name of its own. A call that was interrupted is done when all ranks have made "
                  "it.");
}

// Where the data lies in this rank's arena, of an operation in place on registered memory, of an alltoall of what lies
// there, and of an allgather into it: what the others read there is ready when they hear of it, or, of the allgather, when
// it runs.
std::optional<std::uint64_t> Engine::registered_at(const Operation& operation) const {
  const Descriptor& descriptor = operation.descriptor;
  if (arena_ == nullptr || descriptor.on_device) return std::nullopt;
  if (descriptor.collective == Collective::kAlltoall) return arena_->offset_of(operation.input, operation.bytes());
  if (operation.output == nullptr) return std::nullopt;
  if (descriptor.collective == Collective::kAllgather && !descriptor.is_group()) {
    const std::size_t row_bytes = descriptor.shape.row_elements() * size_of(descriptor.dtype);
    return arena_->offset_of(operation.output, operation.output_rows * row_bytes);
  }
  if (!is_in_place(operation)) return std::nullopt;
  const bool scatters = descriptor.collective == Collective::kReduceScatter;
  return arena_->offset_of(scatters ? operation.input : operation.output, operation.bytes());
}

void Engine::wanted(Operation& operation, bool only_thread) {
  if (operation.done() || operation.join || failure_ != nullptr || left_ || frozen()) return;
  ProcessSet& set = *sets_.at(operation.process_set);
  RecordHeader header{.type = RecordType::kNoop, .flags = kFlush, .name_hash = operation.name_hash};
  if (only_thread) header.flags |= kBlocked;
  close_buckets(set, header);
}

// Tells all members, unless nothing was announced since.
void Engine::close_buckets(ProcessSet& set, const RecordHeader& header) {
  if (!set.unflushed) return;
  set.unflushed = false;
  append_own(set, header);
  set.flushed_until = set.negotiation.length(set.self);
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
    moved = read_control(*peer) || moved;
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
    if (until > set->negotiation.length(set->self)) fill(*set, until, nullptr);
    if (set->tree != nullptr) send_along_tree(*set);
    if (!draining()) moved = set->schedule.progress() || moved;
    collect_done(*set);
    // Whoever leaves now takes nothing with it that others still need.
    if (set->all_joined && set->schedule.idle()) end_join(*set, nullptr);
    if (std::string warning = set->schedule.take_warning(); !warning.empty()) warnings_.push_back(std::move(warning));
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
  decisions_.clear();
  set.negotiation.decide(decisions_);
  for (Decision& decision : decisions_) apply(set, decision);
}

void Engine::apply(ProcessSet& set, Decision& decision) {
  switch (decision.kind) {
    case Decision::Kind::kRelease: {
      const auto found = set.operations.find(decision.release.name_hash);
      const bool own = decision.release.of(set.self).present;
      const std::uint64_t number = set.released++;
      if (own && elastic_ != nullptr && found != set.operations.end()) {
        found->second->number = number;
        for (const int member : decision.release.absent()) found->second->carried_out_by.push_back(member);
      }
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

bool Engine::running() const {
  return std::any_of(sets_.begin(), sets_.end(), [](const auto& item) { return !item.second->schedule.idle(); });
}

bool Engine::busy() const {
  if (eager_.operation != nullptr || frozen()) return true;
  const auto others = membership_.known();
  const bool backlog =
      std::any_of(others.begin(), others.end(), [](const Peer* peer) { return !peer->backlog.empty(); });
  return backlog || std::any_of(sets_.begin(), sets_.end(), [](const auto& item) {
           return !item.second->operations.empty() || item.second->join != nullptr;
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
  const ProcessSetId id = agreed ? set_numbers_.take_agreed(*agreed) : set_numbers_.take();
  if (own == members.end()) return id;  // the others' business; the id is used up here as well
  make_process_set(id, std::move(members));
  return id;
}

// The part of a set whose number is taken: it may have been here before, in another epoch.
void Engine::make_process_set(ProcessSetId id, std::vector<Rank> members) {
  const int self = static_cast<int>(std::ranges::find(members, rank()) - members.begin());
  plan::Topology topology{.links = network_};
  std::vector<int> host_of;
  std::vector<transport::Link*> links;
  std::vector<Peer*> peers;
  for (const Rank member : members) {
    topology.host_of.push_back(membership_.host(member));
    host_of.push_back(membership_.host(member));
    peers.push_back(membership_.peer(member));
    links.push_back(peers.back() == nullptr ? nullptr : peers.back()->link.get());
    if (links.back() != nullptr && membership_.shares_host(member) && !links.back()->sees_memory()) {
      topology.memory_shared_in_host = false;
    }
  }
  // The shared fusion buffer is the world's: ranks run the tasks of several process sets in different orders, so that
  // two sets that waited for the same buffer could wait for each other.
  const bool shared = id == kWorld && topology.memory_shared_in_host;
  Schedule schedule({.process_set = id,
                     .self = self,
                     .links = std::move(links),
                     .topology = std::move(topology),
                     .fusion_arena = shared ? fusion_arena_ : nullptr,
                     .settings = settings_.execution,
                     .clock = clock_,
                     .timeline = timeline_},
                    make_carriers_);
  auto set = std::make_unique<ProcessSet>(id, std::move(members), self, std::move(schedule));
  set->peers = std::move(peers);
  // In elastic jobs everybody tells everybody: a tree could lose any of its members.
  if (elastic_ == nullptr && static_cast<int>(set->peers.size()) > settings_.direct_members) {
    set->tree = std::make_unique<AgreementTree>(TreeShape::make(host_of, self));
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
  std::unique_ptr<ProcessSet> removed = std::move(found->second);
  sets_.erase(found);
  set_numbers_.free(id);
  if (removed->end) return;  // all are told
  if (removed->tree == nullptr) return tell_removal(*removed);
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
