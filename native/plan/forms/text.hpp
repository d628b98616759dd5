// Plans as JSON text, which docs/plans.md describes.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "plan/plan.hpp"

namespace ringcore::plan {

inline constexpr int kFormVersion = 1;  // of text and binary form
inline constexpr std::size_t kMostTextBytes = std::size_t{64} << 20;
// By StepKind and Buffer: the words of the text, and of messages.
inline constexpr std::array<std::string_view, 6> kStepNames = {"send",   "recv",   "recv_reduce",
                                                               "reduce", "signal", "wait"};
inline constexpr std::array<std::string_view, 3> kBufferNames = {"data", "input", "scratch"};

// One step a line. The header of `plan` is right; its programs claim no segments.
std::string to_text(const WholePlan& plan);
// Throws Error{kInvalidArgument}: place, what is there, what may be there. What the programs do is left to `verify`.
WholePlan from_text(std::string_view text);

}  // namespace ringcore::plan
