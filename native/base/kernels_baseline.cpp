// The reduction kernels for any processor of this architecture.

#include "base/kernel_table.hpp"

#define RINGCORE_KERNELS_ISA baseline
#include "base/kernels.inc"
