#include "plan/ways.hpp"

#include <algorithm>
#include <deque>

namespace ringcore::plan {

Ways::Ways(const Topology& topology) : cables_(topology.links.cables), hosts_(topology.hosts()) {
  for (const Cable& cable : cables_) places_ = std::max({places_, cable.from + 1, cable.to + 1});
}

const std::vector<std::size_t>& Ways::between(int from, int to) {
  const auto [found, fresh] = known_.try_emplace({from, to});
  if (fresh) found->second = search(from, to, hosts_);
  if (fresh && found->second.empty()) found->second = search(from, to, 0);
  return found->second;
}

std::vector<std::size_t> Ways::search(int from, int to, int passable) const {
  std::vector<std::ptrdiff_t> reached_by(static_cast<std::size_t>(std::max({places_, from + 1, to + 1})), -1);
  std::deque<int> next = {from};
  while (!next.empty() && reached_by[to] < 0) {
    const int at = next.front();
    next.pop_front();
    if (at != from && at < passable) continue;
    for (std::size_t i = 0; i < cables_.size(); ++i) {
      if (cables_[i].from != at || cables_[i].to == from || reached_by[cables_[i].to] >= 0) continue;
      reached_by[cables_[i].to] = static_cast<std::ptrdiff_t>(i);
      next.push_back(cables_[i].to);
    }
  }
  std::vector<std::size_t> way;
  for (int at = to; at != from && reached_by[at] >= 0; at = cables_[way.back()].from) {
    way.push_back(static_cast<std::size_t>(reached_by[at]));
  }
  return way;
}

}  // namespace ringcore::plan
