// The memory that this rank shares with the other ranks of its host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/link.hpp"
#include "transport/pool.hpp"
#include "transport/shm/segment.hpp"

namespace ringcore {

// A segment with the allocators of its arena. Whatever lies in it keeps it alive, also after the job has ended.
struct HostMemory {
  // `arena_bytes`: 0 for the usual size. `fusion_bytes`: of a buffer that small tensors are packed in; each lane of data
  // has one, at the front of the arena. Throws Error{kResource}.
  HostMemory(Rank rank, int size, std::uint64_t arena_bytes, std::size_t fusion_bytes)
      : segment(arena_bytes == 0 ? transport::Segment::create(rank, size)
                                 : transport::Segment::create(rank, size, arena_bytes)),
        arena(segment, (transport::kLaneCount - transport::kFirstDataLane) * fusion_bytes),
        fusion(segment.arena().data()) {}

  transport::Segment segment;
  transport::Arena arena;
  transport::Pool pool{arena};
  std::byte* fusion;
};

}  // namespace ringcore
