#include "engine/membership.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/error.hpp"

namespace ringcore::engine {

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
    peer->is_neighbour = are_neighbours(self_, static_cast<Place>(place));
    peers_.push_back(peer.get());
    by_place_[place] = std::move(peer);
  }
}

bool Membership::are_neighbours(Place a, Place b) const {
  const int distance = std::abs(a - b);
  return std::min(distance, size() - distance) <= kNeighbours;
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
  peers_.clear();
  for (auto& peer : by_place_) peer = nullptr;
}

}  // namespace ringcore::engine
