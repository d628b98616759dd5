// Arrays that the engine is to work on, or that are worked on here and now.
#pragma once

#include <stdexcept>

#include <nanobind/nanobind.h>

#include "engine/request.hpp"

namespace ringcore::python {

// A TypeError of its own: adapters prepare an array that the engine cannot work on, and mistakes in a call pass through.
class UnsupportedArray : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throw UnsupportedArray. The second: for what is done here and now.
engine::Array array_of(nanobind::handle array, bool writable);
engine::Array host_array_of(nanobind::handle array, bool writable);

}  // namespace ringcore::python
