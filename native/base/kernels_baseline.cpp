// The reduction kernels for any processor of this architecture.

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/kernel_table.hpp"

#define RINGCORE_KERNELS_ISA baseline
#include "base/kernels.inc"
