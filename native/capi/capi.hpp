// The engine behind ringcore.h.
#pragma once

#include <memory>

#include "capi/ringcore.h"
#include "engine/runtime.hpp"

namespace ringcore::capi {

const ringcore_functions* table();

// The runtime that requests go to; it stays its owner's.
void set_runtime(std::weak_ptr<engine::Runtime> runtime);
// In a forked child: the engine did not come along.
void forget_runtime();

}  // namespace ringcore::capi
