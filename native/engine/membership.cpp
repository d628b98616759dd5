#include "engine/membership.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/error.hpp"
#include "engine/tree_shape.hpp"

namespace ringcore::engine {
namespace {

// How many on either side of a member, in the circle of places, are its neighbours: two of them may be lost at once.
constexpr int kNeighbours = 2;

bool are_neighbours(Place a, Place b, int size) {
  const int distance = std::abs(a - b);
  return std::min(distance, size - distance) <= kNeighbours;
}

}  // namespace

Membership::Membership(std::uint32_t epoch, Rank self, std::vector<std::unique_ptr<transport::Link>> links,
                       std::vector<int> host_of, Nanoseconds now)
    : epoch_(epoch), self_(place_of(self)), host_of_(std::move(host_of)), by_place_(links.size()) {
  if (links.size() != host_of_.size()) {
    throw Error(ErrorKind::kInvalidArgument, "a job of " + std::to_string(host_of_.size()) + " ranks was given " +
                                                 std::to_string(links.size()) + " links");
  }
  for (std::size_t place = 0; place < links.size(); ++place) {
    if (links[place] == nullptr) continue;
    auto peer = std::make_unique<Peer>();
    peer->rank = rank_of(static_cast<Place>(place));
    peer->link = std::move(links[place]);
    peer->last_sent = peer->last_heard = now;
    peer->is_neighbour = are_neighbours(self_, static_cast<Place>(place), size());
    peers_.push_back(peer.get());
    by_place_[place] = std::move(peer);
  }
  known_first_ = peers_;
}

void Membership::get_to_know(Peer& peer) {
  peer.is_known = true;
  std::iter_swap(std::ranges::find(known_first_, &peer), known_first_.begin() + static_cast<std::ptrdiff_t>(known_++));
}

std::vector<Rank> Membership::ranks() const {
  std::vector<Rank> ranks;
  ranks.reserve(static_cast<std::size_t>(size()));
  for (Place place = 0; place < size(); ++place) ranks.push_back(rank_of(place));
  return ranks;
}

void Membership::excuse_silence(Nanoseconds now) {
  for (Peer* peer : peers_) peer->last_heard = now;
}

void Membership::disconnect() {
  known_ = 0;
  known_first_.clear();
  peers_.clear();
  for (auto& peer : by_place_) peer = nullptr;
}

std::vector<Rank> connected_at_start(std::span<const int> host_of, Rank self, int direct_members) {
  const int size = static_cast<int>(host_of.size());
  const TreeShape shape = TreeShape::make(host_of, self);
  std::vector<bool> wanted(host_of.size(), size <= direct_members);
  for (Rank rank = 0; rank < size; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    const bool shares_host = host_of[index] == host_of[static_cast<std::size_t>(self)];
    if (shares_host || are_neighbours(self, rank, size) || rank == shape.parent) wanted[index] = true;
  }
  for (const TreeShape::Child& child : shape.children) wanted[static_cast<std::size_t>(child.member)] = true;
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < size; ++rank) {
    if (rank != self && wanted[static_cast<std::size_t>(rank)]) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace ringcore::engine
