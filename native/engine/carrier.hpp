// Who carries out operations: the border between what decides (schedule.hpp) and what moves data (carriers/).
//
// A carrier serves one process set. The schedule offers every released operation to the carriers in their order, and the
// first one that takes it gets it, as a task: one operation, the allreduces of a bucket, or small gathers or scatters of a
// group. What a carrier answers must be the same on every rank, because the ranks do not ask each other; where that needs something of the others (which
// GPUs they have, where their memory lies), the carrier has a message to exchange, and the schedule lets nothing pass
// until all have it.
//
// An operation is done when its run is done. For a carrier that completes at launch that means: when it was given to a
// stream of a device, which goes on by itself. The carrier then watches what was launched until it has ended there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "engine/negotiation.hpp"
#include "engine/request.hpp"
#include "engine/timeline.hpp"
#include "plan/run.hpp"
#include "plan/topology.hpp"
#include "transport/link.hpp"

namespace ringcore::engine {

using plan::Run;
class Carrier;

struct ExecutionSettings {
  std::size_t fusion_threshold_bytes = 64 << 20;
  bool deterministic = false;
  // A large tensor goes through the fusion buffer in slices of this size, which stay in the caches.
  std::size_t slice_bytes = 4 << 20;
  // Tensors of at least this size that all ranks registered run where they lie; smaller ones are cheaper in a bucket.
  std::size_t direct_bytes = 32 << 10;
  // Between hosts a large tensor with a priority is cut into pieces of this size, and what is more urgent overtakes it
  // between two of them; small ones with priorities share buckets that are not larger. 0: nothing is cut.
  std::size_t partition_bytes = 4 << 20;
  // While so much with a priority is under way in a lane nothing else begins beside it: the other ranks would have to
  // set aside what they have not begun.
  std::size_t credit_bytes = 8 << 20;
  // After so many operations of a lane between hosts the ranks tell each other anew what their links have shown.
  int survey_every = 200;
};

// What a carrier is told of the process set that it serves. What is referred to outlives it.
struct CarrierConfig {
  ProcessSetId process_set = kWorld;
  std::uint32_t epoch = 0;  // whose members these are
  bool plans_only = false;  // no backend carries out anything: one was given up, see View
  int self = 0;  // this rank among the members
  std::vector<transport::Link*> links;  // by member, null at self
  plan::Topology topology;
  std::byte* fusion_arena = nullptr;  // shared memory for packed tensors; null: there is none for this process set
  ExecutionSettings settings;
  const Clock& clock;
  Timeline& timeline;
};

// What the schedule hands over. It stays where it is until its run has ended, or for ever if the run is in use then.
struct Task {
  std::vector<std::shared_ptr<const Descriptor>> descriptors;  // one, or those of the bucket; also when joined
  std::vector<std::shared_ptr<Operation>> operations;  // the same order; empty when this rank has joined
  std::vector<Contribution> contributions;  // of a task that is no bucket; of a group's parts, to the group
  std::vector<std::size_t> parts;  // of a group, where several gathers or scatters share the task: which ones they are
  std::vector<int> absent;  // members that had joined: the same for all tensors of a bucket
  Carrier* carrier = nullptr;
  bool bucket = false;
  bool registered = false;  // every rank's data lies ready in its arena
  std::int32_t priority = 0;
  bool tried = false;  // written by the carrier: it has a priority, and keeps its place to take part in a trial
  int lane = 0;
  std::uint32_t id = 0;
  std::size_t bytes = 0;

  std::unique_ptr<Run> run;  // once it has begun
  std::size_t library_bytes =
      0;  // written by the carrier: so much a library moves at the moment, on wires of our links
  Nanoseconds opened_at = 0;  // of a bucket
  Nanoseconds started_at = 0;
  bool moved = false;  // since the schedule last looked for what stands still
  Nanoseconds still_for = 0;  // it has not moved for so long

  const Descriptor& descriptor() const { return *descriptors.front(); }
  Operation& operation() const { return *operations.front(); }

  std::string title() const {
    const std::size_t others = descriptors.size() - 1;
    return std::string(name_of(descriptor().collective)) + " '" + descriptor().name + "'" +
           (others > 0 ? " and " + std::to_string(others) + " more" : "");
  }

  void add(std::shared_ptr<const Descriptor> described, std::shared_ptr<Operation> own, std::size_t size) {
    descriptors.push_back(std::move(described));
    if (own != nullptr) operations.push_back(std::move(own));
    bytes += size;
  }
};

// All calls come from one thread at a time.
class Carrier {
 public:
  virtual ~Carrier() = default;

  // What it works with, for messages: "GPUs", ...
  virtual std::string_view name() const = 0;

  // Whether such an operation has to wait until the messages have been exchanged, and the tensor is where somebody can
  // work on it. Never asked of the last carrier.
  virtual bool concerns(const Descriptor&) const { return false; }
  // Whether it carries out such an operation. Asked when it is ready; the last carrier gets what no other takes.
  virtual bool takes(const Descriptor& descriptor) const = 0;

  // The messages. Whether all have been exchanged that such an operation, or a group, needs.
  virtual bool ready(const Descriptor&) const { return true; }
  // The next one of these for the other members, as long on each of them; empty: it is not known yet.
  virtual std::span<const std::byte> message(const Descriptor&) { return {}; }
  // Everybody's, by member.
  virtual void hear(std::span<const std::byte>) {}
  // A line for the log, when it has become ready for more; empty where there is nothing to say.
  virtual std::string remark() const { return ""; }
  // A line for the log of what its tasks have shown since it was asked last: asked when one has ended.
  virtual std::string take_finding() { return ""; }

  // This rank submits an operation that concerns it; the descriptor may still be completed. Throws
  // Error{kInvalidArgument, kResource}.
  virtual void admit(Operation&) {}
  // Why an operation that concerns it, or a group, fails on every rank instead; empty: it does not.
  virtual std::string refusal(const Descriptor&) const { return ""; }
  // What concerns it and it does not take is offered to the next carrier: lets the tensor come to where others can work
  // on it. True when it is there.
  virtual bool fetch(Operation&) { return true; }
  // Such an operation has ended: lets the result go back to where it belongs.
  virtual void give_back(const std::shared_ptr<Operation>&) {}

  // On a server, between its tasks: a plan::Offer in its bytes. Throws Error where it cannot be taken.
  virtual void offer(std::span<const std::byte>) {}

  // How many bytes a bucket holds, and the largest tensor that goes into one; always the same.
  virtual std::size_t bucket_bytes() const = 0;
  // How large the pieces are that tensors with a priority are cut into; always the same. 0: they are not cut.
  virtual std::size_t partition_bytes() const { return 0; }
  // The largest gather or scatter of a group, by the bytes of all ranks' rows, that shares a task with others of its dtype;
  // a task holds as many as a bucket. Always the same. 0: each has a task of its own.
  virtual std::size_t shared_bytes() const { return 0; }
  // Whether an allreduce may share the task with those that are in it. `own`: null when this rank has joined.
  virtual bool fuses(const Task& bucket, const Descriptor& descriptor, const Operation* own) const = 0;
  // The task is the next one in the order of all ranks. Whether it must keep its place in that order within its lane.
  virtual bool queue(Task& task) = 0;
  // Whether the task may begin: it may have to know what tasks of other lanes, which keep their places, have found.
  virtual bool may_start(const Task&) const { return true; }
  // Its tasks are done when they are launched. They begin one after the other, in the order of all ranks.
  virtual bool completes_at_launch() const { return false; }
  // The run of a task that is started now.
  virtual std::unique_ptr<Run> start(Task& task) = 0;

  // Nothing moves in the lane, where the ranks may be at different tasks: takes out of the way what stands in it.
  virtual bool make_way(int) { return false; }
  // Looks after what was launched; only asked of carriers that complete at launch.
  virtual void progress() {}
  // Whether everything that was launched has ended.
  virtual bool drained() const { return true; }
  // Throws Error{kTimeout} when something was launched longer ago than `limit`, and what its device reports.
  virtual void watch(Nanoseconds, Nanoseconds) {}
  // The job has failed: ends what was launched, whose results are worthless.
  virtual void abort() {}
};

// The carriers of a process set, in the order in which they are asked; asked for them on every member.
using CarrierFactory = std::function<std::vector<std::unique_ptr<Carrier>>(const CarrierConfig& config)>;

}  // namespace ringcore::engine
