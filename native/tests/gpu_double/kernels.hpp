// The kernels of device/kernels.cu and device/reduce.cu, as host functions.
#pragma once

#include "double.hpp"

namespace gpu_double {

struct Kernel;

// Null when there is none of this name.
const Kernel* find_kernel(const char* name);
// What a launch with this parameter does; the parameter is copied, as of a launch.
Work bind_kernel(const Kernel& kernel, unsigned segments, const void* parameter);

}  // namespace gpu_double
