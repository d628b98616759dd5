// The part of NCCL's interface that ringcore uses, declared by hand: the core is built without NCCL's header.
// tests/gpu_declarations.cpp compares this with it.
#pragma once

#include <cstddef>

#include "device/cuda_driver.hpp"

struct ncclComm;

namespace ringcore::device {

namespace nccl {

using Comm = ncclComm*;
using Window = void*;  // NCCL's type has other names in other versions
using Result = int;

struct UniqueId {
  char bytes[128];
};

// The layout of NCCL 2.14, which later versions accept for what it says.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};

inline constexpr Result kSuccess = 0;
inline constexpr Result kSystemError = 2;
inline constexpr Result kRemoteError = 6;
inline constexpr Result kInProgress = 7;
enum DataType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9
};
enum Op : int { kSum = 0, kProd = 1, kMax = 2, kMin = 3 };
inline constexpr int kWindowSymmetric = 1;

}  // namespace nccl

struct Nccl {
  nccl::Result (*ncclGetVersion)(int* version);
  const char* (*ncclGetErrorString)(nccl::Result result);
  const char* (*ncclGetLastError)(nccl::Comm comm);
  nccl::Result (*ncclGetUniqueId)(nccl::UniqueId* id);
  nccl::Result (*ncclCommInitRankConfig)(nccl::Comm* comm, int ranks, nccl::UniqueId id, int rank,
                                         nccl::Config* config);
  nccl::Result (*ncclCommGetAsyncError)(nccl::Comm comm, nccl::Result* error);
  nccl::Result (*ncclCommDestroy)(nccl::Comm comm);
  nccl::Result (*ncclCommAbort)(nccl::Comm comm);
  nccl::Result (*ncclGroupStart)();
  nccl::Result (*ncclGroupEnd)();
  nccl::Result (*ncclAllReduce)(const void* from, void* to, std::size_t count, int dtype, int op, nccl::Comm comm,
                                cuda::Stream stream);
  nccl::Result (*ncclReduce)(const void* from, void* to, std::size_t count, int dtype, int op, int root,
                             nccl::Comm comm, cuda::Stream stream);
  nccl::Result (*ncclReduceScatter)(const void* from, void* to, std::size_t count_each, int dtype, int op,
                                    nccl::Comm comm, cuda::Stream stream);
  nccl::Result (*ncclAllGather)(const void* from, void* to, std::size_t count_each, int dtype, nccl::Comm comm,
                                cuda::Stream stream);
  nccl::Result (*ncclBroadcast)(const void* from, void* to, std::size_t count, int dtype, int root, nccl::Comm comm,
                                cuda::Stream stream);
  nccl::Result (*ncclSend)(const void* from, std::size_t count, int dtype, int peer, nccl::Comm comm,
                           cuda::Stream stream);
  nccl::Result (*ncclRecv)(void* to, std::size_t count, int dtype, int peer, nccl::Comm comm, cuda::Stream stream);
  // Null in versions that do not have them: since 2.19, the windows since 2.27.
  nccl::Result (*ncclMemAlloc)(void** memory, std::size_t bytes);
  nccl::Result (*ncclMemFree)(void* memory);
  nccl::Result (*ncclCommRegister)(nccl::Comm comm, void* memory, std::size_t bytes, void** handle);
  nccl::Result (*ncclCommDeregister)(nccl::Comm comm, void* handle);
  nccl::Result (*ncclCommWindowRegister)(nccl::Comm comm, void* memory, std::size_t bytes, nccl::Window* window,
                                         int flags);
  nccl::Result (*ncclCommWindowDeregister)(nccl::Comm comm, nccl::Window window);
};

// Calls `visit(name, pointer)` for each function of the table that every version has.
template <class Table, class Visit>
void each_nccl_function(Table& table, Visit&& visit) {
  visit("ncclGetVersion", table.ncclGetVersion);
  visit("ncclGetErrorString", table.ncclGetErrorString);
  visit("ncclGetLastError", table.ncclGetLastError);
  visit("ncclGetUniqueId", table.ncclGetUniqueId);
  visit("ncclCommInitRankConfig", table.ncclCommInitRankConfig);
  visit("ncclCommGetAsyncError", table.ncclCommGetAsyncError);
  visit("ncclCommDestroy", table.ncclCommDestroy);
  visit("ncclCommAbort", table.ncclCommAbort);
  visit("ncclGroupStart", table.ncclGroupStart);
  visit("ncclGroupEnd", table.ncclGroupEnd);
  visit("ncclAllReduce", table.ncclAllReduce);
  visit("ncclReduce", table.ncclReduce);
  visit("ncclReduceScatter", table.ncclReduceScatter);
  visit("ncclAllGather", table.ncclAllGather);
  visit("ncclBroadcast", table.ncclBroadcast);
  visit("ncclSend", table.ncclSend);
  visit("ncclRecv", table.ncclRecv);
}

// And for the others.
template <class Table, class Visit>
void each_optional_nccl_function(Table& table, Visit&& visit) {
  visit("ncclMemAlloc", table.ncclMemAlloc);
  visit("ncclMemFree", table.ncclMemFree);
  visit("ncclCommRegister", table.ncclCommRegister);
  visit("ncclCommDeregister", table.ncclCommDeregister);
  visit("ncclCommWindowRegister", table.ncclCommWindowRegister);
  visit("ncclCommWindowDeregister", table.ncclCommWindowDeregister);
}

}  // namespace ringcore::device
