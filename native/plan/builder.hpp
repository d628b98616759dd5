// Helps generators to write programs: appends steps to the channel of a rank.
#pragma once

#include <string_view>
#include <utility>

#include "plan/generators.hpp"
#include "plan/plan.hpp"

namespace ringcore::plan {

class Builder {
 public:
  // One channel a rank.
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

  Plan& plan() { return plan_; }

 private:
  void append(Rank rank, Step step) { plan_.programs[rank].channels[0].push_back(std::move(step)); }
  Plan plan_;
};

}  // namespace ringcore::plan
