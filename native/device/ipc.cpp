#include "device/ipc.hpp"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "device/libraries.hpp"

namespace ringcore::device {
namespace {

struct Retired {
  int ordinal = 0;
  std::shared_ptr<const Event> ended;  // null once it was reached
  std::optional<ExportedMemory> exported;
  std::vector<std::unique_ptr<OpenedMemory>> opened;
};

std::mutex mutex;  // Guards: retired().

std::vector<Retired>& retired() {
  static auto& all = *new std::vector<Retired>;  // what is left is the system's to free
  return all;
}

bool has_ended(const Event& event) {
  try {
    return event.reached();
  } catch (const Error&) {
    return false;  // the GPU has failed: nothing there is used again
  }
}

void close_ended() {
  for (Retired& each : retired()) {
    if (each.ended == nullptr) continue;
    const Device::Current current(each.ended->device(), std::nothrow);
    if (!current || !has_ended(*each.ended)) continue;
    each.opened.clear();
    each.ended = nullptr;
  }
  std::erase_if(retired(), [](const Retired& each) { return each.ended == nullptr && !each.exported; });
}

}  // namespace

void check_ipc() {
  Driver optional = driver();
  each_optional_driver_function(optional, [](const char* name, auto* function) {
    if (function == nullptr) {
      throw Error(ErrorKind::kResource, std::string("CUDA's driver has no function ") + name + ": it is too old");
    }
  });
}

ExportedMemory take_exported(Device& device, std::size_t bytes) {
  const std::lock_guard lock(mutex);
  close_ended();
  const auto free = std::find_if(retired().begin(), retired().end(), [&](const Retired& each) {
    return each.ended == nullptr && each.ordinal == device.ordinal() && each.exported->bytes == bytes;
  });
  if (free != retired().end()) {
    const ExportedMemory taken = *free->exported;
    retired().erase(free);
    return taken;
  }
  ExportedMemory made{.bytes = bytes};
  check_cuda(driver().cuMemAlloc_v2(&made.pointer, bytes),
             ("allocating " + std::to_string(bytes) + " bytes of GPU " + std::to_string(device.ordinal())).c_str());
  if (const cuda::Result result = driver().cuIpcGetMemHandle(&made.handle, made.pointer); result != cuda::kSuccess) {
    driver().cuMemFree_v2(made.pointer);  // nobody has it open
    check_cuda(result, "cuIpcGetMemHandle");
  }
  return made;
}

OpenedMemory::OpenedMemory(Device& device, const cuda::IpcMemHandle& handle) : device_(device) {
  check_cuda(driver().cuIpcOpenMemHandle_v2(&pointer_, handle, cuda::kIpcLazyEnablePeerAccess), "cuIpcOpenMemHandle");
}

OpenedMemory::~OpenedMemory() {
  if (const Device::Current current(device_, std::nothrow); current) driver().cuIpcCloseMemHandle(pointer_);
}

void retire(std::shared_ptr<const Event> ended, std::optional<ExportedMemory> exported,
            std::vector<std::unique_ptr<OpenedMemory>> opened) {
  const std::lock_guard lock(mutex);
  const int ordinal = ended->device().ordinal();
  retired().push_back({ordinal, std::move(ended), exported, std::move(opened)});
  close_ended();
}

void wait_for_word(cuda::Stream stream, cuda::Pointer word, std::uint32_t value) {
  check_cuda(driver().cuStreamWaitValue32_v2(stream, word, value, cuda::kWaitUntilAtLeast), "cuStreamWaitValue32");
}

void write_word(cuda::Stream stream, cuda::Pointer word, std::uint32_t value) {
  check_cuda(driver().cuStreamWriteValue32_v2(stream, word, value, cuda::kWriteBehindAll), "cuStreamWriteValue32");
}

}  // namespace ringcore::device
