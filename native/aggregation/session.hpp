// What a switch knows of one session: who takes part, and the segments that are being summed. A state machine without
// socket, clock or thread.
//
// A segment is summed packet by packet, from the first one on, and its sum is sent to all members as soon as enough of
// them have contributed. It has a slot of its own among two windows of them: who contributes to a segment has the sum of
// the one a window before, to which all have contributed, so that all have the sum two windows before, whose slot this
// is. A bit a member tells contributions that come twice.
//
// Under a parent the session is a worker itself: what its members have summed is its contribution there, and the
// parent's sum is what they get.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "aggregation/wire.hpp"
#include "aggregation/worker.hpp"
#include "base/clock.hpp"

namespace ringcore::aggregation {

struct SessionConfig {
  std::uint64_t id = 0;
  Key key;
  std::uint32_t members = 0;  // to be waited for; 0: as many as the job has ranks
  std::optional<Address> parent;
  MemberId own_id = 0;  // as a member of the parent's
  Nanoseconds silence = 5 * kSecond;
  std::function<std::uint32_t()> next_generation;  // another one each time
};

class Session final : private Source {
 public:
  static constexpr std::size_t kMostMembers = 64;

  explicit Session(SessionConfig config) : config_(std::move(config)), generation_(config_.next_generation()) {}
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // An authentic packet.
  void receive(const Packet& packet, const Address& from, Nanoseconds now, Outbox& out);
  void check_timers(Nanoseconds now, Outbox& out);
  Nanoseconds next_timer() const;

  bool is_ready() const { return state_ == State::kReady; }
  // Nobody takes part any more.
  bool ended() const { return ended_; }
  Nanoseconds heard_at() const { return heard_at_; }
  // So many bytes of segments.
  std::size_t held_bytes() const;
  void leave(Outbox& out);

 private:
  enum class State : std::uint8_t {
    kGathers,  // not all members have joined
    kJoinsUp,  // all have, and the parent is asked
    kReady,
  };
  struct Member {
    MemberId id = 0;
    Address address;
    bool present = false;
    bool gone = false;  // has left for good
    bool is_switch = false;
    std::uint32_t number = 0;  // of its last Join
    Segment base = 0;  // what it had then
    std::vector<bool> has;
    bool had(Segment segment) const { return segment < base || (segment - base < has.size() && has[segment - base]); }
  };
  struct Slot {
    static constexpr Segment kNone = ~Segment{0};
    Segment segment = kNone;
    enum class State : std::uint8_t {
      kSums,
      kFetches,  // some member has the sum, of before this switch lost it
      kRises,  // complete here: the parent is to add what others have
      kDone,
    } state = State::kSums;
    std::uint64_t members = 0;  // a bit each that has contributed
    std::uint32_t contributions = 0;
    Sum sum{};
    Nanoseconds asked_at = -kSecond;
    std::vector<std::byte> data;
  };

  bool ready(Segment segment) override;
  Contribution contribution(Segment segment) override;
  bool take(Segment segment, const Contribution& sum) override;
  std::optional<Contribution> sum_of(Segment segment) override;

  Member* find(MemberId id);
  std::uint64_t present() const;
  std::uint64_t threshold() const;
  Slot& slot(Segment segment) { return slots_[segment % slots_.size()]; }
  // The slot that the segment has now, if any.
  Slot* held(Segment segment);
  Header header(Action action, Segment segment, MemberId to) const;
  void answer(const Member& member, Answer answer, Segment segment, Outbox& out);
  void refuse(const Packet& packet, const Address& from, Answer answer, Segment segment, Outbox& out) const;

  void join(const Packet& packet, const Address& from, Nanoseconds now, Outbox& out);
  void say_how_far(const Member& member, Outbox& out);
  void all_have_joined(Nanoseconds now, Outbox& out);
  void find_sums(Segment low, Segment top);
  void become_ready(Outbox& out);
  void leave(Member& member, Nanoseconds now, Outbox& out);
  void reset(Outbox& out);
  void contribute(Member& member, const Packet& packet, Nanoseconds now, Outbox& out);
  bool open(Member& member, Segment segment, Outbox& out);
  void bring_sum(const Packet& packet, Outbox& out);
  void help(Member& member, Segment segment, Nanoseconds now, Outbox& out);
  void complete(Slot& slot, Nanoseconds now, Outbox& out);
  void recount(Nanoseconds now, Outbox& out);
  void halt(MemberId by, Segment segment, Outbox& out);
  void look_for_gap(Segment behind, Nanoseconds now, Outbox& out);
  void ask_missing(Slot& slot, Nanoseconds now, Outbox& out);
  void fetch(Slot& slot, Nanoseconds now, Outbox& out);
  void send_sum(const Slot& slot, const Member& member, Outbox& out) const;
  void broadcast(const Slot& slot, Outbox& out) const;
  void send_up(Nanoseconds now, Outbox& out);
  void lose_parent(Worker::Failure::Kind kind, Outbox& out);

  SessionConfig config_;
  State state_ = State::kGathers;
  bool ended_ = false;
  bool halted_ = false;
  MemberId halted_by_ = 0;
  std::uint32_t generation_;
  std::uint32_t ranks_ = 0;
  std::uint32_t window_ = 0;
  std::uint32_t set_threshold_ = 0;  // 0: all members
  Segment lowest_ = 0;  // nobody lacks anything before it
  std::vector<Member> members_;
  std::vector<Slot> slots_;
  std::unique_ptr<Worker> up_;
  Nanoseconds heard_at_ = 0;
  std::vector<Segment> risen_;  // whose sums the parent has just given
  std::vector<Segment> wanted_;  // whose sums it wants, and some member has
};

}  // namespace ringcore::aggregation
