// Carries out operations whose tensors lie on GPUs, without the host: launched on a stream of ours.
//
// A rank uses one GPU in a process set. What connects them (launcher.hpp) is made before the first of these operations,
// on all members at the same place of their order.
#pragma once

#include <memory>
#include <string>

#include "carriers/gpu/launcher.hpp"
#include "engine/carrier.hpp"

namespace ringcore::carriers {

class GpuCarrier final : public engine::Carrier {
 public:
  explicit GpuCarrier(engine::CarrierConfig config) : config_(std::move(config)) {}

  std::string_view name() const override { return "GPUs"; }
  bool concerns(const engine::Descriptor& descriptor) const override { return descriptor.on_device; }
  bool takes(const engine::Descriptor& descriptor) const override {
    return descriptor.on_device && launcher_->takes(descriptor);
  }
  bool ready() const override { return launcher_ != nullptr && launcher_->agreed(); }
  std::span<const std::byte> message() override;
  void hear(std::span<const std::byte> messages) override { launcher_->hear(messages); }
  std::string remark() const override { return launcher_->way(); }
  void admit(engine::Operation& operation) override;
  std::string refusal(const engine::Descriptor& descriptor) const override;
  bool fetch(engine::Operation& operation) override { return launcher_->fetch(operation); }
  void give_back(const std::shared_ptr<engine::Operation>& operation) override { launcher_->give_back(operation); }
  std::size_t bucket_bytes() const override { return config_.settings.fusion_threshold_bytes; }
  bool fuses(const engine::Task& bucket, const engine::Descriptor& descriptor,
             const engine::Operation* own) const override;
  bool queue(const engine::Task&) override {
    launcher_->expect();
    return true;
  }
  bool completes_at_launch() const override { return true; }
  std::unique_ptr<engine::Run> start(engine::Task& task) override;
  void progress() override { launcher_->forget_ended(); }
  bool drained() const override { return launcher_ == nullptr || launcher_->drained(); }
  void watch(Nanoseconds now, Nanoseconds limit) override {
    if (launcher_ != nullptr) launcher_->watch(now, limit);
  }
  void abort() override {
    if (launcher_ != nullptr) launcher_->abort();
  }

 private:
  void choose_device(const engine::Operation& operation);

  engine::CarrierConfig config_;
  int device_ = engine::kHost;  // the number of the GPU that this rank uses in this process set
  std::unique_ptr<Launcher> launcher_;
};

}  // namespace ringcore::carriers
