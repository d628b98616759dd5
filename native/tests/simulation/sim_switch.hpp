// A simulated switch that adds: the twin of carriers/switch, for the fault schedules. It carries out every sum of integers,
// and a member that has given it up says so as soon as it has one to make there.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/carrier.hpp"
#include "transport/sim/network.hpp"

namespace ringcore::simulation {

// What it keeps for the members of one epoch.
class SimSwitch {
 public:
  explicit SimSwitch(int members) : members_(members) {}

  struct Sum {
    std::vector<std::int64_t> elements;
    int sent = 0;  // by so many members
  };
  // Adds what the member gives to its next sum in that lane. The sum is whole when all have.
  std::shared_ptr<const Sum> add(int member, int lane, std::span<const std::int64_t> elements);
  bool is_whole(const Sum& sum) const { return sum.sent == members_; }

 private:
  int members_;
  std::map<std::pair<int, int>, std::size_t> next_;  // by member and lane
  std::map<std::pair<int, std::size_t>, std::shared_ptr<Sum>> sums_;  // by lane, and number in it
};

class SimSwitchCarrier final : public engine::Carrier {
 public:
  // `gives_up`: whether this member has nothing from the switch any more.
  SimSwitchCarrier(const engine::CarrierConfig& config, std::shared_ptr<SimSwitch> at_switch,
                   transport::SimNetwork& network, std::function<bool()> gives_up);

  std::string_view name() const override { return "switch"; }
  bool concerns(const engine::Descriptor& descriptor) const override { return takes(descriptor); }
  bool takes(const engine::Descriptor& descriptor) const override;
  std::size_t bucket_bytes() const override { return 0; }
  bool fuses(const engine::Task&, const engine::Descriptor&, const engine::Operation*) const override { return false; }
  bool queue(engine::Task&) override { return true; }
  std::unique_ptr<engine::Run> start(engine::Task& task) override;

 private:
  int self_;
  std::shared_ptr<SimSwitch> switch_;
  transport::SimNetwork& network_;
  std::function<bool()> gives_up_;
};

}  // namespace ringcore::simulation
