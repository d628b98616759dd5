// Reduction kernels: element-wise arithmetic on memory, vectorised for the processor found at run time.
//
// NaN always propagates, also through minimum and maximum. float16 and bfloat16 are computed in float32 and rounded
// (to nearest, ties to even) once per call. bool: sum and max are OR, product and min are AND. Integers wrap.
// Buffers need only the alignment of their dtype. No kernel allocates.
#pragma once

#include <span>

#include "base/types.hpp"

namespace ringcore {

// dst[i] = (dst[i] op src[i]) * scale. `scale` is applied only when it is not 1.
void reduce_into(DType dtype, ReduceOp op, std::byte* dst, const std::byte* src, std::size_t count, double scale = 1.0);

// For every i: r = srcs[0][i] op srcs[1][i] op ... (in this order; halves accumulate in float32), times `scale`,
// and then every dsts[k][i] = r. A destination may be one of the sources. One pass over memory. `past_caches`: what the
// destinations hold is not read, and they are in no cache afterwards; for large ones that are none of the sources.
void reduce_many(DType dtype, ReduceOp op, std::span<const std::byte* const> srcs, std::span<std::byte* const> dsts,
                 std::size_t count, double scale = 1.0, bool past_caches = false);

// data[i] = data[i] * factor, computed in float64 for float64 and in float32 for the other floats. Integers wrap, and
// their factor is whole; a bool has none. The same holds for `scale` above.
void scale_in_place(DType dtype, std::byte* data, std::size_t count, double factor);

// Sets elements to the identity of `op`: 0, 1, or the dtype's largest / smallest value (infinities for floats).
void fill_identity(DType dtype, ReduceOp op, std::byte* data, std::size_t count);

// The instruction set in use: "avx512", "avx2", "sse2", "neon" ... for `doctor`.
const char* kernel_instruction_set();

}  // namespace ringcore
