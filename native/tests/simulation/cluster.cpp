#include "cluster.hpp"
#include "../outside_plan.hpp"
#include "carriers/plans/carrier.hpp"
#include "engine/tree_shape.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace ringcore::simulation {
namespace {

// Behind the places that members give for their results.
constexpr std::size_t kGuardBytes = 64;
constexpr std::byte kGuard{0xa5};

constexpr std::size_t kRowAlignment = Memory::kAlignment;

std::size_t padded(std::size_t bytes) { return (bytes + kRowAlignment - 1) / kRowAlignment * kRowAlignment; }

// What the member that does not fit submits instead.
Request spoilt(Request request) {
  switch (request.misfit) {
    case Misfit::kNone:
    case Misfit::kRoot:
    case Misfit::kOutput: break;
    case Misfit::kDType: request.dtype = request.dtype == DType::kFloat64 ? DType::kFloat32 : DType::kFloat64; break;
    case Misfit::kOp: request.op = request.op == ReduceOp::kMax ? ReduceOp::kSum : ReduceOp::kMax; break;
    case Misfit::kPrescale: request.prescale *= 4; break;
    case Misfit::kPostscale: request.postscale *= 4; break;
    case Misfit::kRows: ++request.rows.front(); break;
    case Misfit::kCompression:
      request.compression = request.compression == Compression::kInt8 ? Compression::kInt4 : Compression::kInt8;
      break;
    case Misfit::kRefused: request.prescale = 0.5; break;  // of integers
  }
  return request;
}

}  // namespace

Cluster::Cluster(const Workload& workload, std::vector<Fault> faults, Draw& draw, std::uint32_t epoch)
    : workload_(workload), faults_(std::move(faults)), draw_(draw), epoch_(epoch) {
  transport::SimOptions options;
  options.longest_delay = draw.one_in(2) ? 20'000 : 3 * kMillisecond;
  options.lane_bytes = draw.one_in(2) ? 512 : 8192;
  options.late_lanes = draw.one_in(2);
  options.encrypted = workload.encrypted;
  options.watched = draw.one_in(2);
  // Each says something else of its links; what they plan with must be the same.
  const int telling = draw.one_in(2) ? nodes() : 0;
  for (Rank rank = 0; rank < telling; ++rank) {
    options.paces.push_back({std::ldexp(1e6, draw.below(12)), std::ldexp(1e-6, draw.below(16)), true});
  }
  if (workload.registered_memory) {
    options.host_of = workload.host_of;
    options.reserved_bytes = 3 * workload.fusion_bytes;
    options.arena_bytes = 8 << 20;
  }
  network_ = std::make_unique<transport::SimNetwork>(nodes(), draw.generator()(), options);
  if (draw.one_in(2)) connect_along_tree();
  for (const Phase& phase : workload.phases) {
    std::vector<std::size_t>& counts = own_counts_.emplace_back();
    for (Rank rank = 0; rank < nodes(); ++rank) {
      const std::size_t all = phase.requests.size();
      counts.push_back(
          phase.joins && rank < workload.ranks ? static_cast<std::size_t>(draw.below(static_cast<int>(all) + 1)) : all);
    }
  }
  states_.resize(static_cast<std::size_t>(nodes()));
  for (Rank rank = 0; rank < nodes(); ++rank) {
    RankState& state = states_[static_cast<std::size_t>(rank)];
    state.rank = rank;
    make_engine(state);
    write_script(state);
  }
}

// The others connect when they need each other. So few ranks would all watch each other: here some do not.
void Cluster::connect_along_tree() {
  for (Rank rank = 0; rank < nodes(); ++rank) {
    const engine::TreeShape shape = engine::TreeShape::make(workload_.host_of, rank);
    for (Rank peer = rank + 1; peer < nodes(); ++peer) {
      const bool along_tree =
          peer == shape.parent || std::any_of(shape.children.begin(), shape.children.end(),
                                              [peer](const auto& child) { return child.member == peer; });
      if (!along_tree && draw_.one_in(2)) network_->disconnect(rank, peer);
    }
  }
}

void Cluster::make_engine(RankState& state) {
  engine::EngineConfig config;
  config.rank = state.rank;
  config.make_carriers = [this, &state](const engine::CarrierConfig& carrier) { return make_carriers(state, carrier); };
  config.epoch = epoch_;
  config.serving = workload_.servers;
  config.links.resize(static_cast<std::size_t>(nodes()));
  for (Rank peer = 0; peer < nodes(); ++peer) {
    if (peer != state.rank) config.links[static_cast<std::size_t>(peer)] = network_->link(state.rank, peer);
  }
  config.host_of = workload_.host_of;
  config.readiness = &network_->readiness(state.rank);
  config.arena = network_->arena(state.rank);
  if (config.arena != nullptr) config.fusion_arena = network_->arena_memory(state.rank).data();
  engine::EngineSettings settings;
  settings.execution.fusion_threshold_bytes = workload_.fusion_bytes;
  settings.execution.slice_bytes = workload_.slice_bytes;
  settings.execution.survey_every = workload_.survey_every;
  settings.execution.direct_bytes = workload_.direct_bytes;
  settings.execution.partition_bytes = workload_.partition_bytes;
  settings.execution.credit_bytes = workload_.credit_bytes;
  settings.execution.deterministic = workload_.deterministic;
  settings.eager_limit_bytes = workload_.eager_bytes;
  settings.direct_members = workload_.direct_members;
  settings.timeout = kTimeout;
  settings.stall_warning = 0;
  settings.heartbeat = kHeartbeat;
  state.engine = std::make_unique<engine::Engine>(std::move(config), settings, network_->clock());
  state.sets.assign(workload_.sets.size(), engine::kWorld);
}

std::vector<std::unique_ptr<engine::Carrier>> Cluster::make_carriers(RankState& state,
                                                                     const engine::CarrierConfig& config) {
  Shared& shared = shared_[{config.process_set, state.uses[config.process_set]++}];
  if (shared.devices == nullptr) {
    shared.devices = std::make_shared<SimDevices>(config.topology.ranks());
    shared.meetings = std::make_shared<SimMeetings>(config.topology.ranks());
  }
  std::vector<std::unique_ptr<plan::Backend>> libraries;
  if (workload_.library) libraries.push_back(make_sim_library(shared.meetings, config.self, *network_));
  const bool able = workload_.able_devices || state.rank % 2 == 0;
  std::vector<std::unique_ptr<engine::Carrier>> carriers;
  carriers.push_back(std::make_unique<SimDeviceCarrier>(config, shared.devices, *network_, able));
  carriers.push_back(std::make_unique<carriers::PlanCarrier>(
      config, std::move(libraries), config.process_set == engine::kWorld ? state.offered : nullptr));
  return carriers;
}

std::string Cluster::flaw() const {
  if (!watch_flaw_.empty()) return describe(watch_flaw_);
  if (!overslept_.empty()) return overslept_;
  for (const auto& [id, shared] : shared_) {
    if (!shared.devices->flaw().empty()) return describe(shared.devices->flaw());
  }
  return "";
}

std::vector<int> Cluster::contributors(std::size_t phase, std::size_t request) const {
  const Request& asked = workload_.phases[phase].requests[request];
  const std::vector<Rank>& members = workload_.sets[asked.set];
  std::vector<int> found;
  for (std::size_t m = 0; m < members.size(); ++m) {
    if (request < own_counts_[phase][static_cast<std::size_t>(members[m])]) found.push_back(static_cast<int>(m));
  }
  return found;
}

void Cluster::write_script(RankState& state) {
  for (std::size_t phase = 0; phase < workload_.phases.size(); ++phase) write_phase(state, phase);
  if (!is_server(state)) state.script.push_back({Action::Kind::kLeave});
}

void Cluster::write_phase(RankState& state, std::size_t index) {
  const Phase& phase = workload_.phases[index];
  if (phase.offer && !is_server(state)) {
    for (const auto kind : {Action::Kind::kMeet, Action::Kind::kOffer, Action::Kind::kMeet}) {
      state.script.push_back({kind, index});
    }
  }
  // Whoever is no member counts the sets that all add, but for servers.
  const auto knows = [&](std::size_t set) {
    const bool counts = !is_agreed(workload_, set) && !is_server(state);
    return counts || std::ranges::find(workload_.sets[set], state.rank) != workload_.sets[set].end();
  };
  for (const std::size_t set : phase.added) {
    if (knows(set)) state.script.push_back({Action::Kind::kAddSet, set});
  }
  std::vector<std::size_t> own;
  for (std::size_t i = 0; i < own_counts_[index][static_cast<std::size_t>(state.rank)]; ++i) {
    const Request& request = phase.requests[i];
    const std::vector<Rank>& members = workload_.sets[request.set];
    const auto found = std::find(members.begin(), members.end(), state.rank);
    const int member = static_cast<int>(found - members.begin());
    if (found == members.end() || member == request.missing_member) continue;
    own.push_back(state.tasks.size());
    state.tasks.push_back(
        {.phase = index, .request = &request, .member = member, .members = static_cast<int>(members.size())});
  }
  if (!phase.blocking) std::shuffle(own.begin(), own.end(), draw_.generator());
  for (const std::size_t task : own) {
    const Task& watched = state.tasks[task];
    if (!is_watched(phase, *watched.request)) continue;
    // Where the first member leads, the others come when they have heard of it.
    const bool follows =
        watched.request == phase.requests.data() && watched.member > 0 && watched.request->salt % 2 == 0;
    state.script.push_back({follows ? Action::Kind::kAwaitWatch : Action::Kind::kWatch, task});
  }
  for (const std::size_t task : own) {
    state.script.push_back({phase.blocking ? Action::Kind::kRun : Action::Kind::kSubmit, task});
  }
  // A rank may join before it waits for what it has submitted.
  const bool joins = phase.joins && !is_server(state);
  const bool joins_early = joins && draw_.one_in(2);
  if (joins_early) state.script.push_back({Action::Kind::kJoin});
  if (!phase.blocking) {
    std::shuffle(own.begin(), own.end(), draw_.generator());
    for (const std::size_t task : own) state.script.push_back({Action::Kind::kWait, task});
  }
  if (joins && !joins_early) state.script.push_back({Action::Kind::kJoin});
  for (const std::size_t set : phase.removed) {
    if (knows(set)) state.script.push_back({Action::Kind::kRemoveSet, set});
  }
}

// Some of those that all members submit: what is said of another use of the name would be counted as well.
bool Cluster::is_watched(const Phase& phase, const Request& request) const {
  if (phase.blocking || phase.joins || request.salt % 3 != 0) return false;
  return std::ranges::all_of(workload_.phases, [&](const Phase& other) {
    return std::ranges::all_of(other.requests, [&](const Request& one) {
      return one.set != request.set || one.name != request.name || (one.fits() && !other.joins);
    });
  });
}

void Cluster::watch(RankState& state, Task& task) {
  const bool follows = task.request == workload_.phases[task.phase].requests.data();
  task.watch = std::make_shared<engine::Operation>();
  task.watch->descriptor.name = task.request->name;
  task.watch->process_set = state.sets[task.request->set];
  task.watch->watched_members = follows ? 1 : 1 + static_cast<int>(task.request->salt / 7 % task.members);
  try {
    state.engine->submit(task.watch);
  } catch (const Error&) {
    task.watch = nullptr;  // whatever it is, the operation itself meets it, too
  }
}

// What a watch that has ended tells is true.
void Cluster::look_at_watches(RankState& state) {
  for (Task& task : state.tasks) {
    if (task.watch == nullptr || task.watch_seen || !task.watch->done()) continue;
    task.watch_seen = true;
    if (task.watch->error != nullptr) continue;
    int submitted = 0;
    for (const RankState& other : states_) {
      submitted += static_cast<int>(std::ranges::any_of(
          other.tasks, [&](const Task& one) { return one.request == task.request && one.submitted; }));
    }
    if (submitted < task.watch->watched_members) {
      watch_flaw_ = "rank " + std::to_string(state.rank) + " was told of " +
                    std::to_string(task.watch->watched_members) + " members that had submitted '" + task.request->name +
                    "', and there were " + std::to_string(submitted);
    }
  }
}

// Gives each tensor a place for its input and its result; in a row, as the buckets of a framework are, or apart.
void Cluster::place(RankState& state, Task& task, std::vector<std::byte*>& places) {
  std::size_t total = 0;
  for (const auto& input : task.inputs) total += padded(input.size());
  std::byte* at = nullptr;
  if (task.request->place >= Place::kRegistered) {
    at = task.piece = network_->arena(state.rank)->allocate(total);
  } else {
    task.outputs.emplace_back(total + kRowAlignment);
    std::byte* const begin = task.outputs.front().data();
    at = begin + (padded(reinterpret_cast<std::uintptr_t>(begin)) - reinterpret_cast<std::uintptr_t>(begin));
  }
  for (const auto& input : task.inputs) {
    places.push_back(at);
    at += padded(input.size());
  }
}

// The place that the member gives for a result; in registered memory, where its tensor lies there.
std::byte* Cluster::place_result(RankState& state, Task& task, const engine::Operation& tensor) {
  const std::size_t bytes = tensor.output_rows * 2 * size_of(tensor.descriptor.dtype) + kGuardBytes;
  if (task.request->place >= Place::kRegistered) {
    task.pieces.push_back(network_->arena(state.rank)->allocate(bytes));
    task.results.emplace_back(task.pieces.back(), bytes);
  } else {
    task.outputs.emplace_back(bytes);
    task.results.emplace_back(task.outputs.back());
  }
  std::fill(task.results.back().begin(), task.results.back().end(), kGuard);
  return task.results.back().data();
}

// In a loop of steps: the last one's group in the memory of these tensors, where it is free; else a new one.
std::shared_ptr<engine::Operation> Cluster::group_of(RankState& state, const Request& request,
                                                     std::vector<std::shared_ptr<engine::Operation>> tensors) {
  const engine::Call call{.collective = request.collective,
                          .name = request.name,
                          .op = request.op,
                          .prescale = request.prescale,
                          .postscale = request.postscale,
                          .process_set = state.sets[request.set],
                          .priority = request.priority,
                          .compression = request.compression};
  const auto place = [](engine::Operation& part, const engine::Operation& tensor) {
    const engine::Descriptor& descriptor = tensor.descriptor;
    engine::Array input{const_cast<std::byte*>(tensor.input), descriptor.shape, descriptor.dtype};
    if (descriptor.on_device) input.device = 0;
    engine::Array output = input;
    output.data = tensor.output;
    return place_again(part, input, output);
  };
  for (Task& other : state.tasks) {
    if (!other.taken || !engine::can_be_renewed(other.operation, call, tensors.size())) continue;
    const auto group = std::exchange(other.operation, nullptr);
    if (!std::equal(tensors.begin(), tensors.end(), group->parts.begin(),
                    [&](const auto& tensor, const auto& part) { return place(*part, *tensor); })) {
      continue;
    }
    engine::renew(*group);
    return group;
  }
  return engine::make_group(request.name, std::move(tensors));
}

void Cluster::make_task(RankState& state, Task& task) {
  const Request request = task.request->is_spoilt_by(task.member) ? spoilt(*task.request) : *task.request;
  std::vector<std::shared_ptr<engine::Operation>> tensors;
  for (std::size_t i = 0; i < request.rows.size(); ++i) {
    task.inputs.push_back(input_of(request, i, task.member, task.members));
  }
  std::vector<std::byte*> places;
  place(state, task, places);
  for (std::size_t i = 0; i < request.rows.size(); ++i) {
    auto tensor = std::make_shared<engine::Operation>();
    engine::Descriptor& descriptor = tensor->descriptor;
    const std::uint64_t shape[] = {rows_of(request, i, task.member, task.members), 2};
    descriptor = {.name = request.name,
                  .collective = request.collective,
                  .dtype = request.dtype,
                  .op = request.op,
                  .root = request.misfit == Misfit::kRoot && task.member == request.misfit_member
                              ? (request.root + 1) % task.members
                              : request.root,
                  .shape = engine::Shape::of(shape),
                  .prescale = request.prescale,
                  .postscale = request.postscale,
                  .compression = request.compression,
                  .parts = {}};
    tensor->process_set = state.sets[request.set];
    tensor->priority = request.priority;
    tensor->input = task.inputs[i].data();
    if (request.place == Place::kFromRegistered) {
      task.pieces.push_back(network_->arena(state.rank)->allocate(task.inputs[i].size()));
      tensor->input = std::ranges::copy(task.inputs[i], task.pieces.back()).out - task.inputs[i].size();
    } else if (request.place != Place::kApart) {
      if (!task.inputs[i].empty()) std::memcpy(places[i], task.inputs[i].data(), task.inputs[i].size());
      tensor->input = places[i];
    }
    const bool is_root = request.collective == Collective::kReduce && tensor->descriptor.root == task.member;
    if (request.collective == Collective::kAllreduce || request.collective == Collective::kBroadcast || is_root) {
      tensor->output = places[i];
    }
    if (request.gives_output(task.member)) {
      const bool wrong = request.misfit == Misfit::kOutput && task.member == request.misfit_member;
      tensor->output_rows = result_rows_of(request, i, task.member, task.members) + (wrong ? 1 : 0);
      tensor->output = place_result(state, task, *tensor);
    }
    if (request.on_device) {
      descriptor.on_device = true;
      tensor->on_device = std::make_unique<engine::OnDevice>();
      tensor->on_device->device = static_cast<int>(i % 2);  // a group lies on two; all ranks use the same one first
      tensor->on_device->input = tensor->input;
      tensor->on_device->output = tensor->output;
    }
    const bool deals_out = request.collective == Collective::kScatter && task.member == tensor->descriptor.root;
    for (int to = 0; (deals_out || request.collective == Collective::kAlltoall) && to < task.members; ++to) {
      tensor->splits.push_back(split_of(request, i, task.member, to));
    }
    tensors.push_back(std::move(tensor));
  }
  task.operation = request.group ? group_of(state, request, std::move(tensors)) : std::move(tensors.front());
}

// Of an operation that is done: after a failure what was launched has none.
bool Cluster::has_result(const RankState& state, const Task& task) {
  return !task.request->on_device || task.operation->error != nullptr || has_ended(*task.operation) ||
         state.engine->failure() != nullptr;
}

void Cluster::take_results(RankState& state, Task& task) {
  if (task.taken || task.operation == nullptr || !task.operation->done()) return;
  if (task.request->on_device && task.operation->error == nullptr && !has_ended(*task.operation)) return;
  task.taken = true;
  task.error = task.operation->error;
  const bool gives_output = task.request->gives_output(task.member);
  const auto take = [&](const engine::Operation& tensor) {
    if (gives_output) {
      const std::span<std::byte> result = task.results[task.got.size()];
      const auto behind = result.last(kGuardBytes);
      task.overrun = task.overrun || std::count(behind.begin(), behind.end(), kGuard) != kGuardBytes;
      task.got.emplace_back(result.begin(), behind.begin());
      return;
    }
    if (tensor.on_device != nullptr && tensor.on_device->output == nullptr) {
      task.got.push_back(static_cast<const SimTensor&>(*tensor.on_device->state).result);
      return;
    }
    const std::byte* const output = tensor.on_device != nullptr ? tensor.on_device->output : tensor.output;
    const std::byte* const from = output != nullptr ? output : tensor.result.data();
    const std::size_t bytes = output != nullptr ? tensor.bytes() : tensor.result.size();
    task.got.emplace_back(from, from + bytes);
  };
  if (task.error == nullptr && task.request->group) {
    for (const auto& part : task.operation->parts) take(*part);
  } else if (task.error == nullptr) {
    take(*task.operation);
  }
  const auto is_untouched = [](std::span<const std::byte> result) {
    return std::all_of(result.begin(), result.end(), [](std::byte byte) { return byte == kGuard; });
  };
  if (task.error != nullptr && task.request->misfit == Misfit::kOutput) {
    task.overrun = !std::all_of(task.results.begin(), task.results.end(), is_untouched);
  }
  // After an error others may still be at it.
  if (task.error != nullptr || network_->arena(state.rank) == nullptr) return;
  network_->arena(state.rank)->release(task.piece);
  for (std::byte* const piece : task.pieces) network_->arena(state.rank)->release(piece);
}

void Cluster::submit(RankState& state, Task& task) {
  make_task(state, task);
  task.operation->awaited = draw_.one_in(4);  // by a thread that is not this one
  task.submitted = true;
  try {
    state.engine->submit(task.operation, draw_.one_in(3));
  } catch (const Error& error) {
    task.error = std::make_shared<const Error>(error);
    task.operation = nullptr;
  }
}

void Cluster::meet(RankState& state) {
  auto barrier = std::make_shared<engine::Operation>();
  barrier->descriptor.name = "meeting";
  barrier->descriptor.collective = Collective::kBarrier;
  barrier->awaited = barrier->only_thread = true;
  try {
    state.engine->submit(barrier);
    state.waiting = std::move(barrier);
  } catch (const Error& error) {
    state.meet_error = std::make_shared<const Error>(error);
  }
}

// As `plans.register` does: all ranks have met, with nothing under way, and meet again.
void Cluster::offer(RankState& state, const OfferedBefore& offered) {
  if (state.meet_error != nullptr || state.engine->failure() != nullptr) return;
  const plan::Topology topology{.host_of = workload_.host_of, .serving = workload_.servers};
  const plan::Offer offer{.plan = testing::outside_plan(workload_.ranks, offered.serving),
                          .most_bytes = std::size_t{1} << 40,
                          .always = offered.always};
  state.offered->offer({plan::offered_to(state.rank, offer, topology)});
  if (state.rank == 0) state.engine->offer(plan::to_bytes(offer));
}

void Cluster::add_set(RankState& state, std::size_t set) {
  std::optional<engine::ProcessSetId> agreed;
  if (is_agreed(workload_, set)) agreed = static_cast<engine::ProcessSetId>(set);
  state.sets[set] = state.engine->add_process_set(workload_.sets[set], agreed);
}

void Cluster::act(RankState& state, const Action& action) {
  switch (action.kind) {
    case Action::Kind::kSubmit: return submit(state, state.tasks[action.index]);
    case Action::Kind::kRun: {
      Task& task = state.tasks[action.index];
      make_task(state, task);
      task.submitted = true;
      task.operation->awaited = task.operation->only_thread = true;
      try {
        state.engine->submit(task.operation);
        state.waiting = task.operation;
        state.waits_for = &task;
      } catch (const Error& error) {
        task.error = std::make_shared<const Error>(error);
        task.operation = nullptr;
      }
      return;
    }
    case Action::Kind::kWait: {
      Task& task = state.tasks[action.index];
      if (task.operation == nullptr) return;
      state.waiting = task.operation;
      state.waits_for = &task;
      return state.engine->wanted(*task.operation, true);
    }
    case Action::Kind::kWatch: return watch(state, state.tasks[action.index]);
    case Action::Kind::kAwaitWatch:
      watch(state, state.tasks[action.index]);
      state.waiting = state.tasks[action.index].watch;
      return;
    case Action::Kind::kJoin: {
      auto join = std::make_shared<engine::Operation>();
      join->join = true;
      try {
        state.engine->submit(join);
        state.waiting = std::move(join);
      } catch (const Error& error) {
        state.join_error = std::make_shared<const Error>(error);
      }
      return;
    }
    case Action::Kind::kMeet: return meet(state);
    case Action::Kind::kOffer: return offer(state, *workload_.phases[action.index].offer);
    case Action::Kind::kAddSet: return add_set(state, action.index);
    case Action::Kind::kRemoveSet:
      if (state.engine->failure() == nullptr) state.engine->remove_process_set(state.sets[action.index]);
      return;
    case Action::Kind::kLeave:
      state.engine->leave("");
      state.left = true;
      return;
  }
}

// The next action of the script; false when it has to wait or is at its end.
bool Cluster::advance(RankState& state) {
  if (state.waiting != nullptr) {
    if (!state.waiting->done()) return false;
    if (state.waits_for != nullptr && !has_result(state, *state.waits_for)) return false;
    if (state.waits_for != nullptr) {
      take_results(state, *state.waits_for);
    } else if (state.waiting->error != nullptr && state.waiting->watched_members == 0) {
      (state.waiting->join ? state.join_error : state.meet_error) = state.waiting->error;
    }
    state.waiting = nullptr;
    state.waits_for = nullptr;
    return true;
  }
  if (state.next == state.script.size()) return false;
  act(state, state.script[state.next++]);
  return true;
}

bool Cluster::finished(const RankState& state) const {
  if (state.gone) return true;
  const bool serves = is_server(state) && !state.left && state.engine->failure() == nullptr;
  if (serves || state.next != state.script.size() || state.waiting != nullptr) return false;
  // An encrypted lane on which nothing comes never agrees on its keys: as in runtime.cpp, nobody waits for that for ever.
  const bool waited = state.ended_at && network_->clock().now() - *state.ended_at > kFarewellLimit;
  return waited || state.engine->farewell_seen();
}

void Cluster::inject_due(int events) {
  for (Fault& fault : faults_) {
    RankState& victim = states_[static_cast<std::size_t>(fault.victim)];
    if (fault.injected || fault.at_event > events || victim.gone) continue;
    if (!inject(fault, *network_, epoch_, kHeartbeat)) continue;
    fault.injected = true;
    victim.gone = fault.ends_victim();
    if (fault.kind != FaultKind::kLeave) continue;
    if (network_->runs(fault.victim)) {
      victim.script.resize(victim.next);
      victim.waiting = nullptr;
      victim.leaves_early = true;
      victim.engine->leave("early");
      victim.asleep = false;
    }
  }
}

void Cluster::drive() {
  for (RankState& state : states_) {
    if (!network_->runs(state.rank)) continue;
    const bool rung = network_->take_ring(state.rank);
    if (!state.asleep || rung) drive(state);
  }
}

// As whoever waits does: goes on while anything moves, and then sleeps, unless something has come before the links were armed.
void Cluster::drive(RankState& state) {
  state.asleep = false;
  const bool has_done = state.next == state.script.size() && state.waiting == nullptr;
  const bool serves = is_server(state) && !state.left;
  if (serves && has_done && state.engine->has_served()) act(state, {Action::Kind::kLeave});
  state.engine->links_changed();
  do {
    while (network_->runs(state.rank) && (state.engine->progress() || advance(state))) look_at_watches(state);
  } while (network_->runs(state.rank) && (workload_.sleeps ? arm(state) : network_->arm(state.rank)));
  look_at_watches(state);
  const bool at_its_end = state.left || is_server(state);
  if (!state.ended_at && at_its_end && state.engine->failure() != nullptr) state.ended_at = network_->clock().now();
  state.asleep = workload_.sleeps;
  const bool ends = state.leaves_early && state.engine->farewell_seen();
  if (ends && network_->runs(state.rank)) network_->kill(state.rank);
}

// True when something has arrived already.
bool Cluster::arm(const RankState& state) {
  bool arrived = false;
  for (const engine::Peer* peer : state.engine->membership().known()) arrived = peer->link->arm() || arrived;
  return arrived;
}

// Nothing has rung, and there is something to do all the same: in a process that would wait for the next timer. Of what a
// paused rank has read, the news that there is room is held up with it.
void Cluster::find_oversleepers() {
  const auto is_paused = [this](const RankState& state) { return !state.gone && !network_->runs(state.rank); };
  if (std::any_of(states_.begin(), states_.end(), is_paused)) return;
  for (RankState& state : states_) {
    if (!state.asleep || !network_->runs(state.rank) || !state.engine->progress()) continue;
    const std::string what = "rank " + std::to_string(state.rank) + " slept though it had something to do";
    if (overslept_.empty()) overslept_ = describe(what);
  }
}

void Cluster::check_timers() {
  for (RankState& state : states_) {
    if (!network_->runs(state.rank)) continue;
    state.engine->check_timers(true);
    state.asleep = false;
  }
}

std::string Cluster::run() {
  const Nanoseconds begin = network_->clock().now();
  const auto ended = [this](const RankState& state) { return finished(state); };
  for (int events = 0; !std::all_of(states_.begin(), states_.end(), ended); ++events) {
    inject_due(events);
    drive();
    if (network_->clock().now() - begin > kDeadline) return describe("hang: not finished in time");
    const auto event = network_->next_event();
    const Nanoseconds tick = network_->clock().now() + kTick;
    if (event && *event < tick) {
      network_->step();
    } else {
      find_oversleepers();
      network_->run_until(tick);
      check_timers();
    }
  }
  return "";
}

void Cluster::settle() {
  drive();
  for (int i = 0; i < 2000 && network_->step(); ++i) drive();
}

std::string Cluster::describe(const std::string& what) const {
  std::string text = what + "\n  epoch " + std::to_string(epoch_) + ", " + std::to_string(workload_.ranks) +
                     " ranks, " + std::to_string(workload_.servers) + " servers, " +
                     std::to_string(workload_.phases.size()) + " phases, faults";
  for (const Fault& fault : faults_) {
    text += " " + std::to_string(static_cast<int>(fault.kind)) + (fault.injected ? " of rank " : " never of rank ") +
            std::to_string(fault.victim);
  }
  for (const RankState& state : states_) {
    text += "\n  rank " + std::to_string(state.rank) + ": action " + std::to_string(state.next) + " of " +
            std::to_string(state.script.size()) + (state.left ? ", left" : "");
    if (state.waits_for != nullptr) {
      text += ", waits for '" + state.waits_for->request->name + "' of phase " + std::to_string(state.waits_for->phase);
    }
    if (state.engine->failure() != nullptr) text += ", failed: " + std::string(state.engine->failure()->what());
  }
  return text;
}

}  // namespace ringcore::simulation
