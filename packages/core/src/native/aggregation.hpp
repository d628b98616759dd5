#pragma once

#include <nanobind/nanobind.h>

#include "aggregation/mac.hpp"

namespace ringcore::python {

// Throws Error{kInvalidArgument} unless it has 16 bytes.
aggregation::Key switch_key(const nanobind::bytes& bytes);

}  // namespace ringcore::python
