#include "plan/planner.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <optional>

#include "base/error.hpp"
#include "plan/verifier.hpp"

namespace ringcore::plan {
namespace {

// Plans with fewer blocks than ranks have as many more parts, up to so many.
constexpr int kMostParts = 256;
// Smaller pieces than this are not worth a step of their own: in shared memory a reader close behind the writer disturbs
// it (see transport/shm/ring_buffer.cpp), between hosts the next hop should start early.
constexpr std::size_t kMinPartBytesInHost = 128 * 1024;
constexpr std::size_t kMinPartBytesBetweenHosts = 32 * 1024;

// Of a plan that repeats its segments so many parts are simulated; those behind take as long each as the second half of
// these.
constexpr int kSimulatedParts = 8;
constexpr int kSimulatedPartsOfMany = 2;
constexpr int kMany = 64;  // ranks
// What takes so many times longer than the best at least is not looked at.
constexpr double kHopeless = 4;
// Longer programs are written again when they are needed again.
constexpr std::size_t kKeptSteps = 1 << 13;

std::uint64_t key_of(const Query& query, bool once) {
  const auto size_class = static_cast<std::uint64_t>(std::bit_width(query.bytes));
  return size_class | static_cast<std::uint64_t>(query.collective) << 8 | static_cast<std::uint64_t>(once) << 16 |
         static_cast<std::uint64_t>(query.compression) << 20 | static_cast<std::uint64_t>(query.even_blocks) << 19 |
         static_cast<std::uint64_t>(query.registered) << 17 | static_cast<std::uint64_t>(query.inputs_ready) << 18 |
         static_cast<std::uint64_t>(static_cast<std::uint32_t>(query.root)) << 32;
}

}  // namespace

bool must_accumulate_once(const Query& query, int ranks) {
  const bool sums = query.op == ReduceOp::kSum || query.op == ReduceOp::kProduct;
  return reduces(query.collective) && (query.deterministic || (sums && ranks > 2 && is_half(query.dtype)));
}

Planner::Planner(Topology topology, Rank self, CostModel model)
    : topology_(topology.without_servers()), served_(std::move(topology)), self_(self), model_(model) {
  network_of(topology_.links);
}

std::size_t Planner::network_of(const Links& links) {
  const auto same = [&](const auto& known) { return known->topology.links == links; };
  const auto found = std::find_if(networks_.begin(), networks_.end(), same);
  if (found != networks_.end()) return static_cast<std::size_t>(found - networks_.begin());
  const auto measured = [&](Topology topology) {
    topology.links = links;
    return topology;
  };
  networks_.push_back(std::make_unique<const Network>(measured(topology_), measured(served_)));
  return networks_.size() - 1;
}

Planner::Network::Network(Topology given, Topology with_servers)
    : topology(std::move(given)), alone(topology), served(std::move(with_servers)) {
  std::iota(alone.host_of.begin(), alone.host_of.end(), 0);
  alone.links.cables.clear();
  alone.links.ports.clear();
}

const Plan& Planner::choose(const Query& query) {
  const std::uint64_t key = key_of(query, must_accumulate_once(query, topology_.ranks()));
  const auto known = chosen_.find(key);
  if (known != chosen_.end()) return *known->second;
  return *chosen_.emplace(key, &keep(offers(query, topology_.links, generators(), kHopeless).front().sketch))
              .first->second;
}

std::vector<Planner::Candidate> Planner::candidates(const Query& query, const Links& links, double factor,
                                                    std::size_t most) {
  const std::vector<Offer> offered = offers(query, links, generators(), kHopeless);
  std::vector<Candidate> plans;
  bool good = true;
  for (const Offer& offer : offered) {
    good = good && plans.size() < most && (plans.empty() || offer.seconds <= factor * offered[0].seconds);
    if (good || (most > 1 && offer.sketch.generator->serves())) plans.push_back({&keep(offer.sketch), offer.seconds});
  }
  return plans;
}

double Planner::predict(const Excerpt& plan, const Links& links, std::size_t bytes) const {
  Topology measured = served_.with_servers(plan.nodes - plan.ranks);
  measured.links = links;
  return predict_seconds(plan, measured, static_cast<double>(bytes) / plan.chunks, model_);
}

std::vector<Forecast> Planner::forecast(const Query& query, const std::vector<std::string>& names) {
  std::vector<const Generator*> wanted;
  for (const std::string& name : names) {
    const auto known = [&](const Generator* each) { return each->name() == name; };
    const auto found = std::find_if(generators().begin(), generators().end(), known);
    if (found == generators().end()) {
      throw Error(ErrorKind::kInvalidArgument, "there is no plan generator '" + name + "'");
    }
    wanted.push_back(*found);
  }
  const double hopeless = names.empty() ? kHopeless : std::numeric_limits<double>::infinity();
  std::vector<Forecast> found;
  for (const Offer& offer : offers(query, topology_.links, names.empty() ? generators() : wanted, hopeless)) {
    found.push_back({offer.sketch.generator, offer.sketch.parts, offer.seconds});
  }
  return found;
}

// The best plan of each generator, the best of all first; at least one.
std::vector<Planner::Offer> Planner::offers(const Query& query, const Links& links,
                                            const std::vector<const Generator*>& generators, double hopeless) {
  const std::size_t number = network_of(links);
  const Network& network = *networks_[number];
  // The middle of the size class stands for all of it.
  const std::size_t bytes = query.bytes == 0 ? 0 : std::bit_floor(query.bytes) + std::bit_floor(query.bytes) / 2;
  const bool once = must_accumulate_once(query, topology_.ranks());
  std::vector<Offer> hopeful;  // with what it takes at least
  for (const Generator* generator : generators) {
    if (generator->serves() && served_.serving == 0) continue;
    const bool visible = query.registered && topology_.memory_shared_in_host && topology_.single_host();
    const Sketch sketch{.generator = generator,
                        .collective = query.collective,
                        .root = query.root,
                        .memory_visible = visible,
                        .inputs_ready = query.inputs_ready,
                        .compression = query.compression,
                        .network = generator->follows_rates() ? number : 0};
    const auto seconds = least(sketch, network.of(*generator), bytes, {once, query.even_blocks});
    if (seconds) hopeful.push_back({sketch, *seconds});
  }
  const auto quicker = [](const Offer& a, const Offer& b) { return a.seconds < b.seconds; };
  std::stable_sort(hopeful.begin(), hopeful.end(), quicker);
  std::vector<Offer> found;
  double best = std::numeric_limits<double>::max();
  for (const Offer& offer : hopeful) {
    if (offer.seconds > hopeless * best) break;
    const auto predicted = best_offer(offer.sketch, network, bytes);
    if (!predicted) continue;
    found.push_back(*predicted);
    best = std::min(best, predicted->seconds);
  }
  if (found.empty()) {
    throw Error(ErrorKind::kInvalidArgument, "no plan generator offers " + std::string(name_of(query.collective)) +
                                                 " for " + std::to_string(topology_.ranks()) + " ranks");
  }
  std::stable_sort(found.begin(), found.end(), quicker);
  return found;
}

std::optional<double> Planner::least(const Sketch& sketch, const Topology& topology, std::size_t bytes,
                                     Demands demands) const {
  const auto plan = sketch.generator->generate(request_of(sketch), 0);
  if (!plan || (demands.once && !plan->accumulates_once)) return std::nullopt;
  if (plan->needs_even_blocks() && !demands.has_even_blocks) return std::nullopt;
  return least_seconds(*plan, topology, static_cast<double>(bytes) / plan->chunks);
}

// With as many parts as are best.
std::optional<Planner::Offer> Planner::best_offer(Sketch sketch, const Network& network, std::size_t bytes) {
  const Draft whole = draft(sketch, network);  // with one part
  if (whole == nullptr) return std::nullopt;
  const std::size_t min_part_bytes = topology_.single_host() ? kMinPartBytesInHost : kMinPartBytesBetweenHosts;
  const std::size_t blocks = whole->plan.chunks;
  const auto ranks = static_cast<std::size_t>(topology_.ranks());
  const int most =
      std::min(kMostParts, sketch.generator->most_parts() * static_cast<int>(std::max<std::size_t>(1, ranks / blocks)));
  std::optional<Offer> best;
  const bool many = ranks > kMany && !whole->plan.programs[0].segment_ends.empty();
  for (; sketch.parts <= most; sketch.parts *= many ? 4 : 2) {
    const std::size_t parts = static_cast<std::size_t>(sketch.parts);
    if (parts > 1 && bytes / blocks / parts < min_part_bytes) break;
    const std::size_t chunks = blocks * parts;
    if (parts > 1 && whole->plan.programs[0].segment_ends.empty()) {
      const Draft divided = draft(sketch, network);
      if (divided == nullptr || divided->plan.chunks != chunks) break;
    }
    const double seconds = predict(sketch, network, static_cast<double>(bytes) / static_cast<double>(chunks));
    if (!best || seconds < best->seconds) best = Offer{sketch, seconds};
  }
  return best;
}

double Planner::predict(const Sketch& sketch, const Network& network, double chunk_bytes) {
  const auto seconds_of = [&](int parts) {
    Sketch shorter = sketch;
    shorter.parts = parts;
    const Draft simulated = draft(shorter, network);
    const Topology& topology = simulated->alone ? network.alone : network.of(*sketch.generator);
    return predict_seconds(simulated->plan, topology, chunk_bytes, model_);
  };
  Sketch one = sketch;
  one.parts = 1;
  const int simulated = topology_.ranks() > kMany ? kSimulatedPartsOfMany : kSimulatedParts;
  if (sketch.parts <= simulated || draft(one, network)->plan.programs[0].segment_ends.empty())
    return seconds_of(sketch.parts);
  const double seconds = seconds_of(simulated);
  const int fewer = simulated / 2;
  const double each = (seconds - seconds_of(fewer)) / (simulated - fewer);
  return seconds + each * (sketch.parts - simulated);
}

PlanRequest Planner::request_of(const Sketch& sketch) const {
  return {.collective = sketch.collective,
          .topology = &networks_[sketch.network]->of(*sketch.generator),
          .root = sketch.root,
          .parts = sketch.parts,
          .memory_visible = sketch.memory_visible,
          .inputs_ready = sketch.inputs_ready,
          .compression = sketch.compression};
}

Planner::Draft Planner::draft(const Sketch& sketch, const Network& network) {
  const std::pair key(sketch, network.topology.links.even());
  const auto known = drafts_.find(key);
  if (known != drafts_.end()) return known->second;
  const Draft draft = make_draft(sketch, network.of(*sketch.generator));
  if (draft == nullptr || draft->plan.steps() <= kKeptSteps) drafts_.emplace(key, draft);
  return draft;
}

// As exactly as the work allows: host by host; among many ranks with a host's at the same pace; or without hosts.
Planner::Draft Planner::make_draft(const Sketch& sketch, const Topology& topology) const {
  const PlanRequest request = request_of(sketch);
  const Symmetry symmetry = sketch.generator->symmetry(request);
  for (const bool crowded : {topology.ranks() > kMany, true}) {
    auto found = excerpt(*sketch.generator, request, symmetry_of_hosts(symmetry, topology, crowded), kMostSteps);
    if (found) return std::make_shared<const Simulated>(Simulated{*std::move(found)});
  }
  auto found = excerpt(*sketch.generator, request, symmetry, kMostSteps);
  if (!found) return nullptr;
  return std::make_shared<const Simulated>(Simulated{*std::move(found), true});
}

const Plan& Planner::keep(const Sketch& sketch) {
  auto& slot = plans_[sketch];
  if (slot == nullptr) {
    const PlanRequest request = request_of(sketch);
    const bool takes_part = self_ < request.topology->nodes();
    std::optional<Plan> plan = sketch.generator->generate(request, takes_part ? self_ : 0);
    if (const auto flaw = verify(*plan, *sketch.generator, request)) {
      throw Error(ErrorKind::kInvalidArgument, "the plan is wrong and will not run: " + *flaw);
    }
    if (!takes_part) plan->program = {};
    slot = std::make_unique<const Plan>(*std::move(plan));
  }
  return *slot;
}

}  // namespace ringcore::plan
