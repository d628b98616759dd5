// What members contribute, and what becomes of it.
#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <limits>

#include "aggregation/session.hpp"

namespace ringcore::aggregation {
namespace {

// So many segments later all have contributed: what is missing before was most likely lost.
constexpr Segment kReordered = 8;
// Between two questions for the same.
constexpr Nanoseconds kAskPause = 2 * kMillisecond;

// A float is added as it comes, and the sum is the same for all: it is made once.
void add(Sum sum, std::span<std::byte> to, std::span<const std::byte> from) {
  for (std::size_t at = 0; at < to.size(); at += sizeof(std::uint32_t)) {
    if (sum == Sum::kFloat32) {
      float a = 0;
      float b = 0;
      std::memcpy(&a, to.data() + at, sizeof(a));
      std::memcpy(&b, from.data() + at, sizeof(b));
      a += b;
      std::memcpy(to.data() + at, &a, sizeof(a));
    } else if (sum == Sum::kInt32) {
      std::uint32_t a = 0;  // wraps
      std::uint32_t b = 0;
      std::memcpy(&a, to.data() + at, sizeof(a));
      std::memcpy(&b, from.data() + at, sizeof(b));
      a += b;
      std::memcpy(to.data() + at, &a, sizeof(a));
    } else {
      std::int32_t a = 0;
      std::int32_t b = 0;
      std::memcpy(&a, to.data() + at, sizeof(a));
      std::memcpy(&b, from.data() + at, sizeof(b));
      a = std::max(a, b);
      std::memcpy(to.data() + at, &a, sizeof(a));
    }
  }
}

}  // namespace

Session::Slot* Session::held(Segment segment) {
  if (slots_.empty() || slot(segment).segment != segment) return nullptr;
  return &slot(segment);
}

// Makes the segment's slot its own; false where the member does not keep to the window.
bool Session::open(Member& member, Segment segment, Outbox& out) {
  Slot& at = slot(segment);
  if (at.segment == segment) return true;
  const bool used = at.segment != Slot::kNone;
  if (segment < lowest_ || (used && at.segment > segment)) {
    answer(member, Answer::kTooOld, segment, out);
    return false;
  }
  // What was to be fetched everybody has: nobody wanted it.
  if (used && at.state != Slot::State::kDone && at.state != Slot::State::kFetches) {
    answer(member, Answer::kMismatch, segment, out);
    return false;
  }
  std::vector<std::byte> data = std::move(at.data);
  data.clear();
  at = {.segment = segment, .data = std::move(data)};
  return true;
}

void Session::contribute(Member& member, const Packet& packet, Nanoseconds now, Outbox& out) {
  const Header& told = packet.header;
  if (told.has(flags::kResult)) return bring_sum(packet, out);
  if (packet.payload.empty() || told.value == 0 || told.segment > kMostSegment) {
    return answer(member, Answer::kMismatch, told.segment, out);
  }
  if (!open(member, told.segment, out)) return;
  Slot& at = slot(told.segment);
  if (at.state == Slot::State::kDone) return send_sum(at, member, out);
  if (at.state == Slot::State::kFetches) return fetch(at, now, out);
  const std::uint64_t bit = std::uint64_t{1} << (&member - members_.data());
  if (at.state != Slot::State::kSums || (at.members & bit) != 0) return;
  if (at.members == 0) {
    at.sum = told.sum;
    at.data.assign(packet.payload.begin(), packet.payload.end());
  } else if (at.sum != told.sum || at.data.size() != packet.payload.size()) {
    return answer(member, Answer::kMismatch, told.segment, out);
  } else {
    add(at.sum, at.data, packet.payload);
  }
  at.members |= bit;
  at.contributions += told.value;
  if (static_cast<std::uint64_t>(std::popcount(at.members & present())) < threshold()) return;
  complete(at, now, out);
  if (told.segment >= kReordered) look_for_gap(told.segment - kReordered, now, out);
}

// All that will contribute has done so.
void Session::complete(Slot& at, Nanoseconds now, Outbox& out) {
  if (up_ == nullptr) {
    at.state = Slot::State::kDone;
    return broadcast(at, out);
  }
  at.state = Slot::State::kRises;
  send_up(now, out);
}

void Session::look_for_gap(Segment behind, Nanoseconds now, Outbox& out) {
  Slot& at = slot(behind);
  if (at.segment == behind) {
    if (at.state == Slot::State::kSums) ask_missing(at, now, out);
    return;
  }
  // Nobody's packet has come.
  if (behind < lowest_ || (at.segment != Slot::kNone && at.segment > behind)) return;
  for (const Member& member : members_) {
    if (member.present && !member.had(behind)) {
      out.send(header(Action::kHelp, behind, member.id), {}, config_.key, member.address);
    }
  }
}

void Session::ask_missing(Slot& at, Nanoseconds now, Outbox& out) {
  if (now - at.asked_at < kAskPause) return;
  at.asked_at = now;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (!members_[i].present || (at.members >> i & 1) != 0) continue;
    out.send(header(Action::kHelp, at.segment, members_[i].id), {}, config_.key, members_[i].address);
  }
}

// A member lacks a segment's sum.
void Session::help(Member& member, Segment segment, Nanoseconds now, Outbox& out) {
  if (segment > kMostSegment) return;
  Slot* const at = held(segment);
  const std::uint64_t bit = std::uint64_t{1} << (&member - members_.data());
  if (at == nullptr) {
    const Segment other = slot(segment).segment;
    if (segment < lowest_ || (other != Slot::kNone && other > segment)) {
      return answer(member, Answer::kTooOld, segment, out);
    }
    return out.send(header(Action::kHelp, segment, member.id), {}, config_.key, member.address);
  }
  if (at->state == Slot::State::kDone) return send_sum(*at, member, out);
  if (at->state == Slot::State::kSums && (at->members & bit) == 0) {
    return out.send(header(Action::kHelp, segment, member.id), {}, config_.key, member.address);
  }
  std::vector<std::uint32_t> missing;
  if (at->state == Slot::State::kSums) {
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (members_[i].present && (at->members >> i & 1) == 0) missing.push_back(members_[i].id);
    }
    ask_missing(*at, now, out);
  }
  if (at->state == Slot::State::kFetches) fetch(*at, now, out);
  Header have = header(Action::kAck, segment, member.id);
  have.value = static_cast<std::uint32_t>(Answer::kHave);
  out.send(have, std::as_bytes(std::span(missing)), config_.key, member.address);
}

void Session::fetch(Slot& at, Nanoseconds now, Outbox& out) {
  if (now - at.asked_at < kAskPause) return;
  at.asked_at = now;
  for (const Member& member : members_) {
    if (!member.present || !member.had(at.segment)) continue;
    Header wanted = header(Action::kHelp, at.segment, member.id);
    wanted.flags |= flags::kResult;
    out.send(wanted, {}, config_.key, member.address);
  }
}

// Which was fetched.
void Session::bring_sum(const Packet& packet, Outbox& out) {
  Slot* const at = held(packet.header.segment);
  if (at == nullptr || at->state != Slot::State::kFetches || packet.payload.empty()) return;
  at->state = Slot::State::kDone;
  at->sum = packet.header.sum;
  at->contributions = packet.header.value;
  at->data.assign(packet.payload.begin(), packet.payload.end());
  broadcast(*at, out);
}

void Session::send_sum(const Slot& at, const Member& member, Outbox& out) const {
  Header told = header(Action::kData, at.segment, member.id);
  told.sum = at.sum;
  told.flags |= flags::kResult;
  told.value = at.contributions;
  out.send(told, at.data, config_.key, member.address);
}

// One packet for all.
void Session::broadcast(const Slot& at, Outbox& out) const {
  Header told = header(Action::kData, at.segment, kEverybody);
  told.sum = at.sum;
  told.flags |= flags::kResult;
  told.value = at.contributions;
  bool made = false;
  for (const Member& member : members_) {
    if (!member.present) continue;
    if (made) {
      out.send_again(member.address);
    } else {
      out.send(told, at.data, config_.key, member.address);
    }
    made = true;
  }
}

// ---- As a worker of the parent's ----

bool Session::ready(Segment segment) {
  const Slot* const at = held(segment);
  return at != nullptr && at->state == Slot::State::kRises;
}

Source::Contribution Session::contribution(Segment segment) {
  const Slot& at = *held(segment);
  return {at.sum, at.contributions, at.data};
}

bool Session::take(Segment segment, const Contribution& sum) {
  Slot& at = *held(segment);
  if (at.sum != sum.sum || at.data.size() != sum.payload.size()) return false;
  at.state = Slot::State::kDone;
  at.contributions = sum.contributions;
  at.data.assign(sum.payload.begin(), sum.payload.end());
  risen_.push_back(segment);
  return true;
}

std::optional<Source::Contribution> Session::sum_of(Segment segment) {
  const Slot* const at = held(segment);
  if (at != nullptr && at->state == Slot::State::kFetches) wanted_.push_back(segment);
  if (at == nullptr || at->state != Slot::State::kDone) return std::nullopt;
  return Contribution{at->sum, at->contributions, at->data};
}

void Session::send_up(Nanoseconds now, Outbox& out) {
  if (up_->has_joined() && state_ == State::kJoinsUp) become_ready(out);
  for (const Segment segment : risen_) {
    if (const Slot* const at = held(segment)) broadcast(*at, out);
  }
  risen_.clear();
  if (const auto halted = up_->halted_by(); halted && !halted_) {
    halted_ = true;
    halted_by_ = *halted;
  }
  if (up_->failure()) return lose_parent(up_->failure()->kind, out);
  up_->send(out, now, window_);
  for (const Segment segment : wanted_) fetch(slot(segment), now, out);
  wanted_.clear();
}

// There will be no sums.
void Session::lose_parent(Worker::Failure::Kind kind, Outbox& out) {
  const Answer told = kind == Worker::Failure::Kind::kFull     ? Answer::kFull
                      : kind == Worker::Failure::Kind::kSilent ? Answer::kNoParent
                                                               : Answer::kMismatch;
  for (const Member& member : members_) {
    if (member.present) answer(member, told, 0, out);
  }
  ended_ = true;
}

}  // namespace ringcore::aggregation
