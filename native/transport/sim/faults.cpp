// What goes wrong in the simulated network.
#include <algorithm>
#include <set>
#include <vector>

#include "transport/sim/network.hpp"

namespace ringcore::transport {

// Of what is on its way, each lane loses everything from a random point on.
void SimNetwork::lose_tail(Rank from, Rank to) {
  for (int lane = 0; lane < kLaneCount; ++lane) {
    std::vector<std::set<Event>::iterator> pending;
    for (auto event = events_.begin(); event != events_.end(); ++event) {
      const bool same = event->from == from && event->to == to && event->lane == lane;
      if (same && event->kind == EventKind::kDelivery) pending.push_back(event);
    }
    // What was put off for a rank that pauses is behind what was sent later, and still comes first.
    std::ranges::sort(pending, {}, [](const auto& event) { return event->sequence; });
    for (std::size_t i = random_below(pending.size() + 1); i < pending.size(); ++i) events_.erase(pending[i]);
  }
}

void SimNetwork::kill(Rank rank) {
  if (dead_[static_cast<std::size_t>(rank)]) return;
  dead_[static_cast<std::size_t>(rank)] = true;
  for (Rank peer = 0; peer < ranks_; ++peer) {
    if (peer == rank) continue;
    lose_tail(rank, peer);
    if (is_open(peer, rank, kControlLane)) fail_later(peer, rank, "closed the connection");
  }
}

void SimNetwork::kill_at_write(Rank rank, std::uint64_t writes) {
  writes_left_[static_cast<std::size_t>(rank)] = writes;
}

void SimNetwork::cut(Rank a, Rank b) {
  if (!is_open(a, b, kControlLane) && !is_open(b, a, kControlLane)) return;
  lose_tail(a, b);
  lose_tail(b, a);
  // What is written before the reset is noticed must not arrive behind the gap.
  connection(a, b).silent = true;
  connection(b, a).silent = true;
  fail_later(a, b, "reset the connection");
  fail_later(b, a, "reset the connection");
}

void SimNetwork::end_data(Rank from, Rank to) {
  Connection& end = connection(to, from);
  end.data_has_ended = !end.failure;
  if (!end.failure) end.failure = "closed the connection";
}

void SimNetwork::pause(Rank rank, Nanoseconds duration) {
  Nanoseconds& until = paused_until_[static_cast<std::size_t>(rank)];
  until = std::max(until, clock_.now() + duration);
  // Something must happen at its end, or a rank with work to do would not be driven again.
  schedule({.time = until, .kind = EventKind::kRoom, .from = rank, .to = rank});
}

void SimNetwork::starve(Rank rank, Nanoseconds duration) {
  pause(rank, duration);
  starved_until_[static_cast<std::size_t>(rank)] = paused_until_[static_cast<std::size_t>(rank)];
}

void SimNetwork::silence(Rank from, Rank to) {
  connection(to, from).silent = true;
  std::erase_if(events_, [&](const Event& event) {
    return event.kind == EventKind::kDelivery && event.from == from && event.to == to;
  });
}

void SimNetwork::delay(Rank from, Rank to, int lane, Nanoseconds duration) {
  Stream& stream = connection(to, from).lanes[lane];
  stream.last_delivery = std::max(stream.last_delivery, clock_.now() + duration);
}

bool SimNetwork::tamper(Rank from, Rank to) {
  return connection(to, from).tampered = connection(from, to).secured != nullptr;
}

void SimNetwork::refuse_lanes(Rank a, Rank b) {
  connection(a, b).refuses_lanes = connection(b, a).refuses_lanes = true;
}

}  // namespace ringcore::transport
