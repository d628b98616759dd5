// Arrays of any framework, as the engine sees them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <nanobind/nanobind.h>

#include "base/types.hpp"
#include "engine/request.hpp"

namespace ringcore::python {

// A piece of memory that a Python object owns.
struct Buffer {
  std::uintptr_t address = 0;
  std::vector<std::uint64_t> shape;
  int dtype = -1;  // our code; -1: one that the engine does not know
  bool contiguous = true;
  nanobind::object owner;
  // Holds the owner's memory where it is: a bytearray, for example, may not be resized as long as this is there.
  std::shared_ptr<void> held;
  int device = engine::kHost;  // the number of the GPU
  std::uintptr_t stream = 0;   // of that GPU, in which it is made
};

// Looks at a Buffer, at an array of numpy, or at an object of a type with DLPack's C exchange. nullopt for everything
// else, for what is no contiguous array in memory of the host or of a CUDA device, of a dtype that the engine knows, and
// for an array of numpy that may not be written where that is asked.
std::optional<engine::Array> view_of(nanobind::handle array, bool writable);

// The stream that the array's framework uses on a GPU at the moment, in this thread; nullopt where it does not tell.
std::optional<std::uintptr_t> current_stream(nanobind::handle array, int device);

}  // namespace ringcore::python
