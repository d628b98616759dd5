// A job in one thread: engines on the simulated network, driven by the test until something is the case.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "carriers/plans/executor.hpp"
#include "carriers/standard.hpp"
#include "engine/engine.hpp"
#include "transport/sim/forwarding_link.hpp"
#include "transport/sim/network.hpp"

namespace ringcore::testing {

// A link that takes no data while `withholds`, only control records, and keeps what it has taken before.
class WithholdingLink final : public transport::ForwardingLink {
 public:
  WithholdingLink(std::unique_ptr<Link> link, const bool& withholds)
      : ForwardingLink(std::move(link)), withholds_(withholds) {}

  using Link::write;
  std::size_t write(int lane, std::span<const std::byte> bytes) override {
    return withholds_ && lane != transport::kControlLane ? 0 : ForwardingLink::write(lane, bytes);
  }
  bool holds_unsent() const override { return withholds_; }

 private:
  const bool& withholds_;
};

class SimJob {
 public:
  static constexpr Nanoseconds kTimeout = 2 * kSecond;

  // What a test wants otherwise for all engines.
  using Change = std::function<void(engine::EngineConfig&, engine::EngineSettings&)>;

  // `apart`: have no connection before one of the two needs it.
  explicit SimJob(int ranks, transport::SimOptions options = {}, int direct_members = 16,
                  const std::vector<std::pair<Rank, Rank>>& apart = {}, const Change& change = {},
                  std::uint64_t seed = 1)
      : network_(ranks, seed, options) {
    for (const auto& [a, b] : apart) network_.disconnect(a, b);
    engine::EngineSettings settings;
    settings.execution.fusion_threshold_bytes = 4096;
    settings.timeout = kTimeout;
    settings.direct_members = direct_members;
    settings.stall_warning = 0;
    settings.heartbeat = 200 * kMillisecond;
    for (Rank rank = 0; rank < ranks; ++rank) {
      engine::EngineConfig config;
      config.rank = rank;
      config.make_carriers = carriers::standard();
      config.links.resize(static_cast<std::size_t>(ranks));
      for (Rank peer = 0; peer < ranks; ++peer) {
        if (peer != rank) {
          config.links[peer] = std::make_unique<WithholdingLink>(network_.link(rank, peer), withholds_[rank]);
        }
        config.host_of.push_back(peer);
      }
      if (change) change(config, settings);
      engines_.push_back(std::make_unique<engine::Engine>(std::move(config), settings, network_.clock()));
    }
  }

  engine::Engine& engine(Rank rank) { return *engines_[rank]; }
  transport::SimNetwork& network() { return network_; }
  const transport::SimNetwork& network() const { return network_; }
  Nanoseconds now() const { return network_.clock().now(); }

  static std::shared_ptr<engine::Operation> allreduce(const std::string& name, std::vector<float>& data) {
    const engine::Call call{.collective = Collective::kAllreduce, .name = name, .op = ReduceOp::kSum};
    const engine::Array array{reinterpret_cast<std::byte*>(data.data()),
                              engine::Shape::of(std::array<std::uint64_t, 1>{data.size()}), DType::kFloat32};
    return engine::make_operation(call, array, &array);
  }

  void submit(Rank rank, const std::shared_ptr<engine::Operation>& operation, bool held = false) {
    engines_[rank]->submit(operation, held);
  }

  // From now on the rank sends no data, only control records.
  void withhold(Rank rank, bool withholds = true) { withholds_[rank] = withholds; }
  // From now on the rank's heart beats, and it does nothing else; it has said nothing but its greeting.
  void only_beat(Rank rank) { engines_[rank] = nullptr; }

  // Whether `end` came to be the case within a minute.
  bool run_until(const std::function<bool()>& end) {
    for (const Nanoseconds begin = now(); !end();) {
      if (now() - begin > 60 * kSecond) return false;
      for (std::size_t r = 0; r < engines_.size(); ++r) {
        if (engines_[r] != nullptr && runs(r)) engines_[r]->links_changed();
        while (engines_[r] != nullptr && runs(r) && engines_[r]->progress() && !end()) {
        }
      }
      const auto event = network_.next_event();
      if (event && *event < timers_checked_ + kTick) {
        network_.step();
        continue;
      }
      timers_checked_ += kTick;
      network_.run_until(timers_checked_);
      for (std::size_t r = 0; r < engines_.size(); ++r) {
        if (engines_[r] == nullptr) beat(static_cast<Rank>(r));
        if (engines_[r] != nullptr && runs(r)) engines_[r]->check_timers(true);
      }
    }
    return true;
  }

 private:
  bool runs(std::size_t index) const { return network_.runs(static_cast<Rank>(index)); }

  void beat(Rank rank) {
    const engine::RecordHeader heartbeat{
        .bytes = sizeof(engine::RecordHeader), .type = engine::RecordType::kHeartbeat, .sequence = ++beats_};
    for (std::size_t peer = 0; peer < engines_.size(); ++peer) {
      if (engines_[peer] == nullptr) continue;
      network_.inject(rank, static_cast<Rank>(peer), transport::kControlLane, std::as_bytes(std::span(&heartbeat, 1)));
    }
  }

  static constexpr Nanoseconds kTick = 5 * kMillisecond;

  transport::SimNetwork network_;
  std::vector<std::unique_ptr<engine::Engine>> engines_;
  std::array<bool, 16> withholds_{};
  std::uint32_t beats_ = 0;
  Nanoseconds timers_checked_ = network_.clock().now();
};

}  // namespace ringcore::testing
