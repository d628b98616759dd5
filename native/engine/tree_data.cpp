#include "engine/tree_data.hpp"

#include <span>

#include "base/reduce.hpp"

namespace ringcore::engine {

bool may_carry_data(const Descriptor& descriptor) {
  const bool is_half = descriptor.dtype == DType::kFloat16 || descriptor.dtype == DType::kBFloat16;
  return descriptor.collective == Collective::kAllreduce && !is_half && descriptor.shape.elements() > 0 &&
         !descriptor.is_group() && !descriptor.on_device;
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
  reduce_into(descriptor.dtype, summing(descriptor.op), sum.payload.data(), other.payload.data(),
              descriptor.shape.elements());
}

}  // namespace ringcore::engine
