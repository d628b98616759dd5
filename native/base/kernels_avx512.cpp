// The reduction kernels for processors with AVX-512 (F, BW, DQ, VL).
#if defined(__x86_64__)
#include <immintrin.h>
#include "base/kernel_table.hpp"
#define RINGCORE_KERNELS_ISA avx512
#include "base/kernels.inc"
#endif
