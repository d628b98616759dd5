#include "sim_device.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "base/reduce.hpp"

namespace ringcore::simulation {
namespace {

using engine::Descriptor;
using engine::Operation;

std::size_t bytes_of(const Descriptor& descriptor) { return descriptor.shape.elements() * size_of(descriptor.dtype); }

SimTensor& state_of(const Operation& operation) { return static_cast<SimTensor&>(*operation.on_device->state); }

}  // namespace

bool has_ended(const Operation& operation) {
  const auto ended = [](const Operation& part) { return part.on_device->state != nullptr && state_of(part).ended; };
  if (operation.parts.empty()) return ended(operation);
  return std::all_of(operation.parts.begin(), operation.parts.end(), [&](const auto& part) { return ended(*part); });
}

void SimDevices::launch(std::size_t number, int member, const engine::Task& task) {
  Launch& launch = launches_[number];
  if (launch.launched == 0) launch.descriptors = task.descriptors;
  launch.inputs.resize(static_cast<std::size_t>(members_));
  const bool same = std::ranges::equal(launch.descriptors, task.descriptors,
                                       [](const auto& a, const auto& b) { return a->name == b->name; });
  if (!same)
    return note_flaw("launch " + std::to_string(number) + " is not the same on member " + std::to_string(member));
  auto& inputs = launch.inputs[static_cast<std::size_t>(member)].emplace();
  for (const auto& operation : task.operations) {
    const std::byte* const from = operation->on_device->input;
    inputs.emplace_back(from, from + operation->bytes());
  }
  if (++launch.launched == members_) reduce(launch);
}

void SimDevices::reduce(Launch& launch) const {
  for (std::size_t i = 0; i < launch.descriptors.size(); ++i) {
    const Descriptor& descriptor = *launch.descriptors[i];
    std::vector<std::byte>& result = launch.results.emplace_back(bytes_of(descriptor));
    if (descriptor.collective == Collective::kBroadcast) {
      result = (*launch.inputs[static_cast<std::size_t>(descriptor.root)])[i];
      continue;
    }
    const engine::Scales scales = host_scales(descriptor, members_);
    std::vector<const std::byte*> sources;
    for (auto& inputs : launch.inputs) {
      if (inputs->empty()) continue;  // has joined
      if (scales.input != 1.0) {
        scale_in_place(descriptor.dtype, (*inputs)[i].data(), descriptor.shape.elements(), scales.input);
      }
      sources.push_back((*inputs)[i].data());
    }
    std::byte* const targets[] = {result.data()};
    if (result.empty() || sources.empty()) continue;
    reduce_many(descriptor.dtype, engine::summing(descriptor.op), sources, targets, descriptor.shape.elements(),
                scales.result);
  }
}

const std::vector<std::vector<std::byte>>* SimDevices::results(std::size_t number) {
  const Launch& launch = launches_[number];
  return launch.launched == members_ ? &launch.results : nullptr;
}

// Done when it is launched, which takes a moment.
class SimLaunch final : public engine::Run {
 public:
  SimLaunch(SimDeviceCarrier& carrier, const engine::Task& task)
      : carrier_(carrier), task_(task), launches_at_(carrier.soon()) {}

  bool progress() override {
    if (carrier_.clock_.now() < launches_at_) return false;
    carrier_.launch(task_);
    return done_ = true;
  }
  bool done() const override { return done_; }
  bool waits_for(Rank) const override { return false; }
  std::string waiting_for() const override { return "its device"; }

 private:
  SimDeviceCarrier& carrier_;
  const engine::Task& task_;
  Nanoseconds launches_at_;
  bool done_ = false;
};

SimDeviceCarrier::SimDeviceCarrier(const engine::CarrierConfig& config, std::shared_ptr<SimDevices> devices,
                                   transport::SimNetwork& network, bool able)
    : self_(config.self),
      members_(config.topology.ranks()),
      bucket_bytes_(config.settings.fusion_threshold_bytes),
      clock_(config.clock),
      devices_(std::move(devices)),
      network_(network),
      message_{.member = static_cast<std::uint32_t>(self_), .able = able ? 1U : 0U} {}

Nanoseconds SimDeviceCarrier::soon() {
  return clock_.now() + static_cast<Nanoseconds>(network_.random_below(2 * kMillisecond));
}

bool SimDeviceCarrier::takes(const Descriptor& descriptor) const {
  const bool can = descriptor.collective == Collective::kAllreduce || descriptor.collective == Collective::kBroadcast;
  return descriptor.on_device && all_able_ && can;
}

// The first of the devices that it needs whose messages have not all been exchanged.
std::optional<std::uint8_t> SimDeviceCarrier::unconnected(const Descriptor& descriptor) const {
  const auto connected = [this](const Descriptor& tensor) {
    const auto found = rounds_.find(tensor.device_index);
    return found != rounds_.end() && found->second == kRounds;
  };
  if (!connected(descriptor)) return descriptor.device_index;
  const auto found = std::ranges::find_if_not(descriptor.parts, [&](const auto& part) { return connected(*part); });
  return found == descriptor.parts.end() ? std::nullopt : std::optional((*found)->device_index);
}

std::span<const std::byte> SimDeviceCarrier::message(const Descriptor& descriptor) {
  connecting_ = unconnected(descriptor).value();
  const std::uint32_t round = rounds_[connecting_];
  if (round > 0 && !known_at_) known_at_ = soon();
  if (known_at_ && clock_.now() < *known_at_) return {};
  message_.round = round;
  message_.device = connecting_;
  return std::as_bytes(std::span(&message_, 1));
}

void SimDeviceCarrier::hear(std::span<const std::byte> messages) {
  std::vector<Message> heard(messages.size() / sizeof(Message));
  std::memcpy(heard.data(), messages.data(), messages.size());
  if (heard.size() != static_cast<std::size_t>(members_)) devices_->note_flaw("a member has no message");
  for (std::size_t m = 0; m < heard.size(); ++m) {
    const bool expected = heard[m].member == m && heard[m].device == connecting_;
    if (!expected || heard[m].round != rounds_[connecting_]) {
      devices_->note_flaw("a message is another member's or device's, or late");
    }
  }
  all_able_ = std::all_of(heard.begin(), heard.end(), [](const Message& each) { return each.able != 0; });
  ++rounds_[connecting_];
  known_at_.reset();
}

// The host cannot read what lies on the device.
void SimDeviceCarrier::admit(Operation& operation) {
  const auto admit_one = [](Operation& part) {
    auto tensor = std::make_unique<SimTensor>();
    tensor->staging.assign(part.bytes(), std::byte{0xe5});
    if (part.bytes() > 0) {
      part.input = tensor->staging.data();
      if (part.output != nullptr) part.output = tensor->staging.data();
    }
    part.on_device->state = std::move(tensor);
  };
  if (operation.on_device != nullptr) admit_one(operation);
  for (const auto& part : operation.parts) admit_one(*part);
}

bool SimDeviceCarrier::fetch(Operation& operation) {
  SimTensor& tensor = state_of(operation);
  if (tensor.fetched) return true;
  if (!tensor.fetched_at) tensor.fetched_at = soon();
  if (clock_.now() < *tensor.fetched_at) return false;
  if (operation.bytes() > 0) std::memcpy(tensor.staging.data(), operation.on_device->input, operation.bytes());
  return tensor.fetched = true;
}

void SimDeviceCarrier::give_back(const std::shared_ptr<Operation>& operation) {
  returning_.push_back({operation, soon()});
}

bool SimDeviceCarrier::fuses(const engine::Task& bucket, const Descriptor& descriptor, const Operation*) const {
  const Descriptor& first = bucket.descriptor();
  return first.device_index == descriptor.device_index && first.dtype == descriptor.dtype &&
         first.op == descriptor.op && first.prescale == descriptor.prescale && first.postscale == descriptor.postscale;
}

std::unique_ptr<engine::Run> SimDeviceCarrier::start(engine::Task& task) {
  return std::make_unique<SimLaunch>(*this, task);
}

void SimDeviceCarrier::launch(const engine::Task& task) {
  devices_->launch(next_, self_, task);
  launched_.push_back({.number = next_++, .launched_at = clock_.now(), .operations = task.operations});
}

void SimDeviceCarrier::progress() {
  const Nanoseconds now = clock_.now();
  for (Launched& each : launched_) {
    if (!each.ends_at && devices_->results(each.number) != nullptr) each.ends_at = soon();
  }
  while (!launched_.empty() && launched_.front().ends_at && *launched_.front().ends_at <= now) {
    end(launched_.front());
    launched_.erase(launched_.begin());
  }
  std::erase_if(returning_, [&](const Returning& each) {
    if (each.ends_at > now) return false;
    const Operation& operation = *each.operation;
    SimTensor& tensor = state_of(operation);
    if (operation.on_device->output == nullptr) {
      tensor.result.assign(operation.result.data(), operation.result.data() + operation.result.size());
    } else if (operation.bytes() > 0) {
      std::memcpy(operation.on_device->output, tensor.staging.data(), operation.bytes());
    }
    return tensor.ended = true;
  });
}

void SimDeviceCarrier::end(const Launched& launched) {
  const auto& results = *devices_->results(launched.number);
  for (std::size_t i = 0; i < launched.operations.size(); ++i) {
    const Operation& operation = *launched.operations[i];
    if (!results[i].empty()) std::memcpy(operation.on_device->output, results[i].data(), results[i].size());
    state_of(operation).ended = true;
  }
}

void SimDeviceCarrier::watch(Nanoseconds now, Nanoseconds limit) {
  if (!launched_.empty() && all_run_ && !all_run_()) throw Error(ErrorKind::kPeerLost, "a member has ended");
  if (launched_.empty() || now - launched_.front().launched_at < limit) return;
  throw Error(ErrorKind::kTimeout, "launch " + std::to_string(launched_.front().number) + " has not ended");
}

void SimDeviceCarrier::abort() {
  launched_.clear();
  returning_.clear();
}

}  // namespace ringcore::simulation
