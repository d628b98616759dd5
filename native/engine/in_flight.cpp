// What becomes of operations that are under way when the members of an elastic job change.
//
// An operation is done when every member has its result, and not before. So what is done on one of those who go on has a
// result on all of them, and what some of them have no result of is done nowhere: they do it again, where its inputs are
// still what they were, and nobody's caller sees anything of it but whose result it is.
#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/elastic.hpp"

namespace ringcore::engine {
namespace {

// All of a group's tensors, or the only one.
template <typename Visit>
void for_each_tensor(Operation& operation, Visit visit) {
  if (operation.parts.empty()) return visit(operation);
  for (const auto& part : operation.parts) visit(*part);
}

std::size_t overwritten_bytes(Operation& operation) {
  std::size_t bytes = 0;
  for_each_tensor(operation, [&bytes](const Operation& one) { bytes += one.output == one.input ? one.bytes() : 0; });
  return bytes;
}

// Its parameters, or the places for its result, are those of certain ranks.
bool depends_on_ranks(const Operation& operation) {
  switch (operation.descriptor.collective) {
    case Collective::kBarrier:
    case Collective::kAllreduce: return false;
    case Collective::kAllgather: return gives_output(operation);
    case Collective::kBroadcast:
    case Collective::kReduce:
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kAlltoall:
    case Collective::kReduceScatter: return true;
  }
  __builtin_unreachable();
}

void begin_again(Operation& operation, Nanoseconds now) {
  const std::byte* kept = operation.kept.data();
  for_each_tensor(operation, [&](Operation& one) {
    if (!operation.kept.empty() && one.output == one.input) {
      std::memcpy(one.output, kept, one.bytes());
      kept += one.bytes();
    }
    one.result = {};
    one.result_rows.clear();
  });
  operation.state.store(OperationState::kSubmitted, std::memory_order_relaxed);
  operation.submitted_at = now;
  operation.released_at = operation.started_at = 0;
  operation.stall_reported = operation.cancel_sent = operation.carried_out = false;
  operation.carried_out_by.clear();
  operation.unfinished = operation.parts.size();
}

}  // namespace

void Engine::fail_on_change(bool fails) {
  if (elastic_ != nullptr) elastic_->caller_goes_back = fails;
}

void Engine::excuse(std::vector<Rank> ranks) {
  if (elastic_ != nullptr && change() == nullptr) elastic_->excused = std::move(ranks);
}

// Of what is submitted while the members change: it is announced when all know who they are. True if it waits for that.
bool Engine::hold_back(ProcessSet& set, const std::shared_ptr<Operation>& operation) {
  const bool of_ranks = operation->join || depends_on_ranks(*operation);
  if (elastic_->change != nullptr && (elastic_->has_failed || of_ranks)) {
    throw Error(ErrorKind::kMembershipChanged, title(*operation) + ": " + elastic_->change->what());
  }
  keep_input(*operation);
  for (Peer* peer : set.peers) {
    if (peer != nullptr && peer->left && !peer->turned_away) part_with(*peer, leaving(*peer).what, true);
  }
  const bool is_ending = set.end && set.end->kind == ErrorKind::kPeerLost;  // along a tree that comes before goodbyes
  if (is_ending) part_with(*membership_.peer(set.end->rank), set.end->what, true);
  operation->held_back = frozen();
  if (!operation->held_back) return false;
  operation->submitted_at = clock_.now();
  if (operation->on_done) ++callbacks_;
  if (operation->join) {
    set.join = operation;
  } else {
    set.operations.emplace(operation->name_hash, operation);
  }
  return true;
}

// What is small costs little to keep, and may be done again wherever its result goes.
void Engine::keep_input(Operation& operation) {
  if (operation.join || operation.descriptor.on_device || depends_on_ranks(operation)) return;
  const std::size_t bytes = overwritten_bytes(operation);
  if (bytes > settings_.eager_limit_bytes) return;
  operation.kept.reserve(bytes);
  for_each_tensor(operation, [&operation](const Operation& one) {
    if (one.output == one.input) operation.kept.insert(operation.kept.end(), one.input, one.input + one.bytes());
  });
}

// Whether those who go on can do it again, as far as this rank can tell.
bool Engine::can_repeat(Operation& operation) const {
  if (operation.in_use || depends_on_ranks(operation)) return false;
  if (operation.held_back) return true;  // nobody knows of it yet, and others may submit theirs in the next epoch
  if (operation.descriptor.on_device) return false;
  if (operation.kept.size() == overwritten_bytes(operation)) return true;
  // Its input is gone when it runs, and what others see they may have written to already.
  return operation.state.load(std::memory_order_relaxed) == OperationState::kSubmitted && !registered_at(operation);
}

// This rank has the result. True if somebody else may have none.
bool Engine::carry_out(ProcessSet& set, Operation& operation) {
  if (!goes_on_without_others() || operation.descriptor.on_device) return false;
  operation.carried_out = true;
  if (set.tree != nullptr) {
    set.tree->carry_out(operation.number);
    return true;
  }
  RecordHeader header{.bytes = sizeof(RecordHeader), .type = RecordType::kCarriedOut, .process_set = set.id};
  header.name_hash = operation.name_hash;
  for (Peer* peer : set.peers) {
    if (peer != nullptr) send(*peer, header, {});
  }
  return !all_have_results(set, operation);
}

bool Engine::all_have_results(const ProcessSet& set, const Operation& operation) {
  for (int member = 0; member < static_cast<int>(set.peers.size()); ++member) {
    const Peer* peer = set.peers[static_cast<std::size_t>(member)];
    if (peer == nullptr || peer->left) continue;  // whoever leaves is no member of any epoch that follows
    if (std::ranges::find(operation.carried_out_by, member) == operation.carried_out_by.end()) return false;
  }
  return true;
}

void Engine::receive_carried_out(Peer& peer, const RecordView& record) {
  const auto set = sets_.find(record.header.process_set);
  if (set == sets_.end() || set->second->peer_of(peer) == nullptr) return;
  const auto found = set->second->operations.find(record.header.name_hash);
  if (found == set->second->operations.end()) return;  // this rank has joined
  const std::shared_ptr<Operation> operation = found->second;
  operation->carried_out_by.push_back(set->second->member(peer.rank));
  if (operation->carried_out && all_have_results(*set->second, *operation)) end_operation(*set->second, operation);
}

// Somebody has left: results that only that rank was waited for with are everybody's.
void Engine::release_results() {
  for (auto& [id, set] : sets_) {
    std::vector<std::shared_ptr<Operation>> ended;
    for (const auto& [name_hash, operation] : set->operations) {
      if (operation->carried_out && all_have_results(*set, *operation)) ended.push_back(operation);
    }
    for (const auto& operation : ended) end_operation(*set, operation);
  }
}

// Along a tree, of which operations all have results now.
void Engine::end_carried_out(ProcessSet& set, const std::vector<std::uint64_t>& numbers) {
  if (numbers.empty()) return;
  std::vector<std::shared_ptr<Operation>> ended;
  for (const auto& [name_hash, operation] : set.operations) {
    if (operation->carried_out && std::ranges::find(numbers, operation->number) != numbers.end()) {
      ended.push_back(operation);
    }
  }
  std::ranges::sort(ended, {}, [](const auto& operation) { return operation->number; });
  for (const auto& operation : ended) end_operation(set, operation);
}

void Engine::end_operation(ProcessSet& set, const std::shared_ptr<Operation>& operation) {
  set.operations.erase(operation->name_hash);
  complete(operation, nullptr);
}

// Drops the runs, and says what is under way then.
UnderWay Engine::stand_still() {
  if (!std::exchange(elastic_->still, true)) {
    if (eager_.operation != nullptr) leave_eager();
    for (auto& [id, set] : sets_) {
      collect_done(*set);
      elastic_->lost_results = !set->schedule.forget_ended() || elastic_->lost_results;
      set->schedule.fail(false);
    }
  }
  UnderWay under_way{.repeats = !elastic_->caller_goes_back && !elastic_->lost_results};
  for (auto& [id, set] : sets_) {
    under_way.repeats = under_way.repeats && set->join == nullptr;
    under_way.released.emplace_back(id, set->released);
    for (const auto& [name_hash, operation] : set->operations) {
      under_way.repeats = under_way.repeats && can_repeat(*operation);
      const bool is_released = operation->state.load(std::memory_order_relaxed) != OperationState::kSubmitted;
      if (is_released && !operation->carried_out) under_way.unfinished.emplace_back(id, operation->number);
    }
  }
  std::ranges::sort(under_way.unfinished);
  under_way.counted = under_way.unfinished.size() <= kMaxUnderWay;
  under_way.repeats = under_way.repeats && under_way.counted;
  if (!under_way.counted) under_way.unfinished.clear();
  return under_way;
}

// Ends what all who go on have a result of, and takes what they are to do again, in the order in which it was submitted.
std::vector<std::shared_ptr<Operation>> Engine::take_repeated(const UnderWay& under_way) {
  std::vector<std::shared_ptr<Operation>> again;
  std::vector<std::shared_ptr<Operation>> ended;
  for (auto& [id, set] : sets_) {
    for (const auto& [name_hash, operation] : set->operations) {
      const bool has_result = operation->carried_out && under_way.is_finished({id, operation->number});
      if (has_result) {
        ended.push_back(operation);
      } else if (under_way.repeats && can_repeat(*operation)) {
        again.push_back(operation);
      }
    }
  }
  for (const auto& operation : ended) end_operation(*sets_.at(operation->process_set), operation);
  for (const auto& operation : again) sets_.at(operation->process_set)->operations.erase(operation->name_hash);
  std::ranges::stable_sort(again, {}, [](const auto& operation) { return operation->submitted_at; });
  return again;
}

// Announces them anew, in the world of this epoch.
void Engine::repeat(const std::vector<std::shared_ptr<Operation>>& operations) {
  for (const auto& operation : operations) {
    ProcessSet& set = *sets_.at(operation->process_set);
    begin_again(*operation, clock_.now());
    if (operation->descriptor.on_device) {
      set.schedule.admit(*operation);
      operation->signature = operation->descriptor.signature();
    }
    if (frozen()) {
      set.operations.emplace(operation->name_hash, operation);
    } else {
      operation->held_back = false;
      enter(set, operation, goes_eagerly(set, *operation));
    }
  }
  // Whoever waits for them has said so in the epoch before.
  for (const auto& operation : operations) {
    if (std::exchange(operation->waited_for, false)) wanted(*operation, false);
  }
}

}  // namespace ringcore::engine
