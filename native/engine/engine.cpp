#include "engine/engine.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace ringcore::engine {
namespace {

// Changes with every incompatible change of records, plans or lanes.
constexpr std::uint64_t kProtocolVersion = 1;
// The number of a process set is part of the number of its runs, see Execution::schedule.
constexpr ProcessSetId kLastProcessSet = 4095;
// Payloads up to this size are copied behind their header, so that one write publishes both.
constexpr std::size_t kOneWriteBytes = 1024;
// Records for a process set that this rank has not added yet wait for it; more than this is an error.
constexpr std::size_t kMaxEarlyBytes = std::size_t{64} << 20;

// What all ranks must have set alike, because decisions depend on it.
struct Agreement {
  std::uint64_t protocol = kProtocolVersion;
  std::uint64_t fusion_threshold_bytes = 0;
  std::uint64_t deterministic = 0;
};

std::string title(const Operation& operation) {
  return operation.join
             ? "join"
             : std::string(name_of(operation.descriptor.collective)) + " '" + operation.descriptor.name + "'";
}

std::string list_ranks(const std::vector<Rank>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

// Up to this size sending it along is quicker even for data that the others could fetch from registered memory.
constexpr std::size_t kMaxEagerRegistered = 16 * 1024;

// Whether the operation carries its data in the announcement. Where ranks answer differently, the data is not used.
bool is_eager(const Operation& operation, std::size_t members, std::size_t limit, bool registered) {
  const Descriptor& descriptor = operation.descriptor;
  // A root that is no member is found by the general way.
  if (static_cast<std::uint64_t>(static_cast<std::int64_t>(descriptor.root)) >= members) return false;
  if (!operation.blocking || descriptor.group != 0 || descriptor.prescale != 1.0) return false;
  if (registered && operation.bytes() > kMaxEagerRegistered) return false;
  if (descriptor.collective == Collective::kBarrier) return true;
  return (descriptor.collective == Collective::kAllreduce || descriptor.collective == Collective::kBroadcast) &&
         operation.bytes() <= limit;
}

// The fixed part of a log entry, as it travels.
Entry entry_of(const RecordHeader& header) {
  Entry entry;
  entry.type = header.type;
  entry.flags = header.flags;
  entry.signature = header.signature;
  entry.name_hash = header.name_hash;
  entry.rows = header.rows;
  entry.location = header.location;
  entry.priority = header.priority;
  return entry;
}

bool is_in_place(const Operation& operation) {
  return operation.output != nullptr && operation.output == operation.input;
}

std::uint8_t blocking_flags(const Operation& operation) {
  return (operation.blocking ? kFlush : 0) | (operation.only_thread ? kBlocked : 0);
}

// How many bytes member `member` sends along with its announcement of an eager operation.
std::size_t eager_bytes(const Descriptor& descriptor, int member) {
  switch (descriptor.collective) {
    case Collective::kAllreduce: return descriptor.shape.elements() * size_of(descriptor.dtype);
    case Collective::kBroadcast:
      return member == descriptor.root ? descriptor.shape.elements() * size_of(descriptor.dtype) : 0;
    case Collective::kBarrier:
    case Collective::kAllgather:
    case Collective::kReduceScatter:
    case Collective::kAlltoall: return 0;
  }
  __builtin_unreachable();
}

// " (it raised ...)", " (after rank 2 had left: it raised ...)" or nothing.
std::string describe_farewell(Rank rank, Rank first, const std::string& why) {
  if (rank == first) return why.empty() ? "" : " (" + why + ")";
  return " (after rank " + std::to_string(first) + " had left" + (why.empty() ? "" : ": " + why) + ")";
}

}  // namespace

// A connected rank.
struct Engine::Peer {
  Rank rank = 0;
  transport::Link* link = nullptr;
  std::uint32_t sent_records = 0;
  std::uint32_t received_records = 0;
  std::vector<std::byte> backlog;  // control bytes that the lane had no room for
  std::size_t backlog_sent = 0;
  Nanoseconds last_sent = 0;
  Nanoseconds last_heard = 0;
  bool greeted = false;
  bool left = false;  // said goodbye
  bool gone = false;  // and its link's end has been noticed
  std::string farewell;
  bool saw_farewell = false;
  bool wants_stacks = false;
};

struct Engine::ProcessSet {
  ProcessSet(ProcessSetId id, std::vector<Rank> ranks, int self, Execution execution)
      : id(id), self(self), negotiation(std::move(ranks), self), execution(std::move(execution)) {}
  ProcessSetId id;
  int self;  // index among the members
  Negotiation negotiation;
  Execution execution;
  std::vector<Peer*> peers;  // by member, null at self
  std::unordered_map<std::uint64_t, std::shared_ptr<Operation>> operations;  // not done; by name hash
  std::unordered_set<std::uint64_t> announced;  // signatures whose descriptors all members have from us
  std::shared_ptr<Operation> join;
  bool undecided = false;   // entries were appended since the last decision
  bool unflushed = false;   // something was announced that may sit in an open bucket
  std::uint64_t flushed_until = 0;  // position behind this rank's last wish to close the buckets
  std::uint64_t filled_for = 0;  // length of the longest log for which a fill was last asked

  int member(Rank rank) const {
    const auto& members = negotiation.members();
    return static_cast<int>(std::lower_bound(members.begin(), members.end(), rank) - members.begin());
  }
};

Engine::Engine(EngineConfig config, EngineSettings settings, const Clock& clock)
    : rank_(config.rank),
      epoch_(config.epoch),
      links_(std::move(config.links)),
      host_of_(std::move(config.host_of)),
      arena_(config.arena),
      fusion_arena_(config.fusion_arena),
      settings_(settings),
      clock_(clock),
      last_tend_(clock.now()) {
  std::vector<Rank> world(links_.size());
  peers_.resize(links_.size());
  for (std::size_t r = 0; r < links_.size(); ++r) {
    world[r] = static_cast<Rank>(r);
    if (links_[r] == nullptr) continue;
    peers_[r] = std::make_unique<Peer>();
    peers_[r]->rank = static_cast<Rank>(r);
    peers_[r]->link = links_[r].get();
    peers_[r]->last_sent = peers_[r]->last_heard = last_tend_;
  }
  add_process_set(std::move(world));
  const Agreement agreement{.protocol = kProtocolVersion,
                            .fusion_threshold_bytes = settings_.execution.fusion_threshold_bytes,
                            .deterministic = settings_.execution.deterministic};
  RecordHeader hello{.type = RecordType::kHello, .rows = static_cast<std::uint64_t>(rank_), .location = links_.size()};
  broadcast(kWorld, hello, std::as_bytes(std::span(&agreement, 1)));
}

Engine::~Engine() = default;

// ---- submitting ----

void Engine::submit(const std::shared_ptr<Operation>& operation) {
  const auto found = sets_.find(operation->process_set);
  if (found == sets_.end()) {
    throw Error(ErrorKind::kInvalidArgument, title(*operation) + ": there is no process set " +
                                                 std::to_string(operation->process_set) + " on rank " +
                                                 std::to_string(rank_));
  }
  if (failure_ != nullptr) throw *failure_;
  ProcessSet& set = *found->second;
  for (const Peer* peer : set.peers) {
    if (peer != nullptr && peer->left) {
      throw Error(ErrorKind::kPeerLost, title(*operation) + ": rank " + std::to_string(peer->rank) + " has left" +
                                            peer->farewell +
                                            ". Remedy: let every rank run the same number of "
                                            "operations, or call join() on ranks that finish early.");
    }
  }
  operation->submitted_at = clock_.now();
  if (operation->join) {
    if (set.join != nullptr) throw Error(ErrorKind::kDuplicateName, "join: this rank has joined already");
    set.join = operation;
    broadcast(set.id, {.type = RecordType::kJoin, .process_set = set.id}, {});
    set.negotiation.append(set.self, Entry{.type = RecordType::kJoin});
    set.undecided = true;
    return;
  }
  Descriptor& descriptor = operation->descriptor;
  operation->name_hash = descriptor.name_hash();
  operation->signature = descriptor.signature();
  if (set.operations.count(operation->name_hash) > 0) {
    throw Error(ErrorKind::kDuplicateName,
                title(*operation) + ": rank " + std::to_string(rank_) +
                    " submitted this name again before its first use was done. Remedy: synchronize the first one, or "
                    "give each tensor a name of its own.");
  }
  if (eager_.operation != nullptr) leave_eager();
  const std::size_t others = std::max<std::size_t>(set.peers.size() - 1, 1);
  const std::size_t eager_limit = std::min(settings_.eager_limit_bytes, kMaxPayloadBytes) / others;
  const std::optional<std::uint64_t> registered = registered_at(*operation);
  const bool eager = is_eager(*operation, set.peers.size(), eager_limit, registered.has_value());
  if (eager && start_eager(set, operation)) return;
  set.operations.emplace(operation->name_hash, operation);

  RecordHeader header{.type = RecordType::kOperation, .process_set = set.id};
  header.signature = operation->signature;
  header.name_hash = operation->name_hash;
  header.rows = descriptor.shape.rows();
  header.priority = operation->priority;
  if (is_in_place(*operation)) header.flags |= kInPlace;
  if (registered) header.location = *registered + 1;
  header.flags |= blocking_flags(*operation);
  if (eager) header.flags |= kEager;
  set.unflushed = !operation->blocking;
  announce(set, header, *operation);
}

// Where the data lies in this rank's arena, of an operation in place on registered memory.
std::optional<std::uint64_t> Engine::registered_at(const Operation& operation) const {
  if (arena_ == nullptr || !is_in_place(operation)) return std::nullopt;
  return arena_->offset_of(operation.output, operation.bytes());
}

// Appends the operation to this rank's log, here and at every member.
void Engine::announce(ProcessSet& set, RecordHeader header, const Operation& operation) {
  Entry entry = entry_of(header);
  entry.splits = operation.splits;
  entry.descriptor = set.negotiation.find(header.signature);
  // The full shape of an allgather differs from call to call although its signature does not.
  const bool first_use = set.announced.insert(header.signature).second;
  if (entry.descriptor == nullptr) {
    entry.descriptor = std::make_shared<const Descriptor>(operation.descriptor);
    set.negotiation.learn(entry.descriptor, header.signature);
  }
  header.position = set.negotiation.length(set.self);
  std::vector<std::byte> descriptor;
  if (first_use) {
    header.flags |= kHasDescriptor;
    descriptor = encode(operation.descriptor);
  }
  std::span<const std::byte> payload;
  if ((header.flags & kEager) != 0) payload = {operation.input, eager_bytes(operation.descriptor, set.self)};
  const std::vector<std::byte> record = build_record(header, descriptor, operation.splits, payload);
  for (Peer* peer : set.peers) {
    if (peer != nullptr) send(*peer, record);
  }
  set.negotiation.append(set.self, std::move(entry));
  set.undecided = true;
}

// A record without an operation, for all members of a process set; entries of the log are appended here by the caller.
void Engine::broadcast(ProcessSetId id, RecordHeader header, std::span<const std::byte> payload) {
  const ProcessSet& set = *sets_.at(id);
  header.process_set = id;
  header.position = set.negotiation.length(set.self);
  const std::vector<std::byte> record = build_record(header, {}, {}, payload);
  for (Peer* peer : set.peers) {
    if (peer != nullptr) send(*peer, record);
  }
}

void Engine::send(Peer& peer, std::span<const std::byte> record) {
  RecordHeader header;
  std::memcpy(&header, record.data(), sizeof(header));
  send(peer, header, record.subspan(sizeof(header)));
}

void Engine::send(Peer& peer, RecordHeader header, std::span<const std::byte> rest) {
  if (peer.left || peer.link->failure()) return;
  header.epoch = epoch_;
  header.sequence = peer.sent_records++;
  peer.last_sent = last_tend_;
  std::array<std::byte, sizeof(RecordHeader) + kOneWriteBytes> together;
  std::memcpy(together.data(), &header, sizeof(header));
  std::span<const std::byte> first(together.data(), sizeof(header));
  if (rest.size() <= kOneWriteBytes) {
    if (!rest.empty()) std::memcpy(together.data() + sizeof(header), rest.data(), rest.size());
    first = {together.data(), sizeof(header) + rest.size()};
    rest = {};
  }
  for (std::span<const std::byte> part : {first, rest}) {
    if (peer.backlog.empty()) part = part.subspan(peer.link->write(transport::kControlLane, part));
    peer.backlog.insert(peer.backlog.end(), part.begin(), part.end());
  }
}

bool Engine::flush_backlog(Peer& peer) {
  if (peer.backlog.empty()) return false;
  const auto rest = std::span<const std::byte>(peer.backlog).subspan(peer.backlog_sent);
  const std::size_t written = peer.link->write(transport::kControlLane, rest);
  peer.backlog_sent += written;
  if (peer.backlog_sent == peer.backlog.size() || peer.link->failure()) {
    peer.backlog.clear();
    peer.backlog_sent = 0;
  }
  return written > 0;
}

void Engine::wanted(Operation& operation, bool only_thread) {
  if (operation.done() || operation.join || failure_ != nullptr) return;
  ProcessSet& set = *sets_.at(operation.process_set);
  if (!set.unflushed) return;
  set.unflushed = false;
  RecordHeader header{.type = RecordType::kNoop, .flags = kFlush, .name_hash = operation.name_hash};
  if (only_thread) header.flags |= kBlocked;
  append_noop(set, header);
  set.flushed_until = set.negotiation.length(set.self);
}

void Engine::append_noop(ProcessSet& set, RecordHeader header) {
  broadcast(set.id, header, {});
  set.negotiation.append(set.self,
                         Entry{.type = RecordType::kNoop, .flags = header.flags, .name_hash = header.name_hash});
  set.undecided = true;
}

// ---- the short cut for small blocking operations ----

bool Engine::start_eager(ProcessSet& set, const std::shared_ptr<Operation>& operation) {
  const Descriptor& descriptor = operation->descriptor;
  if (set.peers.size() == 1 || !set.operations.empty() || !set.negotiation.quiet() || !set.execution.idle() ||
      set.announced.count(operation->signature) == 0) {
    return false;
  }
  // While it waits nothing else moves: there must be nothing else.
  for (const auto& [id, other] : sets_) {
    if (!other->operations.empty() || other->join != nullptr || !other->execution.idle()) return false;
  }
  RecordHeader header{.type = RecordType::kOperation, .process_set = set.id};
  header.flags = kEager | blocking_flags(*operation) | (is_in_place(*operation) ? kInPlace : 0);
  header.position = set.negotiation.length(set.self);
  header.signature = operation->signature;
  header.name_hash = operation->name_hash;
  header.rows = descriptor.shape.rows();
  const std::size_t bytes = eager_bytes(descriptor, set.self);
  header.payload_bytes = static_cast<std::uint32_t>(bytes);
  header.bytes = static_cast<std::uint32_t>((sizeof(header) + bytes + 7) / 8 * 8);
  // The padding behind the payload is never looked at; it must only be there.
  std::span<const std::byte> payload(operation->input, bytes);
  if (bytes % 8 != 0) {
    eager_padded_.resize(header.bytes - sizeof(header));
    std::memcpy(eager_padded_.data(), operation->input, bytes);
    payload = eager_padded_;
  }
  for (Peer* peer : set.peers) {
    if (peer != nullptr) send(*peer, header, payload);
  }
  eager_ = {operation, &set};
  eager_sources_.assign(set.peers.size(), nullptr);
  eager_sources_[set.self] = operation->input;
  eager_record_bytes_.assign(set.peers.size(), 0);
  const bool sent = std::all_of(set.peers.begin(), set.peers.end(),
                                [](const Peer* peer) { return peer == nullptr || peer->backlog.empty(); });
  if (!sent) leave_eager();
  return true;
}

// Looks at the front of every lane. True when the operation is complete.
bool Engine::progress_eager() {
  ProcessSet& set = *eager_.set;
  Operation& operation = *eager_.operation;
  bool all = true;
  for (std::size_t m = 0; m < set.peers.size(); ++m) {
    if (set.peers[m] == nullptr) continue;
    const std::span<const std::byte> bytes = set.peers[m]->link->peek(transport::kControlLane);
    if (bytes.size() < sizeof(RecordHeader)) {
      all = false;
      continue;
    }
    RecordHeader header;
    std::memcpy(&header, bytes.data(), sizeof(header));
    const std::size_t expected = eager_bytes(operation.descriptor, static_cast<int>(m));
    const bool same = header.type == RecordType::kOperation && header.signature == operation.signature &&
                      header.process_set == set.id && (header.flags & kEager) != 0 && header.epoch == epoch_ &&
                      header.sequence == set.peers[m]->received_records &&
                      header.position == set.negotiation.length(set.self) && header.splits_count == 0 &&
                      header.descriptor_bytes == 0 && header.payload_bytes == expected &&
                      header.bytes == (sizeof(header) + expected + 7) / 8 * 8;
    if (!same) {
      leave_eager();
      return false;
    }
    if (bytes.size() < header.bytes) {
      all = false;
      continue;
    }
    eager_sources_[m] = bytes.data() + sizeof(header);
    eager_record_bytes_[m] = header.bytes;
  }
  if (!all) return false;
  const std::shared_ptr<Operation> done = std::move(eager_.operation);
  eager_ = {};
  set.execution.finish_eager(done->descriptor, eager_sources_, *done);
  for (std::size_t m = 0; m < set.peers.size(); ++m) {
    if (set.peers[m] == nullptr) continue;
    ++set.peers[m]->received_records;
    set.peers[m]->link->consume(transport::kControlLane, eager_record_bytes_[m]);
  }
  set.negotiation.skip_round();
  done->state.store(OperationState::kDone, std::memory_order_release);
  return true;
}

// Something else has come: the general way takes over; the records still lie in their lanes.
void Engine::leave_eager() {
  const std::shared_ptr<Operation> operation = std::move(eager_.operation);
  ProcessSet& set = *eager_.set;
  eager_ = {};
  set.operations.emplace(operation->name_hash, operation);
  Entry entry{.type = RecordType::kOperation};
  entry.flags = kEager | blocking_flags(*operation) | (is_in_place(*operation) ? kInPlace : 0);
  entry.signature = operation->signature;
  entry.name_hash = operation->name_hash;
  entry.rows = operation->descriptor.shape.rows();
  entry.descriptor = set.negotiation.find(operation->signature);
  set.negotiation.append(set.self, std::move(entry));
  set.undecided = true;
}

// ---- moving ----

bool Engine::progress() {
  if (failure_ != nullptr) return false;
  try {
    return move();
  } catch (const Error& error) {
    fail(std::make_shared<const Error>(error));
  } catch (const std::bad_alloc&) {
    fail(std::make_shared<const Error>(
        ErrorKind::kResource, "rank " + std::to_string(rank_) + " has not enough memory. " + pending_summary() +
                                  " Remedy: gather or scatter less at once, or use fewer ranks a host."));
  }
  return true;
}

bool Engine::move() {
  if (eager_.operation != nullptr && progress_eager()) return true;
  if (eager_.operation != nullptr) return false;
  bool moved = false;
  for (const auto& peer : peers_) {
    if (peer == nullptr) continue;
    moved = flush_backlog(*peer) || moved;
    moved = read_control(*peer) || moved;
    if (failure_ != nullptr) return true;
  }
  for (auto& [id, set] : sets_) {
    if (set->undecided) decide(*set);
    const std::uint64_t until = set->negotiation.fill_until();
    if (until > set->negotiation.length(set->self)) fill(*set, until, nullptr);
    moved = set->execution.progress() || moved;
    collect_done(*set);
  }
  return moved || make_way();
}

// When nothing moves and several process sets are at work: a transfer of one may stand in the way of another's.
bool Engine::make_way() {
  const auto running =
      std::count_if(sets_.begin(), sets_.end(), [](const auto& s) { return !s.second->execution.idle(); });
  if (running < 2) return false;
  bool moved = false;
  for (const auto& peer : peers_) {
    if (peer == nullptr) continue;
    for (int lane = transport::kFirstDataLane; lane < transport::kLaneCount; ++lane) {
      moved = plan::set_aside(*peer->link, lane, peer->rank) || moved;
    }
  }
  return moved;
}

bool Engine::read_control(Peer& peer) {
  bool moved = false;
  try {
    while (!peer.left) {
      const std::optional<RecordView> record = parse_record(peer.link->peek(transport::kControlLane));
      if (!record) break;
      receive(peer, *record);
      peer.link->consume(transport::kControlLane, record->header.bytes);
      moved = true;
      if (failure_ != nullptr) break;
    }
  } catch (const Error& error) {
    fail(std::make_shared<const Error>(error.kind(), "rank " + std::to_string(peer.rank) + ": " + error.what()));
    return true;
  }
  return moved;
}

void Engine::receive(Peer& peer, const RecordView& record) {
  const RecordHeader& header = record.header;
  if (header.epoch != epoch_) {
    throw Error(ErrorKind::kProtocol,
                "sent a record of epoch " + std::to_string(header.epoch) + " in epoch " + std::to_string(epoch_));
  }
  if (header.sequence != peer.received_records) {
    throw Error(ErrorKind::kProtocol, "sent record " + std::to_string(header.sequence) + " where record " +
                                          std::to_string(peer.received_records) + " was expected");
  }
  ++peer.received_records;
  peer.last_heard = clock_.now();
  if (!peer.greeted && header.type != RecordType::kHello) {
    throw Error(ErrorKind::kProtocol, "did not start with a greeting");
  }
  switch (header.type) {
    case RecordType::kOperation:
    case RecordType::kNoop:
    case RecordType::kJoin:
    case RecordType::kCancel: return receive_entry(peer, record);
    case RecordType::kHello: return receive_hello(peer, record);
    case RecordType::kHeartbeat: return;
    case RecordType::kAbort: {
      peer.left = true;  // and will not listen any more
      const auto kind = header.rows <= static_cast<std::uint64_t>(ErrorKind::kShutdown)
                            ? static_cast<ErrorKind>(header.rows)
                            : ErrorKind::kPeerLost;
      return fail(std::make_shared<const Error>(kind, record.text()));
    }
    case RecordType::kBye:
      send(peer, RecordHeader{.bytes = sizeof(RecordHeader), .type = RecordType::kByeSeen}, {});
      flush_backlog(peer);
      peer.left = true;
      peer.farewell = describe_farewell(peer.rank, static_cast<Rank>(header.rows), record.text());
      if (!first_farewell_) first_farewell_ = {static_cast<Rank>(header.rows), record.text()};
      return fail_operations_needing(peer);
    case RecordType::kByeSeen: peer.saw_farewell = true; return;
    case RecordType::kStackRequest:
      stack_requested_ = true;
      peer.wants_stacks = true;
      return;
    case RecordType::kStackReply:
      warnings_.push_back("rank " + std::to_string(peer.rank) + " stands at:\n" + record.text());
      return;
  }
}

void Engine::receive_hello(Peer& peer, const RecordView& record) {
  Agreement theirs;
  if (record.payload.size() != sizeof(theirs)) throw Error(ErrorKind::kProtocol, "greeted in another protocol");
  std::memcpy(&theirs, record.payload.data(), sizeof(theirs));
  if (theirs.protocol != kProtocolVersion) {
    throw Error(ErrorKind::kProtocol, "speaks protocol " + std::to_string(theirs.protocol) + ", this rank " +
                                          std::to_string(kProtocolVersion) +
                                          "; install the same version of ringcore everywhere");
  }
  if (record.header.rows != static_cast<std::uint64_t>(peer.rank) || record.header.location != links_.size()) {
    throw Error(ErrorKind::kProtocol, "believes to be rank " + std::to_string(record.header.rows) + " of " +
                                          std::to_string(record.header.location));
  }
  const auto differs = [&](const char* name, std::uint64_t mine, std::uint64_t other) {
    if (mine == other) return;
    throw Error(ErrorKind::kMismatch, std::string("has ") + name + " = " + std::to_string(other) + ", rank " +
                                          std::to_string(rank_) + " has " + std::to_string(mine) +
                                          ". Remedy: give all ranks the same settings");
  };
  differs("RINGCORE_FUSION_THRESHOLD_BYTES", settings_.execution.fusion_threshold_bytes, theirs.fusion_threshold_bytes);
  differs("RINGCORE_DETERMINISTIC", settings_.execution.deterministic, theirs.deterministic);
  peer.greeted = true;
}

void Engine::receive_entry(Peer& peer, const RecordView& record) {
  const RecordHeader& header = record.header;
  const auto found = sets_.find(header.process_set);
  if (found == sets_.end()) {
    if (header.process_set < next_set_) return;  // removed here already
    early_bytes_ += header.bytes;
    if (early_bytes_ > kMaxEarlyBytes) {
      throw Error(ErrorKind::kProtocol,
                  "uses process set " + std::to_string(header.process_set) + ", which this rank has not added");
    }
    early_records_.push_back({peer.rank, header.process_set, {record.whole.begin(), record.whole.end()}});
    return;
  }
  ProcessSet& set = *found->second;
  const int member = set.member(peer.rank);
  if (member >= static_cast<int>(set.peers.size()) || set.peers[member] != &peer) {
    throw Error(ErrorKind::kProtocol, "is not a member of process set " + std::to_string(set.id));
  }
  if (!set.negotiation.joined(member) && header.position != set.negotiation.length(member)) {
    throw Error(ErrorKind::kProtocol, "announced position " + std::to_string(header.position) + " where " +
                                          std::to_string(set.negotiation.length(member)) + " was expected");
  }
  Entry entry = entry_of(header);
  entry.splits.resize(record.splits.size() / 8);
  if (!record.splits.empty()) std::memcpy(entry.splits.data(), record.splits.data(), record.splits.size());
  if (header.type == RecordType::kCancel || (header.flags & kEager) != 0) {
    entry.payload.assign(record.payload.begin(), record.payload.end());
  }
  if (header.type == RecordType::kOperation) {
    if ((header.flags & kHasDescriptor) != 0) {
      auto descriptor = std::make_shared<const Descriptor>(decode_descriptor(record.descriptor));
      if (descriptor->signature() != header.signature || descriptor->name_hash() != header.name_hash) {
        throw Error(ErrorKind::kProtocol, "announced '" + descriptor->name + "' under a wrong signature");
      }
      set.negotiation.learn(descriptor, header.signature);
    }
    entry.descriptor = set.negotiation.find(header.signature);
    if (entry.descriptor == nullptr)
      throw Error(ErrorKind::kProtocol, "announced an operation that it never described");
    if ((header.flags & kEager) != 0 && record.payload.size() != eager_bytes(*entry.descriptor, member)) {
      throw Error(ErrorKind::kProtocol,
                  "sent " + std::to_string(record.payload.size()) + " bytes for '" + entry.descriptor->name + "'");
    }
  }
  set.negotiation.append(member, std::move(entry));
  set.undecided = true;
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
      const bool own = decision.release.contributions[set.self].present;
      set.execution.release(std::move(decision.release), own ? found->second : nullptr);
      return;
    }
    case Decision::Kind::kFail: {
      const auto found = set.operations.find(decision.name_hash);
      if (found == set.operations.end()) return;
      complete(found->second, std::move(decision.error));
      set.operations.erase(found);
      return;
    }
    case Decision::Kind::kFlush: set.execution.flush(); return;
    case Decision::Kind::kJoined:
      if (set.join == nullptr) return;
      set.join->last_joined = set.negotiation.members()[decision.last_joined];
      complete(set.join, nullptr);
      set.join = nullptr;
      return;
  }
}

void Engine::collect_done(ProcessSet& set) {
  for (const auto& operation : set.execution.done()) {
    set.operations.erase(operation->name_hash);
    complete(operation, nullptr);
  }
  set.execution.done().clear();
}

void Engine::complete(const std::shared_ptr<Operation>& operation, std::shared_ptr<const Error> error) {
  operation->error = std::move(error);
  operation->state.store(OperationState::kDone, std::memory_order_release);
}

// Appends no-ops to this rank's log up to position `until`.
void Engine::fill(ProcessSet& set, std::uint64_t until, const Operation* blocked_in) {
  if (set.negotiation.joined(set.self) || set.join != nullptr) return;
  RecordHeader header{.type = RecordType::kNoop};
  if (blocked_in != nullptr) {
    header.flags |= kBlocked;
    header.name_hash = blocked_in->name_hash;
  }
  while (set.negotiation.length(set.self) < until) append_noop(set, header);
}

// ---- time ----

Nanoseconds Engine::tend_interval() const {
  return std::clamp(settings_.heartbeat / 8, kMillisecond, 250 * kMillisecond);
}

void Engine::tend(bool idle) {
  const Nanoseconds now = clock_.now();
  const Nanoseconds since_last = now - last_tend_;
  last_tend_ = now;
  if (failure_ != nullptr) return;
  if (since_last > settings_.heartbeat / 2) {
    // This rank itself stood still (it was stopped, or the machine was): it cannot judge others by its clock.
    for (const auto& peer : peers_) {
      if (peer != nullptr) peer->last_heard = now;
    }
  }
  tend_links(now, idle);
  if (failure_ != nullptr) return;
  for (auto& [id, set] : sets_) {
    if (idle && eager_.operation == nullptr) tend_alignment(*set);
    tend_stalls(*set, now);
  }
}

void Engine::tend_links(Nanoseconds now, bool idle) {
  for (const auto& peer : peers_) {
    if (peer == nullptr) continue;
    peer->link->check();
    // What it sent before has been looked at since its end was noticed.
    if (idle && peer->left && peer->link->failure() && std::exchange(peer->gone, true) && runs_wait_for(*peer)) {
      return lose(*peer, "has left" + peer->farewell + " in the middle of an operation");
    }
    if (const auto failure = peer->link->failure(); failure && !peer->left) {
      if (eager_.operation != nullptr) leave_eager();
      read_control(*peer);  // its last words
      if (!peer->left && failure_ == nullptr) lose(*peer, *failure);
    } else if (!peer->left && now - peer->last_heard > settings_.heartbeat) {
      if (eager_.operation != nullptr) leave_eager();
      read_control(*peer);
      if (!peer->left && now - peer->last_heard > settings_.heartbeat && failure_ == nullptr) {
        lose(*peer, "has sent nothing for " + std::to_string((now - peer->last_heard) / kMillisecond) +
                        " ms (it was stopped, or the network between the hosts is cut)");
      }
    }
    if (failure_ != nullptr) return;
    if (!peer->left && now - peer->last_sent >= settings_.heartbeat / 4) {
      RecordHeader heartbeat{.bytes = sizeof(RecordHeader), .type = RecordType::kHeartbeat};
      send(*peer, heartbeat, {});
    }
  }
}

// Logs of different length keep operations from being decided that all ranks have announced.
void Engine::tend_alignment(ProcessSet& set) {
  const std::uint64_t longest = set.negotiation.longest();
  if (set.operations.empty() || set.join != nullptr || set.filled_for == longest + 1) return;
  const bool flush_undecided = set.negotiation.round() < set.flushed_until;
  for (const auto& [name_hash, operation] : set.operations) {
    const bool released = operation->state.load(std::memory_order_relaxed) != OperationState::kSubmitted;
    if (released && (!flush_undecided || operation->started_at != 0)) continue;
    if (released || set.negotiation.announced_by_all(name_hash)) {
      fill(set, longest, operation->only_thread ? operation.get() : nullptr);
      append_noop(set, {.type = RecordType::kNoop, .flags = kFlush | kFill});
      set.filled_for = set.negotiation.longest() + 1;
      return;
    }
    if (operation->only_thread && set.negotiation.length(set.self) < longest) {
      fill(set, longest, operation.get());
      return;
    }
  }
}

void Engine::tend_stalls(ProcessSet& set, Nanoseconds now) {
  for (const auto& [name_hash, operation] : set.operations) {
    tend_stall(set, *operation, now);
    if (failure_ != nullptr) return;
  }
  if (eager_.set == &set && eager_.operation != nullptr &&
      now - eager_.operation->submitted_at > std::min(settings_.stall_warning, settings_.timeout) / 2) {
    leave_eager();
  }
}

std::string Engine::who_submitted(const ProcessSet& set, const Operation& operation) {
  const std::vector<Rank> missing = set.negotiation.missing(operation.name_hash);
  if (missing.empty()) return "all ranks submitted it, but not all of them the rest of its group";
  return list_ranks(missing) + " did not submit it; " + list_ranks(set.negotiation.present(operation.name_hash)) +
         " did";
}

void Engine::tend_stall(ProcessSet& set, Operation& operation, Nanoseconds now) {
  const Nanoseconds waited = now - operation.submitted_at;
  if (operation.state.load(std::memory_order_relaxed) != OperationState::kSubmitted) {
    if (now - operation.released_at > settings_.timeout) {
      fail(std::make_shared<const Error>(ErrorKind::kTimeout,
                                         title(operation) + " was started on all ranks and has not ended within " +
                                             std::to_string(settings_.timeout / kSecond) +
                                             " s: " + set.execution.describe_running() + "."));
    }
    return;
  }
  if (settings_.stall_warning > 0 && waited > settings_.stall_warning && !operation.stall_reported) {
    operation.stall_reported = true;
    const std::vector<Rank> missing = set.negotiation.missing(operation.name_hash);
    warnings_.push_back(title(operation) + " has waited for " + std::to_string(waited / kMillisecond) +
                        " ms: " + who_submitted(set, operation) +
                        ". It fails after RINGCORE_TIMEOUT_S = " + std::to_string(settings_.timeout / kSecond) + " s.");
    for (const Rank rank : missing) {
      if (peers_[rank] == nullptr) continue;
      RecordHeader request{.bytes = sizeof(RecordHeader), .type = RecordType::kStackRequest};
      send(*peers_[rank], request, {});
    }
  }
  if (waited > settings_.timeout && !operation.cancel_sent && set.join == nullptr) {
    operation.cancel_sent = true;
    const std::string text = title(operation) + ": " + who_submitted(set, operation) + ", for " +
                             std::to_string(settings_.timeout / kMillisecond) +
                             " ms. Remedy: make all ranks submit the same tensors (look at the reported stacks), or "
                             "raise RINGCORE_TIMEOUT_S if a rank may be that slow.";
    fill(set, set.negotiation.longest(), nullptr);
    RecordHeader header{.type = RecordType::kCancel, .flags = kFlush | kFill, .name_hash = operation.name_hash};
    const auto payload = std::as_bytes(std::span(text));
    broadcast(set.id, header, payload);
    Entry entry{.type = RecordType::kCancel, .flags = header.flags, .name_hash = header.name_hash};
    entry.payload.assign(payload.begin(), payload.end());
    set.negotiation.append(set.self, std::move(entry));
    set.undecided = true;
  }
}

// Whether a run that has begun can go on only with the peer.
bool Engine::runs_wait_for(const Peer& peer) const {
  return std::any_of(sets_.begin(), sets_.end(), [&peer](const auto& item) {
    const ProcessSet& set = *item.second;
    const int member = set.member(peer.rank);
    return member < static_cast<int>(set.peers.size()) && set.peers[member] == &peer && set.execution.waits_for(member);
  });
}

// ---- ending ----

void Engine::lose(Peer& peer, const std::string& why) {
  fail(std::make_shared<const Error>(ErrorKind::kPeerLost,
                                     "rank " + std::to_string(peer.rank) + " " + why + ". " + pending_summary() +
                                         " Remedy: look at the output of rank " + std::to_string(peer.rank) +
                                         " for the cause; shutdown() and init() make this process usable again."));
}

std::string Engine::pending_summary() const {
  std::string running;
  std::vector<std::string> waiting;
  std::size_t count = 0;
  for (const auto& [id, set] : sets_) {
    if (const std::string text = set->execution.describe_running(); !text.empty()) running = text;
    for (const auto& [name_hash, operation] : set->operations) {
      if (++count <= 3) waiting.push_back(title(*operation));
    }
  }
  if (count == 0) return "No operation was pending on rank " + std::to_string(rank_) + ".";
  std::string text = "Pending on rank " + std::to_string(rank_) + ": ";
  for (std::size_t i = 0; i < waiting.size(); ++i) text += (i > 0 ? ", " : "") + waiting[i];
  if (count > waiting.size()) text += " and " + std::to_string(count - waiting.size()) + " more";
  return text + (running.empty() ? "." : " (" + running + ").");
}

void Engine::fail_operations_needing(const Peer& peer) {
  for (auto& [id, set] : sets_) {
    const int member = set->member(peer.rank);
    if (member >= static_cast<int>(set->peers.size()) || set->peers[member] != &peer) continue;
    if (eager_.operation != nullptr && eager_.set == set.get()) leave_eager();
    const auto error_for = [&](const Operation& operation) {
      return std::make_shared<const Error>(
          ErrorKind::kPeerLost, title(operation) + ": rank " + std::to_string(peer.rank) + " has left" + peer.farewell +
                                    " without submitting it. Remedy: let every rank run the same "
                                    "number of operations, or call join() on ranks that finish early.");
    };
    for (auto it = set->operations.begin(); it != set->operations.end();) {
      const std::vector<Rank> missing = set->negotiation.missing(it->first);
      const bool needs = it->second->state.load(std::memory_order_relaxed) == OperationState::kSubmitted &&
                         std::find(missing.begin(), missing.end(), peer.rank) != missing.end();
      if (needs) complete(it->second, error_for(*it->second));
      it = needs ? set->operations.erase(it) : std::next(it);
    }
    if (set->join != nullptr && !set->negotiation.announced_join(member)) {
      complete(set->join, error_for(*set->join));
      set->join = nullptr;
    }
    // What it has announced may still be decided, and run as far as its data was sent.
    set->negotiation.leave(member);
    set->undecided = true;
  }
}

void Engine::fail(const std::shared_ptr<const Error>& error) {
  if (failure_ != nullptr) return;
  failure_ = error;
  if (eager_.operation != nullptr) {
    complete(eager_.operation, error);
    eager_ = {};
  }
  const std::string text = error->what();
  const RecordHeader header{.type = RecordType::kAbort, .rows = static_cast<std::uint64_t>(error->kind())};
  if (error->kind() != ErrorKind::kShutdown) broadcast(kWorld, header, std::as_bytes(std::span(text)));
  for (auto& [id, set] : sets_) {
    set->execution.fail();
    for (const auto& [name_hash, operation] : set->operations) complete(operation, error);
    set->operations.clear();
    if (set->join != nullptr) complete(set->join, error);
    set->join = nullptr;
  }
}

void Engine::leave(const std::string& reason) {
  if (left_) return;
  left_ = true;
  if (failure_ == nullptr) {
    // Whoever leaves because another has left passes on who was the first, and why.
    const bool follows = reason.empty() && first_farewell_;
    const auto& [first, why] = follows ? *first_farewell_ : std::pair(rank_, reason);
    const RecordHeader header{.type = RecordType::kBye, .rows = static_cast<std::uint64_t>(first)};
    broadcast(kWorld, header, std::as_bytes(std::span(why)));
  }
}

bool Engine::farewell_seen() const {
  return failure_ != nullptr || std::all_of(peers_.begin(), peers_.end(), [](const auto& peer) {
           return peer == nullptr || peer->saw_farewell || peer->left || peer->link->failure();
         });
}

bool Engine::running() const {
  return std::any_of(sets_.begin(), sets_.end(), [](const auto& item) { return !item.second->execution.idle(); });
}

bool Engine::busy() const {
  if (eager_.operation != nullptr) return true;
  const bool backlog = std::any_of(peers_.begin(), peers_.end(),
                                   [](const auto& peer) { return peer != nullptr && !peer->backlog.empty(); });
  return backlog || std::any_of(sets_.begin(), sets_.end(), [](const auto& item) {
           return !item.second->operations.empty() || item.second->join != nullptr;
         });
}

// ---- process sets ----

ProcessSetId Engine::add_process_set(std::vector<Rank> members) {
  if (next_set_ > kLastProcessSet) {
    throw Error(ErrorKind::kResource, "this job has had " + std::to_string(kLastProcessSet) +
                                          " process sets, and there can be no more. Remedy: keep process sets instead "
                                          "of adding them again and again.");
  }
  const auto own = std::find(members.begin(), members.end(), rank_);
  const ProcessSetId id = next_set_++;
  if (own == members.end()) return id;  // the others' business; the id is used up here as well
  const int self = static_cast<int>(own - members.begin());
  plan::Topology topology;
  std::vector<transport::Link*> links;
  std::vector<Peer*> peers;
  for (const Rank member : members) {
    topology.host_of.push_back(host_of_[member]);
    links.push_back(links_[member].get());
    peers.push_back(peers_[member].get());
    if (peers.back() != nullptr && host_of_[member] == host_of_[rank_] && links.back()->peer_memory().empty()) {
      topology.memory_shared_in_host = false;
    }
  }
  // The shared fusion buffer is the world's: ranks run the tasks of several process sets in different orders, so that
  // two sets that waited for the same buffer could wait for each other.
  const bool shared = id == kWorld && topology.memory_shared_in_host;
  const FusionBuffers fusion{shared ? fusion_arena_ : nullptr, settings_.execution.fusion_threshold_bytes};
  auto set = std::make_unique<ProcessSet>(
      id, std::move(members), self,
      Execution(id, self, std::move(links), std::move(topology), fusion, settings_.execution, clock_, timeline_));
  set->peers = std::move(peers);
  sets_.emplace(id, std::move(set));
  std::vector<EarlyRecord> early = std::move(early_records_);
  early_records_.clear();
  early_bytes_ = 0;
  for (EarlyRecord& record : early) {
    if (record.process_set == id) {
      receive_entry(*peers_[record.rank], *parse_record(record.bytes));
    } else {
      early_bytes_ += record.bytes.size();
      early_records_.push_back(std::move(record));
    }
  }
  return id;
}

void Engine::remove_process_set(ProcessSetId id) {
  const auto found = sets_.find(id);
  if (found == sets_.end()) return;
  if (eager_.operation != nullptr) leave_eager();
  if (id == kWorld || !found->second->operations.empty() || found->second->join != nullptr ||
      !found->second->execution.idle()) {
    throw Error(ErrorKind::kInvalidArgument,
                "process set " + std::to_string(id) +
                    (id == kWorld ? " is the world and stays" : " has operations that are not done"));
  }
  sets_.erase(found);
}

bool Engine::take_stack_request() { return std::exchange(stack_requested_, false); }

void Engine::reply_stacks(const std::string& text) {
  const std::string cut = text.substr(0, kMaxRecordBytes / 2);
  const std::vector<std::byte> record =
      build_record({.type = RecordType::kStackReply}, {}, {}, std::as_bytes(std::span(cut)));
  for (const auto& peer : peers_) {
    if (peer != nullptr && std::exchange(peer->wants_stacks, false)) send(*peer, record);
  }
}

}  // namespace ringcore::engine
