// The ring. Rank r sends to r + 1 and receives from r - 1. In round t it sends the block that it completed or received
// in round t - 1; after R - 1 rounds of receive-and-reduce each rank owns the sum of one block, and R - 1 rounds of
// receiving pass the sums on. Blocks are divided into parts, so that a part travels on while the next one arrives.
#include "plan/builder.hpp"

namespace ringcore::plan {
namespace {

class Ring final : public Generator {
 public:
  std::string_view name() const override { return "ring"; }

  std::optional<Plan> generate(const PlanRequest& request) const override {
    switch (request.collective) {
      case Collective::kAllreduce: return around(request, 0, request.ranks() - 1, request.ranks() - 1);
      // Shifted by one, so that rank r ends up with block r.
      case Collective::kReduceScatter: return around(request, -1, request.ranks() - 1, 0);
      case Collective::kAllgather: return around(request, 0, 0, request.ranks() - 1);
      case Collective::kBroadcast: return chain(request);
      case Collective::kAlltoall:
      case Collective::kBarrier: return std::nullopt;
    }
    __builtin_unreachable();
  }

 private:
  static Plan around(const PlanRequest& request, int shift, int reduce_rounds, int gather_rounds) {
    const int ranks = request.ranks();
    const int parts = request.parts;
    const int rounds = reduce_rounds + gather_rounds;
    Builder builder("ring", request, static_cast<std::uint32_t>(ranks * parts));
    for (Rank rank = 0; rank < ranks; ++rank) {
      const Rank next = (rank + 1) % ranks;
      const Rank previous = (rank + ranks - 1) % ranks;
      const auto chunk = [&](int round, int part) {
        return static_cast<std::uint32_t>(((rank + shift - round) % ranks + ranks) % ranks * parts + part);
      };
      for (int part = 0; part < parts; ++part) builder.send(rank, next, chunk(0, part));
      for (int round = 0; round < rounds; ++round) {
        for (int part = 0; part < parts; ++part) {
          const std::uint32_t arriving = chunk(round + 1, part);
          if (round < reduce_rounds) {
            builder.recv_reduce(rank, previous, arriving, round == reduce_rounds - 1);
          } else {
            builder.recv(rank, previous, arriving);
          }
          if (round + 1 < rounds) builder.send(rank, next, arriving);
        }
      }
    }
    return std::move(builder.plan());
  }

  static Plan chain(const PlanRequest& request) {
    const int ranks = request.ranks();
    Builder builder("ring", request, static_cast<std::uint32_t>(request.parts));
    for (int distance = 0; distance < ranks; ++distance) {
      const Rank rank = (request.root + distance) % ranks;
      for (int part = 0; part < request.parts; ++part) {
        const auto chunk = static_cast<std::uint32_t>(part);
        if (distance > 0) builder.recv(rank, (rank + ranks - 1) % ranks, chunk);
        if (distance + 1 < ranks) builder.send(rank, (rank + 1) % ranks, chunk);
      }
    }
    return std::move(builder.plan());
  }
};

}  // namespace

const Generator& ring() {
  static const Ring generator;
  return generator;
}

}  // namespace ringcore::plan
