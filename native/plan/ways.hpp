// The ways of an uneven network: which cables lie between two hosts.
#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "plan/topology.hpp"

namespace ringcore::plan {

class Ways {
 public:
  // The topology outlives it.
  explicit Ways(const Topology& topology);

  // Indices of cables, of the way of the fewest through switches, or where there is none also through hosts; none where
  // there is no way.
  const std::vector<std::size_t>& between(int from, int to);

 private:
  // `passable`: only places from this number on pass on what comes.
  std::vector<std::size_t> search(int from, int to, int passable) const;

  const std::vector<Cable>& cables_;
  int hosts_;
  int places_ = 0;
  std::map<std::pair<int, int>, std::vector<std::size_t>> known_;
};

}  // namespace ringcore::plan
