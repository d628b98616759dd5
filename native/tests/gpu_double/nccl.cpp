// The functions of NCCL that ringcore uses (device/nccl_api.hpp).
#include <atomic>
#include <cstring>
#include <vector>

#include <unistd.h>

#include "capture.hpp"
#include "communicator.hpp"
#include "double.hpp"
#include "memory.hpp"
#include "registration.hpp"

struct ncclComm {
  std::shared_ptr<gpu_double::Communicator> communicator;
  // As in NCCL: it ends only when no graph has a collective of it any more.
  std::shared_ptr<const int> graphs = std::make_shared<const int>();

  ~ncclComm() {
    while (graphs.use_count() > 1) ::usleep(1000);
    communicator->wait_for_meeting();
    gpu_double::remove_registrations(this);
  }
};

namespace gpu_double {
namespace {

struct UniqueId {
  char bytes[128];
};

struct Config {
  std::size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
};

struct Queued {
  ncclComm* comm;
  void* stream;
  Call call;
};

std::atomic<int> aborts = 0;
thread_local int depth = 0;
thread_local std::vector<Queued> queued;

// Calls of one communicator and stream run as one piece of work.
int launch() {
  std::vector<Queued> waiting = std::move(queued);
  queued.clear();
  while (!waiting.empty()) {
    ncclComm* comm = waiting.front().comm;
    void* stream = waiting.front().stream;
    std::vector<Call> calls;
    std::vector<Queued> others;
    for (Queued& item : waiting) {
      if (item.comm == comm && item.stream == stream) {
        calls.push_back(item.call);
      } else {
        others.push_back(item);
      }
    }
    waiting = std::move(others);
    const std::shared_ptr<const int> graph = is_captured(stream) ? comm->graphs : nullptr;
    const auto run = [graph, communicator = comm->communicator, calls = std::move(calls)] { communicator->run(calls); };
    if (give(stream, run) != 0) return kUnhandledCudaError;
  }
  return kSuccess;
}

int call(ncclComm* comm, void* stream, const Call& called) {
  if (comm->communicator->state() != kSuccess) return kInvalidUsage;  // not connected, or failed
  if (called.peer < 0 || called.peer >= comm->communicator->size()) return kInvalidArgument;
  queued.push_back({comm, stream, called});
  Call& last = queued.back().call;
  // Of what NCCL's documentation names; the others may be mixed.
  if (last.kind == Kind::kAllReduce) {
    const std::size_t bytes = bytes_of(last);
    last.from_registered = find_registration(comm, last.from, bytes);
    last.to_registered = find_registration(comm, last.to, bytes);
  }
  return depth == 0 ? launch() : kSuccess;
}

}  // namespace
}  // namespace gpu_double

using namespace gpu_double;  // NOLINT

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int ncclGetVersion(int* version) {
  *version = static_cast<int>(setting("GPU_DOUBLE_NCCL_VERSION", 23203));
  return kSuccess;
}

EXPORT const char* ncclGetErrorString(int result) {
  return result == kRemoteError ? "remote process exited or there was a network error" : "internal error";
}

EXPORT const char* ncclGetLastError(ncclComm*) { return ""; }

EXPORT int ncclGetUniqueId(UniqueId* id) {
  const std::string name = open_hub();
  if (name.empty()) return kInternalError;
  std::memset(id, 0, sizeof(*id));
  std::memcpy(id->bytes, name.data(), name.size());
  return kSuccess;
}

EXPORT int ncclCommInitRankConfig(ncclComm** comm, int ranks, UniqueId id, int rank, Config* config) {
  if (config->magic != 0xcafebeef || config->blocking != 0 || rank < 0 || rank >= ranks) return kInvalidArgument;
  const int device = current_device();
  if (device < 0) return kUnhandledCudaError;
  *comm = new ncclComm{std::make_shared<Communicator>(id.bytes, rank, ranks, device)};
  return kInProgress;
}

EXPORT int ncclCommGetAsyncError(ncclComm* comm, int* error) {
  *error = comm->communicator->state();
  return kSuccess;
}

EXPORT int ncclCommDestroy(ncclComm* comm) {
  delete comm;
  return kSuccess;
}

EXPORT int ncclCommAbort(ncclComm* comm) {
  ++aborts;
  comm->communicator->abort();
  delete comm;
  return kSuccess;
}

EXPORT int ncclMemAlloc(void** memory, std::size_t bytes) {
  if (!has_context() || unsafe_call() != 0) return kUnhandledCudaError;
  *memory = allocate_for_nccl(bytes);
  return *memory == nullptr ? kUnhandledCudaError : kSuccess;
}

EXPORT int ncclMemFree(void* memory) {
  if (!has_context() || unsafe_call() != 0) return kUnhandledCudaError;
  free_of_nccl(memory);
  return kSuccess;
}

EXPORT int ncclCommRegister(ncclComm* comm, void* memory, std::size_t bytes, void** handle) {
  if (!has_context()) return kUnhandledCudaError;
  if (comm->communicator->state() != kSuccess) return kInvalidUsage;
  *handle = add_registration({comm, visible(memory), bytes, Registered::kLocally});
  return kSuccess;
}

EXPORT int ncclCommDeregister(ncclComm* comm, void* handle) {
  if (!has_context()) return kUnhandledCudaError;
  if (comm->communicator->state() != kSuccess) return kInvalidUsage;
  return remove_registration(comm, handle) ? kSuccess : kInvalidUsage;
}

EXPORT int ncclCommWindowRegister(ncclComm* comm, void* memory, std::size_t bytes, void** window, int flags) {
  *window = nullptr;
  if (!has_context()) return kUnhandledCudaError;
  if (comm->communicator->state() != kSuccess) return kInvalidUsage;
  if (bytes == 0 || flags != 1 || !is_device_address(reinterpret_cast<std::uint64_t>(memory))) return kInvalidArgument;
  if (setting("GPU_DOUBLE_WINDOWS", 1) == 0) return kSuccess;
  void* handle = add_registration({comm, visible(memory), bytes, Registered::kAsWindow});
  if (handle == nullptr) return kInvalidUsage;
  comm->communicator->meet(bytes, [window, handle] {
    unsafe_call();  // NCCL maps memory on a thread of its own
    *window = handle;
  });
  return kInProgress;
}

EXPORT int ncclCommWindowDeregister(ncclComm* comm, void* window) {
  if (!has_context()) return kUnhandledCudaError;
  if (comm->communicator->state() != kSuccess) return kInvalidUsage;
  return remove_registration(comm, window) ? kSuccess : kInvalidUsage;
}

// Of tests alone: how many communicators were aborted. NCCL then forgets what is still on its way to other hosts.
EXPORT int gpu_double_aborts() { return aborts; }

EXPORT int ncclGroupStart() {
  ++depth;
  return kSuccess;
}

EXPORT int ncclGroupEnd() { return --depth == 0 ? launch() : kSuccess; }

EXPORT int ncclAllReduce(const void* from, void* to, std::size_t count, int dtype, int op, ncclComm* comm,
                         void* stream) {
  return call(comm, stream, {Kind::kAllReduce, visible(from), visible(to), count, dtype, op, 0});
}

EXPORT int ncclReduce(const void* from, void* to, std::size_t count, int dtype, int op, int root, ncclComm* comm,
                      void* stream) {
  return call(comm, stream, {Kind::kReduce, visible(from), visible(to), count, dtype, op, root});
}

EXPORT int ncclReduceScatter(const void* from, void* to, std::size_t count, int dtype, int op, ncclComm* comm,
                             void* stream) {
  return call(comm, stream, {Kind::kReduceScatter, visible(from), visible(to), count, dtype, op, 0});
}

EXPORT int ncclAllGather(const void* from, void* to, std::size_t count, int dtype, ncclComm* comm, void* stream) {
  return call(comm, stream, {Kind::kAllGather, visible(from), visible(to), count, dtype, 0, 0});
}

EXPORT int ncclBroadcast(const void* from, void* to, std::size_t count, int dtype, int root, ncclComm* comm,
                         void* stream) {
  return call(comm, stream, {Kind::kBroadcast, visible(from), visible(to), count, dtype, 0, root});
}

EXPORT int ncclSend(const void* from, std::size_t count, int dtype, int peer, ncclComm* comm, void* stream) {
  return call(comm, stream, {Kind::kSend, visible(from), nullptr, count, dtype, 0, peer});
}

EXPORT int ncclRecv(void* to, std::size_t count, int dtype, int peer, ncclComm* comm, void* stream) {
  return call(comm, stream, {Kind::kRecv, nullptr, visible(to), count, dtype, 0, peer});
}

// Of tests alone.
// Every communicator of this process loses the others, which lose it.
EXPORT void gpu_double_disconnect() { disconnect_all(); }

EXPORT void gpu_double_stay_away(int rank) { stay_away(rank); }
