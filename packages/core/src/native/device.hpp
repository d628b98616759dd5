// Memory of GPUs, as Python holds it.
#pragma once

#include "device/device.hpp"

namespace ringcore::python {

struct DeviceMemory {
  device::Memory memory;
};

}  // namespace ringcore::python
