// A binomial tree: the parent of a rank is found by clearing its lowest set bit (ranks counted from the root).
#include "plan/builder.hpp"

namespace ringcore::plan {
namespace {

class BinomialTree final : public Generator {
 public:
  std::string_view name() const override { return "binomial_tree"; }

  std::optional<Plan> generate(const PlanRequest& request, Rank self) const override {
    const bool up = request.collective == Collective::kAllreduce || request.collective == Collective::kReduce;
    const bool down = request.collective == Collective::kAllreduce || request.collective == Collective::kBroadcast;
    if (!up && !down) return std::nullopt;
    const int ranks = request.ranks();
    const Rank root = has_root(request.collective) ? request.root : 0;
    const int node = (self - root + ranks) % ranks;
    const Rank parent = ((node & (node - 1)) + root) % ranks;
    std::vector<Rank> children;  // the one with the largest subtree last
    for (int bit = 1; bit < ranks && (node == 0 || bit < (node & -node)); bit *= 2) {
      if (node + bit < ranks) children.push_back((node + bit + root) % ranks);
    }
    Builder builder(name(), request, self, static_cast<std::uint32_t>(request.parts));
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
