// Shared memory of this rank as Python objects hold it.
#pragma once

#include <memory>

#include "transport/pool.hpp"
#include "transport/segment.hpp"

namespace ringcore::python {

// A segment with the allocator of its arena. Tensors that lie in it keep it alive, also after shutdown.
struct HostMemory {
  HostMemory(transport::Segment created, std::size_t reserved_bytes);
  transport::Segment segment;
  transport::Arena arena;
  transport::Pool pool{arena};
  std::byte* fusion = nullptr;  // `reserved_bytes` at the front of the arena
};

}  // namespace ringcore::python
