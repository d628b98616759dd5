#include "engine/execution.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>
#include <utility>

#include "base/reduce.hpp"
#include "engine/device_queue.hpp"
#include "engine/execution_task.hpp"

namespace ringcore::engine {
namespace {

// In shared memory a bucket is packed, reduced and unpacked while it is in a core's own cache, and a meeting of the ranks
// costs little. Measured with 100 MB in tensors of 640 KB: 13 ms, and 30 in buckets of 64 MiB.
constexpr std::size_t kCachedBytes = 1024 * 1024;

bool same_bucket(const Descriptor& a, const Descriptor& b) {
  return a.dtype == b.dtype && a.op == b.op && host_scales(a, 1).result == host_scales(b, 1).result;
}

}  // namespace

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
  return release.all_registered() && release.all_have(kInPlace) &&
         host_scales(*release.descriptor, size()).input == 1.0;
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

void Execution::complete_small(std::shared_ptr<Operation> operation) {
  if (timeline_.enabled()) record_small(*operation);
  complete(std::move(operation));
}

void Execution::release_one(const std::shared_ptr<const Descriptor>& described, std::shared_ptr<Operation> own,
                            Release& release) {
  const Descriptor& descriptor = *described;
  if (descriptor.on_device && device_->takes(descriptor)) return launch(described, std::move(own), release);
  if (own != nullptr) {
    if (descriptor.collective == Collective::kBarrier) return complete_small(std::move(own));
    if (release.all_have(kEager)) {
      std::vector<EagerPart> parts;
      for (int m = 0; m < size(); ++m) {
        const Contribution& from = release.contributions[m];
        const std::byte* const data = m == self_ ? own->input : from.payload.data();
        parts.push_back(eager_part(descriptor, from.rows, from.splits, data, self_).value());  // splits were checked
      }
      finish_eager(parts, *own);
      return complete_small(std::move(own));
    }
  }
  if (size() == 1) {
    finish_alone(*own);
    return complete_small(std::move(own));
  }
  const std::size_t bytes = descriptor.shape.elements() * size_of(descriptor.dtype);
  const bool registered = in_place_for_all(release);
  const bool large_and_in_place = registered && bytes >= settings_.direct_bytes;
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
  const double scale = host_scales(descriptor, 1).result;
  if (scale != 1.0) scale_in_place(descriptor.dtype, to, own.count(), scale);
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

void Execution::finish_eager(std::span<const EagerPart> parts, Operation& own) {
  switch (own.descriptor.collective) {
    case Collective::kBarrier: return;
    case Collective::kAllreduce:
    case Collective::kReduceScatter: return reduce_eager(parts, own);
    case Collective::kAllgather:
    case Collective::kAlltoall: return gather_eager(parts, own);
    case Collective::kBroadcast: {
      const std::byte* const from = parts[own.descriptor.root].data;
      if (own.output != from && own.bytes() > 0) std::memcpy(own.output, from, own.bytes());
      return;
    }
  }
  __builtin_unreachable();
}

// One behind the other, in the order of the members.
void Execution::gather_eager(std::span<const EagerPart> parts, Operation& own) const {
  const std::size_t row_bytes = own.descriptor.shape.row_elements() * size_of(own.descriptor.dtype);
  std::uint64_t rows = 0;
  own.result_rows.clear();
  for (const EagerPart& part : parts) {
    own.result_rows.push_back(part.rows);
    rows += part.rows;
  }
  own.result = Memory(rows * row_bytes);
  std::byte* at = own.result.data();
  for (const EagerPart& part : parts) {
    if (part.rows * row_bytes > 0) std::memcpy(at, part.data, part.rows * row_bytes);
    at += part.rows * row_bytes;
  }
}

// All elements, or those of this member's rows.
void Execution::reduce_eager(std::span<const EagerPart> parts, Operation& own) {
  const Descriptor& descriptor = own.descriptor;
  std::uint64_t begin = 0;
  std::uint64_t count = own.count();
  std::byte* target = own.output;
  if (descriptor.collective == Collective::kReduceScatter) {
    const auto blocks = dealt_blocks(descriptor.shape.rows(), descriptor.shape.row_elements(), size());
    begin = std::accumulate(blocks.begin(), blocks.begin() + self_, std::uint64_t{0});
    count = blocks[self_];
    own.result = Memory(count * size_of(descriptor.dtype));
    target = own.result.data();
  }
  if (count == 0) return;
  eager_sources_.clear();
  for (const EagerPart& part : parts) eager_sources_.push_back(part.data + begin * size_of(descriptor.dtype));
  std::byte* const targets[] = {target};
  reduce_many(descriptor.dtype, summing(descriptor.op), eager_sources_, targets, count,
              host_scales(descriptor, size()).result);
}

bool Execution::landed() const { return device_ == nullptr || device_->landed(); }

void Execution::fail(bool leaving) {
  // For ever: who carries out the run goes on writing.
  static auto& kept = *new std::vector<std::pair<std::unique_ptr<Task>, Memory>>;
  static std::mutex mutex;
  for (Lane& lane : lanes_) {
    for (std::unique_ptr<Task>& task : lane.tasks) {
      if (task->run == nullptr || !task->run->in_use()) continue;
      task->run->abandon();
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
  // NCCL's communicator then ends in order, with this: what is aborted loses what it still sends to other hosts.
  if (device_ != nullptr && !(leaving && device_->landed())) device_->abort();
}

}  // namespace ringcore::engine
