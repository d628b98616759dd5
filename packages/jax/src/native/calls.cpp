// The engine's operations as custom calls of XLA.
//
// Not linked with the engine: Python hands over the functions of ringcore.h. On the CPU a call starts its operation and
// returns a future, so that no thread of XLA waits for other ranks, and calls may start in any order: ranks agree by
// name. On a GPU it returns when the operation has been launched, and XLA's stream waits for it.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "capi/ringcore.hpp"
#include "xla/ffi/api/ffi.h"

namespace {

namespace capi = ringcore::capi;
namespace ffi = xla::ffi;

// The longest message of Python.
constexpr std::size_t kMessageBytes = 4096;

const ringcore_functions* engine = nullptr;

ffi::ErrorCode code_of(std::int32_t error) {
  switch (error) {
    case RINGCORE_INVALID_ARGUMENT:
    case RINGCORE_MISMATCH: return ffi::ErrorCode::kInvalidArgument;
    case RINGCORE_DUPLICATE_NAME: return ffi::ErrorCode::kAlreadyExists;
    case RINGCORE_MEMBERSHIP_CHANGED:
    case RINGCORE_DEADLOCK: return ffi::ErrorCode::kAborted;
    case RINGCORE_TIMEOUT: return ffi::ErrorCode::kDeadlineExceeded;
    case RINGCORE_EVICTED:
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

// What describes an operation to the engine. The request names shapes that XLA keeps for as long as the call lasts.
struct Described {
  capi::Request request;
  // Where results go that the engine allocates: those whose size the other ranks decide. Empty for the others.
  std::vector<ffi::Span<std::byte>> copied;
};

Described describe(std::string_view name, std::int32_t collective, std::int32_t op, std::int32_t root,
                   std::int32_t process_set, double prescale, double postscale, std::int32_t compression,
                   ffi::Span<const std::int32_t> dtypes, const ffi::RemainingArgs& arguments,
                   const ffi::RemainingRets& results) {
  Described described;
  capi::Request& request = described.request;
  request.name = name;
  request.options.collective = collective;
  request.options.op = op;
  request.options.root = root;
  request.options.process_set = process_set;
  request.options.prescale = prescale;
  request.options.postscale = postscale;
  request.options.compression = compression;
  // An argument without a result is there to keep the order of the calls.
  for (std::size_t i = 0; i < results.size(); ++i) {
    const ffi::AnyBuffer input = *arguments.get<ffi::AnyBuffer>(i);
    ffi::AnyBuffer output = **results.get<ffi::AnyBuffer>(i);
    const auto shape = input.dimensions();
    request.inputs.push_back({input.untyped_data(), reinterpret_cast<const std::uint64_t*>(shape.begin()),
                              static_cast<std::int32_t>(shape.size()), dtypes.begin()[i]});
    if (capi::writes_to_outputs(collective)) {
      request.outputs.push_back(output.untyped_data());
    } else {
      described.copied.emplace_back(static_cast<std::byte*>(output.untyped_data()), output.size_bytes());
    }
  }
  return described;
}

// A call on the CPU, which lasts until its operation has ended. XLA keeps the arrays until the promise is kept.
class Pending {
 public:
  explicit Pending(Described described) : described_(std::move(described)) {}

  ffi::Future start() {
    ffi::Future future(promise_);
    described_.request.submit<&Pending::end>(*engine, this);
    return future;
  }

 private:
  void end(ringcore_operation* operation) {
    const std::unique_ptr<Pending> self(this);
    const capi::Outcome outcome = capi::outcome_of(*engine, operation);
    if (!outcome.ok()) return promise_.SetError({code_of(outcome.error), outcome.message});
    std::string wrong = copy_results(operation);
    if (!wrong.empty()) return promise_.SetError({ffi::ErrorCode::kInvalidArgument, std::move(wrong)});
    promise_.SetAvailable();
  }

  // The engine's results into XLA's buffers; what is wrong, or nothing.
  std::string copy_results(ringcore_operation* operation) {
    for (std::size_t i = 0; i < described_.copied.size(); ++i) {
      const capi::Result result = capi::take_result(*engine, operation, i);
      const ffi::Span<std::byte> target = described_.copied[i];
      if (result.bytes != target.size()) return wrong_size(described_.request.name, result.bytes, target.size());
      if (result.bytes > 0) std::memcpy(target.begin(), result.data, result.bytes);
    }
    return {};
  }

  ffi::Promise promise_;
  Described described_;
};

ffi::Future start(std::string_view name, std::int32_t collective, std::int32_t op, std::int32_t root,
                  std::int32_t process_set, double prescale, double postscale, std::int32_t compression,
                  ffi::Span<const std::int32_t> dtypes, ffi::RemainingArgs arguments, ffi::RemainingRets results) {
  auto pending = std::make_unique<Pending>(
      describe(name, collective, op, root, process_set, prescale, postscale, compression, dtypes, arguments, results));
  return pending.release()->start();
}

// A call on a GPU, which lasts until its operation has been launched.
struct Launch {
  void* stream;
  Described described;
  ffi::Error outcome = ffi::Error::Success();

  void end(ringcore_operation* operation) {
    const std::string& name = described.request.name;
    if (const capi::Outcome ended = capi::outcome_of(*engine, operation); !ended.ok()) {
      outcome = ffi::Error(code_of(ended.error), ended.message);
      return;
    }
    if (const std::int32_t failed = engine->hold_back(operation, stream); failed != RINGCORE_OK) {
      outcome = ffi::Error(code_of(failed), "ResourceError: '" + name + "': the GPU has failed");
      return;
    }
    for (std::size_t i = 0; i < described.copied.size(); ++i) {
      const ffi::Span<std::byte> target = described.copied[i];
      const std::size_t bytes = engine->copy_result(operation, i, target.begin(), target.size(), stream);
      if (bytes == target.size()) continue;
      outcome = ffi::Error(ffi::ErrorCode::kInvalidArgument, wrong_size(name, bytes, target.size()));
    }
  }
};

ffi::Error start_on_gpu(void* stream, std::int32_t gpu, std::string_view name, std::int32_t collective, std::int32_t op,
                        std::int32_t root, std::int32_t process_set, double prescale, double postscale,
                        std::int32_t compression, ffi::Span<const std::int32_t> dtypes, ffi::RemainingArgs arguments,
                        ffi::RemainingRets results) {
  Launch launch{stream, describe(name, collective, op, root, process_set, prescale, postscale, compression, dtypes,
                                 arguments, results)};
  ringcore_request& options = launch.described.request.options;
  options.blocking = 1;
  options.on_gpu = 1;
  options.gpu = gpu;
  options.stream = stream;
  launch.described.request.submit<&Launch::end>(*engine, &launch);
  return launch.outcome;
}

// Python's part of a comparison: what lies at so many places, with the other ranks'. Writes what is wrong to `message`, and
// returns how long that is.
using Compare = std::size_t (*)(std::int64_t number, void* const* data, const std::size_t* sizes, std::size_t count,
                                char* message, std::size_t capacity);
Compare compare_with = nullptr;

// What Python wrote, as an error; nothing is success. From an exception that leaves its call, ctypes makes any length.
ffi::Error said(std::string message, std::size_t length) {
  if (length > message.size()) {
    return {ffi::ErrorCode::kInternal, "a call of Python was interrupted; its output says where"};
  }
  message.resize(length);
  return message.empty() ? ffi::Error::Success() : ffi::Error(ffi::ErrorCode::kInvalidArgument, std::move(message));
}

std::mutex compared_mutex;  // Guards: compared.
std::set<std::int64_t> compared;

// A program calls it in each of its runs. Python would cost it some microseconds.
bool is_first(std::int64_t number) {
  const std::lock_guard lock(compared_mutex);
  return compared.insert(number).second;
}

// Whether the ranks begin with the same parameters. Waits for the others, in the first run of the first program.
ffi::Error weights(std::int64_t number, std::int32_t count, ffi::RemainingArgs params,
                   ffi::Result<ffi::Buffer<ffi::F32>> done) {
  *done->typed_data() = 0;
  if (!is_first(number)) return ffi::Error::Success();
  std::vector<void*> data;
  std::vector<std::size_t> sizes;
  for (std::int32_t i = 0; i < count; ++i) {
    const ffi::AnyBuffer param = *params.get<ffi::AnyBuffer>(static_cast<std::size_t>(i));
    data.push_back(param.untyped_data());
    sizes.push_back(param.size_bytes());
  }
  std::string message(kMessageBytes, '\0');
  const std::size_t length =
      compare_with(number, data.data(), sizes.data(), data.size(), message.data(), message.size());
  return said(std::move(message), length);
}

// Python's part of an exchange: averages what lies at so many places, where it lies. Says what is wrong like `Compare`.
using Exchange = std::size_t (*)(std::int64_t number, void* const* data, std::size_t count, char* message,
                                 std::size_t capacity);
Exchange exchange_with = nullptr;

// Gradients that Python averages. Waits for the other ranks, and so may not be overtaken by another call on one of them:
// an argument without a result is there to keep the order.
ffi::Error exchange(std::int64_t number, ffi::RemainingArgs arguments, ffi::RemainingRets results) {
  std::vector<void*> data;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const ffi::AnyBuffer gradient = *arguments.get<ffi::AnyBuffer>(i);
    ffi::AnyBuffer average = **results.get<ffi::AnyBuffer>(i);
    if (gradient.size_bytes() > 0 && gradient.untyped_data() != average.untyped_data()) {
      std::memcpy(average.untyped_data(), gradient.untyped_data(), gradient.size_bytes());
    }
    data.push_back(average.untyped_data());
  }
  std::string message(kMessageBytes, '\0');
  const std::size_t length = exchange_with(number, data.data(), data.size(), message.data(), message.size());
  return said(std::move(message), length);
}

// The number again, once the array is there: XLA sees no further, and so keeps the order.
ffi::Error pass(ffi::Buffer<ffi::S32> number, ffi::AnyBuffer /*behind*/, ffi::ResultBuffer<ffi::S32> same) {
  *same->typed_data() = *number.typed_data();
  return ffi::Error::Success();
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
      .template Attr<std::int32_t>("compression")
      .template Attr<ffi::Span<const std::int32_t>>("dtypes")
      .RemainingArgs()
      .RemainingRets();
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// For Python, before the first call.
void ringcore_jax_use(const ringcore_functions* functions) { engine = functions; }

void ringcore_jax_compare_with(Compare compare) { compare_with = compare; }

void ringcore_jax_exchange_with(Exchange exchange) { exchange_with = exchange; }

// In the next run of a program: the ranks are others.
void ringcore_jax_compare_again(std::int64_t number) {
  const std::lock_guard lock(compared_mutex);
  compared.erase(number);
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(ringcore_jax_weights, weights,
                              ffi::Ffi::Bind()
                                  .Attr<std::int64_t>("number")
                                  .Attr<std::int32_t>("count")
                                  .RemainingArgs()
                                  .Ret<ffi::Buffer<ffi::F32>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(ringcore_jax_exchange, exchange,
                              ffi::Ffi::Bind().Attr<std::int64_t>("number").RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    ringcore_jax_pass, pass,
    ffi::Ffi::Bind().Arg<ffi::Buffer<ffi::S32>>().Arg<ffi::AnyBuffer>().Ret<ffi::Buffer<ffi::S32>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(ringcore_jax_collective, start, described(ffi::Ffi::Bind()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(ringcore_jax_collective_on_gpu, start_on_gpu,
                              described(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<void*>>().Ctx<ffi::DeviceOrdinal>()));
}
#pragma GCC visibility pop
