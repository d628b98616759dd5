// What an operation has besides when its tensor lies on a GPU.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "device/device.hpp"

namespace ringcore::engine {

inline constexpr int kHost = -1;  // the device number of host memory

struct OnDevice {
  int device = kHost;
  std::uintptr_t stream = 0;  // the framework's: in which the input is made; in the end where the result is used
  const std::byte* input = nullptr;  // on the GPU; the operation's own are those of the host while it is staged there
  std::byte* output = nullptr;
  std::shared_ptr<device::Event> ready;  // of the framework's stream: the input is there
  std::shared_ptr<device::Event> completion;  // of ours: the result is there
  device::Memory result;  // allgather, alltoall, reducescatter
  device::HostMemory staging;  // where ranks cannot meet on their GPUs
  std::shared_ptr<device::Event> fetched;  // the input has come there
};

// A stream of the framework, from the number that stands for it at our borders.
inline device::cuda::Stream stream_of(std::uintptr_t handle) { return std::bit_cast<device::cuda::Stream>(handle); }

}  // namespace ringcore::engine
