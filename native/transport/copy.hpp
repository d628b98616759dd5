// Copying into memory that another core reads next.
#pragma once

#include <cstddef>
#include <cstring>
#include <filesystem>

namespace ringcore::transport {

// How many last-level (L3) caches the processors share among them, by what Linux tells in `cpus`; 0 where it does not.
int count_caches(const std::filesystem::path& cpus = "/sys/devices/system/cpu");

// From how many bytes on streaming stores are quicker than ordinary ones, on a machine with so many L3 caches.
std::size_t streaming_bytes(bool amd, int caches);

// memcpy by streaming stores, which go past the caches; of this machine's `streaming_bytes` and more.
void stream(std::byte* to, const std::byte* from, std::size_t bytes);
bool is_streamed(std::size_t bytes);

// memcpy to memory that another core has read before (a ring's last lap), or will read later.
inline void copy_to_peer(std::byte* to, const std::byte* from, std::size_t bytes) {
  // Shorter copies disappear in the store buffer, which hides what they cost.
  constexpr std::size_t kShort = std::size_t{1} << 10;
  if (bytes >= kShort && is_streamed(bytes)) return stream(to, from, bytes);
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace ringcore::transport
