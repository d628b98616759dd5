// A worker's side of in-network aggregation: a state machine without socket, clock or thread.
//
// Segments are numbered from 0 on, over all operations, the same on all workers. A worker sends its contribution to a
// segment when it has the sums of all that lie a window before it. So workers are never further apart than that, which
// bounds what the switch has to keep, and what each worker keeps for the others: its last sums, out of which a switch
// that has lost its memory gives those that some already have to those who still lack them. Nothing is summed twice.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aggregation/wire.hpp"
#include "base/clock.hpp"

namespace ringcore::aggregation {

// What is summed: of a rank its tensors, of a switch what its own workers have sent.
class Source {
 public:
  virtual ~Source() = default;

  struct Contribution {
    Sum sum = Sum::kFloat32;
    std::uint32_t contributions = 1;  // of so many ranks
    std::span<const std::byte> payload;  // until the next call
  };
  // Whether the contribution is there. From then on until `take` it stays.
  virtual bool ready(Segment segment) = 0;
  virtual Contribution contribution(Segment segment) = 0;
  // The sum, once, of a segment that is ready. False: it is not one of this contribution.
  virtual bool take(Segment segment, const Contribution& sum) = 0;
  // A sum of which this one has told that it is there, and which the worker itself does not keep; nothing: it has to be
  // fetched first.
  virtual std::optional<Contribution> sum_of(Segment) { return std::nullopt; }
};

struct WorkerConfig {
  std::uint64_t session = 0;
  Key key;  // of the session
  MemberId member = 0;
  std::uint32_t ranks = 1;  // of the job
  std::uint32_t window = 128;
  bool is_switch = false;  // of others: takes what comes. A rank takes sums of all ranks only
  Nanoseconds silence = 5 * kSecond;  // a switch that answers nothing for so long is lost
  Address to;
};

class Worker {
 public:
  // `base` and `has`: sums that are there already. The source outlives it.
  Worker(const WorkerConfig& config, Source& source, Segment base = 0, std::vector<bool> has = {});

  // A packet of its session, authentic, from the switch. False: it is none that fits.
  bool receive(const Packet& packet, Nanoseconds now);
  // What is to be sent now: at most so many packets. Called after `receive`, when something has become ready, and at
  // `next_timer`.
  void send(Outbox& out, Nanoseconds now, std::size_t most);
  Nanoseconds next_timer() const;

  void leave(Outbox& out);
  // Suspends all workers: this one cannot go on.
  void halt(Outbox& out);

  // From now on it takes part.
  void join(Nanoseconds now);
  bool has_joined() const { return state_ == State::kReady; }
  Segment base() const { return base_; }  // all before it have their sums
  bool waits() const { return outstanding_ > 0 || state_ == State::kJoining; }

  struct Failure {
    enum class Kind : std::uint8_t {
      kSilent,      // the switch answers nothing
      kFull,        // it has no room
      kMismatch,    // it says that what this one sends does not fit what the others send
      kTooOld,      // it has given the sum up
      kIncomplete,  // of some ranks only
      kNoParent,    // the switch's next one answers nothing
    };
    Kind kind{};
    Segment segment = 0;
    std::uint32_t contributions = 0;
  };
  const std::optional<Failure>& failure() const { return failure_; }
  // Members that the switch still waits for at the segment that it was last asked about; none: not known.
  const std::vector<MemberId>& missing() const { return missing_; }
  std::optional<MemberId> halted_by() const { return halted_by_; }

  struct Counts {
    std::uint64_t sent = 0;    // contributions, for the first time
    std::uint64_t again = 0;   // and once more
    std::uint64_t asked = 0;   // for what may be lost
    std::uint64_t joined = 0;
  };
  const Counts& counts() const { return counts_; }

 private:
  enum class State : std::uint8_t { kApart, kJoining, kReady };
  enum class Progress : std::uint8_t { kFresh, kSent, kDone };
  struct Entry {
    Progress progress = Progress::kFresh;
    bool resend = false;   // it was asked for
    bool ask = false;      // its sum may be lost
    bool again = false;    // it was sent more than once
    std::uint64_t order = 0;  // of what was sent about it last, among all that was sent
    Nanoseconds sent_at = 0;
  };
  struct Kept {
    Segment segment = ~Segment{0};
    Sum sum{};
    std::uint32_t contributions = 0;
    std::vector<std::byte> payload;
  };

  Entry& entry(Segment segment) { return entries_[segment % entries_.size()]; }
  bool in_window(Segment segment) const { return segment >= base_ && segment - base_ < entries_.size(); }
  Header header(Action action, Segment segment) const;
  void hear_answer(const Packet& packet, Nanoseconds now);
  void begin_again(std::uint32_t generation, Nanoseconds now);
  void take(const Packet& packet, Nanoseconds now);
  void look_for_gaps(Segment before, std::uint64_t order);
  void hear_help(const Header& asked);
  void send_join(Outbox& out, Nanoseconds now);
  void send_data(Outbox& out, Segment segment, Nanoseconds now);
  void send_help(Outbox& out, Segment segment);
  void probe(Outbox& out, Nanoseconds now);
  void push_back_probe(Nanoseconds now);
  Nanoseconds patience() const;
  void fail(Failure::Kind kind, Segment segment = 0, std::uint32_t contributions = 0);

  WorkerConfig config_;
  Source& source_;
  State state_ = State::kApart;
  std::uint32_t generation_ = 0;  // while joining: that the switch has told last
  std::uint32_t joins_ = 0;
  Segment base_;
  Segment scan_;  // all before it were sent
  std::vector<Entry> entries_;  // of the segments from base_ on, a window of them
  std::vector<Kept> kept_;      // the last sums
  std::vector<Segment> sums_wanted_;
  std::uint32_t allowed_;  // segments under way at most
  std::uint64_t order_ = 0;
  std::uint64_t reduced_at_ = 0;  // what was sent when `allowed_` was last reduced
  std::size_t outstanding_ = 0;
  std::size_t marked_ = 0;  // entries to be sent again or asked for
  Nanoseconds quickest_ = 0;  // from a contribution to its sum
  Nanoseconds heard_at_ = 0;
  Nanoseconds timer_ = 0;
  Nanoseconds pause_ = 0;  // between two questions
  int unanswered_ = 0;
  std::optional<MemberId> halted_by_;
  std::vector<MemberId> missing_;
  std::optional<Failure> failure_;
  Counts counts_;
};

}  // namespace ringcore::aggregation
