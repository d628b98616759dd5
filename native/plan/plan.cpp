#include "plan/plan.hpp"

#include <algorithm>
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

bool Plan::sums_at_once() const {
  const auto sums_or_meets = [](const Step& step) {
    if (step.kind != StepKind::kReduce) return step.kind == StepKind::kSignal || step.kind == StepKind::kWait;
    return step.final &&
           std::ranges::all_of(step.sources, [](const ChunkRef& from) { return from.buffer == Buffer::kData; });
  };
  return std::ranges::all_of(program.channels,
                             [&](const Channel& channel) { return std::ranges::all_of(channel, sums_or_meets); });
}

}  // namespace ringcore::plan
