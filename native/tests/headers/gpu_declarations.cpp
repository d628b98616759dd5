// Does not compile where what the core declares of CUDA and NCCL by hand differs from their headers.
#include <type_traits>

#include <cuda.h>
#if __has_include(<nccl.h>)
#include <nccl.h>
#define RINGCORE_HAS_NCCL_HEADER 1
#endif

#include "device/cuda_driver.hpp"
#include "device/nccl_api.hpp"

namespace {

using namespace ringcore::device;

// Passed alike by a C function: pointers are pointers, enums numbers, and structs have one size.
template <class Ours, class Theirs>
constexpr bool passed_alike() {
  if constexpr (std::is_pointer_v<Ours> || std::is_pointer_v<Theirs>) {
    return std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>;
  } else if constexpr (std::is_class_v<Ours> || std::is_class_v<Theirs>) {
    return std::is_class_v<Ours> && std::is_class_v<Theirs> && sizeof(Ours) == sizeof(Theirs) &&
           alignof(Ours) == alignof(Theirs);
  } else {
    return sizeof(Ours) == sizeof(Theirs) && std::is_floating_point_v<Ours> == std::is_floating_point_v<Theirs>;
  }
}

template <class Ours, class Theirs>
struct Same;
template <class Result, class... Parameters, class TheirResult, class... TheirParameters>
struct Same<Result (*)(Parameters...), TheirResult (*)(TheirParameters...)> {
  static constexpr bool value() {
    if constexpr (sizeof...(Parameters) != sizeof...(TheirParameters)) {
      return false;
    } else {
      return passed_alike<Result, TheirResult>() && (passed_alike<Parameters, TheirParameters>() && ...);
    }
  }
};

#define RINGCORE_COMPARE(table, name) \
  static_assert(Same<decltype(table::name), decltype(&::name)>::value(), #name " is declared otherwise")

RINGCORE_COMPARE(Driver, cuInit);
RINGCORE_COMPARE(Driver, cuDriverGetVersion);
RINGCORE_COMPARE(Driver, cuGetErrorString);
RINGCORE_COMPARE(Driver, cuDeviceGet);
RINGCORE_COMPARE(Driver, cuDeviceGetCount);
RINGCORE_COMPARE(Driver, cuDeviceGetUuid_v2);
RINGCORE_COMPARE(Driver, cuDeviceGetPCIBusId);
RINGCORE_COMPARE(Driver, cuDeviceGetAttribute);
RINGCORE_COMPARE(Driver, cuDevicePrimaryCtxRetain);
RINGCORE_COMPARE(Driver, cuCtxPushCurrent_v2);
RINGCORE_COMPARE(Driver, cuCtxPopCurrent_v2);
RINGCORE_COMPARE(Driver, cuCtxGetDevice);
RINGCORE_COMPARE(Driver, cuCtxGetStreamPriorityRange);
RINGCORE_COMPARE(Driver, cuStreamCreateWithPriority);
RINGCORE_COMPARE(Driver, cuStreamDestroy_v2);
RINGCORE_COMPARE(Driver, cuStreamWaitEvent);
RINGCORE_COMPARE(Driver, cuStreamSynchronize);
RINGCORE_COMPARE(Driver, cuStreamQuery);
RINGCORE_COMPARE(Driver, cuStreamIsCapturing);
RINGCORE_COMPARE(Driver, cuThreadExchangeStreamCaptureMode);
RINGCORE_COMPARE(Driver, cuEventCreate);
RINGCORE_COMPARE(Driver, cuEventDestroy_v2);
RINGCORE_COMPARE(Driver, cuEventRecord);
RINGCORE_COMPARE(Driver, cuEventQuery);
RINGCORE_COMPARE(Driver, cuMemAlloc_v2);
RINGCORE_COMPARE(Driver, cuMemFree_v2);
RINGCORE_COMPARE(Driver, cuMemAllocAsync);
RINGCORE_COMPARE(Driver, cuMemFreeAsync);
RINGCORE_COMPARE(Driver, cuMemHostAlloc);
RINGCORE_COMPARE(Driver, cuMemFreeHost);
RINGCORE_COMPARE(Driver, cuMemcpyHtoDAsync_v2);
RINGCORE_COMPARE(Driver, cuMemcpyDtoHAsync_v2);
RINGCORE_COMPARE(Driver, cuMemcpyDtoDAsync_v2);
RINGCORE_COMPARE(Driver, cuMemsetD2D32Async);
RINGCORE_COMPARE(Driver, cuPointerGetAttribute);
RINGCORE_COMPARE(Driver, cuModuleLoadData);
RINGCORE_COMPARE(Driver, cuModuleGetFunction);
RINGCORE_COMPARE(Driver, cuLaunchKernel);
RINGCORE_COMPARE(Driver, cuIpcGetMemHandle);
RINGCORE_COMPARE(Driver, cuIpcOpenMemHandle_v2);
RINGCORE_COMPARE(Driver, cuIpcCloseMemHandle);
RINGCORE_COMPARE(Driver, cuStreamWaitValue32_v2);
RINGCORE_COMPARE(Driver, cuStreamWriteValue32_v2);

static_assert(std::is_same_v<cuda::Stream, CUstream> && std::is_same_v<cuda::Pointer, CUdeviceptr>);
static_assert(cuda::kSuccess == CUDA_SUCCESS && cuda::kNotReady == CUDA_ERROR_NOT_READY);
static_assert(cuda::kStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(cuda::kEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(cuda::kHostAllocPortable == CU_MEMHOSTALLOC_PORTABLE);
static_assert(cuda::kAttributeMultiprocessors == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
static_assert(cuda::kAttributeCapabilityMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(cuda::kAttributeCapabilityMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(cuda::kAttributeMemoryPools == CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
static_assert(cuda::kPointerDeviceOrdinal == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
static_assert(cuda::kIpcLazyEnablePeerAccess == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
static_assert(cuda::kWaitUntilAtLeast == CU_STREAM_WAIT_VALUE_GEQ);
static_assert(cuda::kWriteBehindAll == CU_STREAM_WRITE_VALUE_DEFAULT);
static_assert(cuda::kCaptureNone == CU_STREAM_CAPTURE_STATUS_NONE);
static_assert(cuda::kCaptureActive == CU_STREAM_CAPTURE_STATUS_ACTIVE);
static_assert(cuda::kCaptureModeRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED);

#ifdef RINGCORE_HAS_NCCL_HEADER
RINGCORE_COMPARE(Nccl, ncclGetVersion);
RINGCORE_COMPARE(Nccl, ncclGetErrorString);
RINGCORE_COMPARE(Nccl, ncclGetLastError);
RINGCORE_COMPARE(Nccl, ncclGetUniqueId);
RINGCORE_COMPARE(Nccl, ncclCommInitRankConfig);
RINGCORE_COMPARE(Nccl, ncclCommGetAsyncError);
RINGCORE_COMPARE(Nccl, ncclCommDestroy);
RINGCORE_COMPARE(Nccl, ncclCommAbort);
RINGCORE_COMPARE(Nccl, ncclGroupStart);
RINGCORE_COMPARE(Nccl, ncclGroupEnd);
RINGCORE_COMPARE(Nccl, ncclAllReduce);
RINGCORE_COMPARE(Nccl, ncclReduce);
RINGCORE_COMPARE(Nccl, ncclReduceScatter);
RINGCORE_COMPARE(Nccl, ncclAllGather);
RINGCORE_COMPARE(Nccl, ncclBroadcast);
RINGCORE_COMPARE(Nccl, ncclSend);
RINGCORE_COMPARE(Nccl, ncclRecv);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
RINGCORE_COMPARE(Nccl, ncclMemAlloc);
RINGCORE_COMPARE(Nccl, ncclMemFree);
RINGCORE_COMPARE(Nccl, ncclCommRegister);
RINGCORE_COMPARE(Nccl, ncclCommDeregister);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
RINGCORE_COMPARE(Nccl, ncclCommWindowRegister);
RINGCORE_COMPARE(Nccl, ncclCommWindowDeregister);
static_assert(nccl::kWindowSymmetric == NCCL_WIN_COLL_SYMMETRIC);
#endif

static_assert(std::is_same_v<nccl::Comm, ncclComm_t>);
constexpr ncclConfig_t kInitial = NCCL_CONFIG_INITIALIZER;
static_assert(nccl::Config{}.magic == kInitial.magic &&
              offsetof(nccl::Config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(nccl::Config, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(nccl::Config, version) == offsetof(ncclConfig_t, version));
static_assert(nccl::Config{}.version == NCCL_VERSION(2, 14, 0));
static_assert(nccl::kSuccess == ncclSuccess && nccl::kSystemError == ncclSystemError);
static_assert(nccl::kRemoteError == ncclRemoteError && nccl::kInProgress == ncclInProgress);
static_assert(nccl::kInt8 == int(ncclInt8) && nccl::kUint8 == int(ncclUint8) && nccl::kInt32 == int(ncclInt32));
static_assert(nccl::kInt64 == int(ncclInt64) && nccl::kFloat16 == int(ncclFloat16));
static_assert(nccl::kFloat32 == int(ncclFloat32) && nccl::kFloat64 == int(ncclFloat64));
static_assert(nccl::kBfloat16 == int(ncclBfloat16));
static_assert(nccl::kSum == int(ncclSum) && nccl::kProd == int(ncclProd) && nccl::kMax == int(ncclMax));
static_assert(nccl::kMin == int(ncclMin));
#endif

}  // namespace
