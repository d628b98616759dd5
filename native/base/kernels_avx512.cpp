// The reduction kernels for processors with AVX-512 (F, BW, DQ, VL).
#if defined(__x86_64__)
#include "base/kernel_table.hpp"
#include <immintrin.h>
#define RINGCORE_KERNELS_ISA avx512
#include "base/kernels.inc"
#endif
