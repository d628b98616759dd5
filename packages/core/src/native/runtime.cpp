// The runtime and its operations. Bindings convert, release the GIL, call: no logic.
#include "engine/runtime.hpp"

#include <unistd.h>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "memory.hpp"
#include "raise.hpp"
#include "register.hpp"
#include "transport/shm.hpp"
#include "transport/tcp.hpp"

namespace nb = nanobind;

namespace ringcore::python {
namespace {

using engine::Operation;

// (rank, kind, descriptors, the peer's segment or -1)
using PeerTuple = std::tuple<Rank, std::string, std::vector<int>, int>;

// The runtime and what it stands on: the memory outlives the engine.
class PythonRuntime {
 public:
  PythonRuntime(Rank rank, int size, std::uint32_t epoch, std::shared_ptr<HostMemory> memory,
                const std::vector<PeerTuple>& peers, std::vector<int> host_of, engine::EngineSettings settings,
                Nanoseconds spin)
      : memory_(std::move(memory)) {
    engine::RuntimeConfig config;
    config.engine.rank = rank;
    config.engine.epoch = epoch;
    config.engine.links.resize(size);
    for (const auto& [peer, kind, fds, segment_fd] : peers) {
      config.engine.links[peer] = make_link(rank, size, peer, kind, fds, segment_fd);
    }
    config.local_ranks = static_cast<int>(std::count(host_of.begin(), host_of.end(), host_of[rank]));
    config.engine.host_of = std::move(host_of);
    if (memory_ != nullptr) {
      config.engine.arena = &memory_->arena;
      config.engine.fusion_arena = memory_->fusion;
    }
    config.settings = settings;
    config.spin = spin;
    runtime_ = std::make_unique<engine::Runtime>(std::move(config));
  }

  // In a forked child the engine's threads do not exist and its locks may be held by nobody: leave it untouched.
  ~PythonRuntime() {
    if (::getpid() != pid_) [[maybe_unused]]
      auto* leaked = runtime_.release();
  }
  PythonRuntime(const PythonRuntime&) = delete;
  PythonRuntime& operator=(const PythonRuntime&) = delete;

  engine::Runtime& get() { return *runtime_; }

 private:
  std::unique_ptr<transport::Link> make_link(Rank rank, int size, Rank peer, const std::string& kind,
                                             const std::vector<int>& fds, int segment_fd) const {
    std::vector<Fd> owned;
    for (const int fd : fds) owned.emplace_back(fd);
    if (kind == "tcp") return transport::make_tcp_link(rank, peer, std::move(owned));
    auto segment = std::make_shared<transport::Segment>(transport::Segment::attach(Fd(segment_fd), peer, size));
    return transport::make_shm_link(rank, peer, memory_->segment, std::move(segment), std::move(owned.at(0)));
  }

  pid_t pid_ = ::getpid();
  std::shared_ptr<HostMemory> memory_;
  std::unique_ptr<engine::Runtime> runtime_;
};

bool python_interrupted() {
  const nb::gil_scoped_acquire gil;
  return PyErr_CheckSignals() != 0;
}

// After a wait: a pending Python exception (Ctrl-C) first, then the operation's error.
void raise_error_of(const Operation& operation) {
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  if (operation.error != nullptr) throw *operation.error;
}

std::shared_ptr<Operation> make_operation(int collective, const std::string& name, int dtype, int op,
                                          const std::vector<std::uint64_t>& shape, std::uintptr_t input,
                                          std::uintptr_t output, Rank root, double prescale, double postscale,
                                          engine::ProcessSetId process_set, std::int32_t priority,
                                          std::vector<std::uint64_t> splits, const std::string& group,
                                          std::uint32_t group_size) {
  if (name.empty() || name.size() > engine::kMaxNameBytes) {
    throw Error(ErrorKind::kInvalidArgument, "a name has 1 to " + std::to_string(engine::kMaxNameBytes) +
                                                 " bytes, not " + std::to_string(name.size()));
  }
  auto operation = std::make_shared<Operation>();
  engine::Descriptor& descriptor = operation->descriptor;
  descriptor.name = name;
  descriptor.collective = static_cast<Collective>(collective);
  descriptor.dtype = static_cast<DType>(dtype);
  descriptor.op = static_cast<ReduceOp>(op);
  descriptor.root = root;
  descriptor.shape = engine::Shape::of(shape);
  descriptor.prescale = prescale;
  descriptor.postscale = postscale;
  descriptor.group = group.empty() ? 0 : engine::hash_bytes(group, 1);
  descriptor.group_size = group_size;
  operation->process_set = process_set;
  operation->input = reinterpret_cast<const std::byte*>(input);
  operation->output = reinterpret_cast<std::byte*>(output);
  operation->splits = std::move(splits);
  operation->priority = priority;
  return operation;
}

nb::ndarray<nb::memview, std::uint8_t, nb::ndim<1>> result_view(nb::handle_t<Operation> self) {
  const auto& operation = nb::cast<const Operation&>(self);
  return nb::ndarray<nb::memview, std::uint8_t, nb::ndim<1>>(operation.result.data(), {operation.result.size()}, self);
}

}  // namespace

void register_runtime(nb::module_& module) {
  nb::class_<Operation>(module, "Operation", "A submitted operation.")
      .def_prop_ro("done", &Operation::done)
      .def_prop_ro("result", &result_view, "The bytes of what an allgather, alltoall or reducescatter produced.")
      .def_prop_ro("result_rows", [](const Operation& operation) { return operation.result_rows; })
      .def_prop_ro("last_joined", [](const Operation& operation) { return operation.last_joined; });

  nb::class_<PythonRuntime>(module, "Runtime", "The engine of this rank, connected to its peers.")
      .def(
          "__init__",
          [](PythonRuntime* self, Rank rank, int size, std::uint32_t epoch, std::shared_ptr<HostMemory> memory,
             const std::vector<PeerTuple>& peers, std::vector<int> host_of, std::size_t fusion_threshold_bytes,
             std::size_t eager_limit_bytes, bool deterministic, double timeout_s, double stall_warning_s,
             double heartbeat_s, double spin_s) {
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
            new (self) PythonRuntime(rank, size, epoch, std::move(memory), peers, std::move(host_of), settings,
                                     nanoseconds(spin_s));
          },
          nb::arg("rank"), nb::arg("size"), nb::arg("epoch"), nb::arg("memory").none(), nb::arg("peers"),
          nb::arg("host_of"), nb::kw_only(), nb::arg("fusion_threshold_bytes"), nb::arg("eager_limit_bytes"),
          nb::arg("deterministic"), nb::arg("timeout_s"), nb::arg("stall_warning_s"), nb::arg("heartbeat_s"),
          nb::arg("spin_s"))
      .def(
          "submit",
          [](PythonRuntime& self, int collective, const std::string& name, int dtype, int op,
             const std::vector<std::uint64_t>& shape, std::uintptr_t input, std::uintptr_t output, Rank root,
             double prescale, double postscale, engine::ProcessSetId process_set, std::int32_t priority,
             std::vector<std::uint64_t> splits, const std::string& group, std::uint32_t group_size) {
            auto operation = make_operation(collective, name, dtype, op, shape, input, output, root, prescale,
                                            postscale, process_set, priority, std::move(splits), group, group_size);
            const nb::gil_scoped_release released;
            self.get().submit(operation);
            return operation;
          },
          nb::arg("collective"), nb::arg("name"), nb::arg("dtype"), nb::arg("op"), nb::arg("shape"), nb::arg("input"),
          nb::arg("output"), nb::arg("root"), nb::arg("prescale"), nb::arg("postscale"), nb::arg("process_set"),
          nb::arg("priority"), nb::arg("splits"), nb::arg("group"), nb::arg("group_size"))
      .def(
          "run",
          [](PythonRuntime& self, int collective, const std::string& name, int dtype, int op,
             const std::vector<std::uint64_t>& shape, std::uintptr_t input, std::uintptr_t output, Rank root,
             double prescale, double postscale, engine::ProcessSetId process_set, std::vector<std::uint64_t> splits,
             bool alone) {
            auto operation = make_operation(collective, name, dtype, op, shape, input, output, root, prescale,
                                            postscale, process_set, 0, std::move(splits), "", 0);
            {
              const nb::gil_scoped_release released;
              self.get().run(operation, python_interrupted, alone);
            }
            raise_error_of(*operation);
            return operation;
          },
          nb::arg("collective"), nb::arg("name"), nb::arg("dtype"), nb::arg("op"), nb::arg("shape"), nb::arg("input"),
          nb::arg("output"), nb::arg("root"), nb::arg("prescale"), nb::arg("postscale"), nb::arg("process_set"),
          nb::arg("splits"), nb::arg("alone"),
          "Submits and waits. `alone`: this process has no other thread that might use the engine.")
      .def(
          "join",
          [](PythonRuntime& self, engine::ProcessSetId process_set) {
            auto operation = std::make_shared<Operation>();
            operation->join = true;
            operation->process_set = process_set;
            const nb::gil_scoped_release released;
            self.get().submit(operation);
            return operation;
          },
          nb::arg("process_set"))
      .def(
          "wait",
          [](PythonRuntime& self, Operation& operation, double limit_s, bool alone) {
            bool done = operation.done();
            if (!done) {
              const nb::gil_scoped_release released;
              const double limit = limit_s * static_cast<double>(kSecond);
              done =
                  self.get().wait(operation, limit < 9e18 ? static_cast<Nanoseconds>(limit) : engine::Runtime::kForever,
                                  python_interrupted, alone);
            }
            raise_error_of(operation);
            return done;
          },
          nb::arg("operation"), nb::arg("limit_s"), nb::arg("alone"))
      .def(
          "leave", [](PythonRuntime& self, const std::string& reason) { self.get().leave(reason); }, nb::arg("reason"),
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "add_process_set",
          [](PythonRuntime& self, std::vector<Rank> ranks) { return self.get().add_process_set(std::move(ranks)); },
          nb::arg("ranks"), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "remove_process_set", [](PythonRuntime& self, engine::ProcessSetId id) { self.get().remove_process_set(id); },
          nb::arg("process_set"), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "start_timeline", [](PythonRuntime& self) { self.get().start_timeline(); },
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "stop_timeline",
          [](PythonRuntime& self) {
            std::vector<engine::Span> spans;
            {
              const nb::gil_scoped_release released;
              spans = self.get().stop_timeline();
            }
            nb::list list;
            for (const engine::Span& span : spans) {
              list.append(
                  nb::make_tuple(span.name, span.activity, span.lane, span.channel, span.begin, span.end, span.bytes));
            }
            return list;
          },
          "Spans since start_timeline: (name, activity, lane, channel or -1, begin ns, end ns, bytes).")
      .def(
          "wait_for_attention",
          [](PythonRuntime& self, double limit_s) {
            return self.get().wait_for_attention(static_cast<Nanoseconds>(limit_s * static_cast<double>(kSecond)));
          },
          nb::arg("limit_s"), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "take_attention",
          [](PythonRuntime& self) {
            engine::Runtime::Attention attention;
            {
              const nb::gil_scoped_release released;
              attention = self.get().take_attention();
            }
            return std::make_tuple(attention.warnings, attention.stacks_wanted);
          },
          "(warnings to log, whether a peer wants this rank's stacks)")
      .def(
          "reply_stacks", [](PythonRuntime& self, const std::string& text) { self.get().reply_stacks(text); },
          nb::arg("text"), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "transports", [](PythonRuntime& self) { return self.get().transports(); },
          "The transport to each rank: 'self', 'shm' or 'tcp'.");
}

}  // namespace ringcore::python
