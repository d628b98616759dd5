// What must hold of an elastic job when it is over.
#include <string>

#include "elastic_job.hpp"

namespace ringcore::simulation {

// Of the members of that epoch, as the rank knows them.
std::int64_t ElasticJob::expected(const RankState& rank, std::int64_t step) const {
  std::int64_t sum = 0;
  for (const engine::Place place : rank.engine->members_of(rank.epoch_of[static_cast<std::size_t>(step)]))
    sum += contribution(place, step);
  return sum;
}

std::string ElasticJob::check() const {
  for (const auto& [epoch, devices] : devices_) {
    if (!devices->flaw().empty()) return "epoch " + std::to_string(epoch) + ": " + devices->flaw();
  }
  for (const RankState& rank : ranks_) {
    const std::string who = "rank at place " + std::to_string(rank.place) + ": ";
    if (!rank.flaw.empty()) return who + rank.flaw;
    if (rank.engine != nullptr && rank.engine->waited_for_others() > network_.clock().now() - began_)
      return who + "it has waited for longer than the job has run";
    const auto failure = rank.engine == nullptr ? nullptr : rank.engine->failure();
    if (failure != nullptr && failure->kind() == ErrorKind::kProtocol) return who + failure->what();
    if (!rank.has_left) continue;
    if (rank.gave_up && !rank.plans_only) return who + "it has given up the switch, and goes on at it";
    for (const RankState& other : ranks_) {
      if (!other.has_left || other.end < kSteps || rank.end < kSteps) continue;
      for (const auto& [epoch, ended] : rank.ended) {
        const engine::Places& members = rank.engine->members_of(epoch);
        const auto found = other.ended.find(epoch);
        const bool is_alike = found != other.ended.end() && found->second == ended;
        if (is_alike || !engine::contains(members, rank.place) || !engine::contains(members, other.place)) continue;
        return who + "what it has ended in epoch " + std::to_string(epoch) + " has not at place " +
               std::to_string(other.place);
      }
    }
    const auto due = static_cast<int>(rank.end - rank.first);
    const bool repeats = !options_.in_place && !options_.goes_back && !options_.on_device;
    if (repeats && (rank.changes > 0 || rank.steps != due)) return who + "it has lost a step, or done one twice";
    for (std::int64_t step = rank.first; step < rank.end; ++step) {
      const auto index = static_cast<std::size_t>(step);
      for (std::size_t tensor = 0; tensor < kTensors; ++tensor) {
        if (rank.sums[index][tensor] == expected(rank, step)) continue;
        return who + "gradient " + std::to_string(tensor) + " of step " + std::to_string(step) +
               " is not the sum of the members of its epoch";
      }
      const std::uint32_t epoch = rank.epoch_of[index];
      for (const RankState& other : ranks_) {
        if (other.engine == nullptr) continue;
        const bool is_alike = other.sums[index] == rank.sums[index] && other.epoch_of[index] == epoch &&
                              other.compressed[index] == rank.compressed[index] &&
                              other.engine->members_of(epoch) == rank.engine->members_of(epoch);
        if (!other.has_left || other.first > step || other.end <= step || is_alike) continue;
        return who + "step " + std::to_string(step) + " differs from that at place " + std::to_string(other.place);
      }
    }
  }
  return "";
}

}  // namespace ringcore::simulation
