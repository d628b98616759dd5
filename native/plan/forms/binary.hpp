// Plans as bytes, as ranks send them to each other: numbers in groups of seven bits, the lowest first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/plan.hpp"

namespace ringcore::plan {

inline constexpr std::size_t kMostBinaryBytes = std::size_t{16} << 20;

std::vector<std::byte> to_binary(const WholePlan& plan);
// Whether bytes begin as a plan does.
bool is_binary(std::span<const std::byte> bytes);
// Throws Error{kInvalidArgument}: place, what is wrong, remedy. What the programs do is left to `verify`.
WholePlan from_binary(std::span<const std::byte> bytes);

}  // namespace ringcore::plan
