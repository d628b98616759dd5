#include "plan/forms/whole.hpp"

#include "plan/verifier.hpp"

namespace ringcore::plan {

std::optional<std::string> flaw_of_header(const Header& header) {
  const auto text = [](auto number) { return std::to_string(number); };
  if (header.generator.empty()) return "the plan has no name; give it one in 'generator'";
  if (header.ranks < 2) return "the plan has " + text(header.ranks) + " ranks; it needs at least 2";
  if (header.nodes < header.ranks || header.nodes > kMostNodes) {
    return "the plan has " + text(header.nodes) +
           " nodes; it may have as many as its ranks, and those who serve, up to " + text(kMostNodes);
  }
  if (header.collective == Collective::kBarrier) return "a barrier needs no plan; choose another collective";
  if (header.root < 0 || header.root >= header.ranks) {
    return "the root is rank " + text(header.root) + ", which is none; name one of 0 to " + text(header.ranks - 1);
  }
  if (header.chunks < 1 || header.chunks > kMostChunks || header.scratch_chunks > kMostChunks) {
    return "the plan has " + text(header.chunks) + " chunks and " + text(header.scratch_chunks) +
           " scratch chunks; it needs at least 1 chunk, and may have " + text(kMostChunks) + " of each";
  }
  const std::size_t cells = static_cast<std::size_t>(header.nodes) * (header.chunks + header.scratch_chunks);
  if (cells > kMostCells) {
    return "the plan has " + text(cells) + " chunks in all nodes together; " + text(kMostCells) +
           " can be verified: divide the data into fewer";
  }
  if (is_in_blocks(header.collective) && header.chunks % static_cast<std::uint32_t>(header.ranks) != 0) {
    return "the plan has " + text(header.chunks) + " chunks; each rank's block must have as many, so that they are a " +
           "multiple of its " + text(header.ranks) + " ranks";
  }
  return std::nullopt;
}

Excerpt excerpt_of(const WholePlan& plan) {
  Excerpt excerpt;
  static_cast<Header&>(excerpt) = plan;
  excerpt.symmetry = Symmetry::none(plan.nodes);
  excerpt.programs = plan.programs;
  for (Program& program : excerpt.programs) {
    if (program.channels.empty()) program.channels.emplace_back();
  }
  return excerpt;
}

std::optional<std::string> verify(const WholePlan& plan, const Topology& topology) {
  return verify(excerpt_of(plan), topology);
}

Plan part_of(const WholePlan& plan, Rank self) {
  Plan part;
  static_cast<Header&>(part) = plan;
  part.self = self;
  part.program = plan.programs[static_cast<std::size_t>(self)];
  if (part.program.channels.empty()) part.program.channels.emplace_back();
  return part;
}

std::size_t steps_of(const WholePlan& plan) {
  std::size_t steps = 0;
  for (const Program& program : plan.programs) {
    for (const Channel& channel : program.channels) steps += channel.size();
  }
  return steps;
}

}  // namespace ringcore::plan
