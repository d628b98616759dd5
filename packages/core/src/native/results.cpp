// What Python may ask a handle: whether it has ended, and what came of it.
#include <algorithm>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays.hpp"
#include "base/adasum.hpp"
#include "base/error.hpp"
#include "device.hpp"
#include "handle.hpp"
#include "register.hpp"

namespace nb = nanobind;

namespace ringcore::python {
namespace {

using engine::Operation;

// Keeps the operation's memory, not the handle: the handle keeps what is made of the view.
nb::ndarray<nb::memview, std::uint8_t, nb::ndim<1>> result_view(const PythonHandle& handle, std::size_t index) {
  using Owner = std::shared_ptr<const Operation>;
  auto owner = std::make_unique<Owner>(handle.shared_part(index));
  const Memory& result = (*owner)->result;
  const nb::capsule keeper(owner.get(), [](void* shared) noexcept { delete static_cast<Owner*>(shared); });
  owner.release();
  return nb::ndarray<nb::memview, std::uint8_t, nb::ndim<1>>(result.data(), {result.size()}, keeper);
}

void adasum_into(const PythonHandle& handle, std::size_t index, nb::handle target, double scale) {
  const Operation& gathered = handle.part(index);
  const engine::Array to = host_array_of(target, true);
  const std::size_t ranks = std::max<std::size_t>(gathered.result_rows.size(), 1);
  const std::size_t bytes = gathered.result.size() / ranks;
  if (to.dtype != gathered.descriptor.dtype || to.shape.elements() * size_of(to.dtype) != bytes) {
    throw Error(ErrorKind::kInvalidArgument,
                "Adasum takes the result of an allgather of one row a rank, and a target like one row");
  }
  std::vector<const std::byte*> sources;
  for (std::size_t rank = 0; rank < ranks; ++rank) sources.push_back(gathered.result.data() + rank * bytes);
  const nb::gil_scoped_release released;
  adasum(to.dtype, sources, to.data, bytes / size_of(to.dtype), scale);
}

PyType_Slot handle_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&PythonHandle::traverse)},
                              {Py_tp_clear, reinterpret_cast<void*>(&PythonHandle::clear)},
                              {0, nullptr}};

void register_results(nb::class_<PythonHandle>& handle) {
  handle
      .def("result", &result_view, nb::arg("index") = 0,
           "The bytes of what a gather, alltoall or scatter produced; of a group's tensor `index`.")
      .def(
          "device_result",
          [](PythonHandle& handle, std::size_t index) { return new DeviceMemory{handle.take_device_result(index)}; },
          nb::arg("index") = 0, "The same of tensors on a GPU. Once: it is handed over.")
      .def(
          "rows", [](const PythonHandle& operation, std::size_t index) { return operation.part(index).result_rows; },
          nb::arg("index") = 0, "The rows that came from each rank, in the result of a gather, alltoall or scatter.")
      .def("adasum_into", &adasum_into, nb::arg("index"), nb::arg("target"), nb::arg("scale"),
           "Of an allgather of one row a rank: combines the rows by Adasum into `target`.");
}

}  // namespace

void register_handle(nb::module_& module) {
  nb::class_<PythonHandle> handle(module, "Handle", nb::type_slots(handle_slots),
                                  "A submitted operation, or a group of them.");
  handle
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
          "of_nothing", [](nb::object result) { return PythonHandle(std::move(result)); }, nb::arg("result").none(),
          "Of an empty group: it has ended.");
  register_results(handle);
  handle.def_prop_ro("name", &PythonHandle::name, "What identifies it on all ranks; empty for one of nothing.")
      .def_prop_ro("epoch", &PythonHandle::epoch, "When it is done: the epoch of the ranks whose result it is.")
      .def_prop_ro("last_joined", &PythonHandle::last_joined, "Of a join: the rank that joined last.");
}

}  // namespace ringcore::python
