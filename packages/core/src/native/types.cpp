// Codes of dtypes, reduce operations and collectives, by the names that the Python API uses.
#include "base/types.hpp"

#include "base/reduce.hpp"
#include "register.hpp"

namespace nb = nanobind;

namespace ringcore::python {
namespace {

template <class Enum>
nb::dict codes(int count) {
  nb::dict by_name;
  for (int code = 0; code < count; ++code) {
    const std::string_view name = name_of(static_cast<Enum>(code));
    by_name[nb::str(name.data(), name.size())] = code;
  }
  return by_name;
}

}  // namespace

void register_types(nb::module_& module) {
  module.attr("DTYPES") = codes<DType>(kDTypeCount);
  module.attr("REDUCE_OPS") = codes<ReduceOp>(kReduceOpCount);
  module.attr("COMPRESSIONS") = codes<Compression>(kCompressionCount);
  module.attr("COLLECTIVES") = codes<Collective>(kCollectiveCount);
  module.def("kernel_instruction_set", &kernel_instruction_set,
             "The instruction set that the reduction kernels use on this processor.");
}

}  // namespace ringcore::python
