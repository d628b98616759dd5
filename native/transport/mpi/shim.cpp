// The shim: MpiLibrary in terms of one mpi.h. A shared library of its own, linked with no MPI: its symbols are those of
// the MPI that was loaded before it. Compiled for each ABI: RINGCORE_MPI_HEADER is mpi.h, or with RINGCORE_MPI_ABI the mpi_abi.h of the standard.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include RINGCORE_MPI_HEADER

#include <memory>
#include <stdexcept>
#include <type_traits>

#include "transport/mpi/library.hpp"

namespace ringcore::transport {
namespace {

template <class Handle>
std::uintptr_t opaque(Handle handle) {
  if constexpr (std::is_pointer_v<Handle>) {
    return reinterpret_cast<std::uintptr_t>(handle);
  } else {
    return static_cast<std::uintptr_t>(static_cast<unsigned>(handle));
  }
}

template <class Handle>
Handle handle_of(std::uintptr_t value) {
  if constexpr (std::is_pointer_v<Handle>) {
    return reinterpret_cast<Handle>(value);  // NOLINT(performance-no-int-to-ptr): that is what these handles are
  } else {
    return static_cast<Handle>(static_cast<unsigned>(value));
  }
}

void check(int code, const char* function) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw std::runtime_error(std::string(function) + ": " + std::string(text, static_cast<std::size_t>(length)));
}

MPI_Comm comm_of(MpiComm comm) { return handle_of<MPI_Comm>(comm); }

MPI_Datatype type_of(DType dtype) {
  switch (dtype) {
    case DType::kUInt8: return MPI_UINT8_T;
    case DType::kInt8: return MPI_INT8_T;
    case DType::kUInt16: return MPI_UINT16_T;
    case DType::kInt16: return MPI_INT16_T;
    case DType::kInt32: return MPI_INT32_T;
    case DType::kInt64: return MPI_INT64_T;
    case DType::kFloat32: return MPI_FLOAT;
    case DType::kFloat64: return MPI_DOUBLE;
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kBool: return MPI_DATATYPE_NULL;
  }
  __builtin_unreachable();
}

MPI_Op op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return MPI_SUM;
    case ReduceOp::kMin: return MPI_MIN;
    case ReduceOp::kMax: return MPI_MAX;
    case ReduceOp::kProduct: return MPI_PROD;
    case ReduceOp::kAverage: return MPI_OP_NULL;
  }
  __builtin_unreachable();
}

class Shim final : public MpiLibrary {
 public:
  std::string version() override {
    std::string text(MPI_MAX_LIBRARY_VERSION_STRING, '\0');
    int length = 0;
    check(MPI_Get_library_version(text.data(), &length), "MPI_Get_library_version");
    return text.substr(0, text.find_first_of(",\n\0", 0, 3));
  }

  bool initialized() override {
    int flag = 0;
    check(MPI_Initialized(&flag), "MPI_Initialized");
    return flag != 0;
  }

  bool finalized() override {
    int flag = 0;
    check(MPI_Finalized(&flag), "MPI_Finalized");
    return flag != 0;
  }

  void initialize() override {
    int provided = 0;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  }

  void finalize() override { check(MPI_Finalize(), "MPI_Finalize"); }

  MpiThreads threads() override {
    int provided = 0;
    check(MPI_Query_thread(&provided), "MPI_Query_thread");
    if (provided == MPI_THREAD_MULTIPLE) return MpiThreads::kMultiple;
    if (provided == MPI_THREAD_SERIALIZED) return MpiThreads::kSerialized;
    return provided == MPI_THREAD_FUNNELED ? MpiThreads::kFunneled : MpiThreads::kSingle;
  }

  MpiComm world() override { return opaque(MPI_COMM_WORLD); }

  MpiComm from_fortran(int handle) override {
#ifdef RINGCORE_MPI_ABI
    return opaque(MPI_Comm_fromint(handle));
#else
    return opaque(MPI_Comm_f2c(static_cast<MPI_Fint>(handle)));
#endif
  }

  int rank(MpiComm comm) override {
    int rank = 0;
    check(MPI_Comm_rank(comm_of(comm), &rank), "MPI_Comm_rank");
    return rank;
  }

  int size(MpiComm comm) override {
    int size = 0;
    check(MPI_Comm_size(comm_of(comm), &size), "MPI_Comm_size");
    return size;
  }

  MpiComm duplicate(MpiComm comm, const std::function<void()>& wait) override {
    // Written when the request is done, which may be after this has given up.
    auto copy = std::make_unique<MPI_Comm>(MPI_COMM_NULL);
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Comm_idup(comm_of(comm), copy.get(), &request), "MPI_Comm_idup");
    MPI_Comm* where = copy.release();
    for (;;) {
      int done = 0;
      check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Comm_idup");
      if (done != 0) break;
      wait();
    }
    copy.reset(where);
    check(MPI_Comm_set_errhandler(*copy, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    return opaque(*copy);
  }

  MpiRequest send(MpiComm comm, int peer, int tag, std::span<const std::byte> bytes, bool synchronous) override {
    MPI_Request request = MPI_REQUEST_NULL;
    const auto start = synchronous ? MPI_Issend : MPI_Isend;
    check(start(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, peer, tag, comm_of(comm), &request),
          "MPI_Isend");
    return opaque(request);
  }

  MpiRequest receive(MpiComm comm, int peer, int tag, std::span<std::byte> room) override {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Irecv(room.data(), static_cast<int>(room.size()), MPI_BYTE, peer, tag, comm_of(comm), &request),
          "MPI_Irecv");
    return opaque(request);
  }

  std::optional<std::size_t> test(MpiRequest& request) override {
    MPI_Request own = handle_of<MPI_Request>(request);
    MPI_Status status;
    int done = 0;
    const int code = MPI_Test(&own, &done, &status);
    request = opaque(own);
    check(code, "MPI_Test");
    if (done == 0) return std::nullopt;
    int bytes = 0;
    check(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    return bytes == MPI_UNDEFINED ? 0 : static_cast<std::size_t>(bytes);
  }

  void cancel(MpiRequest& request) override {
    MPI_Request own = handle_of<MPI_Request>(request);
    check(MPI_Cancel(&own), "MPI_Cancel");
    request = opaque(own);
  }

  bool can_reduce(DType dtype, ReduceOp op) override {
    return type_of(dtype) != MPI_DATATYPE_NULL && op_of(op) != MPI_OP_NULL;
  }

  MpiRequest allreduce(MpiComm comm, std::byte* data, std::size_t count, DType dtype, ReduceOp op) override {
    MPI_Request request = MPI_REQUEST_NULL;
    check(
        MPI_Iallreduce(MPI_IN_PLACE, data, static_cast<int>(count), type_of(dtype), op_of(op), comm_of(comm), &request),
        "MPI_Iallreduce");
    return opaque(request);
  }

  MpiRequest reduce_scatter(MpiComm comm, const std::byte* data, std::byte* result, std::span<const int> counts,
                            DType dtype, ReduceOp op) override {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Ireduce_scatter(data, result, counts.data(), type_of(dtype), op_of(op), comm_of(comm), &request),
          "MPI_Ireduce_scatter");
    return opaque(request);
  }

  MpiRequest broadcast(MpiComm comm, std::byte* data, std::size_t bytes, int root) override {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Ibcast(data, static_cast<int>(bytes), MPI_BYTE, root, comm_of(comm), &request), "MPI_Ibcast");
    return opaque(request);
  }

  MpiRequest allgather(MpiComm comm, std::byte* data, std::span<const int> bytes,
                       std::span<const int> offsets) override {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE, data, bytes.data(), offsets.data(), MPI_BYTE, comm_of(comm),
                          &request),
          "MPI_Iallgatherv");
    return opaque(request);
  }
};

}  // namespace

extern "C" __attribute__((visibility("default"))) MpiLibrary* ringcore_mpi_library() {
  static Shim& shim = *new Shim;
  return &shim;
}

}  // namespace ringcore::transport
