// Sums of float32 that a switch makes on the way: in-network aggregation.
#pragma once

#include <memory>

#include "carriers/switch/clients.hpp"
#include "plan/backend.hpp"

namespace ringcore::carriers {

// For the process set of all ranks, in their order.
std::unique_ptr<plan::Backend> make_switch_backend(std::shared_ptr<SwitchClients> clients);

}  // namespace ringcore::carriers
