// Arrays that the engine is to work on, and what is done with some at once.
#include "arrays.hpp"

#include <cstddef>
#include <optional>

#include "base/error.hpp"
#include "base/quantise.hpp"
#include "buffer.hpp"
#include "register.hpp"
#include "transport/copy.hpp"

namespace nb = nanobind;

namespace ringcore::python {

engine::Array array_of(nb::handle array, bool writable) {
  const std::optional<engine::Array> view = view_of(array, writable);
  if (!view) throw UnsupportedArray("not a contiguous array of a dtype that ringcore knows");
  return *view;
}

engine::Array host_array_of(nb::handle array, bool writable) {
  const engine::Array view = array_of(array, writable);
  if (view.device != engine::kHost) throw UnsupportedArray("not in host memory");
  return view;
}

namespace {

void copy(nb::handle source, nb::handle target) {
  const engine::Array from = host_array_of(source, false);
  const engine::Array to = host_array_of(target, true);
  const std::size_t bytes = from.shape.elements() * size_of(from.dtype);
  if (from.dtype != to.dtype || bytes != to.shape.elements() * size_of(to.dtype)) {
    throw UnsupportedArray("not of the target's dtype and number of elements");
  }
  const nb::gil_scoped_release released;
  transport::copy_to_peer(to.data, from.data, bytes);
}

void round_values(nb::handle array, int compression) {
  const engine::Array values = host_array_of(array, true);
  if (compression <= 0 || compression >= kCompressionCount || !can_quantise(values.dtype)) {
    throw Error(ErrorKind::kInvalidArgument, "only float32 and float64 are rounded to int8 and int4");
  }
  const nb::gil_scoped_release released;
  round_to_quantised(static_cast<Compression>(compression), values.dtype, values.data, values.shape.elements());
}

}  // namespace

void register_arrays(nb::module_& module) {
  nb::exception<UnsupportedArray>(module, "UnsupportedArray", PyExc_TypeError);
  module.def("copy", &copy, nb::arg("source"), nb::arg("target"),
             "Copies an array into memory that is reduced later, past the caches where that is quicker.");
  module.def("round_to_quantised", &round_values, nb::arg("array"), nb::arg("compression"),
             "Makes of the values, in place, what a rank gets that they are sent to with this compression.");
}

}  // namespace ringcore::python
