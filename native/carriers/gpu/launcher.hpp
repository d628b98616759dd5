// The operations of one process set whose tensors lie on one of a rank's GPUs: launched on a stream of ours, through
// NCCL.
//
// The host never waits for a GPU. An operation waits, in our stream, for the event that was recorded in the framework's
// stream when it was submitted; it is done for the host when it has been launched, and whoever uses the result lets its
// own stream wait for `completion` (`hold_back`). What was launched is watched: NCCL's errors, and its age.
//
// Before the first of them the ranks tell each other what they have (`Facts`). Where several
// share a GPU, and NCCL does not let them, they tell each other more, and meet in its memory (shared.hpp). Where
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
// In three files: handshake.cpp says what goes which way, launcher.cpp carries it out and watches it, collectives.cpp has
// what is launched for each collective.
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
#include "engine/carrier.hpp"

namespace ringcore::carriers {

using engine::Descriptor;
using engine::OnDevice;
using engine::Operation;
using engine::Task;

class SharedGpu;

// NCCL from this version on lets several ranks use one GPU, where it was told so.
inline constexpr int kNcclSharesGpus = 23000;

class Launcher {
 public:
  // What a member tells the others, all in one gather of bytes.
  struct Facts {
    char uuid[16] = {};  // of the GPU, or of the part of it (MIG) that this rank uses
    char address[24] = {};  // of the whole GPU, on its bus
    std::uint64_t host = 0;  // of the member: an address on a bus is of one host
    std::int32_t nccl_version = 0;  // 0: it cannot be used
    std::int16_t has_kernels = 0;
    std::int8_t shares_gpus = 0;  // NCCL may run several ranks on one
    device::Registering registers{};
    device::UniqueId id{};  // of the first member
  };

  struct Config {
    int device = 0;  // the number of this rank's GPU
    int self = 0;
    int size = 1;
    std::uint64_t host = 0;  // where this rank is
    bool deterministic = false;
    bool nccl_shares_gpus = false;  // its users let NCCL run several ranks on one GPU
    std::size_t packed_bytes = 0;  // what tensors are packed into has about that size
  };
  Launcher(const Config& config, const Clock& clock);
  ~Launcher();

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

  // A task is the next one to launch, in the order of all ranks.
  void expect() {
    used_ = true;
    ++expected_;
  }
  // A task that is being launched.
  struct Launch {
    const Task& task;
    device::Memory work;  // for data that cannot lie in an operation's own memory
    bool begun = false;
    bool ended = false;  // all of it is in the stream
  };
  // Launches what can be launched; true if anything was. Throws Error{kPeerLost, kResource}.
  bool progress(Launch& launch);
  // Forgets what has ended on the GPU.
  void forget_ended();
  // Whether the GPU has ended all that was launched.
  bool drained() const { return launched_.empty(); }
  // The number of the GPU that this rank has told the others.
  int ordinal() const { return ordinal_; }
  // Watches what was launched: throws Error{kTimeout} when it has been under way for longer than `limit`, and what NCCL
  // reports.
  void watch(Nanoseconds now, Nanoseconds limit);
  // Ends what is under way on the GPU: its results are worthless.
  void abort();

  // Copies an operation's input to the host and lets the operation work there; true when it has arrived.
  bool fetch(Operation& operation);
  // Starts to copy the result of such an operation to where it belongs.
  void give_back(const std::shared_ptr<Operation>& operation);

  // What a task that is not launched yet waits for.
  std::string waiting_for() const;

 private:
  struct Launched {
    std::shared_ptr<device::Event> event;
    std::string name;
    Nanoseconds launched_at;
    std::vector<std::shared_ptr<Operation>> operations;  // keeps their host memory
  };

  enum class Round : std::uint8_t { kFacts, kOffer, kOpened, kAgreed };

  std::string problem_of_nccl(std::span<const Facts> facts) const;
  void agree(std::span<const Facts> facts);
  bool connect();
  bool has_room(const Task& task);
  void begin(Launch& launch);
  void begin_allreduce(Launch& launch);
  void begin_fused(Launch& launch);
  void begin_captured(const Task& task);
  void begin_allgather(const Task& task);
  void begin_broadcast(const Task& task);
  void begin_reduce(Launch& launch);
  void begin_reducescatter(Launch& launch);
  void begin_alltoall(const Task& task);
  void begin_gather(const Task& task);
  void begin_scatter(const Task& task);
  void pack(const Task& task, bool in, double factor) const;
  void end(Launch& launch);
  void scale_captured(const Task& task, bool inputs, double factor) const;
  void wait_for_inputs(const Task& task) const;
  void copy(const Descriptor& descriptor, const std::byte* from, std::byte* to, std::uint64_t elements,
            double factor) const;
  device::Memory identity(const Descriptor& descriptor) const;
  void note_launched(std::string name, std::vector<std::shared_ptr<Operation>> operations);
  void release_outgrown();
  void release_all();

  int ordinal_;
  int self_;
  int size_;
  bool deterministic_;
  const Clock& clock_;
  Facts facts_;
  std::string problem_;  // why this rank cannot use NCCL
  device::Device* device_ = nullptr;  // null: this rank has none
  std::shared_ptr<const device::Stream> stream_;  // results that nobody has taken keep it
  std::shared_ptr<const device::Memory> fusion_;
  std::vector<std::shared_ptr<const device::Memory>> outgrown_;  // such buffers before: the GPU may still use them
  Round round_ = Round::kFacts;
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
  int expected_ = 0;  // tasks that are to be launched
  std::deque<Launched> launched_;
};

}  // namespace ringcore::carriers
