// What mxnet_c.hpp declares is what MXNet's own headers declare: compiled against both, never run.
#include <mxnet/c_api.h>
#include <mxnet/ndarray.h>

#include <type_traits>

#include "mxnet_c.hpp"

namespace ringcore::mxnet {

#define RINGCORE_COMPARE(Result, name, Parameters) \
  static_assert(std::is_same_v<decltype(&::name), decltype(Functions::name)>);
RINGCORE_MXNET_FUNCTIONS(RINGCORE_COMPARE)
#undef RINGCORE_COMPARE

static_assert(std::is_same_v<EngineAsyncFunc, AsyncFunction>);
static_assert(std::is_same_v<EngineFuncParamDeleter, Delete>);
static_assert(sizeof(::mxnet::Engine::CallbackOnComplete) == sizeof(OnComplete));
static_assert(std::is_base_of_v<std::runtime_error, dmlc::Error>);
static_assert(sizeof(dmlc::Error) == sizeof(std::runtime_error));
static_assert(sizeof(::mxnet::Context) == sizeof(Device));
static_assert(static_cast<int>(::mxnet::FnProperty::kNormal) == kNormal);
static_assert(static_cast<int>(::mxnet::FnProperty::kCPUPrioritized) == kCpuPrioritized);
static_assert(::mxnet::Context::kCPU == kCpu && ::mxnet::Context::kCPUPinned == kCpuPinned &&
              ::mxnet::Context::kCPUShared == kCpuShared);
static_assert(::mxnet::kDefaultStorage == kDefaultStorage);
static_assert(mshadow::kFloat32 == kFloat32 && mshadow::kFloat64 == kFloat64 && mshadow::kFloat16 == kFloat16 &&
              mshadow::kUint8 == kUInt8 && mshadow::kInt32 == kInt32 && mshadow::kInt8 == kInt8 &&
              mshadow::kInt64 == kInt64 && mshadow::kBool == kBool && mshadow::kInt16 == kInt16 &&
              mshadow::kUint16 == kUInt16 && mshadow::kBfloat16 == kBFloat16);
static_assert(sizeof(::mxnet::NDArray) <= sizeof(Returned));

}  // namespace ringcore::mxnet
