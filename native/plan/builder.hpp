// Helps generators to write programs: appends steps to the channels of a rank.
#pragma once

#include <string_view>
#include <utility>

#include "plan/generators.hpp"
#include "plan/plan.hpp"

namespace ringcore::plan {

class Builder {
 public:
  // A step that another channel of the rank may wait for; of channel -1: none.
  struct Point {
    int channel = -1;
    int step = -1;
  };

  Builder(std::string_view generator, const PlanRequest& request, std::uint32_t chunks,
          std::uint32_t scratch_chunks = 0) {
    plan_.generator = generator;
    plan_.collective = request.collective;
    plan_.ranks = request.ranks();
    plan_.root = request.root;
    plan_.chunks = chunks;
    plan_.scratch_chunks = scratch_chunks;
    plan_.programs.resize(request.ranks());
    for (Program& program : plan_.programs) program.channels.resize(1);
  }

  void send(Rank rank, Rank peer, std::uint32_t chunk, Buffer buffer = Buffer::kData) {
    append(rank, {.kind = StepKind::kSend, .peer = peer, .sources = {{rank, buffer, chunk}}});
  }
  void recv(Rank rank, Rank peer, std::uint32_t chunk) {
    append(rank, {.kind = StepKind::kRecv, .peer = peer, .targets = {{rank, Buffer::kData, chunk}}});
  }
  // Into scratch chunk `slot`; it is as large as data chunk `like`.
  void recv_scratch(Rank rank, Rank peer, std::uint32_t slot, std::uint32_t like) {
    append(rank, {.kind = StepKind::kRecv,
                  .peer = peer,
                  .sources = {{rank, Buffer::kData, like}},
                  .targets = {{rank, Buffer::kScratch, slot}}});
  }
  void recv_reduce(Rank rank, Rank peer, std::uint32_t chunk, bool final) {
    append(rank,
           {.kind = StepKind::kRecvReduce, .peer = peer, .targets = {{rank, Buffer::kData, chunk}}, .final = final});
  }
  void reduce(Rank rank, std::vector<ChunkRef> sources, std::vector<ChunkRef> targets, bool final) {
    append(rank,
           {.kind = StepKind::kReduce, .sources = std::move(sources), .targets = std::move(targets), .final = final});
  }
  void signal(Rank rank, Rank peer) { append(rank, {.kind = StepKind::kSignal, .peer = peer}); }
  void wait(Rank rank, Rank peer) { append(rank, {.kind = StepKind::kWait, .peer = peer}); }

  // What is appended from now on goes into this channel of each rank; 0 at first.
  void use_channel(int channel) { channel_ = channel; }
  // The last step of the rank in that channel.
  Point last(Rank rank) const {
    return {channel_, static_cast<int>(plan_.programs[rank].channels.at(channel_).size()) - 1};
  }
  // The step that is appended next waits for this one.
  void wait_for(Point point) { after_ = point; }

  Plan& plan() { return plan_; }

 private:
  void append(Rank rank, Step step) {
    std::vector<Channel>& channels = plan_.programs[rank].channels;
    if (channels.size() <= static_cast<std::size_t>(channel_)) channels.resize(channel_ + 1);
    const Point after = std::exchange(after_, Point{});
    if (after.channel != channel_) {
      step.after_channel = after.channel;
      step.after_step = after.step;
    }
    channels[channel_].push_back(std::move(step));
  }

  Plan plan_;
  int channel_ = 0;
  Point after_;
};

}  // namespace ringcore::plan
