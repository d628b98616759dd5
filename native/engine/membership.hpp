// Who takes part in one epoch of a job, and what this rank is connected with them by.
//
// Every process has a place: the index of all that the engine keeps about it, given once in a job. A rank is what users and
// records call a member by: its index among the members of the epoch, in the order of their places. In the first epoch the
// places are the ranks; only this object knows that, everything else asks it.
//
// It owns the links. It opens and closes none itself: whoever composes the engine does. Among many most links
// have no connection before one of the two needs it: such a peer is not known yet, and what becomes of it others tell.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/types.hpp"
#include "transport/link.hpp"

namespace ringcore::engine {

using Place = std::int32_t;

// Another member, and how far the talk with it has come.
struct Peer {
  Place place = 0;
  Rank rank = 0;  // of the present epoch
  std::unique_ptr<transport::Link> link;
  std::uint32_t sent_records = 0;
  std::uint32_t received_records = 0;
  std::vector<std::byte> backlog;  // control bytes that the lane had no room for, or that are held
  std::size_t backlog_sent = 0;
  Nanoseconds last_sent = 0;
  Nanoseconds last_heard = 0;
  Nanoseconds last_asked = 0;
  Rank withheld_by = -1;  // whose data it waits for itself, and has for long, as its heart beat last; -1: nobody's
  Nanoseconds excused_until = 0;  // silent, but its host says that it only lacks a processor
  std::optional<Nanoseconds> failed_at;  // its link; what it has said last may still come
  bool is_neighbour = false;  // this rank and it watch each other all the time
  bool arriving = false;  // of the two one is no member yet
  bool newcomer = false;  // it was no member when it greeted, or has yet to greet
  bool turned_away = false;  // ... and will be none
  std::optional<std::vector<Place>> meets;  // it wants to be let in, and is connected with these
  std::optional<Nanoseconds> unmet_since;  // ... among whom a member is missing
  bool connected = false;  // it can be heard
  bool heard_out = false;  // all that it has said was read, and readiness tells when it says more
  bool is_known = false;  // this rank has greeted it, or will when they are connected
  bool greeted = false;
  std::vector<std::vector<std::byte>> ahead;  // what it has said in epochs that this rank has yet to hear of
  std::uint32_t greeted_in = 0;  // its epoch then: what it has written before that is nothing
  bool left = false;  // said goodbye
  bool gone = false;  // and its link's end has been noticed
  std::string farewell;  // why
  Rank first_left = 0;  // and who had before it, or itself
  bool saw_farewell = false;
  bool wants_stacks = false;
  // How much it had written into each lane before the present epoch, once it has said so.
  std::optional<std::array<std::uint64_t, transport::kLaneCount>> lanes_end;
};

class Membership {
 public:
  // `links` and `host_of` by place; the link of this rank's own place is null. `joins`: this rank is no member yet of a
  // job that runs; its members are those that it has links with.
  Membership(std::uint32_t epoch, Rank self, std::vector<std::unique_ptr<transport::Link>> links,
             std::vector<int> host_of, Nanoseconds now, bool joins = false);

  std::uint32_t epoch() const { return epoch_; }
  int size() const { return static_cast<int>(members_.size()); }
  // This rank; -1 while it is no member.
  Rank self() const { return rank_of(self_); }
  bool is_member() const { return self() >= 0; }
  Place own_place() const { return self_; }
  // All members, in ascending order.
  std::vector<Rank> ranks() const;
  const std::vector<Place>& members() const { return members_; }
  // How many places there are, those of former members included.
  int places() const { return static_cast<int>(host_of_.size()); }
  Place place_of(Rank rank) const { return members_[static_cast<std::size_t>(rank)]; }
  // -1 for who is no member.
  Rank rank_of(Place place) const;

  // A process that wants to become a member; which host it shares, it says later.
  void meet(Place place, std::unique_ptr<transport::Link> link, Nanoseconds now);
  void set_host(Place place, int host) { host_of_[static_cast<std::size_t>(place)] = host; }
  int host_at(Place place) const { return host_of_[static_cast<std::size_t>(place)]; }

  // From now on only these are members, of whom this rank is one. Gives away the others, whose links are still open, but
  // for those that may yet become members.
  std::vector<std::unique_ptr<Peer>> go_on_with(std::uint32_t epoch, std::vector<Place> members);

  // Null for this rank.
  Peer* peer(Rank rank) const { return by_place_[index_of(rank)].get(); }
  // Null for this rank, and for who neither is a member nor wants to become one.
  Peer* peer_at(Place place) const {
    const auto index = static_cast<std::size_t>(place);
    return index < by_place_.size() ? by_place_[index].get() : nullptr;
  }
  // All others, in the order of their places; who wants to become a member is among them, with rank -1.
  const std::vector<Peer*>& peers() const { return peers_; }
  // Those of them that this rank has a connection with, or wants one.
  // What is being looked through stays as it is when one more becomes known.
  std::span<Peer* const> known() const { return {known_first_.data(), known_}; }
  bool knows_all() const { return known_ == peers_.size(); }
  void get_to_know(Peer& peer);
  // Numbers the groups of members that share memory.
  int host(Rank rank) const { return host_of_[index_of(rank)]; }
  bool shares_host(Rank rank) const { return host(rank) == host(self()); }

  // Nobody was silent up to now: this rank could not hear.
  void excuse_silence(Nanoseconds now);
  // Closes all links. The members are still known.
  void disconnect();

 private:
  Peer& add_peer(Place place, std::unique_ptr<transport::Link> link, Nanoseconds now);
  std::size_t index_of(Rank rank) const { return static_cast<std::size_t>(place_of(rank)); }
  void number_members();

  std::uint32_t epoch_;
  Place self_;
  std::vector<Place> members_;  // in ascending order
  std::vector<int> host_of_;  // by place
  std::vector<std::unique_ptr<Peer>> by_place_;  // null at self, and where a member has been
  std::vector<Peer*> peers_;
  std::vector<Peer*> known_first_;
  std::size_t known_ = 0;
};

// With whom a rank is connected from the start, in ascending order, where a process set of all takes the tree (see
// agreement_tree.hpp): the ranks of its host, its neighbours in the tree, and those that it watches.
std::vector<Rank> connected_at_start(std::span<const int> host_of, Rank self, int direct_members);

}  // namespace ringcore::engine
