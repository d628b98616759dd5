// A plan with all ranks' programs, as files have it, and what is done with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "plan/excerpt.hpp"
#include "plan/plan.hpp"
#include "plan/topology.hpp"

namespace ringcore::plan {

// What a plan from a file may have at most: in all programs together, kMostSteps (excerpt.hpp).
inline constexpr int kMostNodes = 4096;
inline constexpr std::uint32_t kMostChunks = 1 << 16;
inline constexpr std::size_t kMostCells = std::size_t{1} << 22;  // chunks and scratch chunks of all nodes together
inline constexpr std::size_t kMostChannels = 256;  // of a rank
inline constexpr std::size_t kMostOperands = 4096;  // of a step
inline constexpr std::size_t kMostNameCharacters = 64;

// What is wrong with the header alone, as a sentence with its remedy; nothing: it can be looked at further.
std::optional<std::string> flaw_of_header(const Header& header);
// What `verify` says of it on that topology, which has the plan's nodes. Its header is right.
std::optional<std::string> verify(const WholePlan& plan, const Topology& topology);
Excerpt excerpt_of(const WholePlan& plan);
// As one rank has it. It has one channel at least.
Plan part_of(const WholePlan& plan, Rank self);
std::size_t steps_of(const WholePlan& plan);

}  // namespace ringcore::plan
