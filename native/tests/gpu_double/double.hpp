// A test double of CUDA's driver, NCCL and NVRTC: shared libraries with their symbols, over host memory.
//
// What it keeps of the real ones: streams run asynchronously, each in its order; events; memory of the "GPU" cannot be
// read or written by the host (its pages are protected: whoever dereferences a device pointer dies of it); freed memory
// is overwritten; collectives run in their stream, across processes and threads; group calls; communicators connect in
// the background; errors and aborts are asynchronous; streams are captured into graphs (capture.hpp); memory is opened
// by other processes (ipc.hpp) and registered (registration.hpp). Kernels are host functions of the same names.
//
// GPU_DOUBLE_DEVICES (8 unless set): how many GPUs there are. GPU_DOUBLE_DEVICE: on which of them all memory is taken
// to lie. GPU_DOUBLE_NVRTC=0: NVRTC refuses everything. GPU_DOUBLE_CAPABILITY: of the GPUs (90 unless set); NVRTC
// knows 75, 80, 90, 100 and 120. GPU_DOUBLE_INSTANCES: so many devices are instances (MIG) of one GPU.
// GPU_DOUBLE_IPC=0: memory of other processes cannot be opened; 2: that of this process can, which CUDA refuses.
// GPU_DOUBLE_HANG=N: this process's N-th collective, from 1, does not end before its communicator is aborted.
// GPU_DOUBLE_FAIL=N: it ends with an asynchronous error instead.
// GPU_DOUBLE_NCCL_VERSION: what NCCL says of itself. GPU_DOUBLE_WINDOWS=0: it gives no windows, as where GPUs cannot
// reach each other. Older versions are libraries of their own, in which what came later is hidden.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace gpu_double {

using Work = std::function<void()>;

// Runs what it is given in order, on a thread of its own.
class Stream {
 public:
  Stream();
  ~Stream();
  void push(Work work);
  // Waits for what was given to it so far.
  void synchronize();
  bool idle();

 private:
  void loop();

  std::mutex mutex_;  // Guards: queue_, running_, stop_.
  std::condition_variable changed_;
  std::deque<Work> queue_;
  bool running_ = false;
  bool stop_ = false;
  std::thread thread_;
};

// The stream of a handle; 0 is the default stream.
Stream& stream_of(void* handle);

// Where the host sees an address of the GPU; other addresses stay what they are.
std::byte* visible(const void* device_address);

// Whether a context of CUDA is current for the calling thread.
bool has_context();

// The device of that context; -1 where there is none.
int current_device();

// A number from the environment.
long setting(const char* name, long otherwise);

}  // namespace gpu_double
