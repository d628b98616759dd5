// One call for two pieces of memory that belong together.
#pragma once

#include <cstddef>
#include <span>

namespace ringcore::transport {

// Sends `first` and `rest`, one behind the other, without blocking. Returns what `sendmsg` does.
std::ptrdiff_t send_pieces(int fd, std::span<const std::byte> first, std::span<const std::byte> rest);

}  // namespace ringcore::transport
