// The ways in which Python hands operations to the engine.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "arrays.hpp"
#include "base/error.hpp"
#include "handle.hpp"
#include "runtime.hpp"

namespace nb = nanobind;

namespace ringcore::python {
namespace {

using engine::Operation;

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

// The group that `again` stands for, in other memory; null where it is another group, or not free.
std::shared_ptr<Operation> renew(PythonRuntime& runtime, const engine::Call& call, const nb::tuple& inputs,
                                 const nb::tuple& outputs, PythonHandle* again) {
  if (again == nullptr || outputs.size() != inputs.size()) return nullptr;
  std::shared_ptr<Operation> group = again->give_up();
  if (!runtime.get().can_be_renewed(group, call, inputs.size())) return nullptr;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const bool in_place = outputs[i].is(inputs[i]);
    const engine::Array source = array_of(inputs[i], in_place);
    if (!place_again(*group->parts[i], source, in_place ? source : array_of(outputs[i], true))) return nullptr;
  }
  engine::renew(*group);
  return group;
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
void run(PythonRuntime& python_runtime, const std::shared_ptr<Operation>& operation) {
  Runtime& runtime = python_runtime.get();
  python_runtime.free_abandoned();
  const Runtime::Caller caller = python_runtime.count_threads();
  const Runtime::Tried tried = runtime.try_run(operation, caller);
  if (tried == Runtime::Tried::kDone) return;
  const nb::gil_scoped_release released;
  if (tried == Runtime::Tried::kNotSubmitted) {
    runtime.run(operation, python_runtime.asks_python(), caller);
  } else {
    runtime.wait(*operation, Runtime::kForever, python_runtime.asks_python(), caller);
  }
}

void start(PythonRuntime& python_runtime, const std::shared_ptr<Operation>& operation) {
  Runtime& runtime = python_runtime.get();
  python_runtime.free_abandoned();
  const nb::gil_scoped_release released;
  runtime.submit(operation, python_interrupted);
}

PythonHandle submit(nb::handle_t<PythonRuntime> self, int collective, const std::string& name, const nb::tuple& inputs,
                    const nb::tuple& outputs, int op, Rank root, double prescale, double postscale,
                    engine::ProcessSetId process_set, std::int32_t priority, const nb::tuple& splits, bool blocking,
                    nb::object result, nb::object finish, PythonHandle* again, int compression) {
  const engine::Call call{static_cast<Collective>(collective),
                          name,
                          static_cast<ReduceOp>(op),
                          root,
                          prescale,
                          postscale,
                          process_set,
                          priority,
                          static_cast<Compression>(compression)};
  auto& runtime = nb::cast<PythonRuntime&>(self);
  std::shared_ptr<Operation> operation = renew(runtime, call, inputs, outputs, again);
  if (operation == nullptr) operation = make_or_refuse(runtime, call, inputs, outputs);
  for (const nb::handle rows : splits) operation->splits.push_back(nb::cast<std::uint64_t>(rows));
  // Of one array itself: a tuple less for Python's garbage collector to look at.
  nb::object memory = inputs.size() == 1 ? nb::object(inputs[0]) : nb::object(inputs);
  if (outputs.size() > 0 && !outputs.is(inputs)) memory = nb::make_tuple(inputs, outputs);
  if (blocking) {
    run(runtime, operation);
  } else {
    start(runtime, operation);
  }
  PythonHandle handle(std::move(operation), std::move(memory), nb::borrow(self), std::move(result), std::move(finish));
  if (blocking || PyErr_Occurred() != nullptr) handle.raise_error();
  return handle;
}

// Waits for an operation of one array. A handle is made only where somebody has to keep the arrays, or to raise.
void carry_out(nb::handle_t<PythonRuntime> self, const engine::Call& call, const nb::object& array,
               const nb::object& output) {
  call.check();
  auto& runtime = nb::cast<PythonRuntime&>(self);
  std::shared_ptr<Operation> operation = make_or_refuse(runtime, call, array, output);
  run(runtime, operation);
  const bool plain = operation->done() && operation->error == nullptr && operation->on_device == nullptr;
  if (plain && PyErr_Occurred() == nullptr) return runtime.take_note(*operation);
  nb::object memory = output.is(array) ? array : nb::make_tuple(array, output);
  PythonHandle(std::move(operation), std::move(memory), nb::borrow(self), nb::none(), nb::none()).raise_error();
}

void allreduce_in_place(nb::handle_t<PythonRuntime> self, const nb::object& array, const std::string& name, int op,
                        double prescale, double postscale, engine::ProcessSetId process_set) {
  carry_out(self, {Collective::kAllreduce, name, static_cast<ReduceOp>(op), 0, prescale, postscale, process_set}, array,
            array);
}

void run_into(nb::handle_t<PythonRuntime> self, int collective, const nb::object& array, const nb::object& output,
              const std::string& name, int op, Rank root, double prescale, double postscale,
              engine::ProcessSetId process_set) {
  carry_out(
      self,
      {static_cast<Collective>(collective), name, static_cast<ReduceOp>(op), root, prescale, postscale, process_set},
      array, output);
}

PythonHandle join(nb::handle_t<PythonRuntime> self, engine::ProcessSetId process_set) {
  auto operation = std::make_shared<Operation>();
  operation->join = true;
  operation->process_set = process_set;
  Runtime& runtime = nb::cast<PythonRuntime&>(self).get();
  {
    const nb::gil_scoped_release released;
    runtime.submit(operation);
  }
  return PythonHandle(std::move(operation), nb::none(), nb::borrow(self), nb::none(), nb::none());
}

PythonHandle watch(nb::handle_t<PythonRuntime> self, engine::ProcessSetId process_set, const std::string& name,
                   int members) {
  auto operation = std::make_shared<Operation>();
  operation->descriptor.name = name;
  operation->descriptor.collective = Collective::kAllreduce;
  operation->process_set = process_set;
  operation->watched_members = members;
  start(nb::cast<PythonRuntime&>(self), operation);
  return PythonHandle(std::move(operation), nb::none(), nb::borrow(self), nb::none(), nb::none());
}

}  // namespace

void register_submission(nb::class_<PythonRuntime>& runtime) {
  runtime
      .def(
          "submit", &submit, nb::arg("collective"), nb::arg("name"), nb::arg("inputs"), nb::arg("outputs"),
          nb::arg("op"), nb::arg("root"), nb::arg("prescale"), nb::arg("postscale"), nb::arg("process_set"),
          nb::arg("priority"), nb::arg("splits"), nb::arg("blocking"), nb::arg("result").none(),
          nb::arg("finish").none(), nb::arg("again").none() = nb::none(), nb::arg("compression") = 0,
          "Submits one array, or several as a group; outputs are empty where the engine allocates the result. Waits "
          "for it where `blocking`. `again`: the handle of the same group's last use, which need not be described once "
          "more; it is used up.")
      .def("allreduce_in_place", &allreduce_in_place, nb::arg("array"), nb::arg("name"), nb::arg("op"),
           nb::arg("prescale"), nb::arg("postscale"), nb::arg("process_set"),
           "Reduces one array where it lies, and waits for it: without a handle.")
      .def("run_into", &run_into, nb::arg("collective"), nb::arg("array"), nb::arg("output"), nb::arg("name"),
           nb::arg("op"), nb::arg("root"), nb::arg("prescale"), nb::arg("postscale"), nb::arg("process_set"),
           "Any collective of one array into another, which may be the same, and waits for it: without a handle.")
      .def("join", &join, nb::arg("process_set"))
      .def("watch", &watch, nb::arg("process_set"), nb::arg("name"), nb::arg("members"),
           "Is done when so many ranks have submitted the allreduce of this name, which this one need not have done.")
      .def(
          "refuse",
          [](PythonRuntime& self, engine::ProcessSetId process_set, const std::string& name, const std::string& why) {
            self.get().refuse(process_set, name, why);
          },
          nb::arg("process_set"), nb::arg("name"), nb::arg("why"), nb::call_guard<nb::gil_scoped_release>(),
          "Tells the other ranks why this rank will not submit what they submit by that name; it counts as submitted.");
}

}  // namespace ringcore::python
