// Members of an elastic job are lost, and the others go on.
#include "engine/elastic.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace ringcore::engine {
namespace {

using LaneBytes = std::array<std::uint64_t, transport::kLaneCount>;

}  // namespace

bool Engine::frozen() const {
  return elastic_ != nullptr && (elastic_->views.changing() || elastic_->noticed != nullptr || epoch_ends());
}

bool Engine::epoch_ends() const {
  if (elastic_ == nullptr || elastic_->views.view().epoch == membership_.epoch()) return false;
  return membership_.is_member() || elastic_->views.is_member();  // who joins hears of epochs before its first one
}

bool Engine::draining() const { return elastic_ != nullptr && elastic_->draining; }

bool Engine::goes_on_without_others() const { return elastic_ != nullptr && !left_; }

// The job goes on without the peer, if enough of the others agree. `ended`: it takes no more part itself.
void Engine::part_with(Peer& peer, const std::string& why, bool ended) {
  elastic_->reasons.try_emplace(peer.place, why);
  if (peer.arriving) return turn_away(peer, ended);
  if (ended || peer.link->peer_has_ended()) {
    elastic_->views.prove_ended(peer.place);
  } else {
    // It may only be stopped, and would go on writing into this rank's memory later.
    if (peer.link->sees_memory()) peer.link->end_peer();
    elastic_->views.suspect(peer.place);
  }
  follow_views();
}

void Engine::receive_view(Peer& peer, const RecordView& record) {
  if (left_) {
    // Who changes the view stands still, and this rank's trees with it: their ends do not come.
    if (goodbye_ && !said_goodbye_) tell_goodbye();
    return;
  }
  elastic_->views.receive(peer.place, decode_view_message(record.payload));
  follow_views();
}

// After whatever the agreement was told: first this rank stands still, then the others learn what it has to say.
void Engine::follow_views() {
  if (frozen() && !elastic_->frozen) freeze();
  for (const auto& [to, message] : elastic_->views.take_outbox()) {
    std::vector<std::byte> bytes = encode(message);
    if (to == kWitness) {
      elastic_->for_witness.push_back(std::move(bytes));
    } else if (Peer* peer = membership_.peer_at(to); peer != nullptr) {
      send(*peer, build_record({.type = RecordType::kView}, {}, {}, bytes));
    }
  }
}

void Engine::freeze() {
  stand_still();
  elastic_->frozen = true;
  elastic_->frozen_since = clock_.now();
  for (const Peer* peer : membership_.peers()) {
    if (!peer->left || peer->turned_away) continue;
    elastic_->reasons.try_emplace(peer->place, leaving(*peer).what);
    elastic_->views.prove_ended(peer->place);
  }
}

// A carrier cannot go on. Its library may have noticed that a member is gone: who that is shows on the links soon, and
// this rank does nothing more in this epoch until then.
void Engine::give_up_carrier(const Error& error) {
  if (!goes_on_without_others() || error.kind() != ErrorKind::kPeerLost) {
    return fail(std::make_shared<const Error>(error));
  }
  elastic_->noticed = std::make_shared<const Error>(error);
  follow_views();
  elastic_->noticed_at = clock_.now();  // ending what a library has under way may take long
}

// No rank is missed: all go on, without what has failed this one.
void Engine::give_up_backends(const Error& error) {
  if (!goes_on_without_others()) return fail(std::make_shared<const Error>(error));
  warnings_.emplace_back(error.what());
  const Nanoseconds now = clock_.now();
  timeline_.record({"network", error.what(), transport::kControlLane, -1, now, now, 0});
  elastic_->views.give_up_backends();
  follow_views();
}

void Engine::advance_views(Nanoseconds now) {
  turn_away_who_misses_members(now);
  elastic_->views.check_timers(now);
  follow_views();
  begin_epoch();
  if (failure_ != nullptr) return;
  // Nobody is missed after the time that everybody may be silent: it is this rank that cannot work with the others.
  const bool changes = elastic_->views.changing() || epoch_ends();
  if (elastic_->noticed != nullptr && !changes && now - elastic_->noticed_at > 2 * patience_) {
    return fail(elastic_->noticed);
  }
  if (!frozen() || now - elastic_->frozen_since <= settings_.elastic_timeout) return;
  const std::string limit = std::to_string(settings_.elastic_timeout / kMillisecond) + " ms";
  fail(std::make_shared<const Error>(
      ErrorKind::kEvicted,
      describe_losses(membership_.members()) + ". For " + limit + " rank " + std::to_string(rank()) +
          " has reached too few of the others to go on with them. Remedy: look at the output of those ranks and at the "
          "network; if they all have ended, start the job again from its last checkpoint."));
}

// "rank 2 closed the connection; ...": in the words of the present epoch, of those who are lost.
std::string Engine::describe_losses(const std::vector<Place>& of) const {
  std::string text;
  for (const Place place : of) {
    const auto reason = elastic_->reasons.find(place);
    if (place == membership_.own_place()) continue;
    if (reason == elastic_->reasons.end() && of.size() == membership_.members().size()) continue;
    text += (text.empty() ? "rank " : "; rank ") + std::to_string(membership_.rank_of(place)) + " " +
            (reason == elastic_->reasons.end() ? "was lost, as others have seen" : reason->second);
  }
  return text.empty() ? "another rank was lost" : text;
}

// Whether those who are no members any more can write nothing into the memory of this rank.
bool Engine::are_fenced(const std::vector<Place>& former) const {
  return std::all_of(former.begin(), former.end(), [this](Place place) {
    const Peer* peer = membership_.peer_at(place);
    if (peer == nullptr || peer->left || !peer->link->sees_memory() || peer->link->peer_has_ended()) return true;
    // Others have seen it go: it may have left in order, and its goodbye be on its way. Who stops before that is lost.
    if (elastic_->views.has_ended(place)) return false;
    return !peer->link->end_peer();
  });
}

// The world of the view that was installed, if there is a new one.
bool Engine::begin_epoch() {
  if (!goes_on_without_others() || failure_ != nullptr || !epoch_ends()) return false;
  const View view = elastic_->views.view();
  std::vector<Place> lost;
  std::ranges::set_difference(membership_.members(), view.members, std::back_inserter(lost));
  // Nobody has done anything yet with the memory of who is no member before.
  if (membership_.is_member() && !are_fenced(lost)) {
    // Nobody else is listened to before that.
    for (const Place member : view.members) {
      if (Peer* peer = membership_.peer_at(member); peer != nullptr) peer->last_heard = timers_checked_;
    }
    return false;
  }
  elastic_->views.is_member() ? go_on_with(view, lost) : be_evicted(view);
  if (failure_ != nullptr) return true;
  tell_let_in();
  hear_ahead();
  return true;
}

void Engine::be_evicted(const View& view) {
  fail(std::make_shared<const Error>(
      ErrorKind::kEvicted, "the other ranks have lost rank " + std::to_string(rank()) + " and go on without it, as " +
                               std::to_string(view.members.size()) + " of " + std::to_string(size()) +
                               ". Remedy: look why this rank was silent, or could not be reached; shutdown() and "
                               "init() make this process usable again."));
}

void Engine::go_on_with(const View& view, const std::vector<Place>& lost) {
  const bool gives_up = view.plans_only && !std::exchange(elastic_->plans_only, true);
  std::string why = gives_up && lost.empty() ? "" : describe_losses(lost);
  if (gives_up) why += std::string(why.empty() ? "" : "; ") + "the switch was given up";
  const int before = membership_.is_member() ? size() : 0;
  elastic_->joins = before == 0;
  std::vector<Place> joined;
  std::ranges::set_difference(view.members, membership_.members(), std::back_inserter(joined));
  const UnderWay under_way = elastic_->views.take_under_way();
  const std::vector<std::shared_ptr<Operation>> again = take_repeated(under_way);
  std::vector<std::pair<ProcessSetId, std::vector<Place>>> sets;
  for (const auto& [id, set] : sets_) {
    if (id == kWorld) continue;
    sets.emplace_back(id, std::vector<Place>());
    for (const Rank member : set->negotiation.members()) sets.back().second.push_back(membership_.place_of(member));
  }
  sets.emplace_back(kWorld, view.members);
  for (auto& peer : membership_.go_on_with(view.epoch, view.members)) elastic_->former.push_back(std::move(peer));
  links_changed_ = true;
  const std::shared_ptr<const Error> change = describe_change(why, joined, before);
  if (before > 0) elastic_->change = change;
  elastic_->members_of.emplace(view.epoch, view.members);
  elastic_->has_failed = before > 0 && (elastic_->has_failed || !under_way.repeats);
  drop_world(*change);
  tell_lanes();
  for (const auto& peer : elastic_->former) {
    if (before == 0 && peer->turned_away) tell_turned_away(peer->place);
  }
  for (const auto& [id, members] : sets) {
    std::vector<Rank> ranks;
    for (const Place place : members) {
      if (const Rank member = membership_.rank_of(place); member >= 0) ranks.push_back(member);
    }
    make_process_set(id, std::move(ranks));
    sets_.at(id)->released = under_way.released_in(id);
  }
  repeat(again);
}

std::shared_ptr<const Error> Engine::describe_change(const std::string& lost, const Places& joined, int before) const {
  std::vector<Rank> ranks;
  for (const Place place : joined) ranks.push_back(membership_.rank_of(place));
  const bool has_lost = before + static_cast<int>(joined.size()) > size() || joined.empty();
  const std::string come =
      joined.empty() ? "" : list_ranks(ranks) + (joined.size() == 1 ? " has" : " have") + " joined";
  return std::make_shared<const Error>(
      ErrorKind::kMembershipChanged,
      (has_lost ? lost : "") + (has_lost && !joined.empty() ? "; " : "") + come + ". The job goes on with " +
          std::to_string(size()) + (joined.empty() ? " of " : " ranks instead of ") + std::to_string(before) +
          (joined.empty() ? " ranks" : "") + ", where this is rank " + std::to_string(rank()) +
          ". Remedy: go back to the last state that all ranks have, and repeat the "
          "step; ringcore.elastic.run does so.");
}

// Whatever is still under way ends with the error.
void Engine::drop_world(const Error& error) {
  const auto of = [&error](const Operation& operation) {
    return std::make_shared<const Error>(error.kind(), title(operation) + ": " + error.what());
  };
  standstill_ = {.all = Standstills(static_cast<std::size_t>(size()))};
  elastic_->excused.clear();
  for (auto& [id, set] : sets_) {
    for (const auto& [name_hash, operation] : set->operations) fail_operation(operation, of(*operation));
    set->operations.clear();
    if (set->join != nullptr) end_join(*set, of(*set->join));
  }
  sets_.clear();
  removed_sets_.clear();
  early_records_.clear();
  early_bytes_ = 0;
  elastic_->reasons.clear();
  elastic_->let_in_by.clear();
  elastic_->noticed = nullptr;
  elastic_->frozen = elastic_->still = elastic_->views.changing();
}

void Engine::accept_change(std::uint32_t epoch) {
  if (elastic_ == nullptr || epoch != membership_.epoch()) return;
  elastic_->change = nullptr;
  elastic_->has_failed = false;
  // Of a change that is on its way the caller has yet to hear.
  if (!elastic_->still) elastic_->lost_results = false;
  elastic_->former.clear();
}

const std::vector<Place>& Engine::members_of(std::uint32_t epoch) const {
  const bool is_known = elastic_ != nullptr && elastic_->members_of.contains(epoch);
  return is_known ? elastic_->members_of.at(epoch) : membership_.members();
}

bool Engine::settle_devices() {
  if (lost_results()) return elastic_->change != nullptr;
  bool settled = true;
  for (auto& [id, set] : sets_) {
    bool waits = false;
    for (const auto& [name_hash, operation] : set->operations) {
      if (!operation->descriptor.on_device) continue;
      waits = true;
      wanted(*operation, false);
    }
    settled = settled && !waits && set->schedule.drained();
  }
  return settled;
}

bool Engine::lost_results() const { return elastic_ != nullptr && elastic_->lost_results; }

std::shared_ptr<const Error> Engine::change() const { return elastic_ == nullptr ? nullptr : elastic_->change; }

// How much this rank has written into each lane, as half a transfer may be the last of it; and how it counts process sets.
void Engine::tell_lanes() {
  elastic_->draining = true;
  for (Peer* peer : membership_.peers()) {
    if (peer->rank < 0) continue;
    LaneBytes written{};
    for (int lane = transport::kFirstDataLane; lane < transport::kLaneCount; ++lane) {
      transport::LaneUse& use = peer->link->lane_use(lane);
      use = {.written = use.written, .taken = use.taken};
      written[static_cast<std::size_t>(lane)] = use.written;
    }
    peer->lanes_end.reset();
    if (peer->greeted_in == membership_.epoch()) peer->lanes_end.emplace();
    if (!peer->is_known) continue;
    const std::vector<std::uint16_t> counted = set_numbers_.counted();  // there may be none
    const std::span<const std::byte> behind = std::as_bytes(std::span(counted));
    std::vector<std::byte> told(sizeof(written) + behind.size());
    std::memcpy(told.data(), written.data(), sizeof(written));
    std::ranges::copy(behind, told.begin() + sizeof(written));
    send(*peer, build_record({.type = RecordType::kLanes}, {}, {}, told));
  }
}

void Engine::receive_lanes(Peer& peer, const RecordView& record) {
  LaneBytes written{};
  if (record.payload.size() < sizeof(written)) throw Error(ErrorKind::kProtocol, "has other lanes");
  std::memcpy(written.data(), record.payload.data(), sizeof(written));
  const std::span<const std::byte> behind = record.payload.subspan(sizeof(written));
  std::vector<std::uint16_t> counted(behind.size() / sizeof(std::uint16_t));
  std::ranges::copy_n(behind.begin(), static_cast<std::ptrdiff_t>(counted.size() * sizeof(std::uint16_t)),
                      std::as_writable_bytes(std::span(counted)).begin());
  set_numbers_.follow(counted, std::exchange(elastic_->joins, false));
  peer.lanes_end = written;
}

// Whoever is connected with this rank may have written something in an epoch before, until it has said how much.
bool Engine::may_hold_old_data(const Peer& peer) {
  if (peer.rank < 0 || peer.lanes_end) return false;
  for (int lane = 0; lane < transport::kLaneCount; ++lane) {
    if (peer.link->has(lane)) return true;
  }
  return false;
}

// Drops what the others had written before this epoch; nothing runs until it is gone.
bool Engine::drain_lanes() {
  bool moved = false;
  elastic_->draining = false;
  for (Peer* peer : membership_.peers()) {
    if (peer->rank < 0 || (!peer->lanes_end && !may_hold_old_data(*peer))) continue;
    for (int lane = transport::kFirstDataLane; lane < transport::kLaneCount; ++lane) {
      transport::LaneUse& use = peer->link->lane_use(lane);
      const std::uint64_t end = peer->lanes_end ? (*peer->lanes_end)[static_cast<std::size_t>(lane)] : UINT64_MAX;
      while (peer->lanes_end && use.taken < end) {
        const std::size_t bytes = std::min<std::uint64_t>(peer->link->peek(lane).size(), end - use.taken);
        if (bytes == 0) break;
        peer->link->consume(lane, bytes);
        use.taken += bytes;
        moved = true;
      }
      elastic_->draining = elastic_->draining || use.taken < end;
    }
  }
  return moved;
}

Nanoseconds Engine::waited_for_others() const { return elastic_ == nullptr ? 0 : elastic_->waited; }

// All have announced what this rank has: until now it has waited, as it has announced nothing else since.
void Engine::note_released(const ProcessSet& set) {
  if (set.id == kWorld) elastic_->excused.clear();
  const Nanoseconds now = clock_.now();
  elastic_->waited += now - elastic_->waits_since;
  elastic_->waits_since = now;
}

bool Engine::asks_witness() const { return elastic_ != nullptr && !elastic_->for_witness.empty(); }

void Engine::hear_witness(std::span<const std::byte> message) {
  if (!goes_on_without_others() || failure_ != nullptr) return;
  elastic_->views.receive(kWitness, decode_view_message(message));
  follow_views();
}

void Engine::lose_witness() {
  if (!goes_on_without_others() || failure_ != nullptr) return;
  elastic_->views.lose_witness();
  follow_views();
}

std::vector<std::vector<std::byte>> Engine::take_for_witness() {
  return elastic_ == nullptr ? std::vector<std::vector<std::byte>>() : std::exchange(elastic_->for_witness, {});
}

}  // namespace ringcore::engine
