#include "device/communicator.hpp"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "device/libraries.hpp"

namespace ringcore::device {

std::optional<int> nccl_dtype(DType dtype) {
  switch (dtype) {
    case DType::kUInt8:
    case DType::kBool: return nccl::kUint8;
    case DType::kInt8: return nccl::kInt8;
    case DType::kInt32: return nccl::kInt32;
    case DType::kInt64: return nccl::kInt64;
    case DType::kFloat16: return nccl::kFloat16;
    case DType::kBFloat16: return nccl::kBfloat16;
    case DType::kFloat32: return nccl::kFloat32;
    case DType::kFloat64: return nccl::kFloat64;
    case DType::kUInt16:
    case DType::kInt16: return std::nullopt;
  }
  __builtin_unreachable();
}

int nccl_op(DType dtype, ReduceOp op) {
  const bool logical = dtype == DType::kBool;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage: return logical ? nccl::kMax : nccl::kSum;
    case ReduceOp::kMin: return nccl::kMin;
    case ReduceOp::kMax: return nccl::kMax;
    case ReduceOp::kProduct: return logical ? nccl::kMin : nccl::kProd;
  }
  __builtin_unreachable();
}

UniqueId Communicator::make_id() {
  UniqueId id{};
  const nccl::Result result = nccl_api().ncclGetUniqueId(&id);
  if (result != nccl::kSuccess) {
    throw Error(ErrorKind::kResource, std::string("ncclGetUniqueId: ") + nccl_api().ncclGetErrorString(result));
  }
  return id;
}

Registering Communicator::registering() {
  const Nccl& nccl = nccl_api();
  if (nccl.ncclMemAlloc == nullptr || nccl.ncclMemFree == nullptr || nccl.ncclCommRegister == nullptr ||
      nccl.ncclCommDeregister == nullptr) {
    return Registering::kNone;
  }
  const bool windows = nccl.ncclCommWindowRegister != nullptr && nccl.ncclCommWindowDeregister != nullptr;
  return windows ? Registering::kWindow : Registering::kLocal;
}

Communicator::Communicator(Device& device, const UniqueId& id, int rank, int ranks) : device_(device) {
  const Device::Current current(device);
  nccl::Config config;
  check(nccl_api().ncclCommInitRankConfig(&comm_, ranks, id, rank, &config), "ncclCommInitRankConfig");
  in_progress_ = true;
}

Communicator::~Communicator() {
  if (comm_ == nullptr) return;
  const Device::Current current(device_, std::nothrow);
  if (!current) return;
  // Destroying waits for what other ranks still have to do; aborting does not.
  end(in_progress_ ? nccl_api().ncclCommAbort : nccl_api().ncclCommDestroy);
}

// NCCL forgets what it was told of then, and until then it may use it.
void Communicator::end(nccl::Result (*call)(nccl::Comm)) {
  nccl::Comm comm = std::exchange(comm_, nullptr);
  const auto registrations = std::make_shared<const std::list<Registration>>(std::move(registrations_));
  registrations_.clear();
  if (!captured_) {
    call(comm);
    return;
  }
  std::thread([call, comm, registrations, &device = device_] {
    if (const Device::Current current(device, std::nothrow); current) call(comm);
  }).detach();
}

bool Communicator::ready() {
  if (comm_ == nullptr) throw Error(ErrorKind::kShutdown, "NCCL's communicator was aborted");
  nccl::Result state = nccl::kSuccess;
  check(nccl_api().ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError");
  if (state != nccl::kSuccess && state != nccl::kInProgress) fail(state, "NCCL");
  in_progress_ = state == nccl::kInProgress;
  if (!in_progress_ && std::exchange(registers_, false)) settle(registrations_.back());
  return !in_progress_;
}

void Communicator::register_memory(std::shared_ptr<const Memory> memory, Registering how) {
  Registration& registration = registrations_.emplace_back(Registration{std::move(memory), how});
  registers_ = true;
  if (how == Registering::kLocal) return;
  const Memory& range = *registration.memory;
  check(nccl_api().ncclCommWindowRegister(comm_, range.data(), range.size(), &registration.window,
                                          nccl::kWindowSymmetric),
        "ncclCommWindowRegister");
}

// NCCL gives no window where these GPUs, or its settings, have none: on all ranks alike.
void Communicator::settle(Registration& registration) {
  if (registration.window != nullptr) return;
  const Device::Current current(device_);
  const Memory& range = *registration.memory;
  check(nccl_api().ncclCommRegister(comm_, range.data(), range.size(), &registration.handle), "ncclCommRegister");
}

void Communicator::deregister_memory(const Memory& memory) {
  const auto found = std::find_if(registrations_.begin(), registrations_.end(),
                                  [&](const Registration& item) { return item.memory.get() == &memory; });
  if (found == registrations_.end()) return;
  const Registration known = std::move(*found);
  registrations_.erase(found);
  if (known.window != nullptr) {
    check(nccl_api().ncclCommWindowDeregister(comm_, known.window), "ncclCommWindowDeregister");
  } else if (known.handle != nullptr) {
    check(nccl_api().ncclCommDeregister(comm_, known.handle), "ncclCommDeregister");
  }
}

void Communicator::abort() {
  if (comm_ == nullptr) return;
  const Device::Current current(device_);
  end(nccl_api().ncclCommAbort);
}

void Communicator::check(nccl::Result result, const char* call) {
  if (result == nccl::kSuccess) return;
  if (result != nccl::kInProgress) fail(result, call);
  in_progress_ = true;
}

void Communicator::fail(nccl::Result result, const char* call) const {
  const bool lost = result == nccl::kRemoteError || result == nccl::kSystemError;
  const char* detail = nccl_api().ncclGetLastError(comm_);
  throw Error(lost ? ErrorKind::kPeerLost : ErrorKind::kResource,
              std::string(call) + ": " + nccl_api().ncclGetErrorString(result) + " (NCCL error " +
                  std::to_string(result) + ")" +
                  (detail == nullptr || *detail == '\0' ? "" : std::string(": ") + detail) +
                  ". Remedy: set NCCL_DEBUG=WARN to see more; shutdown() and init() make this process usable again.");
}

void Communicator::all_reduce(const void* from, void* to, std::size_t count, int dtype, int op, cuda::Stream stream) {
  check(nccl_api().ncclAllReduce(from, to, count, dtype, op, comm_, stream), "ncclAllReduce");
}

void Communicator::reduce(const void* from, void* to, std::size_t count, int dtype, int op, int root,
                          cuda::Stream stream) {
  check(nccl_api().ncclReduce(from, to, count, dtype, op, root, comm_, stream), "ncclReduce");
}

void Communicator::reduce_scatter(const void* from, void* to, std::size_t count_each, int dtype, int op,
                                  cuda::Stream stream) {
  check(nccl_api().ncclReduceScatter(from, to, count_each, dtype, op, comm_, stream), "ncclReduceScatter");
}

void Communicator::all_gather(const void* from, void* to, std::size_t count_each, int dtype, cuda::Stream stream) {
  check(nccl_api().ncclAllGather(from, to, count_each, dtype, comm_, stream), "ncclAllGather");
}

void Communicator::broadcast(const void* from, void* to, std::size_t count, int dtype, int root, cuda::Stream stream) {
  check(nccl_api().ncclBroadcast(from, to, count, dtype, root, comm_, stream), "ncclBroadcast");
}

void Communicator::send(const void* from, std::size_t bytes, int peer, cuda::Stream stream) {
  check(nccl_api().ncclSend(from, bytes, nccl::kUint8, peer, comm_, stream), "ncclSend");
}

void Communicator::receive(void* to, std::size_t bytes, int peer, cuda::Stream stream) {
  check(nccl_api().ncclRecv(to, bytes, nccl::kUint8, peer, comm_, stream), "ncclRecv");
}

Communicator::Group::Group(Communicator& communicator) : communicator_(communicator) {
  communicator.check(nccl_api().ncclGroupStart(), "ncclGroupStart");
}

void Communicator::Group::end() {
  open_ = false;
  communicator_.check(nccl_api().ncclGroupEnd(), "ncclGroupEnd");
}

Communicator::Group::~Group() {
  if (open_) nccl_api().ncclGroupEnd();
}

}  // namespace ringcore::device
