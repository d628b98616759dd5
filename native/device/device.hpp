// One GPU: its context, and owners of what lives there. All calls may come from any thread.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda_driver.hpp"

namespace ringcore::device {

class Event;
class Kernels;

class Device {
 public:
  // The GPU of this number, as CUDA_VISIBLE_DEVICES counts. Made once and never freed: frameworks use the same primary
  // context until the process ends. Throws Error{kResource}.
  static Device& of(int ordinal);
  // Of memory. Throws Error{kInvalidArgument} for what is no memory of a GPU.
  static int ordinal_of(const void* memory);
  // Of the calling thread's current context; 0 where it has none.
  static int current_ordinal();
  // How many there are; 0 where CUDA cannot be used.
  static int count();

  int ordinal() const { return ordinal_; }
  const std::array<char, 16>& uuid() const { return uuid_; }
  // On its bus; parts of one GPU (MIG) have the same.
  const std::array<char, 24>& address() const { return address_; }
  // 90 for sm_90 ...
  int capability() const { return capability_; }
  int multiprocessors() const { return multiprocessors_; }
  bool has_memory_pools() const { return memory_pools_; }
  // Null where there is no NVRTC; compiled when first asked for.
  const Kernels* kernels();
  // Why not, then.
  const std::string& kernels_problem() const { return kernels_problem_; }

  // Makes the GPU's context current for the calling thread, and what was there before again at its end. What the thread
  // calls meanwhile leaves graphs alone that are being captured, by itself or by others: without that CUDA ends every
  // capture of the process when an event is queried or memory allocated.
  class Current {
   public:
    explicit Current(const Device& device);
    // For destructors: false where CUDA has ended, or this is a forked child; what is to be freed is gone then.
    Current(const Device& device, std::nothrow_t) noexcept;
    explicit operator bool() const { return pushed_; }
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    bool pushed_ = true;
    int capture_mode_ = cuda::kCaptureModeRelaxed;  // of the thread before
  };

 private:
  friend class Event;
  friend class PinnedMemory;
  explicit Device(int ordinal);

  int ordinal_;
  cuda::Context context_ = nullptr;
  std::array<char, 16> uuid_{};
  std::array<char, 24> address_{};
  int capability_ = 0;
  int multiprocessors_ = 1;
  bool memory_pools_ = false;
  std::mutex mutex_;  // Guards: free_events_, kernels_, kernels_tried_.
  std::vector<cuda::Event> free_events_;
  std::unique_ptr<Kernels> kernels_;
  bool kernels_tried_ = false;
  std::string kernels_problem_;
  struct IdlePinnedMemory {
    std::size_t bytes;
    std::byte* data;
    std::shared_ptr<Event> used_until;
  };
  std::mutex pinned_mutex_;  // Guards: idle_pinned_memory_. Before mutex_.
  std::vector<IdlePinnedMemory> idle_pinned_memory_;
};

// A point in a stream that others wait for. Needs a current context, but for its end.
class Event {
 public:
  // Recorded in `stream`, at what was given to it so far.
  Event(Device& device, cuda::Stream stream);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  // Whether the stream has come there. Throws Error{kResource} when the GPU has failed.
  bool reached() const;
  // What is given to `stream` from now on waits for it; the host does not.
  void hold_back(cuda::Stream stream) const;
  Device& device() const { return device_; }

 private:
  Device& device_;
  cuda::Event event_ = nullptr;
};

// A stream of ours, independent of the default stream.
class Stream {
 public:
  enum class Priority : std::uint8_t { kHighest, kLowest };

  // Whether what is given to a stream is recorded into a graph instead of run. Needs a current context.
  static bool captures(cuda::Stream stream);

  explicit Stream(Device& device, Priority priority = Priority::kHighest);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cuda::Stream get() const { return stream_; }
  Device& device() const { return device_; }

 private:
  Device& device_;
  cuda::Stream stream_ = nullptr;
};

// Memory of a GPU. It may be used in `stream`, and is given back behind what was given to that stream before.
class Memory {
 public:
  Memory() = default;
  // In a stream that is there for longer than the memory.
  Memory(Device& device, std::size_t bytes, cuda::Stream stream);
  // In a stream that the memory keeps.
  Memory(std::size_t bytes, std::shared_ptr<const Stream> stream);
  // That NCCL can register, in such a stream.
  static Memory of_nccl(std::size_t bytes, std::shared_ptr<const Stream> stream);
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  ~Memory();
  std::byte* data() const { return std::bit_cast<std::byte*>(pointer_); }
  std::size_t size() const { return bytes_; }
  int ordinal() const { return device_ == nullptr ? -1 : device_->ordinal(); }
  // From now on it belongs to another stream, which is there for longer, and waits for what has happened to it so far.
  void move_to(cuda::Stream stream);

 private:
  Device* device_ = nullptr;
  cuda::Pointer pointer_ = 0;
  std::size_t bytes_ = 0;
  cuda::Stream stream_ = nullptr;
  std::shared_ptr<const Stream> kept_;
  bool of_nccl_ = false;
};

// Memory of the host that a GPU copies from and to without help of the processor. It is used again and again: CUDA would
// wait for all that runs on the GPU before it frees some (CUDA C++ Programming Guide, "Implicit Synchronization").
class PinnedMemory {
 public:
  PinnedMemory() = default;
  PinnedMemory(Device& device, std::size_t bytes);
  PinnedMemory(PinnedMemory&& other) noexcept;
  PinnedMemory& operator=(PinnedMemory&& other) noexcept;
  ~PinnedMemory();
  std::byte* data() const { return data_; }
  // Until then the GPU copies from it or to it, also when this has ended.
  void used_until(std::shared_ptr<Event> event) { used_until_ = std::move(event); }

 private:
  Device* device_ = nullptr;
  std::size_t bytes_ = 0;
  std::byte* data_ = nullptr;
  std::shared_ptr<Event> used_until_;
};

inline cuda::Pointer pointer(const void* memory) { return reinterpret_cast<cuda::Pointer>(memory); }

}  // namespace ringcore::device
