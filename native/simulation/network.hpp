// A job that is not there: how many ranks on how many hosts, and what lies between them.
#pragma once

#include "base/types.hpp"
#include "plan/simulation.hpp"
#include "plan/topology.hpp"

namespace ringcore::simulation {

struct Network {
  plan::Topology topology;
  plan::CostModel model;
  plan::Disturbance disturbance;

  // `ranks` on `hosts`, the first hosts having one more where they cannot all have as many. Throws
  // Error{kInvalidArgument}.
  static Network of(int ranks, int hosts, const plan::Links& links);
};

}  // namespace ringcore::simulation
