// A plan as it may come from outside, in which servers take part.
#pragma once

#include <cstdint>

#include "plan/plan.hpp"

namespace ringcore::testing {

// An allreduce. Servers, or where none serve ranks, add the chunks in turns: all send theirs there, and get the sum back. It
// has a chunk more than there are servers, as none of the engine's own plans has.
inline plan::WholePlan outside_plan(int ranks, int serving, std::uint32_t chunks = 0) {
  using plan::Buffer;
  using plan::ChunkRef;
  using plan::Step;
  using plan::StepKind;
  plan::WholePlan plan;
  plan.generator = "outside";
  plan.collective = Collective::kAllreduce;
  plan.ranks = ranks;
  plan.nodes = ranks + serving;
  plan.chunks = chunks > 0 ? chunks : static_cast<std::uint32_t>(serving) + 1;
  plan.scratch_chunks = static_cast<std::uint32_t>(ranks);
  plan.accumulates_once = true;
  plan.programs.resize(static_cast<std::size_t>(plan.nodes));
  for (plan::Program& program : plan.programs) program.channels.resize(1);
  const auto at = [&plan](Rank node) -> plan::Channel& {
    return plan.programs[static_cast<std::size_t>(node)].channels.front();
  };
  for (std::uint32_t chunk = 0; chunk < plan.chunks; ++chunk) {
    const Rank adds = serving > 0 ? ranks + static_cast<int>(chunk) % serving : static_cast<int>(chunk) % ranks;
    const ChunkRef sum{.rank = adds, .chunk = chunk};
    Step reduce{.kind = StepKind::kReduce, .targets = {sum}, .final = true};
    for (Rank rank = 0; rank < ranks; ++rank) {
      const ChunkRef slot{.rank = adds, .buffer = Buffer::kScratch, .chunk = static_cast<std::uint32_t>(rank)};
      reduce.sources.push_back(rank == adds ? sum : slot);
      if (rank == adds) continue;
      at(rank).push_back({.kind = StepKind::kSend, .peer = adds, .sources = {{.rank = rank, .chunk = chunk}}});
      at(adds).push_back({.kind = StepKind::kRecv, .peer = rank, .sources = {sum}, .targets = {slot}});
    }
    at(adds).push_back(reduce);
    for (Rank rank = 0; rank < ranks; ++rank) {
      if (rank == adds) continue;
      at(adds).push_back({.kind = StepKind::kSend, .peer = rank, .sources = {sum}});
      at(rank).push_back({.kind = StepKind::kRecv, .peer = adds, .targets = {{.rank = rank, .chunk = chunk}}});
    }
  }
  return plan;
}

}  // namespace ringcore::testing
