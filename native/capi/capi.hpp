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
// owner's.
void set_runtime(std::weak_ptr<Runtime> runtime, Place place = {}, std::weak_ptr<transport::Pool> pool = {});
// In a forked child: the engine did not come along.
void forget_runtime();

}  // namespace ringcore::capi
