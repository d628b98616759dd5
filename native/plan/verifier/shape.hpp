// Whether a plan's programs are programs at all, before anybody runs them.
#pragma once

#include "plan/excerpt.hpp"
#include "plan/topology.hpp"

namespace ringcore::plan {

// Throws Flaw unless there is a program for each orbit, with indices in range, operands of the right number and one
// channel for each ordered pair of ranks.
void check_shape(const Excerpt& plan, const Topology& topology);

}  // namespace ringcore::plan
