// Direct exchange: every rank sends block b to its owner b; the owner collects all of them and adds them once, in the
// order of the ranks. As many bytes as a ring, two steps instead of 2 (R - 1), 16-bit floats round once, and the bits do
// not depend on where block borders lie.
#include "plan/builder.hpp"

namespace ringcore::plan {
namespace {

class Direct final : public Generator {
 public:
  std::string_view name() const override { return "direct"; }

  std::optional<Plan> generate(const PlanRequest& request) const override {
    const auto ranks = static_cast<std::uint32_t>(request.ranks());
    switch (request.collective) {
      case Collective::kAllreduce:
      case Collective::kReduceScatter: {
        Builder builder("direct", request, ranks, ranks);
        builder.plan().accumulates_once = true;
        collect(builder, request.ranks());
        if (request.collective == Collective::kAllreduce) spread(builder, request.ranks());
        return std::move(builder.plan());
      }
      case Collective::kAllgather: {
        Builder builder("direct", request, ranks);
        spread(builder, request.ranks());
        return std::move(builder.plan());
      }
      case Collective::kAlltoall: return exchange(request);
      case Collective::kBroadcast:
      case Collective::kBarrier: return std::nullopt;
    }
    __builtin_unreachable();
  }

 private:
  static void collect(Builder& builder, int ranks) {
    for (Rank rank = 0; rank < ranks; ++rank) {
      const auto own = static_cast<std::uint32_t>(rank);
      for (int distance = 1; distance < ranks; ++distance) {
        const Rank owner = (rank + distance) % ranks;
        builder.send(rank, owner, static_cast<std::uint32_t>(owner));
      }
      std::vector<ChunkRef> pieces;
      pieces.reserve(static_cast<std::size_t>(ranks));
      for (int distance = 1; distance < ranks; ++distance) {
        const Rank from = (rank + ranks - distance) % ranks;
        builder.recv_scratch(rank, from, static_cast<std::uint32_t>(from), own);
      }
      for (Rank from = 0; from < ranks; ++from) {
        pieces.push_back({rank, from == rank ? Buffer::kData : Buffer::kScratch, static_cast<std::uint32_t>(from)});
      }
      builder.reduce(rank, std::move(pieces), {{rank, Buffer::kData, own}}, true);
    }
  }

  static void spread(Builder& builder, int ranks) {
    for (Rank rank = 0; rank < ranks; ++rank) {
      for (int distance = 1; distance < ranks; ++distance) {
        builder.send(rank, (rank + distance) % ranks, static_cast<std::uint32_t>(rank));
      }
      for (int distance = 1; distance < ranks; ++distance) {
        const Rank from = (rank + ranks - distance) % ranks;
        builder.recv(rank, from, static_cast<std::uint32_t>(from));
      }
    }
  }

  static Plan exchange(const PlanRequest& request) {
    const int ranks = request.ranks();
    Builder builder("direct", request, static_cast<std::uint32_t>(ranks));
    for (Rank rank = 0; rank < ranks; ++rank) {
      const auto own = static_cast<std::uint32_t>(rank);
      for (int distance = 1; distance < ranks; ++distance) {
        const Rank to = (rank + distance) % ranks;
        builder.send(rank, to, static_cast<std::uint32_t>(to), Buffer::kInput);
      }
      builder.reduce(rank, {{rank, Buffer::kInput, own}}, {{rank, Buffer::kData, own}}, false);
      for (int distance = 1; distance < ranks; ++distance) {
        const Rank from = (rank + ranks - distance) % ranks;
        builder.recv(rank, from, static_cast<std::uint32_t>(from));
      }
    }
    return std::move(builder.plan());
  }
};

}  // namespace

const Generator& direct() {
  static const Direct generator;
  return generator;
}

}  // namespace ringcore::plan
