#include "transport/pool.hpp"

#include <algorithm>

namespace ringcore::transport {

std::byte* Pool::allocate(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  std::byte* piece = take_kept(bytes);
  if (piece == nullptr) {
    make_room(bytes);
    piece = arena_.allocate(bytes);
  }
  used_.emplace(piece, bytes);
  used_bytes_ += bytes;
  most_used_bytes_ = std::max(most_used_bytes_, used_bytes_);
  return piece;
}

void Pool::release(std::byte* piece) {
  const std::lock_guard lock(mutex_);
  const auto found = used_.find(piece);
  const std::size_t bytes = found->second;
  used_.erase(found);
  used_bytes_ -= bytes;
  kept_by_bytes_.emplace(bytes, kept_.insert(kept_.end(), {bytes, piece}));
  kept_bytes_ += bytes;
}

// Of this size, the one that came back last: it is the likeliest to be in a cache.
std::byte* Pool::take_kept(std::size_t bytes) {
  const auto behind = kept_by_bytes_.upper_bound(bytes);
  if (behind == kept_by_bytes_.begin()) return nullptr;
  const auto found = std::prev(behind);
  if (found->first != bytes) return nullptr;
  std::byte* piece = found->second->piece;
  kept_.erase(found->second);
  kept_by_bytes_.erase(found);
  kept_bytes_ -= bytes;
  return piece;
}

// For a new piece.
void Pool::make_room(std::size_t bytes) {
  const std::size_t allowed = std::max(most_used_bytes_, used_bytes_ + bytes);
  while (!kept_.empty() && used_bytes_ + kept_bytes_ + bytes > allowed) {
    const auto oldest = kept_.begin();
    const auto [first, behind] = kept_by_bytes_.equal_range(oldest->bytes);
    kept_by_bytes_.erase(std::find_if(first, behind, [oldest](const auto& entry) { return entry.second == oldest; }));
    kept_bytes_ -= oldest->bytes;
    arena_.release(oldest->piece);
    kept_.erase(oldest);
  }
}

}  // namespace ringcore::transport
