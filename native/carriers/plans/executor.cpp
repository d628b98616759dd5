#include "carriers/plans/executor.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

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
// Of sums that go elsewhere than where their values lie: what is so large leaves the caches before somebody reads it.
constexpr std::size_t kPastCaches = 2 * 1024 * 1024;

}  // namespace

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
  const bool apart = operands_.input != operands_.data || !operands_.peer_inputs.empty();
  if (plan.collective == Collective::kAllreduce && operands_.input != nullptr && apart) {
    in_input_.assign(plan.chunks, true);
  }
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

bool PlanRun::lies_in_input(const ChunkRef& ref) const {
  if (in_input_.empty() || ref.buffer != Buffer::kData) return false;
  return ref.rank == self_ ? in_input_[ref.chunk] : !operands_.peer_inputs.empty();
}

// Of what is sent, added or copied.
const std::byte* PlanRun::address_of_source(const ChunkRef& ref) const {
  if (!lies_in_input(ref)) return address(ref);
  const std::byte* const input = ref.rank == self_ ? operands_.input : operands_.peer_inputs[ref.rank];
  return input + operands_.data_layout.offset(ref.chunk) * element_;
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

// The step has taken effect, but for the rounding of what it has completed: see plan.hpp.
void PlanRun::complete(const Step& step, ChannelState& state) {
  for (const ChunkRef& target : step.targets) {
    if (target.rank == self_ && lies_in_input(target)) in_input_[target.chunk] = false;
  }
  if (step.final && plan_.compression != Compression::kNone) {
    for (const ChunkRef& target : step.targets) {
      round_to_quantised(plan_.compression, operands_.dtype, address(target), bytes(target) / element_);
    }
  }
  state.advance();
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
  for (std::size_t i = 0; i < step.sources.size(); ++i)
    sources_[i] = address_of_source(step.sources[i]) + state.done_bytes;
  for (std::size_t i = 0; i < step.targets.size(); ++i) targets_[i] = address(step.targets[i]) + state.done_bytes;
  if (step.sources.size() == 1 && !(step.final && operands_.final_scale != 1.0)) {
    for (std::size_t i = 0; i < step.targets.size(); ++i) {
      if (slice > 0 && targets_[i] != sources_[0]) std::memcpy(targets_[i], sources_[0], slice);
    }
  } else {
    reduce_many(operands_.dtype, operands_.op, std::span(sources_).first(step.sources.size()),
                std::span(targets_).first(step.targets.size()), slice / element_,
                step.final ? operands_.final_scale : 1.0, !operands_.peer_inputs.empty() && total >= kPastCaches);
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
