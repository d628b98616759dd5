// Collectives as asynchronous tasks in MXNet's dependency engine.
//
// Built without MXNet and without the engine of ringcore: both are met at run time, by name and by address. A task
// declares which arrays it reads and writes. When MXNet finds them ready it calls `Task::run`, which submits and returns;
// the thread of ringcore's engine ends the task. No thread of MXNet waits for other ranks.
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "capi/ringcore.hpp"
#include "mxnet_c.hpp"

namespace {

namespace capi = ringcore::capi;
namespace mx = ringcore::mxnet;

mx::Functions api;  // MXNet's
mx::Layouts layouts;  // as well
const ringcore_functions* engine = nullptr;  // ours
// MXNET_ENGINE_TYPE=NaiveEngine: MXNet runs everything on the calling thread, and knows no errors of tasks.
bool naive = false;

thread_local std::string told;  // what ringcore_mxnet_error() returns

int dtype_of(int type) {
  switch (type) {
    case mx::kFloat32: return RINGCORE_FLOAT32;
    case mx::kFloat64: return RINGCORE_FLOAT64;
    case mx::kFloat16: return RINGCORE_FLOAT16;
    case mx::kUInt8: return RINGCORE_UINT8;
    case mx::kInt32: return RINGCORE_INT32;
    case mx::kInt8: return RINGCORE_INT8;
    case mx::kInt64: return RINGCORE_INT64;
    case mx::kBool: return RINGCORE_BOOL;
    case mx::kInt16: return RINGCORE_INT16;
    case mx::kUInt16: return RINGCORE_UINT16;
    case mx::kBFloat16: return RINGCORE_BFLOAT16;
    default: return -1;
  }
}

// Tells what MXNet has refused.
void require(int code) {
  if (code != 0) throw std::runtime_error(std::string("ResourceError: MXNet says: ") + api.MXGetLastError());
}

// Two arrays with the same chunk (a slice, a reshaped array) have the same variable in MXNet's engine.
void* chunk_of(mx::Handle array) { return *static_cast<void**>(array); }

struct Free {
  void operator()(void* array) const { api.MXNDArrayFree(array); }
};
// A reference to an array.
using Reference = std::unique_ptr<void, Free>;

class Tensor {
 public:
  explicit Tensor(mx::Handle array) {
    int storage = 0;
    int device = 0;
    int id = 0;
    int type = 0;
    int dims = 0;
    const std::int64_t* extents = nullptr;
    require(api.MXNDArrayGetStorageType(array, &storage));
    if (storage != mx::kDefaultStorage) {
      throw std::runtime_error(
          "InvalidArgument: a sparse array cannot be sent as it is; use tostype('default'), or allreduce for "
          "row_sparse");
    }
    require(api.MXNDArrayGetContext(array, &device, &id));
    if (device != mx::kCpu && device != mx::kCpuPinned && device != mx::kCpuShared) {
      throw std::runtime_error("InvalidArgument: an array on a GPU cannot be sent; use as_in_context(mx.cpu())");
    }
    require(api.MXNDArrayGetDType(array, &type));
    dtype_ = dtype_of(type);
    require(api.MXNDArrayGetShapeEx64(array, &dims, &extents));
    shape_.assign(extents, extents + std::max(dims, 0));
    mx::Handle copy = nullptr;
    require(api.MXShallowCopyNDArray(array, &copy));
    array_.reset(copy);
  }

  mx::Handle array() const { return array_.get(); }
  void* chunk() const { return chunk_of(array_.get()); }
  void* data() const { return data_; }
  std::uint64_t elements() const {
    return std::accumulate(shape_.begin(), shape_.end(), std::uint64_t{1}, std::multiplies<>());
  }
  std::uint64_t rows() const { return shape_.empty() ? 1 : shape_.front(); }
  ringcore_array described() const { return {data_, shape_.data(), static_cast<std::int32_t>(shape_.size()), dtype_}; }

  // Where its values are. While a task runs, MXNet keeps other writers away, and other readers if `written`.
  void locate(bool written) {
    mx::Handle array = array_.get();
    if (layouts.is_foreign != nullptr && layouts.is_foreign(chunk())) {
      // MXNDArrayGetData would wait for a task that waits for this one.
      if (written) {
        layouts.make_default(chunk());
      } else {
        void* memory = ::operator new(sizeof(mx::Returned));
        new (memory) mx::Returned(layouts.as_default(array));
        reordered_.reset(memory);
        array = memory;
      }
    }
    require(api.MXNDArrayGetData(array, &data_));
  }

 private:
  Reference array_;
  Reference reordered_;  // its values, where others read it in a layout of oneDNN
  std::vector<std::uint64_t> shape_;
  int dtype_ = -1;
  void* data_ = nullptr;
};

const char* title_of(int collective) {
  switch (collective) {
    case RINGCORE_ALLREDUCE: return "ringcore.allreduce";
    case RINGCORE_ALLGATHER: return "ringcore.allgather";
    case RINGCORE_BROADCAST: return "ringcore.broadcast";
    case RINGCORE_REDUCESCATTER: return "ringcore.reducescatter";
    case RINGCORE_REDUCE: return "ringcore.reduce";
    case RINGCORE_GATHER: return "ringcore.gather";
    case RINGCORE_SCATTER: return "ringcore.scatter";
    default: return "ringcore.alltoall";
  }
}

// An error on its way to the operation that has failed.
//
// MXNet keeps a list of errors that no lock guards, and the thread for ordinary operations adds to it what depends on
// the failed one. So the error is told on that thread: by an operation of its own, without arrays, which waits for
// nothing.
class Failure {
 public:
  static void push(const mx::OnComplete& failed, const char* message) {
    mx::Device device{mx::kCpu, 0};
    int property = mx::kNormal;
    const auto remove = [](void* self) { delete static_cast<Failure*>(self); };
    // Without memory for the operation MXNet removes what it was given, and the error is told on this thread.
    (void)api.MXEnginePushAsyncND(run, new Failure(failed, message), remove, &device, nullptr, 0, nullptr, 0, &property,
                                  0, "ringcore.error", false);
  }

 private:
  Failure(const mx::OnComplete& failed, const char* message) : failed_(failed), error_(message) {}
  ~Failure() { tell(); }  // MXNet skips operations when the process ends.

  static void run(void*, void* on_complete, void* self) {
    const mx::OnComplete done = *static_cast<mx::OnComplete*>(on_complete);
    static_cast<Failure*>(self)->tell();
    done(nullptr);
  }

  void tell() {
    if (!std::exchange(told_, true)) failed_(&error_);
  }

  mx::OnComplete failed_;
  std::runtime_error error_;
  bool told_ = false;
};

class Task {
 public:
  // `request`: without its arrays.
  Task(capi::Request request, std::vector<Tensor> inputs, std::vector<Tensor> outputs)
      : request_(std::move(request)), inputs_(std::move(inputs)), outputs_(std::move(outputs)) {}

  // Hands the task to MXNet, which from then on owns it.
  static void push(std::unique_ptr<Task> task) {
    std::vector<mx::Handle> written;
    std::vector<mx::Handle> read;
    const auto has = [](const std::vector<mx::Handle>& arrays, void* chunk) {
      return std::any_of(arrays.begin(), arrays.end(), [&](mx::Handle array) { return chunk_of(array) == chunk; });
    };
    // MXNet hangs on a variable that is named twice.
    for (const Tensor& tensor : task->targets()) {
      if (!has(written, tensor.chunk())) written.push_back(tensor.array());
    }
    for (const Tensor& tensor : task->inputs_) {
      if (!has(written, tensor.chunk()) && !has(read, tensor.chunk())) read.push_back(tensor.array());
    }
    mx::Device device{mx::kCpu, 0};
    int property = mx::kCpuPrioritized;
    const int priority = task->request_.options.priority;
    const char* title = title_of(task->request_.options.collective);
    // Deleted with MXNet's own record of it: also if it never runs, because one of its arrays has an error already.
    const auto remove = [](void* self) { delete static_cast<Task*>(self); };
    require(api.MXEnginePushAsyncND(run, task.release(), remove, &device, read.data(), static_cast<int>(read.size()),
                                    written.data(), static_cast<int>(written.size()), &property, priority, title,
                                    false));
  }

 private:
  bool in_place() const { return outputs_.empty(); }
  // Of a reduce only the root has a result. MXNet tells of errors to whoever waits for what a task writes: elsewhere that is
  // an empty array, which the engine of ringcore is not told of.
  bool has_results() const {
    const ringcore_request& options = request_.options;
    return options.collective != RINGCORE_REDUCE || engine->rank(options.process_set) == options.root;
  }
  const std::vector<Tensor>& targets() const { return in_place() ? inputs_ : outputs_; }

  static void run(void*, void* on_complete, void* self) {
    auto* task = static_cast<Task*>(self);
    task->on_complete_ = *static_cast<mx::OnComplete*>(on_complete);
    try {
      task->start();
    } catch (const std::bad_alloc&) {
      task->end("ResourceError: there is no memory left for another operation. Remedy: use fewer ranks a host.");
    } catch (const std::exception& error) {
      task->end(error.what());
    }
  }

  void start() {
    const auto written = [&](const Tensor& input) {
      return std::any_of(targets().begin(), targets().end(),
                         [&](const Tensor& target) { return target.chunk() == input.chunk(); });
    };
    for (Tensor& input : inputs_) {
      input.locate(written(input));
      request_.inputs.push_back(input.described());
    }
    for (Tensor& output : outputs_) output.locate(true);
    for (const Tensor& target : targets()) {
      if (!has_results()) break;
      request_.outputs.push_back(target.data());
      if (!capi::writes_to_outputs(request_.options.collective)) request_.output_rows.push_back(target.rows());
    }
    request_.options.blocking = naive ? 1 : 0;
    // Nothing of this task after it: it may have ended.
    request_.submit<&Task::finish>(*engine, this);
  }

  void finish(ringcore_operation* ended) {
    const capi::Outcome outcome = capi::outcome_of(*engine, ended);
    end(outcome.ok() ? nullptr : outcome.message);
  }

  void end(const char* message) {
    inputs_.clear();  // the references first: afterwards MXNet may be gone on, and this task with it
    outputs_.clear();
    if (message == nullptr) return on_complete_(nullptr);
    if (naive) {
      told = message;
      return on_complete_(nullptr);
    }
    Failure::push(on_complete_, message);
  }

  capi::Request request_;
  std::vector<Tensor> inputs_;
  std::vector<Tensor> outputs_;  // none: the inputs
  mx::OnComplete on_complete_{};
};

// float32 to the nearest bfloat16, of two the even one. MXNet's own conversion cuts bits off: sums of it drift to zero.
class Rounding {
 public:
  Rounding(Tensor from, Tensor to) : from_(std::move(from)), to_(std::move(to)) {}

  // Hands the task to MXNet, which from then on owns it.
  static void push(std::unique_ptr<Rounding> task) {
    mx::Handle read = task->from_.array();
    mx::Handle written = task->to_.array();
    mx::Device device{mx::kCpu, 0};
    int property = mx::kNormal;
    const auto remove = [](void* self) { delete static_cast<Rounding*>(self); };
    require(api.MXEnginePushAsyncND(run, task.release(), remove, &device, &read, 1, &written, 1, &property, 0,
                                    "ringcore.round", false));
  }

 private:
  static void run(void*, void* on_complete, void* self) {
    const mx::OnComplete done = *static_cast<mx::OnComplete*>(on_complete);
    try {
      static_cast<Rounding*>(self)->round();
    } catch (const std::exception& error) {
      if (!naive) return Failure::push(done, error.what());
      told = error.what();
    }
    done(nullptr);
  }

  void round() {
    from_.locate(false);
    to_.locate(true);
    const auto* values = static_cast<const std::uint32_t*>(from_.data());
    auto* rounded = static_cast<std::uint16_t*>(to_.data());
    const std::uint64_t count = from_.elements();
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint32_t bits = values[i];
      const bool is_number = (bits & 0x7fffffffU) <= 0x7f800000U;
      rounded[i] =
          static_cast<std::uint16_t>((is_number ? bits + 0x7fffU + ((bits >> 16) & 1U) : bits | 0x400000U) >> 16);
    }
  }

  Tensor from_;
  Tensor to_;
};

bool find_functions(const char* path) {
  void* library = ::dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) {
    told = std::string("MXNet's library is not loaded: ") + ::dlerror();
    return false;
  }
#define RINGCORE_FIND(Result, name, Parameters)                             \
  api.name = reinterpret_cast<decltype(api.name)>(::dlsym(library, #name)); \
  if (api.name == nullptr) {                                                \
    told = "this version of MXNet has no function " #name;                  \
    return false;                                                           \
  }
  RINGCORE_MXNET_FUNCTIONS(RINGCORE_FIND)
#undef RINGCORE_FIND
  mx::Layouts found;
  found.is_foreign = reinterpret_cast<decltype(found.is_foreign)>(::dlsym(library, mx::kIsForeign));
  found.make_default = reinterpret_cast<decltype(found.make_default)>(::dlsym(library, mx::kMakeDefault));
  found.as_default = reinterpret_cast<decltype(found.as_default)>(::dlsym(library, mx::kAsDefault));
  if (found.is_foreign != nullptr && found.make_default != nullptr && found.as_default != nullptr) layouts = found;
  return true;
}

std::vector<Tensor> tensors_of(mx::Handle* arrays, std::size_t count) {
  std::vector<Tensor> tensors;
  tensors.reserve(count);
  for (std::size_t i = 0; i < count; ++i) tensors.emplace_back(arrays[i]);
  return tensors;
}

}  // namespace

extern "C" {

// Python hands over the engine's functions, and says where MXNet's library is. Returns 0 if all is there.
[[gnu::visibility("default")]] int ringcore_mxnet_connect(const ringcore_functions* functions, const char* path) {
  engine = functions;
  const char* type = std::getenv("MXNET_ENGINE_TYPE");
  naive = type != nullptr && std::string_view(type) == "NaiveEngine";
  return find_functions(path) ? 0 : 1;
}

// Gives MXNet's engine a collective of arrays; without outputs they are changed in place. Returns 0, or 1 if it was
// refused, for the reason that ringcore_mxnet_error() tells.
[[gnu::visibility("default")]] int ringcore_mxnet_push(int collective, const char* name, std::size_t name_bytes, int op,
                                                       int root, int process_set, int priority, double prescale,
                                                       double postscale, int compression, std::size_t count,
                                                       void** inputs, std::size_t output_count, void** outputs,
                                                       std::size_t split_count, const std::uint64_t* splits) {
  told.clear();
  try {
    capi::Request request;
    request.name.assign(name, name_bytes);
    request.splits.assign(splits, splits + split_count);
    request.options.collective = collective;
    request.options.op = op;
    request.options.root = root;
    request.options.process_set = process_set;
    request.options.priority = priority;
    request.options.compression = compression;
    request.options.prescale = prescale;
    request.options.postscale = postscale;
    Task::push(
        std::make_unique<Task>(std::move(request), tensors_of(inputs, count), tensors_of(outputs, output_count)));
  } catch (const std::exception& error) {
    told = error.what();
  }
  return told.empty() ? 0 : 1;
}

// Gives MXNet's engine the rounding of an array of float32 to one of bfloat16 and of its shape. Returns as above.
[[gnu::visibility("default")]] int ringcore_mxnet_round(void* from, void* to) {
  told.clear();
  try {
    Rounding::push(std::make_unique<Rounding>(Tensor(from), Tensor(to)));
  } catch (const std::exception& error) {
    told = error.what();
  }
  return told.empty() ? 0 : 1;
}

[[gnu::visibility("default")]] const char* ringcore_mxnet_error() { return told.c_str(); }
}
