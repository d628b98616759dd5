#include "carriers/plans/carrier.hpp"

#include <algorithm>
#include <utility>

#include "carriers/plans/executor.hpp"
#include "carriers/plans/host_run.hpp"

namespace ringcore::carriers {
namespace {

using engine::Descriptor;
using engine::Task;

// In shared memory a bucket is packed, reduced and unpacked while it is in a core's own cache, and a meeting of the ranks
// costs little. Measured with 100 MB in tensors of 640 KB: 13 ms, and 30 in buckets of 64 MiB.
constexpr std::size_t kCachedBytes = 1024 * 1024;

bool same_bucket(const Descriptor& a, const Descriptor& b) {
  if (a.compression != b.compression) return false;
  return a.dtype == b.dtype && a.op == b.op && host_scales(a, 1).result == host_scales(b, 1).result;
}

// What is more urgent than all that has no priority would wait in the order of that, to be tried.
bool shares_trials(const Task& task) {
  return task.priority < 0 && task.descriptor().collective == Collective::kAllreduce;
}

}  // namespace

PlanCarrier::PlanCarrier(engine::CarrierConfig config, std::vector<std::unique_ptr<plan::Backend>> backends,
                         std::shared_ptr<plan::Offered> offered)
    : config_(std::move(config)),
      fusion_{config_.fusion_arena, config_.settings.fusion_threshold_bytes},
      offered_(std::move(offered)),
      chooser_(plan::Planner(config_.topology, config_.self, plan::CostModel{}), std::move(backends), offered_,
               config_.settings.survey_every) {}

void PlanCarrier::offer(std::span<const std::byte> offer) {
  const std::string server = "server " + std::to_string(config_.self - size());
  if (offered_ == nullptr) throw Error(ErrorKind::kProtocol, server + " takes no plans from outside");
  try {
    offered_->offer({plan::offered_to(config_.self, plan::offer_from(offer), config_.topology)});
  } catch (const Error& error) {
    throw Error(ErrorKind::kProtocol, server + " was offered what no rank can have proven: " + error.what());
  }
}

std::size_t PlanCarrier::bucket_bytes() const {
  // Servers do not know whether the ranks share memory.
  const bool in_memory =
      config_.topology.single_host() && config_.topology.memory_shared_in_host && config_.topology.serving == 0;
  const std::size_t most = config_.settings.fusion_threshold_bytes;
  return in_memory ? std::min(most, kCachedBytes) : most;
}

// In memory a tensor of this size is carried out as quickly as it is packed. Between hosts packing costs little beside what
// a message costs.
std::size_t PlanCarrier::shared_bytes() const {
  return config_.topology.single_host() ? config_.settings.direct_bytes : kCachedBytes;
}

// In shared memory a tensor is reduced before anything could overtake it.
std::size_t PlanCarrier::partition_bytes() const {
  return config_.topology.single_host() ? 0 : config_.settings.partition_bytes;
}

bool PlanCarrier::packs_apart(const Task& task) const {
  return task.descriptors.size() > 1 && task.priority != 0 && !config_.topology.single_host();
}

bool PlanCarrier::fuses(const Task& bucket, const Descriptor& descriptor, const engine::Operation*) const {
  return same_bucket(bucket.descriptor(), descriptor);
}

bool PlanCarrier::queue(Task& task) {
  if (keeps_order(task)) return true;
  task.tried = shares_trials(task) && chooser_.lets_in(query_of(task));
  return task.tried;
}

bool PlanCarrier::may_start(const Task& task) const {
  return !shares_trials(task) || !chooser_.is_trying(query_of(task));
}

bool PlanCarrier::keeps_order(const Task& task) const {
  // These stay in the order of their release: what shares the lane's buffer, and what others carry out, who want to see
  // the same order on every rank. Messages from memory to memory meet in the order of the runs, too.
  return (task.descriptors.size() > 1 && !packs_apart(task)) || slices(task) || chooser_.has_others() ||
         std::any_of(config_.links.begin(), config_.links.end(),
                     [](const transport::Link* link) { return link != nullptr && link->has_messages(); });
}

// Private memory of more than two ranks of one host: packing copies twice, but without it they would wait for each other
// at every step of a ring (measured with 4 ranks on 2 cores). Servers may see no memory, and have to come to the same answer.
bool PlanCarrier::slices(const Task& task) const {
  return task.descriptor().collective == Collective::kAllreduce && task.descriptors.size() == 1 &&
         (task.bucket || !task.registered) && size() > 2 && config_.topology.single_host() &&
         fusion_.arena != nullptr && config_.topology.serving == 0 &&
         fusion_.bytes_per_lane >= config_.settings.slice_bytes;
}

void PlanCarrier::describe(plan::Query& query, const Descriptor& descriptor) const {
  query.dtype = descriptor.dtype;
  query.op = engine::summing(descriptor.op);
  query.deterministic = config_.settings.deterministic;
  // Shared memory is quicker than quantising; and what is rounded by blocks depends on where these begin.
  if (!config_.topology.single_host() && !query.deterministic) query.compression = descriptor.compression;
}

plan::Query PlanCarrier::query_of(const Task& task) const {
  plan::Query query{.collective = Collective::kAllreduce, .bytes = task.bytes};
  describe(query, task.descriptor());
  return query;
}

std::unique_ptr<engine::Run> PlanCarrier::start(Task& task) { return std::make_unique<HostRun>(*this, task); }

bool PlanCarrier::make_way(int lane) {
  bool moved = false;
  for (int m = 0; m < config_.topology.nodes(); ++m) {
    if (m != config_.self) moved = set_aside(*config_.links[m], lane, m) || moved;
  }
  return moved;
}

}  // namespace ringcore::carriers
