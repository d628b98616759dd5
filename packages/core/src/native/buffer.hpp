// Arrays of any framework, as the engine sees them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <nanobind/nanobind.h>

namespace ringcore::python {

// A piece of host memory that a Python object owns.
struct Buffer {
  std::uintptr_t address = 0;
  std::vector<std::uint64_t> shape;
  int dtype = -1;  // our code; -1: one that the engine does not know
  bool contiguous = true;
  nanobind::object owner;
};

// Describes a Buffer, or anything that speaks the buffer protocol or DLPack and lies in host memory, without its owner.
// nullopt for everything else, and for memory that may not be written where `writable`.
std::optional<Buffer> describe(nanobind::handle array, bool writable);

}  // namespace ringcore::python
