#include "carriers/standard.hpp"

#include <utility>

#include "carriers/gpu/carrier.hpp"
#include "carriers/plans/carrier.hpp"

namespace ringcore::carriers {

engine::CarrierFactory standard(BackendFactory make_backends) {
  return [make_backends = std::move(make_backends)](const engine::CarrierConfig& config) {
    std::vector<std::unique_ptr<plan::Backend>> backends;
    if (make_backends) backends = make_backends(config.process_set);
    std::vector<std::unique_ptr<engine::Carrier>> carriers;
    carriers.push_back(std::make_unique<GpuCarrier>(config));
    carriers.push_back(std::make_unique<PlanCarrier>(config, std::move(backends)));
    return carriers;
  };
}

}  // namespace ringcore::carriers
