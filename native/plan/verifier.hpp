// Proves of a plan that it computes its collective, before it first runs.
//
// A rank has its own program only. It proves the plan in which every rank does what the representative of its orbit does,
// turned (symmetry.hpp), and then that its own program is just that. When all ranks have done so, the plan is right. A
// plan whose generator claims no symmetry has orbits of one rank, and all programs are looked at; of segments that repeat
// for each part, one part.
#pragma once

#include <optional>
#include <string>

#include "plan/excerpt.hpp"
#include "plan/plan.hpp"
#include "plan/topology.hpp"

namespace ringcore::plan {

// Runs the representatives symbolically, all ranks at the same pace. Nothing when the plan is right: every output chunk
// holds each rank's contribution exactly once, `final` and `accumulates_once` say the truth, nothing deadlocks (even when
// no byte is buffered between ranks), no two ranks touch the same memory unordered (a transfer touches its chunk until it
// is received), no rank ends while its memory is still in use, and nothing sent is left over. Otherwise a sentence that
// says where it goes wrong.
std::optional<std::string> verify(const Excerpt& excerpt, const Topology& topology);

// Nothing when `plan` is what the excerpt says of its rank; that of all parts when the excerpt has segments of one.
std::optional<std::string> verify_part(const Plan& plan, const Excerpt& excerpt);

// The request of the excerpt that proves the plan of `request`: of one part when the program has segments.
PlanRequest request_of_proof(const Plan& plan, const PlanRequest& request);

// Both, for a plan of this generator.
std::optional<std::string> verify(const Plan& plan, const Generator& generator, const PlanRequest& request);

}  // namespace ringcore::plan
