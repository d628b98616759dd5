#include "capi/capi.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <pthread.h>
#include <unistd.h>

#include "carriers/gpu/tensor.hpp"
#include "transport/copy.hpp"

namespace {

using ringcore::Error;
using ringcore::ErrorKind;
using ringcore::Runtime;
using ringcore::engine::Array;
using ringcore::engine::Call;
using ringcore::engine::Operation;
using ringcore::engine::Shape;

static_assert(RINGCORE_REDUCE == static_cast<int>(ringcore::Collective::kReduce));
static_assert(RINGCORE_GATHER == static_cast<int>(ringcore::Collective::kGather));
static_assert(RINGCORE_SCATTER == static_cast<int>(ringcore::Collective::kScatter));
static_assert(RINGCORE_BARRIER == static_cast<int>(ringcore::Collective::kBarrier));
static_assert(RINGCORE_JOIN == ringcore::kCollectiveCount);
static_assert(RINGCORE_AVERAGE == static_cast<int>(ringcore::ReduceOp::kAverage));
static_assert(RINGCORE_PRODUCT == static_cast<int>(ringcore::ReduceOp::kProduct));
static_assert(RINGCORE_BOOL == static_cast<int>(ringcore::DType::kBool));
static_assert(RINGCORE_BOOL + 1 == ringcore::kDTypeCount);

// Smaller tensors are packed with others.
constexpr std::size_t kMinRegisteredBytes = 32 * 1024;

std::mutex mutex;  // Guards: current, place, pool.
std::weak_ptr<Runtime> current;
ringcore::capi::Place place;
std::weak_ptr<ringcore::transport::Pool> pool;
std::atomic<std::uint32_t> told;  // see told_epoch

std::shared_ptr<Runtime> runtime() {
  const std::lock_guard lock(mutex);
  return current.lock();
}

std::int32_t code_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument: return RINGCORE_INVALID_ARGUMENT;
    case ErrorKind::kMismatch: return RINGCORE_MISMATCH;
    case ErrorKind::kDuplicateName: return RINGCORE_DUPLICATE_NAME;
    case ErrorKind::kDeadlock: return RINGCORE_DEADLOCK;
    case ErrorKind::kTimeout: return RINGCORE_TIMEOUT;
    case ErrorKind::kPeerLost: return RINGCORE_PEER_LOST;
    case ErrorKind::kProtocol: return RINGCORE_PROTOCOL;
    case ErrorKind::kResource: return RINGCORE_RESOURCE;
    case ErrorKind::kShutdown: return RINGCORE_SHUTDOWN;
    case ErrorKind::kMembershipChanged: return RINGCORE_MEMBERSHIP_CHANGED;
    case ErrorKind::kEvicted: return RINGCORE_EVICTED;
  }
  __builtin_unreachable();
}

std::string message_of(const Error& error) { return std::string(name_of(error.kind())) + ": " + error.what(); }

Array array_of(const ringcore_request& request, const ringcore_array& array) {
  if (array.dtype < 0 || array.dtype >= ringcore::kDTypeCount) {
    throw Error(ErrorKind::kInvalidArgument, "there is no dtype " + std::to_string(array.dtype));
  }
  return {static_cast<std::byte*>(array.data), Shape::of({array.shape, static_cast<std::size_t>(array.dims)}),
          static_cast<ringcore::DType>(array.dtype), request.on_gpu != 0 ? request.gpu : ringcore::engine::kHost,
          reinterpret_cast<std::uintptr_t>(request.stream)};
}

std::shared_ptr<Operation> operation_of(const ringcore_request& request) {
  const auto set = static_cast<ringcore::engine::ProcessSetId>(request.process_set);
  if (request.collective == RINGCORE_JOIN) {
    auto operation = std::make_shared<Operation>();
    operation->join = true;
    operation->process_set = set;
    return operation;
  }
  const std::string name(request.name, request.name_bytes);
  const Call call{static_cast<ringcore::Collective>(request.collective),
                  name,
                  static_cast<ringcore::ReduceOp>(request.op),
                  request.root,
                  request.prescale,
                  request.postscale,
                  set,
                  request.priority,
                  static_cast<ringcore::Compression>(request.compression)};
  call.check();
  static constexpr Array kNothing{.shape = {.dims = 1}};
  if (request.count == 0) return ringcore::engine::make_operation(call, kNothing, nullptr);
  std::vector<std::shared_ptr<Operation>> parts;
  parts.reserve(request.count);
  for (std::size_t i = 0; i < request.count; ++i) {
    const Array input = array_of(request, request.inputs[i]);
    Array output = input;
    if (request.outputs != nullptr) output.data = static_cast<std::byte*>(request.outputs[i]);
    if (request.output_rows != nullptr) {
      output.shape.dims = std::max<std::uint8_t>(output.shape.dims, 1);
      output.shape.extent[0] = request.output_rows[i];
    }
    parts.push_back(ringcore::engine::make_operation(call, input, request.outputs != nullptr ? &output : nullptr));
  }
  auto operation = parts.size() == 1 ? std::move(parts.front())
                                     : ringcore::engine::make_group(name, std::move(parts), request.owns_gaps != 0);
  for (std::size_t i = 0; i < request.split_count; ++i) operation->splits.push_back(request.splits[i]);
  return operation;
}

}  // namespace

struct ringcore_operation {
  std::shared_ptr<Operation> operation;
  std::int32_t code = RINGCORE_OK;
  std::string message;

  Operation& part(std::size_t index) const {
    return operation->parts.empty() ? *operation : *operation->parts.at(index);
  }
};

struct ringcore_memory {
  // A result,
  ringcore::Memory memory;
  // or a piece of the pool.
  std::shared_ptr<ringcore::transport::Pool> pool;
  std::byte* piece = nullptr;
  pid_t pid = ::getpid();  // a forked child shares the pages with its parent, which gives them back

  ~ringcore_memory() {
    if (pool != nullptr && ::getpid() == pid) pool->release(piece);
  }
};

namespace ringcore::capi {
namespace {

void end(ringcore_done done, void* context, const std::shared_ptr<Operation>& operation) {
  ringcore_operation ended{.operation = operation};
  for (std::uint32_t known = told; known < operation->epoch && !told.compare_exchange_weak(known, operation->epoch);) {
  }
  if (operation->error != nullptr) {
    ended.code = code_of(operation->error->kind());
    ended.message = message_of(*operation->error);
  }
  done(context, &ended);
}

void submit(const ringcore_request* request, ringcore_done done, void* context) {
  const std::shared_ptr<Runtime> engine = runtime();
  ringcore_operation refused{
      .code = RINGCORE_NOT_INITIALIZED,
      .message = "NotInitializedError: ringcore is not initialized in this process. Remedy: call init() first."};
  if (engine == nullptr) return done(context, &refused);
  try {
    const std::shared_ptr<Operation> operation = operation_of(*request);
    if (request->blocking != 0) {
      engine->run(operation, {}, Runtime::Caller::kUnknown);
      return end(done, context, operation);
    }
    operation->awaited = true;
    operation->on_done = [done, context](const std::shared_ptr<Operation>& ended) { end(done, context, ended); };
    return engine->submit(operation);
  } catch (const Error& error) {
    refused.code = code_of(error.kind());
    refused.message = message_of(error);
  } catch (const std::bad_alloc&) {  // before the engine knew of it: it fails by itself when it has not enough
    refused.code = RINGCORE_RESOURCE;
    refused.message = "ResourceError: there is no memory left for another operation. Remedy: use fewer ranks a host.";
  }
  done(context, &refused);
}

std::int32_t error(const ringcore_operation* operation, const char** message) {
  *message = operation->message.c_str();
  return operation->code;
}

ringcore_memory* take_result(ringcore_operation* operation, std::size_t index, void** data, std::size_t* bytes) {
  auto* memory = new ringcore_memory{.memory = std::move(operation->part(index).result)};
  *data = memory->memory.data();
  *bytes = memory->memory.size();
  return memory;
}

void free_memory(ringcore_memory* memory) { delete memory; }

const std::uint64_t* rows(const ringcore_operation* operation, std::size_t index, std::size_t* count) {
  const std::vector<std::uint64_t>& rows = operation->part(index).result_rows;
  *count = rows.size();
  return rows.data();
}

std::int32_t hold_back(const ringcore_operation* operation, void* stream) {
  try {
    carriers::hold_back(*operation->operation, reinterpret_cast<std::uintptr_t>(stream));
    return RINGCORE_OK;
  } catch (const Error& error) {
    return code_of(error.kind());
  }
}

std::size_t copy_result(ringcore_operation* operation, std::size_t index, void* target, std::size_t bytes,
                        void* stream) {
  try {
    return carriers::copy_result(operation->part(index), target, bytes, reinterpret_cast<std::uintptr_t>(stream));
  } catch (const Error&) {
    return SIZE_MAX;
  }
}

std::int32_t last_joined(const ringcore_operation* operation) { return operation->operation->last_joined; }

std::int32_t rank(std::int32_t process_set) {
  const std::shared_ptr<Runtime> engine = runtime();
  return engine == nullptr ? -1 : engine->rank(static_cast<engine::ProcessSetId>(process_set));
}

std::int32_t size(std::int32_t process_set) {
  const std::shared_ptr<Runtime> engine = runtime();
  return engine == nullptr ? -1 : engine->size(static_cast<engine::ProcessSetId>(process_set));
}

std::int32_t local_rank() {
  const std::lock_guard lock(mutex);
  return current.expired() ? -1 : place.local_rank;
}

std::int32_t local_size() {
  const std::lock_guard lock(mutex);
  return current.expired() ? -1 : place.local_size;
}

ringcore_memory* allocate(std::size_t bytes, void** data) {
  if (bytes < kMinRegisteredBytes) return nullptr;
  std::shared_ptr<transport::Pool> from;
  {
    const std::lock_guard lock(mutex);
    from = pool.lock();
  }
  if (from == nullptr) return nullptr;
  try {
    std::byte* piece = from->allocate(bytes);
    *data = piece;
    return new ringcore_memory{.pool = std::move(from), .piece = piece};
  } catch (const Error&) {  // no room: then in any memory
    return nullptr;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void copy(void* to, const void* from, std::size_t bytes) {
  transport::copy_to_peer(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes);
}

// In a forked child.
void forget_runtime() {
  new (&mutex) std::mutex;  // another thread of the parent may have held it
  new (&current) std::weak_ptr<Runtime>;
  new (&pool) std::weak_ptr<transport::Pool>;
}

}  // namespace

const ringcore_functions* table() {
  static constexpr ringcore_functions kFunctions{
      RINGCORE_VERSION, submit,     error,    take_result, free_memory, rows,       last_joined, rank, size,
      local_rank,       local_size, allocate, copy,        hold_back,   copy_result};
  return &kFunctions;
}

void begin_epochs(std::uint32_t first) { told = first; }

std::uint32_t told_epoch() { return told; }

void set_runtime(std::weak_ptr<Runtime> runtime, Place where, std::weak_ptr<transport::Pool> memory) {
  static const int registered = ::pthread_atfork(nullptr, nullptr, &forget_runtime);
  if (registered != 0) throw Error(ErrorKind::kResource, "pthread_atfork has no memory left");
  const std::lock_guard lock(mutex);
  current = std::move(runtime);
  place = where;
  pool = std::move(memory);
}

}  // namespace ringcore::capi
