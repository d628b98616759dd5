#include "plan/verifier.hpp"

#include "plan/cost.hpp"
#include "plan/verifier/execution.hpp"
#include "plan/verifier/flaw.hpp"
#include "plan/verifier/shape.hpp"

namespace ringcore::plan {

std::optional<std::string> verify(const Excerpt& excerpt, const Topology& topology) {
  try {
    check_shape(excerpt, topology);
    Execution(excerpt).run();
    return std::nullopt;
  } catch (const Flaw& flaw) {
    return flaw.text;
  }
}

PlanRequest request_of_proof(const Plan& plan, const PlanRequest& request) {
  PlanRequest one = request;
  if (!plan.program.segment_ends.empty()) one.parts = 1;
  return one;
}

std::optional<std::string> verify(const Plan& plan, const Generator& generator, const PlanRequest& request) {
  const PlanRequest proven = request_of_proof(plan, request);
  Symmetry symmetry = generator.symmetry(proven);
  // What is quantised depends on who shares a host.
  if (plan.compression != Compression::kNone) symmetry = symmetry_of_hosts(symmetry, *request.topology, true);
  const auto claimed = excerpt(generator, proven, symmetry, kMostSteps);
  if (!claimed) return plan.generator + ": too many ranks have programs of their own to be verified";
  if (auto flaw = verify(*claimed, *request.topology)) return flaw;
  return verify_part(plan, *claimed);
}

}  // namespace ringcore::plan
