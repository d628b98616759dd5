// What ringcore asks of an MPI library, in words that are the same for all of them.
//
// Every MPI has an ABI of its own: handles are pointers here and integers there, and constants differ. The shims
// (shim.cpp, compiled once for each ABI) implement this class; world.cpp loads the one that fits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "base/types.hpp"

namespace ringcore::transport {

// Values of the library's own handle types.
using MpiComm = std::uintptr_t;
using MpiRequest = std::uintptr_t;

// Not the standard's numbers: they are not the same in all libraries.
enum class MpiThreads : std::uint8_t { kSingle, kFunneled, kSerialized, kMultiple };

// Ranks are those of the communicator. Requests are for one call of `test` after the other until it says that they are
// done; their memory stays until then. All throw std::runtime_error with the function's name and MPI's own words; no
// other exception, because the types of ours are not known on both sides of the border.
class MpiLibrary {
 public:
  virtual ~MpiLibrary() = default;

  virtual std::string version() = 0;
  virtual bool initialized() = 0;
  virtual bool finalized() = 0;
  virtual void initialize() = 0;  // asks for kMultiple
  virtual void finalize() = 0;
  virtual MpiThreads threads() = 0;

  virtual MpiComm world() = 0;
  virtual MpiComm from_fortran(int handle) = 0;
  virtual int rank(MpiComm comm) = 0;
  virtual int size(MpiComm comm) = 0;
  // Collective. Calls `wait` while it is not done; `wait` throws to give up. Errors of the new communicator are returned.
  virtual MpiComm duplicate(MpiComm comm, const std::function<void()>& wait) = 0;

  // `synchronous`: not done before the receiver has begun to receive it.
  virtual MpiRequest send(MpiComm comm, int peer, int tag, std::span<const std::byte> bytes, bool synchronous) = 0;
  virtual MpiRequest receive(MpiComm comm, int peer, int tag, std::span<std::byte> room) = 0;
  // The bytes that were received (of other requests: any number) once it is done.
  virtual std::optional<std::size_t> test(MpiRequest& request) = 0;
  virtual void cancel(MpiRequest& request) = 0;

  static constexpr std::size_t kMaxCount = 0x7fffffff;  // of elements
  virtual bool can_reduce(DType dtype, ReduceOp op) = 0;
  virtual MpiRequest allreduce(MpiComm comm, std::byte* data, std::size_t count, DType dtype, ReduceOp op) = 0;
  // Of rank r's elements `result` gets those that are dealt to it.
  virtual MpiRequest reduce_scatter(MpiComm comm, const std::byte* data, std::byte* result, std::span<const int> counts,
                                    DType dtype, ReduceOp op) = 0;
  virtual MpiRequest broadcast(MpiComm comm, std::byte* data, std::size_t bytes, int root) = 0;
  // In place.
  virtual MpiRequest allgather(MpiComm comm, std::byte* data, std::span<const int> bytes,
                               std::span<const int> offsets) = 0;
};

// What a shim exports, under this name. The object is never freed.
using MpiLibraryFactory = MpiLibrary* (*)();
inline constexpr const char* kMpiLibraryFactory = "ringcore_mpi_library";

}  // namespace ringcore::transport
