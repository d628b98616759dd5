// Does not compile where src/native/tensorflow_c.hpp and the headers of TensorFlow differ.
#include <type_traits>

#include "tensorflow/c/kernels.h"
#include "tensorflow/c/ops.h"

#define TF_Status TSL_Status  // the one is a name of the other
#include "tensorflow_c.hpp"
#undef TF_Status

namespace {

namespace ours = ringcore::tensorflow;

// A type as the border has it: enums are numbers there.
template <class T>
struct Plain {
  using type = typename std::conditional_t<std::is_enum_v<T>, std::type_identity<int>, std::type_identity<T>>::type;
};
template <>
struct Plain<TF_StringView> {
  using type = ours::StringView;
};
template <class T>
struct Plain<T*> {
  using type = typename Plain<T>::type*;
};
template <class Result, class... Arguments>
struct Plain<Result(Arguments...)> {
  using type = typename Plain<Result>::type(typename Plain<Arguments>::type...);
};

static_assert(sizeof(TF_StringView) == sizeof(ours::StringView));
static_assert(offsetof(TF_StringView, data) == offsetof(ours::StringView, data));
static_assert(offsetof(TF_StringView, len) == offsetof(ours::StringView, len));
static_assert(TF_FLOAT == 1 && TF_DOUBLE == 2 && TF_INT32 == 3 && TF_UINT8 == 4 && TF_INT16 == 5 && TF_INT8 == 6);
static_assert(TF_INT64 == 9 && TF_BOOL == 10 && TF_BFLOAT16 == 14 && TF_UINT16 == 17 && TF_HALF == 19);
static_assert(TF_OK == 0 && TF_INVALID_ARGUMENT == 3 && TF_DEADLINE_EXCEEDED == 4 && TF_ALREADY_EXISTS == 6);
static_assert(TF_RESOURCE_EXHAUSTED == 8 && TF_FAILED_PRECONDITION == 9 && TF_ABORTED == 10 && TF_INTERNAL == 13);

#define RINGCORE_COMPARE(Result, name, Parameters) \
  static_assert(std::is_same_v<decltype(ours::Functions::name), Plain<decltype(TF_##name)>::type*>, "TF_" #name);
RINGCORE_TENSORFLOW_FUNCTIONS(RINGCORE_COMPARE)

}  // namespace
