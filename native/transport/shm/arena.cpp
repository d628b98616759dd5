// The heap of registered memory: see Arena in segment.hpp.
#include <cerrno>
#include <string>

#include <fcntl.h>
#include <sys/mman.h>

#include "base/error.hpp"
#include "transport/shm/segment.hpp"

namespace ringcore::transport {

Arena::Arena(const Segment& segment, std::size_t reserved_bytes)
    : fd_(segment.fd()), file_offset_(segment.arena_offset()), memory_(segment.arena()) {
  const std::size_t reserved = (reserved_bytes + page_bytes() - 1) / page_bytes() * page_bytes();
  if (reserved >= memory_.size()) {
    throw Error(
        ErrorKind::kResource,
        "an arena of " + std::to_string(memory_.size()) + " bytes has no room for " + std::to_string(reserved_bytes) +
            " bytes of fusion buffers and registered memory. Set " + "RINGCORE_ARENA_BYTES to more than " +
            std::to_string(reserved) +
            ", or RINGCORE_FUSION_THRESHOLD_BYTES lower: three buffers of that size lie in the arena. Where it " +
            "is not set, a limit of address space (ulimit -v) or of file sizes (ulimit -f) makes the arena small");
  }
  give_back(reserved, memory_.size() - reserved);
}

std::byte* Arena::allocate(std::size_t bytes) {
  const std::size_t pages = bytes / page_bytes() + (bytes % page_bytes() != 0 || bytes == 0 ? 1 : 0);
  const std::optional<std::size_t> offset = take(pages * page_bytes());
  if (!offset) {
    throw Error(ErrorKind::kResource, "no room for " + std::to_string(bytes) + " bytes of registered memory: " +
                                          std::to_string(allocated_bytes()) + " of " + std::to_string(memory_.size()) +
                                          " bytes are in use. Set RINGCORE_ARENA_BYTES higher, or use less of it");
  }
  try {
    reserve_pages(fd_, file_offset_ + *offset, pages * page_bytes(), "registered memory");
  } catch (...) {
    release(memory_.data() + *offset);
    throw;
  }
#ifdef MADV_POPULATE_WRITE
  // The first use then takes no page faults. Only a hint: kernels before 5.14 do not know it.
  ::madvise(memory_.data() + *offset, pages * page_bytes(), MADV_POPULATE_WRITE);
#endif
  return memory_.data() + *offset;
}

void Arena::release(std::byte* piece) {
  if (piece == nullptr) return;
  const std::optional<std::uint64_t> offset = offset_of(piece, 0);
  std::unique_lock lock(mutex_);
  const auto found = offset ? pieces_.find(*offset) : pieces_.end();
  if (found == pieces_.end()) {
    throw Error(ErrorKind::kInvalidArgument, "released memory that is not a piece of the arena");
  }
  const std::size_t bytes = found->second;
  pieces_.erase(found);
  lock.unlock();
  // Between the locks nobody else can get these pages. A failure costs memory, not correctness: ignored.
  ::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(file_offset_ + *offset),
              static_cast<off_t>(bytes));
  lock.lock();
  allocated_bytes_ -= bytes;
  give_back(*offset, bytes);
}

std::size_t Arena::allocated_bytes() const {
  const std::lock_guard lock(mutex_);
  return allocated_bytes_;
}

// Takes the front of the smallest free block that is large enough.
std::optional<std::size_t> Arena::take(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = free_by_size_.lower_bound({bytes, 0});
  if (found == free_by_size_.end()) return std::nullopt;
  const auto [block_bytes, offset] = *found;
  free_by_size_.erase(found);
  free_by_offset_.erase(offset);
  if (block_bytes > bytes) {
    free_by_offset_.emplace(offset + bytes, block_bytes - bytes);
    free_by_size_.emplace(block_bytes - bytes, offset + bytes);
  }
  pieces_.emplace(offset, bytes);
  allocated_bytes_ += bytes;
  return offset;
}

// Joins the block with its free neighbours. The caller holds the mutex.
void Arena::give_back(std::size_t offset, std::size_t bytes) {
  const auto forget = [&](std::map<std::size_t, std::size_t>::iterator block) {
    free_by_size_.erase({block->second, block->first});
    return free_by_offset_.erase(block);
  };
  auto next = free_by_offset_.lower_bound(offset);
  if (next != free_by_offset_.end() && next->first == offset + bytes) {
    bytes += next->second;
    next = forget(next);
  }
  if (next != free_by_offset_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      offset = previous->first;
      bytes += previous->second;
      forget(previous);
    }
  }
  free_by_offset_.emplace(offset, bytes);
  free_by_size_.emplace(bytes, offset);
}

}  // namespace ringcore::transport
