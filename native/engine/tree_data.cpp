#include "engine/tree_data.hpp"

#include <cstring>

#include "base/reduce.hpp"

namespace ringcore::engine {

std::size_t most_tree_data(const Descriptor& descriptor, std::size_t members) {
  constexpr std::size_t kMostSummed = 2048;
  constexpr std::size_t kMostGathered = 8192;
  return descriptor.collective == Collective::kAllgather ? kMostGathered / members : kMostSummed;
}

bool may_carry_data(const Descriptor& descriptor) {
  if (descriptor.is_group() || descriptor.on_device) return false;
  switch (descriptor.collective) {
    case Collective::kReduce:
    case Collective::kAllreduce: return !is_half(descriptor.dtype) && descriptor.shape.elements() > 0;
    case Collective::kBroadcast: return descriptor.shape.elements() > 0;
    case Collective::kAllgather: return descriptor.shape.row_elements() > 0;  // its rows are those of the entry
    case Collective::kReduceScatter:
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kAlltoall:
    case Collective::kBarrier: return false;
  }
  __builtin_unreachable();
}

std::vector<std::byte> data_of(const Operation& operation, int self) {
  const Descriptor& descriptor = operation.descriptor;
  if (descriptor.collective == Collective::kBroadcast && descriptor.root != self) {
    return std::vector<std::byte>(operation.bytes());
  }
  return {operation.input, operation.input + operation.bytes()};
}

bool carries_data(const Entry& entry) {
  return entry.type == RecordType::kOperation && (entry.flags & kEager) != 0 && !entry.payload.empty();
}

void drop_data(Entry& entry) {
  if (!carries_data(entry)) return;
  entry.flags &= static_cast<std::uint8_t>(~kEager);
  entry.payload = {};
}

bool has_data_of(const Entry& entry, int members) {
  const Descriptor& descriptor = *entry.descriptor;
  if (descriptor.collective == Collective::kBarrier) return entry.payload.empty();
  const std::size_t element = size_of(descriptor.dtype);
  if (!descriptor.has_free_rows()) {
    return entry.payload.size() == descriptor.shape.elements() * element;
  }
  // Another rank's rows are not to be believed.
  std::size_t bytes = 0;
  return !__builtin_mul_overflow(entry.rows, descriptor.shape.row_elements() * element, &bytes) &&
         !__builtin_mul_overflow(bytes, members, &bytes) && entry.payload.size() == bytes;
}

void add_data(Entry& sum, const Entry& other) {
  const Descriptor& descriptor = *sum.descriptor;
  if (descriptor.collective == Collective::kAllgather) {
    sum.payload.insert(sum.payload.end(), other.payload.begin(), other.payload.end());
    return;
  }
  if (descriptor.collective == Collective::kBroadcast) {  // of bits, whatever they stand for
    return reduce_into(DType::kUInt8, ReduceOp::kSum, sum.payload.data(), other.payload.data(), sum.payload.size());
  }
  reduce_into(descriptor.dtype, summing(descriptor.op), sum.payload.data(), other.payload.data(),
              descriptor.shape.elements());
}

std::vector<std::byte> data_of_all(const Entry& sum, std::span<const int> order) {
  if (sum.descriptor->collective != Collective::kAllgather) return sum.payload;
  std::vector<std::byte> gathered(sum.payload.size());
  const std::size_t block = gathered.size() / order.size();
  for (std::size_t i = 0; i < order.size(); ++i) {
    std::memcpy(gathered.data() + static_cast<std::size_t>(order[i]) * block, sum.payload.data() + i * block, block);
  }
  return gathered;
}

}  // namespace ringcore::engine
