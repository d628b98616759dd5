#include "engine/tree_data.hpp"

#include <span>

#include "base/reduce.hpp"

namespace ringcore::engine {

bool may_carry_data(const Descriptor& descriptor) {
  const bool sums = descriptor.collective == Collective::kAllreduce && !is_half(descriptor.dtype);
  return (sums || descriptor.collective == Collective::kBroadcast) && descriptor.shape.elements() > 0 &&
         !descriptor.is_group() && !descriptor.on_device;
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

void add_data(Entry& sum, const Entry& other) {
  const Descriptor& descriptor = *sum.descriptor;
  if (descriptor.collective == Collective::kBroadcast) {  // of bits, whatever they stand for
    return reduce_into(DType::kUInt8, ReduceOp::kSum, sum.payload.data(), other.payload.data(), sum.payload.size());
  }
  reduce_into(descriptor.dtype, summing(descriptor.op), sum.payload.data(), other.payload.data(),
              descriptor.shape.elements());
}

}  // namespace ringcore::engine
