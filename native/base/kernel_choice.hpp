// The kernels for the processor found at run time.
#pragma once

#include "base/kernel_table.hpp"

namespace ringcore::kernels {

const KernelTable& chosen();

}  // namespace ringcore::kernels
