// A tensor on a GPU, as an operation has it: what the carrier keeps with it, and what the framework's streams see of it.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "device/device.hpp"
#include "engine/request.hpp"

namespace ringcore::carriers {

struct GpuTensor final : engine::CarrierState {
  std::shared_ptr<device::Event> ready;  // of the framework's stream: the input is there
  std::shared_ptr<device::Event> completion;  // of ours: the result is there
  device::Memory result;  // allgather, alltoall, reducescatter
  device::PinnedMemory staging;  // where ranks cannot meet on their GPUs
  std::shared_ptr<device::Event> fetched;  // the input has come there
};

// Of an operation that was submitted, or a part of one: null where it lies in the host's memory.
GpuTensor* gpu_tensor(const engine::Operation& operation);

// A stream of the framework, from the number that stands for it at our borders.
inline device::cuda::Stream stream_of(std::uintptr_t handle) { return std::bit_cast<device::cuda::Stream>(handle); }

// Finds out whether an operation is captured, and becomes part of a graph. Throws Error{kInvalidArgument} where it cannot.
void note_capture(engine::Operation& operation);
// Records where an operation's tensors are ready, in the framework's streams. Throws Error{kResource}.
void record_ready(engine::Operation& operation);
// What is given to `stream` from now on waits for the results of an operation that is done: of a group for those on
// `device`, the stream's; for all where none is named. No other stream does: the memory of its tensors stays until
// `has_ended`.
void hold_back(const engine::Operation& operation, std::uintptr_t stream, std::optional<int> device = {});
// Copies the result of an operation that is done to `target` on its GPU, in `stream`, if it has so many bytes; returns
// how many it has.
std::size_t copy_result(engine::Operation& operation, void* target, std::size_t bytes, std::uintptr_t stream);
// Whether the GPU has ended an operation that is done: its memory is used no more.
bool has_ended(const engine::Operation& operation);

}  // namespace ringcore::carriers
