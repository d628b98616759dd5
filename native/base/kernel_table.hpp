// The border between the kernels, compiled once for each instruction set, and their dispatch. Only raw pointers cross.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.hpp"

namespace ringcore::kernels {

struct Reduction {
  void (*into)(std::byte* dst, const std::byte* src, std::size_t count, double scale);
  void (*many)(const std::byte* const* srcs, std::size_t src_count, std::byte* const* dsts, std::size_t dst_count,
               std::size_t count, double scale);
  void (*past_caches)(const std::byte* const* srcs, std::size_t src_count, std::byte* const* dsts,
                      std::size_t dst_count, std::size_t count, double scale);
};

struct ElementKernels {
  Reduction reductions[kReduceOpCount];
  void (*scale)(std::byte* data, std::size_t count, double factor);
};

struct QuantiseKernels {
  void (*quantise)(const std::byte* values, std::size_t count, std::byte* to);
  void (*dequantise)(const std::byte* from, std::size_t count, std::byte* values);
  void (*add)(const std::byte* from, std::size_t count, std::byte* values, double scale);
};

using NarrowProductKernel = void (*)(const std::byte* left, std::size_t left_columns, const std::byte* right,
                                     std::size_t rank, std::size_t rows, std::size_t columns, std::byte* to);

struct KernelTable {
  ElementKernels by_dtype[kDTypeCount];
  QuantiseKernels quantise[kCompressionCount - 1][2];  // by compression but none; of float32 and of float64
  NarrowProductKernel narrow_product[2];  // of float32 and of float64
};

namespace baseline {
extern const KernelTable kTable;
}
#if defined(__x86_64__)
namespace avx2 {
extern const KernelTable kTable;
}
namespace avx512 {
extern const KernelTable kTable;
}
#endif

}  // namespace ringcore::kernels
