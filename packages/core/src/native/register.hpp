#pragma once

#include <nanobind/nanobind.h>

namespace ringcore::python {

void register_types(nanobind::module_& module);
void register_errors(nanobind::module_& module);
void register_buffer(nanobind::module_& module);
void register_arrays(nanobind::module_& module);
void register_memory(nanobind::module_& module);
void register_mpi(nanobind::module_& module);
void register_device(nanobind::module_& module);
void register_tls(nanobind::module_& module);
void register_handle(nanobind::module_& module);
void register_runtime(nanobind::module_& module);
void register_witness(nanobind::module_& module);
void register_simulation(nanobind::module_& module);
void register_plan(nanobind::module_& module);
void register_aggregation(nanobind::module_& module);

}  // namespace ringcore::python
