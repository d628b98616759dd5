#include "engine/device_queue.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "device/libraries.hpp"

namespace ringcore::engine {
namespace {

// NCCL from this version on lets several ranks use one GPU, where NCCL_MULTI_RANK_GPU_ENABLE says so.
constexpr int kNcclSharesGpus = 23000;

bool gpus_may_be_shared(int nccl_version) {
  const char* allowed = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return nccl_version >= kNcclSharesGpus && allowed != nullptr && std::strcmp(allowed, "1") == 0;
}

// Whether NCCL takes them for ranks on one GPU: it compares places on the bus, and UUIDs since GPUs can be shared.
bool same_for_nccl(const DeviceQueue::Hello& a, const DeviceQueue::Hello& b) {
  if (a.host != b.host) return false;
  return a.nccl_version < kNcclSharesGpus ? std::memcmp(a.address, b.address, sizeof(a.address)) == 0
                                          : std::memcmp(a.uuid, b.uuid, sizeof(a.uuid)) == 0;
}

}  // namespace

DeviceQueue::DeviceQueue(int device, int self, int size, std::uint64_t host, bool deterministic, const Clock& clock)
    : ordinal_(device), self_(self), size_(size), deterministic_(deterministic), clock_(clock) {
  hello_.host = host;
  // Whatever is missing here, the others must learn of it.
  try {
    device_ = &device::Device::of(device);
  } catch (const Error& error) {
    problem_ = error.what();
    return;
  }
  stream_ = std::make_shared<const device::Stream>(*device_);
  try {
    std::memcpy(hello_.uuid, device_->uuid().data(), sizeof(hello_.uuid));
    std::memcpy(hello_.address, device_->address().data(), sizeof(hello_.address));
    hello_.has_kernels = device_->kernels() != nullptr ? 1 : 0;
    int version = 0;
    device::nccl_api().ncclGetVersion(&version);
    if (self == 0) {
      const device::Device::Current current(*device_);
      hello_.id = device::Communicator::make_id();
    }
    hello_.nccl_version = version;
    hello_.shares_gpus = gpus_may_be_shared(version) ? 1 : 0;
    hello_.registers = device::Communicator::registering();
  } catch (const Error& error) {
    problem_ = error.what();
  }
}

DeviceQueue::~DeviceQueue() {
  // Frees memory in an order that the stream of it allows; without a GPU there is nothing to free.
  let_go_of_all();
  if (!flights_.empty()) abort();
  flights_.clear();
  communicator_.reset();
}

std::string DeviceQueue::agree(std::span<const Hello> hellos) {
  agreed_ = true;
  id_ = hellos.front().id;
  kernels_ = std::all_of(hellos.begin(), hellos.end(), [](const Hello& hello) { return hello.has_kernels != 0; });
  // One member needs no such memory.
  registering_ = size_ == 1 ? device::Registering::kNone : hellos.front().registers;
  for (const Hello& hello : hellos) registering_ = std::min(registering_, hello.registers);
  std::string why;
  for (std::size_t m = 0; m < hellos.size() && why.empty(); ++m) {
    const std::string member = "member " + std::to_string(m);
    if (hellos[m].nccl_version == 0) why = member + " cannot use NCCL" + (problem_.empty() ? "" : ": " + problem_);
    for (std::size_t other = 0; other < m && why.empty(); ++other) {
      const bool same = same_for_nccl(hellos[other], hellos[m]);
      if (same) registering_ = device::Registering::kNone;  // NCCL does not say what it makes of windows there
      if (same && !(hellos[m].shares_gpus && hellos[other].shares_gpus)) {
        why = member + " and member " + std::to_string(other) + " share a GPU";
      }
    }
    if (why.empty() && hellos[m].nccl_version != hellos.front().nccl_version) {
      why = "member 0 has NCCL " + device::nccl_version_text(hellos.front().nccl_version) + " and " + member +
            " NCCL " + device::nccl_version_text(hellos[m].nccl_version) + ", which do not understand each other";
    }
  }
  by_nccl_ = why.empty();
  why_by_host_ = why;
  if (!by_nccl_) {
    return why +
           "; tensors of GPUs are copied to the host and reduced there. Remedy: give each rank a GPU of its own and "
           "the "
           "same NCCL; `ringcore doctor` shows the libraries.";
  }
  if (kernels_) return "";
  const auto bare = std::find_if(hellos.begin(), hellos.end(), [](const Hello& hello) { return !hello.has_kernels; });
  const auto member = static_cast<int>(bare - hellos.begin());
  const std::string why_not = member == self_ ? " (" + device_->kernels_problem() + ")" : "";
  return "member " + std::to_string(member) + " has no kernels" + why_not +
         "; averages and what is scaled are copied to the host and reduced there. Remedy: install the NVRTC of the "
         "CUDA version that the GPUs' driver has (`ringcore doctor` shows what is found).";
}

bool DeviceQueue::takes(const Descriptor& descriptor) const {
  if (!by_nccl_) return false;
  const bool reduces =
      descriptor.collective == Collective::kAllreduce || descriptor.collective == Collective::kReduceScatter;
  if (!reduces) return true;
  if (deterministic_ && is_float(descriptor.dtype)) return false;  // NCCL's order of additions is its own
  const bool scales = descriptor.prescale != 1.0 || final_scale(descriptor, size_) != 1.0;
  if (scales && (!kernels_ || !is_float(descriptor.dtype))) return false;
  return device::nccl_dtype(descriptor.dtype).has_value();
}

std::string DeviceQueue::refuses_capture(const Descriptor& descriptor) const {
  if (!by_nccl_) {
    return why_by_host_ +
           ", and the copies to the host that this needs are no part of a graph. Remedy: give each rank a GPU of its "
           "own and NCCL (`ringcore doctor` shows it), or capture without this collective.";
  }
  if (!takes(descriptor)) {
    return "'" + descriptor.name + "' (" + descriptor.to_string() +
           ") is nothing that NCCL does: it would be copied to the host. Remedy: convert it to a float dtype, install "
           "NVRTC where it is scaled, and leave RINGCORE_DETERMINISTIC unset; or capture without it.";
  }
  if (!used_) {
    return "it is the first of its process set, and the ranks' GPUs are not connected yet. Remedy: run one step "
           "without "
           "capturing first.";
  }
  return "";
}

bool DeviceQueue::progress(std::vector<std::shared_ptr<Operation>>& done) {
  land();
  bool moved = false;
  while (!queue_.empty()) {
    if (!communicator_) {
      communicator_.emplace(*device_, id_, self_, size_);
      moved = true;
    }
    if (!communicator_->ready()) return moved;
    DeviceTask& task = *queue_.front();
    const device::Device::Current current(*device_);
    if (!task.begun && task.fuses() && !has_room(task)) return true;
    if (!std::exchange(task.begun, true)) begin(task);
    if (!communicator_->ready()) return true;
    end(task);
    done.insert(done.end(), task.operations.begin(), task.operations.end());
    queue_.pop_front();
    moved = true;
  }
  return moved;
}

void DeviceQueue::begin(DeviceTask& task) {
  const Nanoseconds now = clock_.now();
  for (const auto& operation : task.operations) operation->started_at = now;
  if (task.descriptor().captured) return begin_captured(task);
  wait_for_inputs(task);
  switch (task.descriptor().collective) {
    case Collective::kAllreduce: return task.descriptors.size() == 1 ? begin_allreduce(task) : begin_fused(task);
    case Collective::kAllgather: return begin_allgather(task);
    case Collective::kBroadcast: return begin_broadcast(task);
    case Collective::kReduceScatter: return begin_reducescatter(task);
    case Collective::kAlltoall: return begin_alltoall(task);
    case Collective::kBarrier: break;  // has no tensor
  }
}

void DeviceQueue::launched(std::string name, std::vector<std::shared_ptr<Operation>> operations) {
  const auto event = std::make_shared<device::Event>(*device_, stream_->get());
  for (const auto& operation : operations) operation->on_device->completion = event;
  flights_.push_back({event, std::move(name), clock_.now(), std::move(operations)});
}

// Forgets what has ended on the GPU.
void DeviceQueue::land() {
  if (flights_.empty() && outgrown_.empty()) return;
  const device::Device::Current current(*device_);
  while (!flights_.empty() && flights_.front().event->reached()) flights_.pop_front();
  // Not sooner: where NCCL frees with CUDA's plain call, that waits for all that runs on the GPU.
  if (!outgrown_.empty() && flights_.empty() && queue_.empty() && communicator_->ready()) let_go_of_outgrown();
}

void DeviceQueue::let_go_of_outgrown() {
  for (const auto& memory : outgrown_) communicator_->deregister_memory(*memory);
  outgrown_.clear();
}

// Before the communicator ends. What the GPU still uses is forgotten with it, and freed behind that.
void DeviceQueue::let_go_of_all() {
  try {
    land();
    if (fusion_ == nullptr || !flights_.empty() || !queue_.empty() || !communicator_->ready()) return;
    const device::Device::Current current(*device_);
    outgrown_.push_back(std::move(fusion_));
    let_go_of_outgrown();
  } catch (const Error&) {  // it was aborted, or the GPU has failed
  }
}

void DeviceQueue::tend(Nanoseconds now, Nanoseconds limit) {
  if (communicator_) communicator_->ready();
  land();
  if (flights_.empty() || now - flights_.front().launched_at < limit) return;
  throw Error(ErrorKind::kTimeout,
              "'" + flights_.front().name + "' was launched on GPU " + std::to_string(device_->ordinal()) + " " +
                  std::to_string((now - flights_.front().launched_at) / kSecond) +
                  " s ago and has not ended. Remedy: look whether a rank's GPU or its link has failed; raise "
                  "RINGCORE_TIMEOUT_S where the work before it takes so long.");
}

void DeviceQueue::abort() {
  let_go_of_all();
  queue_.clear();
  if (communicator_) communicator_->abort();
}

bool DeviceQueue::fetch(Operation& operation) {
  OnDevice& tensor = *operation.on_device;
  const device::Device::Current current(*device_);
  if (tensor.fetched == nullptr) {
    const std::size_t bytes = operation.bytes();
    tensor.staging = device::HostMemory(*device_, bytes);
    tensor.ready->hold_back(stream_->get());
    if (bytes > 0) {
      device::check_cuda(device::driver().cuMemcpyDtoHAsync_v2(tensor.staging.data(), device::pointer(tensor.input),
                                                               bytes, stream_->get()),
                         "cuMemcpyDtoHAsync");
    }
    tensor.fetched = std::make_shared<device::Event>(*device_, stream_->get());
    tensor.staging.used_until(tensor.fetched);
    operation.input = tensor.staging.data();
    operation.output = tensor.output == nullptr ? nullptr : tensor.staging.data();
  }
  return tensor.fetched->reached();
}

void DeviceQueue::give_back(const std::shared_ptr<Operation>& operation) {
  OnDevice& tensor = *operation->on_device;
  const device::Device::Current current(*device_);
  const bool has_result = tensor.output == nullptr;
  const std::size_t bytes = has_result ? operation->result.size() : operation->bytes();
  if (has_result) {
    // From memory that is not pinned CUDA copies only when all is done that the stream was given before.
    tensor.result = device::Memory(bytes, stream_);
    tensor.staging = device::HostMemory(*device_, bytes);
    if (bytes > 0) std::memcpy(tensor.staging.data(), operation->result.data(), bytes);
  }
  if (bytes > 0) {
    device::check_cuda(
        device::driver().cuMemcpyHtoDAsync_v2(device::pointer(has_result ? tensor.result.data() : tensor.output),
                                              tensor.staging.data(), bytes, stream_->get()),
        "cuMemcpyHtoDAsync");
  }
  launched(operation->descriptor.name, {operation});
  tensor.staging.used_until(tensor.completion);
}

std::string DeviceQueue::describe() const {
  if (queue_.empty()) return "";
  const Descriptor& descriptor = queue_.front()->descriptor();
  return std::string(name_of(descriptor.collective)) + " '" + descriptor.name + "' waits for NCCL to " +
         (fusion_ == nullptr ? "connect" : "connect, or to register the memory that it is packed into");
}

}  // namespace ringcore::engine
