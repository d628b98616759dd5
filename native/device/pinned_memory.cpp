// Pinned memory, which is used again and again.
#include <algorithm>
#include <bit>
#include <utility>

#include "base/error.hpp"
#include "device/device.hpp"
#include "device/libraries.hpp"

namespace ringcore::device {
namespace {

// As small as CUDA pins.
constexpr std::size_t kMinBytes = 4096;

bool is_free(const Event* used_until) {
  try {
    return used_until == nullptr || used_until->reached();
  } catch (const Error&) {
    return false;  // the GPU has failed
  }
}

}  // namespace

PinnedMemory::PinnedMemory(Device& device, std::size_t bytes) : device_(&device) {
  if (bytes == 0) return;
  bytes_ = std::bit_ceil(std::max(bytes, kMinBytes));
  const Device::Current current(device);
  {
    const std::lock_guard lock(device.pinned_mutex_);
    auto& idle = device.idle_pinned_memory_;
    const auto found = std::find_if(idle.begin(), idle.end(), [this](const auto& memory) {
      return memory.bytes == bytes_ && is_free(memory.used_until.get());
    });
    if (found != idle.end()) {
      data_ = found->data;
      idle.erase(found);
      return;
    }
  }
  void* data = nullptr;
  check_cuda(driver().cuMemHostAlloc(&data, bytes_, cuda::kHostAllocPortable), "cuMemHostAlloc");
  data_ = static_cast<std::byte*>(data);
}

PinnedMemory::PinnedMemory(PinnedMemory&& other) noexcept { *this = std::move(other); }

PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(bytes_, other.bytes_);
  std::swap(data_, other.data_);
  std::swap(used_until_, other.used_until_);
  return *this;
}

PinnedMemory::~PinnedMemory() {
  if (data_ == nullptr) return;
  const std::lock_guard lock(device_->pinned_mutex_);
  device_->idle_pinned_memory_.push_back({bytes_, data_, std::move(used_until_)});
}

}  // namespace ringcore::device
