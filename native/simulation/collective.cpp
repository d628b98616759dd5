#include "simulation/collective.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "base/error.hpp"
#include "plan/cost.hpp"
#include "plan/excerpt.hpp"
#include "plan/planner.hpp"

namespace ringcore::simulation {
namespace {

using plan::Excerpt;

// Of the excerpt that is simulated, of all programs together.
constexpr std::size_t kMostExcerptSteps = std::size_t{1} << 23;
// Of all that are simulated: some seconds where no port is shared, else minutes.
constexpr double kMostSteps = 1 << 29;

// What is simulated of a plan, and how often its segments are repeated.
struct Sample {
  Excerpt plan;
  std::uint32_t repeats = 1;
};

std::optional<Sample> sample(const Network& network, const plan::Forecast& forecast, plan::PlanRequest request) {
  request.parts = 1;
  const auto one = forecast.generator->generate(request, 0);
  const bool repeats = !one->program.segment_ends.empty();
  if (!repeats) request.parts = forecast.parts;
  const plan::Symmetry symmetry = forecast.generator->symmetry(request);
  std::vector<plan::Symmetry> possible = {symmetry};
  if (network.disturbance.none()) {
    possible.clear();
    for (const bool crowded : {false, true}) {
      possible.push_back(symmetry_of_hosts(symmetry, *request.topology, crowded));
    }
  }
  for (const plan::Symmetry& each : possible) {
    auto found = excerpt(*forecast.generator, request, each, kMostExcerptSteps);
    if (found) return Sample{*std::move(found), static_cast<std::uint32_t>(repeats ? forecast.parts : 1)};
  }
  return std::nullopt;
}

// What the programs cost a rank at most.
void measure_programs(const Sample& sample, double chunk_bytes, CollectiveTime& time) {
  for (const plan::Program& program : sample.plan.programs) {
    std::size_t bytes = 0;
    std::size_t sends = 0;
    std::set<Rank> peers;
    for (const plan::Channel& channel : program.channels) {
      bytes += channel.size() * sizeof(plan::Step);
      for (const plan::Step& step : channel) {
        bytes += (step.sources.size() + step.targets.size()) * sizeof(plan::ChunkRef);
        if (step.kind == plan::StepKind::kSend) sends += step.sources.size();
        if (step.peer >= 0) peers.insert(step.peer);
      }
    }
    const double sent = static_cast<double>(sends) * sample.repeats * chunk_bytes;
    time.program_bytes = std::max(time.program_bytes, bytes * sample.repeats);
    time.sent_bytes = std::max(time.sent_bytes, static_cast<std::size_t>(std::llround(sent)));
    time.peers = std::max(time.peers, peers.size());
  }
}

}  // namespace

std::vector<CollectiveTime> simulate_collective(const Network& network, const plan::Query& query,
                                                const std::vector<std::string>& algorithms) {
  const plan::Topology ranks = network.topology.without_servers();
  plan::Planner planner(network.topology, 0, network.model);
  std::vector<CollectiveTime> times;
  for (const plan::Forecast& forecast : planner.forecast(query, algorithms)) {
    const plan::Topology& topology = forecast.generator->serves() ? network.topology : ranks;
    const plan::PlanRequest request{.collective = query.collective, .topology = &topology, .root = query.root};
    const auto found = sample(network, forecast, request);
    if (!found) continue;
    CollectiveTime time{.algorithm = std::string(forecast.generator->name()), .parts = forecast.parts};
    time.steps = plan::Simulation::steps_of(found->plan, found->repeats, network.disturbance);
    if (time.steps > kMostSteps) continue;
    const double chunk_bytes = static_cast<double>(query.bytes) / found->plan.chunks / found->repeats;
    time.seconds =
        plan::Simulation(found->plan, topology, network.model, chunk_bytes, found->repeats, network.disturbance).run();
    measure_programs(*found, chunk_bytes, time);
    times.push_back(std::move(time));
  }
  std::stable_sort(times.begin(), times.end(), [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
  return times;
}

}  // namespace ringcore::simulation
