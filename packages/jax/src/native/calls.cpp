// The engine's operations as custom calls of XLA.
//
// Not linked with the engine: Python hands over the functions of ringcore.h. On the CPU a call starts its operation and
// returns a future, so that no thread of XLA waits for other ranks, and calls may start in any order: ranks agree by
// name. On a GPU it returns when the operation has been launched, and XLA's stream waits for it.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ringcore.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

const ringcore_functions* engine = nullptr;

// A call under way. XLA keeps the arrays until its promise is kept, but not what describes them.
struct Pending {
  ffi::Promise promise;
  std::string name;
  // Where results go that the engine allocates: those whose size the other ranks decide. Empty for the others.
  std::vector<ffi::Span<std::byte>> copied;
};

ffi::ErrorCode code_of(std::int32_t error) {
  switch (error) {
    case RINGCORE_INVALID_ARGUMENT:
    case RINGCORE_MISMATCH: return ffi::ErrorCode::kInvalidArgument;
    case RINGCORE_DUPLICATE_NAME: return ffi::ErrorCode::kAlreadyExists;
    case RINGCORE_DEADLOCK: return ffi::ErrorCode::kAborted;
    case RINGCORE_TIMEOUT: return ffi::ErrorCode::kDeadlineExceeded;
    case RINGCORE_PEER_LOST: return ffi::ErrorCode::kUnavailable;
    case RINGCORE_RESOURCE: return ffi::ErrorCode::kResourceExhausted;
    case RINGCORE_SHUTDOWN: return ffi::ErrorCode::kCancelled;
    case RINGCORE_NOT_INITIALIZED: return ffi::ErrorCode::kFailedPrecondition;
    default: return ffi::ErrorCode::kInternal;
  }
}

std::string wrong_size(const std::string& name, std::size_t sent, std::size_t compiled_for) {
  return "'" + name + "': the ranks sent " + std::to_string(sent) + " bytes, and this program was compiled for " +
         std::to_string(compiled_for) +
         ". Remedy: inside jit all ranks pass as many rows; after init() with another number of ranks call "
         "jax.clear_caches().";
}

// The engine's results into XLA's buffers; what is wrong, or nothing.
std::string copy_results(Pending& pending, ringcore_operation* operation) {
  for (std::size_t i = 0; i < pending.copied.size(); ++i) {
    void* data = nullptr;
    std::size_t bytes = 0;
    const std::unique_ptr<ringcore_memory, decltype(engine->free_memory)> memory(
        engine->take_result(operation, i, &data, &bytes), engine->free_memory);
    const ffi::Span<std::byte> target = pending.copied[i];
    if (bytes != target.size()) return wrong_size(pending.name, bytes, target.size());
    if (bytes > 0) std::memcpy(target.begin(), data, bytes);
  }
  return {};
}

void end(void* context, ringcore_operation* operation) {
  const std::unique_ptr<Pending> pending(static_cast<Pending*>(context));
  const char* message = nullptr;
  const std::int32_t error = engine->error(operation, &message);
  if (error != RINGCORE_OK) return pending->promise.SetError({code_of(error), message});
  std::string wrong = copy_results(*pending, operation);
  if (!wrong.empty()) return pending->promise.SetError({ffi::ErrorCode::kInvalidArgument, std::move(wrong)});
  pending->promise.SetAvailable();
}

// What describes a call to the engine, with the memory that it points to.
struct Described {
  std::vector<ringcore_array> inputs;
  std::vector<void*> outputs;
  std::vector<ffi::Span<std::byte>> copied;  // see Pending
  ringcore_request request{};

  Described(const Described&) = delete;
  Described& operator=(const Described&) = delete;
  Described(std::string_view name, std::int32_t collective, std::int32_t op, std::int32_t root,
            std::int32_t process_set, double prescale, double postscale, ffi::Span<const std::int32_t> dtypes,
            ffi::RemainingArgs arguments, ffi::RemainingRets results);
};

Described::Described(std::string_view name, std::int32_t collective, std::int32_t op, std::int32_t root,
                     std::int32_t process_set, double prescale, double postscale, ffi::Span<const std::int32_t> dtypes,
                     ffi::RemainingArgs arguments, ffi::RemainingRets results) {
  const bool in_place = collective == RINGCORE_ALLREDUCE || collective == RINGCORE_BROADCAST;
  // An argument without a result is there to keep the order of the calls.
  for (std::size_t i = 0; i < results.size(); ++i) {
    const ffi::AnyBuffer input = *arguments.get<ffi::AnyBuffer>(i);
    ffi::AnyBuffer output = **results.get<ffi::AnyBuffer>(i);
    const auto shape = input.dimensions();
    inputs.push_back({input.untyped_data(), reinterpret_cast<const std::uint64_t*>(shape.begin()),
                      static_cast<std::int32_t>(shape.size()), dtypes.begin()[i]});
    if (in_place) {
      outputs.push_back(output.untyped_data());
    } else {
      copied.emplace_back(static_cast<std::byte*>(output.untyped_data()), output.size_bytes());
    }
  }
  request.name = name.data();
  request.name_bytes = name.size();
  request.collective = collective;
  request.op = op;
  request.root = root;
  request.process_set = process_set;
  request.prescale = prescale;
  request.postscale = postscale;
  request.inputs = inputs.data();
  request.outputs = in_place ? outputs.data() : nullptr;
  request.count = inputs.size();
}

ffi::Future start(std::string_view name, std::int32_t collective, std::int32_t op, std::int32_t root,
                  std::int32_t process_set, double prescale, double postscale, ffi::Span<const std::int32_t> dtypes,
                  ffi::RemainingArgs arguments, ffi::RemainingRets results) {
  Described described(name, collective, op, root, process_set, prescale, postscale, dtypes, arguments, results);
  auto pending = std::make_unique<Pending>();
  pending->name = name;
  pending->copied = std::move(described.copied);
  ffi::Future future(pending->promise);
  engine->submit(&described.request, end, pending.release());
  return future;
}

// A call on a GPU, which lasts until its operation has been launched.
struct Launch {
  void* stream;
  std::string name;
  std::vector<ffi::Span<std::byte>> copied;
  ffi::Error outcome = ffi::Error::Success();
};

void end_launch(void* context, ringcore_operation* operation) {
  auto& launch = *static_cast<Launch*>(context);
  const char* message = nullptr;
  const std::int32_t error = engine->error(operation, &message);
  if (error != RINGCORE_OK) {
    launch.outcome = ffi::Error(code_of(error), message);
    return;
  }
  if (const std::int32_t failed = engine->hold_back(operation, launch.stream); failed != RINGCORE_OK) {
    launch.outcome = ffi::Error(code_of(failed), "ResourceError: '" + launch.name + "': the GPU has failed");
    return;
  }
  for (std::size_t i = 0; i < launch.copied.size(); ++i) {
    const ffi::Span<std::byte> target = launch.copied[i];
    const std::size_t bytes = engine->copy_result(operation, i, target.begin(), target.size(), launch.stream);
    if (bytes == target.size()) continue;
    launch.outcome = ffi::Error(ffi::ErrorCode::kInvalidArgument, wrong_size(launch.name, bytes, target.size()));
  }
}

ffi::Error start_on_gpu(void* stream, std::int32_t gpu, std::string_view name, std::int32_t collective, std::int32_t op,
                        std::int32_t root, std::int32_t process_set, double prescale, double postscale,
                        ffi::Span<const std::int32_t> dtypes, ffi::RemainingArgs arguments,
                        ffi::RemainingRets results) {
  Described described(name, collective, op, root, process_set, prescale, postscale, dtypes, arguments, results);
  Launch launch{.stream = stream, .name = std::string(name), .copied = std::move(described.copied)};
  described.request.blocking = 1;
  described.request.on_gpu = 1;
  described.request.gpu = gpu;
  described.request.stream = stream;
  engine->submit(&described.request, end_launch, &launch);
  return launch.outcome;
}

// The attributes and arrays that every call has.
template <class Binding>
auto described(Binding binding) {
  return std::move(binding)
      .template Attr<std::string_view>("name")
      .template Attr<std::int32_t>("collective")
      .template Attr<std::int32_t>("op")
      .template Attr<std::int32_t>("root")
      .template Attr<std::int32_t>("process_set")
      .template Attr<double>("prescale")
      .template Attr<double>("postscale")
      .template Attr<ffi::Span<const std::int32_t>>("dtypes")
      .RemainingArgs()
      .RemainingRets();
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// For Python, before the first call.
void ringcore_jax_use(const ringcore_functions* functions) { engine = functions; }

XLA_FFI_DEFINE_HANDLER_SYMBOL(ringcore_jax_collective, start, described(ffi::Ffi::Bind()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(ringcore_jax_collective_on_gpu, start_on_gpu,
                              described(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<void*>>().Ctx<ffi::DeviceOrdinal>()));
}
#pragma GCC visibility pop
