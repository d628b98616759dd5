// Parallel trees (PAT, arXiv 2506.20252): every block has a binomial tree of its own, turned to its rank, and all trees
// go at once, in log2(R) rounds for any number of ranks and with no memory but the buffer. An all-gather begins with the
// farthest ranks, to whom little is sent, and ends with the neighbours, to whom half of the data goes; a reduce-scatter is
// its reverse.
//
// The node at offset o of a block's tree, o ranks behind the block's own, has its parent at o without its lowest bit.
#include <bit>

#include "plan/builder.hpp"

namespace ringcore::plan {
namespace {

class Pat final : public Generator {
 public:
  std::string_view name() const override { return "pat"; }

  std::optional<Plan> generate(const PlanRequest& request, Rank self) const override {
    const bool gathers = request.collective == Collective::kAllgather || request.collective == Collective::kAllreduce;
    const bool reduces =
        request.collective == Collective::kReduceScatter || request.collective == Collective::kAllreduce;
    // Of fewer than four ranks a ring is the same.
    if ((!gathers && !reduces) || request.ranks() < 4) return std::nullopt;
    Builder builder(name(), request, self, static_cast<std::uint32_t>(request.ranks() * request.parts));
    const int farthest = static_cast<int>(std::bit_floor(static_cast<unsigned>(request.ranks() - 1)));
    for (int distance = 1; reduces && distance <= farthest; distance *= 2) {
      collect(builder, request, distance, distance == farthest);
    }
    for (int distance = farthest; gathers && distance >= 1; distance /= 2) spread(builder, request, distance);
    return std::move(builder.plan());
  }

  Symmetry symmetry(const PlanRequest& request) const override {
    return Symmetry::circle(request.ranks()).blocks_move();
  }

 private:
  // The chunks of the blocks whose trees have an edge from the rank `distance` behind `parent` to `parent`.
  template <class Step>
  static void each_chunk(const PlanRequest& request, Rank parent, int distance, Step step) {
    for (int offset = distance; offset < request.ranks(); offset += 2 * distance) {
      const Rank block = (parent + distance - offset + request.ranks()) % request.ranks();
      for (int part = 0; part < request.parts; ++part) {
        step(block, static_cast<std::uint32_t>(block * request.parts + part));
      }
    }
  }

  static void collect(Builder& builder, const PlanRequest& request, int distance, bool last) {
    const Rank self = builder.self();
    const Rank parent = (self + request.ranks() - distance) % request.ranks();
    const Rank child = (self + distance) % request.ranks();
    each_chunk(request, parent, distance, [&](Rank, std::uint32_t chunk) { builder.send(parent, chunk); });
    each_chunk(request, self, distance,
               [&](Rank block, std::uint32_t chunk) { builder.recv_reduce(child, chunk, last && block == self); });
  }

  static void spread(Builder& builder, const PlanRequest& request, int distance) {
    const Rank self = builder.self();
    const Rank parent = (self + request.ranks() - distance) % request.ranks();
    const Rank child = (self + distance) % request.ranks();
    each_chunk(request, self, distance, [&](Rank, std::uint32_t chunk) { builder.send(child, chunk); });
    each_chunk(request, parent, distance, [&](Rank, std::uint32_t chunk) { builder.recv(parent, chunk); });
  }
};

}  // namespace

const Generator& pat() {
  static const Pat generator;
  return generator;
}

}  // namespace ringcore::plan
