// What a run receives, and reduces while the rest of it comes.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/quantise.hpp"
#include "base/reduce.hpp"
#include "carriers/plans/executor.hpp"

namespace ringcore::carriers {
namespace {

using plan::Buffer;
using plan::StepKind;

// Received bytes that are not aligned to their dtype are reduced through a buffer of this size.
constexpr std::size_t kAlignBuffer = 4096;

bool aligned(const std::byte* address, std::size_t to) { return reinterpret_cast<std::uintptr_t>(address) % to == 0; }

// Into the chunk itself; several are dealt out when all have come.
bool reduces_on_arrival(const Step& step) {
  return step.kind == StepKind::kRecvReduce && !step.quantised && step.targets.size() == 1;
}

}  // namespace

// Values of the tensor that the step takes.
std::size_t PlanRun::values_received(const Step& step) const {
  const bool says_size = !step.sources.empty();
  return (says_size ? bytes({self_, Buffer::kData, step.sources.front().chunk}) : bytes(step.targets)) / element_;
}

// What so many values are between the ranks.
std::size_t PlanRun::sent_bytes(const Step& step, std::size_t values) const {
  return step.quantised ? quantised_bytes(plan_.compression, values) : values * element_;
}

// Where what arrives goes: quantised or of several chunks, from where it is taken and dealt out.
std::byte* PlanRun::landing(const Step& step, ChannelState& state, std::size_t total) const {
  if (step.targets.size() == 1 && !step.quantised) return address(step.targets.front());
  state.landed.resize(total);
  return state.landed.data();
}

// To a chunk, from byte `begin` on; the first time to what this rank gives for it.
void PlanRun::add(const Step& step, const ChunkRef& target, std::size_t begin,
                  std::span<const std::byte> received) const {
  const std::size_t count = received.size() / element_;
  const double scale = step.final ? operands_.final_scale : 1.0;
  std::byte* const to = address(target) + begin;
  if (!lies_in_input(target)) return reduce_into(operands_.dtype, operands_.op, to, received.data(), count, scale);
  const std::array<const std::byte*, 2> sources = {address_of_source(target) + begin, received.data()};
  reduce_many(operands_.dtype, operands_.op, sources, std::span(&to, 1), count, scale);
}

void PlanRun::end_receive(const Step& step, ChannelState& state) {
  const std::byte* from = state.landed.data();
  for (std::size_t i = 0; step.targets.size() > 1 && i < step.targets.size(); ++i) {
    const std::size_t size = bytes(step.targets[i]);
    if (step.kind == StepKind::kRecvReduce) {
      add(step, step.targets[i], 0, {from, size});
    } else if (size > 0) {
      std::memcpy(address(step.targets[i]), from, size);
    }
    from += size;
  }
  complete(step, state);
}

bool PlanRun::receive(const Step& step, ChannelState& state) {
  Peer& peer = peer_of(step.peer);
  transport::Link& link = *peer.link;
  const std::size_t total = sent_bytes(step, values_received(step));
  if (total > 0 && link.has_messages()) return receive_messages(step, state, link, total);
  const bool reading = link.lane_use(lane_).accepted && state.done_bytes > 0;
  if (!reading && !accept_header(peer, total)) return false;
  if (peer.aside) {
    receive_aside(step, state, *peer.aside);
    end_transfer(peer);
    end_receive(step, state);
    return true;
  }
  std::byte* const to = landing(step, state, total);
  bool moved = false;
  while (state.done_bytes < total) {
    if (reduces_on_arrival(step)) {
      if (!reduce_arrived(step, state, link, total)) break;
    } else {
      const std::size_t got = link.read(lane_, {to + state.done_bytes, total - state.done_bytes});
      if (got == 0) break;
      link.lane_use(lane_).taken += got;
      state.done_bytes += got;
      if (step.quantised) take_quantised(step, state);
    }
    moved = true;
  }
  if (state.done_bytes < total) {
    link.expect(lane_, total - state.done_bytes);
    return moved;
  }
  end_transfer(peer);
  end_receive(step, state);
  return true;
}

// The whole blocks that have arrived, while the next ones come. They begin with the chunk.
void PlanRun::take_quantised(const Step& step, ChannelState& state) const {
  const Compression compression = plan_.compression;
  const std::size_t arrived = quantised_values(compression, state.done_bytes, values_received(step));
  const std::size_t first = std::exchange(state.taken_values, arrived);
  const std::byte* const from = state.landed.data() + quantised_bytes(compression, first);
  std::byte* const to = address(step.targets.front()) + first * element_;
  if (step.kind == StepKind::kRecvReduce) {
    const double scale = step.final ? operands_.final_scale : 1.0;
    if (lies_in_input(step.targets.front())) {
      std::memcpy(to, address_of_source(step.targets.front()) + first * element_, (arrived - first) * element_);
    }
    add_quantised(compression, operands_.dtype, from, arrived - first, to, scale);
  } else {
    dequantise(compression, operands_.dtype, from, arrived - first, to);
  }
}

bool PlanRun::receive_messages(const Step& step, ChannelState& state, transport::Link& link, std::size_t total) {
  std::byte* const target = landing(step, state, total);
  const bool reduces = reduces_on_arrival(step);
  const auto place = [&](std::size_t begin) {
    return reduces ? state.rooms[begin / kMessageBytes % kMessagesAhead].get() : target + begin;
  };
  bool moved = false;
  while (state.expected_bytes < total && state.incoming.size() < kMessagesAhead) {
    const std::size_t begin = state.expected_bytes;
    const std::size_t bytes = std::min(total - begin, kMessageBytes);
    auto& room = state.rooms[begin / kMessageBytes % kMessagesAhead];
    if (reduces && room == nullptr) {
      const std::size_t largest = operands_.data_layout.largest() * element_;
      room = std::make_unique_for_overwrite<std::byte[]>(std::min(largest, kMessageBytes));
    }
    state.incoming.push_back(link.receive_message(lane_, channel_, {place(begin), bytes}));
    state.expected_bytes += bytes;
    moved = true;
  }
  if (!link.message_done(state.incoming.front())) return moved;
  state.incoming.pop_front();
  const std::size_t bytes = std::min(total - state.done_bytes, kMessageBytes);
  if (reduces) {
    add(step, step.targets.front(), state.done_bytes, {place(state.done_bytes), bytes});
  }
  state.done_bytes += bytes;
  if (step.quantised) take_quantised(step, state);
  if (state.done_bytes == total) end_receive(step, state);
  return true;
}

void PlanRun::receive_aside(const Step& step, ChannelState& state, std::span<const std::byte> payload) const {
  std::byte* const to = landing(step, state, payload.size());
  if (reduces_on_arrival(step)) {
    add(step, step.targets.front(), 0, payload);
  } else if (!payload.empty()) {
    std::memcpy(to, payload.data(), payload.size());
  }
  state.done_bytes = payload.size();
  if (step.quantised) take_quantised(step, state);
}

// Reduces straight from where the bytes arrived.
bool PlanRun::reduce_arrived(const Step& step, ChannelState& state, transport::Link& link, std::size_t total) {
  std::span<const std::byte> arrived = link.peek(lane_);
  std::size_t usable = std::min(arrived.size(), total - state.done_bytes) / element_ * element_;
  if (usable == 0) return false;
  alignas(64) std::byte copy[kAlignBuffer];
  const std::byte* from = arrived.data();
  if (!aligned(from, element_)) {
    usable = std::min(usable, kAlignBuffer);
    std::memcpy(copy, from, usable);
    from = copy;
  }
  add(step, step.targets.front(), state.done_bytes, {from, usable});
  link.consume(lane_, usable);
  link.lane_use(lane_).taken += usable;
  state.done_bytes += usable;
  return true;
}

}  // namespace ringcore::carriers
