// The memory of the double's GPUs: one file, mapped twice. The addresses that are handed out lie in the mapping that
// nobody may touch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpu_double {

std::uint64_t allocate(std::size_t bytes);  // 0 when there is no more
void release(std::uint64_t address);
bool is_device_address(std::uint64_t address);
std::size_t allocated_bytes(std::uint64_t address);  // of the allocation that begins there; 0: there is none

}  // namespace gpu_double
