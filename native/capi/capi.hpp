// The engine behind ringcore.h.
#pragma once

#include <cstdint>
#include <memory>

#include "capi/ringcore.h"
#include "runtime/runtime.hpp"
#include "transport/pool.hpp"

namespace ringcore::capi {

const ringcore_functions* table();

// Where this process stands among those of its host.
struct Place {
  Rank local_rank = 0;
  int local_size = 1;
};

// The newest epoch of the ranks whose results compiled code was given, counted from that of a runtime's beginning: nobody
// tells Python, which asks.
void begin_epochs(std::uint32_t first);
std::uint32_t told_epoch();

// The runtime that requests go to, and the registered memory that all its ranks see, if they do; both stay their
// owner's. A forked child has none: the engine does not come along.
void set_runtime(std::weak_ptr<Runtime> runtime, Place place = {}, std::weak_ptr<transport::Pool> pool = {});

}  // namespace ringcore::capi
