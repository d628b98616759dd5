// How each collective is given to NCCL, and what runs before and behind it in the stream.
#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "base/error.hpp"
#include "carriers/gpu/launcher.hpp"
#include "carriers/gpu/shared.hpp"
#include "carriers/gpu/tensor.hpp"
#include "device/kernels.hpp"
#include "device/libraries.hpp"

namespace ringcore::carriers {
namespace {

// Tensors of a fused buffer begin at multiples of this: the kernels move 16 bytes at once.
constexpr std::size_t kPackAlignment = 16;

std::size_t padded(std::size_t bytes) { return (bytes + kPackAlignment - 1) / kPackAlignment * kPackAlignment; }

std::size_t bytes_of(const Descriptor& descriptor) { return descriptor.shape.elements() * size_of(descriptor.dtype); }

std::size_t packed_bytes(const Task& task) {
  std::size_t bytes = 0;
  for (const auto& descriptor : task.descriptors) bytes += padded(bytes_of(*descriptor));
  return bytes;
}

// NCCL takes no less for memory that it can register.
constexpr std::size_t kMinRegisteredBytes = std::size_t{2} << 20;

}  // namespace

// All in the stream that is captured, in the operations' own memory.
void Launcher::begin_captured(const Task& task) {
  const Descriptor& descriptor = task.descriptor();
  const device::cuda::Stream stream = stream_of(task.operations.front()->on_device->stream);
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

void Launcher::scale_captured(const Task& task, bool inputs, double factor) const {
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

void Launcher::wait_for_inputs(const Task& task) const {
  const device::Event* last = nullptr;
  for (const auto& operation : task.operations) {
    const device::Event* ready = gpu_tensor(*operation)->ready.get();
    if (ready != last) ready->hold_back(stream_->get());
    last = ready;
  }
}

void Launcher::copy(const Descriptor& descriptor, const std::byte* from, std::byte* to, std::uint64_t elements,
                    double factor) const {
  if (elements == 0 || (from == to && factor == 1.0)) return;
  const device::Segment segment{device::pointer(from), device::pointer(to), elements};
  device::copy_segments(*device_, stream_->get(), descriptor.dtype, {&segment, 1}, factor);
}

// What a rank that has joined contributes.
device::Memory Launcher::identity(const Descriptor& descriptor) const {
  const std::size_t bytes = (bytes_of(descriptor) + 7) / 8 * 8;
  device::Memory memory(bytes, stream_);
  device::fill_identity(stream_->get(), descriptor.dtype, engine::summing(descriptor.op),
                        device::pointer(memory.data()), bytes);
  return memory;
}

void Launcher::begin_allreduce(Launch& launch) {
  const Task& task = launch.task;
  const Descriptor& descriptor = task.descriptor();
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  if (task.operations.empty()) {
    launch.work = identity(descriptor);
    from = to = launch.work.data();
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

// Whether the fusion buffer is large enough, and known to NCCL. Registering takes long: it grows in large steps.
bool Launcher::has_room(const Task& task) {
  const std::size_t bytes = packed_bytes(task);
  if (fusion_ != nullptr && fusion_->size() >= bytes) return true;
  if (registering_ == device::Registering::kNone) {
    fusion_ = std::make_shared<const device::Memory>(bytes, stream_);
    return true;
  }
  const std::size_t before = fusion_ == nullptr ? 0 : fusion_->size();
  if (fusion_ != nullptr) outgrown_.push_back(std::move(fusion_));
  fusion_ = std::make_shared<const device::Memory>(
      device::Memory::of_nccl(std::max({bytes, 2 * before, kMinRegisteredBytes}), stream_));
  communicator_->register_memory(fusion_, registering_);
  return communicator_->ready();
}

// Packs the tensors of a bucket, and reduces them as one.
void Launcher::begin_fused(Launch& launch) {
  const Task& task = launch.task;
  const Descriptor& first = task.descriptor();
  const std::size_t bytes = packed_bytes(task);
  if (task.operations.empty()) {
    Descriptor whole = first;
    whole.shape = engine::Shape{.dims = 1, .extent = {bytes / size_of(first.dtype)}};
    launch.work = identity(whole);
    copy(whole, launch.work.data(), fusion_->data(), whole.shape.elements(), 1.0);
  } else {
    pack(task, true, first.prescale);
  }
  communicator_->all_reduce(fusion_->data(), fusion_->data(), bytes / size_of(first.dtype),
                            *device::nccl_dtype(first.dtype), device::nccl_op(first.dtype, first.op), stream_->get());
}

// Between the tensors of a bucket and the fused buffer; `in`: into it.
void Launcher::pack(const Task& task, bool in, double factor) const {
  std::vector<device::Segment> segments;
  segments.reserve(task.operations.size());
  std::uint64_t at = device::pointer(fusion_->data());
  for (const auto& operation : task.operations) {
    const OnDevice& tensor = *operation->on_device;
    const std::uint64_t count = operation->count();
    segments.push_back(in ? device::Segment{device::pointer(tensor.input), at, count}
                          : device::Segment{at, device::pointer(tensor.output), count});
    at += padded(operation->bytes());
  }
  device::copy_segments(*device_, stream_->get(), task.descriptor().dtype, segments, factor);
}

void Launcher::begin_allgather(const Task& task) {
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
  const OnDevice& tensor = *operation.on_device;
  device::Memory& result = gpu_tensor(operation)->result;
  result = device::Memory(rows * row_bytes, stream_);
  if (even) {
    communicator_->all_gather(tensor.input, result.data(), operation.result_rows[0] * row_bytes, device::nccl::kUint8,
                              stream_->get());
    return;
  }
  device::Communicator::Group group(*communicator_);
  std::byte* at = result.data();
  for (int m = 0; m < size_; ++m) {
    const std::size_t bytes = operation.result_rows[m] * row_bytes;
    const std::byte* from = m == self_ ? tensor.input : at;
    if (bytes > 0) communicator_->broadcast(from, at, bytes, device::nccl::kUint8, m, stream_->get());
    at += bytes;
  }
  group.end();
}

void Launcher::begin_broadcast(const Task& task) {
  const OnDevice& tensor = *task.operations.front()->on_device;
  communicator_->broadcast(tensor.input, tensor.output, bytes_of(task.descriptor()), device::nccl::kUint8,
                           task.descriptor().root, stream_->get());
}

void Launcher::begin_reduce(Launch& launch) {
  const Descriptor& descriptor = launch.task.descriptor();
  const OnDevice& tensor = *launch.task.operations.front()->on_device;
  const std::byte* from = tensor.input;
  if (descriptor.prescale != 1.0) {
    launch.work = device::Memory(bytes_of(descriptor), stream_);
    copy(descriptor, from, launch.work.data(), descriptor.shape.elements(), descriptor.prescale);
    from = launch.work.data();
  }
  communicator_->reduce(from, self_ == descriptor.root ? tensor.output : nullptr, descriptor.shape.elements(),
                        *device::nccl_dtype(descriptor.dtype), device::nccl_op(descriptor.dtype, descriptor.op),
                        descriptor.root, stream_->get());
}

void Launcher::begin_reducescatter(Launch& launch) {
  const Task& task = launch.task;
  const Descriptor& descriptor = task.descriptor();
  const Operation& operation = *task.operations.front();
  device::Memory& result = gpu_tensor(operation)->result;
  const std::size_t element = size_of(descriptor.dtype);
  const std::byte* from = operation.on_device->input;
  if (descriptor.prescale != 1.0) {
    launch.work = device::Memory(bytes_of(descriptor), stream_);
    copy(descriptor, from, launch.work.data(), descriptor.shape.elements(), descriptor.prescale);
    from = launch.work.data();
  }
  const std::vector<std::uint64_t> blocks =
      engine::dealt_blocks(descriptor.shape.rows(), descriptor.shape.row_elements(), size_);
  result = device::Memory(blocks[self_] * element, stream_);
  const int dtype = *device::nccl_dtype(descriptor.dtype);
  const int op = device::nccl_op(descriptor.dtype, descriptor.op);
  if (blocks.front() == blocks.back()) {
    communicator_->reduce_scatter(from, result.data(), blocks.front(), dtype, op, stream_->get());
    return;
  }
  device::Communicator::Group group(*communicator_);
  for (int m = 0; m < size_; ++m) {
    if (blocks[m] > 0) {
      communicator_->reduce(from, m == self_ ? result.data() : nullptr, blocks[m], dtype, op, m, stream_->get());
    }
    from += blocks[m] * element;
  }
  group.end();
}

void Launcher::begin_alltoall(const Task& task) {
  Operation& operation = *task.operations.front();
  device::Memory& result = gpu_tensor(operation)->result;
  const std::size_t row_bytes = task.descriptor().shape.row_elements() * size_of(task.descriptor().dtype);
  operation.result_rows.resize(size_);
  for (int m = 0; m < size_; ++m) operation.result_rows[m] = task.contributions[m].splits[self_];
  const std::uint64_t rows =
      std::accumulate(operation.result_rows.begin(), operation.result_rows.end(), std::uint64_t{0});
  result = device::Memory(rows * row_bytes, stream_);
  device::Communicator::Group group(*communicator_);
  const std::byte* from = operation.on_device->input;
  std::byte* to = result.data();
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

// All rows to the root, which has its own from itself.
void Launcher::begin_gather(const Task& task) {
  const Descriptor& descriptor = task.descriptor();
  Operation& operation = *task.operations.front();
  const std::size_t row_bytes = descriptor.shape.row_elements() * size_of(descriptor.dtype);
  operation.result_rows.assign(size_, 0);
  for (int m = 0; m < size_ && self_ == descriptor.root; ++m) operation.result_rows[m] = task.contributions[m].rows;
  const std::uint64_t rows =
      std::accumulate(operation.result_rows.begin(), operation.result_rows.end(), std::uint64_t{0});
  device::Memory& result = gpu_tensor(operation)->result;
  result = device::Memory(rows * row_bytes, stream_);
  device::Communicator::Group group(*communicator_);
  communicator_->send(operation.on_device->input, task.contributions[self_].rows * row_bytes, descriptor.root,
                      stream_->get());
  std::byte* to = result.data();
  for (int m = 0; m < size_ && self_ == descriptor.root; ++m) {
    const std::size_t incoming = operation.result_rows[m] * row_bytes;
    communicator_->receive(to, incoming, m, stream_->get());
    to += incoming;
  }
  group.end();
}

void Launcher::begin_scatter(const Task& task) {
  const Descriptor& descriptor = task.descriptor();
  Operation& operation = *task.operations.front();
  const std::size_t row_bytes = descriptor.shape.row_elements() * size_of(descriptor.dtype);
  const std::uint64_t rows = task.contributions[descriptor.root].splits[self_];
  operation.result_rows.assign(size_, 0);
  operation.result_rows[descriptor.root] = rows;
  device::Memory& result = gpu_tensor(operation)->result;
  result = device::Memory(rows * row_bytes, stream_);
  device::Communicator::Group group(*communicator_);
  const std::byte* from = operation.on_device->input;
  for (int m = 0; m < size_ && self_ == descriptor.root; ++m) {
    const std::size_t outgoing = operation.splits[m] * row_bytes;
    communicator_->send(from, outgoing, m, stream_->get());
    from += outgoing;
  }
  communicator_->receive(result.data(), rows * row_bytes, descriptor.root, stream_->get());
  group.end();
}

// What follows the collective in our stream.
void Launcher::end(Launch& launch) {
  const Task& task = launch.task;
  const Descriptor& descriptor = task.descriptor();
  if (shared_ != nullptr) {
    note_launched(descriptor.name, task.operations);
    if (shared_->drain()) note_launched(descriptor.name, {});
    return;
  }
  const double scale = final_scale(descriptor, size_);
  if (descriptor.captured) {  // its graph is watched by nobody
    if (scale != 1.0) scale_captured(task, false, scale);
    return;
  }
  if (!task.operations.empty()) {
    const OnDevice& tensor = *task.operations.front()->on_device;
    if (task.descriptors.size() > 1) {
      pack(task, false, scale);
    } else if (descriptor.collective == Collective::kAllreduce ||
               (descriptor.collective == Collective::kReduce && descriptor.root == self_)) {
      copy(descriptor, tensor.output, tensor.output, descriptor.shape.elements(), scale);
    } else if (descriptor.collective == Collective::kReduceScatter) {
      const device::Memory& result = gpu_tensor(*task.operations.front())->result;
      copy(descriptor, result.data(), result.data(), result.size() / size_of(descriptor.dtype), scale);
    }
  }
  launch.work = {};
  note_launched(descriptor.name, task.operations);
}

}  // namespace ringcore::carriers
