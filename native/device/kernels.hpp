// Copies of many tensors at once, scaled where asked for: how tensors get into a fused buffer and out again.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "base/types.hpp"
#include "device/device.hpp"

namespace ringcore::device {

struct Segment {
  std::uint64_t from;  // addresses on the GPU
  std::uint64_t to;
  std::uint64_t elements;
};

inline constexpr std::size_t kMaxSegments = 128;

// The parameter of the kernels, as kernels.cu has it.
struct Segments {
  std::array<Segment, kMaxSegments> at;
  double factor;
};

// Compiles a source for the GPU, which may include "kernels.cu", and loads it; it stays loaded. Throws
// Error{kResource}.
cuda::Module compile_module(const Device& device, const char* name, const char* source);
// Throws Error{kResource} where there is none of this name.
cuda::Function function_of(cuda::Module module, const std::string& name);

class Kernels {
 public:
  // Compiles kernels.cu for the GPU. Throws Error{kResource}.
  explicit Kernels(Device& device);

  void copy(cuda::Stream stream, DType dtype, std::span<const Segment> segments, double factor) const;

 private:
  void launch(cuda::Stream stream, cuda::Function function, std::span<const Segment> segments, double factor,
              std::size_t element_bytes) const;

  Device& device_;
  cuda::Function copy_ = nullptr;
  std::array<cuda::Function, kDTypeCount> scale_{};  // floats only
};

// to[i] = from[i] * factor for each segment, by the kernels or, where there are none and nothing is scaled, by copies
// of the driver. A current context is needed.
void copy_segments(Device& device, cuda::Stream stream, DType dtype, std::span<const Segment> segments, double factor);

// Fills memory with what changes no result of `op`; `bytes` are a multiple of 8. A current context is needed.
void fill_identity(cuda::Stream stream, DType dtype, ReduceOp op, cuda::Pointer to, std::size_t bytes);

}  // namespace ringcore::device
