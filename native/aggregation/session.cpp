// Who takes part; aggregation.cpp has what they contribute.
#include "aggregation/session.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

namespace ringcore::aggregation {

Session::Member* Session::find(MemberId id) {
  const auto found = std::ranges::find(members_, id, &Member::id);
  return found == members_.end() || !found->present ? nullptr : &*found;
}

std::uint64_t Session::present() const {
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < members_.size(); ++i) bits |= std::uint64_t{members_[i].present} << i;
  return bits;
}

std::uint64_t Session::threshold() const {
  const auto all = static_cast<std::uint64_t>(std::popcount(present()));
  return set_threshold_ == 0 ? all : std::min<std::uint64_t>(all, set_threshold_);
}

Header Session::header(Action action, Segment segment, MemberId to) const {
  return {.action = action,
          .flags = flags::kFromSwitch,
          .member = to,
          .generation = generation_,
          .session = config_.id,
          .segment = segment};
}

void Session::answer(const Member& member, Answer answer, Segment segment, Outbox& out) {
  Header told = header(Action::kAck, segment, member.id);
  told.value = static_cast<std::uint32_t>(answer);
  out.send(told, {}, config_.key, member.address);
}

void Session::refuse(const Packet& packet, const Address& from, Answer answer, Segment segment, Outbox& out) const {
  Header told = header(Action::kAck, segment, packet.header.member);
  told.value = static_cast<std::uint32_t>(answer);
  out.send(told, {}, config_.key, from);
}

void Session::receive(const Packet& packet, const Address& from, Nanoseconds now, Outbox& out) {
  const Header& told = packet.header;
  if (told.has(flags::kFromSwitch)) {
    if (up_ == nullptr || !up_->receive(packet, now)) return;
    send_up(now, out);
    return;
  }
  heard_at_ = now;
  if (told.action == Action::kJoin) return join(packet, from, now, out);
  Member* const member = find(told.member);
  if (state_ != State::kReady || member == nullptr || told.generation != generation_) {
    // Whoever joins at the moment is answered then.
    if (told.generation != 0) refuse(packet, from, Answer::kUnknown, told.generation, out);
    return;
  }
  switch (told.action) {
    case Action::kLeave: leave(*member, now, out); break;
    case Action::kReset: reset(out); break;
    case Action::kSetH:
      if (told.value > static_cast<std::uint32_t>(std::popcount(present()))) {
        return answer(*member, Answer::kMismatch, told.segment, out);
      }
      set_threshold_ = told.value;
      answer(*member, Answer::kDone, told.segment, out);
      recount(now, out);
      break;
    case Action::kFBcast: {
      Slot* const at = held(told.segment);
      if (at != nullptr && at->state == Slot::State::kSums) complete(*at, now, out);
      answer(*member, Answer::kDone, told.segment, out);
      break;
    }
    case Action::kHelp: help(*member, told.segment, now, out); break;
    case Action::kHalt:
      if (up_ != nullptr) up_->halt(out);
      halt(member->id, told.segment, out);
      break;
    case Action::kData:
      if (halted_) return halt(halted_by_, told.segment, out);
      contribute(*member, packet, now, out);
      break;
    case Action::kJoin:
    case Action::kAck: break;
  }
}

// Each of them, again and again as long as one goes on: any of these packets may be lost.
void Session::halt(MemberId by, Segment segment, Outbox& out) {
  halted_ = true;
  halted_by_ = by;
  for (const Member& member : members_) {
    Header told = header(Action::kHalt, segment, member.id);
    told.value = by;
    if (member.present) out.send(told, {}, config_.key, member.address);
  }
}

void Session::join(const Packet& packet, const Address& from, Nanoseconds now, Outbox& out) {
  const std::optional<JoinRequest> request = JoinRequest::decode(packet.payload);
  if (!request) return refuse(packet, from, Answer::kMismatch, 0, out);
  // Of those that are sent to this switch in its present life: what was said to an earlier one, and comes late or is
  // repeated by somebody else, may be true no more.
  if (packet.header.generation != generation_) return refuse(packet, from, Answer::kWaits, request->number, out);
  if (members_.empty()) {
    ranks_ = request->ranks;
    window_ = request->window;
  }
  if (request->ranks != ranks_ || request->window != window_) {
    return refuse(packet, from, Answer::kMismatch, 0, out);
  }
  const std::size_t most = config_.members == 0 ? ranks_ : config_.members;
  const auto gone = static_cast<std::size_t>(std::ranges::count(members_, true, &Member::gone));
  if (most > kMostMembers) return refuse(packet, from, Answer::kFull, 0, out);
  auto known = std::ranges::find(members_, packet.header.member, &Member::id);
  if (known == members_.end()) {
    if (members_.size() == most) return refuse(packet, from, Answer::kFull, 0, out);
    known = members_.emplace(members_.end());
    known->id = packet.header.member;
  }
  // One that is answered already, and comes late or again, says nothing new: neither where the worker is, nor what it has.
  if (request->number > known->number && !known->gone) {
    known->number = request->number;
    known->address = from;
    if (state_ == State::kGathers) {
      known->present = true;
      known->is_switch = packet.header.has(flags::kIsSwitch);
      known->base = request->base;
      known->has = request->has;
    }
  }
  const auto joined = static_cast<std::size_t>(std::popcount(present()));
  if (state_ == State::kGathers && joined == most - gone) return all_have_joined(now, out);
  if (known->present) say_how_far(*known, out);
}

void Session::say_how_far(const Member& member, Outbox& out) {
  answer(member, state_ == State::kReady ? Answer::kReady : Answer::kWaits, member.number, out);
}

void Session::all_have_joined(Nanoseconds now, Outbox& out) {
  Segment low = std::numeric_limits<Segment>::max();
  Segment top = 0;
  for (const Member& member : members_) {
    if (!member.present) continue;
    low = std::min(low, member.base);
    Segment after = member.base;
    for (std::size_t i = 0; i < member.has.size(); ++i) {
      if (member.has[i]) after = member.base + i + 1;
    }
    top = std::max(top, after);
  }
  // Workers are never further apart than two windows; those that are do not belong to the same job.
  if (top - low > 2 * std::uint64_t{window_}) {
    for (const Member& member : members_) answer(member, Answer::kMismatch, 0, out);
    ended_ = true;
    return;
  }
  lowest_ = low;
  slots_.assign(2 * std::size_t{window_}, {});
  // Others of the parent's members may lack what all here have: as far back as workers keep sums.
  find_sums(config_.parent ? std::min(low, top - std::min<Segment>(top, window_)) : low, top);
  if (!config_.parent) return become_ready(out);
  state_ = State::kJoinsUp;
  const auto some_have = [&](Segment segment) {
    return std::ranges::any_of(members_,
                               [segment](const Member& member) { return member.present && member.had(segment); });
  };
  Segment first = low;
  while (some_have(first)) ++first;
  std::vector<bool> has(window_);
  for (std::size_t i = 0; i < window_; ++i) has[i] = some_have(first + i);
  up_ = std::make_unique<Worker>(WorkerConfig{.session = config_.id,
                                              .key = config_.key,
                                              .member = config_.own_id,
                                              .ranks = ranks_,
                                              .window = window_,
                                              .is_switch = true,
                                              .silence = config_.silence,
                                              .to = *config_.parent},
                                 static_cast<Source&>(*this), first, std::move(has));
  up_->join(now);
  send_up(now, out);
}

// Sums that some members have and others lack are fetched: to sum anew might change their bits.
void Session::find_sums(Segment low, Segment top) {
  for (Segment segment = low; segment < top; ++segment) {
    const auto have = std::ranges::count_if(
        members_, [segment](const Member& member) { return member.present && member.had(segment); });
    // The parent may want what all here have.
    if (have == 0 || (!config_.parent && have == std::popcount(present()))) continue;
    slot(segment).segment = segment;
    slot(segment).state = Slot::State::kFetches;
  }
}

void Session::become_ready(Outbox& out) {
  state_ = State::kReady;
  for (const Member& member : members_) {
    if (member.present) say_how_far(member, out);
  }
}

void Session::leave(Member& member, Nanoseconds now, Outbox& out) {
  answer(member, Answer::kDone, 0, out);
  member.present = false;
  member.gone = true;
  if (present() == 0) {
    leave(out);
    ended_ = true;
    return;
  }
  recount(now, out);
}

// As a member of the parent's.
void Session::leave(Outbox& out) {
  if (up_ != nullptr) up_->leave(out);
}

void Session::reset(Outbox& out) {
  const std::uint32_t former = std::exchange(generation_, config_.next_generation());
  for (Member& member : members_) {
    if (member.present) answer(member, Answer::kUnknown, former, out);
    member.present = false;
  }
  state_ = State::kGathers;
  slots_.clear();
  up_.reset();
  halted_ = false;
  set_threshold_ = 0;
}

// The threshold has sunk.
void Session::recount(Nanoseconds now, Outbox& out) {
  for (Slot& at : slots_) {
    if (at.segment == Slot::kNone || at.state != Slot::State::kSums || at.members == 0) continue;
    if (static_cast<std::uint64_t>(std::popcount(at.members & present())) >= threshold()) complete(at, now, out);
  }
}

void Session::check_timers(Nanoseconds now, Outbox& out) {
  if (up_ != nullptr) send_up(now, out);
}

Nanoseconds Session::next_timer() const {
  return up_ == nullptr ? std::numeric_limits<Nanoseconds>::max() : up_->next_timer();
}

std::size_t Session::held_bytes() const {
  std::size_t bytes = 0;
  for (const Slot& at : slots_) bytes += at.data.capacity();
  return bytes;
}

}  // namespace ringcore::aggregation
