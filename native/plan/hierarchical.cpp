// Inside a host first, then between hosts. With L ranks on each of H hosts, local rank i owns share i of the buffer:
// a ring reduce-scatter inside the host collects it, a ring between the owners of share i on all hosts sums it, a ring
// all-gather inside the host spreads it. Each byte crosses the network once each way, on L streams a host. A share goes
// in pieces, each through all three without waiting for the others: a rank has one channel for its host and one for the
// network.
// Hosts with different numbers of ranks: the first rank of each host acts for its host.
#include <algorithm>
#include <map>

#include "plan/builder.hpp"

namespace ringcore::plan {
namespace {

using Hosts = std::vector<std::vector<Rank>>;

Hosts hosts_of(const Topology& topology) {
  std::map<int, std::vector<Rank>> by_host;
  for (Rank rank = 0; rank < topology.ranks(); ++rank) by_host[topology.host_of[rank]].push_back(rank);
  Hosts hosts;
  for (auto& [host, ranks] : by_host) hosts.push_back(std::move(ranks));
  return hosts;
}

// By rank and chunk: the step that has last written the rank's chunk.
using Points = std::vector<std::vector<Builder::Point>>;

// One ring among `ranks`: `rounds_reduce` rounds of receive-and-reduce, then `rounds_gather` of receive. The member at
// position i starts with block i + shift; `chunk(block, piece)` names the `pieces` chunks of a block. Waits for `points`,
// and sets them.
template <class Chunk>
void ring_among(Builder& builder, const std::vector<Rank>& ranks, int shift, int rounds_reduce, int rounds_gather,
                int pieces, bool final, Chunk chunk, Points& points) {
  const int size = static_cast<int>(ranks.size());
  if (size == 1) return;
  for (int i = 0; i < size; ++i) {
    const Rank rank = ranks[i];
    const Rank next = ranks[(i + 1) % size];
    const Rank previous = ranks[(i + size - 1) % size];
    const auto block = [&](int round) { return ((i + shift - round) % size + size) % size; };
    const auto send = [&](std::uint32_t departing) {
      builder.wait_for(points[rank][departing]);
      builder.send(rank, next, departing);
    };
    for (int piece = 0; piece < pieces; ++piece) send(chunk(block(0), piece));
    const int rounds = rounds_reduce + rounds_gather;
    for (int round = 0; round < rounds; ++round) {
      for (int piece = 0; piece < pieces; ++piece) {
        const std::uint32_t arriving = chunk(block(round + 1), piece);
        builder.wait_for(points[rank][arriving]);
        if (round < rounds_reduce) {
          builder.recv_reduce(rank, previous, arriving, final && round == rounds_reduce - 1);
        } else {
          builder.recv(rank, previous, arriving);
        }
        points[rank][arriving] = builder.last(rank);
        if (round + 1 < rounds) send(arriving);
      }
    }
  }
}

// A reduce-scatter or an all-gather of one chunk of each share.
template <class Chunk>
void ring_in_host(Builder& builder, Points& points, const std::vector<Rank>& ranks, int shift, bool reduces,
                  Chunk chunk) {
  const int rounds = static_cast<int>(ranks.size()) - 1;
  ring_among(
      builder, ranks, shift, reduces ? rounds : 0, reduces ? 0 : rounds, 1, false,
      [&](int share, int) { return chunk(share); }, points);
}

class Hierarchical final : public Generator {
 public:
  std::string_view name() const override { return "hierarchical"; }

  std::optional<Plan> generate(const PlanRequest& request) const override {
    if (request.collective != Collective::kAllreduce) return std::nullopt;
    const Hosts hosts = hosts_of(*request.topology);
    const bool several_ranks =
        std::any_of(hosts.begin(), hosts.end(), [](const auto& ranks) { return ranks.size() > 1; });
    if (hosts.size() < 2 || !several_ranks) return std::nullopt;
    const bool even = std::all_of(hosts.begin(), hosts.end(),
                                  [&](const auto& ranks) { return ranks.size() == hosts.front().size(); });
    return even ? shares(request, hosts) : leaders(request, hosts);
  }

 private:
  // Chunk (share i, host h, part p): (i * H + h) * P + p.
  static Plan shares(const PlanRequest& request, const Hosts& hosts) {
    const int host_count = static_cast<int>(hosts.size());
    const int local_count = static_cast<int>(hosts.front().size());
    const int parts = request.parts;
    Builder builder("hierarchical", request, static_cast<std::uint32_t>(local_count * host_count * parts));
    const auto chunk_of = [&](int share, int host, int part) {
      return static_cast<std::uint32_t>((share * host_count + host) * parts + part);
    };
    Points points(request.ranks(), std::vector<Builder::Point>(builder.plan().chunks));
    for (int host = 0; host < host_count; ++host) {
      // The block that the network wants first comes first.
      for (int turn = 0; turn < host_count; ++turn) {
        const int block = (host + host_count - turn) % host_count;
        for (int part = 0; part < parts; ++part) {
          ring_in_host(builder, points, hosts[host], -1, true, [&](int share) { return chunk_of(share, block, part); });
        }
      }
    }
    builder.use_channel(1);
    for (int share = 0; share < local_count; ++share) {
      std::vector<Rank> owners;
      for (const auto& ranks : hosts) owners.push_back(ranks[share]);
      ring_among(
          builder, owners, 0, host_count - 1, host_count - 1, parts, true,
          [&](int host, int part) { return chunk_of(share, host, part); }, points);
    }
    builder.use_channel(0);
    for (int host = 0; host < host_count; ++host) {
      // In the order in which the network completes them.
      for (int turn = 0; turn < host_count; ++turn) {
        const int block = (host + 1 + host_count - turn) % host_count;
        for (int part = 0; part < parts; ++part) {
          ring_in_host(builder, points, hosts[host], 0, false, [&](int share) { return chunk_of(share, block, part); });
        }
      }
    }
    return std::move(builder.plan());
  }

  static Plan leaders(const PlanRequest& request, const Hosts& hosts) {
    const int host_count = static_cast<int>(hosts.size());
    const int parts = request.parts;
    Builder builder("hierarchical", request, static_cast<std::uint32_t>(host_count * parts));
    const std::uint32_t chunks = builder.plan().chunks;
    Points points(request.ranks(), std::vector<Builder::Point>(chunks));
    std::vector<Rank> leaders;
    for (const auto& ranks : hosts) {
      leaders.push_back(ranks.front());
      for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) {
        for (std::size_t i = 1; i < ranks.size(); ++i) {
          builder.send(ranks[i], ranks.front(), chunk);
          builder.recv_reduce(ranks.front(), ranks[i], chunk, false);
        }
      }
    }
    ring_among(
        builder, leaders, 0, host_count - 1, host_count - 1, parts, true,
        [&](int host, int part) { return static_cast<std::uint32_t>(host * parts + part); }, points);
    for (const auto& ranks : hosts) {
      for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) {
        for (std::size_t i = 1; i < ranks.size(); ++i) {
          builder.send(ranks.front(), ranks[i], chunk);
          builder.recv(ranks[i], ranks.front(), chunk);
        }
      }
    }
    return std::move(builder.plan());
  }
};

}  // namespace

const Generator& hierarchical() {
  static const Hierarchical generator;
  return generator;
}

}  // namespace ringcore::plan
