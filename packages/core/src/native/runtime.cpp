// The runtime as Python holds it: what it keeps for Python, and how many of Python's threads use it.
#include "runtime.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "capi/capi.hpp"
#include "carriers/gpu/tensor.hpp"
#include "register.hpp"
#include "runtime/sleep.hpp"

namespace nb = nanobind;

namespace ringcore::python {

bool is_let_go(const engine::Operation& operation) {
  return operation.done() && !operation.in_use && carriers::has_ended(operation);
}

bool python_interrupted() {
  const nb::gil_scoped_acquire gil;
  return PyErr_CheckSignals() != 0;
}

Nanoseconds limit_of(double timeout_s) {
  const double limit = timeout_s * static_cast<double>(kSecond);
  return limit < 9e18 ? static_cast<Nanoseconds>(limit) : Runtime::kForever;
}

PythonRuntime::~PythonRuntime() {
  for (auto& [operation, memory] : abandoned_) {
    if (operation->in_use) memory.release();
  }
}

Runtime::Interrupted PythonRuntime::asks_python() {
  return [this] {
    const nb::gil_scoped_acquire gil;
    count_threads();
    return PyErr_CheckSignals() != 0;
  };
}

void PythonRuntime::take_note(const engine::Operation& operation) const {
  if (operation.epoch > epoch) nb::module_::import_("ringcore.job.members").attr("take_note")(operation.epoch);
}

Runtime::Caller PythonRuntime::count_threads() {
  // What threading.active_count() counts, which takes as long as half of a small allreduce. Never freed: it is asked
  // until the interpreter ends.
  static const auto& threads = *new nb::dict(nb::module_::import_("threading").attr("_active"));
  const auto count = static_cast<int>(PyDict_Size(threads.ptr())) - service_threads_;
  get().count_threads(count);
  return count <= 1 ? Runtime::Caller::kAlone : Runtime::Caller::kCounted;
}

void PythonRuntime::add_service_thread(pid_t thread) {
  ++service_threads_;
  const nb::gil_scoped_release released;
  get().add_service_thread(thread);
}

void PythonRuntime::remove_service_thread(pid_t thread) {
  --service_threads_;
  const nb::gil_scoped_release released;
  get().remove_service_thread(thread);
}

void PythonRuntime::abandon(std::shared_ptr<engine::Operation> operation, nb::object memory) {
  free_abandoned();
  abandoned_.emplace_back(std::move(operation), std::move(memory));
}

void PythonRuntime::free_abandoned() {
  if (abandoned_.empty()) return;
  const auto running =
      std::partition(abandoned_.begin(), abandoned_.end(), [](const auto& item) { return is_let_go(*item.first); });
  // What is freed may drop other handles, which come here again: it is freed last.
  const std::vector<Abandoned> ended(std::move_iterator(abandoned_.begin()), std::move_iterator(running));
  abandoned_.erase(abandoned_.begin(), running);
}

void register_runtime(nb::module_& module) {
  module.attr("DIRECT_BYTES") = engine::ExecutionSettings{}.direct_bytes;
  module.def(
      "capi", [] { return reinterpret_cast<std::uintptr_t>(capi::table()); },
      "The address of the functions of ringcore.h, for the compiled half of an adapter.");
  module.def("add_bystanders_code", &add_bystanders_code, nb::arg("begin"), nb::arg("end"),
             "Code of a framework whose threads do nothing for the program, though a clock wakes them.");
  register_first_links(module);
  nb::class_<PythonRuntime> runtime(module, "Runtime", "The engine of this rank, connected to its peers.");
  register_job(runtime);
  register_submission(runtime);
  register_attention(runtime);
  register_offers(runtime);
}

}  // namespace ringcore::python
