// Bruck's algorithms (Bruck et al. 1997): in each round a rank sends all that is to go so far, in one transfer, and the
// distance doubles. ceil(log2(R)) transfers a rank instead of R - 1, each of many blocks, which are copied on the way: for
// few bytes among many ranks.
//
// In an alltoall the block for the rank o behind its own goes in the rounds whose distances add up to o; until the last of
// them it lies in slot o. In an all-gather a rank has the blocks of the next so many ranks.
#include <algorithm>
#include <bit>

#include "plan/builder.hpp"

namespace ringcore::plan {
namespace {

class Bruck final : public Generator {
 public:
  std::string_view name() const override { return "bruck"; }

  std::optional<Plan> generate(const PlanRequest& request, Rank self) const override {
    // Of fewer than four ranks a direct exchange is the same.
    if (request.ranks() < 4) return std::nullopt;
    switch (request.collective) {
      case Collective::kAllgather: return gather(request, self);
      case Collective::kAlltoall: return exchange(request, self);
      case Collective::kAllreduce:
      case Collective::kReduceScatter:
      case Collective::kBroadcast:
      case Collective::kReduce:
      case Collective::kGather:
      case Collective::kScatter:
      case Collective::kBarrier: return std::nullopt;
    }
    __builtin_unreachable();
  }

  Symmetry symmetry(const PlanRequest& request) const override {
    return Symmetry::circle(request.ranks()).blocks_move();
  }

 private:
  static Plan gather(const PlanRequest& request, Rank self) {
    const int ranks = request.ranks();
    Builder builder("bruck", request, self, static_cast<std::uint32_t>(ranks));
    const auto blocks = [&](int first, int count) {
      std::vector<ChunkRef> refs;
      for (int i = first; i < first + count; ++i) refs.push_back(builder.own(static_cast<std::uint32_t>(i % ranks)));
      return refs;
    };
    for (int distance = 1; distance < ranks; distance *= 2) {
      const int count = std::min(distance, ranks - distance);
      builder.send_all((self + ranks - distance) % ranks, blocks(self, count));
      builder.recv_all((self + distance) % ranks, blocks(self + distance, count));
    }
    return std::move(builder.plan());
  }

  static Plan exchange(const PlanRequest& request, Rank self) {
    const int ranks = request.ranks();
    Builder builder("bruck", request, self, static_cast<std::uint32_t>(ranks), static_cast<std::uint32_t>(ranks));
    for (int distance = 1; distance < ranks; distance *= 2) {
      std::vector<ChunkRef> sources;
      std::vector<ChunkRef> targets;
      for (int offset = distance; offset < ranks; ++offset) {
        if ((offset & distance) == 0) continue;
        const auto slot = static_cast<std::uint32_t>(offset);
        const auto to = static_cast<std::uint32_t>((self + offset) % ranks);
        const auto from = static_cast<std::uint32_t>((self + ranks - offset) % ranks);
        const bool begins = std::countr_zero(slot) == std::countr_zero(static_cast<unsigned>(distance));
        const bool ends = static_cast<int>(std::bit_floor(slot)) == distance;
        sources.push_back(begins ? builder.own(to, Buffer::kInput) : builder.own(slot, Buffer::kScratch));
        targets.push_back(ends ? builder.own(from) : builder.own(slot, Buffer::kScratch));
      }
      builder.send_all((self + distance) % ranks, std::move(sources));
      builder.recv_all((self + ranks - distance) % ranks, std::move(targets));
    }
    return std::move(builder.plan());
  }
};

}  // namespace

const Generator& bruck() {
  static const Bruck generator;
  return generator;
}

}  // namespace ringcore::plan
