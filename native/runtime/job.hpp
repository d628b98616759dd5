// One rank's part of a job: composes a running engine of what this rank has of its peers.
//
// Whoever has met the other ranks, be it Python's bootstrap or a program of its own, hands in what it holds of each: a
// socket, a memory file. Which links and carriers that makes is decided here, and nowhere else.
// native/tests/job_test.cpp is a program that does it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/owned.hpp"
#include "carriers/switch/clients.hpp"
#include "plan/offered.hpp"
#include "runtime/host_memory.hpp"
#include "runtime/runtime.hpp"
#include "transport/mpi/world.hpp"
#include "transport/tcp/lane_requests.hpp"
#include "transport/tcp/link.hpp"
#include "transport/tcp/readiness.hpp"
#include "transport/transports.hpp"

namespace ringcore {

// What this rank has of a peer that it has met.
struct PeerConnection {
  Rank rank = 0;
  transport::Transport transport = transport::Transport::kShm;
  Fd socket;   // kShm: see make_shm_link; kTcp: of the control lane, or none before it is needed; kMpi: none
  Fd segment;  // kShm: the peer's memory file
  std::vector<transport::TlsSecret> secrets;  // kTcp: one where the connection is encrypted
};

struct JobConfig {
  Rank rank = 0;
  int size = 1;  // ranks that have begun the job
  int serving = 0;  // servers among these: the last ones
  bool joins =
      false;  // ... which runs: this process takes place `rank`, behind all that were given away, see joining.cpp
  std::uint32_t epoch = 0;  // of the meeting: a number that all ranks have alike
  std::vector<PeerConnection> peers;  // every other rank; whoever joins: the members
  std::vector<int> host_of = {0};  // by rank: numbers the groups of ranks that share memory; whoever joins is told
  plan::Links network;  // between hosts, as far as somebody has told; the same on all ranks
  std::shared_ptr<HostMemory> memory;  // null: this rank shares none
  std::shared_ptr<transport::MpiWorld> mpi;  // null: no MPI was opened
  std::optional<carriers::SwitchSettings> aggregation;  // the switch that may sum
  engine::EngineSettings settings;
  bool nccl_shares_gpus = false;  // NCCL may run several ranks on one GPU, where it can
  Nanoseconds spin = RuntimeConfig{}.spin;
  bool has_witness = false;  // the launcher has a vote on who goes on, see Runtime::hear_witness
  int local_size = 0;  // ranks of this host, as a launcher says: some may share no memory with this one
};

class Job {
 public:
  // Throws Error{kResource, kInvalidArgument} where a link cannot be made.
  explicit Job(JobConfig config);
  // In a forked child the engine's threads do not exist and its locks may be held by nobody: it is left untouched.
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Throws Error{kShutdown} in a process that was forked off since.
  Runtime& runtime();
  // For those that must not keep it alive.
  std::weak_ptr<Runtime> watch_runtime() const { return runtime_; }
  // Registered memory that all ranks of the job see; null where they do not.
  std::shared_ptr<transport::Pool> pool() const;

  // Plans from outside, of the world. All ranks offer the same ones, while none of their operations is under way.
  plan::Offered& offered() { return *offered_; }

  // As Runtime::leave.
  void leave(const std::string& reason, const Runtime::Interrupted& interrupted = {});

  // A process joins the elastic job, see Runtime::arrivals. Throws Error{kResource, kInvalidArgument}.
  void meet(PeerConnection peer);

  // Lanes over TCP that are needed now, for the first time. Whoever has made the connections makes these too,
  // and attaches them.
  int lanes_wanted_fd() const { return lane_requests_.fd(); }  // readable when there are some to take
  std::vector<std::pair<Rank, int>> take_wanted_lanes() { return lane_requests_.take(); }
  // See LaneLink::attach. False when the link is closed already; then the sockets are, too.
  bool attach_lane(Rank peer, int lane, std::vector<Fd> sockets, std::span<const transport::TlsSecret> secrets);
  // See LaneLink::give_up.
  void give_up_link(Rank peer, const std::string& why);

 private:
  std::unique_ptr<transport::Link> make_link(const std::shared_ptr<transport::MpiWorld>& mpi, PeerConnection peer);

  const int forks_;
  const Rank place_;
  const int size_;  // as it began
  bool all_share_memory_ = false;  // who are there from the start
  std::shared_ptr<HostMemory> memory_;  // outlives the engine
  std::shared_ptr<plan::Offered> offered_ = std::make_shared<plan::Offered>();
  transport::SocketReadiness readiness_;  // outlives the links, as the next
  transport::LaneRequests lane_requests_;
  std::map<Rank, transport::LaneLink*> lane_links_;  // of the runtime, by peer; used by `change_links` only
  std::shared_ptr<Runtime> runtime_;
};

}  // namespace ringcore
