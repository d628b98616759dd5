// What is packed: the tensors of a bucket, small gathers or scatters of a group, and a large tensor that goes through the
// fusion buffer slice by slice.
#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

#include "base/reduce.hpp"
#include "carriers/plans/host_run.hpp"

namespace ringcore::carriers {
namespace {

using engine::dealt_blocks;
using engine::Descriptor;
using engine::summing;

using Sizes = std::vector<std::uint64_t>;

std::uint64_t sum_of_first(const Sizes& sizes, int members) {
  return std::accumulate(sizes.begin(), sizes.begin() + members, std::uint64_t{0});
}

// Of all tensors together.
Sizes sums_by_member(const std::vector<Sizes>& blocks, int members) {
  Sizes sums(static_cast<std::size_t>(members));
  for (const Sizes& each : blocks) std::transform(each.begin(), each.end(), sums.begin(), sums.begin(), std::plus<>());
  return sums;
}

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

void HostRun::place_in_fusion_buffer(std::size_t bytes, plan::Operands& operands) {
  // What several tensors share is never larger: `bucket_bytes` is at most the lane's part of the arena.
  if (carrier_.packs_apart(task_)) {
    work_ = Memory(bytes);
    operands.data = packed_ = work_.data();
  } else if (carrier_.fusion_.arena != nullptr) {
    use_fusion_arena(bytes, operands);
  } else {
    Memory& buffer = carrier_.private_fusion_[static_cast<std::size_t>(task_.lane)];
    if (buffer.size() < bytes) buffer = Memory(bytes);
    operands.data = packed_ = buffer.data();
  }
}

// One tensor behind the other.
void HostRun::pack(std::byte* at) const {
  for (std::size_t i = 0; i < task_.descriptors.size(); ++i) {
    const Descriptor& descriptor = *task_.descriptors[i];
    const std::size_t count = task_.operations.empty() ? descriptor.shape.elements() : task_.operations[i]->count();
    if (task_.operations.empty()) {
      fill_identity(descriptor.dtype, summing(descriptor.op), at, count);
    } else {
      copy_scaled(descriptor, at, task_.operations[i]->input, count);
    }
    at += count * size_of(descriptor.dtype);
  }
}

void HostRun::unpack() {
  if (descriptor().collective == Collective::kAllgather) return unpack_gathers();
  if (descriptor().collective == Collective::kReduceScatter) return unpack_scatters();
  const std::byte* at = packed_;
  for (const auto& operation : task_.operations) {
    if (operation->bytes() > 0) std::memcpy(operation->output, at, operation->bytes());
    at += operation->bytes();
  }
}

// How many elements of each tensor a member gives to all, or gets: by tensor and member.
std::vector<std::vector<std::uint64_t>> HostRun::shared_blocks() const {
  std::vector<std::vector<std::uint64_t>> blocks;
  blocks.reserve(task_.parts.size());
  for (std::size_t i = 0; i < task_.parts.size(); ++i) {
    const engine::Shape& shape = task_.descriptors[i]->shape;
    if (!task_.descriptors[i]->has_free_rows()) {
      blocks.push_back(dealt_blocks(shape.rows(), shape.row_elements(), size()));
      continue;
    }
    std::vector<std::uint64_t>& gathered = blocks.emplace_back();
    for (const engine::Contribution& from : task_.contributions) {
      gathered.push_back(from.rows_of(task_.parts[i]) * shape.row_elements());
    }
  }
  return blocks;
}

// The buffer has a block for each member: all tensors' rows that this member gives, one behind the other.
void HostRun::start_gathers() {
  const auto blocks = shared_blocks();
  const std::vector<std::uint64_t> of_members = sums_by_member(blocks, size());
  plan::Operands operands;
  place_in_fusion_buffer(task_.bytes, operands);
  pack(packed_ + sum_of_first(of_members, self()) * size_of(descriptor().dtype));
  const bool registered = !operands.peer_data.empty();
  run({.collective = Collective::kAllgather, .bytes = task_.bytes, .registered = registered}, std::move(operands),
      of_members);
}

// All tensors' rows that this member gets, one behind the other.
void HostRun::start_scatters() {
  const auto blocks = shared_blocks();
  plan::Operands operands;
  place_in_fusion_buffer(task_.bytes, operands);
  const std::size_t element = size_of(descriptor().dtype);
  std::byte* at = packed_;
  for (int m = 0; m < size(); ++m) {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const std::byte* const input = task_.operations[i]->input;
      copy_scaled(descriptor(), at, input + sum_of_first(blocks[i], m) * element, blocks[i][m]);
      at += blocks[i][m] * element;
    }
  }
  const bool registered = !operands.peer_data.empty();
  run({.collective = Collective::kReduceScatter, .bytes = task_.bytes, .registered = registered}, std::move(operands),
      sums_by_member(blocks, size()));
}

void HostRun::unpack_gathers() const {
  const auto blocks = shared_blocks();
  const std::size_t element = size_of(descriptor().dtype);
  std::vector<std::byte*> to;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    engine::Operation& operation = *task_.operations[i];
    to.push_back(operation.place_result(sum_of_first(blocks[i], size()) * element));
    operation.result_rows.clear();
    for (const engine::Contribution& from : task_.contributions) {
      operation.result_rows.push_back(from.rows_of(task_.parts[i]));
    }
  }
  const std::byte* at = packed_;
  for (int m = 0; m < size(); ++m) {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const std::size_t bytes = blocks[i][m] * element;
      if (bytes > 0) std::memcpy(to[i], at, bytes);
      to[i] += bytes;
      at += bytes;
    }
  }
}

void HostRun::unpack_scatters() const {
  const auto blocks = shared_blocks();
  const std::size_t element = size_of(descriptor().dtype);
  const std::byte* at = packed_ + sum_of_first(sums_by_member(blocks, size()), self()) * element;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::size_t bytes = blocks[i][self()] * element;
    std::byte* const to = task_.operations[i]->place_result(bytes);
    if (bytes > 0) std::memcpy(to, at, bytes);
    at += bytes;
  }
}

}  // namespace ringcore::carriers
