// The part of a plan that proofs and predictions look at: the program of one rank of each orbit.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "plan/generator.hpp"
#include "plan/plan.hpp"
#include "plan/symmetry.hpp"

namespace ringcore::plan {

// Without a symmetry these are all ranks' programs.
struct Excerpt : Header {
  Symmetry symmetry = Symmetry::none(0);
  std::vector<Program> programs;  // by orbit
  std::size_t steps() const;
};

// So many steps are looked at, of all programs together: what would need more is not offered to anybody. All ranks use
// the same number.
inline constexpr std::size_t kMostSteps = std::size_t{1} << 18;

// Nothing where the generator offers no plan, or the excerpt were longer than `most_steps`.
std::optional<Excerpt> excerpt(const Generator& generator, const PlanRequest& request, const Symmetry& symmetry,
                               std::size_t most_steps);

}  // namespace ringcore::plan
