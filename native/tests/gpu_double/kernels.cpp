#include "kernels.hpp"

#include <array>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/reduce.hpp"
#include "device/kernels.hpp"
#include "device/reduce.hpp"

namespace gpu_double {

struct Kernel {
  std::string_view name;
  ringcore::DType dtype;
  bool reduces = false;
};

namespace {

using ringcore::DType;

constexpr std::array<Kernel, 15> kKernels{{{"ringcore_copy", DType::kUInt8},
                                           {"ringcore_scale_float16", DType::kFloat16},
                                           {"ringcore_scale_bfloat16", DType::kBFloat16},
                                           {"ringcore_scale_float32", DType::kFloat32},
                                           {"ringcore_scale_float64", DType::kFloat64},
                                           {"ringcore_reduce_uint8", DType::kUInt8, true},
                                           {"ringcore_reduce_int8", DType::kInt8, true},
                                           {"ringcore_reduce_uint16", DType::kUInt16, true},
                                           {"ringcore_reduce_int16", DType::kInt16, true},
                                           {"ringcore_reduce_int32", DType::kInt32, true},
                                           {"ringcore_reduce_int64", DType::kInt64, true},
                                           {"ringcore_reduce_float16", DType::kFloat16, true},
                                           {"ringcore_reduce_bfloat16", DType::kBFloat16, true},
                                           {"ringcore_reduce_float32", DType::kFloat32, true},
                                           {"ringcore_reduce_float64", DType::kFloat64, true}}};

template <class Parameter>
std::shared_ptr<const Parameter> copy_of(const void* parameter) {
  const auto copied = std::make_shared<Parameter>();
  std::memcpy(copied.get(), parameter, sizeof(Parameter));
  return copied;
}

std::byte* visible(std::uint64_t address) { return gpu_double::visible(reinterpret_cast<const void*>(address)); }

Work bind_copy(DType dtype, unsigned segments, const void* parameter) {
  return [copied = copy_of<ringcore::device::Segments>(parameter), segments, dtype] {
    for (unsigned i = 0; i < segments; ++i) {
      const ringcore::device::Segment& segment = copied->at[i];
      std::byte* to = visible(segment.to);
      const std::byte* from = visible(segment.from);
      if (segment.elements == 0) continue;
      std::memmove(to, from, segment.elements * ringcore::size_of(dtype));
      if (copied->factor != 1.0) ringcore::scale_in_place(dtype, to, segment.elements, copied->factor);
    }
  };
}

Work bind_reduce(DType dtype, const void* parameter) {
  return [copied = copy_of<ringcore::device::Sources>(parameter), dtype] {
    std::vector<const std::byte*> sources;
    for (int i = 0; i < copied->count; ++i) sources.push_back(visible(copied->from[i]));
    std::byte* const targets[] = {visible(copied->to)};
    const std::size_t count = copied->vectors * ringcore::device::kVectorBytes / ringcore::size_of(dtype);
    ringcore::reduce_many(dtype, static_cast<ringcore::ReduceOp>(copied->op), sources, targets, count, copied->factor);
  };
}

}  // namespace

const Kernel* find_kernel(const char* name) {
  for (const Kernel& kernel : kKernels) {
    if (kernel.name == name) return &kernel;
  }
  return nullptr;
}

Work bind_kernel(const Kernel& kernel, unsigned segments, const void* parameter) {
  return kernel.reduces ? bind_reduce(kernel.dtype, parameter) : bind_copy(kernel.dtype, segments, parameter);
}

}  // namespace gpu_double
