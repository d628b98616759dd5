// Predicts how long a plan takes, so that the planner can choose one without trying.
#pragma once

#include <cstddef>

#include "plan/excerpt.hpp"
#include "plan/plan.hpp"
#include "plan/simulation.hpp"
#include "plan/topology.hpp"

namespace ringcore::plan {

// Seconds until the last rank is done, with chunks of so many bytes: a simulation of the representatives, as far as the
// network is even. The excerpt's symmetry moves whole hosts.
double predict_seconds(const Excerpt& excerpt, const Topology& topology, double chunk_bytes, const CostModel& model);

// No plan in which a rank has this program takes less: what its host's port and its processor have to do.
double least_seconds(const Plan& plan, const Topology& topology, double chunk_bytes);

// The turns of `symmetry` that move whole hosts. Not `crowded`: no two ranks of an orbit share one, so that what the ranks
// of a host do to each other is simulated, rank by rank. Where there are none, no turns.
Symmetry symmetry_of_hosts(const Symmetry& symmetry, const Topology& topology, bool crowded);

}  // namespace ringcore::plan
