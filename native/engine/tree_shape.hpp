// Where a member of a process set stands in the tree that the logs travel along: see agreement_tree.hpp.
//
// Inside a host all ranks hang on one, the leader, as memory is near and a record there costs little. Leaders make a heap
// of small degree: a rank then writes few records for an operation, and there are few hops between any two. Every member
// computes the same tree from what all know, so that nobody has to agree on it; these are the ranks that a rank needs to
// be connected with from the start.
#pragma once

#include <span>
#include <vector>

namespace ringcore::engine {

struct TreeShape {
  // More children make the way shorter and a leader's work more: for 1,024 hosts five hops.
  static constexpr int kDegree = 4;

  struct Child {
    int member = 0;
    int begin = 0;  // its subtree in `order`
    int end = 0;
  };

  std::vector<int> order;  // the members, so that each subtree is a run of them, its root first
  int begin = 0;  // this member's subtree in it
  int end = 0;
  int parent = -1;  // member; -1: this is the root
  std::vector<Child> children;

  bool is_root() const { return parent < 0; }
  int size() const { return static_cast<int>(order.size()); }

  // `host_of`: by member.
  static TreeShape make(std::span<const int> host_of, int self, int degree = kDegree);
  // Those of all members, by member: for simulations.
  static std::vector<TreeShape> of_all(std::span<const int> host_of, int degree = kDegree);
};

}  // namespace ringcore::engine
