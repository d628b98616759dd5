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

// The first of the GPUs that it needs whose launcher is not there, or has not agreed with the others'.
std::optional<std::size_t> GpuCarrier::unconnected(const Descriptor& descriptor) const {
  const auto connected = [this](const Descriptor& tensor) {
    const std::size_t index = tensor.device_index;
    return index < launchers_.size() && launchers_[index] != nullptr && launchers_[index]->agreed();
  };
  if (!connected(descriptor)) return descriptor.device_index;  // of a group: its first tensor's
  const auto found = std::find_if(descriptor.parts.begin(), descriptor.parts.end(),
                                  [&](const auto& part) { return !connected(*part); });
  return found == descriptor.parts.end() ? std::nullopt : std::optional<std::size_t>((*found)->device_index);
}

std::span<const std::byte> GpuCarrier::message(const Descriptor& descriptor) {
  connecting_ = unconnected(descriptor).value();
  make_launcher(connecting_);
  return launchers_[connecting_]->message();
}

void GpuCarrier::make_launcher(std::size_t index) {
  if (launchers_.size() <= index) launchers_.resize(index + 1);
  if (launchers_[index] != nullptr) return;
  const bool used = index < devices_.size() && devices_[index] != engine::kHost;
  const auto host = static_cast<std::uint64_t>(config_.topology.host_of[static_cast<std::size_t>(config_.self)]);
  launchers_[index] =
      std::make_unique<Launcher>(Launcher::Config{.device = used ? devices_[index] : spare_device(index),
                                                  .self = config_.self,
                                                  .size = config_.topology.ranks(),
                                                  .host = host,
                                                  .deterministic = config_.settings.deterministic,
                                                  .nccl_shares_gpus = nccl_shares_gpus_,
                                                  .packed_bytes = config_.settings.fusion_threshold_bytes},
                                 config_.clock);
}

// What a rank takes that has joined before it used so many GPUs: the next one, and of the first ones that of its place
// among the members on its host. `note_device` notices where it then uses another one.
int GpuCarrier::spare_device(std::size_t index) const {
  const int visible = std::max(1, device::Device::count());  // where each rank sees its own alone, that is number 0
  if (index > 0 && launchers_[index - 1] != nullptr) return (launchers_[index - 1]->ordinal() + 1) % visible;
  const std::vector<int>& host_of = config_.topology.host_of;
  const auto before =
      std::count(host_of.begin(), host_of.begin() + config_.self, host_of[static_cast<std::size_t>(config_.self)]);
  return static_cast<int>(before + static_cast<std::ptrdiff_t>(index)) % visible;
}

std::string GpuCarrier::remark() const {
  std::string way = launchers_[connecting_]->way();
  if (way.empty() || connecting_ == 0) return way;
  return "GPU " + std::to_string(connecting_ + 1) + " of each rank: " + way;
}

void GpuCarrier::admit(Operation& operation) {
  const auto keep_state = [](Operation& part) { part.on_device->state = std::make_unique<GpuTensor>(); };
  if (operation.on_device != nullptr) keep_state(operation);
  for (const auto& part : operation.parts) keep_state(*part);
  note_capture(operation);
  if (operation.on_device != nullptr) note_device(operation);
  for (const auto& part : operation.parts) note_device(*part);
  record_ready(operation);
}

// Throws Error{kInvalidArgument} where the other ranks were told of another GPU.
void GpuCarrier::note_device(const Operation& operation) {
  const std::size_t index = operation.descriptor.device_index;
  const int device = operation.on_device->device;
  if (index < launchers_.size() && launchers_[index] != nullptr && launchers_[index]->ordinal() != device) {
    throw Error(ErrorKind::kInvalidArgument,
                "'" + operation.descriptor.name + "' lies on GPU " + std::to_string(device) +
                    ", but the other ranks were told that this one uses GPU " +
                    std::to_string(launchers_[index]->ordinal()) +
                    ": it had joined before it used any. Remedy: use a GPU of the process set before join().");
  }
  if (devices_.size() <= index) devices_.resize(index + 1, engine::kHost);
  devices_[index] = device;
}

std::string GpuCarrier::refusal(const Descriptor& descriptor) const {
  if (!descriptor.captured) return "";
  std::string why = descriptor.is_group() ? "" : launcher_of(descriptor).refuses_capture(descriptor);
  for (const auto& part : descriptor.parts) {
    if (why.empty()) why = launcher_of(*part).refuses_capture(*part);
  }
  return why.empty() ? "" : "'" + descriptor.name + "' cannot be captured into a CUDA graph: " + why;
}

// Of what is captured a bucket is a group, which NCCL launches as one: nothing is packed.
bool GpuCarrier::fuses(const Task& bucket, const Descriptor& descriptor, const Operation* own) const {
  const Descriptor& first = bucket.descriptor();
  if (first.captured != descriptor.captured || first.device_index != descriptor.device_index) return false;
  const auto group_of = [](const Operation& operation) { return operation.whole; };
  if (descriptor.captured && (group_of(*own) == nullptr || group_of(bucket.operation()) != group_of(*own)))
    return false;
  return first.dtype == descriptor.dtype && first.op == descriptor.op && first.prescale == descriptor.prescale &&
         first.postscale == descriptor.postscale;
}

// A compression is a permission, and nothing here makes use of it: who asks for it on GPUs alone should know.
void GpuCarrier::note_compression(const Task& task) {
  if (told_of_compression_) return;
  for (const auto& operation : task.operations) {
    const Compression compression = operation->descriptor.compression;
    if (compression == Compression::kNone) continue;
    told_of_compression_ = true;
    finding_ = "'" + operation->descriptor.name + "': compression " + std::string(name_of(compression)) +
               " does nothing for tensors of GPUs: they are reduced as they are. Remedy: use fp16 or bf16 there, or "
               "leave it out.";
    return;
  }
}

std::unique_ptr<engine::Run> GpuCarrier::start(Task& task) {
  note_compression(task);
  return std::make_unique<GpuRun>(launcher_of(task.descriptor()), task);
}

void GpuCarrier::progress() {
  for (const auto& launcher : launchers_) {
    if (launcher != nullptr) launcher->forget_ended();
  }
}

bool GpuCarrier::drained() const {
  return std::all_of(launchers_.begin(), launchers_.end(),
                     [](const auto& launcher) { return launcher == nullptr || launcher->drained(); });
}

void GpuCarrier::watch(Nanoseconds now, Nanoseconds limit) {
  for (const auto& launcher : launchers_) {
    if (launcher != nullptr) launcher->watch(now, limit);
  }
}

void GpuCarrier::abort() {
  for (const auto& launcher : launchers_) {
    if (launcher != nullptr) launcher->abort();
  }
}

}  // namespace ringcore::carriers
