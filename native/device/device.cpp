#include "device/device.hpp"

#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "device/kernels.hpp"
#include "device/libraries.hpp"

namespace ringcore::device {

Device& Device::of(int ordinal) {
  static std::mutex mutex;
  static auto& devices = *new std::map<int, Device*>;
  const std::lock_guard lock(mutex);
  const auto found = devices.find(ordinal);
  if (found != devices.end()) return *found->second;
  return *devices.emplace(ordinal, new Device(ordinal)).first->second;
}

int Device::ordinal_of(const void* memory) {
  int ordinal = -1;
  const cuda::Result result = driver().cuPointerGetAttribute(&ordinal, cuda::kPointerDeviceOrdinal, pointer(memory));
  if (result != cuda::kSuccess) {
    throw Error(ErrorKind::kInvalidArgument, "CUDA knows of no memory of a GPU at this address");
  }
  return ordinal;
}

int Device::current_ordinal() {
  int ordinal = 0;
  return driver().cuCtxGetDevice(&ordinal) == cuda::kSuccess ? ordinal : 0;
}

int Device::count() {
  try {
    int count = 0;
    return driver().cuDeviceGetCount(&count) == cuda::kSuccess ? count : 0;
  } catch (const Error&) {
    return 0;
  }
}

Device::Device(int ordinal) : ordinal_(ordinal) {
  const Driver& cuda = driver();
  int device = 0;
  check_cuda(cuda.cuDeviceGet(&device, ordinal), "cuDeviceGet");
  cuda::Uuid uuid{};
  check_cuda(cuda.cuDeviceGetUuid_v2(&uuid, device), "cuDeviceGetUuid");
  std::memcpy(uuid_.data(), uuid.bytes, sizeof(uuid.bytes));
  if (cuda.cuDeviceGetPCIBusId(address_.data(), static_cast<int>(address_.size()), device) != cuda::kSuccess) {
    std::memcpy(address_.data(), uuid.bytes, sizeof(uuid.bytes));  // on no bus that CUDA knows
  }
  const auto attribute = [&](int which) {
    int value = 0;
    check_cuda(cuda.cuDeviceGetAttribute(&value, which, device), "cuDeviceGetAttribute");
    return value;
  };
  capability_ = attribute(cuda::kAttributeCapabilityMajor) * 10 + attribute(cuda::kAttributeCapabilityMinor);
  multiprocessors_ = attribute(cuda::kAttributeMultiprocessors);
  memory_pools_ = attribute(cuda::kAttributeMemoryPools) != 0;
  check_cuda(cuda.cuDevicePrimaryCtxRetain(&context_, device), "cuDevicePrimaryCtxRetain");
}

const Kernels* Device::kernels() {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(kernels_tried_, true)) {
    try {
      kernels_ = std::make_unique<Kernels>(*this);
    } catch (const Error& error) {
      kernels_problem_ = error.what();  // copies of the driver take their place
    }
  }
  return kernels_.get();
}

Device::Current::Current(const Device& device) {
  check_cuda(driver().cuCtxPushCurrent_v2(device.context_), "cuCtxPushCurrent");
  driver().cuThreadExchangeStreamCaptureMode(&capture_mode_);
}

Device::Current::Current(const Device& device, std::nothrow_t) noexcept
    : pushed_(driver().cuCtxPushCurrent_v2(device.context_) == cuda::kSuccess) {
  if (pushed_) driver().cuThreadExchangeStreamCaptureMode(&capture_mode_);
}

Device::Current::~Current() {
  if (!pushed_) return;
  driver().cuThreadExchangeStreamCaptureMode(&capture_mode_);
  cuda::Context context = nullptr;
  driver().cuCtxPopCurrent_v2(&context);
}

Event::Event(Device& device, cuda::Stream stream) : device_(device) {
  {
    const std::lock_guard lock(device.mutex_);
    if (!device.free_events_.empty()) {
      event_ = device.free_events_.back();
      device.free_events_.pop_back();
    }
  }
  if (event_ == nullptr) check_cuda(driver().cuEventCreate(&event_, cuda::kEventDisableTiming), "cuEventCreate");
  check_cuda(driver().cuEventRecord(event_, stream), "cuEventRecord");
}

Event::~Event() {
  const std::lock_guard lock(device_.mutex_);
  device_.free_events_.push_back(event_);
}

bool Event::reached() const {
  const cuda::Result result = driver().cuEventQuery(event_);
  if (result == cuda::kNotReady) return false;
  check_cuda(result, "cuEventQuery");
  return true;
}

void Event::hold_back(cuda::Stream stream) const {
  check_cuda(driver().cuStreamWaitEvent(stream, event_, 0), "cuStreamWaitEvent");
}

bool Stream::captures(cuda::Stream stream) {
  int status = cuda::kCaptureNone;
  check_cuda(driver().cuStreamIsCapturing(stream, &status), "cuStreamIsCapturing");
  return status == cuda::kCaptureActive;
}

Stream::Stream(Device& device, Priority priority) : device_(device) {
  const Device::Current current(device);
  int least = 0;
  int greatest = 0;
  check_cuda(driver().cuCtxGetStreamPriorityRange(&least, &greatest), "cuCtxGetStreamPriorityRange");
  const int number = priority == Priority::kHighest ? greatest : least;
  check_cuda(driver().cuStreamCreateWithPriority(&stream_, cuda::kStreamNonBlocking, number),
             "cuStreamCreateWithPriority");
}

Stream::~Stream() {
  if (const Device::Current current(device_, std::nothrow); current) driver().cuStreamDestroy_v2(stream_);
}

Memory::Memory(Device& device, std::size_t bytes, cuda::Stream stream)
    : device_(&device), bytes_(bytes), stream_(stream) {
  if (bytes == 0) return;
  const Device::Current current(device);
  check_cuda(device.has_memory_pools() ? driver().cuMemAllocAsync(&pointer_, bytes, stream)
                                       : driver().cuMemAlloc_v2(&pointer_, bytes),
             ("allocating " + std::to_string(bytes) + " bytes of GPU " + std::to_string(device.ordinal())).c_str());
}

Memory::Memory(std::size_t bytes, std::shared_ptr<const Stream> stream)
    : Memory(stream->device(), bytes, stream->get()) {
  kept_ = std::move(stream);
}

Memory Memory::of_nccl(std::size_t bytes, std::shared_ptr<const Stream> stream) {
  Memory memory;
  memory.device_ = &stream->device();
  memory.stream_ = stream->get();
  memory.kept_ = std::move(stream);
  memory.of_nccl_ = true;
  const Device::Current current(*memory.device_);
  void* allocated = nullptr;
  if (const nccl::Result result = nccl_api().ncclMemAlloc(&allocated, bytes); result != nccl::kSuccess) {
    throw Error(ErrorKind::kResource,
                "ncclMemAlloc of " + std::to_string(bytes) + " bytes on GPU " + std::to_string(memory.ordinal()) +
                    ": " + nccl_api().ncclGetErrorString(result) + " (NCCL error " + std::to_string(result) +
                    "). Remedy: leave more of the GPU's memory to others than the framework, or lower "
                    "RINGCORE_FUSION_THRESHOLD_BYTES on all ranks.");
  }
  memory.pointer_ = device::pointer(allocated);
  memory.bytes_ = bytes;
  return memory;
}

void Memory::move_to(cuda::Stream stream) {
  stream_ = stream;
  kept_.reset();
}

Memory::Memory(Memory&& other) noexcept { *this = std::move(other); }

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(pointer_, other.pointer_);
  std::swap(bytes_, other.bytes_);
  std::swap(stream_, other.stream_);
  std::swap(kept_, other.kept_);
  std::swap(of_nccl_, other.of_nccl_);
  return *this;
}

namespace {

// NCCL frees at once, whatever the GPU still does with the memory.
void free_behind(std::shared_ptr<const Stream> stream, cuda::Pointer pointer) {
  void* memory = std::bit_cast<void*>(pointer);
  if (driver().cuStreamQuery(stream->get()) != cuda::kNotReady) {
    nccl_api().ncclMemFree(memory);
    return;
  }
  std::thread([stream = std::move(stream), memory] {
    const Device::Current current(stream->device(), std::nothrow);
    if (!current) return;
    driver().cuStreamSynchronize(stream->get());
    nccl_api().ncclMemFree(memory);
  }).detach();
}

}  // namespace

Memory::~Memory() {
  if (pointer_ == 0) return;
  const Device::Current current(*device_, std::nothrow);
  if (!current) return;
  if (of_nccl_) {
    free_behind(std::move(kept_), pointer_);
    return;
  }
  device_->has_memory_pools() ? driver().cuMemFreeAsync(pointer_, stream_) : driver().cuMemFree_v2(pointer_);
}

}  // namespace ringcore::device
