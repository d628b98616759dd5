// The reduction kernels for processors with AVX2, FMA and F16C.
#if defined(__x86_64__)
#include <immintrin.h>
#include "base/kernel_table.hpp"
#define RINGCORE_KERNELS_ISA avx2
#include "base/kernels.inc"
#endif
