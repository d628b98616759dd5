// A binomial tree: the parent of a rank is found by clearing its lowest set bit (ranks counted from the root). What one
// rank gathers or deals out goes along its edges with all blocks of the ranks below at once: few steps for few bytes.
#include <algorithm>
#include <utility>

#include "plan/builder.hpp"

namespace ringcore::plan {
namespace {

class BinomialTree final : public Generator {
 public:
  std::string_view name() const override { return "binomial_tree"; }

  std::optional<Plan> generate(const PlanRequest& request, Rank self) const override {
    const bool up = request.collective == Collective::kAllreduce || request.collective == Collective::kReduce;
    const bool down = request.collective == Collective::kAllreduce || request.collective == Collective::kBroadcast;
    const bool gathers = request.collective == Collective::kGather;
    const bool scatters = request.collective == Collective::kScatter;
    if (!up && !down && !gathers && !scatters) return std::nullopt;
    const int ranks = request.ranks();
    const Rank root = has_root(request.collective) ? request.root : 0;
    const int node = (self - root + ranks) % ranks;
    const Rank parent = ((node & (node - 1)) + root) % ranks;
    std::vector<Rank> children;  // the one with the largest subtree last
    for (int bit = 1; bit < ranks && (node == 0 || bit < (node & -node)); bit *= 2) {
      if (node + bit < ranks) children.push_back((node + bit + root) % ranks);
    }
    const auto parts = static_cast<std::uint32_t>(request.parts);
    if (gathers || scatters) {
      Builder builder(name(), request, self, static_cast<std::uint32_t>(ranks) * parts);
      // Chunk `part` of the blocks of a node and of those below it.
      const auto below = [&](Rank rank, std::uint32_t part) {
        const int first = (rank - root + ranks) % ranks;
        std::vector<ChunkRef> chunks;
        for (int each = first; each < std::min(first + (first & -first), ranks); ++each) {
          chunks.push_back(builder.own(static_cast<std::uint32_t>((each + root) % ranks) * parts + part));
        }
        return chunks;
      };
      for (std::uint32_t part = 0; part < parts; ++part) {
        for (const Rank child : children) {
          if (gathers) builder.recv_all(child, below(child, part));
        }
        if (node != 0 && gathers) builder.send_all(parent, below(self, part));
        if (node != 0 && scatters) builder.recv_all(parent, below(self, part));
        for (auto child = children.rbegin(); child != children.rend() && scatters; ++child) {
          builder.send_all(*child, below(*child, part));
        }
      }
      builder.end_segment();
      return std::move(builder.plan());
    }
    Builder builder(name(), request, self, parts);
    for (std::uint32_t chunk = 0; up && chunk < builder.plan().chunks; ++chunk) {
      for (const Rank child : children) builder.recv_reduce(child, chunk, node == 0 && child == children.back());
      if (node != 0) builder.send(parent, chunk);
    }
    if (up) builder.end_segment();
    for (std::uint32_t chunk = 0; down && chunk < builder.plan().chunks; ++chunk) {
      if (node != 0) builder.recv(parent, chunk);
      for (auto child = children.rbegin(); child != children.rend(); ++child) builder.send(*child, chunk);
    }
    if (down) builder.end_segment();
    return std::move(builder.plan());
  }
};

}  // namespace

const Generator& binomial_tree() {
  static const BinomialTree generator;
  return generator;
}

}  // namespace ringcore::plan
