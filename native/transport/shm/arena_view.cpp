#include "transport/shm/arena_view.hpp"

#include <algorithm>
#include <bit>
#include <string>

#include "base/error.hpp"

namespace ringcore::transport {
namespace {

// Smaller windows would be many, each mapped by a system call.
constexpr std::size_t kSmallestHalf = std::size_t{16} << 20;

Mapping map_window(const Segment& segment, std::size_t offset, std::size_t bytes) {
  try {
    return {segment.fd(), segment.arena_offset() + offset, bytes};
  } catch (const Error& error) {
    throw Error(ErrorKind::kResource, "no address space for the registered memory of rank " +
                                          std::to_string(segment.rank()) + ": " + error.what() +
                                          std::string(kAddressSpaceRemedy));
  }
}

}  // namespace

std::byte* ArenaView::at(std::uint64_t offset, std::size_t bytes) {
  const std::size_t arena_bytes = segment_->arena_bytes();
  if (offset > arena_bytes || bytes > arena_bytes - offset) {
    throw Error(ErrorKind::kProtocol,
                "rank " + std::to_string(segment_->rank()) + " announced memory outside of its arena");
  }
  if (bytes == 0) return nullptr;
  const std::size_t half = std::max(kSmallestHalf, std::bit_ceil(bytes));
  const std::size_t begin = offset / half * half;
  const auto [found, fresh] = windows_.try_emplace({half, begin});
  if (found->second.data() == nullptr) {
    found->second = map_window(*segment_, begin, std::min(2 * half, arena_bytes - begin));
  }
  return found->second.data() + (offset - begin);
}

}  // namespace ringcore::transport
