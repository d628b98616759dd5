#pragma once

#include "base/error.hpp"

namespace ringcore::python {

// Sets the Python exception that stands for the error. The caller holds the GIL.
void raise(const Error& error);

}  // namespace ringcore::python
