// A rank's shared segment: one anonymous memory file that the other ranks of the host map too.
//
// It has no name, so nothing is left behind whatever dies. Ranks pass the descriptor to each other over their Unix
// socket: who holds it shares memory with us, whatever the host names say. Layout: a header, one inbox for each
// possible sender (the lanes of that link), then the arena: the heap of registered memory.
// The file is sparse: pages cost memory once they are touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/owned.hpp"
#include "base/types.hpp"

namespace ringcore::transport {

class Segment {
 public:
  // Creates the segment of `rank` for a job of `size` ranks. Throws Error{kResource}.
  static Segment create(Rank rank, int size, std::uint64_t arena_bytes);
  // Maps a peer's segment from the descriptor that it sent. Throws Error{kProtocol} when it is not one of `rank`.
  static Segment attach(Fd fd, Rank rank, int size);

  int fd() const { return fd_.get(); }
  // The region that `sender` writes and the owner reads.
  std::span<std::byte> inbox(Rank sender) const;
  std::span<std::byte> arena() const;

 private:
  Segment() = default;
  Fd fd_;
  Mapping mapping_;
};

// Hands out pieces of an arena, aligned to 4096 bytes. A piece's pages exist before it is handed out
// (posix_fallocate), so that a full machine is an error here and not a SIGBUS later. Thread-safe.
class Arena;

}  // namespace ringcore::transport
