// The ring (Patarasuk & Yuan 2009), optimal in bytes. Rank r sends to r + 1 and receives from r - 1. In round t it sends
// the block that it completed or received in round t - 1; after R - 1 rounds of receive-and-reduce each rank owns the sum
// of one block, and R - 1 rounds of receiving pass the sums on. Blocks are divided into parts, so that a part travels on
// while the next one arrives.
#include "plan/builder.hpp"

namespace ringcore::plan {
namespace {

class Ring final : public Generator {
 public:
  std::string_view name() const override { return "ring"; }

  std::optional<Plan> generate(const PlanRequest& request, Rank self) const override {
    const int rounds = request.ranks() - 1;
    switch (request.collective) {
      case Collective::kAllreduce: return around(request, self, 0, rounds, rounds);
      // Shifted by one, so that rank r ends up with block r.
      case Collective::kReduceScatter: return around(request, self, -1, rounds, 0);
      case Collective::kAllgather: return around(request, self, 0, 0, rounds);
      case Collective::kBroadcast: return chain(request, self);
      case Collective::kReduce: return chain_to_root(request, self);
      case Collective::kAlltoall:
      case Collective::kGather:
      case Collective::kScatter:
      case Collective::kBarrier: return std::nullopt;
    }
    __builtin_unreachable();
  }

  Symmetry symmetry(const PlanRequest& request) const override {
    if (has_root(request.collective)) return Symmetry::none(request.ranks());
    return Symmetry::circle(request.ranks()).blocks_move();
  }

 private:
  static Plan around(const PlanRequest& request, Rank self, int shift, int reduce_rounds, int gather_rounds) {
    const int ranks = request.ranks();
    const int parts = request.parts;
    const int rounds = reduce_rounds + gather_rounds;
    Builder builder("ring", request, self, static_cast<std::uint32_t>(ranks * parts));
    const Rank next = (self + 1) % ranks;
    const Rank previous = (self + ranks - 1) % ranks;
    const auto chunk = [&](int round, int part) {
      return static_cast<std::uint32_t>((self + shift - round + 2 * ranks) % ranks * parts + part);
    };
    for (int part = 0; part < parts; ++part) builder.send(next, chunk(0, part));
    for (int round = 0; round < rounds; ++round) {
      for (int part = 0; part < parts; ++part) {
        const std::uint32_t arriving = chunk((round + 1) % ranks, part);
        if (round < reduce_rounds) {
          builder.recv_reduce(previous, arriving, round == reduce_rounds - 1);
        } else {
          builder.recv(previous, arriving);
        }
        if (round + 1 < rounds) builder.send(next, arriving);
      }
    }
    return std::move(builder.plan());
  }

  static Plan chain(const PlanRequest& request, Rank self) {
    const int ranks = request.ranks();
    const int distance = (self - request.root + ranks) % ranks;
    Builder builder("ring", request, self, static_cast<std::uint32_t>(request.parts));
    for (int part = 0; part < request.parts; ++part) {
      const auto chunk = static_cast<std::uint32_t>(part);
      if (distance > 0) builder.recv((self + ranks - 1) % ranks, chunk);
      if (distance + 1 < ranks) builder.send((self + 1) % ranks, chunk);
    }
    builder.end_segment();
    return std::move(builder.plan());
  }

  // From the rank behind the root all the way round to it: each adds its own.
  static Plan chain_to_root(const PlanRequest& request, Rank self) {
    const int ranks = request.ranks();
    const int distance = (self - request.root + ranks) % ranks;
    Builder builder("ring", request, self, static_cast<std::uint32_t>(request.parts));
    for (int part = 0; part < request.parts; ++part) {
      const auto chunk = static_cast<std::uint32_t>(part);
      if (distance != 1) builder.recv_reduce((self + ranks - 1) % ranks, chunk, distance == 0);
      if (distance != 0) builder.send((self + 1) % ranks, chunk);
    }
    builder.end_segment();
    return std::move(builder.plan());
  }
};

}  // namespace

const Generator& ring() {
  static const Ring generator;
  return generator;
}

}  // namespace ringcore::plan
