// Recursive doubling and recursive halving-doubling, for any number of ranks: the ranks beyond the largest power of two
// hand their values to a neighbour first and get the result from it at the end.
#include <bit>

#include "plan/builder.hpp"

namespace ringcore::plan {
namespace {

// Which ranks take part in the power-of-two core.
class Fold {
 public:
  explicit Fold(int ranks)
      : core_(static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks)))), extra_(ranks - core_) {}
  int core() const { return core_; }
  // The first 2 * extra ranks come in pairs: the odd one hands over to the even one.
  bool hands_over(Rank rank) const { return rank < 2 * extra_ && rank % 2 == 1; }
  bool takes_over(Rank rank) const { return rank < 2 * extra_ && rank % 2 == 0; }
  int position(Rank rank) const { return rank < 2 * extra_ ? rank / 2 : rank - extra_; }
  Rank rank_at(int position) const { return position < extra_ ? position * 2 : position + extra_; }

 private:
  int core_;
  int extra_;
};

class RecursiveDoubling final : public Generator {
 public:
  std::string_view name() const override { return "recursive_doubling"; }

  std::optional<Plan> generate(const PlanRequest& request) const override {
    if (request.collective != Collective::kAllreduce) return std::nullopt;
    const Fold fold(request.ranks());
    Builder builder(name(), request, 1, 1);
    for (Rank rank = 0; rank < request.ranks(); ++rank) {
      if (fold.hands_over(rank)) {
        builder.send(rank, rank - 1, 0);
        builder.recv(rank, rank - 1, 0);
        continue;
      }
      if (fold.takes_over(rank)) builder.recv_reduce(rank, rank + 1, 0, false);
      for (int mask = 1; mask < fold.core(); mask *= 2) {
        const Rank peer = fold.rank_at(fold.position(rank) ^ mask);
        builder.send(rank, peer, 0);
        // Through scratch: the chunk must stay as it is until the peer has it.
        builder.recv_scratch(rank, peer, 0, 0);
        const ChunkRef own{rank, Buffer::kData, 0};
        const ChunkRef received{rank, Buffer::kScratch, 0};
        // Both sides add in the same order and so get the same bits.
        std::vector<ChunkRef> sources = {own, received};
        if (peer < rank) std::swap(sources[0], sources[1]);
        builder.reduce(rank, std::move(sources), {own}, mask * 2 == fold.core());
      }
      if (fold.takes_over(rank)) builder.send(rank, rank + 1, 0);
    }
    return std::move(builder.plan());
  }
};

class HalvingDoubling final : public Generator {
 public:
  std::string_view name() const override { return "halving_doubling"; }

  std::optional<Plan> generate(const PlanRequest& request) const override {
    if (request.collective != Collective::kAllreduce) return std::nullopt;
    const Fold fold(request.ranks());
    const int core = fold.core();
    Builder builder(name(), request, static_cast<std::uint32_t>(core));
    for (Rank rank = 0; rank < request.ranks(); ++rank) {
      if (fold.hands_over(rank)) {
        for (int c = 0; c < core; ++c) builder.send(rank, rank - 1, static_cast<std::uint32_t>(c));
        for (int c = 0; c < core; ++c) builder.recv(rank, rank - 1, static_cast<std::uint32_t>(c));
        continue;
      }
      if (fold.takes_over(rank)) {
        for (int c = 0; c < core; ++c) builder.recv_reduce(rank, rank + 1, static_cast<std::uint32_t>(c), core == 1);
      }
      const int position = fold.position(rank);
      // The chunks whose sums this position still collects: [begin, begin + length).
      int begin = 0;
      for (int length = core / 2; length >= 1; length /= 2) {
        const Rank peer = fold.rank_at(position ^ length);
        const bool upper = (position & length) != 0;
        const int theirs = upper ? begin : begin + length;
        begin = upper ? begin + length : begin;
        for (int c = 0; c < length; ++c) builder.send(rank, peer, static_cast<std::uint32_t>(theirs + c));
        for (int c = 0; c < length; ++c) {
          builder.recv_reduce(rank, peer, static_cast<std::uint32_t>(begin + c), length == 1);
        }
      }
      for (int length = 1; length < core; length *= 2) {
        const Rank peer = fold.rank_at(position ^ length);
        const int theirs = begin ^ length;
        for (int c = 0; c < length; ++c) builder.send(rank, peer, static_cast<std::uint32_t>(begin + c));
        for (int c = 0; c < length; ++c) builder.recv(rank, peer, static_cast<std::uint32_t>(theirs + c));
        begin = begin & ~length;
      }
      if (fold.takes_over(rank)) {
        for (int c = 0; c < core; ++c) builder.send(rank, rank + 1, static_cast<std::uint32_t>(c));
      }
    }
    return std::move(builder.plan());
  }
};

}  // namespace

const Generator& recursive_doubling() {
  static const RecursiveDoubling generator;
  return generator;
}

const Generator& halving_doubling() {
  static const HalvingDoubling generator;
  return generator;
}

}  // namespace ringcore::plan
