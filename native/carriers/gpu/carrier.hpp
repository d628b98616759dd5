// Carries out operations whose tensors lie on GPUs, without the host: launched on a stream of ours.
//
// A rank uses one GPU in a process set, or several, where a model is divided among them. Each counts its GPUs in the
// order of their first use (`Descriptor::device_index`), and the first ones of all members form a communicator, as do
// the second ones: what connects them (launcher.hpp) is made before the first of their operations, on all members at the
// same place of their order.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "carriers/gpu/launcher.hpp"
#include "engine/carrier.hpp"

namespace ringcore::carriers {

class GpuCarrier final : public engine::Carrier {
 public:
  // `nccl_shares_gpus`: see Launcher.
  GpuCarrier(engine::CarrierConfig config, bool nccl_shares_gpus)
      : config_(std::move(config)), nccl_shares_gpus_(nccl_shares_gpus) {}

  std::string_view name() const override { return "GPUs"; }
  bool concerns(const engine::Descriptor& descriptor) const override { return descriptor.on_device; }
  bool takes(const engine::Descriptor& descriptor) const override {
    return descriptor.on_device && launcher_of(descriptor).takes(descriptor);
  }
  bool ready(const engine::Descriptor& descriptor) const override { return !unconnected(descriptor); }
  std::span<const std::byte> message(const engine::Descriptor& descriptor) override;
  void hear(std::span<const std::byte> messages) override { launchers_[connecting_]->hear(messages); }
  std::string remark() const override;
  void admit(engine::Operation& operation) override;
  std::string refusal(const engine::Descriptor& descriptor) const override;
  bool fetch(engine::Operation& operation) override { return launcher_of(operation.descriptor).fetch(operation); }
  void give_back(const std::shared_ptr<engine::Operation>& operation) override {
    launcher_of(operation->descriptor).give_back(operation);
  }
  std::size_t bucket_bytes() const override { return config_.settings.fusion_threshold_bytes; }
  bool fuses(const engine::Task& bucket, const engine::Descriptor& descriptor,
             const engine::Operation* own) const override;
  bool queue(engine::Task& task) override {
    launcher_of(task.descriptor()).expect();
    return true;
  }
  bool completes_at_launch() const override { return true; }
  std::unique_ptr<engine::Run> start(engine::Task& task) override;
  std::string take_finding() override { return std::exchange(finding_, {}); }
  void progress() override;
  bool drained() const override;
  void watch(Nanoseconds now, Nanoseconds limit) override;
  void abort() override;

 private:
  Launcher& launcher_of(const engine::Descriptor& descriptor) const { return *launchers_[descriptor.device_index]; }
  std::optional<std::size_t> unconnected(const engine::Descriptor& descriptor) const;
  void make_launcher(std::size_t index);
  int spare_device(std::size_t index) const;
  void note_device(const engine::Operation& operation);
  void note_compression(const engine::Task& task);

  engine::CarrierConfig config_;
  bool nccl_shares_gpus_;
  // Of this rank's GPUs in this process set, by `Descriptor::device_index`.
  std::vector<int> devices_;  // their numbers; kHost: it has not used it yet
  std::vector<std::unique_ptr<Launcher>> launchers_;  // null: there has been no operation of it yet
  std::size_t connecting_ = 0;  // whose messages are exchanged
  bool told_of_compression_ = false;
  std::string finding_;  // that is to be told
};

}  // namespace ringcore::carriers
