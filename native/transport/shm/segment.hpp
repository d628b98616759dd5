// A rank's shared segment: one anonymous memory file that the other ranks of the host map too.
//
// It has no name, so nothing is left behind whatever dies. Ranks pass the descriptor to each other over their Unix
// socket: who holds it shares memory with us, whatever the host names say. Layout: a header, one inbox for each
// possible sender (the lanes of that link), also for those who may join the job, then the arena: the heap of registered
// memory.
// The file is sparse: pages cost memory once they are touched. It is sealed, so that nobody who holds the descriptor
// can shrink it under us. Of it a rank maps its own arena, the rings that it uses, and of the peers' arenas what it uses
// (arena_view.hpp): address space may be limited, and there are as many arenas as ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "base/owned.hpp"
#include "base/types.hpp"
#include "transport/link.hpp"

namespace ringcore::transport {

// What memory is mapped and given out by: 4 KiB on x86, up to 64 KiB on Arm, the same for all ranks of a host.
std::size_t page_bytes();
// So many processes may join the ranks that have met, one after the other: each at a place that nobody has had.
inline constexpr int kPlacesToCome = 32;

// What to do where a limit of address space is too small.
inline constexpr std::string_view kAddressSpaceRemedy =
    ". Raise the limit of address space (ulimit -v; of a service LimitAS), start fewer ranks on a host, or set "
    "RINGCORE_ARENA_BYTES and RINGCORE_FUSION_THRESHOLD_BYTES lower on all ranks";

// Where the rings of one inbox lie: a page of shared indices, then one ring a lane. All ranks of a job compute the same
// layout from the job's size: with many ranks the rings are smaller, because each pair of ranks has them.
class InboxLayout {
 public:
  explicit InboxLayout(int size);
  std::size_t bytes() const { return bytes_; }
  // Relative to the start of the inbox. Multiples of page_bytes(); the lengths are powers of two.
  std::size_t lane_offset(int lane) const {
    if (lane == kControlLane) return page_bytes();
    return page_bytes() + control_bytes_ + static_cast<std::size_t>(lane - kFirstDataLane) * data_bytes_;
  }
  std::size_t lane_bytes(int lane) const { return lane == kControlLane ? control_bytes_ : data_bytes_; }

 private:
  std::size_t control_bytes_;
  std::size_t data_bytes_;
  std::size_t bytes_;
};

class Segment {
 public:
  // As much virtual memory as the machine has physical memory: the arena can then never be what runs out first. Where
  // address space is limited, a part of what is left.
  static std::uint64_t default_arena_bytes();

  // Creates the segment of `rank` for a job that `size` ranks have begun; who has joined is behind them. The arena gets smaller than asked for where the process
  // may not have that much address space. Throws Error{kResource}.
  static Segment create(Rank rank, int size, std::uint64_t arena_bytes = default_arena_bytes());
  // Takes a peer's segment from the descriptor that it sent. Throws Error{kProtocol} when it is not one of `rank`.
  static Segment attach(Fd fd, Rank rank, int size);

  int fd() const { return fd_.get(); }
  Rank rank() const { return rank_; }
  int size() const { return size_; }
  // Where the region begins in the file that `sender` writes and the owner reads.
  std::size_t inbox_offset(Rank sender) const;
  // Its first page.
  Mapping map_inbox_page(Rank sender) const;
  // Makes the inbox's pages exist, so that a full machine is an error here and not a SIGBUS later. Sender and owner
  // both call it before they use the inbox; the second call finds the work done. Throws Error{kResource}.
  void reserve_inbox(Rank sender) const;
  // The segments that a rank creates have it mapped. Throws Error{kResource}.
  void map_arena();
  std::span<std::byte> arena() const { return {arena_.data(), arena_.size()}; }
  std::size_t arena_offset() const { return arena_offset_; }
  std::size_t arena_bytes() const { return arena_bytes_; }

 private:
  Segment(Fd fd, Rank rank, int size, std::size_t arena_offset, std::size_t arena_bytes)
      : fd_(std::move(fd)), rank_(rank), size_(size), arena_offset_(arena_offset), arena_bytes_(arena_bytes) {}

  Fd fd_;
  Rank rank_;
  int size_;
  std::size_t arena_offset_;
  std::size_t arena_bytes_;
  Mapping arena_;
};

// Makes the pages of a range of a memory file exist. Throws Error{kResource} naming `purpose`.
void reserve_pages(int fd, std::size_t offset, std::size_t bytes, const char* purpose);

// Hands out pieces of a segment's arena, aligned to page_bytes(). A piece's pages exist before it is handed
// out, so that a full machine is an error here and not a SIGBUS later. Best fit; neighbouring free pieces are joined.
// The segment must outlive the arena. Thread-safe.
class Arena {
 public:
  // The first `reserved_bytes` are left to the caller; their pages are not made to exist.
  explicit Arena(const Segment& segment, std::size_t reserved_bytes = 0);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Throws Error{kResource}. Zero bytes give a piece of one page.
  std::byte* allocate(std::size_t bytes);
  // Gives the pages back to the system. Null is allowed. Throws Error{kInvalidArgument} for what is not a piece.
  void release(std::byte* piece);

  // Where [data, data + bytes) lies in the arena: the same offset leads to it by the peers' `Link::peer_memory`.
  // Nothing when it is not registered memory. Asked for each tensor: two comparisons, no lock.
  std::optional<std::uint64_t> offset_of(const void* data, std::size_t bytes) const {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    const auto begin = reinterpret_cast<std::uintptr_t>(memory_.data());
    if (address < begin || address - begin > memory_.size() || memory_.size() - (address - begin) < bytes) {
      return std::nullopt;
    }
    return address - begin;
  }

  std::size_t allocated_bytes() const;

 private:
  std::optional<std::size_t> take(std::size_t bytes);
  void give_back(std::size_t offset, std::size_t bytes);

  int fd_;
  std::size_t file_offset_;
  std::span<std::byte> memory_;
  mutable std::mutex mutex_;  // Guards: free_by_offset_, free_by_size_, pieces_, allocated_bytes_.
  std::map<std::size_t, std::size_t> free_by_offset_;  // offset -> bytes
  std::set<std::pair<std::size_t, std::size_t>> free_by_size_;  // (bytes, offset) of the same
  std::map<std::size_t, std::size_t> pieces_;  // offset -> bytes, handed out
  std::size_t allocated_bytes_ = 0;
};

}  // namespace ringcore::transport
