#include "engine/execution.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>
#include <utility>

#include "base/reduce.hpp"
#include "engine/device_queue.hpp"

namespace ringcore::engine {
namespace {

// Tensors of at least this size that all ranks registered run where they lie; smaller ones are cheaper in a bucket.
constexpr std::size_t kMinDirectBytes = 32 * 1024;

// In shared memory a bucket is packed, reduced and unpacked while it is in a core's own cache, and a meeting of the ranks
// costs little. Measured with 100 MB in tensors of 640 KB: 13 ms, and 30 in buckets of 64 MiB.
constexpr std::size_t kCachedBytes = 1024 * 1024;

// A large tensor goes through the fusion buffer in slices of this size, which stay in the caches.
constexpr std::size_t kSliceBytes = 4 * 1024 * 1024;

// Copies before a plan are made in pieces of this size: in between other lanes, control records and heartbeats move.
constexpr std::size_t kCopyBytes = 16 * 1024 * 1024;

// A range of a peer's arena. Throws Error{kProtocol} when it does not lie in it.
std::byte* visible(const transport::Link& link, std::uint64_t offset, std::size_t bytes) {
  const std::span<std::byte> memory = link.peer_memory();
  if (offset > memory.size() || bytes > memory.size() - offset) {
    throw Error(ErrorKind::kProtocol, "a peer announced memory outside of its arena");
  }
  return memory.data() + offset;
}

bool same_bucket(const Descriptor& a, const Descriptor& b) {
  return a.dtype == b.dtype && a.op == b.op && a.postscale == b.postscale;
}

// So many tasks with a priority run beside each other: more would begin what the other ranks have not.
constexpr int kBeside = 2;

// What has a priority is put in order within its lane. What is to stay in the order of release, and is less urgent than
// what has no priority, comes before none of those that are put in order.
int lane_of(std::int32_t priority, bool in_order, std::uint64_t run) {
  constexpr int kUrgent = transport::kLaneCount - 1;
  constexpr int kOrdered = transport::kLaneCount - 2;
  if (priority > 0) return kUrgent;
  if (priority < 0) return in_order ? transport::kFirstDataLane : kOrdered;
  return transport::kFirstDataLane + static_cast<int>(run % (kUrgent - transport::kFirstDataLane));
}

void copy_scaled(const Descriptor& descriptor, std::byte* to, const std::byte* from, std::size_t count) {
  if (to != from && count > 0) std::memcpy(to, from, count * size_of(descriptor.dtype));
  if (descriptor.prescale != 1.0) scale_in_place(descriptor.dtype, to, count, descriptor.prescale);
}

}  // namespace

// One execution of one plan: for one operation, or for the allreduces of a bucket.
struct Execution::Task {
  std::vector<std::shared_ptr<const Descriptor>> descriptors;  // one, or those of the bucket; also when joined
  std::vector<std::shared_ptr<Operation>> operations;          // the same order; empty when this rank has joined
  std::vector<Contribution> contributions;                     // of a task that is no bucket
  std::vector<int> absent;  // members that had joined: the same for all tensors of a bucket
  bool bucket = false;
  bool registered = false;  // every rank's data lies ready in its arena
  std::int32_t priority = 0;
  int lane = 0;
  std::uint32_t id = 0;
  std::size_t bytes = 0;
  Memory work;  // for data that cannot lie in an operation's own memory
  Memory scratch;
  std::byte* packed = nullptr;  // where the tensors were packed
  bool sliced = false;          // the tensor goes through there slice by slice
  std::size_t slice_begin = 0;  // bytes
  struct Copy {
    std::byte* to;
    const std::byte* from;
    std::size_t bytes;
    double scale;
  };
  std::optional<Copy> copy;  // still to be made before the run
  plan::Chooser::Choice choice;
  bool agreeing = false;  // the operation has ended, `run` is about what its trial has measured
  std::unique_ptr<plan::Run> run;
  Nanoseconds started_at = 0;
  Nanoseconds ready_at = 0;

  const Descriptor& descriptor() const { return *descriptors.front(); }
  Operation& operation() const { return *operations.front(); }

  void add(std::shared_ptr<const Descriptor> described, std::shared_ptr<Operation> own, std::size_t size) {
    descriptors.push_back(std::move(described));
    if (own != nullptr) operations.push_back(std::move(own));
    bytes += size;
  }
};

Execution::Execution(ProcessSetId id, int self, std::vector<transport::Link*> links, plan::Topology topology,
                     std::vector<std::unique_ptr<plan::Backend>> backends, FusionBuffers fusion,
                     ExecutionSettings settings, const Clock& clock, Timeline& timeline)
    : id_(id),
      self_(self),
      links_(std::move(links)),
      topology_(std::move(topology)),
      fusion_(fusion),
      settings_(settings),
      clock_(clock),
      timeline_(timeline),
      chooser_(plan::Planner(topology_, plan::CostModel{}), std::move(backends)) {}

Execution::Execution(Execution&&) noexcept = default;

Execution::~Execution() = default;

void Execution::release(Release release, std::shared_ptr<Operation> own) {
  const Descriptor& descriptor = *release.descriptor;
  if (own != nullptr) {
    own->released_at = clock_.now();
    own->state.store(OperationState::kReleased, std::memory_order_relaxed);
  }
  if (descriptor.on_device || !deferred_.empty()) return defer(std::move(release), std::move(own));
  release_now(std::move(release), std::move(own));
}

void Execution::release_now(Release release, std::shared_ptr<Operation> own) {
  const Descriptor& descriptor = *release.descriptor;
  if (descriptor.captured && refuse_capture(descriptor, *own)) return done_.push_back(std::move(own));
  if (descriptor.is_group()) {
    return in_place_for_all(release) ? release_row(release, own) : release_parts(release, own);
  }
  release_one(release.descriptor, std::move(own), release);
}

// Whether it is reduced where it lies.
bool Execution::in_place_for_all(const Release& release) const {
  return release.all_registered() && release.all_have(kInPlace) && release.descriptor->prescale == 1.0;
}

// A group whose parts lie in a row runs as one tensor.
void Execution::release_row(Release& group, const std::shared_ptr<Operation>& own) {
  struct Row {
    std::shared_ptr<Operation> group;
    Operation operation;
  };
  const auto row = std::make_shared<Row>();
  row->group = own;
  own->unfinished = 1;
  Operation& operation = row->operation;
  operation.whole = own.get();
  operation.input = own->input;
  operation.output = own->output;
  operation.submitted_at = own->submitted_at;
  operation.released_at = own->released_at;
  operation.descriptor = *group.descriptor;
  operation.descriptor.parts.clear();
  operation.descriptor.dtype = own->parts.front()->descriptor.dtype;
  operation.descriptor.shape = Shape::of(std::array{own->bytes() / size_of(operation.descriptor.dtype)});
  const std::shared_ptr<const Descriptor> described(row, &operation.descriptor);
  release_one(described, {row, &operation}, group);
}

void Execution::release_parts(Release& group, const std::shared_ptr<Operation>& own) {
  const std::vector<std::shared_ptr<const Descriptor>>& parts = group.descriptor->parts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Release release;
    release.priority = group.priority;
    release.contributions.resize(group.contributions.size());
    for (std::size_t m = 0; m < group.contributions.size(); ++m) {
      const Contribution& contribution = group.contributions[m];
      release.contributions[m].present = contribution.present;
      if (parts[i]->has_free_rows()) release.contributions[m].rows = contribution.rows_of(i);
    }
    // The part keeps its group alive.
    const std::shared_ptr<Operation> part =
        own == nullptr ? nullptr : std::shared_ptr<Operation>(own, own->parts[i].get());
    if (part != nullptr) {
      part->submitted_at = own->submitted_at;
      part->released_at = own->released_at;
    }
    release_one(parts[i], part, release);
  }
}

// The operation is done; of a group only when all of its parts are.
void Execution::complete(std::shared_ptr<Operation> operation) {
  if (operation->on_device != nullptr && operation->on_device->fetched != nullptr) device_->give_back(operation);
  Operation* whole = operation->whole;
  if (whole == nullptr) return done_.push_back(std::move(operation));
  if (--whole->unfinished == 0) done_.emplace_back(operation, whole);
}

void Execution::release_one(const std::shared_ptr<const Descriptor>& described, std::shared_ptr<Operation> own,
                            Release& release) {
  const Descriptor& descriptor = *described;
  if (descriptor.on_device && device_->takes(descriptor)) return launch(described, std::move(own), release);
  if (own != nullptr) {
    if (descriptor.collective == Collective::kBarrier) return complete(std::move(own));
    if (release.all_have(kEager)) {
      std::vector<const std::byte*> sources(size());
      for (int m = 0; m < size(); ++m) {
        sources[m] = m == self_ ? own->input : release.contributions[m].payload.data();
      }
      finish_eager(descriptor, sources, *own);
      return complete(std::move(own));
    }
  }
  if (size() == 1) {
    finish_alone(*own);
    return complete(std::move(own));
  }
  const std::size_t bytes = descriptor.shape.elements() * size_of(descriptor.dtype);
  const bool registered = in_place_for_all(release);
  const bool large_and_in_place = registered && bytes >= kMinDirectBytes;
  const bool bucket = descriptor.collective == Collective::kAllreduce && release.priority <= 0 &&
                      bytes <= bucket_bytes() && !large_and_in_place;
  if (bucket) {
    if (Task* open = open_bucket(release, descriptor, bytes)) return open->add(described, std::move(own), bytes);
  }
  auto task = std::make_unique<Task>();
  task->add(described, std::move(own), bytes);
  task->registered = registered;
  task->priority = release.priority;
  task->bucket = bucket;
  if (bucket) {
    task->absent = release.absent();
    buckets_.push_back(std::move(task));
    return;
  }
  task->contributions = std::move(release.contributions);
  schedule(std::move(task));
}

// How much a bucket holds, and the largest tensor that goes into one.
std::size_t Execution::bucket_bytes() const {
  const bool in_memory = topology_.single_host() && topology_.memory_shared_in_host;
  return in_memory ? std::min(settings_.fusion_threshold_bytes, kCachedBytes) : settings_.fusion_threshold_bytes;
}

// The bucket that the tensor still fits into; one that is too full for it is closed.
Execution::Task* Execution::open_bucket(const Release& release, const Descriptor& descriptor, std::size_t bytes) {
  const auto open = std::find_if(buckets_.begin(), buckets_.end(), [&](const auto& bucket) {
    return same_bucket(bucket->descriptor(), descriptor) && bucket->absent == release.absent();
  });
  if (open == buckets_.end()) return nullptr;
  if ((*open)->bytes + bytes <= bucket_bytes()) return open->get();
  std::unique_ptr<Task> full = std::move(*open);
  buckets_.erase(open);
  schedule(std::move(full));
  return nullptr;
}

// The only member: the result is the (scaled) input.
void Execution::finish_alone(Operation& own) const {
  const Descriptor& descriptor = own.descriptor;
  if (own.output == nullptr) {
    own.result = Memory(own.bytes());
    own.result_rows = {descriptor.shape.rows()};
  }
  std::byte* to = own.output != nullptr ? own.output : own.result.data();
  copy_scaled(descriptor, to, own.input, own.count());
  if (descriptor.postscale != 1.0) scale_in_place(descriptor.dtype, to, own.count(), descriptor.postscale);
}

void Execution::flush() {
  if (!deferred_.empty()) {
    deferred_.emplace_back();
    return;
  }
  std::vector<std::unique_ptr<Task>> closed = std::move(buckets_);
  buckets_.clear();
  for (auto& bucket : closed) schedule(std::move(bucket));
  launch_buckets();
}

void Execution::schedule(std::unique_ptr<Task> task) {
  // These stay in the order of their release: what shares the lane's buffer, and what others carry out, who want to see
  // the same order on every rank. Messages from memory to memory meet in the order of the runs, too.
  const bool has_messages = std::any_of(links_.begin(), links_.end(), [](const transport::Link* link) {
    return link != nullptr && link->has_messages();
  });
  const bool in_order = task->descriptors.size() > 1 || slices(*task) || chooser_.has_backends() || has_messages;
  task->lane = lane_of(task->priority, in_order, next_run_);
  if (in_order) task->priority = 0;
  // Never 0; different for the runs of different process sets that may be under way at the same time.
  constexpr std::uint32_t kRuns = (1U << (32 - kProcessSetBits)) - 1;
  task->id =
      static_cast<std::uint32_t>(id_) << (32 - kProcessSetBits) | static_cast<std::uint32_t>(next_run_++ % kRuns + 1);
  std::deque<std::unique_ptr<Task>>& tasks = lanes_[task->lane].tasks;
  const auto less_urgent = std::upper_bound(tasks.begin(), tasks.end(), task,
                                            [](const auto& a, const auto& b) { return a->priority > b->priority; });
  tasks.insert(less_urgent, std::move(task));
}

void Execution::finish_eager(const Descriptor& descriptor, std::span<const std::byte* const> sources,
                             Operation& own) const {
  if (descriptor.collective == Collective::kBarrier || own.bytes() == 0) return;
  if (descriptor.collective == Collective::kBroadcast) {
    if (own.output != sources[descriptor.root]) std::memcpy(own.output, sources[descriptor.root], own.bytes());
    return;
  }
  std::byte* const targets[] = {own.output};
  reduce_many(descriptor.dtype, summing(descriptor.op), sources, targets, own.count(), final_scale(descriptor, size()));
}

bool Execution::progress() {
  bool moved = progress_device();
  // The urgent lane first.
  for (int lane = transport::kLaneCount - 1; lane >= transport::kFirstDataLane; --lane) {
    moved = progress_lane(lanes_[lane]) || make_way(lane) || moved;
  }
  return moved;
}

// In a lane where nothing moves, and where the ranks may be at different tasks: a transfer for one may stand in the way
// of another's.
bool Execution::make_way(int lane) {
  const std::deque<std::unique_ptr<Task>>& tasks = lanes_[lane].tasks;
  if (tasks.size() < 2 || (tasks.front()->priority == 0 && tasks.back()->priority == 0)) return false;
  bool moved = false;
  for (int m = 0; m < size(); ++m) {
    if (m != self_) moved = plan::set_aside(*links_[m], lane, m) || moved;
  }
  return moved;
}

bool Execution::progress_lane(Lane& lane) {
  bool moved = false;
  bool sending = false;  // one of those before
  int begun = 0;         // of those before
  for (auto it = lane.tasks.begin(); it != lane.tasks.end();) {
    Task& task = **it;
    const bool beside = task.priority != 0 && begun < kBeside && !sending;
    if (task.run == nullptr && (it == lane.tasks.begin() || beside)) {
      start(task);
      ++lane.begun;
      moved = true;
    }
    if (task.run == nullptr) {
      if (begun == lane.begun) return moved;
      ++it;
      continue;
    }
    task.run->hold(sending);
    if (advance(task, moved)) {
      finish(task);
      --lane.begun;
      it = lane.tasks.erase(it);
      continue;
    }
    sending = sending || task.run->sending();
    ++begun;
    ++it;
  }
  return moved;
}

// True when its run is done.
bool Execution::advance(Task& task, bool& moved) {
  do {
    if (task.copy) {
      moved = true;
      if (!copy_piece(task)) return false;
    }
    moved = task.run->progress() || moved;
    if (!task.run->done()) return false;
    moved = true;
  } while ((task.choice.trial != nullptr && agree_on_times(task)) || (task.sliced && next_slice(task)));
  return true;
}

bool Execution::idle() const {
  return deferred_.empty() && (device_ == nullptr || device_->idle()) &&
         std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.tasks.empty(); });
}

bool Execution::landed() const { return device_ == nullptr || device_->landed(); }

void Execution::start(Task& task) {
  task.started_at = clock_.now();
  for (const auto& operation : task.operations) operation->started_at = task.started_at;
  switch (task.descriptor().collective) {
    case Collective::kAllreduce: return start_allreduce(task);
    case Collective::kAllgather: return start_allgather(task);
    case Collective::kBroadcast: return start_broadcast(task);
    case Collective::kReduceScatter: return start_reducescatter(task);
    case Collective::kAlltoall: return start_alltoall(task);
    case Collective::kBarrier: break;  // completes when it is released
  }
}

// Data that must lie elsewhere, or be scaled, before the plan runs.
void Execution::copy_first(Task& task, std::byte* to, const std::byte* from, std::size_t bytes) {
  const double scale = task.descriptor().prescale;
  if (bytes > 0 && (to != from || scale != 1.0)) task.copy = Task::Copy{to, from, bytes, scale};
}

// True when all is copied.
bool Execution::copy_piece(Task& task) {
  Task::Copy& copy = *task.copy;
  const std::size_t bytes = std::min(copy.bytes, kCopyBytes);
  const DType dtype = task.descriptor().dtype;
  if (copy.to != copy.from) std::memcpy(copy.to, copy.from, bytes);
  if (copy.scale != 1.0) scale_in_place(dtype, copy.to, bytes / size_of(dtype), copy.scale);
  copy = {copy.to + bytes, copy.from + bytes, copy.bytes - bytes, copy.scale};
  if (copy.bytes > 0) return false;
  task.copy.reset();
  task.ready_at = clock_.now();
  return true;
}

// Private memory of more than two ranks of one host: packing copies twice, but without it they would wait for each other
// at every step of a ring (measured with 4 ranks on 2 cores).
bool Execution::slices(const Task& task) const {
  return task.descriptor().collective == Collective::kAllreduce && task.descriptors.size() == 1 &&
         (task.bucket || !task.registered) && size() > 2 && topology_.single_host() && fusion_.arena != nullptr &&
         fusion_.bytes_per_lane >= kSliceBytes;
}

void Execution::start_allreduce(Task& task) {
  if (slices(task)) {
    task.sliced = true;
    return start_slice(task);
  }
  plan::Operands operands;
  plan::Query query;
  if (task.descriptors.size() == 1) {
    place_alone(task, operands);
    query.registered = query.inputs_ready = !operands.peer_data.empty();
  } else {
    place_in_fusion_buffer(task, operands);
    query.registered = !operands.peer_data.empty();
  }
  query.collective = Collective::kAllreduce;
  query.bytes = task.bytes;
  run(task, query, std::move(operands));
}

// Packs the next slice of the task's only tensor and starts the plan on it.
void Execution::start_slice(Task& task) {
  const Descriptor& descriptor = task.descriptor();
  const std::size_t bytes = std::min(task.bytes - task.slice_begin, kSliceBytes);
  const std::size_t count = bytes / size_of(descriptor.dtype);
  plan::Operands operands;
  use_fusion_arena(task, bytes, operands);
  if (task.operations.empty()) {
    fill_identity(descriptor.dtype, summing(descriptor.op), task.packed, count);
  } else {
    copy_scaled(descriptor, task.packed, task.operation().input + task.slice_begin, count);
  }
  run(task, {.collective = Collective::kAllreduce, .bytes = bytes, .registered = true}, std::move(operands));
}

// After a slice: unpacks it. False when it was the last one.
bool Execution::next_slice(Task& task) {
  const std::size_t bytes = std::min(task.bytes - task.slice_begin, kSliceBytes);
  if (!task.operations.empty() && bytes > 0) {
    std::memcpy(task.operation().output + task.slice_begin, task.packed, bytes);
  }
  if (timeline_.enabled()) record_steps(task);
  task.slice_begin += bytes;
  if (task.slice_begin == task.bytes) return false;
  start_slice(task);
  return true;
}

// Works on the operation's own memory.
void Execution::place_alone(Task& task, plan::Operands& operands) {
  const Descriptor& descriptor = task.descriptor();
  const std::size_t count = descriptor.shape.elements();
  if (task.operations.empty()) {
    task.work = Memory(task.bytes);
    fill_identity(descriptor.dtype, summing(descriptor.op), task.work.data(), count);
    operands.data = task.work.data();
  } else {
    copy_first(task, task.operation().output, task.operation().input, task.bytes);
    operands.data = task.operation().output;
  }
  if (!task.registered || task.bucket) return;
  operands.peer_data.resize(size(), nullptr);
  for (int m = 0; m < size(); ++m) {
    if (m == self_ || links_[m]->peer_memory().empty()) continue;
    operands.peer_data[m] = visible(*links_[m], task.contributions[m].location - 1, task.bytes);
  }
}

// The task's lane of the fusion buffer, which the other ranks see.
void Execution::use_fusion_arena(Task& task, std::size_t bytes, plan::Operands& operands) {
  operands.data = task.packed = fusion_.arena + fusion_.offset(task.lane);
  operands.peer_data.resize(size(), nullptr);
  for (int m = 0; m < size(); ++m) {
    if (m == self_ || links_[m]->peer_memory().empty()) continue;
    operands.peer_data[m] = visible(*links_[m], fusion_.offset(task.lane), bytes);
  }
}

void Execution::place_in_fusion_buffer(Task& task, plan::Operands& operands) {
  if (fusion_.arena != nullptr && task.bytes <= fusion_.bytes_per_lane) {
    use_fusion_arena(task, task.bytes, operands);
  } else {
    Memory& buffer = private_fusion_[task.lane];
    if (buffer.size() < task.bytes) buffer = Memory(task.bytes);
    operands.data = task.packed = buffer.data();
  }
  std::byte* at = task.packed;
  for (std::size_t i = 0; i < task.descriptors.size(); ++i) {
    const Descriptor& descriptor = *task.descriptors[i];
    const std::size_t count = descriptor.shape.elements();
    if (task.operations.empty()) {
      fill_identity(descriptor.dtype, summing(descriptor.op), at, count);
    } else {
      copy_scaled(descriptor, at, task.operations[i]->input, count);
    }
    at += count * size_of(descriptor.dtype);
  }
}

void Execution::start_allgather(Task& task) {
  const Descriptor& descriptor = task.descriptor();
  Operation& operation = task.operation();
  std::vector<std::uint64_t> blocks(size());
  std::uint64_t before = 0;
  std::uint64_t total = 0;
  operation.result_rows.resize(size());
  for (int m = 0; m < size(); ++m) {
    operation.result_rows[m] = task.contributions[m].rows;
    blocks[m] = task.contributions[m].rows * descriptor.shape.row_elements();
    if (m < self_) before += blocks[m];
    total += blocks[m];
  }
  const std::size_t element = size_of(descriptor.dtype);
  operation.result = Memory(total * element);
  copy_first(task, operation.result.data() + before * element, operation.input, operation.bytes());
  plan::Operands operands;
  operands.data = operation.result.data();
  run(task, {.collective = Collective::kAllgather, .bytes = total * element}, std::move(operands), blocks);
}

void Execution::start_broadcast(Task& task) {
  Operation& operation = task.operation();
  if (self_ == task.descriptor().root) copy_first(task, operation.output, operation.input, operation.bytes());
  plan::Operands operands;
  operands.data = operation.output;
  run(task, {.collective = Collective::kBroadcast, .bytes = task.bytes, .root = task.descriptor().root},
      std::move(operands));
}

void Execution::start_reducescatter(Task& task) {
  const Descriptor& descriptor = task.descriptor();
  Operation& operation = task.operation();
  task.work = Memory(task.bytes);
  copy_first(task, task.work.data(), operation.input, operation.bytes());
  plan::Operands operands;
  operands.data = task.work.data();
  run(task, {.collective = Collective::kReduceScatter, .bytes = task.bytes}, std::move(operands),
      dealt_blocks(descriptor.shape.rows(), descriptor.shape.row_elements(), size()));
}

void Execution::start_alltoall(Task& task) {
  const Descriptor& descriptor = task.descriptor();
  Operation& operation = task.operation();
  const std::uint64_t row = descriptor.shape.row_elements();
  std::vector<std::uint64_t> outgoing(size());
  std::vector<std::uint64_t> incoming(size());
  operation.result_rows.resize(size());
  for (int m = 0; m < size(); ++m) {
    outgoing[m] = operation.splits[m] * row;
    operation.result_rows[m] = task.contributions[m].splits[self_];
    incoming[m] = operation.result_rows[m] * row;
  }
  const std::uint64_t total = std::accumulate(incoming.begin(), incoming.end(), std::uint64_t{0});
  operation.result = Memory(total * size_of(descriptor.dtype));
  plan::Operands operands;
  operands.data = operation.result.data();
  operands.input = operation.input;
  // Ranks know different sizes here; the choice of the plan must not depend on them.
  run(task, {.collective = Collective::kAlltoall, .bytes = 0}, std::move(operands), incoming, outgoing);
}

// `blocks`: elements of each member's block, where blocks differ; empty: the data is divided evenly.
void Execution::run(Task& task, plan::Query query, plan::Operands operands, const std::vector<std::uint64_t>& blocks,
                    const std::vector<std::uint64_t>& input_blocks) {
  const Descriptor& descriptor = task.descriptor();
  query.dtype = descriptor.dtype;
  query.op = summing(descriptor.op);
  query.deterministic = settings_.deterministic;
  // Between hosts it changes nothing, and hosts may differ in it: the choice must not.
  if (!topology_.single_host()) query.registered = query.inputs_ready = false;
  task.choice = chooser_.choose(query, task.lane);
  operands.dtype = descriptor.dtype;
  operands.op = summing(descriptor.op);
  operands.final_scale = final_scale(descriptor, size());
  const plan::Plan* plan = task.choice.plan;
  const std::uint32_t chunks = plan == nullptr ? 1 : plan->chunks;
  const int parts = plan == nullptr ? 1 : static_cast<int>(plan->chunks) / size();
  operands.data_layout = blocks.empty() ? plan::Layout::even(query.bytes / size_of(descriptor.dtype), chunks)
                                        : plan::Layout::blocks(blocks, parts);
  if (!input_blocks.empty()) operands.input_layout = plan::Layout::blocks(input_blocks, parts);
  if (plan != nullptr) {
    run_plan(task, *plan, std::move(operands));
  } else {
    task.run = task.choice.backend->start(query, std::move(operands), task.lane);
  }
  task.ready_at = clock_.now();
  if (timeline_.enabled()) task.run->time_steps(clock_);
}

static_assert((1 << kProcessSetBits) <= transport::Link::kMessageChannels, "each process set has a channel");

void Execution::run_plan(Task& task, const plan::Plan& plan, plan::Operands operands) {
  task.scratch = Memory(plan.scratch_chunks * operands.data_layout.largest() * size_of(operands.dtype));
  operands.scratch = task.scratch.data();
  task.run = std::make_unique<plan::PlanRun>(plan, self_, std::move(operands), links_, task.lane, task.id,
                                             static_cast<int>(id_));
}

// After a run that was a trial: true while the ranks exchange what they have measured.
bool Execution::agree_on_times(Task& task) {
  if (std::exchange(task.agreeing, false)) {
    plan::Chooser::decide(*std::exchange(task.choice.trial, nullptr));
    return false;
  }
  const std::span<double> times = chooser_.measured(task.choice, clock_.now() - task.ready_at);
  if (times.empty()) return false;
  if (timeline_.enabled()) record_steps(task);
  task.agreeing = true;
  const plan::Query query{.collective = Collective::kAllreduce,
                          .bytes = times.size_bytes(),
                          .dtype = DType::kFloat64,
                          .op = ReduceOp::kMax};
  const plan::Plan& plan = chooser_.choose_plan(query);
  run_plan(task, plan,
           {.dtype = query.dtype,
            .op = query.op,
            .data_layout = plan::Layout::even(times.size(), plan.chunks),
            .data = reinterpret_cast<std::byte*>(times.data())});
  return true;
}

void Execution::finish(Task& task) {
  const Descriptor& descriptor = task.descriptor();
  const Nanoseconds ran_at = clock_.now();
  if (task.packed != nullptr && !task.sliced) {
    const std::byte* at = task.packed;
    for (const auto& operation : task.operations) {
      if (operation->bytes() > 0) std::memcpy(operation->output, at, operation->bytes());
      at += operation->bytes();
    }
  }
  if (descriptor.collective == Collective::kReduceScatter) {
    const std::vector<std::uint64_t> blocks =
        dealt_blocks(descriptor.shape.rows(), descriptor.shape.row_elements(), size());
    const std::size_t element = size_of(descriptor.dtype);
    const std::uint64_t before = std::accumulate(blocks.begin(), blocks.begin() + self_, std::uint64_t{0});
    Operation& operation = task.operation();
    operation.result = Memory(blocks[self_] * element);
    if (operation.result.size() > 0) {
      std::memcpy(operation.result.data(), task.work.data() + before * element, operation.result.size());
    }
  }
  if (timeline_.enabled()) {
    record_steps(task);
    record_spans(task, ran_at);
  }
  for (auto& operation : task.operations) complete(std::move(operation));
}

void Execution::record_steps(const Task& task) {
  for (const plan::Run::StepTime& time : task.run->step_times()) {
    timeline_.record({task.descriptor().name, plan::describe(*time.step), task.lane, time.channel, time.begin, time.end,
                      time.bytes});
  }
}

void Execution::record_spans(const Task& task, Nanoseconds ran_at) {
  const Nanoseconds now = clock_.now();
  for (const auto& operation : task.operations) {
    const std::string& name = operation->descriptor.name;
    const auto span = [&](const std::string& activity, Nanoseconds begin, Nanoseconds end) {
      timeline_.record({name, activity, task.lane, -1, begin, end, operation->bytes()});
    };
    span("negotiate", operation->submitted_at, operation->released_at);
    span("queue", operation->released_at, task.started_at);
    if (task.ready_at > task.started_at) span(task.packed != nullptr ? "pack" : "copy", task.started_at, task.ready_at);
    span(std::string(task.choice.name()), task.ready_at, ran_at);
    if (task.packed != nullptr) span("unpack", ran_at, now);
  }
}

void Execution::fail() {
  // For ever: who carries out the run goes on writing.
  static auto& kept = *new std::vector<std::pair<std::unique_ptr<Task>, Memory>>;
  static std::mutex mutex;
  for (Lane& lane : lanes_) {
    for (std::unique_ptr<Task>& task : lane.tasks) {
      if (task->run == nullptr || !task->run->in_use()) continue;
      for (const auto& operation : task->operations) {
        (operation->whole == nullptr ? *operation : *operation->whole).in_use = true;
      }
      Memory& packed = private_fusion_[task->lane];
      const std::lock_guard lock(mutex);
      kept.emplace_back(std::move(task), std::move(packed));
    }
    lane = {};
  }
  buckets_.clear();
  done_.clear();
  deferred_.clear();
  device_buckets_.clear();
  if (device_ != nullptr) device_->abort();
}

bool Execution::waits_for(int member) const {
  return std::any_of(lanes_.begin(), lanes_.end(), [member](const Lane& lane) {
    return std::any_of(lane.tasks.begin(), lane.tasks.end(), [member](const std::unique_ptr<Task>& task) {
      return task->run != nullptr && task->run->waits_for(member);
    });
  });
}

std::string Execution::describe_running() const {
  for (const Lane& lane : lanes_) {
    if (lane.begun == 0) continue;
    // The first may have come just now.
    const Task& task = **std::find_if(lane.tasks.begin(), lane.tasks.end(),
                                      [](const std::unique_ptr<Task>& each) { return each->run != nullptr; });
    return std::string(name_of(task.descriptor().collective)) + " '" + task.descriptor().name + "' waits for " +
           task.run->waiting_for();
  }
  return device_ == nullptr ? "" : device_->describe();
}

}  // namespace ringcore::engine
