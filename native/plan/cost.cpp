#include "plan/cost.hpp"

#include <algorithm>
#include <deque>
#include <vector>

namespace ringcore::plan {
namespace {

// When a rank, a lane or a port is free again, in seconds.
struct Simulation {
  const Plan& plan;
  const Topology& topology;
  const CostModel& model;
  double chunk_bytes;
  std::vector<std::vector<double>> time;       // of each channel
  std::vector<std::vector<std::size_t>> next;  // its next step
  std::vector<std::deque<double>> arrivals;    // by ordered pair
  std::vector<double> port_out;                // by host
  std::vector<double> port_in;
  std::vector<double> pair_free;  // by ordered pair

  std::size_t pair(Rank from, Rank to) const { return static_cast<std::size_t>(from) * plan.ranks + to; }

  const LinkCost& link(Rank from, Rank to) const {
    return topology.host_of[from] == topology.host_of[to] ? model.in_host : model.between_hosts;
  }

  double deliver(Rank from, Rank to, double now, double bytes) {
    const int source = topology.host_of[from];
    const int target = topology.host_of[to];
    double& free_at = pair_free[pair(from, to)];
    if (source == target) {
      free_at = std::max(now, free_at) + bytes * model.in_host.seconds_per_byte;
      return free_at + model.in_host.latency_s;
    }
    const double start = std::max({now, free_at, port_out[source], port_in[target]});
    free_at = port_out[source] = port_in[target] = start + bytes * model.between_hosts.seconds_per_byte;
    return free_at + model.between_hosts.latency_s;
  }

  bool step(Rank rank, std::size_t channel) {
    const Channel& steps = plan.programs[rank].channels[channel];
    std::size_t& index = next[rank][channel];
    if (index == steps.size()) return false;
    const Step& step = steps[index];
    double& now = time[rank][channel];
    if (step.after_channel >= 0) {
      if (static_cast<int>(next[rank][step.after_channel]) <= step.after_step) return false;
      now = std::max(now, time[rank][step.after_channel]);
    }
    switch (step.kind) {
      case StepKind::kSend:
      case StepKind::kSignal:
        now += link(rank, step.peer).message_s;
        arrivals[pair(rank, step.peer)].push_back(
            deliver(rank, step.peer, now, step.kind == StepKind::kSend ? chunk_bytes : 0));
        break;
      case StepKind::kRecv:
      case StepKind::kRecvReduce:
      case StepKind::kWait: {
        auto& queue = arrivals[pair(step.peer, rank)];
        if (queue.empty()) return false;
        now = std::max(now, queue.front()) + link(step.peer, rank).message_s;
        queue.pop_front();
        if (step.kind == StepKind::kRecvReduce) now += chunk_bytes * model.touch_seconds_per_byte;
        break;
      }
      case StepKind::kReduce:
        now +=
            chunk_bytes * model.touch_seconds_per_byte * static_cast<double>(step.sources.size() + step.targets.size());
        break;
    }
    now += model.step_s;
    ++index;
    return true;
  }
};

}  // namespace

double predict_seconds(const Plan& plan, const Topology& topology, std::size_t bytes, const CostModel& model) {
  const std::size_t pairs = static_cast<std::size_t>(plan.ranks) * plan.ranks;
  const std::size_t hosts =
      static_cast<std::size_t>(1 + *std::max_element(topology.host_of.begin(), topology.host_of.end()));
  Simulation simulation{.plan = plan,
                        .topology = topology,
                        .model = model,
                        .chunk_bytes = static_cast<double>(bytes) / plan.chunks,
                        .time = {},
                        .next = {},
                        .arrivals = std::vector<std::deque<double>>(pairs),
                        .port_out = std::vector<double>(hosts, 0),
                        .port_in = std::vector<double>(hosts, 0),
                        .pair_free = std::vector<double>(pairs, 0)};
  for (const Program& program : plan.programs) {
    simulation.time.emplace_back(program.channels.size(), 0.0);
    simulation.next.emplace_back(program.channels.size(), 0);
  }
  // One step a rank and turn keeps the ranks about equally far, and with them the order in which ports are taken.
  for (bool moved = true; moved;) {
    moved = false;
    for (Rank rank = 0; rank < plan.ranks; ++rank) {
      for (std::size_t c = 0; c < plan.programs[rank].channels.size(); ++c) moved = simulation.step(rank, c) || moved;
    }
  }
  double last = 0;
  for (const auto& channels : simulation.time) {
    for (const double end : channels) last = std::max(last, end);
  }
  return last;
}

}  // namespace ringcore::plan
