#include "aggregation/worker.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

namespace ringcore::aggregation {
namespace {

// Sums come in the order of what was sent. What lacks its sum while that of something sent so much later is there was
// most likely lost; the switch sees the same earlier, and asks by itself.
constexpr std::uint64_t kReordered = 12;
constexpr std::uint32_t kFewest = 16;
constexpr std::uint32_t kFirst = 32;
// Without any sign a question costs little, and a loss that nothing comes behind is noticed by nothing else.
constexpr Nanoseconds kLeastPatience = 5 * kMillisecond;
constexpr Nanoseconds kMostPatience = 100 * kMillisecond;
constexpr Nanoseconds kLongestPause = 150 * kMillisecond;
constexpr Nanoseconds kJoinPause = 10 * kMillisecond;
// A switch that has lost its memory needs all workers, also those that have nothing to sum at the moment.
constexpr Nanoseconds kIdlePause = 500 * kMillisecond;
constexpr int kProbes = 16;
// A process that did not run for a while has asked nothing either.
constexpr int kUnanswered = 16;

}  // namespace

Worker::Worker(const WorkerConfig& config, Source& source, Segment base, std::vector<bool> has)
    : config_(config),
      source_(source),
      base_(base),
      scan_(base),
      entries_(config_.window),
      kept_(config_.window),
      allowed_(std::min(kFirst, config_.window)) {
  for (std::size_t i = 0; i < has.size() && i < entries_.size(); ++i) {
    if (has[i]) entry(base + i).progress = Progress::kDone;
  }
}

Header Worker::header(Action action, Segment segment) const {
  return {.action = action,
          .member = config_.member,
          .generation = generation_,
          .session = config_.session,
          .segment = segment};
}

void Worker::fail(Failure::Kind kind, Segment segment, std::uint32_t contributions) {
  if (!failure_) failure_ = Failure{kind, segment, contributions};
}

void Worker::join(Nanoseconds now) {
  if (state_ != State::kApart) return;
  state_ = State::kJoining;
  heard_at_ = timer_ = now;
  pause_ = kJoinPause;
}

bool Worker::receive(const Packet& packet, Nanoseconds now) {
  const Header& told = packet.header;
  if (!told.has(flags::kFromSwitch) || (told.member != config_.member && told.member != kEverybody)) return false;
  if (state_ == State::kApart) return false;
  const bool fits = state_ == State::kReady && told.generation == generation_;
  if (told.action == Action::kAck && (fits || state_ == State::kJoining || told.answer() == Answer::kUnknown)) {
    heard_at_ = now;
    unanswered_ = 0;
    hear_answer(packet, now);
    return true;
  }
  if (!fits) return false;
  heard_at_ = now;
  unanswered_ = 0;
  switch (told.action) {
    case Action::kData: take(packet, now); break;
    case Action::kHelp: hear_help(told); break;
    case Action::kHalt: halted_by_ = static_cast<MemberId>(told.value); break;
    default: return false;
  }
  return true;
}

void Worker::hear_answer(const Packet& packet, Nanoseconds now) {
  const Header& told = packet.header;
  const bool joining = state_ == State::kJoining;
  switch (told.answer()) {
    case Answer::kReady:
      if (joining && told.segment == joins_) begin_again(told.generation, now);
      break;
    case Answer::kUnknown:
      // Of what this one has sent in its present generation: whoever knew that one is gone.
      if (state_ != State::kReady || told.segment != generation_) break;
      state_ = State::kJoining;
      generation_ = 0;
      timer_ = now;
      pause_ = kJoinPause;
      break;
    case Answer::kHave: {
      if (joining || !in_window(told.segment)) break;
      missing_.resize(packet.payload.size() / sizeof(std::uint32_t));
      for (std::size_t i = 0; i < missing_.size(); ++i) {
        std::uint32_t id = 0;
        std::memcpy(&id, packet.payload.data() + i * sizeof(id), sizeof(id));
        missing_[i] = static_cast<MemberId>(id);
      }
      break;
    }
    case Answer::kFull:
      if (joining) fail(Failure::Kind::kFull);
      break;
    case Answer::kMismatch: fail(Failure::Kind::kMismatch, told.segment); break;
    case Answer::kNoParent: fail(Failure::Kind::kNoParent); break;
    case Answer::kTooOld:
      if (!joining && in_window(told.segment) && entry(told.segment).progress == Progress::kSent) {
        fail(Failure::Kind::kTooOld, told.segment);
      }
      break;
    case Answer::kWaits:
      // A Join counts when it names the generation that it is for.
      if (!joining || told.generation == generation_) break;
      generation_ = told.generation;
      timer_ = now;
      pause_ = kJoinPause;
      break;
    case Answer::kDone: break;
  }
}

// The switch is new, or has cleared its buffers: it has none of the contributions that were sent before.
void Worker::begin_again(std::uint32_t generation, Nanoseconds now) {
  state_ = State::kReady;
  generation_ = generation;
  halted_by_.reset();
  missing_.clear();
  sums_wanted_.clear();
  outstanding_ = marked_ = 0;
  for (Entry& each : entries_) {
    if (each.progress != Progress::kDone) each = {};
    each.resend = each.ask = false;
  }
  scan_ = base_;
  ++counts_.joined;
  push_back_probe(now);
}

void Worker::take(const Packet& packet, Nanoseconds now) {
  const Header& told = packet.header;
  const Segment segment = told.segment;
  if (!told.has(flags::kResult) || !in_window(segment) || !source_.ready(segment)) return;
  Entry& at = entry(segment);
  if (at.progress == Progress::kDone) return;
  if (!config_.is_switch && told.value != config_.ranks) {
    return fail(Failure::Kind::kIncomplete, segment, told.value);
  }
  if (!source_.take(segment, {told.sum, told.value, packet.payload})) return fail(Failure::Kind::kMismatch, segment);
  if (at.progress == Progress::kSent) {
    --outstanding_;
    const Nanoseconds took = now - at.sent_at;
    if (!at.again && took > 0) quickest_ = quickest_ == 0 ? took : std::min(quickest_ + quickest_ / 64 + 1, took);
  }
  marked_ -= (at.resend ? 1 : 0) + (at.ask ? 1 : 0);
  const std::uint64_t order = at.order;
  at = {.progress = Progress::kDone};
  Kept& kept = kept_[segment % kept_.size()];
  kept.segment = segment;
  kept.sum = told.sum;
  kept.contributions = told.value;
  kept.payload.assign(packet.payload.begin(), packet.payload.end());
  missing_.clear();
  allowed_ = std::min(allowed_ + 1, config_.window);
  look_for_gaps(segment, order);
  while (entry(base_).progress == Progress::kDone) entry(base_++) = {};
  scan_ = std::max(scan_, base_);
  push_back_probe(now);
}

void Worker::look_for_gaps(Segment before, std::uint64_t order) {
  for (Segment segment = base_; segment < before; ++segment) {
    Entry& at = entry(segment);
    if (at.progress != Progress::kSent || at.ask || at.resend || at.order + kReordered > order) continue;
    at.ask = true;
    ++marked_;
    if (at.order <= reduced_at_) continue;
    reduced_at_ = order_;
    allowed_ = std::max(std::min(kFewest, config_.window), allowed_ * 3 / 4);
  }
}

// The switch lacks something: of a worker its contribution, or after its memory was lost a sum.
void Worker::hear_help(const Header& asked) {
  if (asked.has(flags::kResult)) {
    if (std::ranges::find(sums_wanted_, asked.segment) == sums_wanted_.end() && sums_wanted_.size() < entries_.size()) {
      sums_wanted_.push_back(asked.segment);
    }
    return;
  }
  if (!in_window(asked.segment)) return;
  Entry& at = entry(asked.segment);
  if (at.progress != Progress::kSent || at.resend) return;
  at.resend = true;
  ++marked_;
}

void Worker::push_back_probe(Nanoseconds now) {
  pause_ = patience();
  timer_ = now + (outstanding_ > 0 ? pause_ : kIdlePause);
}

Nanoseconds Worker::patience() const { return std::clamp(4 * quickest_, kLeastPatience, kMostPatience); }

void Worker::send(Outbox& out, Nanoseconds now, std::size_t most) {
  if (failure_ || state_ == State::kApart) return;
  if (now >= timer_) {
    if (waits() && now - heard_at_ > config_.silence && unanswered_ >= kUnanswered) return fail(Failure::Kind::kSilent);
    if (!waits()) heard_at_ = now;  // it need not answer at once
    if (state_ == State::kJoining) return send_join(out, now);
    probe(out, now);
  }
  if (state_ != State::kReady || halted_by_) return;
  std::size_t sent = 0;
  for (; !sums_wanted_.empty() && sent < most; ++sent) {
    const Segment segment = sums_wanted_.back();
    sums_wanted_.pop_back();
    const Kept& kept = kept_[segment % kept_.size()];
    std::optional<Source::Contribution> sum = source_.sum_of(segment);
    if (kept.segment == segment) sum = Source::Contribution{kept.sum, kept.contributions, kept.payload};
    if (!sum) continue;
    Header header = this->header(Action::kData, segment);
    header.sum = sum->sum;
    header.flags = flags::kResult;
    header.value = sum->contributions;
    out.send(header, sum->payload, config_.key, config_.to);
  }
  const Segment end = base_ + allowed_;
  for (Segment segment = base_; marked_ > 0 && segment < base_ + entries_.size() && sent < most; ++segment) {
    Entry& at = entry(segment);
    if (std::exchange(at.resend, false)) {
      --marked_;
      ++sent;
      send_data(out, segment, now);
    }
    if (std::exchange(at.ask, false)) {
      --marked_;
      ++sent;
      send_help(out, segment);
    }
  }
  bool whole = true;  // no gap so far
  for (Segment segment = scan_; segment < end && sent < most; ++segment) {
    if (entry(segment).progress == Progress::kFresh) {
      if (source_.ready(segment)) {
        ++sent;
        send_data(out, segment, now);
      } else {
        whole = false;
      }
    }
    if (whole) scan_ = segment + 1;
  }
}

void Worker::send_join(Outbox& out, Nanoseconds now) {
  JoinRequest request{.ranks = config_.ranks, .window = config_.window, .number = ++joins_, .base = base_, .has = {}};
  for (std::size_t i = 0; i < entries_.size(); ++i) request.has.push_back(entry(base_ + i).progress == Progress::kDone);
  Header header = this->header(Action::kJoin, 0);
  if (config_.is_switch) header.flags = flags::kIsSwitch;
  out.send(header, request.encode(), config_.key, config_.to);
  ++unanswered_;
  timer_ = now + pause_;
  pause_ = std::min(2 * pause_, kLongestPause);
}

void Worker::send_data(Outbox& out, Segment segment, Nanoseconds now) {
  Entry& at = entry(segment);
  if (at.progress == Progress::kFresh) {
    if (outstanding_++ == 0) {
      heard_at_ = now;
      unanswered_ = 0;
      push_back_probe(now);
    }
    ++counts_.sent;
  } else {
    at.again = true;
    ++counts_.again;
  }
  at.progress = Progress::kSent;
  at.order = ++order_;
  at.sent_at = now;
  const Source::Contribution own = source_.contribution(segment);
  Header header = this->header(Action::kData, segment);
  header.sum = own.sum;
  header.value = own.contributions;
  out.send(header, own.payload, config_.key, config_.to);
}

void Worker::send_help(Outbox& out, Segment segment) {
  Entry& at = entry(segment);
  at.again = true;
  at.order = ++order_;
  ++counts_.asked;
  out.send(header(Action::kHelp, segment), {}, config_.key, config_.to);
}

// Nothing has come for a while.
void Worker::probe(Outbox& out, Nanoseconds now) {
  ++unanswered_;
  if (outstanding_ == 0) {
    out.send(header(Action::kHelp, base_), {}, config_.key, config_.to);
    timer_ = now + kIdlePause;
    return;
  }
  int asked = 0;
  for (Segment segment = base_; asked < kProbes && segment < base_ + entries_.size(); ++segment) {
    if (entry(segment).progress != Progress::kSent) continue;
    ++asked;
    send_help(out, segment);
  }
  timer_ = now + pause_;
  pause_ = std::min(2 * pause_, kLongestPause);
}

Nanoseconds Worker::next_timer() const {
  if (failure_ || state_ == State::kApart) return std::numeric_limits<Nanoseconds>::max();
  return timer_;
}

void Worker::leave(Outbox& out) {
  if (state_ == State::kReady) out.send(header(Action::kLeave, base_), {}, config_.key, config_.to);
  state_ = State::kApart;
}

void Worker::halt(Outbox& out) {
  if (state_ == State::kReady) out.send(header(Action::kHalt, base_), {}, config_.key, config_.to);
}

}  // namespace ringcore::aggregation
