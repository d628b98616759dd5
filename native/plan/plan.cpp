#include "plan/plan.hpp"

#include <set>

namespace ringcore::plan {

std::vector<Rank> Plan::neighbours() const {
  std::set<Rank> found;
  for (const Channel& channel : program.channels) {
    for (const Step& step : channel) {
      if (step.peer >= 0) found.insert(step.peer);
    }
  }
  return {found.begin(), found.end()};
}

}  // namespace ringcore::plan
