// A job of two processes without Python: what a program has met its peer by, and the sums that come of it.
#include <doctest/doctest.h>

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "anew.hpp"
#include "link_fixtures.hpp"
#include "runtime/job.hpp"

namespace ringcore::test {
namespace {

using engine::Operation;

constexpr std::size_t kFusionBytes = 1 << 20;

JobConfig config_of(Rank rank, PeerConnection peer) {
  JobConfig config{.rank = rank, .size = 2, .epoch = 1};
  config.peers.push_back(std::move(peer));
  config.settings.execution.fusion_threshold_bytes = kFusionBytes;
  config.settings.timeout = kHangMilliseconds * (kSecond / 1000);
  config.settings.heartbeat = config.settings.timeout;  // sanitizers are slow
  return config;
}

// Sums that take each way that there is: in a record, packed, and by themselves.
bool sums_are_right(Job& job, Rank rank) {
  for (const std::size_t elements : {std::size_t{2}, std::size_t{50'000}, std::size_t{2'000'000}}) {
    std::vector<float> data(elements, static_cast<float>(rank + 1));
    const engine::Call call{.collective = Collective::kAllreduce, .name = "gradient", .op = ReduceOp::kSum};
    const engine::Array array{reinterpret_cast<std::byte*>(data.data()), engine::Shape::of(std::array{elements}),
                              DType::kFloat32};
    const auto operation = engine::make_operation(call, array, &array);
    job.runtime().run(operation, {});
    if (!operation->done() || operation->error != nullptr) return false;
    if (!std::all_of(data.begin(), data.end(), [](float sum) { return sum == 3.0F; })) return false;
  }
  return true;
}

// Connects the lanes that the job asks for with sockets that both processes had before they parted.
class LaneService {
 public:
  LaneService(Job& job, std::map<int, Fd> sockets)
      : job_(job), sockets_(std::move(sockets)), thread_([this] { serve(); }) {}
  ~LaneService() {
    {
      const Fd closed = std::move(stop_.second);
    }
    thread_.join();
  }

 private:
  void serve() {
    for (;;) {
      pollfd looks[] = {{job_.lanes_wanted_fd(), POLLIN, 0}, {stop_.first.get(), POLLIN, 0}};
      ::poll(looks, 2, -1);
      if (looks[1].revents != 0) return;
      for (const auto& [peer, lane] : job_.take_wanted_lanes()) {
        std::vector<Fd> socket;
        socket.push_back(std::move(sockets_.at(lane)));
        job_.attach_lane(peer, lane, std::move(socket), {});
      }
    }
  }

  Job& job_;
  std::map<int, Fd> sockets_;
  std::pair<Fd, Fd> stop_ = unix_pair();
  std::thread thread_;
};

// Whether this process has no threads from before, which a child of it would miss; else the cases of that name run in a
// process that has none.
bool is_fresh(const char* cases) {
  if (std::getenv("RINGCORE_TEST_FRESH") != nullptr) return true;
  Child child([&] {
    ::setenv("RINGCORE_TEST_FRESH", "1", 1);
    ::alarm(100);  // whatever it waits for
    testing::begin_anew(cases);
    return false;
  });
  CHECK(child.wait() == 0);
  return false;
}

}  // namespace

TEST_CASE("job: two processes that share memory add up, without Python") {
  if (!is_fresh("-tc=job: two processes that share*")) return;
  std::array<std::shared_ptr<HostMemory>, 2> memories;
  for (const Rank rank : {0, 1}) memories[rank] = std::make_shared<HostMemory>(rank, 2, 64 << 20, kFusionBytes);
  auto [first, second] = unix_pair();
  std::array<Fd, 2> sockets{std::move(first), std::move(second)};
  const auto take_part = [&](Rank rank) {
    const Rank other = 1 - rank;
    {
      const Fd closed = std::move(sockets[other]);
    }
    JobConfig config = config_of(rank, {.rank = other,
                                        .transport = transport::Transport::kShm,
                                        .socket = std::move(sockets[rank]),
                                        .segment = Fd(::dup(memories[other]->segment.fd()))});
    config.host_of = {0, 0};
    config.memory = memories[rank];
    Job job(std::move(config));
    const bool shared = job.pool() != nullptr && job.runtime().transports()[other] == "shm";
    const bool right = sums_are_right(job, rank);
    job.leave("");
    return shared && right;
  };
  Child child([&] { return take_part(1); });
  CHECK(take_part(0));
  CHECK(child.wait() == 0);
}

TEST_CASE("job: two processes over TCP connect a lane when it is needed, and no sooner") {
  if (!is_fresh("-tc=job: two processes over TCP*")) return;
  std::array<std::map<int, Fd>, 2> sockets;
  for (int lane = 0; lane < kLaneCount; ++lane) std::tie(sockets[0][lane], sockets[1][lane]) = tcp_pair();
  const auto take_part = [&](Rank rank) {
    const Rank other = 1 - rank;
    sockets[other].clear();
    JobConfig config = config_of(
        rank,
        {.rank = other, .transport = transport::Transport::kTcp, .socket = std::move(sockets[rank].at(kControlLane))});
    config.host_of = {0, 1};
    Job job(std::move(config));
    pollfd wanted{job.lanes_wanted_fd(), POLLIN, 0};
    const bool early = ::poll(&wanted, 1, 0) != 0;
    const bool shared = job.pool() != nullptr || job.runtime().transports()[other] != "tcp";
    bool right = false;
    {
      const LaneService service(job, std::move(sockets[rank]));
      right = sums_are_right(job, rank);
      job.leave("");
    }
    return right && !early && !shared;
  };
  Child child([&] { return take_part(1); });
  CHECK(take_part(0));
  CHECK(child.wait() == 0);
}

TEST_CASE("job: a process joins two that share memory while they run, and adds up with them") {
  if (!is_fresh("-tc=job: a process joins two*")) return;
  constexpr Rank kJoiner = 2;
  std::array<std::shared_ptr<HostMemory>, 3> memories;
  for (const Rank rank : {0, 1, kJoiner})
    memories[rank] = std::make_shared<HostMemory>(rank, 2, 64 << 20, kFusionBytes);
  std::array<std::array<Fd, 3>, 3> sockets;
  for (const auto& [a, b] : {std::pair(0, 1), std::pair(0, 2), std::pair(1, 2)}) {
    std::tie(sockets[a][b], sockets[b][a]) = unix_pair();
  }
  const auto connection = [&](Rank rank, Rank other) {
    return PeerConnection{.rank = other,
                          .transport = transport::Transport::kShm,
                          .socket = std::move(sockets[rank][other]),
                          .segment = Fd(::dup(memories[other]->segment.fd()))};
  };
  const auto config_for = [&](Rank rank, std::initializer_list<Rank> others) {
    for (Rank other = 0; other < 3; ++other) {
      if (other != rank) sockets[other] = {};
    }
    JobConfig config = config_of(rank, {});
    config.peers.clear();
    for (const Rank other : others) config.peers.push_back(connection(rank, other));
    config.memory = memories[rank];
    config.settings.elastic = true;
    return config;
  };
  const auto add_up = [](Job& job, float own, std::size_t elements) {
    std::vector<float> data(elements, own);
    const engine::Call call{.collective = Collective::kAllreduce, .name = "sum", .op = ReduceOp::kSum};
    const engine::Array array{reinterpret_cast<std::byte*>(data.data()), engine::Shape::of(std::array{elements}),
                              DType::kFloat32};
    const auto operation = engine::make_operation(call, array, &array);
    job.runtime().run(operation, {});
    return operation->error == nullptr ? data.back() : -1.0F;
  };
  const auto sums_of_three_are_right = [&](Job& job, Rank rank) {
    bool right = true;
    for (const std::size_t elements : {std::size_t{2}, std::size_t{50'000}, std::size_t{2'000'000}}) {
      right = right && add_up(job, static_cast<float>(1 << rank), elements) == 7.0F;
    }
    job.leave("");
    return right;
  };
  const auto take_part = [&](Rank rank) {
    JobConfig config = config_for(rank, {1 - rank});
    config.host_of = {0, 0};
    Job job(std::move(config));
    if (add_up(job, static_cast<float>(1 << rank), 50'000) != 3.0F) return false;
    job.meet(connection(rank, kJoiner));
    // Both have to have heard of it.
    while (add_up(job, job.runtime().arrivals().empty() ? 0.0F : 1.0F, 1) < 2.0F) {
    }
    job.runtime().let_in(kJoiner);
    job.runtime().accept_change(job.runtime().members({}).first);
    return sums_of_three_are_right(job, rank);
  };
  const auto join = [&] {
    JobConfig config = config_for(kJoiner, {0, 1});
    config.joins = true;
    Job job(std::move(config));
    return job.pool() != nullptr && sums_of_three_are_right(job, kJoiner);
  };
  Child child([&] { return take_part(1); });
  Child joiner([&] { return join(); });
  CHECK(take_part(0));
  CHECK(child.wait() == 0);
  CHECK(joiner.wait() == 0);
}

TEST_CASE("job: a forked child is told that the job is its parent's") {
  Job job({});
  Child child([&] {
    try {
      job.runtime();
    } catch (const Error& error) {
      return error.kind() == ErrorKind::kShutdown && std::string(error.what()).find("forked") != std::string::npos;
    }
    return false;
  });
  CHECK(child.wait() == 0);
  CHECK(job.runtime().size(engine::kWorld) == 1);
}

}  // namespace ringcore::test
