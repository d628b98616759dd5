// Arrays that the engine is to work on, and what is done with some at once.
#include "arrays.hpp"

#include <cstddef>
#include <optional>

#include "base/error.hpp"
#include "base/low_rank.hpp"
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

engine::Array narrow_array_of(nb::handle array, bool writable) {
  const engine::Array found = host_array_of(array, writable);
  if (!can_be_narrow(found.dtype) || found.shape.dims != 2) {
    throw Error(ErrorKind::kInvalidArgument, "only matrices of float32 and float64 are multiplied");
  }
  return found;
}

void orthonormalise_rows(nb::handle array) {
  const engine::Array matrix = narrow_array_of(array, true);
  if (matrix.shape.extent[0] > matrix.shape.extent[1]) {
    throw Error(ErrorKind::kInvalidArgument, "so many rows are not orthonormal: there are fewer columns");
  }
  const nb::gil_scoped_release released;
  orthonormalise(matrix.dtype, matrix.data, matrix.shape.extent[0], matrix.shape.extent[1]);
}

void multiply_narrow(nb::handle left, nb::handle right, std::size_t begin, nb::handle target) {
  const engine::Array one = narrow_array_of(left, false);
  const engine::Array other = narrow_array_of(right, false);
  const engine::Array to = narrow_array_of(target, true);
  const std::size_t rows = to.shape.extent[0];
  const bool fits = one.dtype == other.dtype && one.dtype == to.dtype && one.shape.extent[0] == other.shape.extent[0] &&
                    one.shape.extent[0] > 0 && other.shape.extent[1] == to.shape.extent[1] &&
                    begin + rows <= one.shape.extent[1];
  if (!fits) throw Error(ErrorKind::kInvalidArgument, "these matrices are not the factors of such a one");
  const nb::gil_scoped_release released;
  multiply(to.dtype, {.left = one.data,
                      .left_columns = one.shape.extent[1],
                      .begin = begin,
                      .right = other.data,
                      .rank = one.shape.extent[0],
                      .rows = rows,
                      .columns = to.shape.extent[1],
                      .to = to.data});
}

}  // namespace

void register_arrays(nb::module_& module) {
  nb::exception<UnsupportedArray>(module, "UnsupportedArray", PyExc_TypeError);
  module.def("copy", &copy, nb::arg("source"), nb::arg("target"),
             "Copies an array into memory that is reduced later, past the caches where that is quicker.");
  module.def("round_to_quantised", &round_values, nb::arg("array"), nb::arg("compression"),
             "Makes of the values, in place, what a rank gets that they are sent to with this compression.");
  module.def("orthonormalise", &orthonormalise_rows, nb::arg("matrix"),
             "Makes the rows of a matrix orthonormal, in place, with the same bits on every processor.");
  module.def("multiply_narrow", &multiply_narrow, nb::arg("left"), nb::arg("right"), nb::arg("begin"),
             nb::arg("target"),
             "target[i, j] = sum of left[k, begin + i] * right[k, j] over k, with the same bits on every processor.");
}

}  // namespace ringcore::python
