// Whether the links of a network that was told carry what they were told to. Plans stay as they are; it is only said.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "plan/topology.hpp"
#include "transport/pace.hpp"

namespace ringcore::plan {

// Numbers of the table that all ranks fill together: two for each pair. A rank writes those of its own links; the others'
// are 0 until the largest of all ranks stand there. 0: the ranks are too many for a table of pairs.
std::size_t told_links_size(int ranks);
// What has changed since `before`, by rank: what a link has shown long ago says nothing of the network of now.
void write_links(std::span<double> table, Rank self, std::span<const transport::Pace> links,
                 std::span<const transport::Pace> before);

// A pair of ranks on two hosts whose link has shown how quick it is.
struct ToldLink {
  Rank from = 0;
  Rank to = 0;
  double bytes_per_s = 0;
  double told = 0;  // of the narrowest place on the way
  // It is less than half of that, and no place on the way carries half of what it was told to, all links through it
  // together: so it is not for sharing. And the mean of a second of sending is less than half of what is usual in the
  // job, beside what was told: where processors are busy measurements are off, on all links alike.
  bool slow = false;
};
std::vector<ToldLink> judge_links(const Topology& topology, std::span<const double> table);
// A sentence about those that are slow.
std::string describe(std::span<const ToldLink> slow);

}  // namespace ringcore::plan
