// The operations of one process set whose tensors lie on GPUs: launched on a stream of ours, through NCCL.
//
// The host never waits for a GPU. An operation waits, in our stream, for the event that was recorded in the framework's
// stream when it was submitted; it is done for the host when it has been launched, and whoever uses the result lets its
// own stream wait for `completion` (`hold_back`). What was launched is watched: NCCL's errors, and its age.
//
// Before the first of them the ranks tell each other what they have (`Hello`), through the engine itself. Where several
// share a GPU, and NCCL does not let them, they tell each other more, and meet in its memory (device_shared.hpp). Where
// that cannot be either, where one has no NCCL, and for what cannot be done on GPUs, `takes` is false on all ranks: then
// the tensors are copied to the host and go through our own plans (`fetch`, `give_back`).
//
// While a graph is captured in the framework's stream, the operation is negotiated like any other and then given to that
// stream itself: nothing of ours may be in the graph that is used again or watched, neither stream nor event nor buffer.
// Whoever submits it returns when it was recorded (`Runtime::submit`); replays know nothing of the engine.
//
// Buckets are packed into memory that NCCL knows where it can. All ranks take part in registering it, so that it grows at
// the same place of their order, by what they know alike: the sizes of the tensors. A rank that has joined does so too.
//
// In four files: device_agreement.cpp says what goes which way, device_queue.cpp carries it out and watches it,
// device_collectives.cpp launches it, device_streams.cpp is about the framework's streams.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "device/communicator.hpp"
#include "device/device.hpp"
#include "engine/negotiation.hpp"
#include "engine/request.hpp"

namespace ringcore::engine {

class SharedGpu;

// NCCL from this version on lets several ranks use one GPU, where NCCL_MULTI_RANK_GPU_ENABLE says so.
inline constexpr int kNcclSharesGpus = 23000;

// One collective on the GPU: of one operation, or the allreduces of a bucket.
struct DeviceTask {
  std::vector<std::shared_ptr<const Descriptor>> descriptors;  // one, or those of the bucket; also when joined
  std::vector<std::shared_ptr<Operation>> operations;  // the same order; empty when this rank has joined
  std::vector<Contribution> contributions;  // of a task that is no bucket
  bool begun = false;
  device::Memory work;  // for data that cannot lie in an operation's own memory

  const Descriptor& descriptor() const { return *descriptors.front(); }
  // Whether its tensors are packed into one buffer.
  bool fuses() const { return descriptors.size() > 1 && !descriptor().captured; }
  // Whether they are parts of one group.
  bool belongs_with(const Operation& other) const {
    return other.whole != nullptr && operations.front()->whole == other.whole;
  }
};

class DeviceQueue {
 public:
  // What a member tells the others, all in one gather of bytes.
  struct Hello {
    char uuid[16] = {};  // of the GPU, or of the part of it (MIG) that this rank uses
    char address[24] = {};  // of the whole GPU, on its bus
    std::uint64_t host = 0;  // of the member: GPUs are shared within a host only
    std::int32_t nccl_version = 0;  // 0: it cannot be used
    std::int16_t has_kernels = 0;
    std::int8_t shares_gpus = 0;  // NCCL may run several ranks on one
    device::Registering registers{};
    device::UniqueId id{};  // of the first member
  };

  // `device`: the number of this rank's GPU; `host`: where this rank is.
  // `packed_bytes`: what tensors are packed into has about that size.
  DeviceQueue(int device, int self, int size, std::uint64_t host, bool deterministic, std::size_t packed_bytes,
              const Clock& clock);
  ~DeviceQueue();

  // What this rank tells the others next, until they have agreed on how it is done; empty: it is not known yet.
  std::span<const std::byte> message();
  // Everybody's, by member, each as long as the own one.
  void hear(std::span<const std::byte> messages);
  bool agreed() const { return round_ == Round::kAgreed; }
  // What follows is the same on every rank, and valid once they have agreed.
  // A line for the log where not all goes through NCCL.
  std::string way() const;
  // Whether such an operation is done on GPUs.
  bool takes(const Descriptor& descriptor) const;
  // Why it cannot become part of a graph, and what to do; empty when it can.
  std::string refuses_capture(const Descriptor& descriptor) const;

  // The next task to launch, in the order of all ranks.
  void push(std::unique_ptr<DeviceTask> task) {
    used_ = true;
    queue_.push_back(std::move(task));
  }
  // Launches what can be launched; appends operations that are done for the host. Throws Error{kPeerLost, kResource}.
  bool progress(std::vector<std::shared_ptr<Operation>>& done);
  bool idle() const { return queue_.empty(); }
  // Whether the GPU has ended all that was launched.
  bool landed() const { return flights_.empty(); }
  // The number of the GPU that this rank has told the others.
  int ordinal() const { return ordinal_; }
  // Watches what was launched: throws Error{kTimeout} when it has been under way for longer than `limit`, and what NCCL
  // reports.
  void tend(Nanoseconds now, Nanoseconds limit);
  // Ends what is under way on the GPU: its results are worthless.
  void abort();

  // Copies an operation's input to the host and lets the operation work there; true when it has arrived.
  bool fetch(Operation& operation);
  // Starts to copy the result of such an operation to where it belongs.
  void give_back(const std::shared_ptr<Operation>& operation);

  std::string describe() const;

 private:
  struct Flight {
    std::shared_ptr<device::Event> event;
    std::string name;
    Nanoseconds launched_at;
    std::vector<std::shared_ptr<Operation>> operations;  // keeps their host memory
  };

  enum class Round : std::uint8_t { kHello, kOffer, kOpened, kAgreed };

  std::string problem_of_nccl(std::span<const Hello> hellos) const;
  void agree(std::span<const Hello> hellos);
  bool connect();
  bool has_room(const DeviceTask& task);
  void begin(DeviceTask& task);
  void begin_allreduce(DeviceTask& task);
  void begin_fused(DeviceTask& task);
  void begin_captured(DeviceTask& task);
  void begin_allgather(DeviceTask& task);
  void begin_broadcast(DeviceTask& task);
  void begin_reducescatter(DeviceTask& task);
  void begin_alltoall(DeviceTask& task);
  void pack(const DeviceTask& task, bool in, double factor) const;
  void end(DeviceTask& task);
  void scale_captured(const DeviceTask& task, bool inputs, double factor) const;
  void wait_for_inputs(const DeviceTask& task) const;
  void copy(const Descriptor& descriptor, const std::byte* from, std::byte* to, std::uint64_t elements,
            double factor) const;
  device::Memory identity(const Descriptor& descriptor) const;
  void launched(std::string name, std::vector<std::shared_ptr<Operation>> operations);
  void land();
  void let_go_of_outgrown();
  void let_go_of_all();

  int ordinal_;
  int self_;
  int size_;
  bool deterministic_;
  const Clock& clock_;
  Hello hello_;
  std::string problem_;  // why this rank cannot use NCCL
  device::Device* device_ = nullptr;  // null: this rank has none
  std::shared_ptr<const device::Stream> stream_;  // results that nobody has taken keep it
  std::shared_ptr<const device::Memory> fusion_;
  std::vector<std::shared_ptr<const device::Memory>> outgrown_;  // such buffers before: the GPU may still use them
  Round round_ = Round::kHello;
  std::size_t packed_bytes_;
  bool by_nccl_ = false;
  std::unique_ptr<SharedGpu> shared_;  // null: this rank meets nobody in memory of its GPU
  bool kernels_ = false;  // every rank has them
  device::Registering registering_{};  // what every rank can do
  bool used_ = false;  // something was launched before, or will be
  std::string why_not_nccl_;
  std::string kernels_warning_;  // where some rank has none
  std::string why_not_shared_;
  std::optional<device::Communicator> communicator_;
  device::UniqueId id_{};
  std::deque<std::unique_ptr<DeviceTask>> queue_;
  std::deque<Flight> flights_;
};

// Finds out whether an operation is captured, and becomes part of a graph. Throws Error{kInvalidArgument} where it cannot.
void note_capture(Operation& operation);
// Records where an operation's tensors are ready, in the framework's streams. Throws Error{kResource}.
void record_ready(Operation& operation);
// What is given to `stream` from now on waits for the results of an operation that is done. No other stream does: the
// memory of its tensors stays until `has_landed`.
void hold_back(const Operation& operation, std::uintptr_t stream);
// Copies the result of an operation that is done to `target` on its GPU, in `stream`, if it has so many bytes; returns
// how many it has.
std::size_t copy_result(Operation& operation, void* target, std::size_t bytes, std::uintptr_t stream);
// Whether the GPU has ended an operation that is done: its memory is used no more.
bool has_landed(const Operation& operation);

}  // namespace ringcore::engine
