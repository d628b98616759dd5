// Arrays of any framework, as the engine sees them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <nanobind/nanobind.h>

#include "base/types.hpp"
#include "engine/request.hpp"

namespace ringcore::python {

// A piece of host memory that a Python object owns.
struct Buffer {
  std::uintptr_t address = 0;
  std::vector<std::uint64_t> shape;
  int dtype = -1;  // our code; -1: one that the engine does not know
  bool contiguous = true;
  nanobind::object owner;
};

// What an operation needs of an array.
struct ArrayView {
  std::byte* data = nullptr;
  engine::Shape shape;
  DType dtype{};
};

// Looks at a Buffer, or at anything that speaks the buffer protocol or DLPack. nullopt for what is no contiguous array in
// host memory of a dtype that the engine knows, and for memory that may not be written where `writable`.
std::optional<ArrayView> view_of(nanobind::handle array, bool writable);

}  // namespace ringcore::python
