// Reductions of buffers that lie on one GPU: what ranks that share it do instead of NCCL.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/types.hpp"
#include "device/device.hpp"

namespace ringcore::device {

inline constexpr std::size_t kMaxSources = 64;
inline constexpr std::size_t kVectorBytes = 16;

// The parameter of the kernels, as reduce.cu has it.
struct Sources {
  std::array<std::uint64_t, kMaxSources> from;
  std::uint64_t to;
  std::uint64_t vectors;
  double factor;
  std::int32_t count;
  std::int32_t op;
};

class ReduceKernels {
 public:
  // Compiled for the GPU when it is first asked for, which takes seconds. Throws Error{kResource}.
  static const ReduceKernels& of(Device& device);

  // to = (from[0] op from[1] op ...) * factor, element by element and in this order; `to` may be one of them. Floats
  // may have a factor. Addresses and `bytes` are multiples of kVectorBytes. A current context is needed.
  void reduce(cuda::Stream stream, DType dtype, ReduceOp op, std::span<const cuda::Pointer> from, cuda::Pointer to,
              std::size_t bytes, double factor) const;

 private:
  explicit ReduceKernels(Device& device);

  const Device& device_;
  std::array<cuda::Function, kDTypeCount> functions_{};
};

}  // namespace ringcore::device
