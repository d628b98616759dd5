// A simulated carrier that completes at launch: the twin of GPUs, for the fault schedules.
//
// It uses all of the interface: messages, of which the second one is known only after a while; tensors that nobody else
// can read before they have been fetched; what it takes and what it leaves to the next carrier; launches that end long
// after the operation is done, or never. It looks, too, whether the members launch the same in the same order.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/carrier.hpp"
#include "transport/sim/network.hpp"

namespace ringcore::simulation {

// What the devices of one process set's members do together.
class SimDevices {
 public:
  explicit SimDevices(int members) : members_(members) {}

  // The member's launch of this number: its tensors' bytes, none when it has joined. Notes a flaw where the others have
  // launched something else.
  void launch(std::size_t number, int member, const engine::Task& task);
  // The results of the tensors; null until all members have launched.
  const std::vector<std::vector<std::byte>>* results(std::size_t number);
  const std::string& flaw() const { return flaw_; }
  void note_flaw(const std::string& flaw) { flaw_ = flaw; }

 private:
  struct Launch {
    std::vector<std::shared_ptr<const engine::Descriptor>> descriptors;
    std::vector<std::optional<std::vector<std::vector<std::byte>>>> inputs;  // by member, of each tensor
    int launched = 0;
    std::vector<std::vector<std::byte>> results;
  };

  void reduce(Launch& launch) const;

  int members_;
  std::map<std::size_t, Launch> launches_;
  std::string flaw_;
};

// What it keeps with a tensor.
struct SimTensor final : engine::CarrierState {
  std::vector<std::byte> staging;  // where others can work on it
  std::optional<Nanoseconds> fetched_at;
  bool fetched = false;
  bool ended = false;  // the result is where it belongs
  std::vector<std::byte> result;  // where the operation has no output
};

// Of an operation on a device that is done: whether its device has ended it.
bool has_ended(const engine::Operation& operation);

class SimDeviceCarrier final : public engine::Carrier {
 public:
  // `able`: whether this member's device can reduce; only where all can, anything is done on devices.
  SimDeviceCarrier(const engine::CarrierConfig& config, std::shared_ptr<SimDevices> devices,
                   transport::SimNetwork& network, bool able);

  // Its library looks whether this holds, and has noticed a loss where it does not.
  void notice(std::function<bool()> all_run) { all_run_ = std::move(all_run); }

  std::string_view name() const override { return "devices"; }
  bool concerns(const engine::Descriptor& descriptor) const override { return descriptor.on_device; }
  bool takes(const engine::Descriptor& descriptor) const override;
  bool ready(const engine::Descriptor& descriptor) const override { return !unconnected(descriptor); }
  std::span<const std::byte> message(const engine::Descriptor& descriptor) override;
  void hear(std::span<const std::byte> messages) override;
  std::string remark() const override { return all_able_ ? "" : "some device cannot reduce"; }
  void admit(engine::Operation& operation) override;
  bool fetch(engine::Operation& operation) override;
  void give_back(const std::shared_ptr<engine::Operation>& operation) override;
  std::size_t bucket_bytes() const override { return bucket_bytes_; }
  bool fuses(const engine::Task& bucket, const engine::Descriptor& descriptor,
             const engine::Operation* own) const override;
  bool queue(engine::Task&) override { return true; }
  bool completes_at_launch() const override { return true; }
  std::unique_ptr<engine::Run> start(engine::Task& task) override;
  void progress() override;
  bool drained() const override { return launched_.empty() && returning_.empty(); }
  void watch(Nanoseconds now, Nanoseconds limit) override;
  void abort() override;

 private:
  friend class SimLaunch;

  static constexpr std::uint32_t kRounds = 2;
  struct Message {
    std::uint32_t member = 0;
    std::uint32_t round = 0;
    std::uint32_t device = 0;
    std::uint32_t able = 0;
  };
  struct Launched {
    std::size_t number = 0;
    Nanoseconds launched_at = 0;
    std::optional<Nanoseconds> ends_at;  // once all members have launched
    std::vector<std::shared_ptr<engine::Operation>> operations;
  };
  struct Returning {
    std::shared_ptr<engine::Operation> operation;
    Nanoseconds ends_at = 0;
  };

  Nanoseconds soon();
  std::optional<std::uint8_t> unconnected(const engine::Descriptor& descriptor) const;
  void launch(const engine::Task& task);
  void end(const Launched& launched);

  int self_;
  int members_;
  std::size_t bucket_bytes_;
  const Clock& clock_;
  std::function<bool()> all_run_;
  std::shared_ptr<SimDevices> devices_;
  transport::SimNetwork& network_;
  std::map<std::uint8_t, std::uint32_t> rounds_;  // by the index of the device
  std::uint8_t connecting_ = 0;  // whose messages are exchanged
  Message message_;
  std::optional<Nanoseconds> known_at_;  // the second message
  bool all_able_ = false;
  std::size_t next_ = 0;
  std::vector<Launched> launched_;
  std::vector<Returning> returning_;
};

}  // namespace ringcore::simulation
