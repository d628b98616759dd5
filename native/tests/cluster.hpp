// A job inside one process: every rank is a thread with a Runtime of its own, connected by real shared memory or sockets.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <sys/socket.h>

#include "carriers/standard.hpp"
#include "runtime/runtime.hpp"
#include "transport/shm/link.hpp"
#include "transport/shm/segment.hpp"
#include "transport/tcp/link.hpp"

namespace ringcore::testing {

struct ClusterOptions {
  int ranks = 2;
  std::vector<int> host_of;  // empty: one host
  engine::EngineSettings settings = small_settings();
  int socket_buffer_bytes = 0;  // between hosts; 0: the system's default
  carriers::BackendFactory make_backends = nullptr;

  static engine::EngineSettings small_settings() {
    engine::EngineSettings settings;
    settings.execution.fusion_threshold_bytes = 1 << 20;
    settings.timeout = 20 * kSecond;
    settings.heartbeat = 10 * kSecond;  // sanitizers are slow; tests of the heartbeat set their own
    return settings;
  }
};

class Cluster {
 public:
  explicit Cluster(ClusterOptions options) : options_(std::move(options)) {
    const int ranks = options_.ranks;
    if (options_.host_of.empty()) options_.host_of.assign(ranks, 0);
    std::vector<RuntimeConfig> configs(ranks);
    for (int r = 0; r < ranks; ++r) {
      segments_.push_back(std::make_unique<transport::Segment>(transport::Segment::create(r, ranks, 256 << 20)));
      arenas_.push_back(std::make_unique<transport::Arena>(*segments_.back(), reserved()));
      engine::EngineConfig& config = configs[r].engine;
      config.rank = r;
      config.epoch = 1;
      config.links.resize(ranks);
      config.host_of = options_.host_of;
      config.arena = arenas_.back().get();
      config.fusion_arena = segments_.back()->arena().data();
      config.make_carriers = carriers::standard(options_.make_backends);
      configs[r].settings = options_.settings;
      configs[r].local_ranks = ranks;
    }
    for (int a = 0; a < ranks; ++a) {
      for (int b = a + 1; b < ranks; ++b) connect(configs, a, b);
    }
    for (auto& config : configs) runtimes_.push_back(std::make_unique<Runtime>(std::move(config)));
  }

  Runtime& runtime(Rank rank) { return *runtimes_[rank]; }
  transport::Arena& arena(Rank rank) { return *arenas_[rank]; }
  int ranks() const { return options_.ranks; }

  // Runs `body(rank)` on a thread a rank; the first exception is thrown again here.
  void run(const std::function<void(Rank)>& body) {
    std::vector<std::thread> threads;
    std::mutex mutex;  // Guards: first.
    std::exception_ptr first;
    for (int r = 0; r < options_.ranks; ++r) {
      threads.emplace_back([&, r] {
        try {
          body(r);
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (first) std::rethrow_exception(first);
  }

 private:
  std::size_t reserved() const {
    return (transport::kLaneCount - transport::kFirstDataLane) * options_.settings.execution.fusion_threshold_bytes;
  }

  std::pair<Fd, Fd> socket_pair() const {
    int fds[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) {
      throw Error(ErrorKind::kResource, "socketpair failed");
    }
    for (const int fd : fds) {
      if (options_.socket_buffer_bytes == 0) continue;
      ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &options_.socket_buffer_bytes, sizeof(int));
    }
    return {Fd(fds[0]), Fd(fds[1])};
  }

  void connect(std::vector<RuntimeConfig>& configs, int a, int b) {
    const bool shared = options_.host_of[a] == options_.host_of[b];
    std::vector<Fd> ends_a;
    std::vector<Fd> ends_b;
    for (int lane = 0; lane < (shared ? 1 : transport::kLaneCount); ++lane) {
      auto [end_a, end_b] = socket_pair();
      ends_a.push_back(std::move(end_a));
      ends_b.push_back(std::move(end_b));
    }
    if (!shared) {
      configs[a].engine.links[b] = transport::make_tcp_link(a, b, std::move(ends_a));
      configs[b].engine.links[a] = transport::make_tcp_link(b, a, std::move(ends_b));
      return;
    }
    configs[a].engine.links[b] = transport::make_shm_link(a, b, *segments_[a], attach(b), std::move(ends_a.front()));
    configs[b].engine.links[a] = transport::make_shm_link(b, a, *segments_[b], attach(a), std::move(ends_b.front()));
  }

  std::shared_ptr<transport::Segment> attach(int rank) {
    return std::make_shared<transport::Segment>(
        transport::Segment::attach(Fd(::dup(segments_[rank]->fd())), rank, options_.ranks));
  }

  ClusterOptions options_;
  std::vector<std::unique_ptr<transport::Segment>> segments_;
  std::vector<std::unique_ptr<transport::Arena>> arenas_;
  std::vector<std::unique_ptr<Runtime>> runtimes_;
};

}  // namespace ringcore::testing
