// Two binary trees over all ranks, each for one half of the data (Sanders, Speck & Traeff 2009). Who passes on in one tree
// is a leaf of the other, so that every port is busy in both directions, in a depth of log2(R).
#include <bit>

#include "plan/builder.hpp"

namespace ringcore::plan {
namespace {

// A binary tree over 1 .. size, in order: odd numbers are leaves, and a number's height is that of its lowest bit.
class InOrder {
 public:
  explicit InOrder(int size) : size_(size) {}
  int root() const { return static_cast<int>(std::bit_floor(static_cast<unsigned>(size_))); }
  int parent(int i) const {  // 0 for the root
    if (i == root()) return 0;
    do {
      const int bit = i & -i;
      i = (i ^ bit) | (2 * bit);
    } while (i > size_);
    return i;
  }
  std::vector<int> children(int i) const {
    std::vector<int> found;
    int distance = (i & -i) / 2;
    if (distance > 0) found.push_back(i - distance);
    while (distance > 0 && i + distance > size_) distance /= 2;
    if (distance > 0) found.push_back(i + distance);
    return found;
  }

 private:
  int size_;
};

// What a rank has to do with one of the trees.
struct Role {
  Rank parent = -1;
  std::vector<Rank> children;
};

class DoubleTree final : public Generator {
 public:
  std::string_view name() const override { return "double_tree"; }

  std::optional<Plan> generate(const PlanRequest& request, Rank self) const override {
    const bool reduces = request.collective == Collective::kAllreduce;
    if ((!reduces && request.collective != Collective::kBroadcast) || request.ranks() < 4) return std::nullopt;
    const Role roles[2] = {role_in(0, request, self), role_in(1, request, self)};
    Builder builder(name(), request, self, static_cast<std::uint32_t>(2 * request.parts));
    // Tree by tree: who passes on in one tree waits for those below, and would hold up those above it in the other one, so
    // that no part went behind another.
    const auto each = [&](auto step) {
      for (int tree = 0; tree < 2; ++tree) {
        for (int part = 0; part < request.parts; ++part) {
          step(roles[tree], static_cast<std::uint32_t>(tree * request.parts + part));
        }
        builder.end_segment();
      }
    };
    if (reduces) {
      each([&](const Role& role, std::uint32_t chunk) {
        for (const Rank child : role.children) {
          builder.recv_reduce(child, chunk, role.parent < 0 && child == role.children.back());
        }
        if (role.parent >= 0) builder.send(role.parent, chunk);
      });
    }
    each([&](const Role& role, std::uint32_t chunk) {
      if (role.parent >= 0) builder.recv(role.parent, chunk);
      for (const Rank child : role.children) builder.send(child, chunk);
    });
    return std::move(builder.plan());
  }

 private:
  // The second tree is the first one mirrored, or turned by one: odd numbers become even ones. In a broadcast the root
  // stands above both trees, which the others make.
  static Role role_in(int tree, const PlanRequest& request, Rank self) {
    const int ranks = request.ranks();
    const bool above = request.collective == Collective::kBroadcast;
    const int size = above ? ranks - 1 : ranks;
    const Rank first = above ? request.root + 1 : 0;
    const auto swapped = [&](int i) { return size % 2 == 0 ? size + 1 - i : i == 1 ? size : i - 1; };
    const auto back = [&](int i) { return size % 2 == 0 ? size + 1 - i : i == size ? 1 : i + 1; };
    const auto rank_at = [&](int i) { return (first + (tree == 0 ? i : back(i)) - 1) % ranks; };
    const InOrder shape(size);
    if (above && self == request.root) return {.children = {rank_at(shape.root())}};
    const int own = (self - first + 2 * ranks) % ranks + 1;
    const int node = tree == 0 ? own : swapped(own);
    Role role;
    if (node != shape.root()) {
      role.parent = rank_at(shape.parent(node));
    } else if (above) {
      role.parent = request.root;
    }
    for (const int child : shape.children(node)) role.children.push_back(rank_at(child));
    return role;
  }
};

}  // namespace

const Generator& double_tree() {
  static const DoubleTree generator;
  return generator;
}

}  // namespace ringcore::plan
