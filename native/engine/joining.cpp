// A process becomes a member of a job that runs.
//
// It has been connected with all members, each by a link of its own, while they went on, and with others that join. It is
// heard and watched as a member is, and has rank -1. When it has been greeted by all, and its caller is ready, it asks to
// be let in. The members do so where their callers say that it can go on with them from there: each tells the others, and
// when all have said so the agreement of view_change.hpp begins, in which nobody becomes a member whom not all who go on
// would let in. The links between the members stay as they are.
#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/elastic.hpp"

namespace ringcore::engine {

void Engine::meet(Place place, std::unique_ptr<transport::Link> link) {
  if (elastic_ == nullptr || failure_ != nullptr || left_) return;
  membership_.meet(place, std::move(link), clock_.now());
  links_changed_ = true;
  links_changed();
}

void Engine::become_member() {
  if (elastic_ != nullptr) elastic_->wants_in = true;
}

// What the others have to know before they let this rank in: that it can go on with all of them, and from which host.
void Engine::ask_to_be_let_in() {
  if (membership_.is_member()) return;
  std::vector<Place> met;
  bool with_members = false, all_greeted = true, all_placed = true;
  for (const Peer* peer : membership_.peers()) {
    // Whoever comes behind it may take long to greet: then this rank asks again.
    if (peer->left || (!peer->greeted && peer->newcomer && peer->place > membership_.own_place())) continue;
    with_members = with_members || !peer->newcomer;
    all_greeted = all_greeted && peer->greeted;
    all_placed = all_placed && membership_.host_at(peer->place) >= 0;
    met.push_back(peer->place);
  }
  if (!with_members) {
    throw Error(ErrorKind::kPeerLost,
                "all members of the job that this process was to join have ended or closed the connection: " +
                    describe_losses(membership_.members()));
  }
  if (!all_greeted || (!elastic_->tells_host && !choose_host())) return;
  if (!all_placed || !elastic_->wants_in || std::exchange(elastic_->has_asked, true)) return;
  const std::vector<std::byte> record = build_record(arrival(), {}, {}, std::as_bytes(std::span(met)));
  for (Peer* peer : membership_.peers()) send(*peer, record);
}

RecordHeader Engine::arrival() const {
  const Place own = membership_.own_place();
  return {.bytes = sizeof(RecordHeader),
          .type = RecordType::kArrival,
          .rows = static_cast<std::uint64_t>(own),
          .location = static_cast<std::uint64_t>(membership_.host_at(own))};
}

// That of those which it shares memory with, else one that nobody has: its place. Of two that join the one that came first
// chooses first, and tells the other. Returns false while that has to be waited for.
bool Engine::choose_host() {
  const Place own = membership_.own_place();
  std::vector<const Peer*> first;
  for (const Peer* peer : membership_.peers()) {
    if (!peer->left && (!peer->newcomer || peer->place < own)) first.push_back(peer);
  }
  const auto host_of = [this](const Peer* peer) { return membership_.host_at(peer->place); };
  if (std::ranges::any_of(first, [&](const Peer* peer) { return host_of(peer) < 0; })) return false;
  const auto beside = std::ranges::find_if(first, [](const Peer* peer) { return peer->link->sees_memory(); });
  const int host = beside == first.end() ? own : host_of(*beside);
  for (const Peer* peer : first) {
    if ((host_of(peer) == host) == peer->link->sees_memory()) continue;
    throw Error(ErrorKind::kInvalidArgument,
                "this process shares memory with some of the ranks of a host, and not with place " +
                    std::to_string(peer->place) + ", as they do. Remedy: set RINGCORE_TRANSPORT alike on all ranks.");
  }
  membership_.set_host(own, host);
  elastic_->tells_host = true;
  for (Peer* peer : membership_.peers()) {
    if (peer->newcomer) tell_host(*peer);
  }
  return true;
}

// To another one that joins, which has heard in a greeting at most that this process is no member.
void Engine::tell_host(Peer& peer) {
  if (elastic_->tells_host) send(peer, arrival(), {});
}

void Engine::receive_arrival(Peer& peer, const RecordView& record) {
  std::vector<Place> met(record.payload.size() / sizeof(Place));
  const std::uint64_t host = record.header.location;
  if (record.payload.size() % sizeof(Place) != 0 || host >= static_cast<std::uint64_t>(kMaxPlaces)) {
    throw Error(ErrorKind::kProtocol, "asked to be let in in a malformed record");
  }
  if (!peer.arriving && record.header.epoch < membership_.epoch()) return;  // and was let in since
  if (!peer.arriving || (!membership_.is_member() && !peer.newcomer)) {
    if (met.empty()) return;  // its greeting has told the same
    throw Error(ErrorKind::kProtocol, "is a member, and asked to be one");
  }
  membership_.set_host(peer.place, static_cast<int>(host));
  if (met.empty()) return;
  std::memcpy(met.data(), record.payload.data(), record.payload.size());
  std::ranges::sort(met);
  peer.meets = std::move(met);
}

bool Engine::asks(const Peer& peer) const {
  return membership_.is_member() && peer.arriving && !peer.turned_away && peer.meets;
}

bool Engine::has_met_all(const Peer& peer) const {
  return std::ranges::all_of(membership_.members(), [&](Place member) {
    return member == membership_.own_place() || std::ranges::binary_search(*peer.meets, member);
  });
}

std::vector<Place> Engine::arrivals() const {
  std::vector<Place> places;
  if (elastic_ == nullptr) return places;
  for (const Peer* peer : membership_.peers()) {
    if (asks(*peer) && has_met_all(*peer)) places.push_back(peer->place);
  }
  return places;
}

// Whoever came before it has been let in, and the two have not met: one was given up, and was only late. It has to come
// again.
void Engine::turn_away_who_misses_members(Nanoseconds now) {
  for (Peer* peer : membership_.peers()) {
    if (!asks(*peer) || has_met_all(*peer)) {
      peer->unmet_since.reset();
    } else if (now - peer->unmet_since.value_or(now) > patience_) {
      part_with(*peer, "has not met all ranks", false);
    } else if (!peer->unmet_since) {
      peer->unmet_since = now;
    }
  }
}

void Engine::let_in(std::optional<Place> place) {
  if (!goes_on_without_others() || failure_ != nullptr) return;
  if (elastic_->lets_in && elastic_->lets_in != place) elastic_->views.turn_away(*elastic_->lets_in);
  elastic_->lets_in = place;
  tell_let_in();
}

bool Engine::is_letting_in() const {
  if (elastic_ == nullptr || !elastic_->lets_in || failure_ != nullptr) return false;
  if (frozen() || draining()) return true;
  return !elastic_->has_failed && contains(arrivals(), *elastic_->lets_in);
}

// Said again in each epoch, until it is there.
void Engine::tell_let_in() {
  if (frozen() || !elastic_->lets_in) return;
  const Place place = *elastic_->lets_in;
  if (!contains(arrivals(), place)) return;
  const RecordHeader header{.bytes = sizeof(RecordHeader),
                            .type = RecordType::kLetIn,
                            .rows = static_cast<std::uint64_t>(place),
                            .location = 1};
  // Among many it is enough that the one knows that leads the agreement then.
  const bool to_all = size() <= settings_.direct_members;
  for (Peer* peer : membership_.peers()) {
    if (to_all ? peer->rank >= 0 : peer->rank == 0) send(*peer, header, {});
  }
  elastic_->views.expect(place);
  note_let_in(place, membership_.own_place());
}

void Engine::note_let_in(Place place, Place by) {
  Places& all = elastic_->let_in_by[place];
  insert(all, by);
  if (elastic_->lets_in != place || common(all, membership_.members()) < membership_.members().size()) return;
  elastic_->views.arrive(place);
  follow_views();
}

void Engine::receive_let_in(Peer& peer, const RecordView& record) {
  if (peer.rank < 0 || record.header.rows >= static_cast<std::uint64_t>(kMaxPlaces)) {
    throw Error(ErrorKind::kProtocol, "lets in place " + std::to_string(record.header.rows));
  }
  const auto place = static_cast<Place>(record.header.rows);
  if (record.header.location != 0) return note_let_in(place, peer.place);
  Peer* arriving = membership_.peer_at(place);
  if (arriving != nullptr && arriving->arriving) turn_away(*arriving, false);
}

// It speaks another language, or has other settings: that is no reason for the job, or for another one that joins, to end.
bool Engine::refuse_arrival(Peer& peer, const Error& error) {
  warnings_.push_back("a process that wanted to join this job, at place " + std::to_string(peer.place) +
                      ", was turned away, as it " + error.what());
  part_with(peer, error.what(), true);
  return true;
}

// Of the two one is no member yet, and the connection between them is lost: it will be none. Whoever waits for it, waits no
// more.
void Engine::turn_away(Peer& peer, bool ended) {
  peer.left = true;
  if (ended || peer.link->peer_has_ended()) {
    elastic_->views.prove_ended(peer.place);
  } else {
    elastic_->views.suspect(peer.place);
  }
  if (!std::exchange(peer.turned_away, true) && membership_.is_member()) tell_turned_away(peer.place);
  follow_views();
}

void Engine::tell_turned_away(Place place) {
  const RecordHeader header{
      .bytes = sizeof(RecordHeader), .type = RecordType::kLetIn, .rows = static_cast<std::uint64_t>(place)};
  for (Peer* member : membership_.peers()) {
    if (member->rank >= 0) send(*member, header, {});
  }
}

}  // namespace ringcore::engine
