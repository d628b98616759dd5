// What two ranks of a host tell each other about their processors, in shared memory. Each writes its own, and what it
// reads of the other's decides only how it waits.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "base/clock.hpp"

namespace ringcore::transport {

// A bit for each.
using Processors = std::array<std::uint64_t, 16>;

struct Standing {
  alignas(128) std::uint32_t processor_plus_1 = 0;  // on which its thread last used the engine; 0: on none yet
  Nanoseconds rung_at = 0;                          // when it last woke the other one
  Processors allowed{};                             // on which it may run; none: it has not said
};

}  // namespace ringcore::transport
