// GPUs: where NVIDIA's libraries are, and memory that the engine allocates there.
#include "device.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "device/libraries.hpp"
#include "register.hpp"

namespace nb = nanobind;

namespace ringcore::python {

void register_device(nb::module_& module) {
  nb::class_<DeviceMemory>(module, "DeviceMemory",
                           "Memory of a GPU. It is given back in its stream: behind what was given to that before.")
      .def(
          "__init__",
          [](DeviceMemory* self, int device, std::size_t nbytes, std::uintptr_t stream) {
            device::Device& gpu = device::Device::of(device);
            new (self) DeviceMemory{device::Memory(gpu, nbytes, reinterpret_cast<device::cuda::Stream>(stream))};
          },
          nb::arg("device"), nb::arg("nbytes"), nb::arg("stream"))
      .def_prop_ro("address",
                   [](const DeviceMemory& self) { return reinterpret_cast<std::uintptr_t>(self.memory.data()); })
      .def_prop_ro("nbytes", [](const DeviceMemory& self) { return self.memory.size(); })
      .def_prop_ro("device", [](const DeviceMemory& self) { return self.memory.ordinal(); });
  module.def(
      "set_library_paths",
      [](std::vector<std::string> cuda, std::vector<std::string> nccl, std::vector<std::string> nvrtc) {
        device::set_library_paths({std::move(cuda), std::move(nccl), std::move(nvrtc)});
      },
      nb::arg("cuda"), nb::arg("nccl"), nb::arg("nvrtc"),
      "Where NVIDIA's libraries may be; without effect on those that are open already.");
  module.def(
      "library_status",
      [] {
        std::vector<std::tuple<std::string, std::string, std::string, std::string>> rows;
        for (auto& status : device::library_status()) {
          rows.emplace_back(status.name, status.path, status.version, status.problem);
        }
        return rows;
      },
      "(name, path, version, why it cannot be used) of each of NVIDIA's libraries.",
      nb::call_guard<nb::gil_scoped_release>());
  module.def(
      "device_of", [](std::uintptr_t address) { return device::Device::ordinal_of(reinterpret_cast<void*>(address)); },
      nb::arg("address"), "The number of the GPU that memory lies on.");
  module.def("current_device", &device::Device::current_ordinal, "The number of the GPU that this thread works on.");
}

}  // namespace ringcore::python
