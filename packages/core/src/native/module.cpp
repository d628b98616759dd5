// The Python module ringcore._native: one file a concept, each with a register function.
#include <nanobind/nanobind.h>

#include "register.hpp"

NB_MODULE(_native, module) {
  module.doc() = "The compiled engine of ringcore. Use the package `ringcore`; this module is its private part.";
  // Tensors in registered memory live until the interpreter ends, and with them what they refer to: no leak.
  nanobind::set_leak_warnings(false);
  ringcore::python::register_types(module);
  ringcore::python::register_errors(module);
  ringcore::python::register_buffer(module);
  ringcore::python::register_arrays(module);
  ringcore::python::register_memory(module);
  ringcore::python::register_mpi(module);
  ringcore::python::register_device(module);
  ringcore::python::register_tls(module);
  ringcore::python::register_handle(module);
  ringcore::python::register_plan(module);
  ringcore::python::register_runtime(module);
  ringcore::python::register_witness(module);
  ringcore::python::register_simulation(module);
  ringcore::python::register_aggregation(module);
}
