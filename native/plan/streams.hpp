// What goes from one rank to another while a plan is looked at: a queue for each pair of which the first sends.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "plan/excerpt.hpp"

namespace ringcore::plan {

template <class Item>
class Queue {
 public:
  bool empty() const { return taken_ == items_.size(); }
  const Item& front() const { return items_[taken_]; }
  void push(Item item) { items_.push_back(std::move(item)); }
  Item pop() {
    Item item = std::move(items_[taken_++]);
    if (empty()) {
      items_.clear();
      taken_ = 0;
    }
    return item;
  }

 private:
  std::vector<Item> items_;
  std::size_t taken_ = 0;
};

// By an orbit's representative and the rank that it sends to: what the orbit's other ranks send is that, turned.
template <class Stream>
class Streams {
 public:
  explicit Streams(const Excerpt& plan) : symmetry_(plan.symmetry), first_{0} {
    for (const Program& program : plan.programs) {
      const auto begin = static_cast<std::ptrdiff_t>(peers_.size());
      for (const Channel& channel : program.channels) {
        for (const Step& step : channel) {
          const bool sends = step.kind == StepKind::kSend || step.kind == StepKind::kSignal;
          if (sends && (peers_.size() == first_.back() || peers_.back() != step.peer)) peers_.push_back(step.peer);
        }
      }
      std::sort(peers_.begin() + begin, peers_.end());
      peers_.erase(std::unique(peers_.begin() + begin, peers_.end()), peers_.end());
      first_.push_back(peers_.size());
    }
    streams_.resize(peers_.size());
  }

  // Null where the orbit sends nothing.
  Stream* sent(int orbit, Rank to) {
    const auto begin = peers_.begin() + static_cast<std::ptrdiff_t>(first_[orbit]);
    const auto end = peers_.begin() + static_cast<std::ptrdiff_t>(first_[orbit + 1]);
    const auto found = std::lower_bound(begin, end, to);
    return found == end || *found != to ? nullptr : &streams_[static_cast<std::size_t>(found - peers_.begin())];
  }
  // What the representative of `orbit` gets from that rank.
  Stream* received(int orbit, Rank from) { return sent(symmetry_.orbit_of(from), as_sent(orbit, from)); }
  // The representative, as the sender's representative has it.
  Rank as_sent(int orbit, Rank from) const {
    return symmetry_.turned(symmetry_.representative(orbit), symmetry_.inverse(symmetry_.turn_of(from)));
  }

  auto begin() const { return streams_.begin(); }
  auto end() const { return streams_.end(); }

 private:
  const Symmetry& symmetry_;
  std::vector<std::size_t> first_;  // of each orbit
  std::vector<Rank> peers_;
  std::vector<Stream> streams_;
};

}  // namespace ringcore::plan
