// All threads of this rank wait: what it tells the others of that, and what follows when they all do.
#include <algorithm>
#include <utility>

#include "engine/state.hpp"

namespace ringcore::engine {
namespace {

std::uint64_t key_of(ProcessSetId id, const std::vector<Rank>& members) {
  return hash_bytes({reinterpret_cast<const char*>(members.data()), members.size() * sizeof(Rank)}, id);
}

}  // namespace

void Engine::all_wait(std::span<const Operation* const> operations) {
  standstill_.now = !operations.empty();
  if (!standstill_.now || std::ranges::equal(operations, standstill_.waits)) return;
  standstill_.waits.assign(operations.begin(), operations.end());
  standstill_.since = clock_.now();
}

std::vector<const Operation*> Engine::with_callbacks() const {
  std::vector<const Operation*> operations;
  for (const auto& [id, set] : sets_) {
    for (const auto& [name_hash, operation] : set->operations) {
      if (operation->on_done) operations.push_back(operation.get());
    }
  }
  return operations;
}

void Engine::gave_up() {
  standstill_.now = false;
  if (standstill_.said.empty() || failure_ != nullptr || left_) return;
  standstill_.said.clear();
  append_own(*sets_.at(kWorld), {.type = RecordType::kStandstill, .flags = kFill});
}

// Whether the operation waits for a rank that has yet to announce it, and for nothing that is under way.
bool Engine::is_stuck(const Operation& operation) {
  const auto found = sets_.find(operation.process_set);
  const bool waits = operation.state.load(std::memory_order_relaxed) == OperationState::kSubmitted;
  if (operation.join || operation.cancel_sent || !waits || found == sets_.end()) return false;
  ProcessSet& set = *found->second;
  if (set.end || set.removed_by || set.joining()) return false;
  if (!set.negotiation.settled()) {
    if (set.filled_for != set.negotiation.longest() + 1) align(set);
    return false;
  }
  return !set.negotiation.missing(operation.name_hash).empty();
}

void Engine::check_standstill(Nanoseconds now) {
  if (size() == 1 || serves() || left_ || now - standstill_.since < settings_.standstill) return;
  if (eager_.operation != nullptr) leave_eager();
  ProcessSet& world = *sets_.at(kWorld);
  if (world.end || world.joining() || world.negotiation.joined(world.self)) return;
  if (watches_anything()) return;  // whoever waits for what others announce may submit something then
  for (const Operation* operation : standstill_.waits) {
    if (!is_stuck(*operation)) return;
  }
  // Whoever is told of an end may submit something then: that is waited for as well.
  for (const auto& [id, set] : sets_) {
    for (const auto& [name_hash, operation] : set->operations) {
      if (operation->on_done && !is_stuck(*operation)) return;
    }
  }
  std::vector<std::byte> said = encode(make_standstill());
  if (said == standstill_.said) return find_deadlock();  // others may have left since
  if (said.size() > kMaxPayloadBytes / 2) return;
  standstill_.said = std::move(said);
  append_own(world, {.type = RecordType::kStandstill, .flags = kFill}, standstill_.said);
}

Standstill Engine::make_standstill() const {
  Standstill standstill;
  for (const auto& [id, set] : sets_) {
    const std::vector<Rank>& members = set->negotiation.members();
    standstill.sets.push_back({key_of(id, members), members.size(), set->negotiation.seen()});
  }
  for (const Operation* operation : standstill_.waits) {
    const ProcessSet& set = *sets_.at(operation->process_set);
    const std::string where = set.id == kWorld ? "" : " of process set " + std::to_string(set.id);
    standstill.waits.push_back({.key = key_of(set.id, set.negotiation.members()),
                                .barrier = operation->descriptor.collective == Collective::kBarrier,
                                .text = title(*operation) + where + " (" +
                                        list_ranks(set.negotiation.missing(operation->name_hash)) +
                                        " did not submit it)"});
  }
  return standstill;
}

void Engine::note_standstill(const ProcessSet& world, const Decision& decision) {
  const Rank speaker = world.negotiation.members()[static_cast<std::size_t>(decision.member)];
  std::optional<Standstill> said;
  if (!decision.payload.empty()) said = decode_standstill(decision.payload);
  standstill_.all.note(speaker, std::move(said));
  find_deadlock();
}

// All ranks come to the same conclusion at the same place of the log; where others have left, each one when it knows.
void Engine::find_deadlock() {
  const ProcessSet& world = *sets_.at(kWorld);
  std::vector<bool> absent;
  for (const Rank rank : world.negotiation.members()) {
    const Peer* peer = membership_.peer(rank);
    absent.push_back(world.negotiation.joined(world.member(rank)) || (peer != nullptr && peer->left));
  }
  if (!standstill_.all.deadlock(absent, key_of(kWorld, world.negotiation.members()))) return;
  const std::string error = std::string(kEveryRankWaits) + standstill_.all.describe() +
                            ". Remedy: make all ranks submit the same operations, and wait for them in the same order.";
  // A barrier is where ranks meet again that have lost each other: see Negotiation::detect_deadlock.
  const bool only_barriers = standstill_.all.only_barriers();
  standstill_.all.forget();
  standstill_.said.clear();
  for (auto& [id, set] : sets_) {
    for (const auto& [name_hash, operation] : set->operations) {
      const bool waits = std::ranges::find(standstill_.waits, operation.get()) != standstill_.waits.end();
      const bool barrier = operation->descriptor.collective == Collective::kBarrier;
      if (waits && !operation->cancel_sent && (only_barriers || !barrier)) cancel(*set, *operation, kBlocked, error);
    }
  }
}

}  // namespace ringcore::engine
