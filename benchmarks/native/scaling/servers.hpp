// A parameter server's step as a plan, so that the cost model that predicts the ring predicts it too.
#pragma once

#include "plan/plan.hpp"

namespace ringcore::benchmarks {

// Every rank on a host of its own.
plan::Topology separate_hosts(int ranks);

// Ranks 0 .. workers - 1 train, the `servers` ranks behind them serve. The data are `tensors` equal tensors, each
// divided evenly among the servers. Workers push all of them at once; a server answers a tensor when it has every
// worker's. Nobody verifies this plan: a server has no data of its own, which is no collective.
plan::Plan server_plan(int workers, int servers, int tensors);

}  // namespace ringcore::benchmarks
