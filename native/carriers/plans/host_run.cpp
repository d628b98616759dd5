#include "carriers/plans/host_run.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/quantise.hpp"
#include "base/reduce.hpp"
#include "engine/set_numbers.hpp"

namespace ringcore::carriers {
namespace {

using engine::dealt_blocks;
using engine::Descriptor;
using engine::Operation;
using engine::slot_of;
using engine::summing;
using engine::Task;

// Copies before a plan are made in pieces of this size: in between other lanes, control records and heartbeats move.
constexpr std::size_t kCopyBytes = 16 * 1024 * 1024;
// What is copied while a plan runs goes in pieces of this size: the plan sends and receives in between.
constexpr std::size_t kMeanwhileBytes = 256 * 1024;

std::uint64_t sum_before(const std::vector<std::uint64_t>& sizes, int member) {
  return std::accumulate(sizes.begin(), sizes.begin() + member, std::uint64_t{0});
}

void copy_scaled(const Descriptor& descriptor, std::byte* to, const std::byte* from, std::size_t count) {
  if (to != from && count > 0) std::memcpy(to, from, count * size_of(descriptor.dtype));
  const double scale = host_scales(descriptor, 1).input;
  if (scale != 1.0) scale_in_place(descriptor.dtype, to, count, scale);
}

}  // namespace

HostRun::HostRun(PlanCarrier& carrier, Task& task) : carrier_(carrier), task_(task) { start(); }

void HostRun::start() {
  if (carrier_.serves()) return start_serving();
  switch (descriptor().collective) {
    case Collective::kAllreduce: return start_allreduce();
    case Collective::kAllgather: return start_allgather();
    case Collective::kBroadcast: return start_broadcast();
    case Collective::kReduceScatter: return start_reducescatter();
    case Collective::kAlltoall: return start_alltoall();
    case Collective::kBarrier: break;  // completes when it is released
  }
}

// Whoever serves takes part in allreduces only: of others it has an empty program.
void HostRun::start_serving() {
  static const plan::Plan nothing;
  if (descriptor().collective != Collective::kAllreduce) return run_plan(nothing, {.dtype = descriptor().dtype});
  work_ = Memory(task_.bytes);
  plan::Operands operands;
  operands.data = work_.data();
  run({.collective = Collective::kAllreduce, .bytes = task_.bytes}, std::move(operands));
}

bool HostRun::progress() {
  bool moved = false;
  do {
    if (copy_) {
      moved = true;
      if (!copy_piece(copy_, kCopyBytes)) return true;
      ready_at_ = now();
    }
    moved = run_->progress() || moved;
    if (copy_meanwhile_) {
      copy_piece(copy_meanwhile_, kMeanwhileBytes);
      return true;
    }
    if (!run_->done()) return moved;
    moved = true;
  } while ((choice_.trial != nullptr && agree_on_trial()) || (sliced_ && next_slice()));
  unpack();
  done_ = true;
  return true;
}

void HostRun::abandon() {
  run_->abandon();
  kept_ = std::move(carrier_.private_fusion_[static_cast<std::size_t>(task_.lane)]);
}

// Data that must lie elsewhere, or be scaled, before the plan runs.
void HostRun::copy_first(std::byte* to, const std::byte* from, std::size_t bytes) {
  const double scale = host_scales(task_.descriptor(), size()).input;
  if (bytes > 0 && (to != from || scale != 1.0)) copy_ = Copy{to, from, bytes, scale};
}

// Whether what this rank gives, and a plan only reads, may be read where the caller has it: nobody else looks for it at its
// place in the result, and it is the same there.
bool HostRun::departs_from_input(bool registered) const {
  return !registered && host_scales(descriptor(), size()).input == 1.0;
}

// Data that the plan only reads, and that must be elsewhere in the end.
void HostRun::copy_meanwhile(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0 && to != from) copy_meanwhile_ = Copy{to, from, bytes, 1.0};
}

// True when all is copied.
bool HostRun::copy_piece(std::optional<Copy>& rest, std::size_t most) const {
  Copy& copy = *rest;
  const std::size_t bytes = std::min(copy.bytes, most);
  const DType dtype = task_.descriptor().dtype;
  if (copy.to != copy.from) std::memcpy(copy.to, copy.from, bytes);
  if (copy.scale != 1.0) scale_in_place(dtype, copy.to, bytes / size_of(dtype), copy.scale);
  copy = {copy.to + bytes, copy.from + bytes, copy.bytes - bytes, copy.scale};
  if (copy.bytes > 0) return false;
  rest.reset();
  return true;
}

void HostRun::start_allreduce() {
  if (carrier_.slices(task_)) {
    sliced_ = true;
    return start_slice();
  }
  plan::Operands operands;
  plan::Query query;
  if (task_.descriptors.size() == 1) {
    place_alone(operands);
    query.registered = query.inputs_ready = !operands.peer_data.empty();
  } else {
    place_in_fusion_buffer(operands);
    query.registered = !operands.peer_data.empty();
  }
  query.collective = Collective::kAllreduce;
  query.bytes = task_.bytes;
  run(query, std::move(operands));
}

// Packs the next slice of the task's only tensor and starts the plan on it.
void HostRun::start_slice() {
  const Descriptor& descriptor = task_.descriptor();
  const std::size_t bytes = std::min(task_.bytes - slice_begin_, config().settings.slice_bytes);
  const std::size_t count = bytes / size_of(descriptor.dtype);
  plan::Operands operands;
  use_fusion_arena(bytes, operands);
  if (task_.operations.empty()) {
    fill_identity(descriptor.dtype, summing(descriptor.op), packed_, count);
  } else {
    copy_scaled(descriptor, packed_, task_.operation().input + slice_begin_, count);
  }
  run({.collective = Collective::kAllreduce, .bytes = bytes, .registered = true}, std::move(operands));
}

// After a slice: unpacks it. False when it was the last one.
bool HostRun::next_slice() {
  const std::size_t bytes = std::min(task_.bytes - slice_begin_, config().settings.slice_bytes);
  if (!task_.operations.empty() && bytes > 0) {
    std::memcpy(task_.operation().output + slice_begin_, packed_, bytes);
  }
  if (timed()) record_steps();
  slice_begin_ += bytes;
  if (slice_begin_ == task_.bytes) return false;
  start_slice();
  return true;
}

// Works on the operation's own memory.
void HostRun::place_alone(plan::Operands& operands) {
  const Descriptor& descriptor = task_.descriptor();
  const std::size_t count = descriptor.shape.elements();
  if (task_.operations.empty()) {
    work_ = Memory(task_.bytes);
    fill_identity(descriptor.dtype, summing(descriptor.op), work_.data(), count);
    operands.data = work_.data();
  } else {
    copy_first(task_.operation().output, task_.operation().input, task_.bytes);
    operands.data = task_.operation().output;
  }
  if (task_.registered && !task_.bucket) operands.peer_data = find_peers(task_.bytes);
}

bool HostRun::all_lie_registered() const {
  return std::all_of(task_.contributions.begin(), task_.contributions.end(),
                     [](const auto& c) { return c.location != 0; });
}

// Where the members' registered data lies, as seen from here; null where it is not seen.
std::vector<std::byte*> HostRun::find_peers(std::size_t bytes) const {
  std::vector<std::byte*> found(static_cast<std::size_t>(size()), nullptr);
  for (int m = 0; m < size(); ++m) {
    if (m == self() || !config().links[m]->sees_memory()) continue;
    found[m] = config().links[m]->peer_memory(task_.contributions[m].location - 1, bytes);
  }
  return found;
}

// The task's lane of the fusion buffer, which the other ranks see.
void HostRun::use_fusion_arena(std::size_t bytes, plan::Operands& operands) {
  operands.data = packed_ = carrier_.fusion_.arena + carrier_.fusion_.offset(task_.lane);
  operands.peer_data.resize(size(), nullptr);
  for (int m = 0; m < size(); ++m) {
    if (m == self() || !config().links[m]->sees_memory()) continue;
    operands.peer_data[m] = config().links[m]->peer_memory(carrier_.fusion_.offset(task_.lane), bytes);
  }
}

void HostRun::place_in_fusion_buffer(plan::Operands& operands) {
  // A bucket of several tensors is never larger: `bucket_bytes` is at most the lane's part of the arena.
  if (carrier_.packs_apart(task_)) {
    work_ = Memory(task_.bytes);
    operands.data = packed_ = work_.data();
  } else if (carrier_.fusion_.arena != nullptr) {
    use_fusion_arena(task_.bytes, operands);
  } else {
    Memory& buffer = carrier_.private_fusion_[static_cast<std::size_t>(task_.lane)];
    if (buffer.size() < task_.bytes) buffer = Memory(task_.bytes);
    operands.data = packed_ = buffer.data();
  }
  std::byte* at = packed_;
  for (std::size_t i = 0; i < task_.descriptors.size(); ++i) {
    const Descriptor& descriptor = *task_.descriptors[i];
    const std::size_t count = descriptor.shape.elements();
    if (task_.operations.empty()) {
      fill_identity(descriptor.dtype, summing(descriptor.op), at, count);
    } else {
      copy_scaled(descriptor, at, task_.operations[i]->input, count);
    }
    at += count * size_of(descriptor.dtype);
  }
}

void HostRun::start_allgather() {
  const Descriptor& descriptor = task_.descriptor();
  Operation& operation = task_.operation();
  std::vector<std::uint64_t> blocks(size());
  std::uint64_t before = 0;
  std::uint64_t total = 0;
  operation.result_rows.resize(size());
  for (int m = 0; m < size(); ++m) {
    operation.result_rows[m] = task_.contributions[m].rows;
    blocks[m] = task_.contributions[m].rows * descriptor.shape.row_elements();
    if (m < self()) before += blocks[m];
    total += blocks[m];
  }
  const std::size_t element = size_of(descriptor.dtype);
  plan::Operands operands;
  operands.data = operation.place_result(total * element);
  std::byte* const own = operands.data + before * element;
  const bool lies_inside = operation.input >= operands.data && operation.input < operands.data + total * element;
  // In pieces it would overwrite what is still to be copied.
  if (lies_inside && operation.bytes() > 0) std::memmove(own, operation.input, operation.bytes());
  // Everybody fetches the others' rows from where they have them: at their places in the results.
  const bool registered = all_lie_registered();
  if (registered) operands.peer_data = find_peers(total * element);
  const std::byte* const from = lies_inside ? own : operation.input;
  const bool departs = departs_from_input(registered);
  if (departs) operands.own_block = from;
  run({.collective = Collective::kAllgather, .bytes = total * element, .registered = registered}, std::move(operands),
      blocks);
  // A library wants them in place, too.
  if (departs && choice_.backend == nullptr) {
    copy_meanwhile(own, from, operation.bytes());
  } else {
    copy_first(own, from, operation.bytes());
  }
}

void HostRun::start_broadcast() {
  Operation& operation = task_.operation();
  plan::Operands operands;
  operands.data = operation.output;
  if (task_.registered) operands.peer_data = find_peers(task_.bytes);
  if (self() == task_.descriptor().root && departs_from_input(task_.registered)) {
    operands.data = const_cast<std::byte*>(operation.input);
    copy_meanwhile(operation.output, operation.input, operation.bytes());
  } else if (self() == task_.descriptor().root) {
    copy_first(operation.output, operation.input, operation.bytes());
  }
  run({.collective = Collective::kBroadcast,
       .bytes = task_.bytes,
       .root = task_.descriptor().root,
       .registered = task_.registered,
       .inputs_ready = task_.registered},
      std::move(operands));
}

void HostRun::start_reducescatter() {
  const Descriptor& descriptor = task_.descriptor();
  Operation& operation = task_.operation();
  plan::Query query{.collective = Collective::kReduceScatter, .bytes = task_.bytes};
  plan::Operands operands;
  if (reduces_in_place(query)) {
    operands.data = const_cast<std::byte*>(operation.input);
    operands.peer_data = find_peers(task_.bytes);
    query.registered = query.inputs_ready = true;
  } else {
    work_ = Memory(task_.bytes);
    copy_first(work_.data(), operation.input, operation.bytes());
    operands.data = work_.data();
  }
  run(query, std::move(operands), dealt_blocks(descriptor.shape.rows(), descriptor.shape.row_elements(), size()));
}

// Whether a reducescatter into a part of the tensor runs where that lies. Only a plan that reads the others' rows where
// they are leaves the rest of the tensor as it is.
bool HostRun::reduces_in_place(plan::Query query) {
  if (!task_.registered || !config().topology.single_host() || carrier_.chooser_.has_others()) return false;
  query.registered = query.inputs_ready = true;
  describe(query);
  return carrier_.chooser_.choose_plan(query).one_sided;
}

void HostRun::start_alltoall() {
  const Descriptor& descriptor = task_.descriptor();
  Operation& operation = task_.operation();
  const std::uint64_t row = descriptor.shape.row_elements();
  const std::size_t element = size_of(descriptor.dtype);
  std::vector<std::uint64_t> outgoing(size());
  std::vector<std::uint64_t> incoming(size());
  std::uint64_t all_rows = 0;
  operation.result_rows.resize(size());
  for (int m = 0; m < size(); ++m) {
    outgoing[m] = operation.splits[m] * row;
    operation.result_rows[m] = task_.contributions[m].splits[self()];
    incoming[m] = operation.result_rows[m] * row;
    all_rows += task_.contributions[m].rows;
  }
  const std::uint64_t total = std::accumulate(incoming.begin(), incoming.end(), std::uint64_t{0});
  plan::Operands operands;
  operands.data = operation.place_result(total * element);
  operands.input = operation.input;
  const bool registered = all_lie_registered();
  if (registered) operands.peer_blocks = find_blocks(row * element);
  std::byte* const own = operands.data + sum_before(incoming, self()) * element;
  // The choice of the plan depends on what all ranks know alike.
  const std::size_t bytes = all_rows * row / static_cast<std::uint64_t>(size()) * element;
  run({.collective = Collective::kAlltoall,
       .bytes = bytes,
       .registered = registered,
       .inputs_ready = registered,
       .even_blocks = gives_evenly()},
      std::move(operands), incoming, outgoing);
  copy_meanwhile(own, operation.input + sum_before(outgoing, self()) * element, incoming[self()] * element);
}

// Whether every member gives every member as much.
bool HostRun::gives_evenly() const {
  const std::uint64_t each = task_.contributions[0].splits[0];
  return std::all_of(task_.contributions.begin(), task_.contributions.end(), [&](const auto& from) {
    return std::all_of(from.splits.begin(), from.splits.begin() + size(), [&](std::uint64_t to) { return to == each; });
  });
}

// Where the rows lie that the members give to this rank, as seen from here.
std::vector<std::byte*> HostRun::find_blocks(std::size_t row_bytes) const {
  std::vector<std::byte*> found(static_cast<std::size_t>(size()), nullptr);
  for (int m = 0; m < size(); ++m) {
    if (m == self() || !config().links[m]->sees_memory()) continue;
    const engine::Contribution& from = task_.contributions[m];
    found[m] = config().links[m]->peer_memory(from.location - 1 + sum_before(from.splits, self()) * row_bytes,
                                              from.splits[self()] * row_bytes);
  }
  return found;
}

void HostRun::describe(plan::Query& query) const {
  query.dtype = task_.descriptor().dtype;
  query.op = summing(task_.descriptor().op);
  query.deterministic = config().settings.deterministic;
  // Shared memory is quicker than quantising; and what is rounded by blocks depends on where these begin.
  if (!config().topology.single_host() && !query.deterministic) query.compression = task_.descriptor().compression;
}

// Whoever serves takes part in the trials of allreduces, and knows nothing of others.
plan::Chooser::Choice HostRun::choose(const plan::Query& query) {
  plan::Chooser& chooser = carrier_.chooser_;
  const bool others_know = query.collective == Collective::kAllreduce || config().topology.serving == 0;
  if (!others_know) return {.plan = &chooser.choose_plan(query)};
  return chooser.choose(query, task_.lane, task_.priority == 0);
}

// `blocks`: elements of each member's block, where blocks differ; empty: the data is divided evenly.
void HostRun::run(plan::Query query, plan::Operands operands, const std::vector<std::uint64_t>& blocks,
                  const std::vector<std::uint64_t>& input_blocks) {
  const Descriptor& descriptor = task_.descriptor();
  describe(query);
  // Between hosts it changes nothing, and hosts may differ in it, as servers may: the choice must not.
  const bool served = query.collective == Collective::kAllreduce && config().topology.serving > 0;
  if (!config().topology.single_host() || served) query.registered = query.inputs_ready = false;
  choice_ = choose(query);
  task_.library_bytes = choice_.plan == nullptr ? query.bytes : 0;
  operands.dtype = descriptor.dtype;
  operands.op = summing(descriptor.op);
  operands.final_scale = host_scales(descriptor, size()).result;
  const plan::Plan* plan = choice_.plan;
  const std::uint32_t chunks = plan == nullptr ? 1 : plan->chunks;
  const int parts = plan == nullptr ? 1 : static_cast<int>(plan->chunks) / size();
  // A tensor's own blocks of values are those that are quantised: what has been rounded before loses nothing more.
  const bool quantised = query.compression != Compression::kNone;
  const std::size_t alignment = quantised ? kQuantisedBlock : plan::Layout::kAlignment;
  operands.data_layout = blocks.empty() ? plan::Layout::even(query.bytes / size_of(descriptor.dtype), chunks, alignment)
                                        : plan::Layout::blocks(blocks, parts);
  if (!input_blocks.empty()) operands.input_layout = plan::Layout::blocks(input_blocks, parts);
  if (plan != nullptr) {
    run_plan(*plan, std::move(operands));
  } else {
    library_run_ = choice_.backend->start(query, std::move(operands), task_.lane);
    run_ = library_run_.get();
  }
  ready_at_ = now();
  if (timed()) run_->time_steps(config().clock);
}

static_assert((1 << engine::kProcessSetBits) <= transport::Link::kMessageChannels, "each process set has a channel");

void HostRun::run_plan(const plan::Plan& plan, plan::Operands operands) {
  scratch_ = Memory(plan.scratch_chunks * operands.data_layout.largest() * size_of(operands.dtype));
  operands.scratch = scratch_.data();
  plan_run_.emplace(plan, std::move(operands), config().links, task_.lane, task_.id,
                    static_cast<int>(slot_of(config().process_set)));
  run_ = &*plan_run_;
}

// After a run that was a trial: true while the ranks exchange what they have measured.
bool HostRun::agree_on_trial() {
  plan::Chooser& chooser = carrier_.chooser_;
  if (std::exchange(agreeing_, false)) {
    chooser.decide(*std::exchange(choice_.trial, nullptr));
    return false;
  }
  if (!chooser.measured(choice_, now() - ready_at_)) return false;
  const std::span<double> numbers = chooser.numbers(*choice_.trial, quickest_pace());
  if (timed()) record_steps();
  agreeing_ = true;
  const plan::Query query{.collective = Collective::kAllreduce,
                          .bytes = numbers.size_bytes(),
                          .dtype = DType::kFloat64,
                          .op = ReduceOp::kMax};
  const plan::Plan& plan = chooser.choose_plan_of_equals(query);
  run_plan(plan, {.dtype = query.dtype,
                  .op = query.op,
                  .data_layout = plan::Layout::even(numbers.size(), plan.chunks),
                  .data = reinterpret_cast<std::byte*>(numbers.data())});
  return true;
}

// Of the links to other hosts, which share this host's port.
transport::Pace HostRun::quickest_pace() const {
  transport::Pace quickest;
  const std::vector<int>& host_of = config().topology.host_of;
  for (int m = 0; m < size(); ++m) {
    if (host_of[m] == host_of[self()]) continue;
    const transport::Pace pace = config().links[m]->pace();
    quickest.bytes_per_s = std::max(quickest.bytes_per_s, pace.bytes_per_s);
    const bool nearer = pace.latency_s > 0 && (quickest.latency_s == 0 || pace.latency_s < quickest.latency_s);
    if (nearer) quickest.latency_s = pace.latency_s;
  }
  return quickest;
}

// What the operations get when all has run.
void HostRun::unpack() {
  const Descriptor& descriptor = task_.descriptor();
  const Nanoseconds ran_at = now();
  if (packed_ != nullptr && !sliced_) {
    const std::byte* at = packed_;
    for (const auto& operation : task_.operations) {
      if (operation->bytes() > 0) std::memcpy(operation->output, at, operation->bytes());
      at += operation->bytes();
    }
  }
  if (descriptor.collective == Collective::kReduceScatter && work_.data() != nullptr) {
    const std::vector<std::uint64_t> blocks =
        dealt_blocks(descriptor.shape.rows(), descriptor.shape.row_elements(), size());
    const std::size_t element = size_of(descriptor.dtype);
    const std::uint64_t before = sum_before(blocks, self());
    Operation& operation = task_.operation();
    const std::size_t share = blocks[self()] * element;
    std::byte* const result = operation.place_result(share);
    if (share > 0) std::memcpy(result, work_.data() + before * element, share);
  }
  if (timed()) {
    record_steps();
    record_spans(ran_at);
    config().timeline.flush();
  }
}

void HostRun::record_steps() const {
  const Nanoseconds submitted = task_.operations.empty() ? 0 : task_.operation().submitted_at;
  for (const plan::Run::StepTime& time : run_->step_times()) {
    config().timeline.record({task_.descriptor().name, carriers::describe(*time.step), task_.lane, time.channel,
                              time.begin, time.end, time.bytes, submitted});
  }
}

void HostRun::record_spans(Nanoseconds ran_at) const {
  const Nanoseconds ended_at = now();
  for (const auto& operation : task_.operations) {
    const std::string& name = operation->descriptor.name;
    const auto span = [&](const std::string& activity, Nanoseconds begin, Nanoseconds end) {
      config().timeline.record({name, activity, task_.lane, -1, begin, end, operation->bytes(), operation->submitted_at,
                                operation->blocks_program()});
    };
    span("negotiate", operation->submitted_at, operation->released_at);
    span("queue", operation->released_at, task_.started_at);
    if (ready_at_ > task_.started_at) span(packed_ != nullptr ? "pack" : "copy", task_.started_at, ready_at_);
    span(std::string(choice_.name()), ready_at_, ran_at);
    if (packed_ != nullptr) span("unpack", ran_at, ended_at);
  }
}

}  // namespace ringcore::carriers
