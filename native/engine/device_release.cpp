// Released operations on GPUs: the greeting before the first one, and who waits behind whom.
//
// All ranks take the same decisions in the same order. What depends on a rank's own GPU (has the greeting ended, has a
// tensor arrived in the host) must therefore not change the order: until it is known, everything that is released in
// this process set waits in `deferred_`.
#include <algorithm>

#include "device/device.hpp"
#include "engine/device_queue.hpp"
#include "engine/execution.hpp"

namespace ringcore::engine {

void Execution::use_device(const Operation& operation) {
  const Operation& first = operation.parts.empty() ? operation : *operation.parts.front();
  const int device = first.on_device->device;
  if (used_device_ == kHost && device_ != nullptr && device_->ordinal() != device) {
    throw Error(ErrorKind::kInvalidArgument,
                "'" + operation.descriptor.name + "' lies on GPU " + std::to_string(device) +
                    ", but the other ranks were told that this one uses GPU " + std::to_string(device_->ordinal()) +
                    ": it had joined before it used any. Remedy: use a GPU of the process set before join().");
  }
  if (used_device_ == kHost) used_device_ = device;
  if (device == used_device_) return;
  throw Error(ErrorKind::kInvalidArgument,
              "'" + operation.descriptor.name + "' lies on GPU " + std::to_string(device) +
                  ", but this rank has used GPU " + std::to_string(used_device_) +
                  " in this process set. Remedy: use one GPU a rank, as torch.cuda.set_device(local_rank()) does.");
}

void Execution::defer(Release release, std::shared_ptr<Operation> own) {
  if (release.descriptor->on_device && device_ == nullptr) use_gpus();
  deferred_.push_back({std::move(release), std::move(own)});
}

void Execution::use_gpus() {
  // A rank that has joined before it used a GPU: its place among the members on its host. `use_device` corrects it.
  const int host = topology_.host_of[self_];
  const auto before = std::count(topology_.host_of.begin(), topology_.host_of.begin() + self_, host);
  const int visible = std::max(1, device::Device::count());  // where each rank sees its own alone, that is number 0
  const int device = used_device_ != kHost ? used_device_ : static_cast<int>(before) % visible;
  device_ = std::make_unique<DeviceQueue>(device, self_, size(), static_cast<std::uint64_t>(host),
                                          settings_.deterministic, settings_.fusion_threshold_bytes, clock_);
  greet(device_->message());
}

// An allgather of our own, which is the next operation on every member: until they have agreed, all others wait.
void Execution::greet(std::span<const std::byte> message) {
  greeting_ = std::make_shared<Operation>();
  greeting_->descriptor.name = "GPUs of process set " + std::to_string(id_);
  greeting_->descriptor.collective = Collective::kAllgather;
  greeting_->descriptor.dtype = DType::kUInt8;
  greeting_->descriptor.shape = Shape{.dims = 2, .extent = {1, message.size()}};
  greeting_->input = message.data();
  Release release;
  release.contributions.resize(size());
  for (Contribution& contribution : release.contributions) {
    contribution.present = true;
    contribution.rows = 1;
  }
  release_one({greeting_, &greeting_->descriptor}, greeting_, release);
}

bool Execution::agree_on_gpus() {
  while (!device_->agreed()) {
    if (greeting_ == nullptr) {
      const std::span<const std::byte> message = device_->message();
      if (message.empty()) return false;
      greet(message);
    }
    if (!greeting_->done()) return false;
    device_->hear({greeting_->result.data(), greeting_->result.size()});
    greeting_ = nullptr;
    if (device_->agreed()) warning_ = device_->way();
  }
  return true;
}

bool Execution::progress_device() {
  if (device_ == nullptr) return false;
  const bool released = release_deferred();
  std::vector<std::shared_ptr<Operation>> launched;
  const bool moved = device_->progress(launched);
  for (auto& operation : launched) complete(std::move(operation));
  return moved || released;
}

bool Execution::release_deferred() {
  if (!agree_on_gpus()) return false;
  bool moved = false;
  std::deque<Deferred> waiting = std::exchange(deferred_, {});
  while (!waiting.empty()) {
    Deferred& next = waiting.front();
    if (!next.release) {
      flush();
    } else {
      if (next.own != nullptr && !fetched(*next.release->descriptor, *next.own)) break;
      release_now(std::move(*next.release), std::move(next.own));
    }
    waiting.pop_front();
    moved = true;
  }
  deferred_ = std::move(waiting);
  return moved;
}

// Whether the tensors that NCCL does not take have come to the host.
bool Execution::fetched(const Descriptor& descriptor, Operation& own) {
  if (!descriptor.on_device || descriptor.captured) return true;
  if (!descriptor.is_group()) return device_->takes(descriptor) || device_->fetch(own);
  bool all = true;
  for (std::size_t i = 0; i < descriptor.parts.size(); ++i) {
    all = (device_->takes(*descriptor.parts[i]) || device_->fetch(*own.parts[i])) && all;
  }
  return all;
}

// Fails the operation, here as on every other rank, where it cannot become part of a graph.
bool Execution::refuse_capture(const Descriptor& descriptor, Operation& own) {
  std::string why = descriptor.is_group() ? "" : device_->refuses_capture(descriptor);
  for (const auto& part : descriptor.parts) {
    if (why.empty()) why = device_->refuses_capture(*part);
  }
  if (why.empty()) return false;
  own.error = std::make_shared<const Error>(ErrorKind::kInvalidArgument,
                                            "'" + descriptor.name + "' cannot be captured into a CUDA graph: " + why);
  return true;
}

// Into a bucket, or alone. Of what is captured a bucket is a group, which NCCL launches as one: nothing is packed.
void Execution::launch(const std::shared_ptr<const Descriptor>& described, std::shared_ptr<Operation> own,
                       Release& release) {
  const Descriptor& descriptor = *described;
  const std::size_t bytes = descriptor.shape.elements() * size_of(descriptor.dtype);
  const auto add = [&](DeviceTask& task) {
    task.descriptors.push_back(described);
    if (own != nullptr) task.operations.push_back(std::move(own));
  };
  const bool bucket = descriptor.collective == Collective::kAllreduce && release.priority <= 0 &&
                      bytes <= settings_.fusion_threshold_bytes;
  const std::vector<int> absent = release.absent();
  if (bucket) {
    for (auto open = device_buckets_.begin(); open != device_buckets_.end(); ++open) {
      const Descriptor& first = open->task->descriptor();
      if (first.captured != descriptor.captured || (descriptor.captured && !open->task->belongs_with(*own))) continue;
      if (first.dtype != descriptor.dtype || first.op != descriptor.op || first.prescale != descriptor.prescale ||
          first.postscale != descriptor.postscale || open->absent != absent) {
        continue;
      }
      if (open->bytes + bytes > settings_.fusion_threshold_bytes) {
        device_->push(std::move(open->task));
        device_buckets_.erase(open);
        break;
      }
      open->bytes += bytes;
      return add(*open->task);
    }
  }
  auto task = std::make_unique<DeviceTask>();
  add(*task);
  task->contributions = std::move(release.contributions);
  if (!bucket) return device_->push(std::move(task));
  device_buckets_.push_back({std::move(task), absent, bytes});
}

void Execution::launch_buckets() {
  for (DeviceBucket& bucket : device_buckets_) device_->push(std::move(bucket.task));
  device_buckets_.clear();
}

void Execution::tend(Nanoseconds now, Nanoseconds limit) {
  if (device_ != nullptr) device_->tend(now, limit);
}

}  // namespace ringcore::engine
