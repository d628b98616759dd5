#include "transport/mpi/world.hpp"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <stdexcept>
#include <utility>

#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

#include "base/error.hpp"

namespace ringcore::transport {
namespace {

// MPI's work is polled without a pause for so long: it works only while it is called, and nobody can see whether it has
// done something.
constexpr Nanoseconds kAwakeAtWork = 50 * kMillisecond;
// Later, and for messages, a nap is a part of the time that nothing has come: what it may add to the wait.
constexpr Nanoseconds kNapPart = 8;
constexpr Nanoseconds kShortestNap = 20'000;
constexpr Nanoseconds kLongestNap = kMillisecond;

std::atomic<bool> given_up = false;
MpiLibrary* ours_to_finalize = nullptr;

// While ranks start, at very different times.
void doze() {
  const timespec moment{.tv_sec = 0, .tv_nsec = 100'000};
  ::nanosleep(&moment, nullptr);
}

[[noreturn]] void refuse(const std::string& why) { throw Error(ErrorKind::kResource, why); }

pid_t finalizing_process = 0;

void finalize_at_exit() {
  if (::getpid() != finalizing_process) return;  // a forked child: MPI is its parent's
  try {
    if (!given_up && !ours_to_finalize->finalized()) ours_to_finalize->finalize();
  } catch (const std::runtime_error& error) {
    std::fprintf(stderr, "ringcore: %s\n", error.what());
  }
}

MpiLibrary& load(const std::string& name, const std::string& shims) {
  // Global: the shim and the MPI's own plug-ins find its symbols. A library that somebody has opened already stays the
  // same one. Never closed.
  void* library = ::dlopen(name.c_str(), RTLD_LAZY | RTLD_GLOBAL);
  if (library == nullptr) refuse("the MPI library " + name + " cannot be opened: " + ::dlerror());
  const bool open_mpi = ::dlsym(library, "ompi_mpi_comm_world") != nullptr;
  const bool standard = name.find("libmpi_abi") != std::string::npos;
  const std::string shim = shims + "/libringcore_mpi_" + (open_mpi ? "openmpi" : standard ? "abi" : "mpich") + ".so";
  void* opened = ::dlopen(shim.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (opened == nullptr) {
    refuse("this build of ringcore cannot use the MPI library " + name + " (" + ::dlerror() +
           "). Remedy: install ringcore's wheel, or build it with -Ccmake.define.RINGCORE_MPI_HEADERS=FOLDER.");
  }
  void* factory = ::dlsym(opened, kMpiLibraryFactory);
  if (factory == nullptr) refuse(shim + " is no shim of ringcore");
  return *reinterpret_cast<MpiLibraryFactory>(factory)();
}

void start(MpiLibrary& library) {
  if (library.finalized()) refuse("MPI was finalised in this process, and cannot be started again");
  if (!library.initialized()) {
    library.initialize();
    ours_to_finalize = &library;
    finalizing_process = ::getpid();
    std::atexit(finalize_at_exit);
  }
  const MpiThreads threads = library.threads();
  if (threads >= MpiThreads::kSerialized) return;
  throw Error(
      ErrorKind::kInvalidArgument,
      "MPI was initialised with MPI_THREAD_" + std::string(threads == MpiThreads::kSingle ? "SINGLE" : "FUNNELED") +
          ", and ringcore calls it from several threads. Remedy: set mpi4py.rc.thread_level = 'multiple' before "
          "mpi4py.MPI is imported (MPI_THREAD_SERIALIZED is enough while nothing else calls MPI), or call "
          "ringcore.init() before MPI is initialised.");
}

}  // namespace

std::shared_ptr<MpiWorld> MpiWorld::open(const std::string& library, const std::string& shims,
                                         std::optional<int> fortran_comm, Nanoseconds limit) {
  if (given_up) {
    refuse(
        "a rank was lost, or did not take its last messages, while this process used MPI, which does not recover from "
        "that. Remedy: start the job again, or use RINGCORE_TRANSPORT=tcp where ranks may be lost.");
  }
  MpiLibrary& loaded = load(library, shims);
  try {
    start(loaded);
    const MpiComm comm = fortran_comm ? loaded.from_fortran(*fortran_comm) : loaded.world();
    return std::make_shared<MpiWorld>(loaded, comm, limit);
  } catch (const Error&) {
    throw;
  } catch (const std::runtime_error& error) {
    refuse(std::string("MPI refused: ") + error.what());
  }
}

MpiWorld::MpiWorld(MpiLibrary& library, MpiComm comm, Nanoseconds limit)
    : library_(library), comms_(kLaneCount), rank_(library.rank(comm)), size_(library.size(comm)) {
  const Nanoseconds deadline = clock_.now() + limit;
  const auto wait = [&] {
    if (clock_.now() > deadline) {
      abandon();
      throw Error(ErrorKind::kTimeout,
                  "not all " + std::to_string(size_) + " ranks of the MPI communicator called ringcore.init() in time");
    }
    doze();
  };
  // They are not freed: messages to a rank that has left may still lie in them.
  for (MpiComm& own : comms_) own = library_.duplicate(comm, wait);
}

void MpiWorld::abandon() { given_up = true; }

bool MpiWorld::abandoned() { return given_up; }

std::vector<std::string> MpiWorld::exchange(const std::string& own, Nanoseconds limit) {
  const Nanoseconds deadline = clock_.now() + limit;
  const auto ranks = static_cast<std::size_t>(size_);
  const auto length = static_cast<int>(own.size());
  std::vector<int> lengths(ranks);
  const std::string all_lengths = gather({reinterpret_cast<const char*>(&length), sizeof(length)},
                                         std::vector<int>(ranks, sizeof(length)), deadline);
  all_lengths.copy(reinterpret_cast<char*>(lengths.data()), all_lengths.size());
  const std::string all = gather(own, lengths, deadline);
  std::vector<std::string> parts(ranks);
  std::size_t begin = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    parts[r] = all.substr(begin, static_cast<std::size_t>(lengths[r]));
    begin += parts[r].size();
  }
  return parts;
}

// Every rank's bytes, one behind the other.
std::string MpiWorld::gather(const std::string& own, const std::vector<int>& bytes, Nanoseconds deadline) const {
  struct Buffers {
    std::vector<int> bytes;
    std::vector<int> offsets;
    std::string all;
  };
  auto buffers = std::make_unique<Buffers>(Buffers{bytes, std::vector<int>(bytes.size()), {}});
  std::exclusive_scan(bytes.begin(), bytes.end(), buffers->offsets.begin(), 0);
  buffers->all.resize(static_cast<std::size_t>(buffers->offsets.back()) + static_cast<std::size_t>(bytes.back()));
  own.copy(buffers->all.data() + buffers->offsets[static_cast<std::size_t>(rank_)], own.size());
  MpiRequest request = library_.allgather(comm(kControlLane), reinterpret_cast<std::byte*>(buffers->all.data()),
                                          buffers->bytes, buffers->offsets);
  while (!library_.test(request)) {
    if (clock_.now() > deadline) {
      abandon();
      [[maybe_unused]] const auto* leaked = buffers.release();  // MPI may still write to them
      throw Error(ErrorKind::kTimeout, "not all ranks of the MPI communicator came to exchange their addresses");
    }
    doze();
  }
  return std::move(buffers->all);
}

Nanoseconds MpiWorld::nap() {
  const Nanoseconds now = clock_.now();
  if (std::exchange(active_, false)) last_active_ = now;
  const Nanoseconds idle = now - last_active_;
  if (work_ > 0 && idle < kAwakeAtWork) return 0;
  return std::clamp(idle / kNapPart, kShortestNap, kLongestNap);
}

}  // namespace ringcore::transport
