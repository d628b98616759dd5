// Records to and from the peers: announcements, which make up the logs, and everything else that ranks tell each other.
#include <algorithm>
#include <array>
#include <cstring>

#include "engine/elastic.hpp"
#include "engine/tree_data.hpp"
#include "engine/view.hpp"
#include "plan/offered.hpp"

namespace ringcore::engine {
namespace {

// Payloads up to this size are copied behind their header, so that one write publishes both.
constexpr std::size_t kOneWriteBytes = 1024;

// Records for a process set that this rank has not added yet wait for it; more than this is an error.
constexpr std::size_t kMaxEarlyBytes = std::size_t{64} << 20;

// Whether such a record means nothing any more in the next epoch.
bool belongs_to_epoch(RecordType type) {
  return type <= RecordType::kRemoved || type == RecordType::kLanes || type == RecordType::kCarriedOut ||
         type == RecordType::kLetIn || type == RecordType::kTree;
}

bool is_of_elastic_jobs(RecordType type) {
  return type == RecordType::kView || type == RecordType::kLanes || type == RecordType::kArrival ||
         type == RecordType::kLetIn || type == RecordType::kCarriedOut;
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
  entry.position = header.position;
  entry.priority = header.priority;
  return entry;
}

}  // namespace

// Whether the members do not know such an operation from this rank yet: its record has the descriptor then.
bool Engine::introduce(ProcessSet& set, const Operation& operation) {
  if (set.signatures.use(set.describer(), operation.signature)) return false;
  std::shared_ptr<const Descriptor> described = set.signatures.find(operation.signature);
  // Not a copy: the parts of a group belong to the operation, and this stays.
  if (described == nullptr)
    described = std::make_shared<const Descriptor>(decode_descriptor(encode(operation.descriptor)));
  set.signatures.describe(set.describer(), operation.signature, std::move(described));
  return true;
}

// Appends the operation to this rank's log, here and at every member.
void Engine::announce(ProcessSet& set, RecordHeader header, const Operation& operation) {
  Entry entry = entry_of(header);
  entry.splits = operation.splits;
  header.position = set.negotiation.length(set.self);
  std::vector<std::byte> descriptor;
  if (introduce(set, operation)) {
    header.flags |= kHasDescriptor;
    descriptor = encode(operation.descriptor);
  }
  // The full shape of an allgather differs from call to call although its signature does not.
  entry.descriptor = set.signatures.find(header.signature);
  if (set.tree != nullptr) {
    const bool has_data = (header.flags & kEager) != 0 && may_carry_data(*entry.descriptor);
    if (has_data) entry.payload = data_of(operation, set.self);
    return append_to_tree(set, std::move(entry));
  }
  std::span<const std::byte> payload;
  if ((header.flags & kEager) != 0)
    payload = {operation.input, eager_bytes(operation.descriptor, header.rows, set.self)};
  if (descriptor.empty() && operation.splits.empty() && payload.empty()) {
    header.bytes = sizeof(header);  // the steady state of a training loop
    for (Peer* peer : set.peers) {
      if (peer != nullptr) send(*peer, header, {});
    }
    for (Peer* server : set.servers) send(*server, header, {});
  } else {
    tell(set, build_record(header, descriptor, operation.splits, payload));
  }
  set.negotiation.append(set.self, std::move(entry));
  set.undecided = true;
}

// What is no operation.
void Engine::append_own(ProcessSet& set, RecordHeader header, std::span<const std::byte> payload) {
  if (set.end || frozen()) return;
  Entry entry = entry_of(header);
  entry.position = set.negotiation.length(set.self);
  entry.payload.assign(payload.begin(), payload.end());
  if (set.tree != nullptr) return append_to_tree(set, std::move(entry));
  broadcast(set.id, header, payload);
  set.negotiation.append(set.self, std::move(entry));
  set.undecided = true;
}

void Engine::offer(std::span<const std::byte> offer) {
  if (eager_.operation != nullptr) leave_eager();
  ProcessSet& world = *sets_.at(kWorld);
  while (!offer.empty() && failure_ == nullptr && !world.end) {
    const auto piece = offer.first(std::min(offer.size(), kMaxPayloadBytes));
    offer = offer.subspan(piece.size());
    // The others fill their logs: servers wait for nothing else with what was told.
    RecordHeader header{.type = RecordType::kNoop, .flags = kFill, .position = world.negotiation.length(world.self)};
    Entry entry = entry_of(header);
    const std::vector<std::byte> to_members = build_record(header, {}, {}, {});
    header.type = RecordType::kOffer;
    header.rows = offer.size();
    const std::vector<std::byte> to_servers = build_record(header, {}, {}, piece);
    for (Peer* peer : world.peers) {
      if (peer != nullptr) send(*peer, to_members);
    }
    for (Peer* server : world.servers) send(*server, to_servers);
    world.negotiation.append(world.self, std::move(entry));
    world.undecided = true;
  }
}

// A server has come to this piece.
void Engine::take_offer(ProcessSet& world, const Decision& decision) {
  offer_.insert(offer_.end(), decision.payload.begin(), decision.payload.end());
  if (offer_.size() > plan::kMostOfferBytes) {
    throw Error(ErrorKind::kProtocol,
                "rank 0 offers a plan of more than " + std::to_string(plan::kMostOfferBytes) + " bytes");
  }
  if (decision.to_come == 0) world.schedule.offer(std::exchange(offer_, {}));
}

// Appends no-ops to this rank's log up to position `until`.
void Engine::fill(ProcessSet& set, std::uint64_t until, const Operation* blocked_in) {
  if (set.negotiation.joined(set.self) || set.joining() || set.end) return;
  RecordHeader header{.type = RecordType::kNoop};
  if (blocked_in != nullptr) {
    header.flags |= kBlocked;
    header.name_hash = blocked_in->name_hash;
  }
  while (set.negotiation.length(set.self) < until) append_own(set, header);
}

// A record without an operation, for all members of a process set; entries of the log are appended here by the caller.
void Engine::broadcast(ProcessSetId id, RecordHeader header, std::span<const std::byte> payload) {
  const ProcessSet& set = *sets_.at(id);
  header.process_set = id;
  header.position = set.negotiation.length(set.self);
  tell(set, build_record(header, {}, {}, payload));
}

// All members, and the servers, who follow them.
void Engine::tell(const ProcessSet& set, std::span<const std::byte> record) {
  for (const auto* others : {&set.peers, &set.servers}) {
    for (Peer* peer : *others) {
      if (peer != nullptr) send(*peer, record);
    }
  }
}

// To those whom this rank is connected with, or will be.
void Engine::tell_known(RecordHeader header, std::span<const std::byte> payload) {
  const std::vector<std::byte> record = build_record(header, {}, {}, payload);
  for (Peer* peer : membership_.known()) send(*peer, record);
}

// The first that a peer hears: who speaks, and what both must have set alike. From here on they are to be connected.
void Engine::say_hello(Peer& peer) {
  membership_.get_to_know(peer);
  if (!peer.connected) peer.last_heard = timers_checked_;
  peer.link->want(transport::kControlLane);
  const Agreement agreement{.protocol = kProtocolVersion,
                            .fusion_threshold_bytes = settings_.execution.fusion_threshold_bytes,
                            .partition_bytes = settings_.execution.partition_bytes,
                            .deterministic = settings_.execution.deterministic,
                            .elastic = elastic_ != nullptr,
                            .serving = static_cast<std::uint64_t>(serving_)};
  // Whoever joins is of no host before it is a member.
  const int host = membership_.is_member() ? membership_.host_at(membership_.own_place()) : -1;
  const RecordHeader hello{.type = RecordType::kHello,
                           .name_hash = static_cast<std::uint64_t>(host),
                           .rows = static_cast<std::uint64_t>(membership_.own_place()),
                           .location = static_cast<std::uint64_t>(membership_.places())};
  send(peer, build_record(hello, {}, {}, std::as_bytes(std::span(&agreement, 1))));
}

void Engine::send(Peer& peer, std::span<const std::byte> record) {
  RecordHeader header;
  std::memcpy(&header, record.data(), sizeof(header));
  send(peer, header, record.subspan(sizeof(header)));
}

void Engine::send(Peer& peer, RecordHeader header, std::span<const std::byte> rest) {
  if (peer.left || peer.link->failure()) return;
  if (!peer.is_known) say_hello(peer);
  header.epoch = membership_.epoch();
  header.sequence = peer.sent_records++;
  peer.last_sent = timers_checked_;
  std::array<std::byte, sizeof(RecordHeader) + kOneWriteBytes> together;
  std::memcpy(together.data(), &header, sizeof(header));
  std::span<const std::byte> first(together.data(), sizeof(header));
  if (rest.size() <= kOneWriteBytes) {
    if (!rest.empty()) std::memcpy(together.data() + sizeof(header), rest.data(), rest.size());
    first = {together.data(), sizeof(header) + rest.size()};
    rest = {};
  }
  write(peer, first, rest);
}

void Engine::send_tree_record(Peer& peer, ProcessSetId id, std::span<const std::byte> body) {
  if (peer.left || peer.link->failure()) return;
  if (!peer.is_known) say_hello(peer);
  const std::size_t whole = (sizeof(ShortHeader) + body.size() + 7) / 8 * 8;
  const ShortHeader header{.bytes = static_cast<std::uint32_t>(whole),
                           .flags = static_cast<std::uint8_t>(whole - sizeof(ShortHeader) - body.size()),
                           .process_set = id,
                           .epoch = membership_.epoch(),
                           .sequence = peer.sent_records++};
  peer.last_sent = timers_checked_;
  std::vector<std::byte> record(whole);
  std::memcpy(record.data(), &header, sizeof(header));
  if (!body.empty()) std::memcpy(record.data() + sizeof(header), body.data(), body.size());
  write(peer, record, {});
}

// What the lane has no room for waits, and what is held: of many small records each would wake the peer.
void Engine::write(Peer& peer, std::span<const std::byte> first, std::span<const std::byte> rest) {
  std::size_t written = peer.backlog.empty() && !holds_ ? peer.link->write(transport::kControlLane, first, rest) : 0;
  for (const std::span<const std::byte> part : {first, rest}) {
    const std::size_t sent = std::min(written, part.size());
    written -= sent;
    peer.backlog.insert(peer.backlog.end(), part.begin() + static_cast<std::ptrdiff_t>(sent), part.end());
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

// Whoever looks may leave something behind that nobody tells of again.
std::span<const std::byte> Engine::peek_control(Peer& peer) {
  peer.heard_out = false;
  return peer.link->peek(transport::kControlLane);
}

bool Engine::read_control(Peer& peer) {
  bool moved = false;
  // Of an epoch that ends only goodbyes are missing, of those who have left before it did.
  const auto may_leave = [this, &peer] {
    return elastic_->views.has_ended(peer.place) && !contains(elastic_->views.view().members, peer.place);
  };
  try {
    while (!peer.left && (!epoch_ends() || may_leave())) {
      const std::optional<RecordView> record = parse_record(peek_control(peer));
      if (!record) {
        peer.heard_out = peer.link->is_watched();
        break;
      }
      receive(peer, *record);
      peer.link->consume(transport::kControlLane, record->header.bytes);
      moved = true;
      if (failure_ != nullptr) break;
    }
  } catch (const Error& error) {
    if (peer.arriving && (peer.newcomer || membership_.is_member())) return refuse_arrival(peer, error);
    fail(std::make_shared<const Error>(error.kind(), "rank " + std::to_string(peer.rank) + ": " + error.what()));
    return true;
  }
  return moved;
}

// Among many somebody may speak in an epoch that this rank has yet to hear of, from others. Whoever is no member yet hears
// what all may, at any time.
bool Engine::is_ahead(const RecordHeader& header) const {
  if (elastic_ == nullptr || header.epoch <= membership_.epoch()) return false;
  if (!membership_.is_member()) return belongs_to_epoch(header.type);
  return header.type != RecordType::kView && header.type != RecordType::kHello;
}

void Engine::keep_ahead(Peer& peer, const RecordView& record) {
  std::size_t bytes = record.header.bytes;
  for (const auto& kept : peer.ahead) bytes += kept.size();
  if (bytes > kMaxEarlyBytes) {
    throw Error(ErrorKind::kProtocol,
                "has sent " + std::to_string(bytes) + " bytes in epoch " + std::to_string(record.header.epoch) +
                    ", of which this rank has yet to hear in epoch " + std::to_string(membership_.epoch()) +
                    "; more than " + std::to_string(kMaxEarlyBytes) +
                    " are not kept. Remedy: look why this rank hears so little of the others (is its network slow?).");
  }
  peer.ahead.emplace_back(record.whole.begin(), record.whole.end());
}

// What members of this epoch have said in it before this rank was there.
void Engine::hear_ahead() {
  for (Peer* peer : membership_.peers()) {
    try {
      for (const std::vector<std::byte>& kept : std::exchange(peer->ahead, {})) {
        if (failure_ == nullptr) hear(*peer, *parse_record(kept));
      }
    } catch (const Error& error) {
      fail(std::make_shared<const Error>(error.kind(), "rank " + std::to_string(peer->rank) + ": " + error.what()));
    }
  }
}

void Engine::receive(Peer& peer, const RecordView& record) {
  const RecordHeader& header = record.header;
  if (elastic_ == nullptr && header.epoch != membership_.epoch()) {
    throw Error(ErrorKind::kProtocol, "sent a record of epoch " + std::to_string(header.epoch) + " in epoch " +
                                          std::to_string(membership_.epoch()));
  }
  if (header.sequence != peer.received_records) {
    throw Error(ErrorKind::kProtocol, "sent record " + std::to_string(header.sequence) + " where record " +
                                          std::to_string(peer.received_records) + " was expected");
  }
  ++peer.received_records;
  peer.last_heard = timers_checked_;  // at most one interval too early, and a clock is not asked for each record
  if (!peer.greeted && header.type != RecordType::kHello) {
    throw Error(ErrorKind::kProtocol, "did not start with a greeting");
  }
  hear(peer, record);
}

// What is said, in whichever epoch that was.
void Engine::hear(Peer& peer, const RecordView& record) {
  const RecordHeader& header = record.header;
  if (is_ahead(header)) return keep_ahead(peer, record);
  // Before it is a member this rank is in no epoch.
  const bool is_late = elastic_ != nullptr && (header.epoch < membership_.epoch() || !membership_.is_member());
  if (is_late && belongs_to_epoch(header.type)) return;
  if (elastic_ == nullptr && is_of_elastic_jobs(header.type)) {
    throw Error(ErrorKind::kProtocol, "sent a record that only elastic jobs have");
  }
  switch (header.type) {
    case RecordType::kOperation:
    case RecordType::kNoop:
    case RecordType::kJoin:
    case RecordType::kCancel:
    case RecordType::kRefused:
    case RecordType::kStandstill:
    case RecordType::kOffer:
    case RecordType::kRemoved: return receive_entry(peer, record);
    case RecordType::kHello: return receive_hello(peer, record);
    case RecordType::kTree: return receive_tree(peer, record);
    case RecordType::kHeartbeat:
      // Of another epoch it would be another rank.
      if (!is_late && header.position <= static_cast<std::uint64_t>(kMaxPlaces)) {
        peer.withheld_by = static_cast<Rank>(header.position) - 1;
      }
      if (header.rows != 0) send_heartbeat(peer, false);
      return;
    case RecordType::kView: return receive_view(peer, record);
    case RecordType::kLanes: return receive_lanes(peer, record);
    case RecordType::kArrival: return receive_arrival(peer, record);
    case RecordType::kLetIn: return receive_let_in(peer, record);
    case RecordType::kCarriedOut: return receive_carried_out(peer, record);
    case RecordType::kAbort: {
      peer.left = true;  // and will not listen any more
      if (goes_on_without_others() || peer.arriving) return part_with(peer, "has failed: " + record.text(), true);
      const auto kind = header.rows <= static_cast<std::uint64_t>(ErrorKind::kShutdown)
                            ? static_cast<ErrorKind>(header.rows)
                            : ErrorKind::kPeerLost;
      if (failure_ == nullptr && kind != ErrorKind::kShutdown) suffer_from(blame_for(header));
      return fail(std::make_shared<const Error>(kind, record.text()));
    }
    case RecordType::kBye:
      send(peer, RecordHeader{.bytes = sizeof(RecordHeader), .type = RecordType::kByeSeen}, {});
      flush_backlog(peer);
      peer.left = true;
      if (peer.arriving) return part_with(peer, "has left", true);
      peer.first_left = static_cast<Rank>(header.rows);
      peer.farewell = record.text();
      if (!first_farewell_) first_farewell_ = {static_cast<Rank>(header.rows), record.text()};
      if (is_server(peer.rank) && !serves() && !left_) return lose(peer, "has left, and those that it serves have not");
      fail_operations_needing(peer);
      release_results();  // of which it was the last that was waited for
      if (frozen() && !left_) part_with(peer, leaving(peer).what, true);  // and has no vote any more
      return break_trees(peer);
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
  const std::uint64_t host = record.header.name_hash;
  peer.newcomer = host == static_cast<std::uint64_t>(-1);
  if (theirs.protocol != kProtocolVersion) {
    throw Error(ErrorKind::kProtocol, "speaks protocol " + std::to_string(theirs.protocol) + ", this rank " +
                                          std::to_string(kProtocolVersion) +
                                          "; install the same version of ringcore everywhere");
  }
  // Where ranks may come, there may be more places by now.
  const bool is_alike =
      elastic_ != nullptr || record.header.location == static_cast<std::uint64_t>(membership_.places());
  if (record.header.rows != static_cast<std::uint64_t>(peer.place) || !is_alike) {
    throw Error(ErrorKind::kProtocol, "believes to be rank " + std::to_string(record.header.rows) + " of " +
                                          std::to_string(record.header.location));
  }
  const auto differs = [&](const char* name, std::uint64_t mine, std::uint64_t other) {
    if (mine == other) return;
    throw Error(ErrorKind::kMismatch, std::string("has ") + name + " = " + std::to_string(other) + ", rank " +
                                          std::to_string(rank()) + " has " + std::to_string(mine) +
                                          ". Remedy: give all ranks the same settings");
  };
  differs("RINGCORE_FUSION_THRESHOLD_BYTES", settings_.execution.fusion_threshold_bytes, theirs.fusion_threshold_bytes);
  differs("RINGCORE_PARTITION_BYTES", settings_.execution.partition_bytes, theirs.partition_bytes);
  differs("RINGCORE_DETERMINISTIC", settings_.execution.deterministic, theirs.deterministic);
  differs("RINGCORE_ELASTIC", elastic_ != nullptr, theirs.elastic);
  differs("RINGCORE_SERVERS", static_cast<std::uint64_t>(serving_), theirs.serving);
  peer.greeted = true;
  peer.greeted_in = record.header.epoch;
  if (elastic_ != nullptr && peer.greeted_in == membership_.epoch()) peer.lanes_end.emplace();
  // The others cannot let this rank in without who may be a member before it.
  if (!membership_.is_member()) elastic_->has_asked = false;
  if (peer.newcomer && peer.arriving) return tell_host(peer);
  // Whoever joins does not know yet which ranks share a host.
  if (membership_.is_member()) return;
  if (host >= static_cast<std::uint64_t>(kMaxPlaces)) throw Error(ErrorKind::kProtocol, "says that it is of no host");
  membership_.set_host(peer.place, static_cast<int>(host));
}

void Engine::keep_early(const Peer& peer, const RecordView& record) {
  const ProcessSetId id = record.header.process_set;
  early_bytes_ += record.header.bytes;
  if (early_bytes_ > kMaxEarlyBytes) {
    throw Error(ErrorKind::kProtocol,
                "uses process set " + std::to_string(id) + ", which this rank has not added, and " +
                    std::to_string(early_bytes_) + " bytes that came for such sets are more than the " +
                    std::to_string(kMaxEarlyBytes) +
                    " that are kept. Remedy: add process sets on all their members before they are used.");
  }
  early_records_.push_back({peer.rank, id, {record.whole.begin(), record.whole.end()}});
}

// In the order in which they came; what is still too early stays.
void Engine::replay_early(ProcessSetId id) {
  std::vector<EarlyRecord> early = std::move(early_records_);
  early_records_.clear();
  early_bytes_ = 0;
  for (EarlyRecord& record : early) {
    if (record.process_set == id) {
      const RecordView view = *parse_record(record.bytes);
      Peer& peer = *membership_.peer(record.rank);
      view.header.type == RecordType::kTree ? receive_tree(peer, view) : receive_entry(peer, view);
    } else {
      early_bytes_ += record.bytes.size();
      early_records_.push_back(std::move(record));
    }
  }
}

void Engine::receive_entry(Peer& peer, const RecordView& record) {
  const RecordHeader& header = record.header;
  const auto found = sets_.find(header.process_set);
  if (found == sets_.end()) {
    if (!set_numbers_.is_to_come(header.process_set)) return;  // removed here already
    return keep_early(peer, record);
  }
  ProcessSet& set = *found->second;
  if (set.tree != nullptr || set.end) {
    throw Error(ErrorKind::kProtocol, "sent its log past the tree of process set " + std::to_string(set.id));
  }
  const int member = set.member(peer.rank);
  if (member >= static_cast<int>(set.peers.size()) || set.peers[member] != &peer) {
    throw Error(ErrorKind::kProtocol, "is not a member of process set " + std::to_string(set.id));
  }
  if (header.type == RecordType::kRemoved) {
    const auto first = static_cast<Rank>(header.rows);
    if (!set.removed_by)
      set.removed_by = std::ranges::binary_search(set.negotiation.members(), first) ? first : peer.rank;
    end_log(set, member, removal(set, *set.removed_by));
    return;
  }
  if (!set.negotiation.may_announce_at(member, header.position)) {
    throw Error(ErrorKind::kProtocol, "announced position " + std::to_string(header.position) + " where " +
                                          std::to_string(set.negotiation.length(member)) + " was expected");
  }
  Entry entry = entry_of(header);
  entry.splits.resize(record.splits.size() / 8);
  if (!record.splits.empty()) std::memcpy(entry.splits.data(), record.splits.data(), record.splits.size());
  if (header.type == RecordType::kOffer && (!set.serves() || member != 0)) {
    throw Error(ErrorKind::kProtocol, "offers a plan, as only the first rank does, and to servers alone");
  }
  const bool has_payload = header.type == RecordType::kCancel || header.type == RecordType::kRefused ||
                           header.type == RecordType::kStandstill || header.type == RecordType::kOffer;
  if (has_payload || (header.flags & kEager) != 0) {
    entry.payload.assign(record.payload.begin(), record.payload.end());
  }
  if (header.type == RecordType::kOperation) {
    set.heard = set.heard || header.position < set.flushed_until;
    if ((header.flags & kHasDescriptor) != 0) {
      auto descriptor = std::make_shared<const Descriptor>(decode_descriptor(record.descriptor));
      if (descriptor->signature() != header.signature || descriptor->name_hash() != header.name_hash) {
        throw Error(ErrorKind::kProtocol, "announced '" + descriptor->name + "' under a wrong signature");
      }
      set.signatures.describe(member, header.signature, descriptor);
    } else if (!set.signatures.use(member, header.signature)) {
      throw Error(ErrorKind::kProtocol, "announced an operation that it never described, or not lately");
    }
    entry.descriptor = set.signatures.find(header.signature);
    check_rows(entry);
    if ((header.flags & kEager) != 0 && record.payload.size() != eager_bytes(*entry.descriptor, header.rows, member)) {
      throw Error(ErrorKind::kProtocol,
                  "sent " + std::to_string(record.payload.size()) + " bytes for '" + entry.descriptor->name + "'");
    }
  }
  set.negotiation.append(member, std::move(entry));
  set.undecided = true;
}

}  // namespace ringcore::engine
