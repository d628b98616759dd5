// The MPI of this process, and the ranks that ringcore shares it with.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "transport/link.hpp"
#include "transport/mpi/library.hpp"

namespace ringcore::transport {

// The communicators of one job of ringcore: duplicates, so that nobody else's messages are ours. All calls come from one
// thread at a time: MPI_THREAD_SERIALIZED is enough where nobody else uses MPI.
class MpiWorld {
 public:
  // Opens the library (a path or a name that the dynamic linker finds) and the shim for its ABI from `shims`, a folder;
  // initialises MPI if nobody has. `fortran_comm`: whose ranks take part; none: MPI_COMM_WORLD.
  // Collective: throws Error{kTimeout} when the others have not come after `limit`, Error{kResource} when the library or
  // its shim cannot be used, Error{kInvalidArgument} when MPI was initialised for less threads than it takes.
  static std::shared_ptr<MpiWorld> open(const std::string& library, const std::string& shims,
                                        std::optional<int> fortran_comm, Nanoseconds limit);
  MpiWorld(MpiLibrary& library, MpiComm comm, Nanoseconds limit);

  int rank() const { return rank_; }
  int size() const { return size_; }
  MpiLibrary& library() const { return library_; }
  // Of the streams of all lanes, for lane 0; of the messages from memory to memory and the collectives of a data lane.
  MpiComm comm(int lane) const { return comms_[static_cast<std::size_t>(lane)]; }

  // What each rank gave, by rank. Collective; throws Error{kTimeout}.
  std::vector<std::string> exchange(const std::string& own, Nanoseconds limit);

  // Whoever drives tells when something has moved, and asks how long it may sleep: MPI wakes nobody.
  void active() { active_ = true; }
  // What MPI does only while it is called: its collectives, and messages from memory to memory.
  void begin_work() {
    ++work_;
    active();
  }
  void end_work() {
    --work_;
    active();
  }
  Nanoseconds nap();

  // A rank was lost or memory is still in MPI's hands: this process will not call MPI_Finalize, which might wait for
  // ever.
  static void abandon();
  static bool abandoned();

 private:
  std::string gather(const std::string& own, const std::vector<int>& bytes, Nanoseconds deadline) const;

  MpiLibrary& library_;
  SteadyClock clock_;
  std::vector<MpiComm> comms_;
  int rank_ = 0;
  int size_ = 0;
  bool active_ = false;  // since the last nap: a clock is not asked for each message
  Nanoseconds last_active_ = 0;
  int work_ = 0;
};

// The link to the rank of this number in the world's communicator.
std::unique_ptr<Link> make_mpi_link(std::shared_ptr<MpiWorld> world, Rank peer);

}  // namespace ringcore::transport
