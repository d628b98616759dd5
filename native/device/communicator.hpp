// One communicator of NCCL. No call blocks: what a call has begun is complete when `ready` says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>

#include "base/types.hpp"
#include "device/device.hpp"
#include "device/nccl_api.hpp"

namespace ringcore::device {

using UniqueId = nccl::UniqueId;

// NCCL's code; nullopt where NCCL has none. bool is reduced as uint8: its sum and maximum are OR, the others AND.
std::optional<int> nccl_dtype(DType dtype);
int nccl_op(DType dtype, ReduceOp op);

// What NCCL can be told of memory, so that its kernels use it where it lies: nothing, each rank for itself, or all ranks
// together as a window, of which NCCL's fastest kernels make use.
enum class Registering : std::int8_t { kNone, kLocal, kWindow };

class Communicator {
 public:
  // On one rank; the others get it from there. Throws Error{kResource}.
  static UniqueId make_id();
  // What this rank's library can do.
  static Registering registering();

  // Begins to connect to the other ranks, which do the same. Throws Error{kResource}.
  Communicator(Device& device, const UniqueId& id, int rank, int ranks);
  // Aborts what is still under way.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Whether the last call is complete: connected, or given to the stream. Throws why NCCL has failed: Error{kPeerLost}
  // where a rank cannot be reached any more, else Error{kResource}. Nothing else may be called until it is true.
  bool ready();
  // From now on graphs may hold it. NCCL ends a communicator only when those are gone, so that nobody here waits for that.
  void note_capture() { captured_ = true; }
  // Ends what is under way, here and on the GPU.
  void abort();

  // Lets kernels, those of the other GPUs as well, use memory where it lies; `how` is not kNone. Where one rank passes
  // such memory to a collective, all have to. As a window it is a collective itself: all ranks call it at the same place
  // of their order, with as many bytes. The communicator keeps the memory until it is deregistered, or has ended.
  void register_memory(std::shared_ptr<const Memory> memory, Registering how);
  // Nothing on the GPU may use it any more. Each rank for itself.
  void deregister_memory(const Memory& memory);

  // Collectives; `count` in elements, of `dtype` in NCCL's code.
  void all_reduce(const void* from, void* to, std::size_t count, int dtype, int op, cuda::Stream stream);
  void reduce(const void* from, void* to, std::size_t count, int dtype, int op, int root, cuda::Stream stream);
  void reduce_scatter(const void* from, void* to, std::size_t count_each, int dtype, int op, cuda::Stream stream);
  void all_gather(const void* from, void* to, std::size_t count_each, int dtype, cuda::Stream stream);
  void broadcast(const void* from, void* to, std::size_t count, int dtype, int root, cuda::Stream stream);
  void send(const void* from, std::size_t bytes, int peer, cuda::Stream stream);
  void receive(void* to, std::size_t bytes, int peer, cuda::Stream stream);

  // What is called within its life runs as one.
  class Group {
   public:
    explicit Group(Communicator& communicator);
    // Throws what `ready` throws.
    void end();
    ~Group();
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;

   private:
    Communicator& communicator_;
    bool open_ = true;
  };

 private:
  struct Registration {
    std::shared_ptr<const Memory> memory;
    Registering how;
    nccl::Window window = nullptr;
    void* handle = nullptr;
  };

  void end(nccl::Result (*call)(nccl::Comm));
  void settle(Registration& registration);
  void check(nccl::Result result, const char* call);
  [[noreturn]] void fail(nccl::Result result, const char* call) const;

  Device& device_;
  nccl::Comm comm_ = nullptr;
  bool in_progress_ = false;
  bool captured_ = false;
  bool registers_ = false;  // the last one is under way
  std::list<Registration> registrations_;  // at addresses that stay: NCCL's threads write to them
};

}  // namespace ringcore::device
