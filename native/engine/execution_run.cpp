// A task from its start to its end: where its data lies, which plan runs on it, what the operations get.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/reduce.hpp"
#include "engine/execution_task.hpp"
#include "engine/set_numbers.hpp"

namespace ringcore::engine {
namespace {

// Copies before a plan are made in pieces of this size: in between other lanes, control records and heartbeats move.
constexpr std::size_t kCopyBytes = 16 * 1024 * 1024;

}  // namespace

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
  const double scale = host_scales(task.descriptor(), size()).input;
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
         fusion_.bytes_per_lane >= settings_.slice_bytes;
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
  const std::size_t bytes = std::min(task.bytes - task.slice_begin, settings_.slice_bytes);
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
  const std::size_t bytes = std::min(task.bytes - task.slice_begin, settings_.slice_bytes);
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
    if (m == self_ || !links_[m]->sees_memory()) continue;
    operands.peer_data[m] = links_[m]->peer_memory(task.contributions[m].location - 1, task.bytes);
  }
}

// The task's lane of the fusion buffer, which the other ranks see.
void Execution::use_fusion_arena(Task& task, std::size_t bytes, plan::Operands& operands) {
  operands.data = task.packed = fusion_.arena + fusion_.offset(task.lane);
  operands.peer_data.resize(size(), nullptr);
  for (int m = 0; m < size(); ++m) {
    if (m == self_ || !links_[m]->sees_memory()) continue;
    operands.peer_data[m] = links_[m]->peer_memory(fusion_.offset(task.lane), bytes);
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
  task.choice = chooser_.choose(query, task.lane, task.priority == 0);
  task.run_bytes = query.bytes;
  operands.dtype = descriptor.dtype;
  operands.op = summing(descriptor.op);
  operands.final_scale = host_scales(descriptor, size()).result;
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
                                             static_cast<int>(slot_of(id_)));
}

void Execution::finish(Task& task) {
  if (task.choice.plan == nullptr) ++library_ended_;
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

void Execution::record_small(const Operation& operation) const {
  // The short cut asks for no clock unless a timeline is recorded, which may have begun since.
  const Nanoseconds now = clock_.now();
  const Nanoseconds begin = operation.submitted_at == 0 ? now : operation.submitted_at;
  const Nanoseconds released = operation.released_at == 0 ? begin : operation.released_at;
  const auto span = [&](const std::string& activity, Nanoseconds from, Nanoseconds to) {
    timeline_.record({operation.descriptor.name, activity, transport::kControlLane, -1, from, to, operation.bytes()});
  };
  if (released > begin) span("negotiate", begin, released);
  span("short cut", released, now);
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

}  // namespace ringcore::engine
