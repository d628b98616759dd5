#include "carriers/gpu/launcher.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "carriers/gpu/shared.hpp"
#include "carriers/gpu/tensor.hpp"
#include "device/libraries.hpp"

namespace ringcore::carriers {

Launcher::Launcher(const Config& config, const Clock& clock)
    : ordinal_(config.device),
      self_(config.self),
      size_(config.size),
      deterministic_(config.deterministic),
      clock_(clock),
      packed_bytes_(config.packed_bytes) {
  facts_.host = config.host;
  // Whatever is missing here, the others must learn of it.
  try {
    device_ = &device::Device::of(config.device);
  } catch (const Error& error) {
    problem_ = error.what();
    return;
  }
  stream_ = std::make_shared<const device::Stream>(*device_);
  try {
    std::memcpy(facts_.uuid, device_->uuid().data(), sizeof(facts_.uuid));
    std::memcpy(facts_.address, device_->address().data(), sizeof(facts_.address));
    facts_.has_kernels = device_->kernels() != nullptr ? 1 : 0;
    int version = 0;
    device::nccl_api().ncclGetVersion(&version);
    if (self_ == 0) {
      const device::Device::Current current(*device_);
      facts_.id = device::Communicator::make_id();
    }
    facts_.nccl_version = version;
    facts_.shares_gpus = config.nccl_shares_gpus && version >= kNcclSharesGpus ? 1 : 0;
    facts_.registers = device::Communicator::registering();
  } catch (const Error& error) {
    problem_ = error.what();
  }
}

Launcher::~Launcher() {
  // Frees memory in an order that the stream of it allows; without a GPU there is nothing to free.
  release_all();
  launched_.clear();
  communicator_.reset();
  shared_.reset();
}

// True when NCCL's communicator is ready, or none is needed.
bool Launcher::connect() {
  if (!communicator_) {
    if (shared_ == nullptr) {
      communicator_.emplace(*device_, id_, self_, size_);
    } else if (shared_->links_gpus()) {
      communicator_.emplace(*device_, id_, shared_->gpu(), shared_->gpu_count());
    }
  }
  return !communicator_ || communicator_->ready();
}

bool Launcher::progress(Launch& launch) {
  if (!connect()) return false;
  const device::Device::Current current(*device_);
  const bool fuses = launch.task.descriptors.size() > 1 && !launch.task.descriptor().captured;
  if (by_nccl_ && !launch.begun && fuses && !has_room(launch.task)) return true;
  if (!std::exchange(launch.begun, true)) begin(launch);
  if (!connect()) return true;
  if (shared_ != nullptr) {
    while (shared_->step(communicator_ ? &*communicator_ : nullptr)) {
      if (!connect()) return true;
    }
  }
  end(launch);
  launch.ended = true;
  --expected_;
  return true;
}

void Launcher::begin(Launch& launch) {
  const Task& task = launch.task;
  if (task.descriptor().captured) return begin_captured(task);
  wait_for_inputs(task);
  if (shared_ != nullptr) return shared_->begin(task, final_scale(task.descriptor(), size_));
  switch (task.descriptor().collective) {
    case Collective::kAllreduce: return task.descriptors.size() == 1 ? begin_allreduce(launch) : begin_fused(launch);
    case Collective::kAllgather: return begin_allgather(task);
    case Collective::kBroadcast: return begin_broadcast(task);
    case Collective::kReduceScatter: return begin_reducescatter(launch);
    case Collective::kReduce: return begin_reduce(launch);
    case Collective::kGather: return begin_gather(task);
    case Collective::kScatter: return begin_scatter(task);
    case Collective::kAlltoall: return begin_alltoall(task);
    case Collective::kBarrier: break;  // has no tensor
  }
}

void Launcher::note_launched(std::string name, std::vector<std::shared_ptr<Operation>> operations) {
  const auto event = std::make_shared<device::Event>(*device_, stream_->get());
  for (const auto& operation : operations) gpu_tensor(*operation)->completion = event;
  launched_.push_back({event, std::move(name), clock_.now(), std::move(operations)});
}

void Launcher::forget_ended() {
  if (launched_.empty() && outgrown_.empty()) return;
  const device::Device::Current current(*device_);
  while (!launched_.empty() && launched_.front().event->reached()) launched_.pop_front();
  // Not sooner: where NCCL frees with CUDA's plain call, that waits for all that runs on the GPU.
  if (!outgrown_.empty() && launched_.empty() && expected_ == 0 && communicator_->ready()) release_outgrown();
}

void Launcher::release_outgrown() {
  for (const auto& memory : outgrown_) communicator_->deregister_memory(*memory);
  outgrown_.clear();
}

// Before the communicator ends. What the GPU still uses is forgotten with it, and freed behind that.
void Launcher::release_all() {
  try {
    forget_ended();
    if (fusion_ == nullptr || !launched_.empty() || expected_ != 0 || !communicator_->ready()) return;
    const device::Device::Current current(*device_);
    outgrown_.push_back(std::move(fusion_));
    release_outgrown();
  } catch (const Error& error) {
    problem_ = error.what();  // it was aborted, or the GPU has failed: nothing is left to deregister
  }
}

void Launcher::watch(Nanoseconds now, Nanoseconds limit) {
  if (communicator_) communicator_->ready();
  forget_ended();
  if (launched_.empty() || now - launched_.front().launched_at < limit) return;
  throw Error(ErrorKind::kTimeout,
              "'" + launched_.front().name + "' was launched on GPU " + std::to_string(device_->ordinal()) + " " +
                  in_seconds(now - launched_.front().launched_at) +
                  " ago and has not ended. Remedy: look whether a rank's GPU or its link has failed; raise "
                  "RINGCORE_TIMEOUT_S where the work before it takes so long.");
}

void Launcher::abort() {
  release_all();
  if (communicator_) communicator_->abort();
  if (shared_ != nullptr) shared_->abort();
}

bool Launcher::fetch(Operation& operation) {
  const OnDevice& place = *operation.on_device;
  GpuTensor& tensor = *gpu_tensor(operation);
  const device::Device::Current current(*device_);
  if (tensor.fetched == nullptr) {
    const std::size_t bytes = operation.bytes();
    tensor.staging = device::PinnedMemory(*device_, bytes);
    tensor.ready->hold_back(stream_->get());
    if (bytes > 0) {
      device::check_cuda(device::driver().cuMemcpyDtoHAsync_v2(tensor.staging.data(), device::pointer(place.input),
                                                               bytes, stream_->get()),
                         "cuMemcpyDtoHAsync");
    }
    tensor.fetched = std::make_shared<device::Event>(*device_, stream_->get());
    tensor.staging.used_until(tensor.fetched);
    operation.input = tensor.staging.data();
    operation.output = place.output == nullptr ? nullptr : tensor.staging.data();
  }
  return tensor.fetched->reached();
}

void Launcher::give_back(const std::shared_ptr<Operation>& operation) {
  const OnDevice& place = *operation->on_device;
  GpuTensor& tensor = *gpu_tensor(*operation);
  const device::Device::Current current(*device_);
  const bool has_result = place.output == nullptr;
  const std::size_t bytes = has_result ? operation->result.size() : operation->bytes();
  if (has_result) {
    // From memory that is not pinned CUDA copies only when all is done that the stream was given before.
    tensor.result = device::Memory(bytes, stream_);
    tensor.staging = device::PinnedMemory(*device_, bytes);
    if (bytes > 0) std::memcpy(tensor.staging.data(), operation->result.data(), bytes);
  }
  if (bytes > 0) {
    device::check_cuda(
        device::driver().cuMemcpyHtoDAsync_v2(device::pointer(has_result ? tensor.result.data() : place.output),
                                              tensor.staging.data(), bytes, stream_->get()),
        "cuMemcpyHtoDAsync");
  }
  note_launched(operation->descriptor.name, {operation});
  tensor.staging.used_until(tensor.completion);
}

std::string Launcher::waiting_for() const {
  return std::string("NCCL to connect") +
         (fusion_ == nullptr ? "" : ", or to register the memory that it is packed into");
}

}  // namespace ringcore::carriers
