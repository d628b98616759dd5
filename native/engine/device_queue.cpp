#include "engine/device_queue.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/error.hpp"
#include "base/reduce.hpp"
#include "device/kernels.hpp"
#include "device/libraries.hpp"

namespace ringcore::engine {
namespace {

namespace cuda = device::cuda;

// Tensors of a fused buffer begin at multiples of this: the kernels move 16 bytes at once.
constexpr std::size_t kPackAlignment = 16;

// NCCL from this version on lets several ranks use one GPU, where NCCL_MULTI_RANK_GPU_ENABLE says so.
constexpr int kNcclSharesGpus = 23000;

bool gpus_may_be_shared(int nccl_version) {
  const char* allowed = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return nccl_version >= kNcclSharesGpus && allowed != nullptr && std::strcmp(allowed, "1") == 0;
}

cuda::Stream stream_of(std::uintptr_t handle) { return std::bit_cast<cuda::Stream>(handle); }

std::size_t padded(std::size_t bytes) { return (bytes + kPackAlignment - 1) / kPackAlignment * kPackAlignment; }

std::size_t bytes_of(const Descriptor& descriptor) { return descriptor.shape.elements() * size_of(descriptor.dtype); }

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
    hello_.has_kernels = device_->kernels() != nullptr ? 1 : 0;
    int version = 0;
    device::nccl_api().ncclGetVersion(&version);
    if (self == 0) {
      const device::Device::Current current(*device_);
      hello_.id = device::Communicator::make_id();
    }
    hello_.nccl_version = version;
    hello_.shares_gpus = gpus_may_be_shared(version) ? 1 : 0;
  } catch (const Error& error) {
    problem_ = error.what();
  }
}

DeviceQueue::~DeviceQueue() {
  // Frees memory in an order that the stream of it allows; without a GPU there is nothing to free.
  flights_.clear();
  communicator_.reset();
}

std::string DeviceQueue::agree(std::span<const Hello> hellos) {
  agreed_ = true;
  id_ = hellos.front().id;
  kernels_ = std::all_of(hellos.begin(), hellos.end(), [](const Hello& hello) { return hello.has_kernels != 0; });
  std::string why;
  for (std::size_t m = 0; m < hellos.size() && why.empty(); ++m) {
    const std::string member = "member " + std::to_string(m);
    if (hellos[m].nccl_version == 0) why = member + " cannot use NCCL" + (problem_.empty() ? "" : ": " + problem_);
    for (std::size_t other = 0; other < m && why.empty(); ++other) {
      const bool same = hellos[other].host == hellos[m].host &&
                        std::memcmp(hellos[other].uuid, hellos[m].uuid, sizeof(hellos[m].uuid)) == 0;
      if (same && !(hellos[m].shares_gpus && hellos[other].shares_gpus)) {
        why = member + " and member " + std::to_string(other) + " share a GPU";
      }
    }
  }
  by_nccl_ = why.empty();
  why_by_host_ = why;
  return by_nccl_ ? ""
                  : why +
                        "; tensors of GPUs are copied to the host and reduced there. Remedy: give each rank a GPU of "
                        "its own, and see `ringcore doctor` for the libraries.";
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

// All in the stream that is captured, in the operations' own memory.
void DeviceQueue::begin_captured(DeviceTask& task) {
  const Descriptor& descriptor = task.descriptor();
  const cuda::Stream stream = stream_of(task.operations.front()->on_device->stream);
  if (!device::Stream::captures(stream)) {
    throw Error(ErrorKind::kResource, "the capture of a CUDA graph ended or failed before '" + descriptor.name +
                                          "' was part of it, and it may be part of the other ranks' graphs. Remedy: "
                                          "capture again, after shutdown() and init().");
  }
  communicator_->note_capture();
  if (descriptor.collective == Collective::kBroadcast) {
    const OnDevice& tensor = *task.operations.front()->on_device;
    return communicator_->broadcast(tensor.input, tensor.output, bytes_of(descriptor), device::nccl::kUint8,
                                    descriptor.root, stream);
  }
  if (descriptor.prescale != 1.0) scale_captured(task, true, descriptor.prescale);
  const int dtype = *device::nccl_dtype(descriptor.dtype);
  const int op = device::nccl_op(descriptor.dtype, descriptor.op);
  device::Communicator::Group group(*communicator_);
  for (const auto& operation : task.operations) {
    const OnDevice& tensor = *operation->on_device;
    const std::byte* from = descriptor.prescale != 1.0 ? tensor.output : tensor.input;
    communicator_->all_reduce(from, tensor.output, operation->count(), dtype, op, stream);
  }
  group.end();
}

void DeviceQueue::scale_captured(const DeviceTask& task, bool inputs, double factor) const {
  std::vector<device::Segment> segments;
  segments.reserve(task.operations.size());
  for (const auto& operation : task.operations) {
    const OnDevice& tensor = *operation->on_device;
    segments.push_back(
        {device::pointer(inputs ? tensor.input : tensor.output), device::pointer(tensor.output), operation->count()});
  }
  device::copy_segments(*device_, stream_of(task.operations.front()->on_device->stream), task.descriptor().dtype,
                        segments, factor);
}

void DeviceQueue::wait_for_inputs(const DeviceTask& task) const {
  const device::Event* last = nullptr;
  for (const auto& operation : task.operations) {
    const device::Event* ready = operation->on_device->ready.get();
    if (ready != last) ready->hold_back(stream_->get());
    last = ready;
  }
}

void DeviceQueue::copy(const Descriptor& descriptor, const std::byte* from, std::byte* to, std::uint64_t elements,
                       double factor) const {
  if (elements == 0 || (from == to && factor == 1.0)) return;
  const device::Segment segment{device::pointer(from), device::pointer(to), elements};
  device::copy_segments(*device_, stream_->get(), descriptor.dtype, {&segment, 1}, factor);
}

// What a rank that has joined contributes.
device::Memory DeviceQueue::identity(const Descriptor& descriptor) const {
  // The largest element, or several of a smaller one, as two words that the GPU writes again and again.
  std::array<std::uint32_t, 2> words{};
  fill_identity(descriptor.dtype, summing(descriptor.op), reinterpret_cast<std::byte*>(words.data()),
                sizeof(words) / size_of(descriptor.dtype));
  const std::size_t rows = (bytes_of(descriptor) + sizeof(words) - 1) / sizeof(words);
  device::Memory memory(rows * sizeof(words), stream_);
  for (std::size_t i = 0; i < words.size() && rows > 0; ++i) {
    device::check_cuda(device::driver().cuMemsetD2D32Async(device::pointer(memory.data()) + i * sizeof(words[i]),
                                                           sizeof(words), words[i], 1, rows, stream_->get()),
                       "cuMemsetD2D32Async");
  }
  return memory;
}

void DeviceQueue::begin_allreduce(DeviceTask& task) {
  const Descriptor& descriptor = task.descriptor();
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  if (task.operations.empty()) {
    task.work = identity(descriptor);
    from = to = task.work.data();
  } else {
    from = task.operations.front()->on_device->input;
    to = task.operations.front()->on_device->output;
    if (descriptor.prescale != 1.0) {
      copy(descriptor, from, to, descriptor.shape.elements(), descriptor.prescale);
      from = to;
    }
  }
  communicator_->all_reduce(from, to, descriptor.shape.elements(), *device::nccl_dtype(descriptor.dtype),
                            device::nccl_op(descriptor.dtype, descriptor.op), stream_->get());
}

// Packs the tensors of a bucket, and reduces them as one.
void DeviceQueue::begin_fused(DeviceTask& task) {
  const Descriptor& first = task.descriptor();
  std::size_t bytes = 0;
  for (const auto& descriptor : task.descriptors) bytes += padded(bytes_of(*descriptor));
  if (fusion_.size() < bytes) fusion_ = device::Memory(bytes, stream_);
  if (task.operations.empty()) {
    Descriptor whole = first;
    whole.shape = Shape{.dims = 1, .extent = {bytes / size_of(first.dtype)}};
    task.work = identity(whole);
    copy(whole, task.work.data(), fusion_.data(), whole.shape.elements(), 1.0);
  } else {
    pack(task, true, first.prescale);
  }
  communicator_->all_reduce(fusion_.data(), fusion_.data(), bytes / size_of(first.dtype),
                            *device::nccl_dtype(first.dtype), device::nccl_op(first.dtype, first.op), stream_->get());
}

// Between the tensors of a bucket and the fused buffer; `in`: into it.
void DeviceQueue::pack(const DeviceTask& task, bool in, double factor) const {
  std::vector<device::Segment> segments;
  segments.reserve(task.operations.size());
  std::uint64_t at = device::pointer(fusion_.data());
  for (const auto& operation : task.operations) {
    const OnDevice& tensor = *operation->on_device;
    const std::uint64_t count = operation->count();
    segments.push_back(in ? device::Segment{device::pointer(tensor.input), at, count}
                          : device::Segment{at, device::pointer(tensor.output), count});
    at += padded(operation->bytes());
  }
  device::copy_segments(*device_, stream_->get(), task.descriptor().dtype, segments, factor);
}

void DeviceQueue::begin_allgather(DeviceTask& task) {
  const Descriptor& descriptor = task.descriptor();
  Operation& operation = *task.operations.front();
  const std::size_t row_bytes = descriptor.shape.row_elements() * size_of(descriptor.dtype);
  operation.result_rows.resize(size_);
  std::uint64_t rows = 0;
  bool even = true;
  for (int m = 0; m < size_; ++m) {
    operation.result_rows[m] = task.contributions[m].rows;
    rows += operation.result_rows[m];
    even = even && operation.result_rows[m] == operation.result_rows[0];
  }
  OnDevice& tensor = *operation.on_device;
  tensor.result = device::Memory(rows * row_bytes, stream_);
  if (even) {
    communicator_->all_gather(tensor.input, tensor.result.data(), operation.result_rows[0] * row_bytes,
                              device::nccl::kUint8, stream_->get());
    return;
  }
  device::Communicator::Group group(*communicator_);
  std::byte* at = tensor.result.data();
  for (int m = 0; m < size_; ++m) {
    const std::size_t bytes = operation.result_rows[m] * row_bytes;
    const std::byte* from = m == self_ ? tensor.input : at;
    if (bytes > 0) communicator_->broadcast(from, at, bytes, device::nccl::kUint8, m, stream_->get());
    at += bytes;
  }
  group.end();
}

void DeviceQueue::begin_broadcast(DeviceTask& task) {
  const OnDevice& tensor = *task.operations.front()->on_device;
  communicator_->broadcast(tensor.input, tensor.output, bytes_of(task.descriptor()), device::nccl::kUint8,
                           task.descriptor().root, stream_->get());
}

void DeviceQueue::begin_reducescatter(DeviceTask& task) {
  const Descriptor& descriptor = task.descriptor();
  OnDevice& tensor = *task.operations.front()->on_device;
  const std::size_t element = size_of(descriptor.dtype);
  const std::byte* from = tensor.input;
  if (descriptor.prescale != 1.0) {
    task.work = device::Memory(bytes_of(descriptor), stream_);
    copy(descriptor, from, task.work.data(), descriptor.shape.elements(), descriptor.prescale);
    from = task.work.data();
  }
  const std::vector<std::uint64_t> blocks =
      dealt_blocks(descriptor.shape.rows(), descriptor.shape.row_elements(), size_);
  tensor.result = device::Memory(blocks[self_] * element, stream_);
  const int dtype = *device::nccl_dtype(descriptor.dtype);
  const int op = device::nccl_op(descriptor.dtype, descriptor.op);
  if (blocks.front() == blocks.back()) {
    communicator_->reduce_scatter(from, tensor.result.data(), blocks.front(), dtype, op, stream_->get());
    return;
  }
  device::Communicator::Group group(*communicator_);
  for (int m = 0; m < size_; ++m) {
    if (blocks[m] > 0) {
      communicator_->reduce(from, m == self_ ? tensor.result.data() : nullptr, blocks[m], dtype, op, m, stream_->get());
    }
    from += blocks[m] * element;
  }
  group.end();
}

void DeviceQueue::begin_alltoall(DeviceTask& task) {
  Operation& operation = *task.operations.front();
  OnDevice& tensor = *operation.on_device;
  const std::size_t row_bytes = task.descriptor().shape.row_elements() * size_of(task.descriptor().dtype);
  operation.result_rows.resize(size_);
  for (int m = 0; m < size_; ++m) operation.result_rows[m] = task.contributions[m].splits[self_];
  const std::uint64_t rows =
      std::accumulate(operation.result_rows.begin(), operation.result_rows.end(), std::uint64_t{0});
  tensor.result = device::Memory(rows * row_bytes, stream_);
  device::Communicator::Group group(*communicator_);
  const std::byte* from = tensor.input;
  std::byte* to = tensor.result.data();
  for (int m = 0; m < size_; ++m) {
    const std::size_t outgoing = operation.splits[m] * row_bytes;
    const std::size_t incoming = operation.result_rows[m] * row_bytes;
    communicator_->send(from, outgoing, m, stream_->get());
    communicator_->receive(to, incoming, m, stream_->get());
    from += outgoing;
    to += incoming;
  }
  group.end();
}

// What follows the collective in our stream.
void DeviceQueue::end(DeviceTask& task) {
  const Descriptor& descriptor = task.descriptor();
  const double scale = final_scale(descriptor, size_);
  if (descriptor.captured) {  // its graph is watched by nobody
    if (scale != 1.0) scale_captured(task, false, scale);
    return;
  }
  if (!task.operations.empty()) {
    const OnDevice& tensor = *task.operations.front()->on_device;
    if (task.descriptors.size() > 1) {
      pack(task, false, scale);
    } else if (descriptor.collective == Collective::kAllreduce) {
      copy(descriptor, tensor.output, tensor.output, descriptor.shape.elements(), scale);
    } else if (descriptor.collective == Collective::kReduceScatter) {
      const std::byte* result = tensor.result.data();
      copy(descriptor, result, tensor.result.data(), tensor.result.size() / size_of(descriptor.dtype), scale);
    }
  }
  task.work = {};
  launched(descriptor.name, task.operations);
}

void DeviceQueue::launched(std::string name, std::vector<std::shared_ptr<Operation>> operations) {
  const auto event = std::make_shared<device::Event>(*device_, stream_->get());
  for (const auto& operation : operations) operation->on_device->completion = event;
  flights_.push_back({event, std::move(name), clock_.now(), std::move(operations)});
}

// Forgets what has ended on the GPU.
void DeviceQueue::land() {
  if (flights_.empty()) return;
  const device::Device::Current current(*device_);
  while (!flights_.empty() && flights_.front().event->reached()) flights_.pop_front();
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
  if (has_result) tensor.result = device::Memory(bytes, stream_);
  if (bytes > 0) {
    device::check_cuda(device::driver().cuMemcpyHtoDAsync_v2(
                           device::pointer(has_result ? tensor.result.data() : tensor.output),
                           has_result ? operation->result.data() : tensor.staging.data(), bytes, stream_->get()),
                       "cuMemcpyHtoDAsync");
  }
  launched(operation->descriptor.name, {operation});
}

std::string DeviceQueue::describe() const {
  if (queue_.empty()) return "";
  const Descriptor& descriptor = queue_.front()->descriptor();
  return std::string(name_of(descriptor.collective)) + " '" + descriptor.name + "' waits for NCCL to connect";
}

void note_capture(Operation& operation) {
  const auto captures = [](const Operation& part) {
    const OnDevice& tensor = *part.on_device;
    const device::Device::Current current(device::Device::of(tensor.device));
    return device::Stream::captures(stream_of(tensor.stream));
  };
  const auto refuse = [&operation](const std::string& why) {
    throw Error(ErrorKind::kInvalidArgument,
                "'" + operation.descriptor.name + "' cannot be captured into a CUDA graph: " + why);
  };
  const Operation& first = operation.parts.empty() ? operation : *operation.parts.front();
  const bool captured = captures(first);
  for (const auto& part : operation.parts) {
    const bool same = part->on_device->stream == first.on_device->stream;
    if (!same && (captured || captures(*part))) {
      refuse("its tensors belong to several streams. Remedy: pass them from one.");
    }
    part->descriptor.captured = captured;
  }
  operation.descriptor.captured = captured;
  if (!captured) return;
  const Collective collective = operation.descriptor.collective;
  if (collective != Collective::kAllreduce && collective != Collective::kBroadcast) {
    refuse("the size of the result of " + std::string(name_of(collective)) +
           " is agreed on by the ranks, and its memory is not the graph's. Remedy: capture the graph without it, and "
           "call it between replays; allreduce and broadcast can be captured.");
  }
  operation.awaited = true;
}

void record_ready(Operation& operation) {
  if (operation.descriptor.captured) return;  // the stream's own order says it
  const auto each = [](Operation& part, const Operation* before) {
    OnDevice& tensor = *part.on_device;
    if (before != nullptr && before->on_device->stream == tensor.stream) {
      tensor.ready = before->on_device->ready;
      return;
    }
    device::Device& device = device::Device::of(tensor.device);
    const device::Device::Current current(device);
    tensor.ready = std::make_shared<device::Event>(device, stream_of(tensor.stream));
  };
  if (operation.parts.empty()) return each(operation, nullptr);
  const Operation* before = nullptr;
  for (const auto& part : operation.parts) {
    each(*part, before);
    before = part.get();
  }
}

namespace {

// What the stream is given itself comes behind what was captured there; another one becomes part of the graph by this.
void hold_back_captured(const Operation& operation, std::uintptr_t stream) {
  const OnDevice& tensor = operation.parts.empty() ? *operation.on_device : *operation.parts.front()->on_device;
  if (tensor.stream == stream) return;
  device::Device& device = device::Device::of(tensor.device);
  const device::Device::Current current(device);
  device::Event(device, stream_of(tensor.stream)).hold_back(stream_of(stream));
}

}  // namespace

void hold_back(const Operation& operation, std::uintptr_t stream) {
  const device::Event* last = nullptr;
  const auto each = [&](const Operation& part) {
    OnDevice& tensor = *part.on_device;
    const device::Event* completion = tensor.completion.get();
    if (completion != nullptr && completion != last) {
      const device::Device::Current current(completion->device());
      completion->hold_back(stream_of(stream));
    }
    last = completion;
    tensor.stream = stream;
  };
  if (operation.descriptor.captured) hold_back_captured(operation, stream);
  if (operation.on_device != nullptr) each(operation);
  for (const auto& part : operation.parts) {
    if (part->on_device != nullptr) each(*part);
  }
}

std::size_t copy_result(Operation& operation, void* target, std::size_t bytes, std::uintptr_t stream) {
  device::Memory result = std::move(operation.on_device->result);
  if (result.size() != bytes || bytes == 0) return result.size();
  hold_back(operation, stream);
  const device::Device::Current current(operation.on_device->completion->device());
  device::check_cuda(device::driver().cuMemcpyDtoDAsync_v2(device::pointer(target), device::pointer(result.data()),
                                                           bytes, stream_of(stream)),
                     "cuMemcpyDtoDAsync");
  result.move_to(stream_of(stream));
  return bytes;
}

bool has_landed(const Operation& operation) {
  const auto landed = [](const Operation& part) {
    if (part.on_device == nullptr || part.on_device->completion == nullptr) return true;
    const device::Event& completion = *part.on_device->completion;
    const device::Device::Current current(completion.device());
    return completion.reached();
  };
  try {
    return landed(operation) &&
           std::all_of(operation.parts.begin(), operation.parts.end(), [&](const auto& part) { return landed(*part); });
  } catch (const Error&) {
    return true;  // the GPU has failed: nothing uses the memory any more
  }
}

}  // namespace ringcore::engine
