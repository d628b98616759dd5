// Flat, one-sided: block r belongs to rank r, who reads it from every rank's memory, adds, and writes the sum into every
// rank's memory. Each byte is read and written as often as the reduction itself needs, and nothing is staged.
#include "plan/builder.hpp"

namespace ringcore::plan {
namespace {

class Flat final : public Generator {
 public:
  std::string_view name() const override { return "flat"; }

  std::optional<Plan> generate(const PlanRequest& request) const override {
    if (!request.memory_visible) return std::nullopt;
    switch (request.collective) {
      case Collective::kAllreduce:
      case Collective::kReduceScatter: return reduce(request);
      case Collective::kAllgather: return gather(request);
      case Collective::kBroadcast: return broadcast(request);
      case Collective::kAlltoall:
      case Collective::kBarrier: return std::nullopt;
    }
    __builtin_unreachable();
  }

 private:
  static void meet(Builder& builder, int ranks) {
    for (Rank rank = 0; rank < ranks; ++rank) {
      for (int distance = 1; distance < ranks; ++distance) builder.signal(rank, (rank + distance) % ranks);
      for (int distance = 1; distance < ranks; ++distance) builder.wait(rank, (rank + distance) % ranks);
    }
  }

  static Builder begin(const PlanRequest& request, std::uint32_t chunks) {
    Builder builder("flat", request, chunks);
    builder.plan().one_sided = true;
    builder.plan().inputs_ready = request.inputs_ready;
    if (!request.inputs_ready) meet(builder, request.ranks());
    return builder;
  }

  static Plan reduce(const PlanRequest& request) {
    const int ranks = request.ranks();
    Builder builder = begin(request, static_cast<std::uint32_t>(ranks));
    builder.plan().accumulates_once = true;
    for (Rank owner = 0; owner < ranks; ++owner) {
      const auto block = static_cast<std::uint32_t>(owner);
      std::vector<ChunkRef> everywhere;
      everywhere.reserve(static_cast<std::size_t>(ranks));
      for (Rank rank = 0; rank < ranks; ++rank) everywhere.push_back({rank, Buffer::kData, block});
      const std::vector<ChunkRef> own = {{owner, Buffer::kData, block}};
      builder.reduce(owner, everywhere, request.collective == Collective::kAllreduce ? everywhere : own, true);
    }
    meet(builder, ranks);
    return std::move(builder.plan());
  }

  static Plan gather(const PlanRequest& request) {
    const int ranks = request.ranks();
    Builder builder = begin(request, static_cast<std::uint32_t>(ranks));
    for (Rank rank = 0; rank < ranks; ++rank) {
      for (int distance = 1; distance < ranks; ++distance) {
        const Rank from = (rank + distance) % ranks;
        const auto block = static_cast<std::uint32_t>(from);
        builder.reduce(rank, {{from, Buffer::kData, block}}, {{rank, Buffer::kData, block}}, false);
      }
    }
    meet(builder, ranks);
    return std::move(builder.plan());
  }

  static Plan broadcast(const PlanRequest& request) {
    Builder builder = begin(request, 1);
    for (Rank rank = 0; rank < request.ranks(); ++rank) {
      if (rank == request.root) continue;
      builder.reduce(rank, {{request.root, Buffer::kData, 0}}, {{rank, Buffer::kData, 0}}, false);
      builder.signal(rank, request.root);
      builder.wait(request.root, rank);
    }
    return std::move(builder.plan());
  }
};

}  // namespace

const Generator& flat() {
  static const Flat generator;
  return generator;
}

}  // namespace ringcore::plan
