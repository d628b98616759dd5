#include "sim_switch.hpp"

#include <algorithm>

#include "plan/backend.hpp"

namespace ringcore::simulation {
namespace {

// Takes the sum a moment after it is whole, so that some have it and others do not.
class SimSwitchRun final : public engine::Run {
 public:
  SimSwitchRun(SimSwitch& at_switch, int self, const engine::Task& task, transport::SimNetwork& network,
               const std::function<bool()>& gives_up)
      : switch_(at_switch), self_(self), task_(task), network_(network), gives_up_(gives_up) {}

  bool progress() override {
    const engine::Operation& operation = task_.operation();
    const std::size_t count = operation.bytes() / sizeof(std::int64_t);
    if (gives_up_()) throw plan::BackendLost(ErrorKind::kPeerLost, "the switch does not answer");
    if (sum_ == nullptr) {
      sum_ = switch_.add(self_, task_.lane, {reinterpret_cast<const std::int64_t*>(operation.input), count});
      return true;
    }
    if (!switch_.is_whole(*sum_)) return false;
    const Nanoseconds now = network_.clock().now();
    if (!takes_at_) takes_at_ = now + static_cast<Nanoseconds>(network_.random_below(kMillisecond));
    if (now < *takes_at_) return false;
    std::ranges::copy(sum_->elements, reinterpret_cast<std::int64_t*>(operation.output));
    return done_ = true;
  }
  bool done() const override { return done_; }
  bool waits_for(Rank) const override { return false; }
  std::string waiting_for() const override { return "the switch"; }

 private:
  SimSwitch& switch_;
  int self_;
  const engine::Task& task_;
  transport::SimNetwork& network_;
  const std::function<bool()>& gives_up_;
  std::shared_ptr<const SimSwitch::Sum> sum_;
  std::optional<Nanoseconds> takes_at_;
  bool done_ = false;
};

}  // namespace

std::shared_ptr<const SimSwitch::Sum> SimSwitch::add(int member, int lane, std::span<const std::int64_t> elements) {
  std::shared_ptr<Sum>& sum = sums_[{lane, next_[{member, lane}]++}];
  if (sum == nullptr) sum = std::make_shared<Sum>(Sum{.elements = std::vector<std::int64_t>(elements.size())});
  for (std::size_t i = 0; i < elements.size(); ++i) sum->elements.at(i) += elements[i];
  ++sum->sent;
  return sum;
}

SimSwitchCarrier::SimSwitchCarrier(const engine::CarrierConfig& config, std::shared_ptr<SimSwitch> at_switch,
                                   transport::SimNetwork& network, std::function<bool()> gives_up)
    : self_(config.self), switch_(std::move(at_switch)), network_(network), gives_up_(std::move(gives_up)) {}

bool SimSwitchCarrier::takes(const engine::Descriptor& descriptor) const {
  return descriptor.collective == Collective::kAllreduce && descriptor.dtype == DType::kInt64 &&
         descriptor.op == ReduceOp::kSum && !descriptor.on_device;
}

std::unique_ptr<engine::Run> SimSwitchCarrier::start(engine::Task& task) {
  return std::make_unique<SimSwitchRun>(*switch_, self_, task, network_, gives_up_);
}

}  // namespace ringcore::simulation
