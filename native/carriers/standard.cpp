#include "carriers/standard.hpp"

#include <utility>

#include "carriers/gpu/carrier.hpp"
#include "carriers/plans/carrier.hpp"

namespace ringcore::carriers {

engine::CarrierFactory standard(BackendFactory make_backends, bool nccl_shares_gpus,
                                std::shared_ptr<plan::Offered> offered) {
  return [make_backends = std::move(make_backends), nccl_shares_gpus,
          offered = std::move(offered)](const engine::CarrierConfig& config) {
    std::vector<std::unique_ptr<plan::Backend>> backends;
    if (make_backends) backends = make_backends(config);
    std::vector<std::unique_ptr<engine::Carrier>> carriers;
    carriers.push_back(std::make_unique<GpuCarrier>(config, nccl_shares_gpus));
    carriers.push_back(std::make_unique<PlanCarrier>(config, std::move(backends),
                                                     config.process_set == engine::kWorld ? offered : nullptr));
    return carriers;
  };
}

}  // namespace ringcore::carriers
