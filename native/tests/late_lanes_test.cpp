// Lanes of data that are connected while the engines already run, by a thread of its own.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <poll.h>

#include "carriers/standard.hpp"
#include "link_fixtures.hpp"
#include "runtime/runtime.hpp"
#include "transport/tcp/lane_requests.hpp"
#include "transport/tcp/link.hpp"

namespace ringcore::testing {
namespace {

class LateJob {
 public:
  explicit LateJob(int ranks) : requests_(static_cast<std::size_t>(ranks)), readiness_(requests_.size()) {
    std::vector<RuntimeConfig> configs(requests_.size());
    for (Rank rank = 0; rank < ranks; ++rank) {
      engine::EngineConfig& config = configs[index(rank)].engine;
      config.rank = rank;
      config.readiness = &readiness_[index(rank)];
      config.links.resize(requests_.size());
      for (Rank host = 0; host < ranks; ++host) config.host_of.push_back(host);
      config.make_carriers = carriers::standard(nullptr);
      configs[index(rank)].settings.timeout = 20 * kSecond;
      configs[index(rank)].settings.heartbeat = 10 * kSecond;
    }
    for (Rank a = 0; a < ranks; ++a) {
      for (Rank b = a + 1; b < ranks; ++b) {
        auto [end_a, end_b] = test::unix_pair();
        configs[index(a)].engine.links[index(b)] = make(a, b, std::move(end_a));
        configs[index(b)].engine.links[index(a)] = make(b, a, std::move(end_b));
      }
    }
    for (auto& config : configs) runtimes_.push_back(std::make_unique<Runtime>(std::move(config)));
    connecting_ = std::thread([this] { connect(); });
  }

  ~LateJob() {
    stopped_ = true;
    connecting_.join();
  }

  Runtime& runtime(Rank rank) { return *runtimes_[index(rank)]; }
  // After the threads of the ranks have ended.
  std::size_t lanes() const { return connected_; }

  void run(const std::function<void(Rank)>& body) {
    std::vector<std::thread> threads;
    for (Rank rank = 0; rank < static_cast<Rank>(runtimes_.size()); ++rank) threads.emplace_back(body, rank);
    for (std::thread& thread : threads) thread.join();
  }

 private:
  static std::size_t index(Rank rank) { return static_cast<std::size_t>(rank); }

  std::unique_ptr<transport::Link> make(Rank self, Rank peer, Fd control) {
    auto link =
        transport::make_tcp_link(self, peer, std::move(control), {}, requests_[index(self)], readiness_[index(self)]);
    links_[{self, peer}] = link.get();
    return link;
  }

  // A lane is there when both of its ranks have asked for it: at the first of them a while before the second.
  void connect() {
    std::set<std::tuple<Rank, Rank, int>> asked;
    while (!stopped_) {
      std::vector<pollfd> fds;
      for (const auto& requests : requests_) fds.push_back({requests.fd(), POLLIN, 0});
      ::poll(fds.data(), fds.size(), 10);
      for (Rank rank = 0; rank < static_cast<Rank>(requests_.size()); ++rank) {
        for (const auto& [peer, lane] : requests_[index(rank)].take()) {
          asked.emplace(rank, peer, lane);
          if (asked.count({peer, rank, lane}) > 0) attach(rank, peer, lane);
        }
      }
    }
  }

  void attach(Rank a, Rank b, int lane) {
    auto [end_a, end_b] = test::unix_pair();
    attach_end(a, b, lane, std::move(end_a));
    std::this_thread::yield();
    attach_end(b, a, lane, std::move(end_b));
    ++connected_;
  }

  void attach_end(Rank self, Rank peer, int lane, Fd end) {
    std::vector<Fd> sockets;
    sockets.push_back(std::move(end));
    runtime(self).change_links(peer, [&] { links_.at({self, peer})->attach(lane, std::move(sockets), {}); });
  }

  std::vector<transport::LaneRequests> requests_;
  std::vector<transport::SocketReadiness> readiness_;
  std::map<std::pair<Rank, Rank>, transport::LaneLink*> links_;
  std::vector<std::unique_ptr<Runtime>> runtimes_;
  std::atomic<std::size_t> connected_ = 0;
  std::atomic<bool> stopped_ = false;
  std::thread connecting_;
};

std::shared_ptr<engine::Operation> allreduce(const std::string& name, std::vector<float>& data) {
  const engine::Call call{.collective = Collective::kAllreduce, .name = name, .op = ReduceOp::kSum};
  const engine::Array array{reinterpret_cast<std::byte*>(data.data()),
                            engine::Shape::of(std::array<std::uint64_t, 1>{data.size()}), DType::kFloat32};
  return engine::make_operation(call, array, &array);
}

}  // namespace

TEST_CASE("late lanes: operations wait for the lanes that they need, and no others are connected") {
  constexpr int kRanks = 3;
  LateJob job(kRanks);
  job.run([&](Rank rank) {
    for (int round = 0; round < 20; ++round) {
      std::vector<float> data(round % 2 == 0 ? 100'000 : 4, static_cast<float>(rank + 1));
      const auto operation = allreduce("round" + std::to_string(round % 4), data);
      job.runtime(rank).run(operation, {}, Runtime::Caller::kUnknown);
      CHECK(operation->error == nullptr);
      CHECK(data == std::vector<float>(data.size(), 6.0F));
    }
  });
  CHECK(job.lanes() > 0);
  // Nothing was urgent.
  CHECK(job.lanes() <= 2 * kRanks * (kRanks - 1) / 2);
}

TEST_CASE("late lanes: small operations need none") {
  LateJob job(2);
  job.run([&](Rank rank) {
    std::vector<float> data(4, 1.0F);
    job.runtime(rank).run(allreduce("small", data), {}, Runtime::Caller::kUnknown);
    CHECK(data == std::vector<float>(4, 2.0F));
  });
  CHECK(job.lanes() == 0);
}

TEST_CASE("late lanes: what waits for one that cannot come fails on all ranks") {
  LateJob job(2);
  std::vector<float> waits(100'000, 1.0F);
  const auto alone = allreduce("waits", waits);
  job.runtime(0).submit(alone);
  job.runtime(0).fail(std::make_shared<const Error>(ErrorKind::kPeerLost, "no lane between ranks 0 and 1"));
  CHECK(alone->done());
  std::vector<float> other(100'000, 1.0F);
  const auto late = allreduce("waits", other);
  try {
    job.runtime(1).run(late, {}, Runtime::Caller::kUnknown);
    REQUIRE(late->error != nullptr);
    CHECK(std::string(late->error->what()).find("no lane between ranks 0 and 1") != std::string::npos);
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find("no lane between ranks 0 and 1") != std::string::npos);
  }
  CHECK_FALSE(job.runtime(0).failure() == nullptr);
}

}  // namespace ringcore::testing
