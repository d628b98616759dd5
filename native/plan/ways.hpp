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
  // The cables outlive it.
  explicit Ways(const std::vector<Cable>& cables);

  // Indices of cables, of the way of the fewest; none where there is no way.
  const std::vector<std::size_t>& between(int from, int to);

 private:
  std::vector<std::size_t> search(int from, int to) const;

  const std::vector<Cable>& cables_;
  int places_ = 0;
  std::map<std::pair<int, int>, std::vector<std::size_t>> known_;
};

}  // namespace ringcore::plan
