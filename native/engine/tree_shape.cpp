#include "engine/tree_shape.hpp"

#include <cstddef>
#include <unordered_map>
#include <utility>

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

// Lays the tree out from the root down, and tells `note` of each member where it stands.
template <class Note>
class Layout {
 public:
  Layout(const Hosts& hosts, int degree, Note note)
      : hosts_(hosts), degree_(static_cast<std::size_t>(degree)), note_(note) {
    lay(0, -1);
  }

  std::vector<int> order;

 private:
  // Returns where the subtree of the leader lies.
  TreeShape::Child lay(std::size_t host, int parent) {
    const std::vector<int>& members = hosts_[host];
    const auto here = [this] { return static_cast<int>(order.size()); };
    const int begin = here();
    std::vector<TreeShape::Child> children;
    order.push_back(members.front());
    for (std::size_t i = 1; i < members.size(); ++i) {
      order.push_back(members[i]);
      children.push_back({members[i], here() - 1, here()});
      note_(children.back(), members.front(), std::vector<TreeShape::Child>());
    }
    for (std::size_t i = 1; i <= degree_ && host * degree_ + i < hosts_.size(); ++i) {
      children.push_back(lay(host * degree_ + i, members.front()));
    }
    const TreeShape::Child whole{members.front(), begin, here()};
    note_(whole, parent, std::move(children));
    return whole;
  }

  const Hosts& hosts_;
  std::size_t degree_;
  Note note_;
};

TreeShape shape_at(const TreeShape::Child& own, int parent, std::vector<TreeShape::Child> children) {
  return {.begin = own.begin, .end = own.end, .parent = parent, .children = std::move(children)};
}

}  // namespace

TreeShape TreeShape::make(std::span<const int> host_of, int self, int degree) {
  const Hosts hosts = hosts_of(host_of);
  TreeShape shape;
  Layout layout(hosts, degree, [&](const Child& own, int parent, std::vector<Child> children) {
    if (own.member == self) shape = shape_at(own, parent, std::move(children));
  });
  shape.order = std::move(layout.order);
  return shape;
}

std::vector<TreeShape> TreeShape::of_all(std::span<const int> host_of, int degree) {
  const Hosts hosts = hosts_of(host_of);
  std::vector<TreeShape> shapes(host_of.size());
  Layout layout(hosts, degree, [&](const Child& own, int parent, std::vector<Child> children) {
    shapes[own.member] = shape_at(own, parent, std::move(children));
  });
  for (TreeShape& shape : shapes) shape.order = layout.order;
  return shapes;
}

}  // namespace ringcore::engine
