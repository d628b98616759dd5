// What becomes of the released operations of one process set: which share a task, which carrier takes it, when it runs.
//
// Releases come in the same order on every rank, and so do the decisions taken here: which tensors share a bucket,
// which lane a task takes, which carrier has it. Lanes run side by side, and the tasks of one lane one after the other.
//
// Those with a priority are different: a more urgent one overtakes what has begun, and the next one begins when nothing
// before it has anything to send. The moments differ from rank to rank, and need not be agreed on: what has begun goes
// on, and a transfer that stands in the way is set aside, so that the most urgent task always ends.
//
// In four files: schedule.cpp makes tasks of releases, schedule_lanes.cpp says which of them runs when,
// schedule_carriers.cpp is about carriers that have something to tell each other, or to bring, before they can work,
// schedule_small.cpp is about what needs none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/carrier.hpp"

namespace ringcore::engine {

// Slower than any network that somebody trains over: 5 MB/s.
constexpr Nanoseconds kNanosecondsPerLibraryByte = 200;

// What an operation takes of the data that a member sent along with its announcement.
struct EagerPart {
  const std::byte* data = nullptr;
  std::uint64_t rows = 0;
};

// Of what a member announced, and sent along to lie at `data`; nothing where its splits do not fit its rows.
std::optional<EagerPart> eager_part(const Descriptor& descriptor, const Contribution& from, int members,
                                    const std::byte* data, int self);

class Schedule {
 public:
  Schedule(const CarrierConfig& config, const CarrierFactory& make_carriers);
  Schedule(Schedule&&) noexcept = default;

  // This rank submits an operation whose tensors lie on a device: the carrier that has to do with it notes what it needs.
  // Throws Error{kInvalidArgument, kResource}.
  void admit(Operation& operation);
  // `own` is this rank's operation, null when this rank has joined. Operations that complete are moved to `done`; of a
  // group only the group itself.
  void release(Release release, std::shared_ptr<Operation> own);
  // Closes the open buckets.
  void flush();
  // On a server: what was released before is chosen for without this plan from outside, what is released later with it.
  void offer(std::vector<std::byte> offer);
  // Since when the oldest of them has been open; nothing where none is.
  std::optional<Nanoseconds> open_since() const;
  // Whether what was released may be in an open bucket, or come into one.
  bool may_hold_open() const { return !buckets_.empty() || !deferred_.empty(); }
  // Completes an operation from every member's data; `parts` by member.
  void finish_eager(std::span<const EagerPart> parts, Operation& own);
  // What ended without a task, for the timeline.
  void record_small(const Operation& operation) const;
  // Moves what can be moved. Throws Error{kProtocol, kPeerLost, kResource}.
  bool progress();
  // In lanes where nothing moves: takes out of the way what may stand in that of another process set. True if anything
  // did. Throws Error{kProtocol}.
  bool make_way();
  bool idle() const { return tasks_ == 0 && deferred_.empty(); }
  // Whether devices have ended what was launched on them.
  bool drained() const;
  // The same, after a look at what devices have ended since.
  bool forget_ended();
  // Looks after what was launched. Throws Error{kTimeout, kPeerLost, kResource}.
  void watch(Nanoseconds now, Nanoseconds limit);
  // What has not moved for longer than half of `limit` although this rank has looked after it; `elapsed`: since the last
  // call.
  struct Still {
    bool too_long = false;  // longer than all of `limit`
    std::string operation;
    std::size_t bytes = 0;
    std::vector<int> members;  // that it waits for
    std::string waits_for;
  };
  std::optional<Still> find_still(Nanoseconds elapsed, Nanoseconds limit);
  // For the log.
  std::vector<std::string> take_warnings() { return std::exchange(warnings_, {}); }

  std::vector<std::shared_ptr<Operation>>& done() { return done_; }
  // Drops everything; the operations are failed by the engine. `leaving`: because this rank leaves in order.
  void fail(bool leaving);
  // Whether a run that has begun can go on only with this member; in this lane, or in any.
  bool waits_for(int member, std::optional<int> lane = {}) const;
  // What libraries (MPI) carry out at the moment, and how often they have ended something.
  struct LibraryWork {
    std::size_t bytes = 0;
    std::uint64_t ended = 0;
  };
  LibraryWork library_work() const;
  // What a running operation waits for, for error messages; empty when none runs.
  std::string describe_running() const;

 private:
  // A carrier, and how far the members have come with its messages.
  struct Post {
    std::unique_ptr<Carrier> carrier;
    std::size_t bucket_bytes = 0;  // these four are the carrier's, which is not asked for each operation
    std::size_t shared_bytes = 0;
    std::size_t partition_bytes = 0;
    bool completes_at_launch = false;
    bool ready = false;  // for some operations: for each that was released
    std::shared_ptr<Operation> exchange;  // the allgather of the present message
  };

  // A release, a plan from outside, or, without either, a wish to close the buckets, that waits until what came before is
  // decided.
  struct Deferred {
    std::optional<Release> release;
    std::shared_ptr<Operation> own;
    Post* post = nullptr;  // of the carrier that the release concerns, which may not be ready
    std::vector<std::byte> offer;
  };

  // What waits and runs there, the most urgent first, and of equals the one that was released first.
  struct Lane {
    std::deque<std::unique_ptr<Task>> tasks;
    int begun = 0;
  };

  // A part of a tensor that is cut.
  struct Piece;

  int size() const { return size_; }
  bool in_place_for_all(const Release& release) const;
  bool lies_ready_for_all(const Release& release) const;
  void release_row(Release& group, const std::shared_ptr<Operation>& own);
  void release_now(Release release, std::shared_ptr<Operation> own);
  void release_parts(Release& group, const std::shared_ptr<Operation>& own);
  bool share_task(const Release& group, std::size_t index, const std::shared_ptr<Operation>& part,
                  std::vector<std::unique_ptr<Task>>& shared);
  void queue_shared(std::unique_ptr<Task> task);
  void release_one(const std::shared_ptr<const Descriptor>& descriptor, std::shared_ptr<Operation> own,
                   Release& release);
  void release_cut(const std::shared_ptr<const Descriptor>& descriptor, const std::shared_ptr<Operation>& own,
                   const Release& release, std::size_t partition_bytes);
  bool finish_small(const Descriptor& descriptor, std::shared_ptr<Operation>& own, const Release& release);
  void finish_alone(Operation& own) const;
  void gather_eager(std::span<const EagerPart> parts, Operation& own) const;
  void reduce_eager(std::span<const EagerPart> parts, Operation& own);
  std::unique_ptr<Task>* open_bucket(const Post& post, const Release& release, const Descriptor& descriptor,
                                     const Operation* own, std::size_t bytes);
  void close_buckets(const std::function<bool(const Task&)>& which);
  void complete(std::shared_ptr<Operation> operation);
  void record_launch(const Task& task) const;
  void complete_small(std::shared_ptr<Operation> operation);

  Post* find_concerned(const Descriptor& descriptor);
  Post& find_post(const Descriptor& descriptor);
  void number_devices(Operation& operation);
  bool prepare(Post& post, const Descriptor& descriptor);
  void exchange(Post& post, std::span<const std::byte> message);
  bool release_deferred();
  static bool fetched(Carrier& carrier, const Descriptor& descriptor, Operation& own);
  bool refuse(Carrier& carrier, const Descriptor& descriptor, const std::shared_ptr<Operation>& own);

  void queue(std::unique_ptr<Task> task);
  std::optional<int> launch_lane(const Carrier& carrier) const;
  bool progress_lane(Lane& lane);
  bool make_way(int lane);
  void start(Task& task);
  void finish(Task& task);

  ProcessSetId id_;
  int self_;  // among the nodes
  int size_;  // members
  int nodes_;  // with the servers
  ExecutionSettings settings_;
  const Clock& clock_;
  Timeline& timeline_;
  std::vector<Post> posts_;  // in the order in which they are asked
  std::vector<std::unique_ptr<Task>> buckets_;  // open, the oldest first: more tensors may join them
  std::vector<Lane> lanes_;  // those of the links, and one behind them for each post, where tasks end at their launch
  std::size_t tasks_ = 0;  // in all of them
  std::vector<const std::byte*> eager_sources_;
  std::vector<int> devices_;  // that this rank uses here, by `Descriptor::device_index`
  std::uint64_t next_run_ = 0;
  std::uint64_t library_ended_ = 0;
  std::vector<std::shared_ptr<Operation>> done_;
  std::deque<Deferred> deferred_;
  std::vector<std::string> warnings_;
};

}  // namespace ringcore::engine
