// The engine of one rank: a state machine that an operation enters with `submit` and leaves when it is done.
//
// It has no thread, opens no socket and reads no clock of its own: links and clock are handed in, and somebody calls
// `progress` (when bytes may have arrived) and `check_timers` (when time has passed). In production that is the Runtime,
// in tests the simulated network. All calls come from one thread at a time.
//
// The way of an operation: submit -> a record to every member (announce) -> Negotiation decides the round ->
// Schedule puts it into a task, and a carrier carries it out -> done. A small awaited operation takes its data along in the record.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "engine/membership.hpp"
#include "engine/negotiation.hpp"
#include "engine/record.hpp"
#include "engine/request.hpp"
#include "engine/schedule.hpp"
#include "engine/set_numbers.hpp"
#include "engine/standstill.hpp"
#include "engine/timeline.hpp"
#include "engine/tree_items.hpp"
#include "engine/tree_shape.hpp"
#include "transport/link.hpp"
#include "transport/readiness.hpp"
#include "transport/shm/segment.hpp"

namespace ringcore::engine {

struct View;  // see view.hpp
struct UnderWay;

struct EngineSettings {
  ExecutionSettings execution;
  // In a process set of more members than this, logs travel along a tree instead of from each to each: two journeys along
  // its depth then take less than a record to and from every other member.
  int direct_members = 16;
  int tree_degree = TreeShape::kDegree;  // so many children has a host's first rank there
  // An awaited operation carries its data in the announcement as long as a rank then sends no more than this, to all
  // others together: at most kMaxPayloadBytes.
  std::size_t eager_limit_bytes = kMaxPayloadBytes;
  // An operation that some rank has not submitted, or of which nothing moves, fails after this time.
  Nanoseconds timeout = 300 * kSecond;
  // ... and is reported after this one (0: never).
  Nanoseconds stall_warning = 5 * kSecond;
  // When all threads of a rank have waited for so long, the others are told for what: a deadlock may be the reason.
  Nanoseconds standstill = kSecond;
  // A peer that has sent nothing for this long is lost.
  Nanoseconds heartbeat = 2 * kSecond;
  // Before it has greeted it may still be connecting with others: it may be silent for this long, if that is longer.
  Nanoseconds start = 0;
  // The others go on when some are lost; else all fail.
  bool elastic = false;
  // Whoever cannot agree with enough others who goes on fails after this time.
  Nanoseconds elastic_timeout = 600 * kSecond;
};

// Where this rank stands in the job, and what it is connected with.
struct EngineConfig {
  Rank rank = 0;
  std::uint32_t epoch = 0;
  std::vector<std::unique_ptr<transport::Link>> links;  // by rank, null at `rank`
  std::vector<int> host_of;  // by rank; ranks of one host share memory
  int serving = 0;  // the last so many ranks are servers, which submit nothing in the world, see add_process_set
  plan::Links network;  // what is told of it; hosts by these numbers
  transport::Readiness* readiness = nullptr;  // of sockets that links watch together, which outlives the engine
  transport::Arena* arena = nullptr;  // null: no registered memory
  std::byte* fusion_arena = nullptr;  // see CarrierConfig
  CarrierFactory make_carriers;  // see carriers/standard.hpp
  bool has_witness = false;  // see ViewChange
  bool joins = false;  // a job that runs: this rank is a member once the others have let it in, see joining.cpp
};

// An operation that this rank waits for, as somebody who looks at a running job is told.
struct Pending {
  std::string title;  // "allreduce 'x'"
  Nanoseconds since = 0;  // when it was submitted; 0: that was not noted
  bool released = false;  // all ranks have submitted it
  std::vector<Rank> missing;  // those that have not
};

class Engine {
 public:
  Engine(EngineConfig config, EngineSettings settings, const Clock& clock);
  ~Engine();

  Rank rank() const { return membership_.self(); }
  int size() const { return membership_.size(); }
  // In a process set; -1 where this rank is no member. Servers are counted behind the members.
  Rank rank(ProcessSetId set) const;
  int size(ProcessSetId set) const;

  // Throws Error{kInvalidArgument, kDuplicateName} or why the engine has failed. Anything that concerns other ranks too
  // ends up in the operation's `error` instead, on all of them.
  // `held`: more is about to come, and the others hear of all of it together, with the next `progress`.
  void submit(const std::shared_ptr<Operation>& operation, bool held = false);
  // This rank does not submit what it was asked to, and `why` says so: whoever submits it is told at once, and for
  // names it counts as submitted. `submit` does this by itself for what it refuses.
  void refuse(ProcessSetId set, const std::string& name, const std::string& why);
  // On the first rank of a job with servers, while nothing is under way on any rank: the servers take the plan::Offer, in
  // its bytes, into account from this place of the order of all operations on. The job fails where it is wrong.
  void offer(std::span<const std::byte> offer);
  // A thread is about to wait for the operation: closes open buckets, so that it can run.
  // `only_thread`: no other thread of this rank uses the engine, so that this rank announces nothing more until then.
  void wanted(Operation& operation, bool only_thread);
  // To be said before each `check_timers`: every thread of this rank that might submit anything waits, for these, until
  // they are done. Nothing: not so, or no longer.
  void all_wait(std::span<const Operation* const> operations);
  // A thread no longer waits for something that is not done.
  void gave_up();

  // Moves what can be moved; true if anything did. Never blocks, never throws: errors end up in the operations.
  bool progress();
  // Timers: heartbeats, stalled operations, lost peers. `idle`: nothing has moved for a moment.
  void check_timers(bool idle);
  Nanoseconds timer_interval() const;
  // Whether one of them is to be closed after a while: timers are looked after every millisecond then.
  bool has_open_buckets() const;

  // Members in ascending order. Either every rank of the job adds the set, in the same order as it adds and removes other
  // ones; or only its members do, in any order, under a number that they have agreed on: from 1, and never used before.
  // Of these sets servers may be members, as all others: there they submit what they give and what they want.
  ProcessSetId add_process_set(std::vector<Rank> members, std::optional<ProcessSetId> agreed = {});
  void remove_process_set(ProcessSetId id);

  // Before this rank leaves in order: brings what all ranks have announced to its end, as `progress` and `check_timers`
  // go on. True when nothing is left of it, also on GPUs, or after a failure, which aborts it.
  bool wind_down();
  // Tells the others that this rank leaves; operations that need it fail there with this reason. Call progress() until
  // `farewell_seen`: then no peer needs this rank's links any more.
  void leave(const std::string& reason);
  bool farewell_seen() const;
  // Whether the end of something that this rank has sent would be lost if its links ended now.
  bool holds_unsent() const;
  // Fails everything that is pending here, and whatever is submitted later.
  void fail(const std::shared_ptr<const Error>& error);
  std::shared_ptr<const Error> failure() const { return failure_; }

  // Elastic jobs. While others are lost nothing runs; then ranks and sizes are those of the next epoch. What was under way
  // is done again by those who go on, if all of it can be, see in_flight.cpp; else it fails with kMembershipChanged, and so
  // does all that is submitted until the caller has taken note. What names ranks fails until then in either case.
  std::shared_ptr<const Error> change() const;  // null: there is none to take note of
  // What is launched on GPUs is done for the caller before they have ended it, and worthless where members were lost in
  // between. Goes on with what this rank has submitted, as if somebody waited for it; whether that is settled: all of it has
  // ended, or there is a change to take note of, which `lost_results`.
  bool settle_devices();
  bool lost_results() const;
  void accept_change(std::uint32_t epoch);
  // The caller goes back to an earlier state when ranks are lost: then what is under way is to fail on all of them.
  void fail_on_change(bool fails);
  // These are busy with each other, for as long as it takes: what has yet to be submitted by them alone is not late, till all
  // have come to an operation again.
  void excuse(std::vector<Rank> ranks);
  // Of any epoch so far; of the present one where there was no such.
  const std::vector<Place>& members_of(std::uint32_t epoch) const;
  bool frozen() const;
  // Elastic jobs that grow. A process that has been connected with, at a place that nobody has had yet.
  void meet(Place place, std::unique_ptr<transport::Link> link);
  // Who has met all members, and wants to be let in.
  std::vector<Place> arrivals() const;
  // The caller is at a place in the program where whoever joins can go on with the others, and submits nothing: when all
  // members are, this one becomes a member. Nobody: not any more; not to be said while `frozen`.
  void let_in(std::optional<Place> place);
  // Whether the caller is to wait for it still: it is no member yet, but may become one.
  bool is_letting_in() const;
  // In a process that joins: its caller is ready to be a rank. From then on the members may have to wait for it.
  void become_member();
  // Whether this rank is a member, and the present epoch has begun.
  bool has_joined() const { return membership_.is_member() && !frozen() && !draining(); }
  // Of elastic jobs: for how long this rank has waited, with nothing more to announce, until all had announced what it had.
  // Whoever is the last to announce waits for nobody.
  Nanoseconds waited_for_others() const;
  // Says once that former members were lost: nobody looks at their links any more, which `accept_change` closes.
  bool take_links_changed() { return std::exchange(links_changed_, false); }
  // What the witness is to be told, and what it says.
  bool asks_witness() const;
  std::vector<std::vector<std::byte>> take_for_witness();
  void hear_witness(std::span<const std::byte> message);
  void lose_witness();

  const Membership& membership() const { return membership_; }
  // Whether this rank is a server, and whether all that it serves have left in order.
  bool serves() const { return is_server(rank()); }
  bool has_served() const;
  // Whoever has made the links has connected some of them.
  void links_changed();
  // Whether what is under way can only go on when this lane to the member is there: an operation that wanted it may have
  // ended without it, when members changed.
  bool needs_lane(Place place, int lane) const;
  // After `leave`: closes all links.
  void disconnect();
  bool busy() const;  // operations are pending, or bytes wait to be written
  bool running() const;  // a plan is under way: peers wait for its next step
  bool in_short_cut() const { return eager_.operation != nullptr; }  // and nothing else goes on
  Timeline& timeline() { return timeline_; }
  // Null: links do not watch their sockets together.
  const transport::Readiness* readiness() const { return readiness_; }

  // What this rank has submitted and does not have back, and how many it has.
  std::vector<Pending> pending() const;
  std::uint64_t completed() const { return completed_count_; }

  // Operations that are done and have somebody to tell (`on_done`), in the order in which they ended.
  bool has_callbacks() const { return callbacks_ > 0; }  // some of them are pending
  std::vector<const Operation*> with_callbacks() const;
  bool has_completed() const { return !completed_.empty(); }
  std::vector<std::shared_ptr<Operation>> take_completed() { return std::exchange(completed_, {}); }

  bool wants_attention() const { return stack_requested_ || !warnings_.empty() || loss_unreported_ || asks_witness(); }
  // Messages for the log, oldest first.
  std::vector<std::string> take_warnings() { return std::move(warnings_); }
  // A peer wants to know where this rank's threads stand: answer with `reply_stacks`.
  bool take_stack_request();
  void reply_stacks(const std::string& text);
  // The rank whose end has made an operation of this rank fail, or the engine; the first of several.
  std::optional<Rank> lost_rank() const { return blame_ ? std::optional(blame_->rank) : std::nullopt; }
  // The rank that has noticed it first: this one, or the one that all have heard it from in the end.
  std::optional<Rank> loss_seen_by() const { return blame_ ? std::optional(blame_->seen_by) : std::nullopt; }
  void take_loss() { loss_unreported_ = false; }

 private:
  struct ProcessSet;
  struct Elastic;

  // Who made the others fail, and who has noticed it.
  struct Blame {
    Rank rank = 0;
    Rank seen_by = 0;
  };

  // Why a member announces nothing more.
  struct LogEnd {
    ErrorKind kind{};
    Rank rank = 0;  // whose doing it is
    std::string what;  // "has left" ...
    std::string remedy;
    Rank first_left = 0;
    std::string why;  // as the one said who left first
  };

  std::optional<std::uint64_t> input_apart(const Operation& operation) const;
  std::optional<std::uint64_t> registered_at(const Operation& operation) const;
  bool has_operation(const ProcessSet& set, std::uint64_t name_hash) const;
  void claim_name(Operation& operation);
  bool goes_eagerly(const ProcessSet& set, const Operation& operation) const;
  void enter(ProcessSet& set, const std::shared_ptr<Operation>& operation, bool eager);
  bool introduce(ProcessSet& set, const Operation& operation);
  void announce(ProcessSet& set, RecordHeader header, const Operation& operation);
  bool may_stay_in_bucket(const ProcessSet& set, const Operation& operation) const;
  void close_buckets(ProcessSet& set, const RecordHeader& header);
  void take_offer(ProcessSet& world, const Decision& decision);
  void append_own(ProcessSet& set, RecordHeader header, std::span<const std::byte> payload = {});
  void prepare(ProcessSet& set, Operation& operation);
  void broadcast(ProcessSetId id, RecordHeader header, std::span<const std::byte> payload);
  void tell_known(RecordHeader header, std::span<const std::byte> payload);
  void tell_failure(Peer& peer);
  void say_hello(Peer& peer);
  void send(Peer& peer, std::span<const std::byte> record);
  void send(Peer& peer, RecordHeader header, std::span<const std::byte> rest);
  void send_tree_record(Peer& peer, ProcessSetId id, std::span<const std::byte> body);
  void write(Peer& peer, std::span<const std::byte> first, std::span<const std::byte> rest);
  bool flush_backlog(Peer& peer);
  bool flush_last_words();

  struct EagerSplits {
    const std::byte* data;  // maybe in a record, where they need not be aligned
    std::size_t count;
  };
  bool note_eager(const ProcessSet& set, const Descriptor& descriptor, int member, const RecordHeader& header,
                  EagerSplits splits, const std::byte* data);
  bool start_eager(ProcessSet& set, const std::shared_ptr<Operation>& operation);
  bool progress_eager();
  bool make_way();
  bool move();
  void leave_eager();
  void fill(ProcessSet& set, std::uint64_t until, const Operation* blocked_in);

  // What has come on a peer's lane for control.
  static std::span<const std::byte> peek_control(Peer& peer);
  bool read_control(Peer& peer);
  void receive(Peer& peer, const RecordView& record);
  void receive_entry(Peer& peer, const RecordView& record);
  void receive_hello(Peer& peer, const RecordView& record);
  void keep_early(const Peer& peer, const RecordView& record);
  void replay_early(ProcessSetId id);

  void receive_tree(Peer& peer, const RecordView& record);
  void append_to_tree(ProcessSet& set, Entry entry);
  bool goes_along_tree(const ProcessSet& set, const Operation& operation, bool registered) const;
  void send_along_tree(ProcessSet& set);
  void settle_tree(ProcessSet& set);
  void drop_tree(ProcessSet& set);
  void unwind(ProcessSet& set);
  TreeEnd end_by(const ProcessSet& set, bool removes) const;
  static TreeEnd end_by(const ProcessSet& set, const Peer& peer);
  static LogEnd end_of(const ProcessSet& set, const TreeEnd& end);
  void leave_trees();
  void break_trees(const Peer& peer);
  void break_late(ProcessSet& set);
  void advance_tree(ProcessSet& set, Nanoseconds now);
  void move_trees();
  void say_goodbye();
  void tell_goodbye();
  void tell_goodbye(Peer& peer);
  std::vector<std::byte> goodbye_record() const;
  std::pair<Rank, std::string> farewell() const;
  void decide(ProcessSet& set);
  void apply(ProcessSet& set, Decision& decision);
  void collect_done(ProcessSet& set);
  void end_join(ProcessSet& set, const std::shared_ptr<const Error>& error);
  void check_watch(const ProcessSet& set, const Operation& watch) const;
  void start_watch(ProcessSet& set, const std::shared_ptr<Operation>& watch);
  void look_at_watches(ProcessSet& set);
  // Those for which there is an error.
  void fail_watches(ProcessSet& set, const std::function<std::shared_ptr<const Error>(const Operation&)>& why);
  bool watches_anything() const;
  void complete(const std::shared_ptr<Operation>& operation, std::shared_ptr<const Error> error);

  void fail_operation(const std::shared_ptr<Operation>& operation, std::shared_ptr<const Error> error);
  void record_failure(const Operation& operation);

  bool goes_on_without_others() const;
  // Whether the next view is known: what comes from now on may be of the next epoch.
  bool epoch_ends() const;
  // Whether the lanes still have what was written before the present epoch: nobody but `drain_lanes` may take of it.
  bool draining() const;
  void part_with(Peer& peer, const std::string& why, bool ended);
  void turn_away(Peer& peer, bool ended);
  bool asks(const Peer& peer) const;
  bool has_met_all(const Peer& peer) const;
  void turn_away_who_misses_members(Nanoseconds now);
  bool refuse_arrival(Peer& peer, const Error& error);
  void tell_turned_away(Place place);
  void ask_to_be_let_in();
  bool choose_host();
  void tell_host(Peer& peer);
  RecordHeader arrival() const;
  void receive_arrival(Peer& peer, const RecordView& record);
  void receive_let_in(Peer& peer, const RecordView& record);
  void tell_let_in();
  void note_let_in(Place place, Place by);
  void receive_view(Peer& peer, const RecordView& record);
  void follow_views();
  void advance_views(Nanoseconds now);
  void freeze();
  bool hold_back(ProcessSet& set, const std::shared_ptr<Operation>& operation);
  void keep_input(Operation& operation);
  bool can_repeat(Operation& operation) const;
  bool carry_out(ProcessSet& set, Operation& operation);
  static bool all_have_results(const ProcessSet& set, const Operation& operation);
  void receive_carried_out(Peer& peer, const RecordView& record);
  void release_results();
  void end_operation(ProcessSet& set, const std::shared_ptr<Operation>& operation);
  bool is_ahead(const RecordHeader& header) const;
  void keep_ahead(Peer& peer, const RecordView& record);
  void hear_ahead();
  void hear(Peer& peer, const RecordView& record);
  static bool may_hold_old_data(const Peer& peer);
  void end_carried_out(ProcessSet& set, const std::vector<std::uint64_t>& numbers);
  UnderWay stand_still();
  std::vector<std::shared_ptr<Operation>> take_repeated(const UnderWay& under_way);
  void repeat(const std::vector<std::shared_ptr<Operation>>& operations);
  bool begin_epoch();
  bool are_fenced(const std::vector<Place>& former) const;
  std::string describe_losses(const std::vector<Place>& of) const;
  void note_released(const ProcessSet& set);
  void be_evicted(const View& view);
  void go_on_with(const View& view, const std::vector<Place>& lost);
  std::shared_ptr<const Error> describe_change(const std::string& lost, const std::vector<Place>& joined,
                                               int before) const;
  void drop_world(const Error& error);
  bool is_server(Rank rank) const { return rank >= size() - serving_; }
  std::string title_of(Rank rank) const;
  void tell(const ProcessSet& set, std::span<const std::byte> record);
  void make_process_set(ProcessSetId id, std::vector<Rank> members);
  void tell_lanes();
  void receive_lanes(Peer& peer, const RecordView& record);
  bool drain_lanes();

  void check_patience(Nanoseconds now);
  Nanoseconds patience_for(const Peer& peer) const;
  bool is_silent(const Peer& peer, Nanoseconds now) const;
  bool may_be_heard_yet(Peer& peer, Nanoseconds now) const;
  void advance_links(Nanoseconds now, bool idle);
  void close_old_buckets(ProcessSet& set, Nanoseconds now);
  void advance_alignment(ProcessSet& set, Nanoseconds now);
  void align(ProcessSet& set);
  void check_standstill(Nanoseconds now);
  bool is_stuck(const Operation& operation);
  Standstill make_standstill() const;
  void note_standstill(const ProcessSet& world, const Decision& decision);
  void find_deadlock();
  void cancel(ProcessSet& set, Operation& operation, std::uint8_t flags, const std::string& why);
  void check_stalls(ProcessSet& set, Nanoseconds now);
  void advance_runs(ProcessSet& set, Nanoseconds elapsed);
  static std::string who_submitted(const ProcessSet& set, const Operation& operation);
  bool runs_wait_for(const Peer& peer, std::optional<int> lane = {}) const;
  bool awaits(const Peer& peer) const;
  bool may_say_why(Peer& peer, Nanoseconds now) const;
  bool lacks_processor(Peer& peer, Nanoseconds now);
  static std::string describe_silence(const Peer& peer, Nanoseconds now);
  void beat(Peer& peer, Nanoseconds now, bool awaited);
  void send_heartbeat(Peer& peer, bool asks);
  std::string describe_withheld(const std::vector<Rank>& ranks) const;
  bool is_excused(const ProcessSet& set, const std::vector<Rank>& missing) const;
  void check_stall(ProcessSet& set, Operation& operation, Nanoseconds now);
  void check_join(ProcessSet& set, Nanoseconds now);
  void report_stall(const Operation& operation, Nanoseconds waited, const std::string& why,
                    const std::vector<Rank>& missing);
  void lose(Peer& peer, const std::string& why);
  void suffer_from(const Blame& blame);
  void give_up_carrier(const Error& error);
  void give_up_backends(const Error& error);
  Blame blame_for(const RecordHeader& abort) const;
  void fail_operations_needing(Peer& peer);
  void fail_operations_needing(ProcessSet& set, Peer& peer);
  static LogEnd leaving(Rank rank, Rank first, const std::string& why);
  static LogEnd leaving(const Peer& peer) { return leaving(peer.rank, peer.first_left, peer.farewell); }
  static LogEnd removal(const ProcessSet& set, Rank by);
  bool end_log(ProcessSet& set, int member, const LogEnd& end);
  std::shared_ptr<const Error> ended_error(ProcessSet& set, const Operation& operation, const LogEnd& end) const;
  // What all ranks are told, if that is why the member has left.
  std::shared_ptr<const Error> told_as(const LogEnd& end) const;
  [[noreturn]] void throw_ended(const ProcessSet& set, const Operation& operation, const LogEnd& end) const;
  void tell_removal(const ProcessSet& set);
  std::string pending_summary() const;

  transport::Readiness* readiness_;
  transport::Arena* arena_;
  std::byte* fusion_arena_;
  CarrierFactory make_carriers_;
  const int serving_;
  const plan::Links network_;
  EngineSettings settings_;
  const Clock& clock_;
  Timeline timeline_;
  Membership membership_;
  std::map<ProcessSetId, std::unique_ptr<ProcessSet>> sets_;
  // Removed here, while others are still reached through this rank.
  std::map<ProcessSetId, std::unique_ptr<ProcessSet>> removed_sets_;
  SetNumbers set_numbers_;
  std::unique_ptr<Elastic> elastic_;  // null: when a rank is lost, all fail
  bool links_changed_ = false;
  std::shared_ptr<const Error> failure_;
  std::shared_ptr<const Error> told_;  // the last failure of an operation that all ranks decided
  std::vector<std::string> warnings_;
  bool stack_requested_ = false;
  std::optional<std::pair<Rank, std::string>> first_farewell_;  // who left first, and why
  std::optional<Blame> blame_;
  bool loss_unreported_ = false;
  bool left_ = false;
  std::optional<std::string> goodbye_;  // this rank leaves, with this reason
  bool said_goodbye_ = false;  // and those whom it is connected with are told
  Nanoseconds timers_checked_ = 0;
  Nanoseconds last_check_ = 0;  // of the links
  std::uint64_t library_ended_ = 0;  // when it was last looked
  Rank withheld_by_ = -1;  // whose data this rank has waited for longer than half of what it may take; -1: nobody's
  Nanoseconds patience_ = 0;  // a peer that has sent nothing for this long is lost
  std::vector<Decision> decisions_;
  std::vector<std::byte> offer_;  // on a server: of which the rest is still to come
  std::vector<std::shared_ptr<Operation>> completed_;
  int callbacks_ = 0;  // of operations that are not done
  std::uint64_t completed_count_ = 0;

  // Whether all threads of this rank wait; and what all ranks say of that.
  struct Standing {
    bool now = false;
    std::vector<const Operation*> waits;
    Nanoseconds since = 0;
    std::vector<std::byte> said;  // what the others were told last
    Standstills all;
  } standstill_;

  // The eager operation that this rank waits for, while nothing else goes on in its process set: its peers' records are
  // looked for at the front of their lanes, and used where they lie.
  struct Eager {
    std::shared_ptr<Operation> operation;
    ProcessSet* set = nullptr;
  } eager_;
  std::vector<EagerPart> eager_parts_;  // by member
  std::vector<Contribution> eager_contributions_;  // by member, where rows may differ
  std::vector<std::size_t> eager_record_bytes_;  // by member
  std::vector<std::byte> eager_record_;
  bool holds_ = false;  // what is written waits in the backlogs

  // Records for a process set that this rank has not added yet, or whose tree has not ended here.
  struct EarlyRecord {
    Rank rank;
    ProcessSetId process_set;
    std::vector<std::byte> bytes;
  };
  std::vector<EarlyRecord> early_records_;
  std::size_t early_bytes_ = 0;
};

}  // namespace ringcore::engine
