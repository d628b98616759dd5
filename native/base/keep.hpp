// What can never be freed: somebody (a library that was given up) goes on writing there.
#pragma once

#include <atomic>
#include <utility>

namespace ringcore {

// Keeps it until the process ends. From any thread.
template <class T>
void keep_for_ever(T value) {
  struct Node {
    T value;
    Node* next;
  };
  static std::atomic<Node*> last = nullptr;  // so that tools that look for lost memory find it
  auto* node = new Node{std::move(value), last.load()};
  while (!last.compare_exchange_weak(node->next, node)) {
  }
}

}  // namespace ringcore
