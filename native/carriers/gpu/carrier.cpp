#include "carriers/gpu/carrier.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "carriers/gpu/tensor.hpp"
#include "device/device.hpp"

namespace ringcore::carriers {
namespace {

using engine::Descriptor;
using engine::Operation;
using engine::Task;

// A task under way: done when all of it is in the stream.
class GpuRun final : public engine::Run {
 public:
  GpuRun(Launcher& launcher, const Task& task) : launcher_(launcher), launch_{.task = task} {}

  bool progress() override { return launcher_.progress(launch_); }
  bool done() const override { return launch_.ended; }
  bool waits_for(Rank) const override { return false; }  // of a launch nothing moves that a link sees
  std::string waiting_for() const override { return launcher_.waiting_for(); }

 private:
  Launcher& launcher_;
  Launcher::Launch launch_;
};

}  // namespace

std::span<const std::byte> GpuCarrier::message() {
  if (launcher_ == nullptr) {
    // A rank that has joined before it used a GPU: its place among the members on its host. `choose_device` corrects it.
    const std::vector<int>& host_of = config_.topology.host_of;
    const int host = host_of[static_cast<std::size_t>(config_.self)];
    const auto before = std::count(host_of.begin(), host_of.begin() + config_.self, host);
    const int visible = std::max(1, device::Device::count());  // where each rank sees its own alone, that is number 0
    const int device = device_ != engine::kHost ? device_ : static_cast<int>(before) % visible;
    launcher_ = std::make_unique<Launcher>(device, config_.self, config_.topology.ranks(),
                                           static_cast<std::uint64_t>(host), config_.settings.deterministic,
                                           config_.settings.fusion_threshold_bytes, config_.clock);
  }
  return launcher_->message();
}

void GpuCarrier::admit(Operation& operation) {
  const auto keep_state = [](Operation& part) { part.on_device->state = std::make_unique<GpuTensor>(); };
  if (operation.on_device != nullptr) keep_state(operation);
  for (const auto& part : operation.parts) keep_state(*part);
  note_capture(operation);
  choose_device(operation);
  record_ready(operation);
}

// Throws Error{kInvalidArgument} when it is another one than before.
void GpuCarrier::choose_device(const Operation& operation) {
  const Operation& first = operation.parts.empty() ? operation : *operation.parts.front();
  const int device = first.on_device->device;
  if (device_ == engine::kHost && launcher_ != nullptr && launcher_->ordinal() != device) {
    throw Error(ErrorKind::kInvalidArgument,
                "'" + operation.descriptor.name + "' lies on GPU " + std::to_string(device) +
                    ", but the other ranks were told that this one uses GPU " + std::to_string(launcher_->ordinal()) +
                    ": it had joined before it used any. Remedy: use a GPU of the process set before join().");
  }
  if (device_ == engine::kHost) device_ = device;
  if (device == device_) return;
  throw Error(ErrorKind::kInvalidArgument,
              "'" + operation.descriptor.name + "' lies on GPU " + std::to_string(device) +
                  ", but this rank has used GPU " + std::to_string(device_) +
                  " in this process set. Remedy: use one GPU a rank, as torch.cuda.set_device(local_rank()) does.");
}

std::string GpuCarrier::refusal(const Descriptor& descriptor) const {
  if (!descriptor.captured) return "";
  std::string why = descriptor.is_group() ? "" : launcher_->refuses_capture(descriptor);
  for (const auto& part : descriptor.parts) {
    if (why.empty()) why = launcher_->refuses_capture(*part);
  }
  return why.empty() ? "" : "'" + descriptor.name + "' cannot be captured into a CUDA graph: " + why;
}

// Of what is captured a bucket is a group, which NCCL launches as one: nothing is packed.
bool GpuCarrier::fuses(const Task& bucket, const Descriptor& descriptor, const Operation* own) const {
  const Descriptor& first = bucket.descriptor();
  if (first.captured != descriptor.captured) return false;
  const auto group_of = [](const Operation& operation) { return operation.whole; };
  if (descriptor.captured && (group_of(*own) == nullptr || group_of(bucket.operation()) != group_of(*own)))
    return false;
  return first.dtype == descriptor.dtype && first.op == descriptor.op && first.prescale == descriptor.prescale &&
         first.postscale == descriptor.postscale;
}

std::unique_ptr<engine::Run> GpuCarrier::start(Task& task) { return std::make_unique<GpuRun>(*launcher_, task); }

}  // namespace ringcore::carriers
