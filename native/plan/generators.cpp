#include "plan/generators.hpp"

namespace ringcore::plan {

const std::vector<const Generator*>& generators() {
  static const std::vector<const Generator*> all = {
      &flat(), &ring(), &direct(), &recursive_doubling(), &halving_doubling(), &binomial_tree(), &hierarchical(),
  };
  return all;
}

bool Topology::single_host() const {
  for (const int host : host_of) {
    if (host != host_of.front()) return false;
  }
  return true;
}

}  // namespace ringcore::plan
