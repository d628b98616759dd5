#include "engine/schedule.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/error.hpp"
#include "base/keep.hpp"
#include "base/quantise.hpp"

namespace ringcore::engine {
namespace {

// How much a bucket holds of this urgency: what has a priority may be overtaken after a partition.
std::size_t most_in_bucket(std::size_t bucket_bytes, std::size_t partition_bytes, std::int32_t priority) {
  return priority == 0 || partition_bytes == 0 ? bucket_bytes : std::min(bucket_bytes, partition_bytes);
}

// How large a gather or a scatter is, by the rows of all members; `part` of a group.
std::size_t bytes_of_all(const Descriptor& descriptor, const Release& group, std::size_t part) {
  const std::size_t element = size_of(descriptor.dtype);
  if (!descriptor.has_free_rows()) return descriptor.shape.elements() * element;
  std::uint64_t rows = 0;
  for (const Contribution& from : group.contributions) rows += from.rows_of(part);
  return rows * descriptor.shape.row_elements() * element;
}

// Before what has no priority, without one, behind it: these have lanes of their own.
int class_of(std::int32_t priority) { return (priority > 0 ? 1 : 0) - (priority < 0 ? 1 : 0); }

}  // namespace

struct Schedule::Piece {
  std::shared_ptr<Operation> whole;  // null when this rank has joined
  Operation operation;
};

Schedule::Schedule(const CarrierConfig& config, const CarrierFactory& make_carriers)
    : id_(config.process_set),
      self_(config.self),
      size_(config.topology.ranks()),
      nodes_(config.topology.nodes()),
      settings_(config.settings),
      clock_(config.clock),
      timeline_(config.timeline) {
  if (make_carriers) {
    for (auto& carrier : make_carriers(config)) {
      const std::size_t bucket_bytes = carrier->bucket_bytes();
      const bool completes_at_launch = carrier->completes_at_launch();
      const std::size_t partition_bytes = carrier->partition_bytes();
      const std::size_t shared_bytes = carrier->shared_bytes();
      posts_.push_back({.carrier = std::move(carrier),
                        .bucket_bytes = bucket_bytes,
                        .shared_bytes = shared_bytes,
                        .partition_bytes = partition_bytes,
                        .completes_at_launch = completes_at_launch});
    }
  }
  if (posts_.empty()) throw Error(ErrorKind::kInvalidArgument, "an engine without carriers can carry out nothing");
  lanes_ = std::vector<Lane>(transport::kLaneCount + posts_.size());
}

void Schedule::release(Release release, std::shared_ptr<Operation> own) {
  const Descriptor& descriptor = *release.descriptor;
  if (own != nullptr) {
    own->released_at = clock_.now();
    own->state.store(OperationState::kReleased, std::memory_order_relaxed);
  }
  Post* const post = find_concerned(descriptor);
  if (post == nullptr && deferred_.empty()) return release_now(std::move(release), std::move(own));
  deferred_.push_back({.release = std::move(release), .own = std::move(own), .post = post});
}

void Schedule::release_now(Release release, std::shared_ptr<Operation> own) {
  const bool urgent = release.priority > 0;
  if (!release.descriptor->is_group()) {
    release_one(release.descriptor, std::move(own), release);
  } else if (in_place_for_all(release)) {
    release_row(release, own);
  } else {
    release_parts(release, own);
  }
  if (urgent) close_buckets([](const Task& bucket) { return bucket.priority > 0; });  // they wait for no others
}

// Whether it is reduced where it lies.
bool Schedule::in_place_for_all(const Release& release) const {
  return release.all_registered() && release.all_have(kInPlace) &&
         host_scales(*release.descriptor, size()).input == 1.0;
}

// Whether a plan may work where the data lies: in place, or an allreduce from one place in registered memory to another.
bool Schedule::lies_ready_for_all(const Release& release) const {
  if (in_place_for_all(release)) return true;
  return release.all_registered() && release.descriptor->collective == Collective::kAllreduce &&
         release.all_inputs_registered() && host_scales(*release.descriptor, size()).input == 1.0;
}

// A group whose parts lie in a row runs as one tensor.
void Schedule::release_row(Release& group, const std::shared_ptr<Operation>& own) {
  struct Row {
    std::shared_ptr<Operation> group;
    Operation operation;
  };
  const auto row = std::make_shared<Row>();
  Operation& operation = row->operation;
  operation.descriptor = *group.descriptor;
  operation.descriptor.parts.clear();
  operation.descriptor.dtype = group.descriptor->parts.front()->dtype;
  const std::size_t bytes = bytes_in_a_row(*group.descriptor);
  operation.descriptor.shape = Shape::of(std::array<std::uint64_t, 1>{bytes / size_of(operation.descriptor.dtype)});
  const std::shared_ptr<const Descriptor> described(row, &operation.descriptor);
  if (own == nullptr) return release_one(described, nullptr, group);  // on a server
  row->group = own;
  own->unfinished = 1;
  operation.whole = own.get();
  operation.input = own->input;
  operation.output = own->output;
  operation.submitted_at = own->submitted_at;
  operation.released_at = own->released_at;
  release_one(described, {row, &operation}, group);
}

void Schedule::release_parts(Release& group, const std::shared_ptr<Operation>& own) {
  const std::vector<std::shared_ptr<const Descriptor>>& parts = group.descriptor->parts;
  group.spread(static_cast<std::size_t>(size()));
  Release release;  // of each part in turn
  release.priority = group.priority;
  std::vector<std::unique_ptr<Task>> shared;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    release.contributions.resize(group.contributions.size());  // a task may have taken those of the last one
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
    if (!share_task(group, i, part, shared)) release_one(parts[i], part, release);
  }
  for (auto& task : shared) queue_shared(std::move(task));
}

// Small gathers and scatters of a group share a task: to carry out each of them costs more than to pack it. `shared`: one
// for each dtype. False where this one does not.
bool Schedule::share_task(const Release& group, std::size_t index, const std::shared_ptr<Operation>& part,
                          std::vector<std::unique_ptr<Task>>& shared) {
  const std::shared_ptr<const Descriptor>& descriptor = group.descriptor->parts[index];
  const bool gathers = descriptor->collective == Collective::kAllgather;
  if ((!gathers && descriptor->collective != Collective::kReduceScatter) || size() == 1) return false;
  Post& post = find_post(*descriptor);
  const std::size_t bytes = bytes_of_all(*descriptor, group, index);
  const std::size_t most = std::min(post.shared_bytes, post.bucket_bytes);
  if (most == 0 || bytes > most) return false;
  auto task = std::find_if(shared.begin(), shared.end(), [&](const auto& open) {
    return open->carrier == post.carrier.get() && open->descriptor().dtype == descriptor->dtype;
  });
  if (task != shared.end() && (*task)->bytes + bytes > post.bucket_bytes) {
    queue_shared(std::exchange(*task, nullptr));
    shared.erase(task);
    task = shared.end();
  }
  if (task == shared.end()) {
    task = shared.insert(shared.end(), std::make_unique<Task>());
    (*task)->carrier = post.carrier.get();
    (*task)->priority = group.priority;
    (*task)->contributions = group.contributions;
  }
  (*task)->parts.push_back(index);
  (*task)->add(descriptor, part, bytes);
  return true;
}

void Schedule::queue_shared(std::unique_ptr<Task> task) {
  if (task->parts.size() == 1) {
    const std::size_t part = std::exchange(task->parts, {}).front();
    for (Contribution& from : task->contributions) {
      if (task->descriptor().has_free_rows()) from.rows = from.rows_of(part);
      from.splits.clear();
      from.location = 0;
    }
  }
  queue(std::move(task));
}

// A piece behind the other, of a few large tensors: what is more urgent overtakes the rest.
void Schedule::release_cut(const std::shared_ptr<const Descriptor>& descriptor, const std::shared_ptr<Operation>& own,
                           const Release& release, std::size_t partition_bytes) {
  const std::size_t element = size_of(descriptor->dtype);
  const std::uint64_t elements = descriptor->shape.elements();
  const std::uint64_t most = std::max<std::uint64_t>(partition_bytes / element / kQuantisedBlock, 1) * kQuantisedBlock;
  if (own != nullptr) own->unfinished = (elements + most - 1) / most;
  for (std::uint64_t begin = 0; begin < elements; begin += most) {
    const auto piece = std::make_shared<Piece>();
    piece->whole = own;
    Operation& operation = piece->operation;
    operation.descriptor = *descriptor;
    operation.descriptor.shape = Shape::of(std::array{std::min(most, elements - begin)});
    Release of_piece = release;
    for (Contribution& contribution : of_piece.contributions) {
      if (contribution.location != 0) contribution.location += begin * element;
      for (std::uint64_t& input : contribution.splits) input += begin * element;
    }
    if (own != nullptr) {
      operation.whole = own.get();
      operation.input = own->input + begin * element;
      operation.output = own->output + begin * element;
      operation.submitted_at = own->submitted_at;
      operation.released_at = own->released_at;
    }
    const std::shared_ptr<Operation> submitted =
        own == nullptr ? nullptr : std::shared_ptr<Operation>(piece, &operation);
    release_one({piece, &operation.descriptor}, submitted, of_piece);
  }
}

// The operation is done; of a group, or of what was cut, only when all of its parts are.
void Schedule::complete(std::shared_ptr<Operation> operation) {
  if (operation->on_device != nullptr && operation->on_device->fetched_by != nullptr) {
    operation->on_device->fetched_by->give_back(operation);
  }
  Operation* whole = operation->whole;
  if (whole == nullptr) {
    // Of what carriers exchange nobody else knows anything: no other rank is told that it has come, or waits for that.
    const bool is_exchange = std::ranges::any_of(posts_, [&](const Post& post) { return post.exchange == operation; });
    if (is_exchange) return operation->state.store(OperationState::kDone, std::memory_order_release);
    return done_.push_back(std::move(operation));
  }
  if (--whole->unfinished == 0) complete({operation, whole});
}

void Schedule::release_one(const std::shared_ptr<const Descriptor>& described, std::shared_ptr<Operation> own,
                           Release& release) {
  const Descriptor& descriptor = *described;
  Post& post = find_post(descriptor);
  if (!post.completes_at_launch && finish_small(descriptor, own, release)) return;
  const std::size_t bytes = descriptor.shape.elements() * size_of(descriptor.dtype);
  const bool cut = descriptor.collective == Collective::kAllreduce && release.priority != 0 &&
                   post.partition_bytes > 0 && bytes > std::max(post.partition_bytes, kQuantisedBlock * sizeof(double));
  if (cut) {
    release.spread(static_cast<std::size_t>(size()));
    return release_cut(described, own, release, post.partition_bytes);
  }
  const bool registered = lies_ready_for_all(release);
  const bool large_and_ready = registered && bytes >= settings_.direct_bytes;
  const bool bucket = descriptor.collective == Collective::kAllreduce && bytes <= post.bucket_bytes && !large_and_ready;
  if (bucket) {
    auto* const open = open_bucket(post, release, descriptor, own.get(), bytes);
    if (open != nullptr) return (*open)->add(described, std::move(own), bytes);
  }
  auto task = std::make_unique<Task>();
  task->add(described, std::move(own), bytes);
  task->carrier = post.carrier.get();
  task->registered = registered;
  task->priority = release.priority;
  task->bucket = bucket;
  if (bucket) {
    task->absent = release.absent();
    task->opened_at = clock_.now();
    buckets_.push_back(std::move(task));
    return;
  }
  release.spread(static_cast<std::size_t>(size()));
  task->contributions = std::move(release.contributions);
  queue(std::move(task));
}

// The bucket that the tensor still fits into; one that is too full for it is closed.
std::unique_ptr<Task>* Schedule::open_bucket(const Post& post, const Release& release, const Descriptor& descriptor,
                                             const Operation* own, std::size_t bytes) {
  const auto open = std::find_if(buckets_.begin(), buckets_.end(), [&](const auto& bucket) {
    return bucket->carrier == post.carrier.get() && class_of(bucket->priority) == class_of(release.priority) &&
           post.carrier->fuses(*bucket, descriptor, own) && bucket->absent == release.absent();
  });
  if (open == buckets_.end()) return nullptr;
  if ((*open)->bytes + bytes <= most_in_bucket(post.bucket_bytes, post.partition_bytes, release.priority)) {
    (*open)->priority = std::max((*open)->priority, release.priority);
    return &*open;
  }
  std::unique_ptr<Task> full = std::move(*open);
  buckets_.erase(open);
  queue(std::move(full));
  return nullptr;
}

void Schedule::flush() {
  if (!deferred_.empty()) {
    deferred_.emplace_back();
    return;
  }
  close_buckets([](const Task&) { return true; });
}

// On the ranks all of what came before has ended: so it does here, and waits for nobody.
void Schedule::offer(std::vector<std::byte> offer) { deferred_.push_back({.offer = std::move(offer)}); }

std::optional<Nanoseconds> Schedule::open_since() const {
  if (buckets_.empty()) return std::nullopt;
  return buckets_.front()->opened_at;
}

void Schedule::close_buckets(const std::function<bool(const Task&)>& which) {
  std::vector<std::unique_ptr<Task>> open = std::move(buckets_);
  buckets_.clear();
  for (auto& bucket : open) {
    if (which(*bucket)) {
      queue(std::move(bucket));
    } else {
      buckets_.push_back(std::move(bucket));
    }
  }
}

void Schedule::fail(bool leaving) {
  for (Lane& lane : lanes_) {
    for (std::unique_ptr<Task>& task : lane.tasks) {
      if (task->run == nullptr || !task->run->in_use()) continue;
      task->run->abandon();
      for (const auto& operation : task->operations) {
        Operation* outermost = operation.get();
        while (outermost->whole != nullptr) outermost = outermost->whole;
        outermost->in_use = true;
      }
      keep_for_ever(std::move(task));  // who carries out the run goes on writing
    }
    lane = {};
  }
  tasks_ = 0;
  buckets_.clear();
  done_.clear();
  deferred_.clear();
  // A library's communicator ends in order, with its carrier: what is aborted loses what it still sends to other hosts.
  for (const Post& post : posts_) {
    if (!(leaving && post.carrier->drained())) post.carrier->abort();
  }
}

}  // namespace ringcore::engine
