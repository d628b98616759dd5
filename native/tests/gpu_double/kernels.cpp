#include "kernels.hpp"

#include <array>
#include <cstring>
#include <string_view>

#include "base/reduce.hpp"
#include "device/kernels.hpp"

namespace gpu_double {

struct Kernel {
  std::string_view name;
  ringcore::DType dtype;
};

namespace {

using ringcore::DType;

constexpr std::array<Kernel, 5> kKernels{{{"ringcore_copy", DType::kUInt8},
                                          {"ringcore_scale_float16", DType::kFloat16},
                                          {"ringcore_scale_bfloat16", DType::kBFloat16},
                                          {"ringcore_scale_float32", DType::kFloat32},
                                          {"ringcore_scale_float64", DType::kFloat64}}};

}  // namespace

const Kernel* find_kernel(const char* name) {
  for (const Kernel& kernel : kKernels) {
    if (kernel.name == name) return &kernel;
  }
  return nullptr;
}

Work bind_kernel(const Kernel& kernel, unsigned segments, const void* parameter) {
  const auto copied = std::make_shared<ringcore::device::Segments>();
  std::memcpy(copied.get(), parameter, sizeof(*copied));
  return [copied, segments, dtype = kernel.dtype] {
    for (unsigned i = 0; i < segments; ++i) {
      const ringcore::device::Segment& segment = copied->at[i];
      std::byte* to = visible(reinterpret_cast<const void*>(segment.to));
      const std::byte* from = visible(reinterpret_cast<const void*>(segment.from));
      if (segment.elements == 0) continue;
      std::memmove(to, from, segment.elements * ringcore::size_of(dtype));
      if (copied->factor != 1.0) ringcore::scale_in_place(dtype, to, segment.elements, copied->factor);
    }
  };
}

}  // namespace gpu_double
