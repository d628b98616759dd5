// The part of CUDA's driver interface that ringcore uses, declared by hand: the core is built without CUDA's headers.
// tests/gpu_declarations.cpp compares this with them.
#pragma once

#include <cstddef>

struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUmod_st;
struct CUfunc_st;

namespace ringcore::device {

namespace cuda {

using Context = CUctx_st*;
using Stream = CUstream_st*;
using Event = CUevent_st*;
using Module = CUmod_st*;
using Function = CUfunc_st*;
using Pointer = unsigned long long;  // an address on a device
using Result = int;

struct Uuid {
  char bytes[16];
};

// Names memory of one process in another one.
struct IpcMemHandle {
  char bytes[64];
};

inline constexpr Result kSuccess = 0;
inline constexpr Result kNotReady = 600;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kHostAllocPortable = 1;
inline constexpr int kAttributeMultiprocessors = 16;
inline constexpr int kAttributeCapabilityMajor = 75;
inline constexpr int kAttributeCapabilityMinor = 76;
inline constexpr int kAttributeMemoryPools = 115;
inline constexpr int kPointerDeviceOrdinal = 9;
inline constexpr unsigned kIpcLazyEnablePeerAccess = 1;
inline constexpr unsigned kWaitUntilAtLeast = 0;  // as a signed difference: it may wrap around
inline constexpr unsigned kWriteBehindAll = 0;    // what the stream has written before is seen first
inline constexpr int kCaptureNone = 0;
inline constexpr int kCaptureActive = 1;
inline constexpr int kCaptureModeRelaxed = 2;

}  // namespace cuda

struct Driver {
  cuda::Result (*cuInit)(unsigned flags);
  cuda::Result (*cuDriverGetVersion)(int* version);
  cuda::Result (*cuGetErrorString)(cuda::Result error, const char** text);
  cuda::Result (*cuDeviceGet)(int* device, int ordinal);
  cuda::Result (*cuDeviceGetCount)(int* count);
  cuda::Result (*cuDeviceGetUuid_v2)(cuda::Uuid* uuid, int device);
  cuda::Result (*cuDeviceGetPCIBusId)(char* address, int bytes, int device);
  cuda::Result (*cuDeviceGetAttribute)(int* value, int attribute, int device);
  cuda::Result (*cuDevicePrimaryCtxRetain)(cuda::Context* context, int device);
  cuda::Result (*cuCtxPushCurrent_v2)(cuda::Context context);
  cuda::Result (*cuCtxPopCurrent_v2)(cuda::Context* context);
  cuda::Result (*cuCtxGetDevice)(int* device);
  cuda::Result (*cuCtxGetStreamPriorityRange)(int* least, int* greatest);
  cuda::Result (*cuStreamCreateWithPriority)(cuda::Stream* stream, unsigned flags, int priority);
  cuda::Result (*cuStreamDestroy_v2)(cuda::Stream stream);
  cuda::Result (*cuStreamWaitEvent)(cuda::Stream stream, cuda::Event event, unsigned flags);
  cuda::Result (*cuStreamSynchronize)(cuda::Stream stream);
  cuda::Result (*cuStreamQuery)(cuda::Stream stream);
  cuda::Result (*cuStreamIsCapturing)(cuda::Stream stream, int* status);
  cuda::Result (*cuThreadExchangeStreamCaptureMode)(int* mode);
  cuda::Result (*cuEventCreate)(cuda::Event* event, unsigned flags);
  cuda::Result (*cuEventDestroy_v2)(cuda::Event event);
  cuda::Result (*cuEventRecord)(cuda::Event event, cuda::Stream stream);
  cuda::Result (*cuEventQuery)(cuda::Event event);
  cuda::Result (*cuMemAlloc_v2)(cuda::Pointer* memory, std::size_t bytes);
  cuda::Result (*cuMemFree_v2)(cuda::Pointer memory);
  cuda::Result (*cuMemAllocAsync)(cuda::Pointer* memory, std::size_t bytes, cuda::Stream stream);
  cuda::Result (*cuMemFreeAsync)(cuda::Pointer memory, cuda::Stream stream);
  cuda::Result (*cuMemHostAlloc)(void** memory, std::size_t bytes, unsigned flags);
  cuda::Result (*cuMemFreeHost)(void* memory);
  cuda::Result (*cuMemcpyHtoDAsync_v2)(cuda::Pointer to, const void* from, std::size_t bytes, cuda::Stream stream);
  cuda::Result (*cuMemcpyDtoHAsync_v2)(void* to, cuda::Pointer from, std::size_t bytes, cuda::Stream stream);
  cuda::Result (*cuMemcpyDtoDAsync_v2)(cuda::Pointer to, cuda::Pointer from, std::size_t bytes, cuda::Stream stream);
  cuda::Result (*cuMemsetD2D32Async)(cuda::Pointer to, std::size_t pitch, unsigned value, std::size_t width,
                                     std::size_t height, cuda::Stream stream);
  cuda::Result (*cuPointerGetAttribute)(void* value, int attribute, cuda::Pointer pointer);
  cuda::Result (*cuModuleLoadData)(cuda::Module* module, const void* image);
  cuda::Result (*cuModuleGetFunction)(cuda::Function* function, cuda::Module module, const char* name);
  cuda::Result (*cuLaunchKernel)(cuda::Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                 unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                 cuda::Stream stream, void** parameters, void** extra);

  // Null where the driver is too old for them.
  cuda::Result (*cuIpcGetMemHandle)(cuda::IpcMemHandle* handle, cuda::Pointer memory);
  cuda::Result (*cuIpcOpenMemHandle_v2)(cuda::Pointer* memory, cuda::IpcMemHandle handle, unsigned flags);
  cuda::Result (*cuIpcCloseMemHandle)(cuda::Pointer memory);
  cuda::Result (*cuStreamWaitValue32_v2)(cuda::Stream stream, cuda::Pointer word, unsigned value, unsigned flags);
  cuda::Result (*cuStreamWriteValue32_v2)(cuda::Stream stream, cuda::Pointer word, unsigned value, unsigned flags);
};

// Calls `visit(name, pointer)` for each function of the table.
template <class Table, class Visit>
void each_driver_function(Table& table, Visit&& visit) {
  visit("cuInit", table.cuInit);
  visit("cuDriverGetVersion", table.cuDriverGetVersion);
  visit("cuGetErrorString", table.cuGetErrorString);
  visit("cuDeviceGet", table.cuDeviceGet);
  visit("cuDeviceGetCount", table.cuDeviceGetCount);
  visit("cuDeviceGetUuid_v2", table.cuDeviceGetUuid_v2);
  visit("cuDeviceGetPCIBusId", table.cuDeviceGetPCIBusId);
  visit("cuDeviceGetAttribute", table.cuDeviceGetAttribute);
  visit("cuDevicePrimaryCtxRetain", table.cuDevicePrimaryCtxRetain);
  visit("cuCtxPushCurrent_v2", table.cuCtxPushCurrent_v2);
  visit("cuCtxPopCurrent_v2", table.cuCtxPopCurrent_v2);
  visit("cuCtxGetDevice", table.cuCtxGetDevice);
  visit("cuCtxGetStreamPriorityRange", table.cuCtxGetStreamPriorityRange);
  visit("cuStreamCreateWithPriority", table.cuStreamCreateWithPriority);
  visit("cuStreamDestroy_v2", table.cuStreamDestroy_v2);
  visit("cuStreamWaitEvent", table.cuStreamWaitEvent);
  visit("cuStreamSynchronize", table.cuStreamSynchronize);
  visit("cuStreamQuery", table.cuStreamQuery);
  visit("cuStreamIsCapturing", table.cuStreamIsCapturing);
  visit("cuThreadExchangeStreamCaptureMode", table.cuThreadExchangeStreamCaptureMode);
  visit("cuEventCreate", table.cuEventCreate);
  visit("cuEventDestroy_v2", table.cuEventDestroy_v2);
  visit("cuEventRecord", table.cuEventRecord);
  visit("cuEventQuery", table.cuEventQuery);
  visit("cuMemAlloc_v2", table.cuMemAlloc_v2);
  visit("cuMemFree_v2", table.cuMemFree_v2);
  visit("cuMemAllocAsync", table.cuMemAllocAsync);
  visit("cuMemFreeAsync", table.cuMemFreeAsync);
  visit("cuMemHostAlloc", table.cuMemHostAlloc);
  visit("cuMemFreeHost", table.cuMemFreeHost);
  visit("cuMemcpyHtoDAsync_v2", table.cuMemcpyHtoDAsync_v2);
  visit("cuMemcpyDtoHAsync_v2", table.cuMemcpyDtoHAsync_v2);
  visit("cuMemcpyDtoDAsync_v2", table.cuMemcpyDtoDAsync_v2);
  visit("cuMemsetD2D32Async", table.cuMemsetD2D32Async);
  visit("cuPointerGetAttribute", table.cuPointerGetAttribute);
  visit("cuModuleLoadData", table.cuModuleLoadData);
  visit("cuModuleGetFunction", table.cuModuleGetFunction);
  visit("cuLaunchKernel", table.cuLaunchKernel);
}

// The same for those that may be missing.
template <class Table, class Visit>
void each_optional_driver_function(Table& table, Visit&& visit) {
  visit("cuIpcGetMemHandle", table.cuIpcGetMemHandle);
  visit("cuIpcOpenMemHandle_v2", table.cuIpcOpenMemHandle_v2);
  visit("cuIpcCloseMemHandle", table.cuIpcCloseMemHandle);
  visit("cuStreamWaitValue32_v2", table.cuStreamWaitValue32_v2);
  visit("cuStreamWriteValue32_v2", table.cuStreamWriteValue32_v2);
}

}  // namespace ringcore::device
