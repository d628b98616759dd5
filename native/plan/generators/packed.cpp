// Packed trees, for networks whose links differ (Wang et al., Blink, 2020; Zhao et al., ForestColl, 2024): plan/packing
// says which trees, how many chunks go along each of them, and when. A rank has a channel for each cable, or its port, and direction: what goes through one
// thing goes in that order, and a slow link holds up no other.
#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "plan/builder.hpp"
#include "plan/packing/inside.hpp"
#include "plan/packing/transfers.hpp"

namespace ringcore::plan {
namespace {

// Of what trees are packed over, nodes or else hosts; and of nodes in all.
constexpr int kMostPacked = 32;
constexpr int kMostNodes = 256;
constexpr std::uint32_t kChunks = 16;  // of each part, of all blocks together
constexpr std::size_t kMostForests = 16;
constexpr double kGood = 0.95;
// Where many roots' trees cross each other, those that are behind are behind by much, and more is better; never for sums.
constexpr double kHaste[] = {1, 16};

struct Packed {
  Topology topology;
  Collective collective{};
  std::vector<Rank> roots;
  std::uint32_t chunks = 0;  // of each block
  TransferOrder order;  // empty: not all nodes can be reached
};

// How long chunks wait for each other shows when a forest's transfers have an order. What comes near the bound is not
// compared with others.
TransferOrder quickest_order(const Fabric& fabric, const std::vector<Forest>& forests, std::uint32_t chunks,
                             bool reduces, Load load) {
  TransferOrder best;
  for (std::size_t i = 0; i < std::min(forests.size(), kMostForests); ++i) {
    const Forest& forest = forests[i];
    const Forest ways = load == Load::kBlocks ? ways_of_blocks(fabric, forest) : forest;
    for (const double haste : std::span(kHaste).first(reduces ? 1 : std::size(kHaste))) {
      TransferOrder order = order_transfers(fabric, ways, reduces, haste);
      const bool good = chunks >= kGood * forest.bound * order.seconds;
      if (best.transfers.empty() || order.seconds < best.seconds) best = std::move(order);
      if (good) return best;
    }
  }
  return best;
}

// Whether each rank has a block of its own on its way to or from one root.
Load load_of(Collective collective) {
  const bool deals = collective == Collective::kGather || collective == Collective::kScatter;
  return deals ? Load::kBlocks : Load::kSame;
}

// Where trees begin; none where they go up and down.
std::vector<Rank> roots_of(const PlanRequest& request) {
  if (has_root(request.collective)) return {request.root};
  if (request.collective == Collective::kAllreduce) return {};
  std::vector<Rank> all(static_cast<std::size_t>(request.ranks()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

bool packs_hosts(const Topology& topology) { return topology.nodes() > kMostPacked; }

std::vector<Forest> forests_of(const Topology& topology, const Fabric& fabric, const std::vector<Rank>& roots,
                               std::uint32_t chunks, Load load, bool backwards) {
  if (!packs_hosts(topology)) return grow_forests(fabric, roots, chunks, load);
  Fabric hosts = Fabric::of(one_node_a_host(topology));
  if (backwards) hosts = hosts.reversed();
  std::vector<Rank> hosts_of_roots;
  for (const Rank root : roots) hosts_of_roots.push_back(topology.host_of[root]);
  std::vector<Forest> forests = grow_forests(hosts, hosts_of_roots, chunks, load);
  for (Forest& forest : forests) forest = continued_inside(topology, forest, roots.empty() ? -1 : roots.front());
  return forests;
}

// What was packed last: the programs of all ranks are made of it, one after the other.
const TransferOrder& packed_for(const PlanRequest& request, std::uint32_t chunks) {
  static thread_local Packed last;
  std::vector<Rank> roots = roots_of(request);
  const bool same = last.topology == *request.topology && last.collective == request.collective && last.roots == roots;
  if (same && last.chunks == chunks) return last.order;
  last = {*request.topology, request.collective, std::move(roots), chunks, {}};
  Fabric fabric = Fabric::of(*request.topology);
  const bool gathers = request.collective == Collective::kGather;
  const bool backwards =
      gathers || request.collective == Collective::kReduce || request.collective == Collective::kReduceScatter;
  if (backwards) fabric = fabric.reversed();
  const Load load = load_of(request.collective);
  const std::vector<Forest> forests = forests_of(last.topology, fabric, last.roots, chunks, load, backwards);
  last.order = quickest_order(fabric, forests, chunks, last.roots.empty(), load);
  if (backwards) last.order = played_backwards(std::move(last.order), !gathers);
  return last.order;
}

// The program of a rank, moment by moment.
class Writer {
 public:
  Writer(std::string_view generator, const PlanRequest& request, Rank self, std::uint32_t chunks)
      : builder_(generator, request, self, chunks), touched_(chunks), left_(chunks, 0) {}

  // Of a sum so many terms come.
  void awaits(std::uint32_t chunk) { ++left_[chunk]; }

  void write(const Transfer& transfer, bool arrives) {
    if (transfer.from == builder_.self() && !arrives) {
      if (transfer.paced_by >= 0) touched_[transfer.chunk] = touched_[transfer.paced_by];
      begin(transfer, {transfer.departs, true});
      builder_.send(transfer.to, transfer.chunk);
      // Whoever passes on what it has got sends it to several; what comes instead of it waits for the last of these.
      if (transfer.up) touched_[transfer.chunk] = builder_.last();
    } else if (transfer.to == builder_.self() && arrives) {
      begin(transfer, {transfer.arrives, false});
      if (transfer.up) {
        builder_.recv_reduce(transfer.from, transfer.chunk, --left_[transfer.chunk] == 0 && transfer.at_root);
      } else {
        builder_.recv(transfer.from, transfer.chunk);
      }
      touched_[transfer.chunk] = builder_.last();
    }
  }
  Plan take() { return std::move(builder_.plan()); }

 private:
  void begin(const Transfer& transfer, std::pair<std::uint32_t, bool> way) {
    const auto [found, fresh] = channels_.try_emplace(way, static_cast<int>(channels_.size()));
    builder_.use_channel(found->second);
    if (touched_[transfer.chunk].channel >= 0) builder_.wait_for(touched_[transfer.chunk]);
  }

  Builder builder_;
  std::map<std::pair<std::uint32_t, bool>, int> channels_;  // by what it goes through, and whether out of here
  std::vector<Builder::Point> touched_;  // by chunk: the step that the next one waits for
  std::vector<int> left_;
};

class PackedTrees final : public Generator {
 public:
  std::string_view name() const override { return "packed_trees"; }

  std::optional<Plan> generate(const PlanRequest& request, Rank self) const override {
    if (request.collective == Collective::kAlltoall || request.collective == Collective::kBarrier) return std::nullopt;
    const Topology& topology = *request.topology;
    if (topology.links.even() || topology.single_host() || !packable(request)) return std::nullopt;
    const auto blocks = is_in_blocks(request.collective) ? static_cast<std::uint32_t>(request.ranks()) : 1U;
    const std::uint32_t chunks = std::max(kChunks / blocks, 1U) * static_cast<std::uint32_t>(request.parts);
    const TransferOrder& order = packed_for(request, chunks);
    if (order.transfers.empty()) return std::nullopt;
    Writer writer(name(), request, self, chunks * blocks);
    for (const Transfer& transfer : order.transfers) {
      if (transfer.up && transfer.to == self) writer.awaits(transfer.chunk);
    }
    for (const Moment& moment : order.moments) writer.write(order.transfers[moment.transfer], moment.arrives);
    return writer.take();
  }

  bool follows_rates() const override { return true; }
  int most_parts() const override { return 128; }

 private:
  // From many roots, and with blocks of their own for all, nodes are as many as trees.
  static bool packable(const PlanRequest& request) {
    const Topology& topology = *request.topology;
    if (!packs_hosts(topology)) return true;
    const bool one_tree = request.collective == Collective::kAllreduce ||
                          request.collective == Collective::kBroadcast || request.collective == Collective::kReduce;
    return one_tree && topology.hosts() <= kMostPacked && topology.nodes() <= kMostNodes;
  }
};

}  // namespace

const Generator& packed() {
  static const PackedTrees generator;
  return generator;
}

}  // namespace ringcore::plan
