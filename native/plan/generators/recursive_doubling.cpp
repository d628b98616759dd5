// Whole vectors exchanged in log2(R) rounds (Thakur, Rabenseifner & Gropp 2005, section 4.4): the lowest latency.
#include "plan/builder.hpp"
#include "plan/generators/fold.hpp"

namespace ringcore::plan {
namespace {

class RecursiveDoubling final : public Generator {
 public:
  std::string_view name() const override { return "recursive_doubling"; }

  std::optional<Plan> generate(const PlanRequest& request, Rank self) const override {
    if (request.collective != Collective::kAllreduce) return std::nullopt;
    if (request.compression != Compression::kNone) return std::nullopt;  // every rank makes the sum for itself
    const Fold fold(request.ranks());
    Builder builder(name(), request, self, 1, 1);
    if (fold.hands_over(self)) {
      builder.send(self - 1, 0);
      builder.recv(self - 1, 0);
      return std::move(builder.plan());
    }
    if (fold.takes_over(self)) builder.recv_reduce(self + 1, 0, false);
    for (int mask = 1; mask < fold.core(); mask *= 2) {
      const Rank peer = fold.rank_at(fold.position(self) ^ mask);
      builder.send(peer, 0);
      // Through scratch: the chunk must stay as it is until the peer has it.
      builder.recv_scratch(peer, 0, 0);
      // Both sides add in the same order and so get the same bits.
      std::vector<ChunkRef> sources = {builder.own(0), builder.own(0, Buffer::kScratch)};
      if (peer < self) std::swap(sources[0], sources[1]);
      builder.reduce(std::move(sources), {builder.own(0)}, mask * 2 == fold.core());
    }
    if (fold.takes_over(self)) builder.send(self + 1, 0);
    return std::move(builder.plan());
  }

  Symmetry symmetry(const PlanRequest& request) const override {
    if (!Fold(request.ranks()).even()) return Symmetry::none(request.ranks());
    return Symmetry::exclusive_or(request.ranks());
  }
};

}  // namespace

const Generator& recursive_doubling() {
  static const RecursiveDoubling generator;
  return generator;
}

}  // namespace ringcore::plan
