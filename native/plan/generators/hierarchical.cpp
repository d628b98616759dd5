// Inside a host first, then between hosts. With L ranks on each of H hosts, every rank owns its block of the buffer: a
// ring reduce-scatter inside the host collects the blocks of all ranks that stand at one's own place on their hosts, a
// ring between these sums them, a ring all-gather inside the host spreads them. Each byte crosses the network once each
// way, on L streams a host. A block goes in pieces, each through all three without waiting for the others: a rank has one
// channel for its host and one for the network. A reduce-scatter ends, and an all-gather begins, in the middle.
// Hosts with different numbers of ranks: the first rank of each host acts for its host in an allreduce.
#include <algorithm>

#include "plan/builder.hpp"

namespace ringcore::plan {
namespace {

using Hosts = std::vector<std::vector<Rank>>;

struct Place {
  int host = 0;
  int local = 0;
};

Place place_of(const Hosts& hosts, Rank rank) {
  for (int host = 0; host < static_cast<int>(hosts.size()); ++host) {
    const auto found = std::lower_bound(hosts[host].begin(), hosts[host].end(), rank);
    if (found != hosts[host].end() && *found == rank) return {host, static_cast<int>(found - hosts[host].begin())};
  }
  __builtin_unreachable();
}

bool even(const Hosts& hosts) {
  return std::all_of(hosts.begin(), hosts.end(), [&](const auto& ranks) { return ranks.size() == hosts[0].size(); });
}

// By chunk: the step that has last written it.
using Points = std::vector<Builder::Point>;

struct RingShape {
  int shift = 0;  // the member at position i starts with block i + shift
  int reduce_rounds = 0;
  int gather_rounds = 0;
  int pieces = 1;  // chunks of a block
  bool final = false;
};

// The part of the member at `position` in a ring among `members`; `chunk(block, piece)` names the chunks. Waits for
// `points`, and sets them.
template <class Chunk>
void ring_among(Builder& builder, const std::vector<Rank>& members, int position, const RingShape& shape, Chunk chunk,
                Points& points) {
  const int size = static_cast<int>(members.size());
  if (size == 1) return;
  const Rank next = members[(position + 1) % size];
  const Rank previous = members[(position + size - 1) % size];
  const auto block = [&](int round) { return ((position + shape.shift - round) % size + size) % size; };
  const auto send = [&](std::uint32_t departing) {
    builder.wait_for(points[departing]);
    builder.send(next, departing);
  };
  for (int piece = 0; piece < shape.pieces; ++piece) send(chunk(block(0), piece));
  const int rounds = shape.reduce_rounds + shape.gather_rounds;
  for (int round = 0; round < rounds; ++round) {
    for (int piece = 0; piece < shape.pieces; ++piece) {
      const std::uint32_t arriving = chunk(block(round + 1), piece);
      builder.wait_for(points[arriving]);
      if (round < shape.reduce_rounds) {
        builder.recv_reduce(previous, arriving, shape.final && round == shape.reduce_rounds - 1);
      } else {
        builder.recv(previous, arriving);
      }
      points[arriving] = builder.last();
      if (round + 1 < rounds) send(arriving);
    }
  }
}

class Hierarchical final : public Generator {
 public:
  std::string_view name() const override { return "hierarchical"; }

  std::optional<Plan> generate(const PlanRequest& request, Rank self) const override {
    const Hosts hosts = request.topology->ranks_by_host();
    const bool several = std::any_of(hosts.begin(), hosts.end(), [](const auto& ranks) { return ranks.size() > 1; });
    if (hosts.size() < 2 || !several) return std::nullopt;
    switch (request.collective) {
      case Collective::kAllreduce: return even(hosts) ? blocks(request, hosts, self) : leaders(request, hosts, self);
      case Collective::kReduceScatter:
      case Collective::kAllgather:
        if (!even(hosts)) return std::nullopt;
        return blocks(request, hosts, self);
      case Collective::kBroadcast: return broadcast(request, hosts, self);
      case Collective::kAlltoall:
      case Collective::kBarrier: return std::nullopt;
    }
    __builtin_unreachable();
  }

  Symmetry symmetry(const PlanRequest& request) const override {
    const Hosts hosts = request.topology->ranks_by_host();
    if (request.collective == Collective::kBroadcast || !even(hosts)) return Symmetry::none(request.ranks());
    std::vector<Rank> node_at;
    for (const auto& ranks : hosts) node_at.insert(node_at.end(), ranks.begin(), ranks.end());
    const std::vector<int> radices = {static_cast<int>(hosts.size()), static_cast<int>(hosts[0].size())};
    return Symmetry(radices, std::move(node_at)).blocks_move();
  }

 private:
  static Plan blocks(const PlanRequest& request, const Hosts& hosts, Rank self) {
    const bool reduces = request.collective != Collective::kAllgather;
    const bool gathers = request.collective != Collective::kReduceScatter;
    const int host_count = static_cast<int>(hosts.size());
    const int local_rounds = static_cast<int>(hosts[0].size()) - 1;
    const int parts = request.parts;
    const Place place = place_of(hosts, self);
    const std::vector<Rank>& local = hosts[place.host];
    Builder builder("hierarchical", request, self, static_cast<std::uint32_t>(request.ranks() * parts));
    Points points(builder.plan().chunks);
    // In a reduce-scatter a host's own block comes to it last, elsewhere it departs first.
    const int shift = gathers ? 0 : -1;
    // A reduce-scatter or an all-gather inside the host, of one chunk of each of the ranks of `host`.
    const auto inside = [&](int host, int part, const RingShape& shape) {
      const auto chunk = [&](int local, int) { return static_cast<std::uint32_t>(hosts[host][local] * parts + part); };
      ring_among(builder, local, place.local, shape, chunk, points);
    };
    for (int turn = 0; reduces && turn < host_count; ++turn) {
      // The block that the network wants first comes first.
      const int host = (place.host + shift + 2 * host_count - turn) % host_count;
      for (int part = 0; part < parts; ++part) inside(host, part, {.shift = -1, .reduce_rounds = local_rounds});
    }
    builder.use_channel(1);
    std::vector<Rank> same_place;
    for (const auto& ranks : hosts) same_place.push_back(ranks[place.local]);
    ring_among(
        builder, same_place, place.host,
        {.shift = shift,
         .reduce_rounds = reduces ? host_count - 1 : 0,
         .gather_rounds = gathers ? host_count - 1 : 0,
         .pieces = parts,
         .final = true},
        [&](int host, int part) { return static_cast<std::uint32_t>(same_place[host] * parts + part); }, points);
    builder.use_channel(0);
    for (int turn = 0; gathers && turn < host_count; ++turn) {
      // In the order in which the network completes them.
      const int host = (place.host + (reduces ? 1 : 0) + host_count - turn) % host_count;
      for (int part = 0; part < parts; ++part) inside(host, part, {.gather_rounds = local_rounds});
    }
    return std::move(builder.plan());
  }

  static Plan leaders(const PlanRequest& request, const Hosts& hosts, Rank self) {
    const int host_count = static_cast<int>(hosts.size());
    const int parts = request.parts;
    const Place place = place_of(hosts, self);
    const std::vector<Rank>& local = hosts[place.host];
    Builder builder("hierarchical", request, self, static_cast<std::uint32_t>(host_count * parts));
    const std::uint32_t chunks = builder.plan().chunks;
    if (place.local != 0) {
      for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) builder.send(local.front(), chunk);
      for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) builder.recv(local.front(), chunk);
      return std::move(builder.plan());
    }
    for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) {
      for (std::size_t i = 1; i < local.size(); ++i) builder.recv_reduce(local[i], chunk, false);
    }
    std::vector<Rank> leading;
    for (const auto& ranks : hosts) leading.push_back(ranks.front());
    Points points(chunks);
    ring_among(
        builder, leading, place.host,
        {.reduce_rounds = host_count - 1, .gather_rounds = host_count - 1, .pieces = parts, .final = true},
        [&](int host, int part) { return static_cast<std::uint32_t>(host * parts + part); }, points);
    for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) {
      for (std::size_t i = 1; i < local.size(); ++i) builder.send(local[i], chunk);
    }
    return std::move(builder.plan());
  }

  // Along a binary tree of hosts, and through each host from rank to rank.
  static Plan broadcast(const PlanRequest& request, const Hosts& hosts, Rank self) {
    const int host_count = static_cast<int>(hosts.size());
    const Place root = place_of(hosts, request.root);
    const Place place = place_of(hosts, self);
    const int node = (place.host - root.host + host_count) % host_count;
    // The first of a host; of the root's host the root.
    const auto at = [&](int node, int step) {
      const auto& ranks = hosts[(node + root.host) % host_count];
      return ranks[(step + (node == 0 ? root.local : 0)) % static_cast<int>(ranks.size())];
    };
    const int local = static_cast<int>(hosts[place.host].size());
    const int step = (place.local - (node == 0 ? root.local : 0) + local) % local;
    Builder builder("hierarchical", request, self, static_cast<std::uint32_t>(request.parts));
    for (std::uint32_t chunk = 0; chunk < builder.plan().chunks; ++chunk) {
      if (step > 0) {
        builder.recv(at(node, step - 1), chunk);
      } else if (node > 0) {
        builder.recv(at((node - 1) / 2, 0), chunk);
      }
      for (int child = 2 * node + 1; step == 0 && child <= 2 * node + 2 && child < host_count; ++child) {
        builder.send(at(child, 0), chunk);
      }
      if (step + 1 < local) builder.send(at(node, step + 1), chunk);
    }
    builder.end_segment();
    return std::move(builder.plan());
  }
};

}  // namespace

const Generator& hierarchical() {
  static const Hierarchical generator;
  return generator;
}

}  // namespace ringcore::plan
