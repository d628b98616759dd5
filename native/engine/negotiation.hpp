// How the ranks of one process set agree on what runs next, without a coordinator.
//
// Every rank has a log. Whatever it wants the others to know (an operation was submitted, it has joined, ...) it
// appends there, and every entry goes to every member. Position k of all logs together is round k. A round is decided
// when all of its entries have arrived: then every rank knows the same, and the same code draws the same conclusions:
// which operations are complete and run now, which do not fit together, who is deadlocked. Nobody asks anybody.
//
// In a training loop all ranks submit the same operations in the same order, so a round is one operation and is decided
// as soon as the slowest rank has announced it. Where orders differ, logs can have different lengths although an
// operation stands in all of them; then a rank that waits asks for the missing positions to be filled with no-ops
// (`kFill`), and a rank that is blocked anyway fills them unasked.
//
// This class is a function of the logs: it knows no links, no clock and no thread.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/record.hpp"
#include "engine/request.hpp"

namespace ringcore::engine {

// How each error begins that tells of a deadlock.
inline constexpr std::string_view kEveryRankWaits = "every rank waits for another one: ";

// One position of a log.
struct Entry {
  RecordType type = RecordType::kNoop;
  std::uint8_t flags = 0;
  std::uint64_t signature = 0;
  std::uint64_t name_hash = 0;
  std::uint64_t rows = 0;
  std::uint64_t location = 0;
  std::uint64_t position = 0;  // as the sender counts: with kFill, and along a tree
  std::int32_t priority = 0;
  std::shared_ptr<const Descriptor> descriptor;  // kOperation, kCancel
  std::vector<std::uint64_t> splits;
  std::vector<std::byte> payload;  // eager data of another rank; text of a kCancel or kRefused; kOffer
  std::shared_ptr<const std::vector<std::byte>> sum;  // of the data of all members: see tree_data.hpp

  std::string text() const { return {reinterpret_cast<const char*>(payload.data()), payload.size()}; }
};

// What an entry says of rows must be there: those of the tensors of a group, and those of outputs. Throws
// Error{kProtocol}.
void check_rows(const Entry& entry);

// What one member said about an operation.
struct Contribution {
  bool present = false;
  std::uint8_t flags = 0;
  std::uint64_t signature = 0;
  std::uint64_t rows = 0;
  std::uint64_t location = 0;
  std::vector<std::uint64_t> splits;
  std::vector<std::byte> payload;
  std::shared_ptr<const Descriptor> descriptor;

  // Where the first dimension may differ between ranks; `part`: of a group.
  std::uint64_t rows_of(std::optional<std::size_t> part) const { return part ? splits[*part] : rows; }
  // Of an allreduce: where what the member gives lies, as `location` says where its sum goes.
  std::uint64_t input_location() const {
    if ((flags & kInPlace) != 0) return location;
    return splits.empty() ? 0 : splits.front();
  }
};

// A member that gave a place for the result, where that is not known before all have announced theirs, of other rows
// than the result has.
struct WrongOutput {
  std::size_t member = 0;
  std::size_t part = 0;  // of a group
  std::uint64_t rows = 0;
  std::uint64_t needed = 0;
};
std::optional<WrongOutput> find_wrong_output(const Descriptor& descriptor, std::span<const Contribution> contributions);

// An operation that every member has announced (or has joined instead): it runs now, on every rank.
struct Release {
  std::shared_ptr<const Descriptor> descriptor;
  std::uint64_t name_hash = 0;
  std::int32_t priority = 0;
  // By member; empty where all said the same, which is then `alike`: nobody has to write that down for each of thousands.
  std::vector<Contribution> contributions;
  Contribution alike;
  std::shared_ptr<const std::vector<std::byte>> sum;  // of the data of all; null where a plan is to make it

  // Of any member.
  const Contribution& of(std::size_t member) const { return contributions.empty() ? alike : contributions[member]; }
  // One for each of the members.
  void spread(std::size_t members);
  bool all_have(std::uint8_t flag) const;  // and nobody is missing
  bool any_has(std::uint8_t flag) const;
  bool all_registered() const;
  bool all_inputs_registered() const;  // of an allreduce
  std::vector<int> absent() const;  // members that have joined instead
};

struct Decision {
  enum class Kind { kRelease, kFail, kFlush, kJoined, kStandstill, kOffer };
  Kind kind{};
  Release release;  // kRelease
  std::uint64_t name_hash = 0;  // kFail
  std::shared_ptr<const Error> error;  // kFail
  int last_joined = -1;  // kJoined: member
  int member = -1;  // kStandstill: who has said it
  std::vector<std::byte> payload;  // kStandstill, kOffer
  std::uint64_t to_come = 0;  // kOffer: so many bytes
};

class Negotiation {
 public:
  // `members`: the ranks of the process set in ascending order; `self`: this rank's index among them. Behind them: it is no
  // member, and follows what they decide.
  Negotiation(std::vector<Rank> members, int self);

  // Nothing is kept for each member as long as all others' logs are what `append_alike` says, and nothing differs.
  bool is_together() const { return logs_.empty(); }

  // Appends to a member's log. Throws Error{kProtocol} for an entry that no correct member appends.
  void append(int member, Entry entry);

  // Appends the entry to the logs of all other members: it is what this one has announced at its own next position.
  void append_alike(const Entry& entry);

  // Decides every round that is complete, in order.
  void decide(std::vector<Decision>& decisions);

  // True when all logs have the same length and nothing is pending: the next entries may take the short cut of
  // `skip_round`, which stands for a round that consists of the same operation on every rank.
  bool quiet() const;
  void skip_round();

  std::uint64_t length(int member) const;
  // A hash of how much each member has announced, as far as this one knows; fills and the like do not count.
  std::uint64_t seen() const;
  // Whether all that is known to be announced is decided.
  bool settled() const;
  std::uint64_t longest() const;
  // The position that is decided next.
  std::uint64_t round() const { return round_; }
  // Positions up to here have been asked to be filled.
  std::uint64_t fill_until() const { return fill_until_; }
  // Who keeps the next round from being decided although all were asked to fill their logs.
  std::vector<Rank> behind() const;
  bool joined(int member) const { return joined_[member]; }
  // Whether the member's log says that it joins, decided or not.
  bool announced_join(int member) const;
  std::vector<Rank> not_joining() const;
  // Whether the member's next entry may say that it stands there. Whoever announces before its join has ended does not
  // know where the join ends, nor how much that shifts what it announces.
  bool may_announce_at(int member, std::uint64_t position);
  // The member's log ends here: what it has announced is decided, and nothing more is waited for from it.
  void leave(int member);
  // Whether the operation stands in every log, decided or not; and the ranks whose logs it does not stand in.
  bool announced_by_all(std::uint64_t name_hash) const;
  // What the member has said of its part in the use of the name that this rank would announce, if it has refused it.
  std::shared_ptr<const Error> refusal(int member, std::uint64_t name_hash) const;
  std::vector<Rank> missing(std::uint64_t name_hash) const;
  std::vector<Rank> present(std::uint64_t name_hash) const;
  // Whether no rank before this one has announced it and waits for others: the first speaks for all that wait.
  bool is_first_to_wait(std::uint64_t name_hash) const;
  const std::vector<Rank>& members() const { return members_; }

 private:
  struct Log {
    std::uint64_t first = 0;  // position of entries.front()
    std::deque<Entry> entries;
    std::uint64_t end() const { return first + entries.size(); }
  };
  struct Pending {
    std::uint64_t order = 0;  // of creation: the order of release
    std::int32_t priority = 0;
    std::vector<Contribution> contributions;
    std::shared_ptr<const Descriptor> descriptor;  // the first one announced
    std::shared_ptr<const Error> error;  // failed: the members that have not announced it yet get it as well
    bool told_self = false;  // this rank's operation has failed already
  };

  void count(int member, const Entry& entry);
  void spread();
  static bool comes_next(const Log& own, std::size_t place, const Entry& entry);
  void gather(const Entry& next);
  void note_fill(int member, const Entry& entry);
  template <class Test>
  bool has_undecided(int member, Test test) const;
  bool is_member() const { return self_ < static_cast<int>(members_.size()); }
  bool is_missing(int member, std::uint64_t name_hash) const;
  bool decide_together(std::vector<Decision>& decisions);
  void release_together(Entry entry, std::vector<Decision>& decisions);
  void hold(const Entry& entry);
  void let_go(const std::vector<Contribution>& contributions);
  bool round_complete() const;
  bool decide_uniform_round(std::vector<Decision>& decisions);
  void decide_round(std::vector<Decision>& decisions);
  void want(int member, std::uint64_t name_hash);
  Pending& next_use(int member, const Entry& entry);
  void announce(int member, Entry& entry);
  void refuse(int member, const Entry& entry);
  void cancel(int member, const Entry& entry, std::vector<Decision>& decisions);
  void settle(std::uint64_t name_hash, std::vector<Decision>& decisions);
  void finish(std::uint64_t name_hash, Pending pending, std::vector<Decision>& decisions);
  Pending* alive(std::uint64_t name_hash, int member);
  const Pending* alive(std::uint64_t name_hash, int member) const;
  const Pending* own_use(std::uint64_t name_hash) const;
  void fail(Pending& pending, std::uint64_t name_hash, std::shared_ptr<const Error> error,
            std::vector<Decision>& decisions);
  static bool is_barrier(const Pending& pending, std::size_t member);
  void detect_deadlock(std::vector<Decision>& decisions);
  void forget(std::uint64_t name_hash, std::uint64_t order);
  std::shared_ptr<const Error> find_mismatch(const Pending& pending) const;
  std::shared_ptr<const Error> check_complete(const Pending& pending) const;
  std::string ranks_text(const std::vector<int>& member_indices) const;

  std::vector<Rank> members_;
  int self_;
  std::vector<Log> logs_;  // by member; empty while all are together
  Log own_;  // while all are together: this rank's
  std::size_t alike_ = 0;  // ... and so many of its entries are what all others have, and no more
  std::uint64_t blocked_alike_ = 0;  // ... and what all are blocked in, as in `blocked_on_`
  std::uint64_t own_said_ = 0;  // announced by this rank
  std::uint64_t alike_said_ = 0;  // by each other one at once, and beside that, empty for none:
  std::vector<std::uint64_t> said_;
  std::uint64_t round_ = 0;
  std::uint64_t next_order_ = 0;
  std::uint64_t fill_until_ = 0;
  std::size_t held_bytes_ = 0;  // of data that came along with announcements
  std::vector<bool> left_;
  std::vector<bool> joined_;
  std::vector<std::uint64_t> sat_out_;  // by member: rounds of its present join, or of the last; empty before any
  int joined_count_ = 0;
  int last_joined_ = -1;
  std::vector<std::uint64_t> blocked_on_;  // name hash; 0: not known to be blocked
  // More than one instance of a name exists only after a failure that not all members have met yet.
  std::unordered_map<std::uint64_t, std::deque<Pending>> pending_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> touched_;  // (order, name hash) announced in this round
};

}  // namespace ringcore::engine
