// What the framework's streams see of an operation: where its inputs are ready, who waits for its result, captures.
#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "carriers/gpu/tensor.hpp"
#include "device/libraries.hpp"

namespace ringcore::carriers {

using engine::OnDevice;
using engine::Operation;

namespace {

// The default streams of all GPUs have the same number.
bool same_stream(const OnDevice& a, const OnDevice& b) { return a.device == b.device && a.stream == b.stream; }

}  // namespace

GpuTensor* gpu_tensor(const Operation& operation) {
  return operation.on_device == nullptr ? nullptr : static_cast<GpuTensor*>(operation.on_device->state.get());
}

void note_capture(Operation& operation) {
  const auto captures = [](const Operation& part) {
    const OnDevice& tensor = *part.on_device;
    const device::Device::Current current(device::Device::of(tensor.device));
    return device::Stream::captures(stream_of(tensor.stream));
  };
  const auto refuse = [&operation](const std::string& why) {
    throw Error(ErrorKind::kInvalidArgument,
                "'" + operation.descriptor.name + "' cannot be captured into a CUDA graph: " + why);
  };
  const Operation& first = operation.parts.empty() ? operation : *operation.parts.front();
  const bool captured = captures(first);
  for (const auto& part : operation.parts) {
    const bool same = same_stream(*part->on_device, *first.on_device);
    if (!same && (captured || captures(*part))) {
      refuse("its tensors belong to several streams. Remedy: pass them from one.");
    }
    part->descriptor.captured = captured;
  }
  operation.descriptor.captured = captured;
  if (!captured) return;
  const Collective collective = operation.descriptor.collective;
  if (collective != Collective::kAllreduce && collective != Collective::kBroadcast) {
    refuse("the size of the result of " + std::string(name_of(collective)) +
           " is agreed on by the ranks, and its memory is not the graph's. Remedy: capture the graph without it, and "
           "call it between replays; allreduce and broadcast can be captured.");
  }
  operation.awaited = true;
}

void record_ready(Operation& operation) {
  if (operation.descriptor.captured) return;  // the stream's own order says it
  const auto each = [](Operation& part, const Operation* before) {
    const OnDevice& tensor = *part.on_device;
    if (before != nullptr && same_stream(*before->on_device, tensor)) {
      gpu_tensor(part)->ready = gpu_tensor(*before)->ready;
      return;
    }
    device::Device& device = device::Device::of(tensor.device);
    const device::Device::Current current(device);
    gpu_tensor(part)->ready = std::make_shared<device::Event>(device, stream_of(tensor.stream));
  };
  if (operation.parts.empty()) return each(operation, nullptr);
  const Operation* before = nullptr;
  for (const auto& part : operation.parts) {
    each(*part, before);
    before = part.get();
  }
}

namespace {

// What the stream is given itself comes behind what was captured there; another one becomes part of the graph by this.
void hold_back_captured(const Operation& operation, std::uintptr_t stream) {
  const OnDevice& tensor = operation.parts.empty() ? *operation.on_device : *operation.parts.front()->on_device;
  if (tensor.stream == stream) return;
  device::Device& device = device::Device::of(tensor.device);
  const device::Device::Current current(device);
  device::Event(device, stream_of(tensor.stream)).hold_back(stream_of(stream));
}

}  // namespace

void hold_back(const Operation& operation, std::uintptr_t stream, std::optional<int> device) {
  const device::Event* last = nullptr;
  const auto each = [&](const Operation& part) {
    if (device && part.on_device->device != *device) return;
    const GpuTensor* const tensor = gpu_tensor(part);
    const device::Event* completion = tensor == nullptr ? nullptr : tensor->completion.get();
    if (completion != nullptr && completion != last) {
      const device::Device::Current current(completion->device());
      completion->hold_back(stream_of(stream));
    }
    last = completion;
    part.on_device->stream = stream;
  };
  if (operation.descriptor.captured) hold_back_captured(operation, stream);
  if (operation.on_device != nullptr) each(operation);
  for (const auto& part : operation.parts) {
    if (part->on_device != nullptr) each(*part);
  }
}

std::size_t copy_result(Operation& operation, void* target, std::size_t bytes, std::uintptr_t stream) {
  device::Memory result = std::move(gpu_tensor(operation)->result);
  if (result.size() != bytes || bytes == 0) return result.size();
  hold_back(operation, stream);
  const device::Device::Current current(gpu_tensor(operation)->completion->device());
  device::check_cuda(device::driver().cuMemcpyDtoDAsync_v2(device::pointer(target), device::pointer(result.data()),
                                                           bytes, stream_of(stream)),
                     "cuMemcpyDtoDAsync");
  result.move_to(stream_of(stream));
  return bytes;
}

bool has_ended(const Operation& operation) {
  const auto ended = [](const Operation& part) {
    const GpuTensor* const tensor = gpu_tensor(part);
    if (tensor == nullptr || tensor->completion == nullptr) return true;
    const device::Event& completion = *tensor->completion;
    const device::Device::Current current(completion.device());
    return completion.reached();
  };
  try {
    return ended(operation) &&
           std::all_of(operation.parts.begin(), operation.parts.end(), [&](const auto& part) { return ended(*part); });
  } catch (const Error&) {
    return true;  // the GPU has failed: nothing uses the memory any more
  }
}

}  // namespace ringcore::carriers
