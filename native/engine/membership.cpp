#include "engine/membership.hpp"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "base/error.hpp"
#include "engine/tree_shape.hpp"

namespace ringcore::engine {
namespace {

// How many on either side of a member, in the circle of ranks, are its neighbours: two of them may be lost at once.
constexpr int kNeighbours = 2;

bool are_neighbours(Rank a, Rank b, int size) {
  const int distance = std::abs(a - b);
  return std::min(distance, size - distance) <= kNeighbours;
}

}  // namespace

Membership::Membership(std::uint32_t epoch, Rank self, std::vector<std::unique_ptr<transport::Link>> links,
                       std::vector<int> host_of, Nanoseconds now, bool joins)
    : epoch_(epoch), self_(self), host_of_(std::move(host_of)), by_place_(links.size()) {
  if (links.size() != host_of_.size()) {
    throw Error(ErrorKind::kInvalidArgument, "a job of " + std::to_string(host_of_.size()) + " ranks was given " +
                                                 std::to_string(links.size()) + " links");
  }
  for (std::size_t place = 0; place < links.size(); ++place) {
    if (links[place] != nullptr || !joins) members_.push_back(static_cast<Place>(place));
    if (links[place] != nullptr) add_peer(static_cast<Place>(place), std::move(links[place]), now).arriving = joins;
  }
  number_members();
}

Peer& Membership::add_peer(Place place, std::unique_ptr<transport::Link> link, Nanoseconds now) {
  auto peer = std::make_unique<Peer>();
  peer->place = place;
  peer->link = std::move(link);
  peer->last_sent = peer->last_heard = now;
  return *(by_place_[static_cast<std::size_t>(place)] = std::move(peer));
}

void Membership::meet(Place place, std::unique_ptr<transport::Link> link, Nanoseconds now) {
  const auto index = static_cast<std::size_t>(place);
  if (place < 0 || (index < by_place_.size() && by_place_[index] != nullptr) || rank_of(place) >= 0) {
    throw Error(ErrorKind::kInvalidArgument, "place " + std::to_string(place) + " of the job is taken");
  }
  const std::size_t places = std::max(index + 1, by_place_.size());
  by_place_.resize(places);
  host_of_.resize(places, -1);
  Peer& peer = add_peer(place, std::move(link), now);
  peer.arriving = peer.newcomer = true;  // whoever was there before it is not met so
  number_members();
}

Rank Membership::rank_of(Place place) const {
  const auto found = std::ranges::lower_bound(members_, place);
  return found != members_.end() && *found == place ? static_cast<Rank>(found - members_.begin()) : -1;
}

void Membership::number_members() {
  peers_.clear();
  for (const auto& peer : by_place_) {
    if (peer == nullptr) continue;
    peer->rank = rank_of(peer->place);
    peer->withheld_by = -1;
    peer->arriving = peer->arriving && (peer->rank < 0 || !is_member());
    peer->is_neighbour = peer->arriving || are_neighbours(self(), peer->rank, size());
    peers_.push_back(peer.get());
  }
  known_first_ = peers_;
  const auto strangers = std::ranges::stable_partition(known_first_, [](const Peer* peer) { return peer->is_known; });
  known_ = known_first_.size() - strangers.size();
}

std::vector<std::unique_ptr<Peer>> Membership::go_on_with(std::uint32_t epoch, std::vector<Place> members) {
  const bool was_member = is_member();
  epoch_ = epoch;
  members_ = std::move(members);
  std::vector<std::unique_ptr<Peer>> former;
  for (auto& peer : by_place_) {
    if (peer == nullptr || rank_of(peer->place) >= 0) continue;
    const bool may_join = (was_member || peer->newcomer) && peer->arriving && !peer->turned_away;
    if (!may_join) former.push_back(std::move(peer));
  }
  number_members();
  return former;
}

void Membership::get_to_know(Peer& peer) {
  peer.is_known = true;
  std::iter_swap(std::ranges::find(known_first_, &peer), known_first_.begin() + static_cast<std::ptrdiff_t>(known_++));
}

std::vector<Rank> Membership::ranks() const {
  std::vector<Rank> ranks(members_.size());
  std::iota(ranks.begin(), ranks.end(), Rank{0});
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
