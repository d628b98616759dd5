#include "plan/cost.hpp"

#include <algorithm>
#include <unordered_map>

#include "base/quantise.hpp"

namespace ringcore::plan {
namespace {

// Whether every turn takes the ranks of a host to ranks of one host.
bool moves_hosts(const Symmetry& symmetry, const Topology& topology) {
  for (const int turn : symmetry.basis()) {
    std::unordered_map<int, int> image;
    for (Rank node = 0; node < symmetry.nodes(); ++node) {
      const int to = topology.host_of[symmetry.turned(node, turn)];
      const auto [found, fresh] = image.try_emplace(topology.host_of[node], to);
      if (!fresh && found->second != to) return false;
    }
  }
  return true;
}

// Whether no two ranks of an orbit share a host.
bool moves_every_host(const Symmetry& symmetry, const Topology& topology) {
  for (int orbit = 0; orbit < symmetry.orbits(); ++orbit) {
    const Rank first = symmetry.representative(orbit);
    for (int turn = 1; turn < symmetry.turns(); ++turn) {
      if (topology.host_of[symmetry.turned(first, turn)] == topology.host_of[first]) return false;
    }
  }
  return true;
}

}  // namespace

Symmetry symmetry_of_hosts(const Symmetry& symmetry, const Topology& topology, bool crowded) {
  if (topology.single_host()) return symmetry;
  for (int step = 1; topology.links.even() && step < symmetry.turns(); ++step) {
    if (symmetry.turns() % step != 0 || !symmetry.divides(step)) continue;
    Symmetry part = symmetry.subgroup(step);
    if (moves_hosts(part, topology) && (crowded || moves_every_host(part, topology))) return part;
  }
  return Symmetry::none(symmetry.nodes());
}

double least_seconds(const Plan& plan, const Topology& topology, double chunk_bytes) {
  if (!topology.links.cables.empty()) return 0;
  double sent = 0;
  double received = 0;
  double processor = 0;
  for (const Channel& channel : plan.program.channels) {
    double busy = 0;
    for (const Step& step : channel) {
      if (step.peer < 0) continue;
      const bool inside = topology.host_of[plan.self] == topology.host_of[step.peer];
      const LinkCost& link = inside ? topology.links.in_host : topology.links.between_hosts;
      busy += link.message_s;
      if (inside) continue;
      if (step.kind == StepKind::kSend) sent += chunk_bytes * static_cast<double>(step.sources.size());
      if (step.kind == StepKind::kRecv || step.kind == StepKind::kRecvReduce) {
        received += chunk_bytes * static_cast<double>(step.targets.size());
      }
    }
    processor = std::max(processor, busy);
  }
  const double share = quantised_share(plan.compression);
  const double port = topology.links.port_seconds_per_byte(topology.host_of[plan.self]);
  return std::max(std::max(sent, received) * share * port, processor);
}

double predict_seconds(const Excerpt& excerpt, const Topology& topology, double chunk_bytes, const CostModel& model) {
  return Simulation(excerpt, topology, model, chunk_bytes, 1, {}).run();
}

}  // namespace ringcore::plan
