// The memory of the double's GPUs: one file, mapped twice. The addresses that are handed out lie in the mapping that
// nobody may touch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace gpu_double {

// 0 when there is no more. `in_stream`: of a pool, in the order of a stream; that kind has no handle for other
// processes.
std::uint64_t allocate(std::size_t bytes, bool in_stream = false);
void release(std::uint64_t address);
bool is_device_address(std::uint64_t address);
std::size_t allocated_bytes(std::uint64_t address);  // of the allocation that begins there; 0: there is none

// Where a piece lies in the file; nothing for addresses within one, and for pieces of a pool.
struct Piece {
  std::size_t offset = 0;
  std::size_t bytes = 0;
};
std::optional<Piece> shareable_piece(std::uint64_t address);

// The file: the pieces, and a page for `Ledger`.
inline constexpr std::size_t kMemoryBytes = std::size_t{8} << 30;  // sparse
inline constexpr std::size_t kPageBytes = 4096;
int memory_file();

}  // namespace gpu_double
