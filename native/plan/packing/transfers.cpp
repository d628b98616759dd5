#include "plan/packing/transfers.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <set>
#include <tuple>
#include <utility>

namespace ringcore::plan {
namespace {

class Scheduler {
 public:
  Scheduler(const Fabric& fabric, const Forest& forest, bool reduces, double haste)
      : fabric_(fabric), haste_(haste / forest.seconds), free_(fabric.rates.size(), 0), ready_(fabric.arcs.size()) {
    for (const Parents& parents : forest.trees) height_of_tree_.emplace(&parents, heights(parents));
    for (std::size_t tree = 0; tree < forest.trees.size(); ++tree) {
      for (std::uint32_t i = 0; i < forest.shares[tree]; ++i) {
        trees_.push_back(&forest.trees[tree]);
        urgency_.push_back((i + 0.5) / forest.shares[tree]);
        const std::uint32_t window = window_of(forest.trees[tree]);
        paced_by_.push_back(reduces && i >= window ? static_cast<int>(trees_.size() - 1 - window) : -1);
        paces_.push_back(i + window < forest.shares[tree] ? static_cast<int>(trees_.size() - 1 + window) : -1);
      }
    }
    waits_.resize(2 * trees_.size() * nodes());
    numbers_.resize(waits_.size());
    for (std::uint32_t chunk = 0; chunk < trees_.size(); ++chunk) prepare(chunk, reduces);
  }

  TransferOrder run() {
    while (true) {
      dispatch();
      if (events_.empty()) break;
      now_ = events_.top().time;
      for (; !events_.empty() && events_.top().time <= now_; events_.pop()) {
        if (events_.top().task >= 0) arrive(events_.top().task);
      }
    }
    return std::move(order_);
  }

 private:
  struct Event {
    double time = 0;
    std::int64_t task = -1;  // that has arrived; -1: something is free
    bool operator>(const Event& other) const { return std::tie(time, task) > std::tie(other.time, other.task); }
  };

  std::size_t nodes() const { return static_cast<std::size_t>(fabric_.nodes); }
  // The transfer up from a node, or down to it.
  std::int64_t task(std::uint32_t chunk, Rank node, bool up) const {
    return static_cast<std::int64_t>((chunk * nodes() + static_cast<std::size_t>(node)) * 2 + (up ? 1 : 0));
  }
  const Parents& tree(std::uint32_t chunk) const { return *trees_[chunk]; }

  static bool is_leaf(const Parents& parents, Rank node) {
    return parents[node] >= 0 && std::find(parents.begin(), parents.end(), node) == parents.end();
  }
  // As many chunks are on their way along a tree, up and down, as keep it busy, and as many again.
  static std::uint32_t window_of(const Parents& parents) {
    std::uint32_t deepest = 0;
    for (Rank node : parents) {
      std::uint32_t depth = 1;
      for (; node >= 0; node = parents[node]) ++depth;
      deepest = std::max(deepest, depth);
    }
    return 4 * deepest + 4;
  }

  void prepare(std::uint32_t chunk, bool reduces) {
    const Parents& parents = tree(chunk);
    for (Rank node = 0; node < fabric_.nodes; ++node) {
      const Rank parent = parents[node];
      if (parent < 0) continue;
      const bool of_root = parents[parent] < 0;
      if (!of_root || !reduces) waits_[task(chunk, node, false)] = of_root ? 0 : 1;
      if (!reduces) continue;
      if (!of_root) {
        ++waits_[task(chunk, parent, true)];
      } else {
        for (Rank other = 0; other < fabric_.nodes; ++other) {
          if (parents[other] == parent) ++waits_[task(chunk, node, false)];
        }
      }
    }
    for (Rank node = 0; paced_by_[chunk] >= 0 && node < fabric_.nodes; ++node) {
      if (is_leaf(parents, node)) ++waits_[task(chunk, node, true)];
    }
    for (Rank node = 0; node < fabric_.nodes; ++node) {
      if (parents[node] < 0) continue;
      for (const bool up : {false, true}) {
        if ((up && !reduces) || waits_[task(chunk, node, up)] > 0) continue;
        make_ready(task(chunk, node, up));
      }
    }
  }

  Transfer transfer_of(std::int64_t task) const {
    const bool up = task % 2 == 1;
    const auto node = static_cast<Rank>(task / 2 % fabric_.nodes);
    const auto chunk = static_cast<std::uint32_t>(task / 2 / fabric_.nodes);
    const Rank parent = tree(chunk)[node];
    const bool at_root = tree(chunk)[parent] < 0;
    const Rank from = up ? node : parent;
    const Rank to = up ? parent : node;
    const auto& through = fabric_.arc(from, to)->through;
    const int paced_by = up && is_leaf(tree(chunk), node) ? paced_by_[chunk] : -1;
    return {from, to, chunk, up, at_root, through.front(), through.back(), paced_by};
  }

  void make_ready(std::int64_t task) {
    const Transfer transfer = transfer_of(task);
    const auto arc = static_cast<std::size_t>(fabric_.arc(transfer.from, transfer.to) - fabric_.arcs.data());
    if (ready_[arc].empty()) waiting_.insert(arc);
    ready_[arc].emplace(urgency_[transfer.chunk] - haste_ * seconds_ahead(transfer), task);
  }

  double seconds_through(Rank from, Rank to) const {
    double slowest = 0;
    for (const std::uint32_t thing : fabric_.arc(from, to)->through) {
      slowest = std::max(slowest, 1 / fabric_.rates[thing]);
    }
    return slowest;
  }
  // By node: of the longest way down from there.
  std::vector<double> heights(const Parents& parents) const {
    std::vector<double> heights(parents.size(), 0);
    for (std::size_t node = 0; node < parents.size(); ++node) {
      double height = 0;
      for (auto below = static_cast<Rank>(node); parents[below] >= 0; below = parents[below]) {
        height += seconds_through(parents[below], below);
        double& above = heights[parents[below]];
        above = std::max(above, height);
      }
    }
    return heights;
  }
  // Of the longest way from there to the last node that waits for this transfer, itself included.
  double seconds_ahead(const Transfer& transfer) const {
    const Parents& parents = tree(transfer.chunk);
    const std::vector<double>& heights = height_of_tree_.at(&parents);
    double seconds = seconds_through(transfer.from, transfer.to);
    Rank turn = transfer.to;
    for (; transfer.up && parents[turn] >= 0; turn = parents[turn]) seconds += seconds_through(turn, parents[turn]);
    return seconds + heights[turn];
  }

  bool is_free(std::size_t arc) const {
    const auto& through = fabric_.arcs[arc].through;
    return std::all_of(through.begin(), through.end(), [&](std::uint32_t thing) { return free_[thing] <= now_; });
  }

  void dispatch() {
    std::vector<std::tuple<double, std::int64_t, std::size_t>> able;
    for (const std::size_t arc : waiting_) {
      if (is_free(arc)) able.emplace_back(ready_[arc].top().first, ready_[arc].top().second, arc);
    }
    std::sort(able.begin(), able.end());
    for (const auto& [urgency, task, arc] : able) {
      if (is_free(arc)) begin(task, arc);
    }
  }

  void begin(std::int64_t task, std::size_t arc) {
    ready_[arc].pop();
    if (ready_[arc].empty()) waiting_.erase(arc);
    numbers_[task] = static_cast<std::uint32_t>(order_.transfers.size());
    order_.moments.push_back({numbers_[task], false});
    order_.transfers.push_back(transfer_of(task));
    double slowest = 0;
    for (const std::uint32_t thing : fabric_.arcs[arc].through) {
      const double busy = 1 / fabric_.rates[thing];
      free_[thing] = now_ + busy;
      events_.push({free_[thing], -1});
      slowest = std::max(slowest, busy);
    }
    events_.push({now_ + slowest, task});
  }

  void arrive(std::int64_t arrived) {
    order_.seconds = now_;
    order_.moments.push_back({numbers_[arrived], true});
    const Transfer transfer = transfer_of(arrived);
    const Parents& parents = tree(transfer.chunk);
    const bool turns = transfer.up && parents[transfer.to] < 0;
    if (transfer.up && !turns) return one_less(task(transfer.chunk, transfer.to, true));
    const Rank above = transfer.to;
    const int paced = paces_[transfer.chunk];
    if (paced >= 0 && paced_by_[paced] >= 0 && is_leaf(parents, above))
      one_less(task(static_cast<std::uint32_t>(paced), above, true));
    for (Rank node = 0; node < fabric_.nodes; ++node) {
      if (parents[node] == above) one_less(task(transfer.chunk, node, false));
    }
  }

  void one_less(std::int64_t task) {
    if (--waits_[task] == 0) make_ready(task);
  }

  const Fabric& fabric_;
  const double haste_;  // a second
  std::map<const Parents*, std::vector<double>> height_of_tree_;
  std::vector<const Parents*> trees_;  // by chunk
  std::vector<int> paced_by_;          // by chunk: the earlier one of its tree whose result comes first
  std::vector<int> paces_;             // by chunk: the later one that it paces
  std::vector<double> urgency_;        // by chunk: what is less goes first
  double now_ = 0;
  std::vector<double> free_;  // by thing: when
  std::vector<int> waits_;    // by task: for so many
  std::vector<std::uint32_t> numbers_;  // by task: index of its transfer
  std::vector<std::priority_queue<std::pair<double, std::int64_t>, std::vector<std::pair<double, std::int64_t>>,
                                  std::greater<>>>
      ready_;  // by arc
  std::set<std::size_t> waiting_;  // arcs
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  TransferOrder order_;
};

}  // namespace

TransferOrder order_transfers(const Fabric& fabric, const Forest& forest, bool reduces, double haste) {
  return Scheduler(fabric, forest, reduces, haste).run();
}

TransferOrder played_backwards(TransferOrder down, bool reduces) {
  for (Transfer& transfer : down.transfers) {
    std::swap(transfer.from, transfer.to);
    std::swap(transfer.departs, transfer.arrives);
    transfer.up = reduces;
  }
  std::reverse(down.moments.begin(), down.moments.end());
  for (Moment& moment : down.moments) moment.arrives = !moment.arrives;
  return down;
}

}  // namespace ringcore::plan
