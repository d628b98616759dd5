// Flat, one-sided: block r belongs to rank r, who reads it from every rank's memory, adds, and writes the sum into every
// rank's memory. Each byte is read and written as often as the reduction itself needs, and nothing is staged. What is only
// moved is fetched from where it lies, in one copy.
#include "plan/builder.hpp"

namespace ringcore::plan {
namespace {

class Flat final : public Generator {
 public:
  std::string_view name() const override { return "flat"; }

  std::optional<Plan> generate(const PlanRequest& request, Rank self) const override {
    if (!request.memory_visible) return std::nullopt;
    switch (request.collective) {
      case Collective::kAllreduce:
      case Collective::kReduceScatter: return reduce(request, self);
      case Collective::kAllgather: return gather(request, self);
      case Collective::kBroadcast: return broadcast(request, self);
      case Collective::kAlltoall: return exchange(request, self);
      case Collective::kReduce:
      case Collective::kGather:
      case Collective::kScatter:
      case Collective::kBarrier: return std::nullopt;
    }
    __builtin_unreachable();
  }

  Symmetry symmetry(const PlanRequest& request) const override {
    if (request.collective == Collective::kBroadcast) return Symmetry::none(request.ranks());
    return Symmetry::circle(request.ranks()).blocks_move();
  }

 private:
  static void meet(Builder& builder, int ranks) {
    const Rank self = builder.self();
    for (int distance = 1; distance < ranks; ++distance) builder.signal((self + distance) % ranks);
    for (int distance = 1; distance < ranks; ++distance) builder.wait((self + distance) % ranks);
  }

  static Builder begin(const PlanRequest& request, Rank self, std::uint32_t chunks) {
    Builder builder("flat", request, self, chunks);
    builder.plan().one_sided = true;
    builder.plan().inputs_ready = request.inputs_ready;
    if (!request.inputs_ready) meet(builder, request.ranks());
    return builder;
  }

  static Plan reduce(const PlanRequest& request, Rank self) {
    const int ranks = request.ranks();
    Builder builder = begin(request, self, static_cast<std::uint32_t>(ranks));
    builder.plan().accumulates_once = true;
    const auto block = static_cast<std::uint32_t>(self);
    std::vector<ChunkRef> everywhere;
    everywhere.reserve(static_cast<std::size_t>(ranks));
    for (Rank rank = 0; rank < ranks; ++rank) everywhere.push_back({rank, Buffer::kData, block});
    const std::vector<ChunkRef> own = {builder.own(block)};
    builder.reduce(everywhere, request.collective == Collective::kAllreduce ? everywhere : own, true);
    meet(builder, ranks);
    return std::move(builder.plan());
  }

  static Plan gather(const PlanRequest& request, Rank self) {
    const int ranks = request.ranks();
    Builder builder = begin(request, self, static_cast<std::uint32_t>(ranks));
    for (int distance = 1; distance < ranks; ++distance) {
      const Rank from = (self + distance) % ranks;
      const auto block = static_cast<std::uint32_t>(from);
      builder.reduce({{from, Buffer::kData, block}}, {builder.own(block)}, false);
    }
    meet(builder, ranks);
    return std::move(builder.plan());
  }

  static Plan exchange(const PlanRequest& request, Rank self) {
    const int ranks = request.ranks();
    Builder builder = begin(request, self, static_cast<std::uint32_t>(ranks));
    const auto own = static_cast<std::uint32_t>(self);
    for (int distance = 1; distance < ranks; ++distance) {
      const Rank from = (self + distance) % ranks;
      builder.reduce({{from, Buffer::kInput, own}}, {builder.own(static_cast<std::uint32_t>(from))}, false);
    }
    meet(builder, ranks);
    return std::move(builder.plan());
  }

  static Plan broadcast(const PlanRequest& request, Rank self) {
    Builder builder = begin(request, self, 1);
    if (self != request.root) {
      builder.reduce({{request.root, Buffer::kData, 0}}, {builder.own(0)}, false);
      builder.signal(request.root);
    }
    for (Rank rank = 0; self == request.root && rank < request.ranks(); ++rank) {
      if (rank != self) builder.wait(rank);
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
