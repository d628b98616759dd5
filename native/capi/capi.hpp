// The engine behind ringcore.h.
#pragma once

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

// The runtime that requests go to, and the registered memory that all its ranks see, if they do; both stay their
// owner's. A forked child has none: the engine does not come along.
void set_runtime(std::weak_ptr<Runtime> runtime, Place place = {}, std::weak_ptr<transport::Pool> pool = {});

}  // namespace ringcore::capi
