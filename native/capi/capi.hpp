// The engine behind ringcore.h.
#pragma once

#include <memory>

#include "capi/ringcore.h"
#include "engine/runtime.hpp"

namespace ringcore::capi {

const ringcore_functions* table();

// Where this process stands among those of its host.
struct Place {
  Rank local_rank = 0;
  int local_size = 1;
};

// The runtime that requests go to; it stays its owner's.
void set_runtime(std::weak_ptr<engine::Runtime> runtime, Place place = {});
// In a forked child: the engine did not come along.
void forget_runtime();

}  // namespace ringcore::capi
