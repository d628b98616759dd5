// The short cut for small blocking operations: their data travels with the announcement.
#include <algorithm>
#include <cstring>

#include "engine/state.hpp"

namespace ringcore::engine {
namespace {

// Up to this size sending it along is quicker even for data that the others could fetch from registered memory.
constexpr std::size_t kMaxEagerRegistered = 16 * 1024;

}  // namespace

std::size_t eager_bytes(const Descriptor& descriptor, std::uint64_t rows, int member) {
  switch (descriptor.collective) {
    case Collective::kAllreduce:
    case Collective::kReduce:
    case Collective::kReduceScatter: return descriptor.shape.elements() * size_of(descriptor.dtype);
    case Collective::kBroadcast:
      return member == descriptor.root ? descriptor.shape.elements() * size_of(descriptor.dtype) : 0;
    case Collective::kAllgather:
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kAlltoall: {
      // Another rank's rows are not to be believed.
      std::size_t bytes = 0;
      const std::size_t row_bytes = descriptor.shape.row_elements() * size_of(descriptor.dtype);
      return __builtin_mul_overflow(rows, row_bytes, &bytes) ? SIZE_MAX : bytes;
    }
    case Collective::kBarrier: return 0;
  }
  __builtin_unreachable();
}

std::optional<EagerPart> eager_part(const Descriptor& descriptor, const Contribution& from, int members,
                                    const std::byte* data, int self) {
  if (descriptor.collective == Collective::kGather && descriptor.root != self) return EagerPart{data, 0};
  if (!has_splits(descriptor.collective)) return EagerPart{data, from.rows};
  std::uint64_t before = 0;
  std::uint64_t sum = 0;
  for (int m = 0; m < members; ++m) {
    if (m == self) before = sum;
    if (from.splits[m] > from.rows - sum) return std::nullopt;
    sum += from.splits[m];
  }
  if (sum != from.rows) return std::nullopt;
  return EagerPart{data + before * descriptor.shape.row_elements() * size_of(descriptor.dtype), from.splits[self]};
}

bool is_eager(const Operation& operation, std::size_t members, std::size_t limit, bool registered) {
  const Descriptor& descriptor = operation.descriptor;
  // A root that is no member is found by the general way.
  if (static_cast<std::uint64_t>(static_cast<std::int64_t>(descriptor.root)) >= members) return false;
  if (!operation.awaited || descriptor.on_device || descriptor.is_group()) return false;
  if (descriptor.prescale != 1.0 && host_scales(descriptor, 1).input != 1.0) return false;
  if (registered && operation.bytes() > kMaxEagerRegistered) return false;
  const std::size_t splits = eager_splits(descriptor, members, gives_output(operation));
  if (operation.splits.size() != splits) return false;
  const std::size_t bytes = operation.bytes() + splits * sizeof(std::uint64_t);
  // The first time it goes into one record with its description, which a long name makes long.
  const std::size_t record = sizeof(RecordHeader) + kDescriptorBytes + descriptor.name.size() + bytes;
  return descriptor.collective == Collective::kBarrier || (bytes <= limit && record <= kMaxRecordBytes - 8);
}

bool Engine::start_eager(ProcessSet& set, const std::shared_ptr<Operation>& operation) {
  const Descriptor& descriptor = operation->descriptor;
  if (set.peers.size() == 1 || set.tree != nullptr || !set.negotiation.quiet()) return false;
  // While it waits nothing else moves: there must be nothing else, in any process set.
  for (const auto& [id, other] : sets_) {
    if (!other->operations.empty() || other->join != nullptr || !other->watches.empty()) return false;
    if (!other->schedule.idle()) return false;
  }
  RecordHeader header{.type = RecordType::kOperation, .process_set = set.id};
  header.flags = kEager | flags_of(*operation);
  header.rows = descriptor.shape.rows();
  eager_parts_.resize(set.peers.size());
  eager_record_bytes_.assign(set.peers.size(), 0);
  const auto* const splits = reinterpret_cast<const std::byte*>(operation->splits.data());
  if (!note_eager(set, descriptor, set.self, header, {splits, operation->splits.size()}, operation->input))
    return false;
  header.position = set.negotiation.length(set.self);
  header.signature = operation->signature;
  header.name_hash = operation->name_hash;
  const std::size_t bytes = eager_bytes(descriptor, header.rows, set.self);
  header.payload_bytes = static_cast<std::uint32_t>(bytes);
  const std::span<const std::byte> payload(operation->input, bytes);
  std::span<const std::byte> rest = payload;
  const bool is_new = introduce(set, *operation);
  if (is_new || !operation->splits.empty()) {
    if (is_new) header.flags |= kHasDescriptor;
    eager_record_ =
        build_record(header, is_new ? encode(descriptor) : std::vector<std::byte>(), operation->splits, payload);
    std::memcpy(&header, eager_record_.data(), sizeof(header));
    rest = std::span<const std::byte>(eager_record_).subspan(sizeof(header));
  } else {
    header.bytes = static_cast<std::uint32_t>((sizeof(header) + bytes + 7) / 8 * 8);
    if (bytes % 8 != 0) {
      // The padding behind the payload is never looked at; it must only be there.
      eager_record_.resize(header.bytes - sizeof(header));
      std::memcpy(eager_record_.data(), operation->input, bytes);
      rest = eager_record_;
    }
  }
  for (Peer* peer : set.peers) {
    if (peer != nullptr) send(*peer, header, rest);
  }
  for (Peer* server : set.servers) send(*server, header, rest);
  if (timeline_.enabled()) operation->submitted_at = clock_.now();
  eager_ = {operation, &set};
  set.unflushed = false;  // the buckets are empty, and its place in the log is not to be taken twice
  const bool sent = std::all_of(set.peers.begin(), set.peers.end(),
                                [](const Peer* peer) { return peer == nullptr || peer->backlog.empty(); });
  if (!sent) leave_eager();
  return true;
}

// Keeps what a member sent along. Only where ranks may have different rows there is something to find out: false where
// its splits do not fit.
bool Engine::note_eager(const ProcessSet& set, const Descriptor& descriptor, int member, const RecordHeader& header,
                        EagerSplits splits, const std::byte* data) {
  EagerPart part{data, header.rows};
  if (!descriptor.has_free_rows()) {
    if (splits.count > 0) return false;
  } else {
    eager_contributions_.resize(set.peers.size());
    Contribution& from = eager_contributions_[member];
    from.rows = header.rows;
    from.flags = header.flags;
    from.splits.resize(splits.count);
    if (splits.count > 0) std::memcpy(from.splits.data(), splits.data, splits.count * sizeof(std::uint64_t));
    const auto own = eager_part(descriptor, from, static_cast<int>(set.peers.size()), data, set.self);
    if (!own) return false;
    part = *own;
  }
  eager_parts_[member] = part;
  return true;
}

// Looks at the front of every lane. True when the operation is complete.
bool Engine::progress_eager() {
  ProcessSet& set = *eager_.set;
  Operation& operation = *eager_.operation;
  bool all = true;
  for (std::size_t m = 0; m < set.peers.size(); ++m) {
    if (set.peers[m] == nullptr) continue;
    const std::span<const std::byte> bytes = peek_control(*set.peers[m]);
    if (bytes.size() < sizeof(RecordHeader)) {
      if (is_tree_record(bytes)) return leave_eager(), false;
      all = false;
      continue;
    }
    RecordHeader header;
    std::memcpy(&header, bytes.data(), sizeof(header));
    const std::size_t expected = eager_bytes(operation.descriptor, header.rows, static_cast<int>(m));
    const bool has_output = (header.flags & kHasOutput) != 0;
    const std::size_t splits = eager_splits(operation.descriptor, set.peers.size(), has_output);
    const std::size_t before = sizeof(header) + splits * sizeof(std::uint64_t);
    const bool same = header.type == RecordType::kOperation && header.signature == operation.signature &&
                      header.process_set == set.id && (header.flags & kEager) != 0 &&
                      header.epoch == membership_.epoch() && header.sequence == set.peers[m]->received_records &&
                      header.position == set.negotiation.length(set.self) && header.splits_count == splits &&
                      header.payload_bytes == expected &&
                      header.bytes == (before + expected + header.descriptor_bytes + 7) / 8 * 8;
    if (!same) {
      leave_eager();
      return false;
    }
    if (bytes.size() < header.bytes) {
      all = false;
      continue;
    }
    if (header.descriptor_bytes > 0 && eager_record_bytes_[m] == 0) {  // the member's first use, looked at once
      const auto described = bytes.subspan(before + expected, header.descriptor_bytes);
      if (!std::ranges::equal(described, encode(operation.descriptor))) {
        leave_eager();
        return false;
      }
    }
    if (!note_eager(set, operation.descriptor, static_cast<int>(m), header, {bytes.data() + sizeof(header), splits},
                    bytes.data() + before)) {  // told by the general way
      leave_eager();
      return false;
    }
    eager_record_bytes_[m] = header.bytes;
  }
  if (!all) return false;
  if (operation.descriptor.has_free_rows() && find_wrong_output(operation.descriptor, eager_contributions_)) {
    leave_eager();
    return false;
  }
  // While it is still known as the one that waits: there may be no memory for its result.
  set.schedule.finish_eager(eager_parts_, operation);
  const std::shared_ptr<Operation> done = std::move(eager_.operation);
  eager_ = {};
  for (std::size_t m = 0; m < set.peers.size(); ++m) {
    if (set.peers[m] == nullptr) continue;
    ++set.peers[m]->received_records;
    if (!set.signatures.use(static_cast<int>(m), done->signature)) {
      set.signatures.describe(static_cast<int>(m), done->signature, set.signatures.find(done->signature));
    }
    set.peers[m]->last_heard = timers_checked_;
    set.peers[m]->link->consume(transport::kControlLane, eager_record_bytes_[m]);
  }
  set.negotiation.skip_round();
  if (timeline_.enabled()) set.schedule.record_small(*done);
  done->number = set.released++;
  if (elastic_ != nullptr) {
    note_released(set);
    done->state.store(OperationState::kReleased, std::memory_order_relaxed);
    set.operations.emplace(done->name_hash, done);
    if (carry_out(set, *done)) return true;
    set.operations.erase(done->name_hash);
  }
  complete(done, nullptr);
  return true;
}

// Something else has come: the general way takes over; the records still lie in their lanes.
void Engine::leave_eager() {
  const std::shared_ptr<Operation> operation = std::move(eager_.operation);
  ProcessSet& set = *eager_.set;
  eager_ = {};
  if (operation->submitted_at == 0) operation->submitted_at = clock_.now();
  set.operations.emplace(operation->name_hash, operation);
  Entry entry{.type = RecordType::kOperation};
  entry.flags = kEager | flags_of(*operation);
  entry.signature = operation->signature;
  entry.name_hash = operation->name_hash;
  entry.rows = operation->descriptor.shape.rows();
  entry.splits = operation->splits;
  entry.descriptor = set.signatures.find(operation->signature);
  set.negotiation.append(set.self, std::move(entry));
  set.undecided = true;
}

}  // namespace ringcore::engine
