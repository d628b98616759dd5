// Watches: a rank wants to know when enough others have announced an operation, before it does so itself.
//
// Ranks agree on nothing here. What a rank has heard of is announced and stays so, and whoever announces the operation
// because of it only makes that more. So sums of those who are ready first need no decision of their own: whoever has
// something announces the sum, and the others announce it with zeros as soon as they have heard of enough.
#include <algorithm>
#include <utility>

#include "engine/state.hpp"

namespace ringcore::engine {

void Engine::check_watch(const ProcessSet& set, const Operation& watch) const {
  const auto members = static_cast<int>(set.peers.size());
  if (elastic_ != nullptr) {
    throw Error(ErrorKind::kInvalidArgument, title(watch) +
                                                 ": in an elastic job nobody waits until some have submitted it, as "
                                                 "they may be lost. Remedy: start a job that is not elastic.");
  }
  if (watch.watched_members < 1 || watch.watched_members > members) {
    throw Error(ErrorKind::kInvalidArgument,
                title(watch) + ": nobody can wait until " + std::to_string(watch.watched_members) + " of " +
                    std::to_string(members) + " ranks have submitted it. Remedy: ask for 1 to all of them.");
  }
}

// Where one fails it is nobody's fault: this rank has not asked for anything yet.
void Engine::start_watch(ProcessSet& set, const std::shared_ptr<Operation>& watch) {
  if (eager_.operation != nullptr) leave_eager();
  gave_up();  // this rank may submit something yet, although it announces nothing now
  watch->name_hash = watch->descriptor.name_hash();
  watch->submitted_at = clock_.now();
  if (watch->on_done) ++callbacks_;
  set.watches.push_back(watch);
  look_at_watches(set);
  if (set.tree == nullptr || set.watches.empty()) return;
  set.tree->want_open(true);  // else nobody hears of an announcement before all have made it
  settle_tree(set);
  if (set.tree != nullptr) send_along_tree(set);
}

// Before rounds are decided: what is released is not to be seen in the logs any more.
void Engine::look_at_watches(ProcessSet& set) {
  const auto is_over = [&](const std::shared_ptr<Operation>& watch) {
    return std::cmp_greater_equal(set.negotiation.present(watch->name_hash).size(), watch->watched_members);
  };
  const auto over =
      std::stable_partition(set.watches.begin(), set.watches.end(), [&](const auto& watch) { return !is_over(watch); });
  const std::vector<std::shared_ptr<Operation>> ended(over, set.watches.end());
  set.watches.erase(over, set.watches.end());
  for (const auto& watch : ended) complete(watch, nullptr);
}

void Engine::fail_watches(ProcessSet& set, const std::function<std::shared_ptr<const Error>(const Operation&)>& why) {
  // Whether a watch fails is asked while all of them are there.
  std::vector<std::pair<std::shared_ptr<Operation>, std::shared_ptr<const Error>>> failed;
  for (const auto& watch : set.watches) {
    if (auto error = why(*watch)) failed.emplace_back(watch, std::move(error));
  }
  for (const auto& [watch, error] : failed) {
    std::erase(set.watches, watch);
    fail_operation(watch, error);
  }
}

bool Engine::watches_anything() const {
  return std::ranges::any_of(sets_, [](const auto& item) { return !item.second->watches.empty(); });
}

}  // namespace ringcore::engine
