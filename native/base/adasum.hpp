// Adasum: adds gradients as far as they are orthogonal, and averages them as far as they are parallel.
//
// Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021. Two vectors become
//   (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b
// and more of them are combined in pairs, then the pairs, and so on.
#pragma once

#include <span>

#include "base/types.hpp"

namespace ringcore {

// target[i] = the combination of sources[0][i], sources[1][i], ..., each first multiplied by `scale`. Computed in float64.
// The dtype must be a float. The same bits wherever it is computed from the same sources.
void adasum(DType dtype, std::span<const std::byte* const> sources, std::byte* target, std::size_t count, double scale);

}  // namespace ringcore
