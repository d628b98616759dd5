// What a job has of carriers: GPUs, and plans, which take the rest.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/carrier.hpp"
#include "plan/backend.hpp"
#include "plan/offered.hpp"

namespace ringcore::carriers {

// Makes the libraries that do whole collectives for a process set; asked on every member, in an elastic job in every epoch.
using BackendFactory = std::function<std::vector<std::unique_ptr<plan::Backend>>(const engine::CarrierConfig& config)>;

// `make_backends`: null where there are none. `nccl_shares_gpus`: NCCL may run several ranks on one GPU, where it can.
// `offered`: plans from outside, of the world; null: none can come.
engine::CarrierFactory standard(BackendFactory make_backends = nullptr, bool nccl_shares_gpus = false,
                                std::shared_ptr<plan::Offered> offered = nullptr);

}  // namespace ringcore::carriers
