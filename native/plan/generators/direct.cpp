// Direct exchange: every rank sends block b to its owner b; the owner collects all of them and adds them once, in the
// order of the ranks. As many bytes as a ring, two steps instead of 2 (R - 1), 16-bit floats round once, and the bits do
// not depend on where block borders lie.
#include "plan/builder.hpp"

namespace ringcore::plan {
namespace {

class Direct final : public Generator {
 public:
  std::string_view name() const override { return "direct"; }

  std::optional<Plan> generate(const PlanRequest& request, Rank self) const override {
    const auto ranks = static_cast<std::uint32_t>(request.ranks());
    switch (request.collective) {
      case Collective::kAllreduce:
      case Collective::kReduce:
      case Collective::kReduceScatter: {
        Builder builder(name(), request, self, ranks, ranks);
        builder.plan().accumulates_once = true;
        collect(builder, request.ranks());
        if (request.collective == Collective::kAllreduce) spread(builder, request.ranks());
        if (request.collective == Collective::kReduce) give(builder, request.ranks(), request.root);
        return std::move(builder.plan());
      }
      case Collective::kAllgather: {
        Builder builder(name(), request, self, ranks);
        spread(builder, request.ranks());
        return std::move(builder.plan());
      }
      case Collective::kGather: {
        Builder builder(name(), request, self, ranks);
        give(builder, request.ranks(), request.root);
        return std::move(builder.plan());
      }
      case Collective::kScatter: {
        Builder builder(name(), request, self, ranks);
        deal(builder, request.ranks(), request.root);
        return std::move(builder.plan());
      }
      case Collective::kAlltoall: return exchange(request, self);
      case Collective::kBroadcast:
      case Collective::kBarrier: return std::nullopt;
    }
    __builtin_unreachable();
  }

  Symmetry symmetry(const PlanRequest& request) const override {
    if (has_root(request.collective)) return Symmetry::none(request.ranks());
    return Symmetry::circle(request.ranks()).blocks_move().scratch_moves();
  }

 private:
  static void collect(Builder& builder, int ranks) {
    const Rank self = builder.self();
    const auto own = static_cast<std::uint32_t>(self);
    for (int distance = 1; distance < ranks; ++distance) {
      const Rank owner = (self + distance) % ranks;
      builder.send(owner, static_cast<std::uint32_t>(owner));
    }
    std::vector<ChunkRef> pieces;
    pieces.reserve(static_cast<std::size_t>(ranks));
    for (int distance = 1; distance < ranks; ++distance) {
      const Rank from = (self + ranks - distance) % ranks;
      builder.recv_scratch(from, static_cast<std::uint32_t>(from), own);
    }
    for (Rank from = 0; from < ranks; ++from) {
      pieces.push_back(builder.own(static_cast<std::uint32_t>(from), from == self ? Buffer::kData : Buffer::kScratch));
    }
    builder.reduce(std::move(pieces), {builder.own(own)}, true);
  }

  static void spread(Builder& builder, int ranks) {
    const Rank self = builder.self();
    for (int distance = 1; distance < ranks; ++distance) {
      builder.send((self + distance) % ranks, static_cast<std::uint32_t>(self));
    }
    take(builder, ranks);
  }

  // Every owner's block to the root.
  static void give(Builder& builder, int ranks, Rank root) {
    if (builder.self() == root) return take(builder, ranks);
    builder.send(root, static_cast<std::uint32_t>(builder.self()));
  }

  // Every owner's block from the root.
  static void deal(Builder& builder, int ranks, Rank root) {
    const Rank self = builder.self();
    if (self != root) return builder.recv(root, static_cast<std::uint32_t>(self));
    for (int distance = 1; distance < ranks; ++distance) {
      const Rank to = (self + distance) % ranks;
      builder.send(to, static_cast<std::uint32_t>(to));
    }
  }

  static void take(Builder& builder, int ranks) {
    for (int distance = 1; distance < ranks; ++distance) {
      const Rank from = (builder.self() + ranks - distance) % ranks;
      builder.recv(from, static_cast<std::uint32_t>(from));
    }
  }

  static Plan exchange(const PlanRequest& request, Rank self) {
    const int ranks = request.ranks();
    Builder builder("direct", request, self, static_cast<std::uint32_t>(ranks));
    for (int distance = 1; distance < ranks; ++distance) {
      const Rank to = (self + distance) % ranks;
      builder.send(to, static_cast<std::uint32_t>(to), Buffer::kInput);
    }
    take(builder, ranks);
    return std::move(builder.plan());
  }
};

}  // namespace

const Generator& direct() {
  static const Direct generator;
  return generator;
}

}  // namespace ringcore::plan
