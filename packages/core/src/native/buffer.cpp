// Where an array lies and what it holds, for anything that speaks the buffer protocol or DLPack.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "base/types.hpp"
#include "register.hpp"

namespace nb = nanobind;

namespace ringcore::python {
namespace {

// Our code for a DLPack dtype, -1 when there is none.
int code_of(nb::dlpack::dtype dtype) {
  using Code = nb::dlpack::dtype_code;
  if (dtype.lanes != 1) return -1;
  const auto pick = [&dtype](std::initializer_list<std::pair<int, DType>> known) {
    for (const auto& [bits, found] : known) {
      if (bits == dtype.bits) return static_cast<int>(found);
    }
    return -1;
  };
  switch (static_cast<Code>(dtype.code)) {
    case Code::Float: return pick({{16, DType::kFloat16}, {32, DType::kFloat32}, {64, DType::kFloat64}});
    case Code::Bfloat: return pick({{16, DType::kBFloat16}});
    case Code::Bool: return pick({{8, DType::kBool}});
    case Code::Int: return pick({{8, DType::kInt8}, {16, DType::kInt16}, {32, DType::kInt32}, {64, DType::kInt64}});
    case Code::UInt: return pick({{8, DType::kUInt8}, {16, DType::kUInt16}});
    default: return -1;  // complex and 8-bit floats
  }
}

template <class Array>
nb::tuple describe(const Array& array) {
  bool contiguous = true;
  std::int64_t stride = 1;
  for (std::size_t i = array.ndim(); i-- > 0;) {
    contiguous = contiguous && (array.shape(i) == 1 || array.size() == 0 || array.stride(i) == stride);
    stride *= static_cast<std::int64_t>(array.shape(i));
  }
  nb::list shape;
  for (std::size_t i = 0; i < array.ndim(); ++i) shape.append(array.shape(i));
  return nb::make_tuple(reinterpret_cast<std::uintptr_t>(array.data()), nb::tuple(shape), code_of(array.dtype()),
                        contiguous);
}

}  // namespace

void register_buffer(nb::module_& module) {
  module.def(
      "describe_writable", [](const nb::ndarray<nb::device::cpu>& array) { return describe(array); },
      nb::arg("array").noconvert(),
      "(address, shape, dtype code or -1, contiguous) of a writable array in host memory. TypeError for anything "
      "else.");
  module.def(
      "describe", [](const nb::ndarray<nb::ro, nb::device::cpu>& array) { return describe(array); },
      nb::arg("array").noconvert(), "The same for an array that may be read-only.");
}

}  // namespace ringcore::python
