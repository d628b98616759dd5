// Memory of the double's GPUs in other processes, with CUDA's rules: a handle is opened in another process than its
// own, what is opened is not freed before it is closed (whoever does that dies of it, where CUDA leaves the behaviour
// undefined), and what is closed is used no more.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpu_double {

// Where the host sees an address that was opened; null for all others.
std::byte* visible_of_others(std::uint64_t address);
// A piece is freed. Ends the process if another one has it open.
void note_release(std::size_t offset);

}  // namespace gpu_double
