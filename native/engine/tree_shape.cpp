#include "engine/tree_shape.hpp"

#include <cstddef>
#include <unordered_map>

namespace ringcore::engine {
namespace {

using Hosts = std::vector<std::vector<int>>;

// In the order of their first members, who lead them.
Hosts hosts_of(std::span<const int> host_of) {
  Hosts hosts;
  std::unordered_map<int, std::size_t> index;
  for (std::size_t m = 0; m < host_of.size(); ++m) {
    const auto [found, is_new] = index.emplace(host_of[m], hosts.size());
    if (is_new) hosts.emplace_back();
    hosts[found->second].push_back(static_cast<int>(m));
  }
  return hosts;
}

// Lays the tree out from the root down, and notes what concerns one member.
class Layout {
 public:
  Layout(const Hosts& hosts, int self, int degree)
      : hosts_(hosts), self_(self), degree_(static_cast<std::size_t>(degree)) {
    lay(0, -1);
  }

  TreeShape shape;

 private:
  // Returns where the subtree of the leader lies.
  TreeShape::Child lay(std::size_t host, int parent) {
    const std::vector<int>& members = hosts_[host];
    const int begin = shape.size();
    const auto here = [this] { return shape.size(); };
    std::vector<TreeShape::Child> children;
    shape.order.push_back(members.front());
    for (std::size_t i = 1; i < members.size(); ++i) {
      shape.order.push_back(members[i]);
      children.push_back({members[i], here() - 1, here()});
      if (members[i] == self_) note(children.back(), members.front(), {});
    }
    for (std::size_t i = 1; i <= degree_ && host * degree_ + i < hosts_.size(); ++i) {
      children.push_back(lay(host * degree_ + i, members.front()));
    }
    const TreeShape::Child whole{members.front(), begin, here()};
    if (members.front() == self_) note(whole, parent, std::move(children));
    return whole;
  }

  void note(const TreeShape::Child& own, int parent, std::vector<TreeShape::Child> children) {
    shape.begin = own.begin;
    shape.end = own.end;
    shape.parent = parent;
    shape.children = std::move(children);
  }

  const Hosts& hosts_;
  int self_;
  std::size_t degree_;
};

}  // namespace

TreeShape TreeShape::make(std::span<const int> host_of, int self, int degree) {
  const Hosts hosts = hosts_of(host_of);
  return Layout(hosts, self, degree).shape;
}

}  // namespace ringcore::engine
