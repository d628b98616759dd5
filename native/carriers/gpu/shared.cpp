#include "carriers/gpu/shared.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.hpp"

namespace ringcore::carriers {
namespace {

int gpu_of(const std::vector<std::vector<int>>& gpus, int member) {
  const auto has_it = [member](const std::vector<int>& group) {
    return std::binary_search(group.begin(), group.end(), member);
  };
  return static_cast<int>(std::find_if(gpus.begin(), gpus.end(), has_it) - gpus.begin());
}

int place_of(const std::vector<int>& group, int member) {
  return static_cast<int>(std::lower_bound(group.begin(), group.end(), member) - group.begin());
}

}  // namespace

SharedGpu::SharedGpu(std::shared_ptr<const device::Stream> stream, std::vector<std::vector<int>> gpus, int self,
                     std::size_t arena_bytes)
    : stream_(std::move(stream)),
      gpus_(std::move(gpus)),
      gpu_(gpu_of(gpus_, self)),
      arenas_(stream_, place_of(group(), self), arena_bytes),
      compiled_(std::async(std::launch::async, [&device = stream_->device()] {
        return &device::ReduceKernels::of(device);  // takes longer than other ranks wait for a sign of life
      })) {}

const SharedGpu::Notice* SharedGpu::notice() {
  if (compiled_.valid()) {
    if (compiled_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return nullptr;
    try {
      kernels_ = compiled_.get();
    } catch (const Error& error) {
      arenas_.refuse(error.what());
    }
  }
  const device::Device::Current current(stream_->device());
  return arenas_.made() ? &arenas_.notice() : nullptr;
}

void SharedGpu::open(std::span<const Notice> notices) {
  std::vector<Notice> own_group;
  for (const int member : group()) own_group.push_back(notices[member]);
  arenas_.open(own_group);
}

void SharedGpu::begin(const engine::Task& task, double scale) {
  const engine::Descriptor& first = task.descriptor();
  collective_ = first.collective;
  const bool reduces = collective_ == Collective::kAllreduce;
  dtype_ = reduces ? first.dtype : DType::kUInt8;
  op_ = engine::summing(first.op);
  prescale_ = reduces ? first.prescale : 1.0;
  const double result_scale = reduces ? scale : 1.0;
  // Where there is one GPU, in the precision of the sum.
  sum_scale_ = gpus_.size() == 1 ? result_scale : 1.0;
  copy_scale_ = gpus_.size() == 1 ? 1.0 : result_scale;
  root_ = kNobody;
  if (!reduces) {
    root_gpu_ = gpu_of(gpus_, first.root);
    root_ = place_of(gpus_[root_gpu_], first.root);
  }
  parts_.clear();
  bytes_ = 0;
  for (std::size_t i = 0; i < task.descriptors.size(); ++i) {
    const std::size_t bytes = task.descriptors[i]->shape.elements() * size_of(task.descriptors[i]->dtype);
    if (!task.operations.empty()) {
      const engine::OnDevice& tensor = *task.operations[i]->on_device;
      parts_.push_back({device::pointer(tensor.input), device::pointer(tensor.output), bytes_, bytes});
    }
    bytes_ += (bytes + device::kVectorBytes - 1) / device::kVectorBytes * device::kVectorBytes;
  }
  piece_at_ = 0;
  piece_bytes_ = 0;
}

bool SharedGpu::step(device::Communicator* between_gpus) {
  if (piece_bytes_ > 0) finish_piece();
  piece_at_ += piece_bytes_;
  piece_bytes_ = std::min(bytes_ - piece_at_, arenas_.bytes());
  if (piece_bytes_ == 0) return false;
  if (piece_at_ > 0) drain();
  start_piece();
  if (between_gpus != nullptr) pass_on(*between_gpus);
  return true;
}

// Until the arena of the one who leads has the result of this GPU.
void SharedGpu::start_piece() {
  ++piece_;
  if (contributes()) {
    if (parts_.empty()) {
      device::fill_identity(stream_->get(), dtype_, op_, arenas_.own(), piece_bytes_);
    } else {
      copy(true, prescale_);
    }
    if (arenas_.place() != 0) arenas_.write(0, SharedArenas::packed(arenas_.place()), piece_);
  }
  if (arenas_.place() == 0) reduce();
}

void SharedGpu::reduce() {
  std::vector<device::cuda::Pointer> sources;
  for (int place = 0; place < static_cast<int>(group().size()); ++place) {
    if (root_ != kNobody && (gpu_ != root_gpu_ || place != root_)) continue;
    if (place != 0) arenas_.wait(SharedArenas::packed(place), piece_);
    sources.push_back(arenas_.data(place));
  }
  if (sources.empty() || (sources.size() == 1 && sources.front() == arenas_.own() && sum_scale_ == 1.0)) return;
  kernels_->reduce(stream_->get(), dtype_, op_, sources, arenas_.own(), piece_bytes_, sum_scale_);
}

void SharedGpu::pass_on(device::Communicator& between_gpus) {
  std::byte* data = std::bit_cast<std::byte*>(arenas_.own());
  if (collective_ == Collective::kBroadcast) {
    return between_gpus.broadcast(data, data, piece_bytes_, device::nccl::kUint8, root_gpu_, stream_->get());
  }
  between_gpus.all_reduce(data, data, piece_bytes_ / size_of(dtype_), *device::nccl_dtype(dtype_),
                          device::nccl_op(dtype_, op_), stream_->get());
}

void SharedGpu::finish_piece() {
  const int place = arenas_.place();
  if (place == 0) {
    for (int other = 1; other < static_cast<int>(group().size()); ++other) {
      arenas_.write(other, SharedArenas::kResult, piece_);
    }
  } else {
    arenas_.wait(SharedArenas::kResult, piece_);
  }
  copy(false, copy_scale_);
  if (place != 0) arenas_.write(0, SharedArenas::taken(place), piece_);
}

bool SharedGpu::drain() {
  if (arenas_.place() != 0 || group().size() == 1 || bytes_ == 0) return false;
  for (int place = 1; place < static_cast<int>(group().size()); ++place) {
    arenas_.wait(SharedArenas::taken(place), piece_);
  }
  return true;
}

// What of the tensors lies in the piece: `in` the own arena, or from that of the one who leads.
void SharedGpu::copy(bool in, double factor) const {
  std::vector<device::Segment> segments;
  const std::size_t element = size_of(dtype_);
  for (const Part& part : parts_) {
    const std::size_t begin = std::max(part.at, piece_at_);
    const std::size_t end = std::min(part.at + part.bytes, piece_at_ + piece_bytes_);
    if (begin >= end) continue;
    const device::cuda::Pointer arena = arenas_.data(in ? arenas_.place() : 0) + (begin - piece_at_);
    const std::size_t offset = begin - part.at;
    const std::uint64_t elements = (end - begin) / element;
    segments.push_back(in ? device::Segment{part.input + offset, arena, elements}
                          : device::Segment{arena, part.output + offset, elements});
  }
  if (!segments.empty()) device::copy_segments(stream_->device(), stream_->get(), dtype_, segments, factor);
}

}  // namespace ringcore::carriers
