// Predicts how long a plan takes, so that the planner can choose one without trying.
#pragma once

#include <cstddef>

#include "plan/plan.hpp"

namespace ringcore::plan {

struct LinkCost {
  double latency_s = 0;
  double seconds_per_byte = 0;
  double message_s = 0;  // what sending a message, or taking it, costs the processor
};

// The defaults are those of a current server: shared memory inside a host, 10 Gbit/s Ethernet between hosts. All ranks
// use the same numbers, because they must choose the same plans. What a message costs was measured with
// `ringcore_benchmark messages` on a virtual machine of 2025 (Linux 6, AVX-512), both ends together: 0.2 us by shared
// memory, 5.6 us by TCP, most of it in the kernel.
struct CostModel {
  LinkCost in_host{.latency_s = 0.4e-6, .seconds_per_byte = 1 / 8e9, .message_s = 0.1e-6};
  LinkCost between_hosts{.latency_s = 25e-6, .seconds_per_byte = 1 / 1.2e9, .message_s = 2.8e-6};
  double step_s = 0.05e-6;                    // what any step costs the processor, besides
  double touch_seconds_per_byte = 1 / 30e9;   // of each operand of a local or one-sided reduction or copy
};

// Seconds until the last rank is done with `bytes` of data: an event simulation of the steps over full-duplex links;
// the ranks of a host share its port to the network.
double predict_seconds(const Plan& plan, const Topology& topology, std::size_t bytes, const CostModel& model);

}  // namespace ringcore::plan
