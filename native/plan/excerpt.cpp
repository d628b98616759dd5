#include "plan/excerpt.hpp"

#include <utility>

namespace ringcore::plan {
namespace {

std::size_t steps_of(const Program& program) {
  std::size_t steps = 0;
  for (const Channel& channel : program.channels) steps += channel.size();
  return steps;
}

}  // namespace

std::size_t Excerpt::steps() const {
  std::size_t steps = 0;
  for (const Program& program : programs) steps += steps_of(program);
  return steps;
}

std::optional<Excerpt> excerpt(const Generator& generator, const PlanRequest& request, const Symmetry& symmetry,
                               std::size_t most_steps) {
  Excerpt result;
  result.symmetry = symmetry;
  std::size_t steps = 0;
  for (int orbit = 0; orbit < symmetry.orbits(); ++orbit) {
    std::optional<Plan> plan = generator.generate(request, symmetry.representative(orbit));
    if (!plan) return std::nullopt;
    if (orbit == 0) static_cast<Header&>(result) = *plan;
    // A rank that knows another plan has no program of this one; the verifier says so.
    if (static_cast<const Header&>(result) != *plan) return result;
    steps += steps_of(plan->program);
    // Of trees the first program is longer than most; what is hopeless anyhow is not written.
    const bool hopeless = orbit == 0 && steps * static_cast<std::size_t>(symmetry.orbits()) > 16 * most_steps;
    if (steps > most_steps || hopeless) return std::nullopt;
    result.programs.push_back(std::move(plan->program));
  }
  return result;
}

}  // namespace ringcore::plan
