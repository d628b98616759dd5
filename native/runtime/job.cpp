#include "runtime/job.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include <pthread.h>

#include "base/error.hpp"
#include "carriers/mpi/collectives.hpp"
#include "carriers/standard.hpp"
#include "carriers/switch/backend.hpp"
#include "transport/shm/link.hpp"

namespace ringcore {
using transport::Transport;
namespace {

// How often this process was forked off. What was made before belongs to the parent. Counted, because whoever asks for
// the runtime wants to know it, and getpid is a system call.
int forks = 0;

int count_forks() {
  static const int registered = ::pthread_atfork(nullptr, nullptr, [] { ++forks; });
  if (registered != 0) throw Error(ErrorKind::kResource, "pthread_atfork has no memory left");
  return forks;
}

// The libraries that do whole collectives in place of plans. Process sets other than the world would need communicators
// of their own, which only all of their members together can make.
carriers::BackendFactory backends_of(std::shared_ptr<transport::MpiWorld> mpi,
                                     std::shared_ptr<carriers::SwitchEpochs> at_switch) {
  if (mpi == nullptr && at_switch == nullptr) return nullptr;
  return [mpi = std::move(mpi), at_switch = std::move(at_switch)](const engine::CarrierConfig& config) {
    std::vector<std::unique_ptr<plan::Backend>> backends;
    if (config.process_set != engine::kWorld || config.plans_only) return backends;
    if (mpi != nullptr) backends.push_back(carriers::make_mpi_backend(mpi));
    if (at_switch != nullptr) {
      auto clients = at_switch->begin(config.epoch, config.self, config.topology.ranks());
      backends.push_back(carriers::make_switch_backend(std::move(clients)));
    }
    return backends;
  };
}

}  // namespace

Job::Job(JobConfig config) : forks_(count_forks()), place_(config.rank), size_(config.size), memory_(config.memory) {
  RuntimeConfig made;
  made.engine.rank = config.rank;
  made.engine.epoch = config.epoch;
  made.engine.has_witness = config.has_witness;
  made.engine.joins = config.joins;
  made.engine.serving = config.serving;
  const auto is_over = [](Transport transport) {
    return [transport](const PeerConnection& peer) { return peer.transport == transport; };
  };
  const bool with_mpi = std::ranges::any_of(config.peers, is_over(Transport::kMpi));
  if (config.joins) config.host_of.assign(static_cast<std::size_t>(config.rank) + 1, -1);
  const int own_host = config.host_of.at(static_cast<std::size_t>(config.rank));
  const auto others = config.joins ? std::ranges::count_if(config.peers, is_over(Transport::kShm))
                                   : std::ranges::count(config.host_of, own_host) - 1;
  made.local_ranks = std::max(static_cast<int>(others) + 1, config.local_size);
  all_share_memory_ = memory_ != nullptr && !config.peers.empty() && std::cmp_equal(others, config.peers.size());
  made.engine.links.resize(config.host_of.size());
  for (PeerConnection& peer : config.peers) {
    std::unique_ptr<transport::Link>& link = made.engine.links.at(static_cast<std::size_t>(peer.rank));
    link = make_link(config.mpi, std::move(peer));
  }
  made.engine.readiness = &readiness_;
  std::shared_ptr<carriers::SwitchEpochs> at_switch;
  if (config.aggregation) {
    config.aggregation->elastic = config.settings.elastic;
    at_switch = std::make_shared<carriers::SwitchEpochs>(std::move(*config.aggregation));
    made.companions.push_back(at_switch);
  }
  made.engine.make_carriers = carriers::standard(backends_of(with_mpi ? config.mpi : nullptr, std::move(at_switch)),
                                                 config.nccl_shares_gpus, offered_);
  made.engine.host_of = std::move(config.host_of);
  made.engine.network = std::move(config.network);
  if (memory_ != nullptr) {
    made.engine.arena = &memory_->arena;
    made.engine.fusion_arena = memory_->fusion;
  }
  made.settings = config.settings;
  made.spin = config.spin;
  runtime_ = std::make_shared<Runtime>(std::move(made));
}

Job::~Job() {
  if (forks != forks_) new (std::nothrow) std::shared_ptr(std::move(runtime_));  // leaked
}

Runtime& Job::runtime() {
  if (forks != forks_) {
    throw Error(ErrorKind::kShutdown,
                "this operation belongs to the parent of this forked process. Remedy: start workers with the 'spawn' "
                "method, or call init() after the fork.");
  }
  return *runtime_;
}

std::shared_ptr<transport::Pool> Job::pool() const {
  const auto is_far = [](const std::string& transport) { return transport != "self" && transport != "shm"; };
  if (!all_share_memory_ || std::ranges::any_of(runtime_->transports(), is_far)) return nullptr;  // who came since
  return {memory_, &memory_->pool};  // keeps all of the memory alive
}

void Job::leave(const std::string& reason, const Runtime::Interrupted& interrupted) {
  const std::shared_ptr<const Error> failure = runtime().failure();
  // MPI_Finalize would wait for a rank that was lost.
  if (failure != nullptr && failure->kind() == ErrorKind::kPeerLost) transport::MpiWorld::abandon();
  runtime().leave(reason, interrupted);
}

bool Job::attach_lane(Rank peer, int lane, std::vector<Fd> sockets, std::span<const transport::TlsSecret> secrets) {
  return runtime().change_links(peer, [&] { lane_links_.at(peer)->attach(lane, std::move(sockets), secrets); });
}

void Job::give_up_link(Rank peer, const std::string& why) {
  runtime().change_links(peer, [&] { lane_links_.at(peer)->give_up(why); });
}

void Job::meet(PeerConnection peer) {
  if (peer.transport == Transport::kMpi || (peer.transport == Transport::kShm && memory_ == nullptr)) {
    throw Error(ErrorKind::kInvalidArgument,
                "place " + std::to_string(peer.rank) +
                    " is connected over MPI, or by memory that this rank does not share: nobody joins a job so");
  }
  const Rank place = peer.rank;
  runtime().meet(place, [&] { return make_link(nullptr, std::move(peer)); });
}

std::unique_ptr<transport::Link> Job::make_link(const std::shared_ptr<transport::MpiWorld>& mpi, PeerConnection peer) {
  switch (peer.transport) {
    case Transport::kMpi: return transport::make_mpi_link(mpi, peer.rank);
    case Transport::kTcp: {
      auto link = peer.socket.get() < 0 ? transport::make_tcp_link(place_, peer.rank, lane_requests_, readiness_)
                                        : transport::make_tcp_link(place_, peer.rank, std::move(peer.socket),
                                                                   peer.secrets, lane_requests_, readiness_);
      lane_links_[peer.rank] = link.get();
      return link;
    }
    case Transport::kShm: {
      auto segment = std::make_shared<const transport::Segment>(
          transport::Segment::attach(std::move(peer.segment), peer.rank, size_));
      return transport::make_shm_link(place_, peer.rank, memory_->segment, segment, std::move(peer.socket));
    }
  }
  __builtin_unreachable();
}

}  // namespace ringcore
