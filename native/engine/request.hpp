// What a rank submits, and the part of it that all ranks must agree on.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/memory.hpp"
#include "base/types.hpp"

namespace ringcore::engine {

using ProcessSetId = std::uint16_t;
inline constexpr int kProcessSetBits = 14;  // the rest of 32 bits numbers its runs, see Schedule::queue
inline constexpr ProcessSetId kWorld = 0;
inline constexpr int kHost = -1;  // the device number of host memory

// Extents of a tensor, outermost first. Tensors of more dimensions are described with their last ones multiplied.
struct Shape {
  static constexpr int kMaxDims = 8;
  std::uint8_t dims = 0;
  std::array<std::uint64_t, kMaxDims> extent{};

  static Shape of(std::span<const std::uint64_t> extents);
  std::uint64_t elements() const;
  std::uint64_t rows() const { return dims == 0 ? 1 : extent[0]; }
  // Elements of one row: of everything behind the first dimension.
  std::uint64_t row_elements() const;
  std::string to_string() const;
  bool operator==(const Shape&) const = default;
};

// The first dimension may differ between ranks.
constexpr bool has_free_rows(Collective collective) {
  return collective == Collective::kAllgather || collective == Collective::kAlltoall ||
         collective == Collective::kGather || collective == Collective::kScatter;
}
// What a rank gives is dealt out by its splits: of a scatter only the root has rows to deal out.
constexpr bool has_splits(Collective collective) {
  return collective == Collective::kAlltoall || collective == Collective::kScatter;
}
// The result has another shape than the tensor.
constexpr bool has_own_result(Collective collective) {
  return has_free_rows(collective) || collective == Collective::kReduceScatter;
}

// The part of an operation that must be the same on every rank. Ranks announce it once in full, afterwards by its hash.
// Gathers, alltoall and scatter may differ in the first dimension, which is therefore not part of the hash.
// A group is announced, decided and completed as one operation: all of it runs, or nothing.
struct Descriptor {
  std::string name;
  Collective collective{};
  DType dtype{};
  ReduceOp op{};
  Rank root = 0;  // index in the process set
  Shape shape;
  double prescale = 1.0;
  double postscale = 1.0;
  Compression compression{};  // of an allreduce
  bool on_device = false;  // the tensors lie on GPUs
  bool captured = false;   // and the operation becomes part of a CUDA graph
  // Which of the devices that a rank uses in the process set, in the order of their first use: what the ranks can agree
  // on, because each numbers its devices for itself. Of a group: that of its first tensor.
  std::uint8_t device_index = 0;
  // Of a group: the operations that it consists of, in order; dtype and shape are theirs then.
  std::vector<std::shared_ptr<const Descriptor>> parts;

  std::uint64_t signature() const;
  std::uint64_t name_hash() const;
  bool is_group() const { return !parts.empty(); }
  bool has_free_rows() const { return engine::has_free_rows(collective); }
  bool has_own_result() const { return engine::has_own_result(collective); }
  // "allreduce sum of float32 [3, 4]" ...
  std::string to_string() const;
};

// "allreduce 'x'": how messages name it.
std::string title(const Descriptor& descriptor);

// What runs for an operation: averages are sums that are scaled at the end.
ReduceOp summing(ReduceOp op);
// Applied to each complete sum, where `prescale` was applied to what it is made of.
double final_scale(const Descriptor& descriptor, int ranks);
// The same in host memory, where 16-bit floats are rounded once: both factors are applied to the sum, in float32.
struct Scales {
  double input = 1.0;
  double result = 1.0;
};
Scales host_scales(const Descriptor& descriptor, int ranks);
// Elements of each member's block when `rows` rows are dealt out: the first ones get one more.
std::vector<std::uint64_t> dealt_blocks(std::uint64_t rows, std::uint64_t row_elements, int ranks);

std::uint64_t hash_bytes(std::string_view bytes, std::uint64_t seed = 0);

class Carrier;

// What a carrier keeps with a tensor.
struct CarrierState {
  virtual ~CarrierState() = default;
};

// What an operation has besides when its tensor lies on a device, outside the host's memory.
struct OnDevice {
  int device = kHost;
  std::uintptr_t stream = 0;  // the framework's: in which the input is made; in the end where the result is used
  const std::byte* input = nullptr;  // there; the operation's own are those of the host while it is fetched
  std::byte* output = nullptr;
  Carrier* fetched_by = nullptr;  // that brings the result back
  std::unique_ptr<CarrierState> state;  // of the carrier that it was admitted by
};

enum class OperationState : std::uint8_t { kSubmitted, kReleased, kDone };

// One submitted operation on this rank. The submitter keeps input and output alive until it is done.
struct Operation {
  Descriptor descriptor;
  ProcessSetId process_set = kWorld;
  const std::byte* input = nullptr;
  // Allreduce, broadcast: may equal input. Gathers, alltoall, scatters: null where the engine allocates the
  // result. Of a group: where its parts lie in a row.
  std::byte* output = nullptr;
  std::uint64_t output_rows = 0;  // of `output`; the negotiation tells whether they are those of the result
  // Alltoall, scatter: rows for each rank, empty: all alike; allgather of a group: rows of each part. Written by the engine: of an
  // allreduce from registered memory to another place in it, where it comes from, plus 1.
  std::vector<std::uint64_t> splits;
  std::vector<std::shared_ptr<Operation>> parts;  // of a group: see `make_group`
  std::int32_t priority = 0;  // the larger, the sooner: see docs/adr/0016
  bool awaited = false;  // somebody waits for it from the start: it may not stay in a bucket
  bool only_thread = false;  // and no other thread of this rank uses the engine: nothing else comes until it is done
  bool renewed = false;  // by `renew`: this rank has looked at what it is before
  bool join = false;  // not a collective: this rank contributes nothing more until all ranks have joined
  // Not a collective: done when so many members have announced the operation of this name, as far as this rank has heard.
  int watched_members = 0;
  // Called by the Runtime when it is done, once, on any thread and without a lock.
  std::function<void(const std::shared_ptr<Operation>&)> on_done;

  // Written by the engine. `state` is stored last: once it is kDone, the rest may be read without a lock.
  std::atomic<OperationState> state = OperationState::kSubmitted;
  std::shared_ptr<const Error> error;  // why it failed
  bool in_use = false;  // it has failed, but MPI may still read and write its memory, which must stay for ever
  Memory result;  // gathers, alltoall, scatters; nothing where `output` has it
  std::vector<std::uint64_t> result_rows;  // gathers, alltoall, scatter: rows that came from each rank
  Rank last_joined = -1;
  std::uint32_t epoch = 0;  // of the members whose result it is

  // The engine's own.
  std::uint64_t signature = 0;
  std::uint64_t name_hash = 0;
  Nanoseconds submitted_at = 0;
  Nanoseconds excused_until = 0;  // nobody was late with it before
  Nanoseconds released_at = 0;
  Nanoseconds started_at = 0;
  bool stall_reported = false;
  bool cancel_sent = false;
  bool waited_for = false;  // somebody waits for it by now
  Operation* whole = nullptr;  // the group that this is a part of
  std::size_t unfinished = 0;  // parts that still run
  // In elastic jobs, see in_flight.cpp.
  bool held_back = false;  // it was submitted while the members change, and is announced when they have
  std::uint64_t number = 0;  // of its release, in its process set
  bool carried_out = false;  // this rank has its result, which its caller gets when all members have theirs
  std::vector<int> carried_out_by;  // other members that have theirs, or need none
  std::vector<std::byte> kept;  // a small input that lies where the result goes

  // Whether a thread of the program stands still from the submission to the end.
  bool blocks_program() const { return awaited && !on_done; }
  std::uint64_t count() const { return descriptor.shape.elements(); }
  // The place of a result of so many bytes.
  std::byte* place_result(std::size_t bytes) {
    if (output != nullptr) return output;
    result = Memory(bytes);
    return result.data();
  }
  // From its beginning to its end.
  std::size_t bytes() const {
    if (parts.empty()) return count() * size_of(descriptor.dtype);
    return output == nullptr ? 0 : parts.back()->output + parts.back()->bytes() - output;
  }
  // Of a tensor on a device, for which `done` means that it was launched there; of a group its parts have it.
  std::unique_ptr<OnDevice> on_device;

  bool done() const { return state.load(std::memory_order_acquire) == OperationState::kDone; }
};

// A contiguous tensor.
struct Array {
  std::byte* data = nullptr;
  Shape shape;
  DType dtype{};
  int device = kHost;  // the number of the GPU that it lies on
  std::uintptr_t stream = 0;  // of that GPU, in which it is made
};

// What all tensors of one request have in common.
struct Call {
  Collective collective;
  const std::string& name;
  ReduceOp op{};
  Rank root = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  ProcessSetId process_set = kWorld;
  std::int32_t priority = 0;
  Compression compression{};

  // Throws Error{kInvalidArgument}.
  void check() const;
};

// `output` is null where the engine allocates the result. Throws Error{kInvalidArgument} when it does not fit the input,
// as far as this rank can tell.
std::shared_ptr<Operation> make_operation(const Call& call, const Array& input, const Array* output);

// One operation of several of one kind. Submit and wait for the group; the results are in its parts. Allreduces of one
// dtype, in place, each at the next multiple of Memory::kAlignment behind the one before, in registered memory on all
// ranks, are reduced as one tensor.
// `owns_gaps`: what lies between them there is nobody else's, and may be reduced with them.
std::shared_ptr<Operation> make_group(const std::string& name, std::vector<std::shared_ptr<Operation>> parts,
                                      bool owns_gaps = false);
// How many bytes such a group has from the beginning of its first part to the end of its last one.
std::size_t bytes_in_a_row(const Descriptor& group);

// A training loop submits the same group in each step, in other memory: described once, it is renewed. First ask whether
// the one that has ended is what `call` asks for, and nobody else holds it; then place each part, which is false for an
// array of another kind; then renew the whole. Who stops in between makes a new group.
bool can_be_renewed(const std::shared_ptr<Operation>& group, const Call& call, std::size_t parts);
bool place_again(Operation& part, const Array& input, const Array& output);
void renew(Operation& group);

}  // namespace ringcore::engine
