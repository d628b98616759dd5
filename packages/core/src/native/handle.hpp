// An operation as Python holds it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <nanobind/nanobind.h>

#include "device/device.hpp"
#include "engine/request.hpp"
#include "runtime.hpp"

namespace ringcore::python {

// With the arrays that the engine reads and writes, and the result that the caller wants: an object, or a function of
// the handle that makes it.
class PythonHandle {
 public:
  PythonHandle(std::shared_ptr<engine::Operation> operation, nanobind::object memory, nanobind::object runtime,
               nanobind::object result, nanobind::object finish);
  // Of an empty group: it has ended.
  explicit PythonHandle(nanobind::object result);
  PythonHandle(const PythonHandle&) = delete;
  PythonHandle& operator=(const PythonHandle&) = delete;
  PythonHandle(PythonHandle&&) noexcept = default;
  PythonHandle& operator=(PythonHandle&&) = delete;
  // Dropped without a wait, or its wait was interrupted: the engine still reads and writes the memory.
  ~PythonHandle();

  // True when it has ended within `timeout_s`; lets an open bucket go, because somebody is interested. No stream waits.
  bool done(double timeout_s);
  // True when it has ended, and the GPU has ended it as well.
  bool landed();
  bool wait(double timeout_s);
  static nanobind::object synchronize(nanobind::handle_t<PythonHandle> self);
  // The operation, to be submitted again, where it has ended; null elsewhere. The handle forgets it.
  std::shared_ptr<engine::Operation> give_up();
  // After a wait: why it was interrupted, or why the operation failed.
  void raise_error();

  // The result of an operation on a GPU, once.
  device::Memory take_device_result(std::size_t index);
  const engine::Operation& part(std::size_t index) const { return *shared_part(index); }
  const std::shared_ptr<engine::Operation>& shared_part(std::size_t index) const;
  const std::string& name() const { return operation_->descriptor.name; }
  std::uint32_t epoch() const { return operation_->epoch; }
  Rank last_joined() const { return operation_->last_joined; }

  // For Python's garbage collector: a result may refer to its handle. What the engine still uses is not shown to it:
  // the engine's hold on that is no reference of Python's, and it may not be cleared.
  static int traverse(PyObject* self, visitproc visit, void* arg);
  static int clear(PyObject* self);

 private:
  void enter_streams();
  PythonRuntime& runtime() const { return nanobind::cast<PythonRuntime&>(runtime_); }

  std::shared_ptr<engine::Operation> operation_;
  nanobind::object memory_;
  nanobind::object runtime_;
  nanobind::object result_;
  nanobind::object finish_;
};

}  // namespace ringcore::python
