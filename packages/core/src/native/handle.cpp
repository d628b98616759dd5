// Waiting for an operation, and what it leaves to Python's memory and to a GPU's streams.
#include "handle.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "buffer.hpp"
#include "carriers/gpu/tensor.hpp"

namespace nb = nanobind;

namespace ringcore::python {

using engine::Operation;

namespace {

std::shared_ptr<Operation> nothing() {
  auto operation = std::make_shared<Operation>();
  operation->state.store(engine::OperationState::kDone);
  return operation;
}

}  // namespace

PythonHandle::PythonHandle(std::shared_ptr<Operation> operation, nb::object memory, nb::object runtime,
                           nb::object result, nb::object finish)
    : operation_(std::move(operation)),
      memory_(std::move(memory)),
      runtime_(std::move(runtime)),
      result_(std::move(result)),
      finish_(std::move(finish)) {}

PythonHandle::PythonHandle(nb::object result)
    : PythonHandle(nothing(), nb::none(), nb::none(), std::move(result), nb::none()) {}

PythonHandle::~PythonHandle() {
  if (operation_ == nullptr || runtime_.is_none()) return;
  if (!operation_->done() || !carriers::has_ended(*operation_)) {
    runtime().abandon(std::move(operation_), std::move(memory_));
  } else if (operation_->in_use) {
    memory_.release();
  }
}

bool PythonHandle::done(double timeout_s) {
  if (operation_->done()) return true;
  Runtime& engine = runtime().get();
  const nb::gil_scoped_release released;
  try {
    return engine.wait(*operation_, limit_of(timeout_s), {}, Runtime::Caller::kUnknown);
  } catch (const Error&) {
    return operation_->done();  // `wait` tells
  }
}

bool PythonHandle::landed() { return done(0) && carriers::has_ended(*operation_); }

bool PythonHandle::wait(double timeout_s) {
  if (!operation_->done()) {
    const Runtime::Caller caller = runtime().count_threads();
    const Runtime::Interrupted interrupted = runtime().asks_python();
    Runtime& engine = runtime().get();
    bool done = false;
    {
      const nb::gil_scoped_release released;
      done = engine.wait(*operation_, limit_of(timeout_s), interrupted, caller);
    }
    if (!done && PyErr_Occurred() == nullptr) return false;
  }
  raise_error();
  return true;
}

nb::object PythonHandle::synchronize(nb::handle_t<PythonHandle> self) {
  auto& handle = nb::cast<PythonHandle&>(self);
  handle.wait(std::numeric_limits<double>::infinity());
  if (!handle.finish_.is_none()) {
    handle.result_ = handle.finish_(self);
    handle.finish_ = nb::none();  // once
  }
  return handle.result_;
}

std::shared_ptr<Operation> PythonHandle::give_up() {
  if (!operation_->done() || !carriers::has_ended(*operation_) || operation_->in_use) return nullptr;
  return std::exchange(operation_, nothing());
}

// A pending Python exception (Ctrl-C) first, then the operation's error.
void PythonHandle::raise_error() {
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  if (operation_->error != nullptr) {
    if (!operation_->in_use) memory_.reset();
    throw *operation_->error;
  }
  if (!runtime_.is_none()) runtime().take_note(*operation_);
  const Operation& any = operation_->parts.empty() ? *operation_ : *operation_->parts.front();
  if (any.on_device != nullptr) return enter_streams();
  memory_.reset();
}

// What the framework does with the result waits for the GPU; the host does not. Every wait does this, for its own
// stream. The memory stays until the GPU is done with it: no other stream is held back for its sake.
void PythonHandle::enter_streams() {
  nb::object array = memory_;
  while (nb::isinstance<nb::tuple>(array) && nb::len(array) > 0) array = array[0];
  if (nb::inst_check(array) && nb::isinstance<Buffer>(array)) array = nb::cast<const Buffer&>(array).owner;
  const std::size_t parts = std::max<std::size_t>(operation_->parts.size(), 1);
  std::vector<int> seen;
  for (std::size_t i = 0; i < parts; ++i) {
    const engine::OnDevice& tensor = *part(i).on_device;
    if (std::find(seen.begin(), seen.end(), tensor.device) != seen.end()) continue;
    seen.push_back(tensor.device);
    const std::optional<std::uintptr_t> stream = current_stream(array, tensor.device);
    carriers::hold_back(*operation_, stream.value_or(tensor.stream), tensor.device);
  }
}

device::Memory PythonHandle::take_device_result(std::size_t index) {
  const engine::OnDevice& tensor = *part(index).on_device;
  device::Memory result = std::move(carriers::gpu_tensor(part(index))->result);
  result.move_to(reinterpret_cast<device::cuda::Stream>(tensor.stream));
  return result;
}

const std::shared_ptr<Operation>& PythonHandle::shared_part(std::size_t index) const {
  if (!operation_->done()) throw Error(ErrorKind::kInvalidArgument, "the operation has not ended; wait for it first");
  if (operation_->parts.empty() && index == 0) return operation_;
  return operation_->parts.at(index);
}

int PythonHandle::traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  const auto& handle = *nb::inst_ptr<PythonHandle>(self);
  Py_VISIT(handle.result_.ptr());
  Py_VISIT(handle.finish_.ptr());
  if (is_let_go(*handle.operation_)) Py_VISIT(handle.memory_.ptr());
  return 0;
}

int PythonHandle::clear(PyObject* self) {
  auto& handle = *nb::inst_ptr<PythonHandle>(self);
  handle.result_ = nb::none();
  handle.finish_ = nb::none();
  if (is_let_go(*handle.operation_)) handle.memory_ = nb::none();
  return 0;
}

}  // namespace ringcore::python
