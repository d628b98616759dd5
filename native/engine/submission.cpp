// An operation is submitted: checked, named, and announced to the members of its process set.
#include <algorithm>
#include <cmath>
#include <new>
#include <string>
#include <utility>

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
  const bool reduces = ringcore::reduces(descriptor.collective);
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
  const bool deals_rows = descriptor.collective == Collective::kReduceScatter || has_splits(descriptor.collective);
  if (deals_rows && descriptor.shape.dims == 0) {
    throw Error(ErrorKind::kInvalidArgument, title(descriptor) +
                                                 ": a scalar has no rows to deal out. Remedy: pass a tensor of at "
                                                 "least one dimension.");
  }
}

// Of an alltoall or scatter without splits.
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

void Engine::submit(const std::shared_ptr<Operation>& operation, bool held) {
  struct Hold {
    bool& holds;
    ~Hold() { holds = false; }
  } const hold{holds_};
  holds_ = held;
  all_wait({});
  standstill_.waits.clear();
  if (sets_.count(operation->process_set) == 0) {
    throw Error(ErrorKind::kInvalidArgument, title(*operation) + ": there is no process set " +
                                                 std::to_string(operation->process_set) + " on rank " +
                                                 std::to_string(rank()));
  }
  if (sets_.at(operation->process_set)->serves()) {
    throw Error(ErrorKind::kInvalidArgument, title(*operation) + ": " + title_of(rank()) + " has no data of its own");
  }
  const bool is_watch = operation->watched_members != 0;
  if (!operation->join && !is_watch) claim_name(*operation);
  ProcessSet& set = *sets_.at(operation->process_set);
  if (failure_ != nullptr) throw Error(failure_->kind(), title(*operation) + ": " + failure_->what());
  if (is_watch) check_watch(set, *operation);
  const Descriptor& descriptor = operation->descriptor;
  // First of all what is wrong with it here: whoever has made the same mistake has left meanwhile.
  if (!operation->join && !is_watch) {
    try {
      prepare(set, *operation);
    } catch (const Error& error) {
      refuse(set.id, descriptor.name, error.what());
      throw;
    }
  }
  if (operation->join && set.join != nullptr) {
    throw Error(ErrorKind::kDuplicateName, "join: this rank has joined already");
  }
  if (elastic_ != nullptr) elastic_->waits_since = clock_.now();
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
  if (is_watch) return start_watch(set, operation);
  if (operation->join) {
    operation->submitted_at = clock_.now();
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
  set.announced_at = operation->submitted_at;
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
  // Whoever is not the root of a scatter passes a tensor for its dtype and the shape of a row, and gives nothing.
  if (descriptor.collective == Collective::kScatter && descriptor.root != set.self) {
    operation.descriptor.shape.extent[0] = 0;
    operation.splits.assign(set.peers.size(), 0);
  }
  if (descriptor.on_device && !set.servers.empty()) {
    throw Error(ErrorKind::kInvalidArgument, title(operation) +
                                                 ": in a job with servers tensors lie in the host's memory. Remedy: "
                                                 "move it there, or start the job without --servers.");
  }
  if (descriptor.on_device) set.schedule.admit(operation);
  operation.signature = descriptor.signature();
  const bool takes_one = has_root(descriptor.collective) && descriptor.collective != Collective::kBroadcast;
  if (takes_one && descriptor.is_group()) {
    throw Error(ErrorKind::kInvalidArgument, title(operation) + ": a " + std::string(name_of(descriptor.collective)) +
                                                 " takes one tensor. Remedy: submit them one by one.");
  }
  if (has_splits(descriptor.collective) && operation.splits.empty()) {
    operation.splits = even_splits(descriptor, set.peers.size());
  }
  // What is empty may lie nowhere.
  const bool has_no_place = operation.output == nullptr && operation.bytes() > 0;
  if (descriptor.collective == Collective::kReduce && descriptor.root == set.self && has_no_place) {
    throw Error(ErrorKind::kInvalidArgument,
                title(operation) + ": the root has no place for the result. Remedy: pass an output on the root.");
  }
  place_outputs(operation, set.self, set.peers.size());
  if (const auto input = input_apart(operation)) operation.splits = {*input + 1};
  if (descriptor.is_group() || !operation.splits.empty()) check_record_size(operation, set.peers.size());
}

void Engine::refuse(ProcessSetId id, const std::string& name, const std::string& why) {
  const auto found = sets_.find(id);
  if (found == sets_.end() || failure_ != nullptr || left_ || frozen()) return;
  if (eager_.operation != nullptr) leave_eager();
  const std::string text = ("rank " + std::to_string(rank()) + " refused " + why).substr(0, kMaxPayloadBytes / 2);
  // Who waits for it may wait with all that it has announced: nobody hears of this before the others' logs are as long.
  append_own(*found->second, {.type = RecordType::kRefused, .flags = kFill, .name_hash = hash_bytes(name)},
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

// Where in this rank's arena lies what it gives to an allreduce whose sum goes elsewhere in there: the others read one and
// write the other, and nothing is copied. What is small is copied sooner.
std::optional<std::uint64_t> Engine::input_apart(const Operation& operation) const {
  const Descriptor& descriptor = operation.descriptor;
  const bool may = arena_ != nullptr && descriptor.collective == Collective::kAllreduce && !descriptor.is_group() &&
                   !descriptor.on_device && operation.bytes() >= settings_.execution.direct_bytes;
  if (!may || is_in_place(operation) || !arena_->offset_of(operation.output, operation.bytes())) return std::nullopt;
  return arena_->offset_of(operation.input, operation.bytes());
}

// Where the data lies in this rank's arena, of an operation in place on registered memory, or of an allreduce from there to
// there, of an alltoall of what lies there, and of an allgather into it: what the others read there is ready when they hear
// of it, or, of the allgather, when it runs.
std::optional<std::uint64_t> Engine::registered_at(const Operation& operation) const {
  const Descriptor& descriptor = operation.descriptor;
  // What the others add to on its way to the root is never what the caller has, and of what one rank gathers or deals out
  // the others see nothing.
  const bool sees_nothing = descriptor.collective == Collective::kReduce ||
                            descriptor.collective == Collective::kGather ||
                            descriptor.collective == Collective::kScatter;
  if (arena_ == nullptr || descriptor.on_device || sees_nothing) return std::nullopt;
  if (descriptor.collective == Collective::kAlltoall) return arena_->offset_of(operation.input, operation.bytes());
  if (operation.output == nullptr) return std::nullopt;
  if (descriptor.collective == Collective::kAllgather && !descriptor.is_group()) {
    const std::size_t row_bytes = descriptor.shape.row_elements() * size_of(descriptor.dtype);
    return arena_->offset_of(operation.output, operation.output_rows * row_bytes);
  }
  const bool apart = descriptor.collective == Collective::kAllreduce && !operation.splits.empty();
  if (!is_in_place(operation) && !apart) return std::nullopt;
  const bool scatters = descriptor.collective == Collective::kReduceScatter;
  return arena_->offset_of(scatters ? operation.input : operation.output, operation.bytes());
}

void Engine::wanted(Operation& operation, bool only_thread) {
  if (operation.done() || operation.join || operation.watched_members != 0 || failure_ != nullptr || left_) return;
  const bool first = !std::exchange(operation.waited_for, true);
  if (frozen()) return;
  ProcessSet& set = *sets_.at(operation.process_set);
  RecordHeader header{.type = RecordType::kNoop, .flags = kFlush, .name_hash = operation.name_hash};
  if (only_thread) header.flags |= kBlocked;
  if (first && may_stay_in_bucket(set, operation)) set.unflushed = true;
  close_buckets(set, header);
}

// Whether nothing that this rank has said so far closes the bucket which the operation is in, or will come into.
bool Engine::may_stay_in_bucket(const ProcessSet& set, const Operation& operation) const {
  const Descriptor& descriptor = operation.descriptor;
  if (operation.awaited || descriptor.collective != Collective::kAllreduce) return false;  // it has said so at once
  const ExecutionSettings& limits = settings_.execution;
  const std::size_t bytes = descriptor.is_group() ? 0 : operation.bytes();
  const bool runs_in_place = bytes >= limits.direct_bytes && registered_at(operation);
  // The last piece of what is cut stays there, as large as the whole is.
  const bool is_cut = operation.priority != 0 && limits.partition_bytes > 0;
  if (!is_cut && (bytes > limits.fusion_threshold_bytes || runs_in_place)) return false;
  // A wish names one operation that it is for, and others are to gather with what comes behind them.
  if (operation.state.load(std::memory_order_relaxed) == OperationState::kSubmitted) return true;
  return set.negotiation.round() >= set.flushed_until && set.schedule.may_hold_open();
}

// Tells all members, unless nothing was announced since.
void Engine::close_buckets(ProcessSet& set, const RecordHeader& header) {
  if (!set.unflushed) return;
  set.unflushed = false;
  append_own(set, header);
  set.flushed_until = set.negotiation.length(set.self);
}

}  // namespace ringcore::engine
