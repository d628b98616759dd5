#include "capture.hpp"

#include <map>
#include <set>
#include <utility>
#include <vector>

namespace gpu_double {

struct Capture {
  void* origin = nullptr;
  int mode = 0;
  std::thread::id thread;
  bool invalid = false;
  std::set<void*> unjoined;  // other streams that the origin has not waited for since they were given something
  std::vector<Work> nodes;
};

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kGlobal = 0;
constexpr int kRelaxed = 2;

thread_local int thread_mode = kGlobal;
std::mutex mutex;  // Guards: captures, and what is in them.

std::map<void*, std::shared_ptr<Capture>>& captures() {
  static auto& by_stream = *new std::map<void*, std::shared_ptr<Capture>>;
  return by_stream;
}

std::shared_ptr<Capture> capture_of(void* stream) {
  const auto found = captures().find(stream);
  return found == captures().end() ? nullptr : found->second;
}

}  // namespace

int give(void* stream, Work work) {
  {
    const std::lock_guard lock(mutex);
    if (const std::shared_ptr<Capture> capture = capture_of(stream)) {
      if (capture->invalid) return kCaptureInvalidated;
      capture->nodes.push_back(std::move(work));
      if (stream != capture->origin) capture->unjoined.insert(stream);
      return kSuccess;
    }
  }
  stream_of(stream).push(std::move(work));
  return kSuccess;
}

bool is_captured(void* stream) {
  const std::lock_guard lock(mutex);
  return capture_of(stream) != nullptr;
}

int unsafe_call() {
  if (thread_mode == kRelaxed) return kSuccess;
  const std::lock_guard lock(mutex);
  int result = kSuccess;
  for (const auto& [stream, capture] : captures()) {
    const bool own = capture->thread == std::this_thread::get_id();
    if (capture->mode == kRelaxed || (!own && (thread_mode != kGlobal || capture->mode != kGlobal))) continue;
    capture->invalid = true;
    result = kCaptureUnsupported;
  }
  return result;
}

int invalidate(void* stream, int result) {
  const std::lock_guard lock(mutex);
  if (const std::shared_ptr<Capture> capture = capture_of(stream)) capture->invalid = true;
  return result;
}

CapturedAt captured_at(void* stream) {
  const std::lock_guard lock(mutex);
  return {capture_of(stream), stream};
}

int wait_in_capture(void* stream, const CapturedAt& event) {
  const std::lock_guard lock(mutex);
  const auto [place, joins] = captures().try_emplace(stream, event.capture);
  if (place->second != event.capture) {
    place->second->invalid = true;
    return kCaptureMerge;
  }
  if (joins) event.capture->unjoined.insert(stream);
  if (stream == event.capture->origin) event.capture->unjoined.erase(event.stream);
  return kSuccess;
}

}  // namespace gpu_double

using namespace gpu_double;  // NOLINT

#define EXPORT extern "C" __attribute__((visibility("default")))

struct Graph {
  std::shared_ptr<const std::vector<Work>> nodes;
};

EXPORT int cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(thread_mode, *mode);
  return kSuccess;
}

EXPORT int cuStreamBeginCapture_v2(void* stream, int mode) {
  if (stream == nullptr) return kCaptureUnsupported;
  const auto capture = std::make_shared<Capture>();
  capture->origin = stream;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  const std::lock_guard lock(mutex);
  return captures().try_emplace(stream, capture).second ? kSuccess : kInvalidValue;
}

EXPORT int cuStreamIsCapturing(void* stream, int* status) {
  const std::lock_guard lock(mutex);
  const std::shared_ptr<Capture> capture = capture_of(stream);
  *status = capture == nullptr ? 0 : capture->invalid ? 2 : 1;
  return kSuccess;
}

EXPORT int cuStreamEndCapture(void* stream, Graph** graph) {
  *graph = nullptr;
  const std::lock_guard lock(mutex);
  const std::shared_ptr<Capture> capture = capture_of(stream);
  if (capture == nullptr || capture->origin != stream) return kCaptureUnmatched;
  if (capture->mode != kRelaxed && capture->thread != std::this_thread::get_id()) return kCaptureWrongThread;
  std::erase_if(captures(), [&](const auto& item) { return item.second == capture; });
  if (capture->invalid) return kCaptureInvalidated;
  if (!capture->unjoined.empty()) return kCaptureUnjoined;
  *graph = new Graph{std::make_shared<const std::vector<Work>>(std::move(capture->nodes))};
  return kSuccess;
}

EXPORT int cuGraphInstantiateWithFlags(Graph** executable, Graph* graph, unsigned long long) {
  *executable = new Graph(*graph);
  return kSuccess;
}

EXPORT int cuGraphLaunch(Graph* executable, void* stream) {
  return give(stream, [nodes = executable->nodes] {
    for (const Work& node : *nodes) node();
  });
}

EXPORT int cuGraphExecDestroy(Graph* executable) {
  delete executable;
  return kSuccess;
}

EXPORT int cuGraphDestroy(Graph* graph) {
  delete graph;
  return kSuccess;
}
