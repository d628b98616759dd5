// This rank's side of a switch that adds: a session a lane, because the lanes go side by side.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "aggregation/socket.hpp"
#include "aggregation/tensor.hpp"
#include "aggregation/worker.hpp"
#include "base/error.hpp"
#include "base/types.hpp"
#include "transport/companion.hpp"
#include "transport/link.hpp"

namespace ringcore::carriers {

struct SwitchSettings {
  std::string host;
  std::uint16_t port = 0;
  aggregation::Key key;       // of the switch
  // Of this meeting of the ranks: a number that all of them have alike, also those who join later, and no other job. The
  // sessions of epochs and lanes follow on it.
  std::uint64_t session = 0;
  bool integers = false;  // sums of integers, which no order changes
  Nanoseconds silence = 5 * kSecond;
  bool elastic = false;  // the ranks go on without those that have left
};

// A lane's session.
class SwitchClient final : private aggregation::Source {
 public:
  SwitchClient(const SwitchSettings& settings, Rank rank, int ranks, int lane);
  ~SwitchClient() override;
  SwitchClient(const SwitchClient&) = delete;
  SwitchClient& operator=(const SwitchClient&) = delete;

  // The lane's next tensor, in place. It stays until it is done, or `stop`.
  void begin(std::span<float> data);
  bool done() const { return !tensor_ || tensor_->done(); }
  // The tensor is not to be touched any more, though it has no sum: no rank gets any more sums of this session.
  void stop();

  // True if anything moved. Throws Error{kPeerLost, kProtocol} when there will be no sum; plan::BackendLost where the ranks of
  // an elastic job go on without the switch.
  bool progress();
  // While no tensor is there; throws nothing.
  void look_after();

  bool waits_for(Rank rank) const;
  std::string waiting_for() const;
  void add_wait_fds(std::vector<pollfd>& fds) const;
  Nanoseconds longest_nap() const;

 private:
  bool ready(aggregation::Segment segment) override { return tensor_ && tensor_->ready(segment); }
  Contribution contribution(aggregation::Segment segment) override { return tensor_->contribution(segment); }
  bool take(aggregation::Segment segment, const Contribution& sum) override;
  bool move();
  void send();
  bool goes_on_without_others() const;
  [[noreturn]] void fail(const aggregation::Worker::Failure& failure) const;
  [[noreturn]] void do_without(ErrorKind kind, const std::string& what, const std::string& remedy) const;
  std::string title() const;

  SwitchSettings settings_;
  Rank rank_;
  int ranks_;
  aggregation::Key key_;  // of the session
  std::uint64_t session_;
  aggregation::Socket socket_;
  aggregation::Worker worker_;
  std::optional<aggregation::Tensor> tensor_;
  aggregation::Segment next_ = 0;
  std::uint64_t moved_ = 0;  // segments of it that have their sums
  bool stopped_ = false;
  aggregation::Outbox out_;
  std::size_t sent_ = 0;  // of `out_`
};

// Those of all lanes of an epoch, made when they are needed.
class SwitchClients {
 public:
  SwitchClients(SwitchSettings settings, Rank rank, int ranks)
      : settings_(std::move(settings)), rank_(rank), ranks_(ranks) {}

  SwitchClient& of(int lane);
  int ranks() const { return ranks_; }

  void look_after();
  void add_wait_fds(std::vector<pollfd>& fds) const;
  Nanoseconds longest_nap() const;

 private:
  SwitchSettings settings_;
  Rank rank_;
  int ranks_;
  std::array<std::unique_ptr<SwitchClient>, transport::kLaneCount> clients_;
};

// Those of the present epoch. Its ranks have sessions of their own: in those of the epoch before somebody is missing, sums
// are half made, and whoever was lost may still send something.
class SwitchEpochs final : public transport::Companion {
 public:
  explicit SwitchEpochs(SwitchSettings settings) : settings_(std::move(settings)) {}

  // Whoever has the former ones has let go of them.
  std::shared_ptr<SwitchClients> begin(std::uint32_t epoch, Rank rank, int ranks);

  void look_after() override;
  void add_wait_fds(std::vector<pollfd>& fds) const override;
  Nanoseconds longest_nap() const override;

 private:
  SwitchSettings settings_;
  std::weak_ptr<SwitchClients> present_;
};

}  // namespace ringcore::carriers
