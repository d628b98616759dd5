// The functions of CUDA's driver that ringcore uses (device/cuda_driver.hpp).
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "capture.hpp"
#include "double.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "registration.hpp"

namespace gpu_double {
namespace {

using Result = int;
using Pointer = unsigned long long;

constexpr Result kSuccess = 0;
constexpr Result kInvalidValue = 1;
constexpr Result kOutOfMemory = 2;
constexpr Result kInvalidDevice = 101;
constexpr Result kInvalidContext = 201;
constexpr Result kNotFound = 500;
constexpr Result kNotReady = 600;
constexpr Result kNotSupported = 801;

// How often it was recorded, and how often the stream has come to that.
struct Event {
  std::mutex mutex;  // Guards: recorded, reached.
  std::condition_variable changed;
  std::uint64_t recorded = 0;
  std::uint64_t reached = 0;
  CapturedAt captured;
};

// What every call returns when the GPU has failed: CUDA reports that again and again, in calls that have nothing to do
// with it.
std::atomic<Result> broken = kSuccess;

thread_local std::vector<void*> contexts;  // of the calling thread, the current one last
std::array<char, 64> contexts_of_devices;  // their addresses

std::shared_ptr<Event>& event_of(void* handle) { return *static_cast<std::shared_ptr<Event>*>(handle); }

std::byte* visible(Pointer address) { return gpu_double::visible(reinterpret_cast<const void*>(address)); }

Result copy(std::byte* to, const std::byte* from, std::size_t bytes, void* stream) {
  if (contexts.empty()) return kInvalidContext;
  return give(stream, [=] {
    if (bytes > 0) std::memcpy(to, from, bytes);
  });
}

std::atomic<int> event_queries = 0;

// Whether calls wait as CUDA's do that have to: copies from and to memory of the host that is not pinned, and whatever
// allocates or frees memory without a stream. Off, so that tests may hold streams that they give such copies to.
std::atomic<bool> waits = false;

std::mutex memory_mutex;  // Guards: pinned, streams.
std::map<const std::byte*, std::size_t> pinned;
std::map<void*, std::shared_ptr<Stream>> streams;  // with their handles

bool is_pinned(const void* memory) {
  const auto* at = static_cast<const std::byte*>(memory);
  const std::lock_guard lock(memory_mutex);
  const auto after = pinned.upper_bound(at);
  return after != pinned.begin() && at < std::prev(after)->first + std::prev(after)->second;
}

// Waits for all that runs. CUDA does for the GPU of the current context; the double's tests hold streams of one.
void wait_for_gpu() {
  if (!waits) return;
  std::vector<std::shared_ptr<Stream>> all;
  {
    const std::lock_guard lock(memory_mutex);
    for (const auto& [handle, stream] : streams) all.push_back(stream);
  }
  for (const auto& stream : all) stream->synchronize();
}

}  // namespace

bool has_context() { return !contexts.empty(); }

int current_device() {
  return contexts.empty() ? -1 : static_cast<int>(static_cast<char*>(contexts.back()) - contexts_of_devices.data());
}

}  // namespace gpu_double

using namespace gpu_double;  // NOLINT

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT Result cuInit(unsigned) { return kSuccess; }

EXPORT Result cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}

EXPORT Result cuGetErrorString(Result error, const char** text) {
  switch (error) {
    case kOutOfMemory: *text = "out of memory"; break;
    case kInvalidContext: *text = "invalid context"; break;
    case kNotSupported: *text = "operation not supported"; break;
    default: *text = "an error";
  }
  return kSuccess;
}

EXPORT Result cuDeviceGet(int* device, int ordinal) {
  if (ordinal < 0 || ordinal >= setting("GPU_DOUBLE_DEVICES", 8)) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

EXPORT Result cuDeviceGetCount(int* count) {
  *count = static_cast<int>(setting("GPU_DOUBLE_DEVICES", 8));
  return kSuccess;
}

EXPORT Result cuDeviceGetPCIBusId(char* address, int bytes, int device) {
  const long gpu = device / setting("GPU_DOUBLE_INSTANCES", 1);
  std::snprintf(address, static_cast<std::size_t>(bytes), "0000:%02lx:00.0", gpu + 0x10);
  return kSuccess;
}

EXPORT Result cuDeviceGetUuid_v2(void* uuid, int device) {
  std::array<char, 16> bytes{};
  bytes[0] = static_cast<char>(device + 1);
  std::memcpy(uuid, bytes.data(), bytes.size());
  return kSuccess;
}

EXPORT Result cuDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case 75: *value = static_cast<int>(setting("GPU_DOUBLE_CAPABILITY", 90)) / 10; break;
    case 76: *value = static_cast<int>(setting("GPU_DOUBLE_CAPABILITY", 90)) % 10; break;
    case 16: *value = 4; break;
    case 115: *value = 1; break;
    default: return kInvalidValue;
  }
  return kSuccess;
}

EXPORT Result cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = &contexts_of_devices[device];
  return kSuccess;
}

EXPORT Result cuCtxPushCurrent_v2(void* context) {
  if (broken != kSuccess) return broken;
  contexts.push_back(context);
  return kSuccess;
}

EXPORT Result cuCtxPopCurrent_v2(void** context) {
  if (contexts.empty()) return kInvalidContext;
  *context = contexts.back();
  contexts.pop_back();
  return kSuccess;
}

EXPORT Result cuCtxGetDevice(int* device) {
  *device = current_device();
  return *device < 0 ? kInvalidContext : kSuccess;
}

EXPORT Result cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return kSuccess;
}

EXPORT Result cuStreamCreateWithPriority(void** stream, unsigned, int) {
  if (contexts.empty()) return kInvalidContext;
  const auto made = std::make_shared<Stream>();
  *stream = made.get();
  const std::lock_guard lock(memory_mutex);
  streams.emplace(made.get(), made);
  return kSuccess;
}

EXPORT Result cuStreamDestroy_v2(void* stream) {
  // CUDA returns at once; joining here would wait for what only another thread lets go on.
  const std::lock_guard lock(memory_mutex);
  const auto found = streams.find(stream);
  std::thread([last = std::move(found->second)]() mutable { last.reset(); }).detach();
  streams.erase(found);
  return kSuccess;
}

EXPORT Result cuStreamSynchronize(void* stream) {
  if (is_captured(stream)) return invalidate(stream, kCaptureUnsupported);
  if (const Result result = unsafe_call(); result != kSuccess) return result;
  stream_of(stream).synchronize();
  return kSuccess;
}

EXPORT Result cuStreamQuery(void* stream) {
  if (is_captured(stream)) return invalidate(stream, kCaptureUnsupported);
  if (const Result result = unsafe_call(); result != kSuccess) return result;
  return stream_of(stream).idle() ? kSuccess : kNotReady;
}

EXPORT Result cuEventCreate(void** event, unsigned) {
  if (contexts.empty()) return kInvalidContext;
  *event = new std::shared_ptr<Event>(new Event);
  return kSuccess;
}

EXPORT Result cuEventDestroy_v2(void* event) {
  delete static_cast<std::shared_ptr<Event>*>(event);
  return kSuccess;
}

EXPORT Result cuEventRecord(void* handle, void* stream) {
  if (contexts.empty()) return kInvalidContext;
  const std::shared_ptr<Event> event = event_of(handle);
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(event->mutex);
    event->captured = captured_at(stream);
    if (event->captured.capture != nullptr) return kSuccess;  // an edge of the graph
    number = ++event->recorded;
  }
  stream_of(stream).push([event, number] {
    const std::lock_guard lock(event->mutex);
    event->reached = std::max(event->reached, number);  // a stream that it was recorded in before may come to it later
    event->changed.notify_all();
  });
  return kSuccess;
}

EXPORT Result cuEventQuery(void* handle) {
  ++event_queries;
  if (broken != kSuccess) return broken;
  if (const Result result = unsafe_call(); result != kSuccess) return result;
  const std::shared_ptr<Event>& event = event_of(handle);
  const std::lock_guard lock(event->mutex);
  if (event->captured.capture != nullptr) return invalidate(event->captured.stream, kCapturedEvent);
  return event->reached >= event->recorded ? kSuccess : kNotReady;
}

EXPORT Result cuStreamWaitEvent(void* stream, void* handle, unsigned) {
  const std::shared_ptr<Event> event = event_of(handle);
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(event->mutex);
    if (event->captured.capture != nullptr) return wait_in_capture(stream, event->captured);
    number = event->recorded;
  }
  if (is_captured(stream)) return invalidate(stream, kCaptureIsolation);
  stream_of(stream).push([event, number] {
    std::unique_lock lock(event->mutex);
    event->changed.wait(lock, [&] { return event->reached >= number; });
  });
  return kSuccess;
}

EXPORT Result cuMemAlloc_v2(Pointer* memory, std::size_t bytes) {
  if (const Result result = unsafe_call(); result != kSuccess) return result;
  *memory = allocate(bytes);
  return *memory == 0 ? kOutOfMemory : kSuccess;
}

EXPORT Result cuMemFree_v2(Pointer memory) {
  check_free(reinterpret_cast<const void*>(memory));
  if (const Result result = unsafe_call(); result != kSuccess) return result;
  wait_for_gpu();
  release(memory);
  return kSuccess;
}

EXPORT Result cuMemAllocAsync(Pointer* memory, std::size_t bytes, void* stream) {
  if (contexts.empty()) return kInvalidContext;
  if (is_captured(stream)) return invalidate(stream, kCaptureUnsupported);
  *memory = allocate(bytes, true);
  return *memory == 0 ? kOutOfMemory : kSuccess;
}

EXPORT Result cuMemFreeAsync(Pointer memory, void* stream) {
  check_free(reinterpret_cast<const void*>(memory));
  if (is_captured(stream)) return invalidate(stream, kCaptureUnsupported);
  stream_of(stream).push([memory] { release(memory); });
  return kSuccess;
}

EXPORT Result cuMemHostAlloc(void** memory, std::size_t bytes, unsigned) {
  if (const Result result = unsafe_call(); result != kSuccess) return result;
  wait_for_gpu();
  *memory = ::operator new(bytes);
  const std::lock_guard lock(memory_mutex);
  pinned.emplace(static_cast<std::byte*>(*memory), bytes);
  return kSuccess;
}

EXPORT Result cuMemFreeHost(void* memory) {
  if (const Result result = unsafe_call(); result != kSuccess) return result;
  wait_for_gpu();
  {
    const std::lock_guard lock(memory_mutex);
    pinned.erase(static_cast<std::byte*>(memory));
  }
  ::operator delete(memory);
  return kSuccess;
}

EXPORT Result cuMemcpyHtoDAsync_v2(Pointer to, const void* from, std::size_t bytes, void* stream) {
  if (waits && !is_pinned(from)) stream_of(stream).synchronize();
  return copy(visible(to), static_cast<const std::byte*>(from), bytes, stream);
}

EXPORT Result cuMemcpyDtoHAsync_v2(void* to, Pointer from, std::size_t bytes, void* stream) {
  const Result result = copy(static_cast<std::byte*>(to), visible(from), bytes, stream);
  if (waits && !is_pinned(to)) stream_of(stream).synchronize();
  return result;
}

EXPORT Result cuMemcpyDtoDAsync_v2(Pointer to, Pointer from, std::size_t bytes, void* stream) {
  return copy(visible(to), visible(from), bytes, stream);
}

EXPORT Result cuMemsetD2D32Async(Pointer to, std::size_t pitch, unsigned value, std::size_t width, std::size_t height,
                                 void* stream) {
  if (contexts.empty()) return kInvalidContext;
  return give(stream, [=] {
    for (std::size_t row = 0; row < height; ++row) {
      auto* words = reinterpret_cast<unsigned*>(visible(to) + row * pitch);
      // Streams may wait for such a word.
      for (std::size_t i = 0; i < width; ++i) std::atomic_ref(words[i]).store(value, std::memory_order_relaxed);
    }
  });
}

// Of tests: the device that this process's tensors lie on.
EXPORT Result cuPointerGetAttribute(void* value, int attribute, Pointer pointer) {
  if (attribute != 9 || !is_device_address(pointer)) return kInvalidValue;
  const int device = static_cast<int>(setting("GPU_DOUBLE_DEVICE", 0));
  std::memcpy(value, &device, sizeof(device));
  return kSuccess;
}

EXPORT Result cuModuleLoadData(void** module, const void* image) {
  if (contexts.empty()) return kInvalidContext;
  if (const Result result = unsafe_call(); result != kSuccess) return result;
  *module = const_cast<void*>(image);
  return kSuccess;
}

EXPORT Result cuModuleGetFunction(void** function, void*, const char* name) {
  *function = const_cast<Kernel*>(find_kernel(name));
  return *function == nullptr ? kNotFound : kSuccess;
}

EXPORT Result cuLaunchKernel(void* function, unsigned, unsigned grid_y, unsigned, unsigned, unsigned, unsigned,
                             unsigned, void* stream, void** parameters, void**) {
  if (contexts.empty()) return kInvalidContext;
  return give(stream, bind_kernel(*static_cast<const Kernel*>(function), grid_y, parameters[0]));
}

// NVRTC: what it compiles is what find_kernel knows.

namespace {

constexpr std::array kArchitectures{75, 80, 90, 100, 120};

struct Program {
  std::string source;
  bool is_code = false;  // of one architecture; else PTX alone
};

}  // namespace

EXPORT int nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 0;
  return 0;
}

EXPORT int nvrtcCreateProgram(void** program, const char* source, const char*, int, const char* const*,
                              const char* const*) {
  *program = new Program{source};
  return 0;
}

EXPORT int nvrtcGetNumSupportedArchs(int* count) {
  *count = static_cast<int>(kArchitectures.size());
  return 0;
}

EXPORT int nvrtcGetSupportedArchs(int* capabilities) {
  std::copy(kArchitectures.begin(), kArchitectures.end(), capabilities);
  return 0;
}

EXPORT int nvrtcCompileProgram(void* program, int count, const char* const* options) {
  if (setting("GPU_DOUBLE_NVRTC", 1) != 1) return 6;
  for (const std::string_view option : std::span(options, static_cast<std::size_t>(count))) {
    const std::size_t number = option.rfind('_');
    if (!option.starts_with("--gpu-architecture=")) continue;
    const int capability = std::atoi(option.substr(number + 1).data());
    if (std::count(kArchitectures.begin(), kArchitectures.end(), capability) == 0) return 5;  // invalid option
    static_cast<Program*>(program)->is_code = option.find("=sm_") != option.npos;
  }
  return 0;
}

EXPORT int nvrtcDestroyProgram(void** program) {
  delete static_cast<Program*>(*program);
  return 0;
}

EXPORT int nvrtcGetCUBINSize(void* program, std::size_t* bytes) {
  const auto& made = *static_cast<Program*>(program);
  *bytes = made.is_code ? made.source.size() : 0;
  return 0;
}

EXPORT int nvrtcGetPTXSize(void* program, std::size_t* bytes) {
  *bytes = static_cast<Program*>(program)->source.size() + 1;
  return 0;
}

EXPORT int nvrtcGetPTX(void* program, char* text) {
  const auto& source = static_cast<Program*>(program)->source;
  std::memcpy(text, source.c_str(), source.size() + 1);
  return 0;
}

EXPORT int nvrtcGetCUBIN(void* program, char* cubin) {
  const auto& source = static_cast<Program*>(program)->source;
  std::memcpy(cubin, source.data(), source.size());
  return 0;
}

EXPORT int nvrtcGetProgramLogSize(void*, std::size_t* bytes) {
  *bytes = 8;
  return 0;
}

EXPORT int nvrtcGetProgramLog(void*, char* log) {
  std::memcpy(log, "refused", 8);
  return 0;
}

// Of tests alone: what a stream is given runs only after it was let go.

namespace gpu_double {
namespace {

struct Gate {
  std::mutex mutex;  // Guards: open.
  std::condition_variable changed;
  bool open = false;
};

std::mutex gates_mutex;  // Guards: gates.
std::map<void*, std::shared_ptr<Gate>> gates;

}  // namespace
}  // namespace gpu_double

// How often events have been asked for.
EXPORT int gpu_double_event_queries() { return event_queries; }

// From now on every call of the driver that looks at the GPU returns this; 0: none.
EXPORT void gpu_double_break(int result) { broken = result; }

// See `waits`.
EXPORT void gpu_double_wait(int wait) { waits = wait != 0; }

EXPORT void gpu_double_hold(void* stream) {
  const auto gate = std::make_shared<Gate>();
  {
    const std::lock_guard lock(gates_mutex);
    gates[stream] = gate;
  }
  stream_of(stream).push([gate] {
    std::unique_lock lock(gate->mutex);
    gate->changed.wait(lock, [&] { return gate->open; });
  });
}

EXPORT void gpu_double_let_go(void* stream) {
  std::shared_ptr<Gate> gate;
  {
    const std::lock_guard lock(gates_mutex);
    gate = std::move(gates[stream]);
    gates.erase(stream);
  }
  const std::lock_guard lock(gate->mutex);
  gate->open = true;
  gate->changed.notify_all();
}
