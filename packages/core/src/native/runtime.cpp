// The runtime and its operations. Bindings convert, release the GIL, call: no logic.
#include "runtime/runtime.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <stdexcept>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "base/adasum.hpp"
#include "buffer.hpp"
#include "capi/capi.hpp"
#include "carriers/gpu/tensor.hpp"
#include "carriers/mpi/collectives.hpp"
#include "carriers/standard.hpp"
#include "device.hpp"
#include "memory.hpp"
#include "raise.hpp"
#include "register.hpp"
#include "tls.hpp"
#include "transport/copy.hpp"
#include "transport/mpi/world.hpp"
#include "transport/shm.hpp"
#include "transport/tcp/lane_requests.hpp"
#include "transport/tcp/link.hpp"

namespace nb = nanobind;

namespace ringcore::python {
namespace {

using engine::Operation;

// (rank, kind, descriptors, the peer's segment or -1, a secret for each descriptor or none)
using PeerTuple = std::tuple<Rank, std::string, std::vector<int>, int, std::vector<nb::bytes>>;

// Whether nobody reads or writes the operation's memory any more.
bool is_let_go(const Operation& operation) {
  return operation.done() && !operation.in_use && carriers::has_ended(operation);
}

// How often this process has been forked off: what was made before belongs to the parent.
int forks = 0;

// The runtime and what it stands on: the memory outlives the engine.
class PythonRuntime {
 public:
  PythonRuntime(Rank rank, int size, std::uint32_t epoch, std::shared_ptr<HostMemory> memory,
                const std::vector<PeerTuple>& peers, std::vector<int> host_of, capi::Place place,
                engine::EngineSettings settings, Nanoseconds spin, const std::shared_ptr<transport::MpiWorld>& mpi)
      : memory_(std::move(memory)) {
    RuntimeConfig config;
    config.engine.rank = rank;
    config.engine.epoch = epoch;
    config.engine.links.resize(size);
    bool with_mpi = false;
    for (const auto& [peer, kind, fds, segment_fd, secrets] : peers) {
      config.engine.links[peer] = kind == "mpi" ? transport::make_mpi_link(mpi, peer)
                                                : make_link(rank, size, peer, kind, fds, segment_fd, secrets);
      with_mpi = with_mpi || kind == "mpi";
    }
    config.engine.make_carriers = carriers::standard(
        [mpi = with_mpi ? mpi : nullptr](engine::ProcessSetId set) { return mpi_backends(set, mpi); });
    config.local_ranks = static_cast<int>(std::count(host_of.begin(), host_of.end(), host_of[rank]));
    const bool single_host = config.local_ranks == size;
    config.engine.host_of = std::move(host_of);
    if (memory_ != nullptr) {
      config.engine.arena = &memory_->arena;
      config.engine.fusion_arena = memory_->fusion;
    }
    config.settings = settings;
    config.spin = spin;
    runtime_ = std::make_shared<Runtime>(std::move(config));
    std::shared_ptr<transport::Pool> pool;  // keeps all of the memory alive
    if (memory_ != nullptr && single_host && size > 1) pool = {memory_, &memory_->pool};
    capi::set_runtime(runtime_, place, pool);
  }

  // In a forked child the engine's threads do not exist and its locks may be held by nobody: leave it untouched.
  ~PythonRuntime() {
    for (auto& [operation, memory] : abandoned_) {
      if (operation->in_use) memory.release();
    }
    if (::getpid() != pid_) new std::shared_ptr(std::move(runtime_));  // leaked
  }
  PythonRuntime(const PythonRuntime&) = delete;
  PythonRuntime& operator=(const PythonRuntime&) = delete;

  Runtime& get() {
    if (forks != forks_) {
      throw Error(ErrorKind::kShutdown,
                  "this operation belongs to the parent of this forked process. Remedy: start workers with the 'spawn' "
                  "method, or call init() after the fork.");
    }
    return *runtime_;
  }

  bool is_alone() const;
  int service_threads = 0;  // threads of Python that serve this runtime, and submit nothing

  transport::LaneRequests& lane_requests() { return lane_requests_; }
  // False when the link is closed already; then the descriptors are, too.
  bool attach_lane(Rank peer, int lane, const std::vector<int>& fds, const std::vector<nb::bytes>& secrets) {
    std::vector<Fd> owned;
    for (const int fd : fds) owned.emplace_back(fd);
    const std::vector<transport::TlsSecret> of_lane = tls_secrets(secrets);
    const nb::gil_scoped_release released;
    return get().change_links([&] { lane_links_.at(peer)->attach(lane, std::move(owned), of_lane); });
  }

  // Keeps the memory of an operation that nobody waits for any more until the engine is done with it.
  void abandon(std::shared_ptr<Operation> operation, nb::object memory) {
    free_abandoned();
    abandoned_.emplace_back(std::move(operation), std::move(memory));
  }

  void free_abandoned() {
    if (abandoned_.empty()) return;
    const auto running =
        std::partition(abandoned_.begin(), abandoned_.end(), [](const auto& item) { return is_let_go(*item.first); });
    // What is freed may drop other handles, which come here again: it is freed last.
    const std::vector<Abandoned> ended(std::move_iterator(abandoned_.begin()), std::move_iterator(running));
    abandoned_.erase(abandoned_.begin(), running);
  }

 private:
  using Abandoned = std::pair<std::shared_ptr<Operation>, nb::object>;

  std::unique_ptr<transport::Link> make_link(Rank rank, int size, Rank peer, const std::string& kind,
                                             const std::vector<int>& fds, int segment_fd,
                                             const std::vector<nb::bytes>& secrets) {
    std::vector<Fd> owned;
    for (const int fd : fds) owned.emplace_back(fd);
    if (kind == "tcp") {
      auto link = transport::make_tcp_link(rank, peer, std::move(owned.at(0)), tls_secrets(secrets), lane_requests_);
      lane_links_[peer] = link.get();
      return link;
    }
    auto segment = std::make_shared<transport::Segment>(transport::Segment::attach(Fd(segment_fd), peer, size));
    return transport::make_shm_link(rank, peer, memory_->segment, std::move(segment), std::move(owned.at(0)));
  }

  static std::vector<std::unique_ptr<plan::Backend>> mpi_backends(engine::ProcessSetId set,
                                                                  const std::shared_ptr<transport::MpiWorld>& mpi) {
    std::vector<std::unique_ptr<plan::Backend>> backends;
    // Others would need communicators of their own, which only all of their members together can make.
    if (set == engine::kWorld && mpi != nullptr) backends.push_back(carriers::make_mpi_backend(mpi));
    return backends;
  }

  pid_t pid_ = ::getpid();
  int forks_ = forks;
  std::shared_ptr<HostMemory> memory_;
  std::vector<Abandoned> abandoned_;  // outlives the engine
  transport::LaneRequests lane_requests_;  // outlives the links
  std::map<Rank, transport::LaneLink*> lane_links_;  // of the runtime, by peer; used by `change_links` only
  std::shared_ptr<Runtime> runtime_;
};

Nanoseconds limit_of(double timeout_s) {
  const double limit = timeout_s * static_cast<double>(kSecond);
  return limit < 9e18 ? static_cast<Nanoseconds>(limit) : Runtime::kForever;
}

// An operation as Python holds it: with the arrays that the engine reads and writes, and the result that the caller
// wants: an object, or a function of the handle that makes it.
class PythonHandle {
 public:
  PythonHandle(std::shared_ptr<Operation> operation, nb::object memory, nb::object runtime, nb::object result,
               nb::object finish)
      : operation_(std::move(operation)),
        memory_(std::move(memory)),
        runtime_(std::move(runtime)),
        result_(std::move(result)),
        finish_(std::move(finish)) {}
  PythonHandle(const PythonHandle&) = delete;
  PythonHandle& operator=(const PythonHandle&) = delete;
  PythonHandle(PythonHandle&&) noexcept = default;
  PythonHandle& operator=(PythonHandle&&) = delete;
  // Dropped without a wait, or its wait was interrupted: the engine still reads and writes the memory.
  ~PythonHandle() {
    if (operation_ == nullptr || runtime_.is_none()) return;
    if (!operation_->done() || !carriers::has_ended(*operation_)) {
      runtime().abandon(std::move(operation_), std::move(memory_));
    } else if (operation_->in_use) {
      memory_.release();
    }
  }

  // True when it has ended within `timeout_s`; lets an open bucket go, because somebody is interested. No stream waits.
  bool done(double timeout_s) {
    if (operation_->done()) return true;
    Runtime& engine = runtime().get();
    const nb::gil_scoped_release released;
    try {
      return engine.wait(*operation_, limit_of(timeout_s), {}, false);
    } catch (const Error&) {
      return operation_->done();  // `wait` tells
    }
  }

  // True when it has ended, and the GPU has ended it as well.
  bool landed() { return done(0) && carriers::has_ended(*operation_); }

  bool wait(double timeout_s);
  // After a wait: why it was interrupted, or why the operation failed.
  void raise_error();
  // The result of an operation on a GPU, once.
  device::Memory take_device_result(std::size_t index) {
    const engine::OnDevice& tensor = *part(index).on_device;
    device::Memory result = std::move(carriers::gpu_tensor(part(index))->result);
    result.move_to(reinterpret_cast<device::cuda::Stream>(tensor.stream));
    return result;
  }

  const Operation& part(std::size_t index) const { return *shared_part(index); }
  const std::shared_ptr<Operation>& shared_part(std::size_t index) const {
    if (!operation_->done()) throw Error(ErrorKind::kInvalidArgument, "the operation has not ended; wait for it first");
    if (operation_->parts.empty() && index == 0) return operation_;
    return operation_->parts.at(index);
  }
  const std::string& name() const { return operation_->descriptor.name; }
  Rank last_joined() const { return operation_->last_joined; }
  static nb::object synchronize(nb::handle_t<PythonHandle> self) {
    auto& handle = nb::cast<PythonHandle&>(self);
    handle.wait(std::numeric_limits<double>::infinity());
    if (!handle.finish_.is_none()) {
      handle.result_ = handle.finish_(self);
      handle.finish_ = nb::none();  // once
    }
    return handle.result_;
  }

  // For Python's garbage collector: a result may refer to its handle. What the engine still uses is not shown to it:
  // the engine's hold on that is no reference of Python's, and it may not be cleared.
  static int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (!nb::inst_ready(self)) return 0;
    const auto& handle = *nb::inst_ptr<PythonHandle>(self);
    Py_VISIT(handle.result_.ptr());
    Py_VISIT(handle.finish_.ptr());
    if (is_let_go(*handle.operation_)) Py_VISIT(handle.memory_.ptr());
    return 0;
  }
  static int clear(PyObject* self) {
    auto& handle = *nb::inst_ptr<PythonHandle>(self);
    handle.result_ = nb::none();
    handle.finish_ = nb::none();
    if (is_let_go(*handle.operation_)) handle.memory_ = nb::none();
    return 0;
  }

 private:
  // Of one part, if it has tensors on a GPU; else null.
  const engine::OnDevice* on_device() const {
    return operation_->parts.empty() ? operation_->on_device.get() : operation_->parts.front()->on_device.get();
  }
  void enter_stream(const engine::OnDevice& tensor);
  PythonRuntime& runtime() const { return nb::cast<PythonRuntime&>(runtime_); }

  std::shared_ptr<Operation> operation_;
  nb::object memory_;
  nb::object runtime_;
  nb::object result_;
  nb::object finish_;
};

bool python_interrupted() {
  const nb::gil_scoped_acquire gil;
  return PyErr_CheckSignals() != 0;
}

// Whether the calling thread is the only one that Python knows, but for those that serve this runtime.
bool PythonRuntime::is_alone() const {
  // What threading.active_count() counts, which takes as long as half of a small allreduce. Never freed: it is asked
  // until the interpreter ends.
  static const auto& threads = *new nb::dict(nb::module_::import_("threading").attr("_active"));
  return PyDict_Size(threads.ptr()) <= 1 + service_threads;
}

bool PythonHandle::wait(double timeout_s) {
  if (!operation_->done()) {
    const bool alone = runtime().is_alone();
    Runtime& engine = runtime().get();
    bool done = false;
    {
      const nb::gil_scoped_release released;
      done = engine.wait(*operation_, limit_of(timeout_s), python_interrupted, alone);
    }
    if (!done && PyErr_Occurred() == nullptr) return false;
  }
  raise_error();
  return true;
}

// After a wait: a pending Python exception (Ctrl-C) first, then the operation's error.
void PythonHandle::raise_error() {
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  if (operation_->error != nullptr) {
    if (!operation_->in_use) memory_.reset();
    throw *operation_->error;
  }
  if (const engine::OnDevice* tensor = on_device(); tensor != nullptr) return enter_stream(*tensor);
  memory_.reset();
}

// What the framework does with the result waits for the GPU; the host does not. Every wait does this, for its own
// stream. The memory stays until the GPU is done with it: no other stream is held back for its sake.
void PythonHandle::enter_stream(const engine::OnDevice& tensor) {
  nb::object array = memory_;
  while (nb::isinstance<nb::tuple>(array) && nb::len(array) > 0) array = array[0];
  if (nb::inst_check(array) && nb::isinstance<Buffer>(array)) array = nb::cast<const Buffer&>(array).owner;
  const std::optional<std::uintptr_t> stream = current_stream(array, tensor.device);
  carriers::hold_back(*operation_, stream.value_or(tensor.stream));
}

// A TypeError of its own: adapters prepare an array that the engine cannot work on, and mistakes in a call pass through.
class UnsupportedArray : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

engine::Array array_of(nb::handle array, bool writable) {
  const std::optional<engine::Array> view = view_of(array, writable);
  if (!view) throw UnsupportedArray("not a contiguous array of a dtype that ringcore knows");
  return *view;
}

// For what is done here and now.
engine::Array host_array_of(nb::handle array, bool writable) {
  const engine::Array view = array_of(array, writable);
  if (view.device != engine::kHost) throw UnsupportedArray("not in host memory");
  return view;
}

std::shared_ptr<Operation> make_operation(const engine::Call& call, nb::handle input, nb::handle output) {
  const engine::Array source = array_of(input, output.is_valid() && output.is(input));
  if (!output.is_valid()) return engine::make_operation(call, source, nullptr);
  if (output.is(input)) return engine::make_operation(call, source, &source);
  const engine::Array target = array_of(output, true);
  return engine::make_operation(call, source, &target);
}

// One operation of one array, or a group of several. `outputs` is empty where the engine allocates the result.
std::shared_ptr<Operation> make_operation(const engine::Call& call, const nb::tuple& inputs, const nb::tuple& outputs) {
  call.check();
  if (inputs.size() == 0 || (outputs.size() > 0 && outputs.size() != inputs.size())) {
    throw Error(ErrorKind::kInvalidArgument, "'" + call.name + "': there are " + std::to_string(inputs.size()) +
                                                 " inputs and " + std::to_string(outputs.size()) + " outputs");
  }
  const auto one = [&](std::size_t index) {
    return make_operation(call, inputs[index], outputs.size() > 0 ? nb::handle(outputs[index]) : nb::handle());
  };
  if (inputs.size() == 1) return one(0);
  std::vector<std::shared_ptr<Operation>> parts;
  parts.reserve(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) parts.push_back(one(i));
  return engine::make_group(call.name, std::move(parts));
}

// The other ranks are told at once what is wrong with this rank's arrays. An array that Python can prepare is not.
template <class... Arrays>
std::shared_ptr<Operation> make_or_refuse(PythonRuntime& runtime, const engine::Call& call, const Arrays&... arrays) {
  try {
    return make_operation(call, arrays...);
  } catch (const Error& error) {
    runtime.get().refuse(call.process_set, call.name, error.what());
    throw;
  }
}

// Other threads of Python get their turn when it takes longer than they would take to notice.
void run(Runtime& runtime, const std::shared_ptr<Operation>& operation, bool alone) {
  const Runtime::Tried tried = runtime.try_run(operation, alone);
  if (tried == Runtime::Tried::kDone) return;
  const nb::gil_scoped_release released;
  if (tried == Runtime::Tried::kNotSubmitted) {
    runtime.run(operation, python_interrupted, alone);
  } else {
    runtime.wait(*operation, Runtime::kForever, python_interrupted, alone);
  }
}

// Keeps the operation's memory, not the handle: the handle keeps what is made of the view.
nb::ndarray<nb::memview, std::uint8_t, nb::ndim<1>> result_view(const PythonHandle& handle, std::size_t index) {
  using Owner = std::shared_ptr<const Operation>;
  auto owner = std::make_unique<Owner>(handle.shared_part(index));
  const Memory& result = (*owner)->result;
  const nb::capsule keeper(owner.get(), [](void* shared) noexcept { delete static_cast<Owner*>(shared); });
  owner.release();
  return nb::ndarray<nb::memview, std::uint8_t, nb::ndim<1>>(result.data(), {result.size()}, keeper);
}

PyType_Slot handle_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&PythonHandle::traverse)},
                              {Py_tp_clear, reinterpret_cast<void*>(&PythonHandle::clear)},
                              {0, nullptr}};

nb::list take_spans(Runtime& runtime, std::vector<engine::Span> (Runtime::*take)()) {
  std::vector<engine::Span> spans;
  {
    const nb::gil_scoped_release released;
    spans = (runtime.*take)();
  }
  nb::list list;
  for (const engine::Span& span : spans) {
    list.append(nb::make_tuple(span.name, span.activity, span.lane, span.channel, span.begin, span.end, span.bytes));
  }
  return list;
}

}  // namespace

void register_runtime(nb::module_& module) {
  module.attr("DIRECT_BYTES") = engine::ExecutionSettings{}.direct_bytes;
  nb::exception<UnsupportedArray>(module, "UnsupportedArray", PyExc_TypeError);
  ::pthread_atfork(nullptr, nullptr, [] {
    ++forks;
    capi::forget_runtime();
  });
  module.def(
      "capi", [] { return reinterpret_cast<std::uintptr_t>(capi::table()); },
      "The address of the functions of ringcore.h, for the compiled half of an adapter.");
  module.def(
      "copy",
      [](nb::handle source, nb::handle target) {
        const engine::Array from = host_array_of(source, false);
        const engine::Array to = host_array_of(target, true);
        const std::size_t bytes = from.shape.elements() * size_of(from.dtype);
        if (from.dtype != to.dtype || bytes != to.shape.elements() * size_of(to.dtype)) {
          throw UnsupportedArray("not of the target's dtype and number of elements");
        }
        const nb::gil_scoped_release released;
        transport::copy_to_peer(to.data, from.data, bytes);
      },
      nb::arg("source"), nb::arg("target"),
      "Copies an array into memory that is reduced later, past the caches where that is quicker.");
  nb::class_<PythonHandle>(module, "Handle", nb::type_slots(handle_slots), "A submitted operation, or a group of them.")
      .def("done", &PythonHandle::done, nb::arg("timeout_s") = 0.0,
           "Whether it has ended, successfully or not, so that `synchronize` will not block; within `timeout_s` from "
           "now.")
      .def("landed", &PythonHandle::landed,
           "Whether it has ended on the GPU as well: `done` tells there that it was launched.")
      .def("wait", &PythonHandle::wait, nb::arg("timeout_s") = std::numeric_limits<double>::infinity(),
           "Waits until it has ended: True. False when `timeout_s` has passed. Raises why it failed, which is the same "
           "on every rank.")
      .def("synchronize", &PythonHandle::synchronize, nb::sig("def synchronize(self) -> typing.Any"),
           "Waits until it has ended and returns its result. Raises why it failed, which is the same on every rank.")
      .def_static(
          "of_nothing",
          [](nb::object result) {
            auto operation = std::make_shared<Operation>();
            operation->state.store(engine::OperationState::kDone);
            return PythonHandle(std::move(operation), nb::none(), nb::none(), std::move(result), nb::none());
          },
          nb::arg("result").none(), "Of an empty group: it has ended.")
      .def("result", &result_view, nb::arg("index") = 0,
           "The bytes of what an allgather, alltoall or reducescatter produced; of a group's tensor `index`.")
      .def(
          "device_result",
          [](PythonHandle& handle, std::size_t index) { return new DeviceMemory{handle.take_device_result(index)}; },
          nb::arg("index") = 0, "The same of tensors on a GPU. Once: it is handed over.")
      .def(
          "rows", [](const PythonHandle& operation, std::size_t index) { return operation.part(index).result_rows; },
          nb::arg("index") = 0, "The rows that came from each rank, in the result of an allgather or alltoall.")
      .def(
          "adasum_into",
          [](const PythonHandle& handle, std::size_t index, nb::handle target, double scale) {
            const Operation& gathered = handle.part(index);
            const engine::Array to = host_array_of(target, true);
            const std::size_t ranks = std::max<std::size_t>(gathered.result_rows.size(), 1);
            const std::size_t bytes = gathered.result.size() / ranks;
            if (to.dtype != gathered.descriptor.dtype || to.shape.elements() * size_of(to.dtype) != bytes) {
              throw Error(ErrorKind::kInvalidArgument,
                          "Adasum takes the result of an allgather of one row a rank, and a "
                          "target like one row");
            }
            std::vector<const std::byte*> sources;
            for (std::size_t rank = 0; rank < ranks; ++rank) sources.push_back(gathered.result.data() + rank * bytes);
            const nb::gil_scoped_release released;
            adasum(to.dtype, sources, to.data, bytes / size_of(to.dtype), scale);
          },
          nb::arg("index"), nb::arg("target"), nb::arg("scale"),
          "Of an allgather of one row a rank: combines the rows by Adasum into `target`.")
      .def_prop_ro("name", &PythonHandle::name, "What identifies it on all ranks; empty for one of nothing.")
      .def_prop_ro("last_joined", &PythonHandle::last_joined, "Of a join: the rank that joined last.");

  nb::class_<PythonRuntime>(module, "Runtime", "The engine of this rank, connected to its peers.")
      .def(
          "__init__",
          [](PythonRuntime* self, Rank rank, int size, std::uint32_t epoch, std::shared_ptr<HostMemory> memory,
             const std::vector<PeerTuple>& peers, std::vector<int> host_of, Rank local_rank, int local_size,
             std::size_t fusion_threshold_bytes, std::size_t eager_limit_bytes, bool deterministic, double timeout_s,
             double stall_warning_s, double heartbeat_s, double spin_s,
             const std::shared_ptr<transport::MpiWorld>& mpi) {
            const auto nanoseconds = [](double seconds) {
              return static_cast<Nanoseconds>(seconds * static_cast<double>(kSecond));
            };
            engine::EngineSettings settings;
            settings.execution.fusion_threshold_bytes = fusion_threshold_bytes;
            settings.execution.deterministic = deterministic;
            settings.eager_limit_bytes = eager_limit_bytes;
            settings.timeout = nanoseconds(timeout_s);
            settings.stall_warning = nanoseconds(stall_warning_s);
            settings.heartbeat = nanoseconds(heartbeat_s);
            new (self)
                PythonRuntime(rank, size, epoch, std::move(memory), peers, std::move(host_of),
                              {.local_rank = local_rank, .local_size = local_size}, settings, nanoseconds(spin_s), mpi);
          },
          nb::arg("rank"), nb::arg("size"), nb::arg("epoch"), nb::arg("memory").none(), nb::arg("peers"),
          nb::arg("host_of"), nb::arg("local_rank"), nb::arg("local_size"), nb::kw_only(),
          nb::arg("fusion_threshold_bytes"), nb::arg("eager_limit_bytes"), nb::arg("deterministic"),
          nb::arg("timeout_s"), nb::arg("stall_warning_s"), nb::arg("heartbeat_s"), nb::arg("spin_s"),
          nb::arg("mpi") = nb::none())
      .def(
          "submit",
          [](nb::handle_t<PythonRuntime> self, int collective, const std::string& name, const nb::tuple& inputs,
             const nb::tuple& outputs, int op, Rank root, double prescale, double postscale,
             engine::ProcessSetId process_set, std::int32_t priority, const nb::tuple& splits, bool blocking,
             nb::object result, nb::object finish) {
            const engine::Call call{static_cast<Collective>(collective),
                                    name,
                                    static_cast<ReduceOp>(op),
                                    root,
                                    prescale,
                                    postscale,
                                    process_set,
                                    priority};
            auto& python_runtime = nb::cast<PythonRuntime&>(self);
            std::shared_ptr<Operation> operation = make_or_refuse(python_runtime, call, inputs, outputs);
            for (const nb::handle rows : splits) operation->splits.push_back(nb::cast<std::uint64_t>(rows));
            // Of one array itself: a tuple less for Python's garbage collector to look at.
            nb::object memory = inputs.size() == 1 ? nb::object(inputs[0]) : nb::object(inputs);
            if (outputs.size() > 0 && !outputs.is(inputs)) memory = nb::make_tuple(inputs, outputs);
            Runtime& runtime = python_runtime.get();
            python_runtime.free_abandoned();
            if (blocking) {
              run(runtime, operation, python_runtime.is_alone());
            } else {
              const nb::gil_scoped_release released;
              runtime.submit(operation, python_interrupted);
            }
            PythonHandle handle(std::move(operation), std::move(memory), nb::borrow(self), std::move(result),
                                std::move(finish));
            if (blocking || PyErr_Occurred() != nullptr) handle.raise_error();
            return handle;
          },
          nb::arg("collective"), nb::arg("name"), nb::arg("inputs"), nb::arg("outputs"), nb::arg("op"), nb::arg("root"),
          nb::arg("prescale"), nb::arg("postscale"), nb::arg("process_set"), nb::arg("priority"), nb::arg("splits"),
          nb::arg("blocking"), nb::arg("result").none(), nb::arg("finish").none(),
          "Submits one array, or several as a group; outputs are empty where the engine allocates the result. Waits "
          "for "
          "it where `blocking`.")
      .def(
          "allreduce_in_place",
          [](nb::handle_t<PythonRuntime> self, nb::object array, const std::string& name, int op, double prescale,
             double postscale, engine::ProcessSetId process_set) {
            const engine::Call call{
                Collective::kAllreduce, name, static_cast<ReduceOp>(op), 0, prescale, postscale, process_set};
            call.check();
            auto& python_runtime = nb::cast<PythonRuntime&>(self);
            std::shared_ptr<Operation> operation = make_or_refuse(python_runtime, call, array, array);
            Runtime& runtime = python_runtime.get();
            python_runtime.free_abandoned();
            run(runtime, operation, python_runtime.is_alone());
            const bool plain = operation->done() && operation->error == nullptr && operation->on_device == nullptr;
            if (plain && PyErr_Occurred() == nullptr) return;
            PythonHandle(std::move(operation), std::move(array), nb::borrow(self), nb::none(), nb::none())
                .raise_error();
          },
          nb::arg("array"), nb::arg("name"), nb::arg("op"), nb::arg("prescale"), nb::arg("postscale"),
          nb::arg("process_set"), "Reduces one array where it lies, and waits for it: without a handle.")
      .def(
          "join",
          [](nb::handle_t<PythonRuntime> self, engine::ProcessSetId process_set) {
            auto operation = std::make_shared<Operation>();
            operation->join = true;
            operation->process_set = process_set;
            Runtime& runtime = nb::cast<PythonRuntime&>(self).get();
            {
              const nb::gil_scoped_release released;
              runtime.submit(operation);
            }
            return PythonHandle(std::move(operation), nb::none(), nb::borrow(self), nb::none(), nb::none());
          },
          nb::arg("process_set"))
      .def(
          "check",
          [](PythonRuntime& self) {
            const std::shared_ptr<const Error> failure = self.get().failure();
            if (failure != nullptr) throw *failure;
          },
          "Raises why the engine has failed, if it has.")
      .def(
          "leave",
          [](PythonRuntime& self, const std::string& reason) {
            // MPI_Finalize would wait for a rank that was lost.
            const auto failure = self.get().failure();
            if (failure != nullptr && failure->kind() == ErrorKind::kPeerLost) transport::MpiWorld::abandon();
            self.get().leave(reason, python_interrupted);
            const nb::gil_scoped_acquire gil;
            if (PyErr_Occurred() != nullptr) throw nb::python_error();  // it was interrupted
          },
          nb::arg("reason"), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "add_process_set",
          [](PythonRuntime& self, std::vector<Rank> ranks, std::optional<engine::ProcessSetId> agreed) {
            return self.get().add_process_set(std::move(ranks), agreed);
          },
          nb::arg("ranks"), nb::arg("agreed") = nb::none(), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "remove_process_set", [](PythonRuntime& self, engine::ProcessSetId id) { self.get().remove_process_set(id); },
          nb::arg("process_set"), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "refuse",
          [](PythonRuntime& self, engine::ProcessSetId process_set, const std::string& name, const std::string& why) {
            self.get().refuse(process_set, name, why);
          },
          nb::arg("process_set"), nb::arg("name"), nb::arg("why"), nb::call_guard<nb::gil_scoped_release>(),
          "Tells the other ranks why this rank will not submit what they submit by that name; it counts as submitted.")
      .def(
          "start_timeline", [](PythonRuntime& self) { self.get().start_timeline(); },
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "take_timeline", [](PythonRuntime& self) { return take_spans(self.get(), &Runtime::take_timeline); },
          "Spans since start_timeline, or the last call: (name, activity, lane, channel or -1, begin ns, end ns, "
          "bytes).")
      .def(
          "stop_timeline", [](PythonRuntime& self) { return take_spans(self.get(), &Runtime::stop_timeline); },
          "The spans that are left, as those of take_timeline.")
      .def_rw("service_threads", &PythonRuntime::service_threads,
              "How many threads of Python serve this runtime: they submit nothing, so that another one may be alone.")
      .def(
          "wait_for_attention",
          [](PythonRuntime& self, double limit_s) {
            return self.get().wait_for_attention(static_cast<Nanoseconds>(limit_s * static_cast<double>(kSecond)));
          },
          nb::arg("limit_s"), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "take_attention",
          [](PythonRuntime& self) {
            Runtime::Attention attention;
            {
              const nb::gil_scoped_release released;
              attention = self.get().take_attention();
            }
            return std::make_tuple(attention.warnings, attention.stacks_wanted, attention.lost_rank);
          },
          "(warnings to log, whether a peer wants this rank's stacks, as lost_rank)")
      .def_prop_ro(
          "lost_rank", [](PythonRuntime& self) { return self.get().lost_rank(); },
          nb::call_guard<nb::gil_scoped_release>(),
          "The rank whose end has made an operation of this rank fail; None: none has.")
      .def(
          "reply_stacks", [](PythonRuntime& self, const std::string& text) { self.get().reply_stacks(text); },
          nb::arg("text"), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "transports", [](PythonRuntime& self) { return self.get().transports(); },
          "The transport to each rank: 'self', 'shm', 'tcp' or 'mpi'.")
      .def_prop_ro(
          "lanes_wanted_fd", [](PythonRuntime& self) { return self.lane_requests().fd(); },
          "Readable when `take_wanted_lanes` has something to give.")
      .def(
          "take_wanted_lanes", [](PythonRuntime& self) { return self.lane_requests().take(); },
          "(rank, lane) for each lane over TCP that is needed for the first time now: connect it and `attach_lane` it.")
      .def("attach_lane", &PythonRuntime::attach_lane, nb::arg("rank"), nb::arg("lane"), nb::arg("fds"),
           nb::arg("secrets"), "Takes the descriptors; false when the link is closed already.")
      .def(
          "fail",
          [](PythonRuntime& self, const std::string& message) {
            self.get().fail(std::make_shared<const Error>(ErrorKind::kPeerLost, message));
          },
          nb::arg("message"), nb::call_guard<nb::gil_scoped_release>(),
          "Fails all operations here and on the other ranks: what they wait for cannot come.");
}

}  // namespace ringcore::python
