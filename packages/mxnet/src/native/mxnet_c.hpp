// The part of MXNet's C API that the shim calls, looked up in the MXNet that the process has loaded.
//
// Neither its headers nor its library are needed to build; tests/declarations.cpp compares this with the headers of the
// installed version.
#pragma once

#include <cstdint>
#include <stdexcept>

namespace ringcore::mxnet {

using Handle = void*;  // an NDArray
using AsyncFunction = void (*)(void* run_context, void* on_complete, void* parameter);
using Delete = void (*)(void*);

// MXNet's CallbackOnComplete. What an operation gets dies with the call, and may be copied. The error is a `dmlc::Error`,
// a std::runtime_error without members of its own.
struct OnComplete {
  void (*function)(void* engine, void* parameter, const std::runtime_error* error);
  void* engine;
  void* parameter;

  void operator()(const std::runtime_error* error) const { function(engine, parameter, error); }
};

// MXNet's Context.
struct Device {
  std::int32_t type;
  std::int32_t id;
};

// Its memory belongs to host arithmetic; 2 is a GPU.
enum DeviceType : int { kCpu = 1, kCpuPinned = 3, kCpuShared = 5 };

// kCpuPrioritized has threads of its own in MXNet's engine: the one for kNormal computes.
enum FunctionProperty : int { kNormal = 0, kCpuPrioritized = 3 };

enum StorageType : int { kDefaultStorage = 0 };

enum DType : int {
  kFloat32 = 0,
  kFloat64 = 1,
  kFloat16 = 2,
  kUInt8 = 3,
  kInt32 = 4,
  kInt8 = 5,
  kInt64 = 6,
  kBool = 7,
  kInt16 = 8,
  kUInt16 = 9,
  kBFloat16 = 12
};

// X(result, name, parameters)
#define RINGCORE_MXNET_FUNCTIONS(X)                                                                               \
  X(const char*, MXGetLastError, ())                                                                              \
  X(int, MXEnginePushAsyncND,                                                                                     \
    (AsyncFunction, void*, Delete, const void*, Handle*, int, Handle*, int, const void*, int, const char*, bool)) \
  X(int, MXShallowCopyNDArray, (Handle, Handle*))                                                                 \
  X(int, MXNDArrayFree, (Handle))                                                                                 \
  X(int, MXNDArrayGetData, (Handle, void**))                                                                      \
  X(int, MXNDArrayGetShapeEx64, (Handle, int*, const std::int64_t**))                                             \
  X(int, MXNDArrayGetDType, (Handle, int*))                                                                       \
  X(int, MXNDArrayGetContext, (Handle, int*, int*))                                                               \
  X(int, MXNDArrayGetStorageType, (Handle, int*))

struct Functions {
#define RINGCORE_DECLARE(Result, name, Parameters) Result(*name) Parameters = nullptr;
  RINGCORE_MXNET_FUNCTIONS(RINGCORE_DECLARE)
#undef RINGCORE_DECLARE
};

// Room for an NDArray that a function returns by value: larger than one, and with a destructor, so that the caller says
// where it goes.
struct Returned {
  ~Returned() {}  // NOLINT: not trivial
  alignas(16) unsigned char bytes[1024];
};

// What the C API has nothing for: arrays in the layouts of oneDNN, which operators like convolutions leave. Methods of
// C++; a build of MXNet without oneDNN has none of them. An NDArray begins with the pointer to its chunk of memory.
struct Layouts {
  bool (*is_foreign)(const void* chunk) = nullptr;  // NDArray::Chunk::IsMKLDNN() const
  void (*make_default)(void* chunk) = nullptr;  // NDArray::Chunk::Reorder2Default()
  Returned (*as_default)(const void* array) = nullptr;  // NDArray::Reorder2Default() const
};

constexpr const char* kIsForeign = "_ZNK5mxnet7NDArray5Chunk8IsMKLDNNEv";
constexpr const char* kMakeDefault = "_ZN5mxnet7NDArray5Chunk15Reorder2DefaultEv";
constexpr const char* kAsDefault = "_ZNK5mxnet7NDArray15Reorder2DefaultEv";

}  // namespace ringcore::mxnet
