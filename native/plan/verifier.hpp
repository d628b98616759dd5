// Proves of a plan that it computes its collective, before it first runs.
#pragma once

#include <optional>
#include <string>

#include "plan/plan.hpp"

namespace ringcore::plan {

// Runs all ranks symbolically. Nothing when the plan is right: every output chunk holds each rank's contribution exactly
// once, `final` and `accumulates_once` say the truth, nothing deadlocks (even when no byte is buffered between ranks),
// no two ranks touch the same memory unordered (a transfer touches its chunk until it is received), no rank ends while
// its memory is still in use, and nothing sent is left over. Otherwise a sentence that says where it goes wrong.
std::optional<std::string> verify(const Plan& plan, const Topology& topology);

}  // namespace ringcore::plan
