// What happens to released operations of one process set: fuse, plan, run, complete.
//
// Releases come in the same order on every rank, and so do the decisions taken here: which tensors share a bucket,
// which lane a task takes, which plan it runs. Lanes run side by side, and the tasks of one lane one after the other.
//
// Those with a priority are different: a more urgent one overtakes what has begun, and the next one begins when nothing
// before it has anything to send. The moments differ from rank to rank, and need not be agreed on: what has begun goes
// on, and a transfer that stands in the way is set aside, so that the most urgent task always ends.
//
// In four files: execution.cpp makes tasks of releases, execution_lanes.cpp says which of them runs when,
// execution_run.cpp takes one from its start to its end, device_release.cpp is about GPUs.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/negotiation.hpp"
#include "engine/request.hpp"
#include "engine/timeline.hpp"
#include "plan/backend.hpp"
#include "plan/chooser.hpp"
#include "plan/executor.hpp"
#include "plan/plan.hpp"
#include "transport/link.hpp"

namespace ringcore::engine {

class DeviceQueue;
struct DeviceTask;

// Slower than any network that somebody trains over: 5 MB/s.
constexpr Nanoseconds kNanosecondsPerLibraryByte = 200;

struct ExecutionSettings {
  std::size_t fusion_threshold_bytes = 64 << 20;
  bool deterministic = false;
  // A large tensor goes through the fusion buffer in slices of this size, which stay in the caches.
  std::size_t slice_bytes = 4 << 20;
  // Tensors of at least this size that all ranks registered run where they lie; smaller ones are cheaper in a bucket.
  std::size_t direct_bytes = 32 << 10;
};

// The buffers that tensors are packed into, one a data lane. They lie at the front of the arena, at the same offset on
// every rank, and so are visible to the other ranks of the host.
struct FusionBuffers {
  std::byte* arena = nullptr;  // null: no shared memory, private buffers are used
  std::size_t bytes_per_lane = 0;  // the buffer of lane l starts at (l - kFirstDataLane) * bytes_per_lane

  std::size_t offset(int lane) const { return (lane - transport::kFirstDataLane) * bytes_per_lane; }
};

// What an operation takes of the data that a member sent along with its announcement.
struct EagerPart {
  const std::byte* data = nullptr;
  std::uint64_t rows = 0;
};

// Of `rows` rows at `data`; nothing where `splits`, of an alltoall one for each member, do not fit them.
std::optional<EagerPart> eager_part(const Descriptor& descriptor, std::uint64_t rows,
                                    std::span<const std::uint64_t> splits, const std::byte* data, int self);

class Execution {
 public:
  // `links`: by member, null at self. `backends`: of this process set.
  Execution(ProcessSetId id, int self, std::vector<transport::Link*> links, plan::Topology topology,
            std::vector<std::unique_ptr<plan::Backend>> backends, FusionBuffers fusion, ExecutionSettings settings,
            const Clock& clock, Timeline& timeline);
  Execution(Execution&&) noexcept;
  ~Execution();

  // `own` is this rank's operation, null when this rank has joined. Operations that complete are moved to `done`; of a
  // group only the group itself.
  void release(Release release, std::shared_ptr<Operation> own);
  // Closes the open buckets.
  void flush();
  // Completes an operation from every member's data; `parts` by member.
  void finish_eager(std::span<const EagerPart> parts, Operation& own);
  // What ended without a task, for the timeline.
  void record_small(const Operation& operation) const;
  // Moves what can be moved. Throws Error{kProtocol}.
  bool progress();
  bool idle() const;
  // Whether GPUs have ended what was launched on them.
  bool landed() const;
  // Of GPUs, see device_release.cpp. Notes which one this rank uses in this process set. Throws
  // Error{kInvalidArgument} when it is another than before.
  void use_device(const Operation& operation);
  // Watches what runs there. Throws Error{kTimeout, kPeerLost, kResource}.
  void tend(Nanoseconds now, Nanoseconds limit);
  // What has not moved for longer than `limit` although this rank has looked after it; `elapsed`: since the last call.
  struct Still {
    std::string operation;
    std::size_t bytes = 0;
    std::vector<int> members;  // that it waits for
    std::string waits_for;
  };
  std::optional<Still> find_still(Nanoseconds elapsed, Nanoseconds limit);
  // For the log; empty when there is nothing.
  std::string take_warning() { return std::exchange(warning_, {}); }

  std::vector<std::shared_ptr<Operation>>& done() { return done_; }
  // Drops everything; the operations are failed by the engine. `leaving`: because this rank leaves in order.
  void fail(bool leaving);
  // Whether a run that has begun can go on only with this member.
  bool waits_for(int member) const;
  // What libraries (MPI) carry out at the moment, and how often they have ended something.
  struct LibraryWork {
    std::size_t bytes = 0;
    std::uint64_t ended = 0;
  };
  LibraryWork library_work() const;
  // What a running operation waits for, for error messages; empty when none runs.
  std::string describe_running() const;

 private:
  struct Task;

  // A release, or, without one, a wish to close the buckets, that waits until what came before is decided.
  struct Deferred {
    std::optional<Release> release;
    std::shared_ptr<Operation> own;
  };

  // What waits and runs there, the most urgent first, and of equals the one that was released first.
  struct Lane {
    std::deque<std::unique_ptr<Task>> tasks;
    int begun = 0;
  };

  int size() const { return topology_.ranks(); }
  bool in_place_for_all(const Release& release) const;
  void release_row(Release& group, const std::shared_ptr<Operation>& own);
  void release_now(Release release, std::shared_ptr<Operation> own);
  void defer(Release release, std::shared_ptr<Operation> own);
  void use_gpus();
  void greet(std::span<const std::byte> message);
  bool agree_on_gpus();
  bool progress_device();
  bool release_deferred();
  bool fetched(const Descriptor& descriptor, Operation& own);
  void launch(const std::shared_ptr<const Descriptor>& described, std::shared_ptr<Operation> own, Release& release);
  void launch_buckets();
  void release_parts(Release& group, const std::shared_ptr<Operation>& own);
  void release_one(const std::shared_ptr<const Descriptor>& descriptor, std::shared_ptr<Operation> own,
                   Release& release);
  Task* open_bucket(const Release& release, const Descriptor& descriptor, std::size_t bytes);
  std::size_t bucket_bytes() const;
  void complete(std::shared_ptr<Operation> operation);
  void complete_small(std::shared_ptr<Operation> operation);
  bool refuse_capture(const Descriptor& descriptor, Operation& own);
  void finish_alone(Operation& own) const;
  void gather_eager(std::span<const EagerPart> parts, Operation& own) const;
  void reduce_eager(std::span<const EagerPart> parts, Operation& own);
  void schedule(std::unique_ptr<Task> task);
  bool slices(const Task& task) const;
  bool progress_lane(Lane& lane);
  bool make_way(int lane);
  bool advance(Task& task, bool& moved);
  void start(Task& task);
  void start_allreduce(Task& task);
  void start_allgather(Task& task);
  void start_broadcast(Task& task);
  void start_reducescatter(Task& task);
  void start_alltoall(Task& task);
  void run(Task& task, plan::Query query, plan::Operands operands, const std::vector<std::uint64_t>& blocks = {},
           const std::vector<std::uint64_t>& input_blocks = {});
  void run_plan(Task& task, const plan::Plan& plan, plan::Operands operands);
  bool agree_on_times(Task& task);
  void copy_first(Task& task, std::byte* to, const std::byte* from, std::size_t bytes);
  bool copy_piece(Task& task);
  void start_slice(Task& task);
  bool next_slice(Task& task);
  void use_fusion_arena(Task& task, std::size_t bytes, plan::Operands& operands);
  void place_in_fusion_buffer(Task& task, plan::Operands& operands);
  void place_alone(Task& task, plan::Operands& operands);
  void finish(Task& task);
  void record_steps(const Task& task);
  void record_spans(const Task& task, Nanoseconds ran_at);

  ProcessSetId id_;
  int self_;
  std::vector<transport::Link*> links_;
  plan::Topology topology_;
  FusionBuffers fusion_;
  ExecutionSettings settings_;
  const Clock& clock_;
  Timeline& timeline_;
  plan::Chooser chooser_;
  std::vector<std::unique_ptr<Task>> buckets_;  // open: more tensors may join them
  std::array<Lane, transport::kLaneCount> lanes_;
  std::array<Memory, transport::kLaneCount> private_fusion_;
  std::vector<const std::byte*> eager_sources_;
  std::uint64_t next_run_ = 0;
  std::uint64_t library_ended_ = 0;
  std::vector<std::shared_ptr<Operation>> done_;

  // GPUs.
  struct DeviceBucket {
    std::unique_ptr<DeviceTask> task;
    std::vector<int> absent;
    std::size_t bytes = 0;
  };
  int used_device_ = kHost;
  std::unique_ptr<DeviceQueue> device_;  // from the first operation on
  std::shared_ptr<Operation> greeting_;  // gathers what the members tell each other of them
  std::vector<DeviceBucket> device_buckets_;
  std::deque<Deferred> deferred_;
  std::string warning_;
};

}  // namespace ringcore::engine
