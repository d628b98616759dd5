// What is packed: the tensors of a bucket, and a large tensor that goes through the fusion buffer slice by slice.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/reduce.hpp"
#include "carriers/plans/host_run.hpp"

namespace ringcore::carriers {
namespace {

using engine::Descriptor;
using engine::summing;

void copy_scaled(const Descriptor& descriptor, std::byte* to, const std::byte* from, std::size_t count) {
  if (to != from && count > 0) std::memcpy(to, from, count * size_of(descriptor.dtype));
  const double scale = host_scales(descriptor, 1).input;
  if (scale != 1.0) scale_in_place(descriptor.dtype, to, count, scale);
}

}  // namespace

// Packs the next slice of the task's only tensor and starts the plan on it.
void HostRun::start_slice() {
  const Descriptor& descriptor = task_.descriptor();
  const std::size_t bytes = std::min(task_.bytes - slice_begin_, config().settings.slice_bytes);
  const std::size_t count = bytes / size_of(descriptor.dtype);
  plan::Operands operands;
  use_fusion_arena(bytes, operands);
  if (task_.operations.empty()) {
    fill_identity(descriptor.dtype, summing(descriptor.op), packed_, count);
  } else {
    copy_scaled(descriptor, packed_, task_.operation().input + slice_begin_, count);
  }
  run({.collective = Collective::kAllreduce, .bytes = bytes, .registered = true}, std::move(operands));
}

// After a slice: unpacks it. False when it was the last one.
bool HostRun::next_slice() {
  const std::size_t bytes = std::min(task_.bytes - slice_begin_, config().settings.slice_bytes);
  if (!task_.operations.empty() && bytes > 0) {
    std::memcpy(task_.operation().output + slice_begin_, packed_, bytes);
  }
  if (timed()) record_steps();
  slice_begin_ += bytes;
  if (slice_begin_ == task_.bytes) return false;
  start_slice();
  return true;
}

// The task's lane of the fusion buffer, which the other ranks see.
void HostRun::use_fusion_arena(std::size_t bytes, plan::Operands& operands) {
  operands.data = packed_ = carrier_.fusion_.arena + carrier_.fusion_.offset(task_.lane);
  operands.peer_data.resize(size(), nullptr);
  for (int m = 0; m < size(); ++m) {
    if (m == self() || !config().links[m]->sees_memory()) continue;
    operands.peer_data[m] = config().links[m]->peer_memory(carrier_.fusion_.offset(task_.lane), bytes);
  }
}

void HostRun::place_in_fusion_buffer(plan::Operands& operands) {
  // A bucket of several tensors is never larger: `bucket_bytes` is at most the lane's part of the arena.
  if (carrier_.packs_apart(task_)) {
    work_ = Memory(task_.bytes);
    operands.data = packed_ = work_.data();
  } else if (carrier_.fusion_.arena != nullptr) {
    use_fusion_arena(task_.bytes, operands);
  } else {
    Memory& buffer = carrier_.private_fusion_[static_cast<std::size_t>(task_.lane)];
    if (buffer.size() < task_.bytes) buffer = Memory(task_.bytes);
    operands.data = packed_ = buffer.data();
  }
  std::byte* at = packed_;
  for (std::size_t i = 0; i < task_.descriptors.size(); ++i) {
    const Descriptor& descriptor = *task_.descriptors[i];
    const std::size_t count = descriptor.shape.elements();
    if (task_.operations.empty()) {
      fill_identity(descriptor.dtype, summing(descriptor.op), at, count);
    } else {
      copy_scaled(descriptor, at, task_.operations[i]->input, count);
    }
    at += count * size_of(descriptor.dtype);
  }
}

// In the order in which they were packed.
void HostRun::unpack() {
  const std::byte* at = packed_;
  for (const auto& operation : task_.operations) {
    if (operation->bytes() > 0) std::memcpy(operation->output, at, operation->bytes());
    at += operation->bytes();
  }
}

}  // namespace ringcore::carriers
