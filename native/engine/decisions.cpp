// What the rounds of the logs decide.
#include <algorithm>
#include <string>
#include <utility>

#include "engine/negotiation.hpp"

namespace ringcore::engine {
namespace {

// Whether nothing can be wrong with it where all members say the same. `summed`: with what they put in, which is there.
bool is_right_if_alike(const Entry& entry, bool summed, std::size_t members) {
  const Descriptor& descriptor = *entry.descriptor;
  if (has_root(descriptor.collective)) {
    return summed && descriptor.root >= 0 && descriptor.root < static_cast<int>(members);
  }
  if (!descriptor.has_free_rows()) return true;
  const bool fits = (entry.flags & kHasOutput) == 0 || entry.splits.back() == entry.rows * members;
  return summed && fits;
}

std::shared_ptr<const Error> make_error(ErrorKind kind, const std::string& message) {
  return std::make_shared<const Error>(kind, message);
}

// What an entry says about its operation; its data moves along.
Contribution contribution_of(Entry& entry) {
  return {.present = true,
          .flags = entry.flags,
          .signature = entry.signature,
          .rows = entry.rows,
          .location = entry.location,
          .splits = std::move(entry.splits),
          .payload = std::move(entry.payload),
          .descriptor = entry.descriptor};
}

}  // namespace

bool Negotiation::round_complete() const {
  bool any = false;
  for (std::size_t m = 0; m < logs_.size(); ++m) {
    if (joined_[m]) continue;  // what it has announced since counts from the end of the join
    if (!left_[m] && logs_[m].entries.empty()) return false;
    any = any || !logs_[m].entries.empty();
  }
  return any;
}

void Negotiation::decide(std::vector<Decision>& decisions) {
  while (decide_together(decisions)) {
  }
  while (!is_together() && round_complete()) {
    // What a member that has joined announces already belongs to the time after the join.
    const std::vector<bool> sits_out = joined_;
    if (!decide_uniform_round(decisions)) decide_round(decisions);
    ++round_;
    for (std::size_t m = 0; m < logs_.size(); ++m) {
      if (!sits_out[m] && !logs_[m].entries.empty()) logs_[m].entries.pop_front();
      if (sits_out[m]) ++sat_out_[m];
      logs_[m].first = round_;
    }
    if (joined_count_ == static_cast<int>(logs_.size())) {
      Decision close;  // nobody may have waited for what was submitted before
      close.kind = Decision::Kind::kFlush;
      decisions.push_back(std::move(close));
      Decision decision;
      decision.kind = Decision::Kind::kJoined;
      decision.last_joined = last_joined_;
      decisions.push_back(std::move(decision));
      std::fill(joined_.begin(), joined_.end(), false);
      joined_count_ = 0;
    }
  }
}

// The next round, of which only what all members said alike is written down. False when there is none: when not all have
// come so far, or when what they say concerns more than one round.
bool Negotiation::decide_together(std::vector<Decision>& decisions) {
  if (!is_together() || (alike_ == 0 && members_.size() > 1) || own_.entries.empty()) return false;
  const Entry& next = own_.entries.front();
  if (next.type != RecordType::kOperation && next.type != RecordType::kNoop) return spread(), false;
  const bool flush = (next.flags & kFlush) != 0;
  blocked_alike_ = (next.flags & kBlocked) != 0 ? next.name_hash : 0;
  if (next.type == RecordType::kOperation) release_together(std::move(own_.entries.front()), decisions);
  own_.entries.pop_front();
  alike_ -= std::min<std::size_t>(alike_, 1);
  ++round_;
  if (flush) {
    Decision close;
    close.kind = Decision::Kind::kFlush;
    decisions.push_back(std::move(close));
  }
  return true;
}

void Negotiation::release_together(Entry entry, std::vector<Decision>& decisions) {
  if (!is_right_if_alike(entry, entry.sum != nullptr, members_.size())) {
    Pending pending{.order = next_order_++, .priority = entry.priority, .descriptor = entry.descriptor};
    pending.contributions.assign(members_.size(), contribution_of(entry));
    return finish(entry.name_hash, std::move(pending), decisions);
  }
  Decision decision;
  decision.kind = Decision::Kind::kRelease;
  decision.release.descriptor = entry.descriptor;
  decision.release.name_hash = entry.name_hash;
  decision.release.priority = entry.priority;
  decision.release.alike = contribution_of(entry);
  decision.release.sum = std::move(entry.sum);
  decisions.push_back(std::move(decision));
}

// The steady state: every rank announced the same operation at this position, and it is not known from earlier.
bool Negotiation::decide_uniform_round(std::vector<Decision>& decisions) {
  if (joined_count_ > 0) return false;
  if (std::any_of(logs_.begin(), logs_.end(), [](const Log& log) { return log.entries.empty(); })) return false;
  const Entry& first = logs_[0].entries.front();
  if (first.type != RecordType::kOperation || (!pending_.empty() && pending_.count(first.name_hash) > 0)) {
    return false;
  }
  bool summed = true;
  for (const Log& log : logs_) {
    const Entry& entry = log.entries.front();
    if (entry.type != RecordType::kOperation || entry.signature != first.signature) return false;
    summed = summed && entry.sum == first.sum;
  }
  if (!is_right_if_alike(first, summed && first.sum != nullptr, logs_.size())) return false;
  Decision decision;
  decision.kind = Decision::Kind::kRelease;
  Release& release = decision.release;
  release.descriptor = first.descriptor;
  release.name_hash = first.name_hash;
  release.priority = first.priority;
  if (summed) release.sum = first.sum;
  release.contributions.resize(logs_.size());
  bool flush = false;
  for (std::size_t m = 0; m < logs_.size(); ++m) {
    Entry& entry = logs_[m].entries.front();
    release.contributions[m] = contribution_of(entry);
    flush = flush || (entry.flags & kFlush) != 0;
    blocked_on_[m] = 0;
  }
  let_go(release.contributions);
  decisions.push_back(std::move(decision));
  if (flush) {
    Decision close;
    close.kind = Decision::Kind::kFlush;
    decisions.push_back(std::move(close));
  }
  return true;
}

void Negotiation::decide_round(std::vector<Decision>& decisions) {
  const std::size_t before = decisions.size();
  bool flush = false;
  bool join = false;
  touched_.clear();
  for (std::size_t m = 0; m < logs_.size(); ++m) {
    if (joined_[m] || logs_[m].entries.empty()) continue;
    Entry& entry = logs_[m].entries.front();
    flush = flush || (entry.flags & kFlush) != 0;
    if (entry.type == RecordType::kStandstill) {
      Decision standstill;
      standstill.kind = Decision::Kind::kStandstill;
      standstill.member = static_cast<int>(m);
      standstill.payload = std::move(entry.payload);
      decisions.push_back(std::move(standstill));
      continue;  // and waits for what it has said before that it waits for
    }
    if (entry.type == RecordType::kOffer) {
      Decision offer;
      offer.kind = Decision::Kind::kOffer;
      offer.payload = std::move(entry.payload);
      offer.to_come = entry.rows;
      decisions.push_back(std::move(offer));
    }
    blocked_on_[m] = (entry.flags & kBlocked) != 0 ? entry.name_hash : 0;
    if (entry.type == RecordType::kNoop && (entry.flags & kFlush) != 0) want(static_cast<int>(m), entry.name_hash);
    if (entry.type == RecordType::kOperation) {
      announce(static_cast<int>(m), entry);
    } else if (entry.type == RecordType::kRefused) {
      refuse(static_cast<int>(m), entry);
    } else if (entry.type == RecordType::kCancel) {
      cancel(static_cast<int>(m), entry, decisions);
    } else if (entry.type == RecordType::kJoin) {
      join = true;
      joined_[m] = true;
      sat_out_.resize(members_.size());
      sat_out_[m] = 0;
      ++joined_count_;
      last_joined_ = static_cast<int>(m);
    }
  }
  if (join) {  // may complete anything
    for (const auto& [name_hash, instances] : pending_) touched_.emplace_back(instances.front().order, name_hash);
  }
  std::sort(touched_.begin(), touched_.end());
  touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
  for (const auto& [order, name_hash] : touched_) settle(name_hash, decisions);
  detect_deadlock(decisions);
  // Somebody waits, or has waited before for something that is complete only now. What a join completes was announced long
  // before, and whoever waits for it may have said so when it was in no bucket.
  flush = std::any_of(decisions.begin() + static_cast<std::ptrdiff_t>(before), decisions.end(),
                      [join](const Decision& d) {
                        return d.kind == Decision::Kind::kRelease && (join || d.release.any_has(kFlush));
                      }) ||
          flush;
  if (flush) {
    Decision close;
    close.kind = Decision::Kind::kFlush;
    decisions.push_back(std::move(close));
  }
}

// The member waits for what it has announced under this name.
void Negotiation::want(int member, std::uint64_t name_hash) {
  const auto found = pending_.find(name_hash);
  if (found == pending_.end()) return;
  for (Pending& pending : found->second) {
    if (pending.contributions[member].present) pending.contributions[member].flags |= kFlush;
  }
}

// The first use of the name that the member has said nothing about.
Negotiation::Pending& Negotiation::next_use(int member, const Entry& entry) {
  std::deque<Pending>& instances = pending_[entry.name_hash];
  auto instance = std::find_if(instances.begin(), instances.end(),
                               [member](const Pending& p) { return !p.contributions[member].present; });
  if (instance == instances.end()) {
    instances.emplace_back();
    instance = std::prev(instances.end());
    instance->order = next_order_++;
    instance->priority = entry.priority;
    instance->contributions.resize(members_.size());
    instance->descriptor = entry.descriptor;
  }
  touched_.emplace_back(instances.front().order, entry.name_hash);
  return *instance;
}

void Negotiation::announce(int member, Entry& entry) {
  next_use(member, entry).contributions[member] = contribution_of(entry);
}

// Counts as the member's part, so that all ranks mean the same use by the next announcement, and fails it.
void Negotiation::refuse(int member, const Entry& entry) {
  Pending& pending = next_use(member, entry);
  pending.contributions[member].present = true;
  if (member == self_) pending.told_self = true;
  if (!pending.error) pending.error = make_error(ErrorKind::kMismatch, entry.text());
}

// The use of the name that the member waits in: not one that has failed and that others have not met yet.
const Negotiation::Pending* Negotiation::alive(std::uint64_t name_hash, int member) const {
  const auto found = pending_.find(name_hash);
  if (found == pending_.end()) return nullptr;
  for (const Pending& pending : found->second) {
    if (!pending.error && pending.contributions[member].present) return &pending;
  }
  return nullptr;
}

Negotiation::Pending* Negotiation::alive(std::uint64_t name_hash, int member) {
  return const_cast<Pending*>(std::as_const(*this).alive(name_hash, member));
}

void Negotiation::cancel(int member, const Entry& entry, std::vector<Decision>& decisions) {
  Pending* pending = alive(entry.name_hash, member);
  if (pending == nullptr) return;
  const bool deadlock = (entry.flags & kBlocked) != 0;
  const auto error = make_error(deadlock ? ErrorKind::kDeadlock : ErrorKind::kTimeout, entry.text());
  fail(*pending, entry.name_hash, error, decisions);
  if (deadlock) forget(entry.name_hash, pending->order);
}

// What has become of the operation in this round: impossible, complete, or neither?
void Negotiation::settle(std::uint64_t name_hash, std::vector<Decision>& decisions) {
  for (auto found = pending_.find(name_hash); found != pending_.end(); found = pending_.find(name_hash)) {
    Pending& pending = found->second.front();
    if (!pending.error) pending.error = find_mismatch(pending);
    // A failed instance tells each rank once, in the round in which that rank announces it.
    if (pending.error) fail(pending, name_hash, pending.error, decisions);
    for (std::size_t m = 0; m < members_.size(); ++m) {
      if (!pending.contributions[m].present && !joined_[m]) return;
    }
    Pending complete = std::move(pending);
    found->second.pop_front();
    if (found->second.empty()) pending_.erase(found);
    finish(name_hash, std::move(complete), decisions);
  }
}

void Negotiation::finish(std::uint64_t name_hash, Pending pending, std::vector<Decision>& decisions) {
  if (!pending.error) {
    if (auto error = check_complete(pending)) fail(pending, name_hash, std::move(error), decisions);
  }
  if (pending.error) return;
  let_go(pending.contributions);
  Decision decision;
  decision.kind = Decision::Kind::kRelease;
  decision.release.descriptor = pending.descriptor;
  decision.release.name_hash = name_hash;
  decision.release.priority = pending.priority;
  decision.release.contributions = std::move(pending.contributions);
  decisions.push_back(std::move(decision));
}

bool Negotiation::is_barrier(const Pending& pending, std::size_t member) {
  return pending.contributions[member].descriptor->collective == Collective::kBarrier;
}

void Negotiation::detect_deadlock(std::vector<Decision>& decisions) {
  bool anyone = false;
  bool only_barriers = true;
  std::string cycle;
  for (std::size_t m = 0; m < members_.size(); ++m) {
    if (joined_[m]) continue;
    const Pending* pending = blocked_on_[m] == 0 ? nullptr : alive(blocked_on_[m], static_cast<int>(m));
    if (pending == nullptr) return;
    anyone = true;
    only_barriers = only_barriers && is_barrier(*pending, m);
    cycle += (cycle.empty() ? "rank " : ", rank ") + std::to_string(members_[m]) + " in " +
             title(*pending->contributions[m].descriptor);
  }
  if (!anyone) return;
  const auto error = make_error(ErrorKind::kDeadlock,
                                std::string(kEveryRankWaits) + cycle +
                                    ". Remedy: call blocking operations in the same order on all ranks, or submit them "
                                    "with the _async forms and synchronize afterwards.");
  std::vector<std::pair<std::uint64_t, std::uint64_t>> stuck;
  for (std::size_t m = 0; m < members_.size(); ++m) {
    const Pending* pending = blocked_on_[m] == 0 ? nullptr : alive(blocked_on_[m], static_cast<int>(m));
    if (pending == nullptr) continue;
    // A barrier is where ranks meet again that have lost each other: whoever waits there is right to, when the others
    // are told, and come there too.
    if (is_barrier(*pending, m) && !only_barriers) continue;
    stuck.emplace_back(pending->order, blocked_on_[m]);
    blocked_on_[m] = 0;
  }
  std::sort(stuck.begin(), stuck.end());
  stuck.erase(std::unique(stuck.begin(), stuck.end()), stuck.end());
  for (const auto& [order, name_hash] : stuck) {
    std::deque<Pending>& instances = pending_.at(name_hash);
    const auto instance = std::find_if(instances.begin(), instances.end(),
                                       [order = order](const Pending& pending) { return pending.order == order; });
    fail(*instance, name_hash, error, decisions);
    forget(name_hash, order);
  }
}

// Nobody else will announce it in this instance: every rank was blocked, and is told now.
void Negotiation::forget(std::uint64_t name_hash, std::uint64_t order) {
  const auto found = pending_.find(name_hash);
  std::erase_if(found->second, [order](const Pending& pending) { return pending.order == order; });
  if (found->second.empty()) pending_.erase(found);
}

}  // namespace ringcore::engine
