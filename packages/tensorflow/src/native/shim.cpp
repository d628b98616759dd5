// TensorFlow ops that hand their tensors to the engine.
//
// Built without TensorFlow and without the engine: both are met at run time, by name and by address. The kernels are
// asynchronous. They submit and return, and the engine's thread ends them: no TensorFlow thread waits for other ranks.
//
// The first input of each op is the operation's name as bytes, not an attribute: eager mode would make a kernel for
// each name.
#include <dlfcn.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "capi/ringcore.hpp"
#include "tensorflow_c.hpp"

namespace {

namespace capi = ringcore::capi;
namespace tf = ringcore::tensorflow;

tf::Functions api;                          // TensorFlow's
const ringcore_functions* engine = nullptr;  // ours

// Codes of TensorFlow's C API.
enum DataType : int {
  kFloat = 1,
  kDouble = 2,
  kInt32 = 3,
  kUInt8 = 4,
  kInt16 = 5,
  kInt8 = 6,
  kInt64 = 9,
  kBool = 10,
  kBFloat16 = 14,
  kUInt16 = 17,
  kHalf = 19
};
enum Code : int {
  kOk = 0,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kAlreadyExists = 6,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kInternal = 13
};

constexpr const char* kTypes = "{float, double, half, bfloat16, int8, int16, int32, int64, uint8, uint16, bool}";

// Beside the collectives: where this process stands. The attribute `what` is one of these.
constexpr int kPlace = -1;
enum What : std::int64_t { kRank = 0, kSize = 1, kLocalRank = 2, kLocalSize = 3, kIncluded = 4 };

// Iterations of a loop run beside each other; so many of them may have an operation under way at once.
constexpr std::int64_t kIterations = 1024;

int dtype_of(int type) {
  switch (type) {
    case kFloat: return RINGCORE_FLOAT32;
    case kDouble: return RINGCORE_FLOAT64;
    case kInt32: return RINGCORE_INT32;
    case kUInt8: return RINGCORE_UINT8;
    case kInt16: return RINGCORE_INT16;
    case kInt8: return RINGCORE_INT8;
    case kInt64: return RINGCORE_INT64;
    case kBool: return RINGCORE_BOOL;
    case kBFloat16: return RINGCORE_BFLOAT16;
    case kUInt16: return RINGCORE_UINT16;
    case kHalf: return RINGCORE_FLOAT16;
    default: return -1;
  }
}

int code_of(int kind) {
  switch (kind) {
    case RINGCORE_INVALID_ARGUMENT: return kInvalidArgument;
    case RINGCORE_DUPLICATE_NAME: return kAlreadyExists;
    // Not "unavailable": TensorFlow takes that for an error of its own network, and makes another one of it.
    case RINGCORE_PEER_LOST:
    case RINGCORE_MEMBERSHIP_CHANGED:
    case RINGCORE_EVICTED:
    case RINGCORE_DEADLOCK: return kAborted;
    case RINGCORE_TIMEOUT: return kDeadlineExceeded;
    case RINGCORE_RESOURCE: return kResourceExhausted;
    case RINGCORE_MISMATCH:  // this rank's arguments may be right
    case RINGCORE_NOT_INITIALIZED:
    case RINGCORE_SHUTDOWN: return kFailedPrecondition;
    default: return kInternal;
  }
}

class Status {
 public:
  Status() : status_(api.NewStatus()) {}
  ~Status() { api.DeleteStatus(status_); }
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;
  operator TF_Status*() const { return status_; }
  bool ok() const { return api.GetCode(status_) == kOk; }
  void set(int code, const std::string& message) { api.SetStatus(status_, code, message.c_str()); }

 private:
  TF_Status* status_;
};

// A reference to a tensor of TensorFlow.
struct Drop {
  void operator()(TF_Tensor* tensor) const { api.DeleteTensor(tensor); }
};
using Reference = std::unique_ptr<TF_Tensor, Drop>;

std::vector<std::int64_t> shape_of(const Reference& tensor) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(api.NumDims(tensor.get())));
  for (std::size_t i = 0; i < shape.size(); ++i) shape[i] = api.Dim(tensor.get(), static_cast<int>(i));
  return shape;
}

// How the engine's name of an operation comes about, and who waits for it.
enum Mode : std::int64_t {
  kEager = 0,      // the caller waits anyway: its thread drives the engine
  kNamed = 1,      // a node of a graph; its name is the first input
  kQualified = 2,  // and the node's own name: a function may be called several times in a graph
};

// What the engine asks of tensors that lie in a row.
std::size_t aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

// A node of a graph, or an op of eager mode.
struct Kernel {
  int collective = 0;
  std::int64_t mode = kNamed;
  std::int64_t process_set = 0;
  std::int64_t op = 0;
  std::int64_t root = 0;
  std::int64_t prescale = std::bit_cast<std::int64_t>(1.0);
  std::int64_t postscale = std::bit_cast<std::int64_t>(1.0);
  std::int64_t compression = RINGCORE_COMPRESSION_NONE;
  std::int64_t priority = 0;
  std::int64_t keeps_inputs = 0;  // results lie elsewhere: in an elastic job they may have to be made again
  std::int64_t what = kRank;

  bool takes_splits() const { return collective == RINGCORE_ALLTOALL || collective == RINGCORE_SCATTER; }
  bool writes_to_outputs() const { return capi::writes_to_outputs(collective); }
};

// A node that runs once.
class NodeRun {
 public:
  NodeRun(const Kernel& kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done)
      : kernel_(kernel),
        context_(context),
        // What TensorFlow hands over dies when compute returns; inside is a function that may be copied.
        done_(*reinterpret_cast<std::function<void()>*>(done)) {}

  void start() {
    if (engine == nullptr) {
      status_.set(kFailedPrecondition, "the op has no engine. Remedy: import ringcore_tensorflow before it runs.");
      return end();
    }
    if (kernel_.collective == kPlace) {
      set_place();
      return end();
    }
    read_inputs();
    if (!status_.ok()) return end();
    if (kernel_.collective == RINGCORE_REDUCESCATTER) {
      // Asked while the set is there; an operation of one that is not is refused before it matters.
      ranks_ = std::max(engine->size(static_cast<int>(kernel_.process_set)), 1);
      rank_ = engine->rank(static_cast<int>(kernel_.process_set));
    }
    ringcore_request& options = request_.options;
    options.collective = kernel_.collective;
    options.op = static_cast<int>(kernel_.op);
    options.root = static_cast<int>(kernel_.root);
    options.process_set = static_cast<int>(kernel_.process_set);
    options.priority = static_cast<int>(kernel_.priority);
    options.blocking = kernel_.mode == kEager ? 1 : 0;
    options.prescale = std::bit_cast<double>(kernel_.prescale);
    options.postscale = std::bit_cast<double>(kernel_.postscale);
    options.compression = static_cast<int>(kernel_.compression);
    request_.submit<&NodeRun::finish>(*engine, this);
  }

 private:
  Reference input(int index) {
    TF_Tensor* tensor = nullptr;
    api.GetInput(context_, index, &tensor, status_);
    return Reference(tensor);
  }

  void read_inputs() {
    const Reference name = input(0);
    request_.name.assign(static_cast<const char*>(api.TensorData(name.get())), api.TensorByteSize(name.get()));
    if (kernel_.mode == kQualified) {
      const tf::StringView node = api.GetOpKernelName(context_);
      request_.name += "/" + std::string(node.data, node.len);
    }
    if (const std::int64_t iteration = api.GetIterId(context_); iteration > 0) {
      request_.name += "#" + std::to_string(iteration % kIterations);
    }
    const int inputs = api.NumInputs(context_);
    const int tensors = kernel_.takes_splits() ? 1 : inputs - 1;
    shapes_.reserve(tensors);
    const bool in_place = kernel_.collective == RINGCORE_ALLREDUCE && kernel_.keeps_inputs == 0;
    if (in_place && copy_to_registered(tensors)) return;
    for (int i = 0; i < tensors && status_.ok(); ++i) read_tensor(i);
    if (decides_splits() && status_.ok()) read_splits(input(2));
  }

  void read_tensor(int index) {
    Reference source = input(1 + index);
    const int type = api.TensorType(source.get());
    const std::vector<std::int64_t> shape = shape_of(source);
    if (kernel_.keeps_inputs != 0) {
      Reference target(api.AllocateOutput(context_, index, type, shape.data(), static_cast<int>(shape.size()),
                                          api.TensorByteSize(source.get()), status_));
      if (!status_.ok()) return;
      request_.outputs.push_back(api.TensorData(target.get()));
      tensors_.push_back(std::move(target));
    } else if (kernel_.writes_to_outputs()) {
      // TensorFlow gives the output the input's buffer, if nobody else reads it: not even we.
      source.reset();
      const int candidate = 1 + index;
      int forwarded = -1;
      Reference target(api.ForwardInputOrAllocateOutput(context_, &candidate, 1, index, shape.data(),
                                                        static_cast<int>(shape.size()), &forwarded, status_));
      if (!status_.ok()) return;
      request_.outputs.push_back(api.TensorData(target.get()));
      source = forwarded >= 0 ? std::move(target) : input(1 + index);
      if (target != nullptr) tensors_.push_back(std::move(target));
    }
    add_array(type, shape, std::move(source));
  }

  // The outputs lie in memory that the other ranks see, and are reduced there, all as one tensor: a copy costs less than
  // what it saves, and frees the inputs for the next gradients. False where there is no such memory.
  bool copy_to_registered(int tensors) {
    std::size_t bytes = 0;
    for (int i = 0; i < tensors; ++i) {
      const Reference source = input(1 + i);
      // Memory of one dtype can be reduced as one tensor.
      if (i > 0 && api.TensorType(source.get()) != api.TensorType(input(1).get())) return false;
      bytes += aligned(api.TensorByteSize(source.get()));
    }
    void* data = nullptr;
    ringcore_memory* memory = engine->allocate(bytes, &data);
    if (memory == nullptr) return false;
    request_.options.owns_gaps = 1;
    const std::shared_ptr<ringcore_memory> owner(memory, engine->free_memory);
    auto* at = static_cast<std::byte*>(data);
    for (int i = 0; i < tensors; ++i) {
      Reference source = input(1 + i);
      const std::vector<std::int64_t> shape = shape_of(source);
      const std::size_t size = api.TensorByteSize(source.get());
      engine->copy(at, api.TensorData(source.get()), size);
      Reference output = adopt(api.TensorType(source.get()), shape, at, size, owner);
      api.SetOutput(context_, i, output.get(), status_);
      request_.outputs.push_back(at);
      add_array(api.TensorType(source.get()), shape, std::move(output));
      at += aligned(size);
    }
    return true;
  }

  void add_array(int type, const std::vector<std::int64_t>& shape, Reference tensor) {
    const auto& kept = shapes_.emplace_back(shape.begin(), shape.end());
    request_.inputs.push_back(
        {api.TensorData(tensor.get()), kept.data(), static_cast<std::int32_t>(kept.size()), dtype_of(type)});
    types_.push_back(type);
    tensors_.push_back(std::move(tensor));
  }

  // A tensor over the engine's memory.
  static Reference adopt(int type, const std::vector<std::int64_t>& shape, void* data, std::size_t bytes,
                         std::shared_ptr<ringcore_memory> owner) {
    return Reference(api.NewTensor(
        type, shape.data(), static_cast<int>(shape.size()), data, bytes,
        [](void*, std::size_t, void* kept) { delete static_cast<std::shared_ptr<ringcore_memory>*>(kept); },
        new std::shared_ptr<ringcore_memory>(std::move(owner))));
  }

  // Of a scatter the root's splits count, and those of the others are not looked at.
  bool decides_splits() const {
    if (kernel_.collective != RINGCORE_SCATTER) return kernel_.takes_splits();
    return engine->rank(static_cast<int>(kernel_.process_set)) == kernel_.root;
  }

  void read_splits(const Reference& tensor) {
    const auto* rows = static_cast<const std::int64_t*>(api.TensorData(tensor.get()));
    request_.splits.assign(rows, rows + api.TensorByteSize(tensor.get()) / sizeof(std::int64_t));
    const auto negative =
        std::find_if(rows, rows + request_.splits.size(), [](std::int64_t count) { return count < 0; });
    if (negative == rows + request_.splits.size()) return;
    refusal_ = std::string("InvalidArgument: ") + (kernel_.collective == RINGCORE_ALLTOALL ? "alltoall" : "scatter") +
               " '" + request_.name + "': splits are numbers of rows, not " + std::to_string(*negative);
    // The others, who wait for this rank, are told by the engine: of more rows than there are.
    const std::uint64_t too_many = (shapes_[0].empty() ? 1 : shapes_[0][0]) + 1;
    std::replace_if(
        request_.splits.begin(), request_.splits.end(),
        [](std::uint64_t count) { return static_cast<std::int64_t>(count) < 0; }, too_many);
  }

  // It is this rank whose splits do not fit its rows; where there are none, these are divided evenly.
  bool has_wrong_splits() const {
    if (!decides_splits()) return false;
    const std::uint64_t rows = shapes_[0].empty() ? 1 : shapes_[0][0];
    const auto ranks = static_cast<std::size_t>(std::max(engine->size(static_cast<int>(kernel_.process_set)), 1));
    if (request_.splits.empty()) return rows % ranks != 0;
    std::uint64_t sent = 0;
    for (const std::uint64_t count : request_.splits) sent += count;
    return request_.splits.size() != ranks || sent != rows;
  }

  void set_place() {
    const auto set = static_cast<std::int32_t>(kernel_.process_set);
    if (engine->rank(0) < 0) {
      return status_.set(
          kFailedPrecondition,
          "NotInitializedError: ringcore is not initialized in this process. Remedy: call init() first.");
    }
    std::int32_t value = 0;
    switch (kernel_.what) {
      case kRank: value = engine->rank(set); break;
      case kSize: value = engine->size(set); break;
      case kLocalRank: value = engine->local_rank(); break;
      case kLocalSize: value = engine->local_size(); break;
      case kIncluded: value = engine->rank(set) >= 0 ? 1 : 0; break;
    }
    allocate(0, kInt32, {}, &value, sizeof(value));
  }

  void finish(ringcore_operation* ended) {
    if (const auto [error, message] = capi::outcome_of(*engine, ended); error != RINGCORE_OK) {
      status_.set(error == RINGCORE_MISMATCH && has_wrong_splits() ? kInvalidArgument : code_of(error),
                  refusal_.empty() ? message : refusal_);
    } else if (kernel_.collective == RINGCORE_JOIN) {
      const std::int32_t last = engine->last_joined(ended);
      allocate(0, kInt32, {}, &last, sizeof(last));
    } else if (!kernel_.writes_to_outputs()) {
      take_results(ended);
    }
    end();
  }

  void take_results(ringcore_operation* ended) {
    const auto count = static_cast<std::int64_t>(request_.inputs.size());
    std::vector<std::int64_t> received;  // rows from each rank, tensor by tensor
    for (int i = 0; i < count; ++i) {
      std::vector<std::int64_t> shape(shapes_[i].begin(), shapes_[i].end());
      if (shape.empty()) shape.push_back(1);
      if (kernel_.collective == RINGCORE_REDUCESCATTER) {
        shape[0] = shape[0] / ranks_ + (rank_ < shape[0] % ranks_ ? 1 : 0);  // the first ranks get one row more
      } else {
        std::size_t ranks = 0;
        const std::uint64_t* rows = engine->rows(ended, i, &ranks);
        shape[0] = static_cast<std::int64_t>(std::accumulate(rows, rows + ranks, std::uint64_t{0}));
        received.insert(received.end(), rows, rows + ranks);
      }
      set_output(i, types_[i], shape, ended);
    }
    if (kernel_.collective == RINGCORE_REDUCESCATTER || count == 0) return;
    allocate(static_cast<int>(count), kInt64, {count, static_cast<std::int64_t>(received.size()) / count},
             received.data(), received.size() * sizeof(std::int64_t));
  }

  // TensorFlow takes over the memory that the engine has allocated.
  void set_output(int index, int type, const std::vector<std::int64_t>& shape, ringcore_operation* ended) {
    capi::Result result = capi::take_result(*engine, ended, index);
    const Reference output = adopt(type, shape, result.data, result.bytes, std::move(result.memory));
    api.SetOutput(context_, index, output.get(), status_);
  }

  void allocate(int index, int type, const std::vector<std::int64_t>& shape, const void* from, std::size_t bytes) {
    const Reference output(
        api.AllocateOutput(context_, index, type, shape.data(), static_cast<int>(shape.size()), bytes, status_));
    if (status_.ok() && bytes > 0) std::memcpy(api.TensorData(output.get()), from, bytes);
  }

  void end() {
    if (!status_.ok()) api.OpKernelContext_Failure(context_, status_);
    const std::function<void()> done = std::move(done_);
    delete this;  // the references first: after `done` TensorFlow may be gone on
    done();
  }

  const Kernel& kernel_;
  TF_OpKernelContext* context_;
  std::function<void()> done_;
  Status status_;
  capi::Request request_;
  std::string refusal_;  // what is wrong with this rank's splits, where the engine cannot say it
  std::vector<Reference> tensors_;  // what the engine reads and writes
  std::vector<std::vector<std::uint64_t>> shapes_;
  std::vector<int> types_;
  int ranks_ = 1;
  int rank_ = 0;
};

// ---- Registration ----

template <int kCollective>
void* create(TF_OpKernelConstruction* construction) {
  auto kernel = std::make_unique<Kernel>();
  kernel->collective = kCollective;
  const Status status;
  const auto read = [&](const char* name, std::int64_t& value) {
    if (status.ok()) api.OpKernelConstruction_GetAttrInt64(construction, name, &value, status);
  };
  read("mode", kernel->mode);
  read("process_set", kernel->process_set);
  if constexpr (kCollective == RINGCORE_ALLREDUCE || kCollective == RINGCORE_REDUCESCATTER) {
    read("op", kernel->op);
    read("prescale", kernel->prescale);
    read("postscale", kernel->postscale);
  }
  if constexpr (kCollective == RINGCORE_ALLREDUCE) {
    read("compression", kernel->compression);
    read("priority", kernel->priority);
    read("keeps_inputs", kernel->keeps_inputs);
  }
  if constexpr (kCollective == RINGCORE_BROADCAST || kCollective == RINGCORE_SCATTER) read("root", kernel->root);
  if constexpr (kCollective == kPlace) read("what", kernel->what);
  if (!status.ok()) api.OpKernelConstruction_Failure(construction, status);
  return kernel.release();
}

void compute(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  (new NodeRun(*static_cast<Kernel*>(kernel), context, done))->start();
}

void remove(void* kernel) { delete static_cast<Kernel*>(kernel); }

// Each output has the shape of the input after the name.
void same_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  const auto inputs = static_cast<int>(api.ShapeInferenceContextNumInputs(context));
  TF_ShapeHandle* shape = api.NewShapeHandle();
  for (int i = 1; i < inputs && api.GetCode(status) == kOk; ++i) {
    api.ShapeInferenceContextGetInput(context, i, shape, status);
    if (api.GetCode(status) == kOk) api.ShapeInferenceContextSetOutput(context, i - 1, shape, status);
  }
  api.DeleteShapeHandle(shape);
}

// Python says what is known of them.
void unknown_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  api.ShapeInferenceContextSetUnknownShape(context, status);
}

struct Op {
  const char* name;
  tf::Create create;
  std::vector<const char*> inputs;
  std::vector<const char*> outputs;
  std::vector<const char*> attributes;
  tf::InferShape infer_shape;
};

void register_op(const Op& op) {
  TF_OpDefinitionBuilder* builder = api.NewOpDefinitionBuilder(op.name);
  api.OpDefinitionBuilderAddInput(builder, "key: uint8");
  for (const char* input : op.inputs) api.OpDefinitionBuilderAddInput(builder, input);
  for (const char* output : op.outputs) api.OpDefinitionBuilderAddOutput(builder, output);
  api.OpDefinitionBuilderAddAttr(builder, "mode: int");
  api.OpDefinitionBuilderAddAttr(builder, "process_set: int");
  for (const char* attribute : op.attributes) api.OpDefinitionBuilderAddAttr(builder, attribute);
  api.OpDefinitionBuilderSetShapeInferenceFunction(builder, op.infer_shape);
  // It is not merged, folded or dropped: the other ranks count on it.
  api.OpDefinitionBuilderSetIsStateful(builder, true);
  const Status status;
  api.RegisterOpDefinition(builder, status);
  if (status.ok()) {
    TF_KernelBuilder* kernel = api.NewAsyncKernelBuilder(op.name, "CPU", op.create, compute, remove);
    api.RegisterKernelBuilder(op.name, kernel, status);
  }
  if (!status.ok()) std::fprintf(stderr, "ringcore: %s: %s\n", op.name, api.Message(status));
}

bool find_functions() {
  void* library = ::dlopen("libtensorflow_framework.so.2", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return false;
  bool found = true;
#define RINGCORE_FIND(Result, name, Parameters)                                                  \
  api.name = reinterpret_cast<decltype(api.name)>(::dlsym(library, "TF_" #name));                \
  if (api.name == nullptr) {                                                                     \
    std::fprintf(stderr, "ringcore: this version of TensorFlow has no function TF_" #name "\n"); \
    found = false;                                                                               \
  }
  RINGCORE_TENSORFLOW_FUNCTIONS(RINGCORE_FIND)
#undef RINGCORE_FIND
  return found;
}

// TensorFlow loads the library to see which ops appear.
[[gnu::constructor]] void register_ops() {
  if (!find_functions()) return;
  const std::string types = std::string("Ts: list(") + kTypes + ") >= 1";
  const std::string type = std::string("T: ") + kTypes;
  const char* list = types.c_str();
  const char* one = type.c_str();
  register_op({"RingcoreAllreduce",
               create<RINGCORE_ALLREDUCE>,
               {"tensors: Ts"},
               {"results: Ts"},
               {list, "op: int", "prescale: int", "postscale: int", "compression: int = 0", "priority: int = 0",
                "keeps_inputs: int = 0"},
               same_shapes});
  register_op({"RingcoreReducescatter",
               create<RINGCORE_REDUCESCATTER>,
               {"tensors: Ts"},
               {"results: Ts"},
               {list, "op: int", "prescale: int", "postscale: int"},
               unknown_shapes});
  register_op({"RingcoreAllgather",
               create<RINGCORE_ALLGATHER>,
               {"tensors: Ts"},
               {"results: Ts", "rows: int64"},
               {list},
               unknown_shapes});
  register_op(
      {"RingcoreBroadcast", create<RINGCORE_BROADCAST>, {"tensor: T"}, {"result: T"}, {one, "root: int"}, same_shapes});
  register_op({"RingcoreAlltoall",
               create<RINGCORE_ALLTOALL>,
               {"tensor: T", "splits: int64"},
               {"result: T", "rows: int64"},
               {one},
               unknown_shapes});
  register_op({"RingcoreScatter",
               create<RINGCORE_SCATTER>,
               {"tensor: T", "splits: int64"},
               {"result: T", "rows: int64"},
               {one, "root: int"},
               unknown_shapes});
  register_op({"RingcoreBarrier", create<RINGCORE_BARRIER>, {}, {}, {}, unknown_shapes});
  register_op({"RingcorePlace", create<kPlace>, {}, {"value: int32"}, {"what: int"}, unknown_shapes});
  register_op({"RingcoreJoin", create<RINGCORE_JOIN>, {}, {"last: int32"}, {}, unknown_shapes});
}

}  // namespace

// Python hands over the engine's functions.
extern "C" [[gnu::visibility("default")]] void ringcore_tensorflow_connect(const ringcore_functions* functions) {
  engine = functions;
}
