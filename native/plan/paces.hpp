// What all ranks have seen of their links, in a table that they fill together, and the model's links that follow from it.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "plan/topology.hpp"

namespace ringcore::plan {

// What a rank's links to other hosts have shown of its host's port.
struct PortPace {
  double bytes_per_s = 0;  // the quickest one's; 0: not known
  double latency_s = 0;  // the least; 0: not known
  bool sure = false;  // links to several hosts have shown it. Else it may be the other end that is slow.
  double mean_bytes_per_s = 0;  // the quickest one's, over a second of sending, whether or not there was enough to send
};

// Numbers of the table. A rank writes its own; the others' are 0 until the largest of all ranks stand there.
std::size_t paces_size(int ranks);
void write_pace(std::span<double> table, Rank self, const PortPace& pace);

// The topology's links, which nobody has told, as far as the table knows better. The ranks of a host share its port: what they send between
// hosts is added up. Ports count as different from each other where one is less than half as quick as is usual.
Links corrected(const Topology& topology, std::span<const double> table);

struct SlowHost {
  int host = 0;
  double bytes_per_s = 0;
  double usual = 0;  // of all hosts
};
// Those whose ports are less than a third as quick as is usual, without a doubt, and a sentence about one of them: the
// latest measurements say so, which on a loaded machine may be all off, and the means, which depend on what is sent.
std::vector<SlowHost> slow_hosts(const Topology& topology, std::span<const double> table);
std::string describe(const SlowHost& slow, const Topology& topology);

// Of what is known; 0 where nothing is.
double median(std::vector<double> numbers);

// Whether somebody knows how quick a link is.
bool knows_rates(std::span<const double> table);

}  // namespace ringcore::plan
