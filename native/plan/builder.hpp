// Helps generators to write the program of a rank: appends steps to its channels.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "plan/generator.hpp"
#include "plan/plan.hpp"

namespace ringcore::plan {

class Builder {
 public:
  // A step that another channel of the rank may wait for; of channel -1: none.
  struct Point {
    int channel = -1;
    int step = -1;
  };

  Builder(std::string_view generator, const PlanRequest& request, Rank self, std::uint32_t chunks,
          std::uint32_t scratch_chunks = 0)
      : topology_(*request.topology) {
    plan_.generator = generator;
    plan_.collective = request.collective;
    plan_.ranks = request.ranks();
    plan_.nodes = request.topology->nodes();
    plan_.root = request.root;
    plan_.chunks = chunks;
    plan_.scratch_chunks = scratch_chunks;
    plan_.compression = request.compression;
    plan_.self = self;
    plan_.program.channels.resize(1);
  }

  Rank self() const { return plan_.self; }
  ChunkRef own(std::uint32_t chunk, Buffer buffer = Buffer::kData) const { return {plan_.self, buffer, chunk}; }

  void send(Rank peer, std::uint32_t chunk, Buffer buffer = Buffer::kData) {
    append({.kind = StepKind::kSend, .peer = peer, .sources = {own(chunk, buffer)}, .quantised = quantises(peer)});
  }
  void recv(Rank peer, std::uint32_t chunk) {
    append({.kind = StepKind::kRecv, .peer = peer, .targets = {own(chunk)}, .quantised = quantises(peer)});
  }
  // Several at once, in one transfer.
  void send_all(Rank peer, std::vector<ChunkRef> sources) {
    append({.kind = StepKind::kSend, .peer = peer, .sources = std::move(sources)});
  }
  void recv_all(Rank peer, std::vector<ChunkRef> targets) {
    append({.kind = StepKind::kRecv, .peer = peer, .targets = std::move(targets)});
  }
  void recv_reduce_all(Rank peer, std::vector<ChunkRef> targets, bool final) {
    append({.kind = StepKind::kRecvReduce, .peer = peer, .targets = std::move(targets), .final = final});
  }
  // Into scratch chunk `slot`; it is as large as data chunk `like`.
  void recv_scratch(Rank peer, std::uint32_t slot, std::uint32_t like) {
    append({.kind = StepKind::kRecv,
            .peer = peer,
            .sources = {own(like)},
            .targets = {own(slot, Buffer::kScratch)},
            .quantised = quantises(peer)});
  }
  void recv_reduce(Rank peer, std::uint32_t chunk, bool final) {
    append({.kind = StepKind::kRecvReduce,
            .peer = peer,
            .targets = {own(chunk)},
            .final = final,
            .quantised = quantises(peer)});
  }
  void reduce(std::vector<ChunkRef> sources, std::vector<ChunkRef> targets, bool final) {
    append({.kind = StepKind::kReduce, .sources = std::move(sources), .targets = std::move(targets), .final = final});
  }
  void signal(Rank peer) { append({.kind = StepKind::kSignal, .peer = peer}); }
  void wait(Rank peer) { append({.kind = StepKind::kWait, .peer = peer}); }

  // What is appended from now on goes into this channel; 0 at first.
  void use_channel(int channel) {
    channel_ = channel;
    std::vector<Channel>& channels = plan_.program.channels;
    if (channels.size() <= static_cast<std::size_t>(channel)) channels.resize(channel + 1);
  }
  // The last step in that channel.
  Point last() const { return {channel_, static_cast<int>(plan_.program.channels[channel_].size()) - 1}; }
  // The step that is appended next waits for this one.
  void wait_for(Point point) { after_ = point; }
  // What was appended since the last segment's end is a segment; see Program.
  void end_segment() { plan_.program.segment_ends.push_back(plan_.program.channels[0].size()); }

  Plan& plan() { return plan_; }

 private:
  bool quantises(Rank peer) const {
    return plan_.compression != Compression::kNone && topology_.host_of[self()] != topology_.host_of[peer];
  }

  void append(Step step) {
    const Point after = std::exchange(after_, Point{});
    if (after.channel != channel_) {
      step.after_channel = after.channel;
      step.after_step = after.step;
    }
    plan_.program.channels[channel_].push_back(std::move(step));
  }

  const Topology& topology_;
  Plan plan_;
  int channel_ = 0;
  Point after_;
};

}  // namespace ringcore::plan
