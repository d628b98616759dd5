#include "carriers/plans/host_run.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/quantise.hpp"
#include "base/reduce.hpp"
#include "engine/set_numbers.hpp"

namespace ringcore::carriers {
namespace {

using engine::Descriptor;
using engine::slot_of;
using engine::summing;
using engine::Task;

// Copies before a plan are made in pieces of this size: in between other lanes, control records and heartbeats move.
constexpr std::size_t kCopyBytes = 16 * 1024 * 1024;
// What is copied while a plan runs goes in pieces of this size: the plan sends and receives in between.
constexpr std::size_t kMeanwhileBytes = 256 * 1024;

// Whether this rank receives other blocks than its own.
bool passes_on(const plan::Plan& plan) {
  const auto block_of = [&](const plan::ChunkRef& ref) {
    return static_cast<Rank>(ref.chunk / (plan.chunks / static_cast<std::uint32_t>(plan.ranks)));
  };
  const auto is_other = [&](const plan::ChunkRef& ref) {
    return ref.buffer == plan::Buffer::kData && block_of(ref) != plan.self;
  };
  return std::ranges::any_of(plan.program.channels, [&](const plan::Channel& channel) {
    return std::ranges::any_of(channel, [&](const plan::Step& step) {
      return step.kind == plan::StepKind::kRecv && std::ranges::any_of(step.targets, is_other);
    });
  });
}

}  // namespace

HostRun::HostRun(PlanCarrier& carrier, Task& task) : carrier_(carrier), task_(task) { start(); }

void HostRun::start() {
  if (carrier_.serves()) return start_serving();
  if (!task_.parts.empty()) {
    return descriptor().collective == Collective::kAllgather ? start_gathers() : start_scatters();
  }
  switch (descriptor().collective) {
    case Collective::kAllreduce: return start_allreduce();
    case Collective::kAllgather: return start_allgather();
    case Collective::kBroadcast: return start_broadcast();
    case Collective::kReduceScatter: return start_reducescatter();
    case Collective::kReduce: return start_reduce();
    case Collective::kGather: return start_gather();
    case Collective::kScatter: return start_scatter();
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
  finish();
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

// Whoever serves takes part in the trials of allreduces, and knows nothing of others.
plan::Chooser::Choice HostRun::choose(const plan::Query& query) {
  plan::Chooser& chooser = carrier_.chooser_;
  const bool others_know = query.collective == Collective::kAllreduce || config().topology.serving == 0;
  if (!others_know) return {.plan = &chooser.choose_plan(query)};
  if (task_.tried) return chooser.choose(query, plan::Chooser::kPriorityLane);
  if (task_.priority == 0) return chooser.choose(query, task_.lane);
  return task_.priority < 0 ? chooser.choose_found(query) : plan::Chooser::Choice{.plan = &chooser.choose_plan(query)};
}

// `blocks`: elements of each member's block, where blocks differ; empty: the data is divided evenly.
void HostRun::run(plan::Query query, plan::Operands operands, const std::vector<std::uint64_t>& blocks,
                  const std::vector<std::uint64_t>& input_blocks) {
  const Descriptor& descriptor = task_.descriptor();
  carrier_.describe(query, descriptor);
  // Between hosts it changes nothing, and hosts may differ in it, as servers may: the choice must not.
  const bool served = query.collective == Collective::kAllreduce && config().topology.serving > 0;
  if (!config().topology.single_host() || served) query.registered = query.inputs_ready = false;
  choice_ = choose(query);
  task_.library_bytes = choice_.plan == nullptr ? query.bytes : 0;
  operands.dtype = descriptor.dtype;
  operands.op = summing(descriptor.op);
  operands.final_scale = host_scales(descriptor, size()).result;
  const plan::Plan* plan = choice_.plan;
  if (query.collective == Collective::kAllreduce && operands.input != nullptr) place_input(plan, operands);
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
  if (operands.data == nullptr && is_in_blocks(plan.collective) && passes_on(plan)) {
    work_ = Memory(operands.data_layout.offset(plan.chunks) * size_of(operands.dtype));
    operands.data = work_.data();
  }
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
  const std::vector<transport::Pace> paces = link_paces();
  const std::span<double> numbers = chooser.numbers(*choice_.trial, quickest_of(paces), paces);
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

// By member: of the links to other hosts.
std::vector<transport::Pace> HostRun::link_paces() const {
  std::vector<transport::Pace> paces(static_cast<std::size_t>(size()));
  const std::vector<int>& host_of = config().topology.host_of;
  for (int m = 0; m < size(); ++m) {
    if (host_of[m] != host_of[self()]) paces[m] = config().links[m]->pace();
  }
  return paces;
}

// They share this host's port.
plan::PortPace HostRun::quickest_of(std::span<const transport::Pace> paces) const {
  plan::PortPace quickest;
  int shown_by = -1;  // a host
  const std::vector<int>& host_of = config().topology.host_of;
  for (int m = 0; m < size(); ++m) {
    if (host_of[m] == host_of[self()]) continue;
    const transport::Pace& pace = paces[m];
    quickest.bytes_per_s = std::max(quickest.bytes_per_s, pace.bytes_per_s);
    quickest.mean_bytes_per_s = std::max(quickest.mean_bytes_per_s, pace.mean_bytes_per_s);
    // A rank that passes on what it gets from a slow one sends no quicker: single measurements would tell that of it.
    if (pace.sure) {
      quickest.sure = quickest.sure || (shown_by >= 0 && host_of[m] != shown_by);
      shown_by = host_of[m];
    }
    const bool nearer = pace.latency_s > 0 && (quickest.latency_s == 0 || pace.latency_s < quickest.latency_s);
    if (nearer) quickest.latency_s = pace.latency_s;
  }
  return quickest;
}

// What the operations get when all has run.
void HostRun::finish() {
  const Nanoseconds ran_at = now();
  if (task_.tried) carrier_.chooser_.note_end(carrier_.query_of(task_));
  if (packed_ != nullptr && !sliced_) unpack();
  if (descriptor().collective == Collective::kReduceScatter && task_.parts.empty() && work_.data() != nullptr) {
    take_own_block();
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
