#include "carriers/plans/executor.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/error.hpp"
#include "base/quantise.hpp"
#include "base/reduce.hpp"

namespace ringcore::carriers {
namespace {

using plan::Buffer;
using plan::Channel;
using plan::Layout;
using plan::StepKind;

// A local reduction gives other channels and other tasks a turn after this many bytes.
constexpr std::size_t kReduceSlice = 512 * 1024;
// Received bytes that are not aligned to their dtype are reduced through a buffer of this size.
constexpr std::size_t kAlignBuffer = 4096;
// What goes as messages goes in pieces of this size, so that one is reduced, out of the cache, while the next one
// comes. A multiple of every element. Over TCP, Open MPI's request for the next piece waits behind what it has to send
// itself, as much as has been asked for: with pieces of 1 MiB links of 1 Gbit/s stand still for 40 % of the time.
constexpr std::size_t kMessageBytes = 256 * 1024;

// So much is set aside for one peer: more than any transfer that a run here is about to take.
constexpr std::uint64_t kMaxAsideBytes = std::uint64_t{4} << 30;

// Takes the header at the front of the lane, when it has arrived.
bool read_header(transport::Link& link, int lane, Rank peer) {
  const std::span<const std::byte> arrived = link.peek(lane);
  if (arrived.size() < sizeof(TransferHeader)) return false;
  TransferHeader header;
  std::memcpy(&header, arrived.data(), sizeof(header));
  if (header.magic != TransferHeader::kMagic) {
    throw Error(ErrorKind::kProtocol,
                "rank " + std::to_string(peer) + " sent something that is no transfer on lane " + std::to_string(lane));
  }
  link.consume(lane, sizeof(header));
  transport::Link::LaneUse& use = link.lane_use(lane);
  use.taken += sizeof(header);
  use.receiving = true;
  use.accepted = false;
  use.receiving_run = header.run;
  use.receiving_bytes = header.bytes;
  return true;
}

// Whether the transfer that arrives may be set aside with what lies there.
void check_room_aside(const transport::Link::LaneUse& use, Rank peer) {
  std::uint64_t bytes = use.receiving_bytes;
  for (const transport::Link::SetAside& transfer : use.set_aside) bytes += transfer.payload.size();
  if (bytes <= kMaxAsideBytes && use.receiving_bytes <= kMaxAsideBytes) return;
  throw Error(ErrorKind::kProtocol, "rank " + std::to_string(peer) + " of the process set has sent " +
                                        std::to_string(bytes) + " bytes for operations that this rank has not begun, " +
                                        "and " + std::to_string(kMaxAsideBytes) +
                                        " are kept. Remedy: reduce such large tensors without a priority and in one " +
                                        "process set at a time, or in several parts.");
}

bool aligned(const std::byte* address, std::size_t to) { return reinterpret_cast<std::uintptr_t>(address) % to == 0; }

}  // namespace

bool set_aside(transport::Link& link, int lane, Rank peer) {
  transport::Link::LaneUse& use = link.lane_use(lane);
  const bool known = use.receiving;
  if (!known && !read_header(link, lane, peer)) return false;
  if (use.accepted) return false;
  if (use.set_aside.empty() || !use.set_aside.back().arriving) {
    check_room_aside(use, peer);
    use.set_aside.push_back({.run = use.receiving_run, .payload = {}});
  }
  transport::Link::SetAside& transfer = use.set_aside.back();
  bool moved = !known;
  while (transfer.payload.size() < use.receiving_bytes) {
    const std::span<const std::byte> arrived = link.peek(lane);
    const std::size_t bytes = std::min(arrived.size(), use.receiving_bytes - transfer.payload.size());
    if (bytes == 0) return moved;
    transfer.payload.insert(transfer.payload.end(), arrived.begin(),
                            arrived.begin() + static_cast<std::ptrdiff_t>(bytes));
    link.consume(lane, bytes);
    use.taken += bytes;
    moved = true;
  }
  transfer.arriving = false;
  use.receiving = false;
  return true;
}

PlanRun::PlanRun(const Plan& plan, Operands operands, std::span<transport::Link* const> links, int lane,
                 std::uint32_t id, int channel)
    : plan_(plan),
      program_(plan.program),
      self_(plan.self),
      links_(links),
      operands_(std::move(operands)),
      lane_(lane),
      id_(id),
      channel_(channel),
      element_(size_of(operands_.dtype)),
      channels_(program_.channels.size()),
      unsent_(3 * static_cast<std::size_t>(std::max(plan.chunks, plan.scratch_chunks)), 0) {
  find_peers(links);
  std::size_t widest = 0;
  for (const Channel& channel : program_.channels) {
    for (const Step& step : channel) widest = std::max({widest, step.sources.size(), step.targets.size()});
  }
  sources_.resize(widest);
  targets_.resize(widest);
}

// As many as the steps name, whatever the number of ranks.
void PlanRun::find_peers(std::span<transport::Link* const> links) {
  struct Named {
    Rank rank = 0;
    std::size_t sends = 0;
  };
  std::vector<Named> named;
  for (const Channel& channel : program_.channels) {
    for (const Step& step : channel) {
      if (step.peer < 0) continue;
      auto found = std::lower_bound(named.begin(), named.end(), step.peer,
                                    [](const Named& each, Rank rank) { return each.rank < rank; });
      if (found == named.end() || found->rank != step.peer) found = named.insert(found, {.rank = step.peer});
      if (step.kind == StepKind::kSend || step.kind == StepKind::kSignal) ++found->sends;
    }
  }
  peers_ = std::vector<Peer>(named.size());
  for (std::size_t i = 0; i < named.size(); ++i) {
    peers_[i].rank = named[i].rank;
    peers_[i].link = links[named[i].rank];
    peers_[i].outgoing.reserve(named[i].sends);
    peers_[i].link->want(lane_);
  }
}

std::size_t PlanRun::index_of(Rank rank) const {
  const auto found =
      std::lower_bound(peers_.begin(), peers_.end(), rank, [](const Peer& each, Rank one) { return each.rank < one; });
  return static_cast<std::size_t>(found - peers_.begin());
}

std::uint32_t& PlanRun::unsent(const ChunkRef& ref) {
  return unsent_[static_cast<std::size_t>(ref.buffer) * (unsent_.size() / 3) + ref.chunk];
}

std::byte* PlanRun::address(const ChunkRef& ref) const {
  switch (ref.buffer) {
    case Buffer::kData: return address_of_data(ref);
    case Buffer::kInput: return address_of_input(ref);
    case Buffer::kScratch: return operands_.scratch + ref.chunk * operands_.data_layout.largest() * element_;
  }
  __builtin_unreachable();
}

std::byte* PlanRun::address_of_data(const ChunkRef& ref) const {
  const Layout& layout = operands_.data_layout;
  if (ref.rank != self_) return operands_.peer_data[ref.rank] + layout.offset(ref.chunk) * element_;
  const auto first = static_cast<std::uint32_t>(self_) * parts();
  if (operands_.own_block == nullptr || ref.chunk < first || ref.chunk >= first + parts()) {
    return operands_.data + layout.offset(ref.chunk) * element_;
  }
  return const_cast<std::byte*>(operands_.own_block) + (layout.offset(ref.chunk) - layout.offset(first)) * element_;
}

std::byte* PlanRun::address_of_input(const ChunkRef& ref) const {
  if (ref.rank == self_) {
    return const_cast<std::byte*>(operands_.input) + operands_.input_layout.offset(ref.chunk) * element_;
  }
  const Layout& layout = operands_.data_layout;
  const std::uint32_t first = static_cast<std::uint32_t>(ref.rank) * parts();
  return operands_.peer_blocks[ref.rank] + (layout.offset(as_received(ref)) - layout.offset(first)) * element_;
}

// The chunk of this rank's data that becomes what another one gives for it.
std::uint32_t PlanRun::as_received(const ChunkRef& input) const {
  return static_cast<std::uint32_t>(input.rank) * parts() + input.chunk % parts();
}

// A scratch chunk is as large as the data chunk that is sent through it; the data side of the step says how large.
std::size_t PlanRun::bytes(const ChunkRef& ref) const {
  if (ref.buffer == Buffer::kScratch && plan_.needs_even_blocks()) return operands_.data_layout.largest() * element_;
  const bool is_input = ref.buffer == Buffer::kInput;
  if (is_input && ref.rank != self_) return operands_.data_layout.size(as_received(ref)) * element_;
  return (is_input ? operands_.input_layout : operands_.data_layout).size(ref.chunk) * element_;
}

std::size_t PlanRun::bytes(const std::vector<ChunkRef>& refs) const {
  return std::accumulate(refs.begin(), refs.end(), std::size_t{0},
                         [this](std::size_t sum, const ChunkRef& ref) { return sum + bytes(ref); });
}

bool PlanRun::progress() {
  bool moved = false;
  for (std::size_t c = 0; c < channels_.size(); ++c) {
    for (std::size_t before = channels_[c].next; step(c); before = channels_[c].next) {
      moved = true;
      if (channels_[c].next == before) continue;
      count_traffic(program_.channels[c][before]);
      if (clock_ != nullptr) note_step(c, before);
    }
  }
  return send_to_all() || moved;
}

void PlanRun::count_traffic(const Step& step) const {
  if (step.kind == StepKind::kSend) {
    links_[step.peer]->traffic().sent += sent_bytes(step, bytes(step.sources) / element_);
  }
  if (step.kind == StepKind::kRecv || step.kind == StepKind::kRecvReduce) {
    links_[step.peer]->traffic().received += sent_bytes(step, values_received(step));
  }
  if (step.kind != StepKind::kReduce) return;
  for (const ChunkRef& source : step.sources) {
    if (source.rank != self_) links_[source.rank]->traffic().received += bytes(source);
  }
  for (const ChunkRef& target : step.targets) {
    if (target.rank != self_) links_[target.rank]->traffic().sent += bytes(target);
  }
}

bool PlanRun::send_to_all() {
  bool moved = false;
  for (Peer& peer : peers_) moved = send(peer) || moved;
  return moved;
}

void PlanRun::time_steps(const Clock& clock) {
  clock_ = &clock;
  step_begins_.assign(channels_.size(), clock.now());
}

void PlanRun::note_step(std::size_t channel, std::size_t index) {
  const Step& step = program_.channels[channel][index];
  const Nanoseconds now = clock_->now();
  const ChunkRef* chunk = nullptr;
  for (const auto* refs : {&step.sources, &step.targets}) {
    for (const ChunkRef& ref : *refs) {
      if (ref.buffer != Buffer::kScratch) chunk = &ref;
    }
  }
  step_times_.push_back({static_cast<int>(channel), &step, chunk == nullptr ? 0 : bytes(*chunk),
                         std::exchange(step_begins_[channel], now), now});
}

bool PlanRun::done() const {
  for (std::size_t c = 0; c < channels_.size(); ++c) {
    if (channels_[c].next < program_.channels[c].size()) return false;
  }
  return !sending();
}

bool PlanRun::sending() const {
  return std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.sending(); });
}

bool PlanRun::in_use() const {
  const auto receives = [](const ChannelState& state) { return !state.incoming.empty(); };
  const auto sends = [](const Peer& peer) { return !peer.messages.empty(); };
  return std::any_of(channels_.begin(), channels_.end(), receives) || std::any_of(peers_.begin(), peers_.end(), sends);
}

bool PlanRun::may_run(const Step& step) const {
  return step.after_channel < 0 || static_cast<int>(channels_[step.after_channel].next) > step.after_step;
}

// Runs the channel's next step as far as it goes; true if anything moved.
bool PlanRun::step(std::size_t channel) {
  ChannelState& state = channels_[channel];
  if (state.next == program_.channels[channel].size()) return false;
  const Step& step = program_.channels[channel][state.next];
  if (!may_run(step)) return false;
  for (const ChunkRef& target : step.targets) {
    if (target.rank == self_ && state.done_bytes == 0 && unsent(target) > 0) {
      return step.peer < 0 ? send_to_all() : send(peer_of(step.peer));
    }
  }
  switch (step.kind) {
    case StepKind::kSend: {
      post_chunk(step);
      ++state.next;
      return true;
    }
    case StepKind::kSignal:
      // Links publish what they write after everything that was stored before, and the peer sees it in that order.
      post(step.peer, nullptr, 0, nullptr);
      ++state.next;
      return true;
    case StepKind::kWait:
      if (!accept_header(peer_of(step.peer), 0)) return false;
      end_transfer(peer_of(step.peer));
      ++state.next;
      return true;
    case StepKind::kRecv:
    case StepKind::kRecvReduce: return receive(step, state);
    case StepKind::kReduce: return reduce(step, state);
  }
  __builtin_unreachable();
}

// What several chunks are, or what is quantised, is copied, and the chunks are free again at once.
void PlanRun::post_chunk(const Step& step) {
  if (step.quantised) return post_quantised(step);
  if (step.sources.size() > 1) return post_together(step);
  const ChunkRef& source = step.sources.front();
  post(step.peer, address(source), bytes(source), &unsent(source));
}

void PlanRun::post_together(const Step& step) {
  const std::size_t total = bytes(step.sources);
  auto copy = std::make_unique_for_overwrite<std::byte[]>(total);
  std::byte* to = copy.get();
  for (const ChunkRef& source : step.sources) to = std::copy_n(address(source), bytes(source), to);
  post_copy(step.peer, std::move(copy), total);
}

void PlanRun::post_quantised(const Step& step) {
  const ChunkRef& source = step.sources.front();
  const std::size_t values = bytes(source) / element_;
  const std::size_t total = sent_bytes(step, values);
  auto copy = std::make_unique_for_overwrite<std::byte[]>(total);
  quantise(plan_.compression, operands_.dtype, address(source), values, copy.get());
  post_copy(step.peer, std::move(copy), total);
}

void PlanRun::post_copy(Rank rank, std::unique_ptr<std::byte[]> copy, std::size_t bytes) {
  Peer& peer = peer_of(rank);
  Outgoing& transfer = peer.outgoing.emplace_back();
  transfer.header = {.run = id_, .bytes = bytes};
  transfer.payload = copy.get();
  transfer.copy = std::move(copy);
  send(peer);
}

void PlanRun::post(Rank rank, const std::byte* payload, std::size_t bytes, std::uint32_t* busy) {
  if (busy != nullptr) ++*busy;
  Peer& peer = peer_of(rank);
  peer.outgoing.push_back({.header = {.run = id_, .bytes = bytes}, .payload = payload, .busy = busy, .copy = nullptr});
  send(peer);
}

bool PlanRun::send(Peer& peer) {
  if (!peer.sending()) return false;
  transport::Link& link = *peer.link;
  transport::Link::LaneUse& use = link.lane_use(lane_);
  bool moved = settle(peer);
  while (peer.next < peer.outgoing.size()) {
    Outgoing& transfer = peer.outgoing[peer.next];
    if (held_ && transfer.sent == 0) return moved;
    if (transfer.header.bytes > 0 && link.has_messages()) {
      send_messages(peer, transfer);
      ++peer.next;
      moved = true;
      continue;
    }
    if (use.sending_run != 0 && use.sending_run != id_) return moved;
    const auto header = std::as_bytes(std::span(&transfer.header, 1));
    const std::span<const std::byte> payload(transfer.payload, transfer.header.bytes);
    if (transfer.sent < header.size() + payload.size()) {
      const std::size_t of_header = std::min(transfer.sent, header.size());
      const std::size_t written =
          link.write(lane_, header.subspan(of_header), payload.subspan(transfer.sent - of_header));
      if (written == 0) return moved;
      moved = true;
      transfer.sent += written;
      use.written += written;
      use.sending_run = id_;
      continue;
    }
    use.sending_run = 0;
    if (transfer.busy != nullptr) --*transfer.busy;
    transfer.copy.reset();
    ++peer.next;
    moved = true;
  }
  return moved;
}

void PlanRun::send_messages(Peer& peer, Outgoing& transfer) const {
  const std::span<const std::byte> payload(transfer.payload, transfer.header.bytes);
  for (std::size_t begin = 0; begin < payload.size(); begin += kMessageBytes) {
    const std::size_t bytes = std::min(payload.size() - begin, kMessageBytes);
    const bool last = begin + bytes == payload.size();
    peer.messages.push_back({.message = peer.link->send_message(lane_, channel_, payload.subspan(begin, bytes)),
                             .busy = last ? transfer.busy : nullptr,
                             .copy = last ? std::move(transfer.copy) : nullptr});
  }
}

// Looks which messages have left.
bool PlanRun::settle(Peer& peer) const {
  bool moved = false;
  while (!peer.messages.empty() && peer.link->message_done(peer.messages.front().message)) {
    if (peer.messages.front().busy != nullptr) --*peer.messages.front().busy;
    peer.messages.pop_front();
    moved = true;
  }
  return moved;
}

// Whether the next transfer of this run from the peer has arrived, at least its header.
bool PlanRun::accept_header(Peer& peer, std::size_t expected) {
  transport::Link& link = *peer.link;
  transport::Link::LaneUse& use = link.lane_use(lane_);
  std::uint64_t bytes = 0;
  const auto aside = std::find_if(use.set_aside.begin(), use.set_aside.end(),
                                  [this](const auto& transfer) { return transfer.run == id_; });
  if (aside != use.set_aside.end()) {
    if (aside->arriving) set_aside(link, lane_, peer.rank);
    if (aside->arriving) return false;
    bytes = aside->payload.size();
    peer.aside = std::move(aside->payload);
    use.set_aside.erase(aside);
  } else {
    if (!use.receiving && !read_header(link, lane_, peer.rank)) return false;
    if (use.receiving_run != id_) return false;
    use.accepted = true;
    bytes = use.receiving_bytes;
  }
  if (bytes != expected) {
    throw Error(ErrorKind::kProtocol, "rank " + std::to_string(peer.rank) + " of the process set sends " +
                                          std::to_string(bytes) + " bytes where the " + plan_.generator +
                                          " plan expects " + std::to_string(expected));
  }
  return true;
}

void PlanRun::end_transfer(Peer& peer) {
  if (peer.aside) {
    peer.aside.reset();
  } else {
    transport::Link::LaneUse& use = peer.link->lane_use(lane_);
    use.receiving = use.accepted = false;
  }
}

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

void PlanRun::end_receive(const Step& step, ChannelState& state) const {
  const std::byte* from = state.landed.data();
  for (std::size_t i = 0; step.targets.size() > 1 && i < step.targets.size(); ++i) {
    const std::size_t size = bytes(step.targets[i]);
    if (size > 0) std::memcpy(address(step.targets[i]), from, size);
    from += size;
  }
  complete(step, state);
}

// The step has taken effect, but for the rounding of what it has completed: see plan.hpp.
void PlanRun::complete(const Step& step, ChannelState& state) const {
  if (step.final && plan_.compression != Compression::kNone) {
    for (const ChunkRef& target : step.targets) {
      round_to_quantised(plan_.compression, operands_.dtype, address(target), bytes(target) / element_);
    }
  }
  state.advance();
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
    if (step.kind == StepKind::kRecvReduce && !step.quantised) {
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
    add_quantised(compression, operands_.dtype, from, arrived - first, to, scale);
  } else {
    dequantise(compression, operands_.dtype, from, arrived - first, to);
  }
}

bool PlanRun::receive_messages(const Step& step, ChannelState& state, transport::Link& link, std::size_t total) {
  std::byte* const target = landing(step, state, total);
  const bool reduces = step.kind == StepKind::kRecvReduce && !step.quantised;
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
    reduce_into(operands_.dtype, operands_.op, target + state.done_bytes, place(state.done_bytes), bytes / element_,
                step.final ? operands_.final_scale : 1.0);
  }
  state.done_bytes += bytes;
  if (step.quantised) take_quantised(step, state);
  if (state.done_bytes == total) end_receive(step, state);
  return true;
}

void PlanRun::receive_aside(const Step& step, ChannelState& state, std::span<const std::byte> payload) const {
  std::byte* const to = landing(step, state, payload.size());
  if (step.kind == StepKind::kRecvReduce && !step.quantised) {
    reduce_into(operands_.dtype, operands_.op, to, payload.data(), payload.size() / element_,
                step.final ? operands_.final_scale : 1.0);
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
  reduce_into(operands_.dtype, operands_.op, address(step.targets.front()) + state.done_bytes, from, usable / element_,
              step.final ? operands_.final_scale : 1.0);
  link.consume(lane_, usable);
  link.lane_use(lane_).taken += usable;
  state.done_bytes += usable;
  return true;
}

bool PlanRun::reduce(const Step& step, ChannelState& state) {
  // All chunks of the step are equally large; a data or input chunk tells how large.
  std::size_t total = 0;
  for (const auto* refs : {&step.targets, &step.sources}) {
    for (const ChunkRef& ref : *refs) {
      if (ref.buffer != Buffer::kScratch) total = bytes(ref);
    }
  }
  const std::size_t slice = std::min(total - state.done_bytes, kReduceSlice);
  for (std::size_t i = 0; i < step.sources.size(); ++i) sources_[i] = address(step.sources[i]) + state.done_bytes;
  for (std::size_t i = 0; i < step.targets.size(); ++i) targets_[i] = address(step.targets[i]) + state.done_bytes;
  if (step.sources.size() == 1 && !(step.final && operands_.final_scale != 1.0)) {
    for (std::size_t i = 0; i < step.targets.size(); ++i) {
      if (slice > 0 && targets_[i] != sources_[0]) std::memcpy(targets_[i], sources_[0], slice);
    }
  } else {
    reduce_many(operands_.dtype, operands_.op, std::span(sources_).first(step.sources.size()),
                std::span(targets_).first(step.targets.size()), slice / element_,
                step.final ? operands_.final_scale : 1.0);
  }
  state.done_bytes += slice;
  if (state.done_bytes == total) complete(step, state);
  return true;
}

std::string describe(const Step& step) {
  const auto chunk = [](const std::vector<ChunkRef>& refs) { return " chunk " + std::to_string(refs.front().chunk); };
  const std::string peer = "rank " + std::to_string(step.peer);
  const std::string how = step.quantised ? " quantised" : "";
  switch (step.kind) {
    case StepKind::kSend: return "send" + how + chunk(step.sources) + " to " + peer;
    case StepKind::kRecv: return "receive" + how + chunk(step.targets) + " from " + peer;
    case StepKind::kRecvReduce: return "receive and reduce" + how + chunk(step.targets) + " from " + peer;
    case StepKind::kReduce: return (step.sources.size() == 1 ? "copy" : "reduce") + chunk(step.sources);
    case StepKind::kSignal: return "signal " + peer;
    case StepKind::kWait: return "wait for " + peer;
  }
  __builtin_unreachable();
}

bool PlanRun::waits_for(Rank rank) const {
  const std::size_t index = index_of(rank);
  if (index == peers_.size() || peers_[index].rank != rank) return false;
  if (peers_[index].sending() && !held_) return true;
  for (std::size_t c = 0; c < channels_.size(); ++c) {
    const ChannelState& state = channels_[c];
    if (state.next == program_.channels[c].size()) continue;
    const Step& step = program_.channels[c][state.next];
    const bool receives =
        step.kind == StepKind::kWait || step.kind == StepKind::kRecv || step.kind == StepKind::kRecvReduce;
    if (receives && step.peer == rank && may_run(step)) return true;
  }
  return false;
}

std::string PlanRun::waiting_for() const {
  for (std::size_t c = 0; c < channels_.size(); ++c) {
    const ChannelState& state = channels_[c];
    if (state.next == program_.channels[c].size()) continue;
    const Step& step = program_.channels[c][state.next];
    const std::string peer = "rank " + std::to_string(step.peer);
    switch (step.kind) {
      case StepKind::kWait: return peer + " to signal";
      case StepKind::kRecv:
      case StepKind::kRecvReduce:
        return peer + " to send chunk " + std::to_string(step.targets.front().chunk) + " (" +
               std::to_string(state.done_bytes) + " bytes of it have come)";
      case StepKind::kSend:
      case StepKind::kSignal:
      case StepKind::kReduce: continue;
    }
  }
  for (const Peer& peer : peers_) {
    if (peer.sending() && held_) return "a more urgent operation to end";
    if (peer.sending()) return "rank " + std::to_string(peer.rank) + " to take what is sent to it";
  }
  return "nothing";
}

}  // namespace ringcore::carriers
