#include "engine/view_change.hpp"

#include <algorithm>

namespace ringcore::engine {

using Type = ViewMessage::Type;

ViewChange::ViewChange(View view, Place self, bool has_witness, Nanoseconds retry,
                       std::function<UnderWay()> stand_still, std::size_t direct_members)
    : view_(std::move(view)),
      since_{view_},
      self_(self),
      has_witness_(has_witness),
      has_had_witness_(has_witness),
      direct_members_(direct_members),
      retry_(retry),
      stand_still_(std::move(stand_still)) {
  acceptor_.begin_after(view_.epoch);
}

void ViewChange::suspect(Place place) {
  if (lost(place)) return;
  insert(suspects_, place);
  // Also whoever is suspected has to know, and who waits for this rank: members, and who arrives of whoever may have asked it in
  // vain. Of who is no member it is enough to hear it later.
  if (contains(view_.members, place)) {
    if (is_member()) {
      freeze();
    } else if (!leaves_ && !evicted_) {
      send(place, said(Type::kFreeze));
    }
  }
  go_on();
}

// Those who cannot see it need to know, and whoever was told first may end before it has told all.
void ViewChange::prove_ended(Place place) {
  if (contains(ended_, place)) return;
  insert(ended_, place);
  yielding_.clear();  // fewer may be enough now
  if (is_member() && contains(view_.members, place)) freeze();
  go_on();
}

void ViewChange::lose_witness() {
  has_witness_ = false;
  go_on();
}

void ViewChange::arrive(Place place) {
  expect(place);
  want();
}

void ViewChange::expect(Place place) {
  if (contains(view_.members, place) || contains(arriving_, place)) return;
  insert(arriving_, place);
  if (phase_ == Phase::kPreparing) ask(place);
}

void ViewChange::turn_away(Place place) { std::erase(arriving_, place); }

void ViewChange::leave() {
  leaves_ = true;
  want();
}

void ViewChange::give_up_backends() {
  plans_only_ = true;
  want();
}

bool ViewChange::anything_wanted() const {
  const auto is_lost = [this](Place place) { return lost(place); };
  const bool arrives = std::any_of(arriving_.begin(), arriving_.end(), [&](Place place) { return !is_lost(place); });
  // An older proposal that was adopted may not say so.
  const bool gives_up = plans_only_ && !view_.plans_only;
  return leaves_ || arrives || gives_up || std::any_of(view_.members.begin(), view_.members.end(), is_lost);
}

void ViewChange::want() {
  if (wanted_ || !is_member() || !anything_wanted()) return go_on();
  freeze();
  go_on();
}

void ViewChange::freeze() {
  wanted_ = true;
  for (const Place member : told_by_this(view_.members)) send(member, said(Type::kFreeze));
}

// All, or among many those at distances of 1, 2, 4 ... on their circle: each has two of them for every halving, so that what
// some do not pass on comes by others. Whoever is suspected does not hear of it otherwise.
Places ViewChange::told_by_this(const Places& places) const {
  if (tells_all(places)) return places;
  Places told;
  const auto own = static_cast<std::size_t>(std::ranges::lower_bound(places, self_) - places.begin());
  for (std::size_t distance = 1; distance < places.size(); distance *= 2) {
    insert(told, places[(own + distance) % places.size()]);
    insert(told, places[(own + places.size() - distance) % places.size()]);
  }
  for (const Place place : suspects_) {
    if (contains(places, place)) insert(told, place);
  }
  return told;
}

// Whoever waits for a leader finds out whether it is there. When it is not, so may be others of its host: twice as many of
// those who would lead then are looked for at once, each time.
void ViewChange::meet_leader() {
  if (tells_all(view_.members) || contains(met_, leader())) return;
  for (std::size_t more = met_.size() + 1; const Place member : view_.members) {
    if (member == self_ || more == 0) return;
    if (lost(member) || contains(met_, member)) continue;
    insert(met_, member);
    send(member, said(Type::kFreeze));
    --more;
  }
}

// The lowest member that is not lost, and of those one that has not led in vain while there is any.
Place ViewChange::leader() const {
  Place lowest = self_;
  for (const Place member : view_.members) {
    if (lost(member)) continue;
    if (!contains(yielding_, member)) return member;
    lowest = std::min(lowest, member);
  }
  return lowest;
}

ViewMessage ViewChange::said(Type type) const {
  ViewMessage message;
  message.type = type;
  message.epoch = view_.epoch;
  message.committed = committed_;
  message.leaves = leaves_;
  message.plans_only = plans_only_;
  message.yields = contains(yielding_, self_);
  message.suspects = suspects_;
  message.ended = ended_;
  message.arriving = arriving_;
  return message;
}

ViewMessage ViewChange::promise() const {
  ViewMessage message = said(Type::kPromise);
  if (stand_still_ && is_member()) message.under_way = stand_still_();
  message.proposal = acceptor_.accepted();
  return message;
}

void ViewChange::send(Place to, ViewMessage message) {
  if (to == self_ || contains(ended_, to) || (to == kWitness && !has_witness_)) return;
  outbox_.push_back({to, std::move(message)});
}

void ViewChange::go_on() {
  if (!wanted_ || !is_member()) return;
  if (leader() != self_) {
    phase_ = Phase::kFollowing;
    return meet_leader();
  }
  if (phase_ == Phase::kFollowing && now_ >= not_before_) begin();
  if (phase_ == Phase::kPreparing) try_to_propose();
  if (phase_ == Phase::kProposing) try_to_install();
}

void ViewChange::begin(bool with_witness) {
  newest_ballot_ = std::max(newest_ballot_, acceptor_.promised());
  ballot_ = (newest_ballot_ / kMaxPlaces + 1) * kMaxPlaces + static_cast<std::uint32_t>(self_);
  newest_ballot_ = ballot_;
  acceptor_.promise(ballot_);
  phase_ = Phase::kPreparing;
  asked_witness_ = with_witness;
  answers_.clear();
  answers_.emplace(self_, promise());
  for (const Place member : view_.members) ask(member);
  for (const Place place : arriving_) ask(place);
  if (with_witness) ask(kWitness);
}

void ViewChange::ask(Place place) {
  ViewMessage prepare = said(Type::kPrepare);
  prepare.ballot = ballot_;
  send(place, std::move(prepare));
}

void ViewChange::give_up_ballot(std::uint32_t newest) {
  newest_ballot_ = std::max(newest_ballot_, newest);
  if (phase_ == Phase::kFollowing) return;
  phase_ = Phase::kFollowing;
  // Different for each, so that two that disturb each other do not go on doing so.
  const auto index = std::lower_bound(view_.members.begin(), view_.members.end(), self_) - view_.members.begin();
  not_before_ = now_ + retry_ * (1 + index);
}

Places ViewChange::acceptors() const {
  Places places;
  for (const auto& [place, answer] : answers_) {
    if (place != kWitness && !contains(ended_, place)) insert(places, place);
  }
  return places;
}

bool ViewChange::all_agree(const Places& acceptors, const View& view) const {
  return common(acceptors, view.members) + common(ended_, view.members) == view.members.size();
}

bool ViewChange::decides() const {
  const Places agreed = acceptors();
  if (!has_had_witness_) {
    return all_agree(agreed, view_) || 2 * common(agreed, view_.members) > view_.members.size();
  }
  const std::size_t alive = view_.members.size() - common(ended_, view_.members);
  if (answers_.count(kWitness) > 0 && 2 * common(agreed, view_.members) >= alive) return true;
  // Whoever is left out may end at any moment: then the witness could let others go on, and the view would still be one.
  Places staying = agreed;
  std::erase_if(staying, [this](Place place) { return !contains(proposal_.view.members, place); });
  return std::all_of(since_.begin(), since_.end(), [&](const View& view) {
    return common(agreed, view.members) == view.members.size() ||
           2 * common(staying, view.members) > view.members.size();
  });
}

bool ViewChange::have_answered(const Places& places) const {
  return std::all_of(places.begin(), places.end(), [this](Place place) {
    return lost(place) || answers_.count(place) > 0 || (!tells_all(view_.members) && is_suspected(place));
  });
}

// Where they are too few without it, whom others have lost may be the one that is missing.
bool ViewChange::awaits_somebody() const {
  return std::ranges::any_of(view_.members, [this](Place place) { return !lost(place) && answers_.count(place) == 0; });
}

// By somebody who has answered. Among many those who watch it find out first that it is gone; where it is only those two that
// have lost each other, one of them has to go anyway.
bool ViewChange::is_suspected(Place place) const {
  return std::ranges::any_of(answers_, [place](const auto& item) { return contains(item.second.suspects, place); });
}

void ViewChange::try_to_propose() {
  if (!have_answered(view_.members) || !have_answered(arriving_)) return;
  const Proposal* newest = nullptr;
  for (const auto& [place, promise] : answers_) {
    const auto& accepted = promise.proposal;
    if (accepted && (newest == nullptr || accepted->ballot > newest->ballot)) newest = &*accepted;
  }
  // What was accepted may be decided, whoever of it has ended since: the next view is without them.
  proposal_ = {ballot_, newest != nullptr ? newest->view : chosen()};
  if (!decides()) {
    if (!std::exchange(asked_witness_, true)) ask(kWitness);
    if (!awaits_somebody()) yield_if_in_vain();
    return;  // until the witness answers, somebody else leads, or more are proven to have ended
  }
  phase_ = Phase::kProposing;
  ViewMessage propose = said(Type::kPropose);
  propose.ballot = ballot_;
  propose.proposal = proposal_;
  // Also to those who were not waited for: whoever has lost them may be lost next.
  Places asked = view_.members;
  for (const auto& [place, promise] : answers_) insert(asked, place);
  for (const Place place : proposal_.view.members) insert(asked, place);
  for (const Place place : asked) send(place, propose);
  answers_.clear();
  acceptor_.accept(proposal_);
  answers_.emplace(self_, said(Type::kAccept));
}

// Of all that can reach each other; of two that cannot, whoever has not led in vain stays, else the lower one.
View ViewChange::chosen() const {
  View next{.epoch = ballot_, .plans_only = view_.plans_only};
  const auto can_reach = [this](Place one, Place other) {
    const ViewMessage& said = answers_.at(one);
    return !contains(said.suspects, other) && !contains(said.ended, other);
  };
  const auto fits = [&](Place place) {
    return std::all_of(next.members.begin(), next.members.end(),
                       [&](Place other) { return can_reach(place, other) && can_reach(other, place); });
  };
  for (const bool yielding : {false, true}) {
    for (const auto& [place, promise] : answers_) {
      next.plans_only = next.plans_only || promise.plans_only;
      if (!contains(view_.members, place) || lost(place) || contains(yielding_, place) != yielding) continue;
      if (!promise.leaves && !fits(place)) continue;
      next.committed = std::max(next.committed, promise.committed);
      next.under_way.add(promise.under_way);
      if (!promise.leaves) insert(next.members, place);
    }
  }
  const Places old_members = next.members;
  for (const Place place : arriving_) {
    const bool known_to_all = std::all_of(old_members.begin(), old_members.end(),
                                          [&](Place member) { return contains(answers_.at(member).arriving, place); });
    if (known_to_all && answers_.count(place) > 0 && !lost(place) && fits(place)) insert(next.members, place);
  }
  return next;
}

// All have answered that this rank reaches, and they are too few.
void ViewChange::yield_if_in_vain() {
  const bool in_vain = !has_witness_ || answers_.count(kWitness) > 0;
  if (!in_vain || contains(yielding_, self_)) return;
  insert(yielding_, self_);
  for (const Place member : view_.members) send(member, said(Type::kFreeze));
}

void ViewChange::try_to_install() {
  if (!decides()) {
    // Some were lost meanwhile: the witness has to be asked from the beginning, or somebody else may reach more.
    if (awaits_somebody()) return;
    has_witness_ && !asked_witness_ ? begin(true) : yield_if_in_vain();
    return;
  }
  ViewMessage decided = said(Type::kInstall);
  decided.with_witness = answers_.count(kWitness) > 0;
  decided.proposal = proposal_;
  if (has_had_witness_ && !decided.with_witness) decided.since = since_;
  for (View& view : decided.since) {
    // Nobody is left who could decide otherwise: those who go on need not be more than half of it any more.
    if (all_agree(acceptors(), view)) view.members.clear();
  }
  decided.since.push_back(proposal_.view);
  decided.since.back().under_way = {};
  install(decided, true);
}

void ViewChange::install(const ViewMessage& decided, bool leads) {
  const View left = std::exchange(view_, decided.proposal->view);
  // Whoever joins may have heard of views before its own: what was under way then is that of others.
  if (!contains(left.members, self_)) under_way_ = {};
  under_way_.add(view_.under_way);
  since_ = decided.since;
  ViewMessage news = said(Type::kInstall);
  news.epoch = decided.epoch;
  news.with_witness = decided.with_witness;
  news.proposal = decided.proposal;
  news.since = since_;
  Places told = left.members;
  for (const Place place : view_.members) insert(told, place);
  for (const Place place : arriving_) insert(told, place);
  for (const Place place : leads ? told : told_by_this(told)) send(place, news);
  news_.reset();
  if (!tells_all(told)) news_ = news;
  send(kWitness, news);

  acceptor_.begin_after(view_.epoch);
  phase_ = Phase::kFollowing;
  not_before_ = 0;
  met_.clear();
  wanted_ = false;
  // Who hears of several views at once is evicted by the first that it is not in.
  evicted_ = !is_member() && (evicted_ || (contains(left.members, self_) && !leaves_));
  yielding_.clear();
  arriving_.clear();  // whoever is not in it has to ask again: not all could reach it
  want();
  receive_what_was_early();
}

// Whoever asks for something wants a change anyway.
void ViewChange::keep_for_later(Place from, const ViewMessage& message) {
  const auto [kept, is_new] = early_.try_emplace(from, message);
  if (!is_new && (message.type != Type::kFreeze || message.epoch > kept->second.epoch)) kept->second = message;
}

void ViewChange::receive_what_was_early() {
  std::erase_if(early_, [this](const auto& item) { return item.second.epoch < view_.epoch; });
  std::vector<std::pair<Place, ViewMessage>> due;
  std::erase_if(early_, [&](const auto& item) {
    if (item.second.epoch != view_.epoch) return false;
    due.push_back(item);
    return true;
  });
  for (const auto& [from, message] : due) receive(from, message);
}

void ViewChange::receive(Place from, const ViewMessage& message) {
  if (message.type == Type::kInstall) {
    if (message.proposal->view.epoch > view_.epoch) install(message);
    return;
  }
  if (message.type == Type::kKnown) {
    const auto known =
        std::find_if(since_.begin(), since_.end(), [&](const View& view) { return view.epoch == message.epoch; });
    if (known != since_.end()) since_.erase(since_.begin(), known);
    return;
  }
  // These are true in every epoch. A connection may be cut in one direction only: then its other end would never answer.
  for (const Place place : message.ended) prove_ended(place);
  if (from != kWitness && contains(message.suspects, self_)) suspect(from);
  if (message.epoch != view_.epoch) {
    const bool asks = message.type == Type::kFreeze || message.type == Type::kPrepare || message.type == Type::kPropose;
    if (asks && message.epoch < view_.epoch && news_) send(from, *news_);
    // All who had an older view have been told of this one, and news of a newer one is on its way here: among many it may
    // come by others, and later than what its leader asks next, who does not ask twice. But who arrives has missed the views
    // before, and may have heard of one first from somebody whom all others have lost.
    if (asks && message.epoch > view_.epoch && is_member()) keep_for_later(from, message);
    if (is_member() || leaves_ || evicted_) return;
    if (message.epoch < view_.epoch && message.type != Type::kPrepare) return;
    view_.epoch = message.epoch;
    acceptor_.begin_after(view_.epoch);
  }
  if (message.yields) insert(yielding_, from);
  switch (message.type) {
    case Type::kFreeze:
      if (!wanted_ && is_member()) freeze();
      break;
    case Type::kPrepare:
      if (!lost(from)) on_prepare(from, message);
      break;
    case Type::kPropose:
      if (!lost(from)) on_propose(from, message);
      break;
    case Type::kPromise:
      if (phase_ == Phase::kPreparing && message.ballot == ballot_) answers_.emplace(from, message);
      break;
    case Type::kAccept:
      if (phase_ == Phase::kProposing && message.ballot == ballot_) answers_.emplace(from, message);
      break;
    case Type::kRefuse:
      if (message.answered == ballot_) give_up_ballot(message.ballot);
      break;
    case Type::kInstall:
    case Type::kKnown: break;
  }
  go_on();
}

void ViewChange::on_prepare(Place from, const ViewMessage& message) {
  wanted_ = wanted_ || is_member();
  const bool agrees = acceptor_.promise(message.ballot);
  ViewMessage answer = agrees ? promise() : said(Type::kRefuse);
  answer.ballot = message.ballot;
  if (agrees) {
    give_up_ballot(message.ballot);
  } else {
    answer.answered = message.ballot;
    answer.ballot = acceptor_.promised();
  }
  send(from, std::move(answer));
}

void ViewChange::on_propose(Place from, const ViewMessage& message) {
  ViewMessage answer = said(Type::kAccept);
  answer.ballot = message.ballot;
  if (!acceptor_.accept({message.ballot, message.proposal->view})) {
    answer.type = Type::kRefuse;
    answer.answered = message.ballot;
    answer.ballot = acceptor_.promised();
  }
  send(from, std::move(answer));
}

void ViewChange::check_timers(Nanoseconds now) {
  now_ = now;
  go_on();
}

ViewMessage Witness::said(Type type) const {
  ViewMessage message;
  message.type = type;
  message.epoch = view_.epoch;
  message.ended = ended_;
  return message;
}

std::optional<ViewMessage> Witness::receive(const ViewMessage& message) {
  if (message.type == Type::kInstall) return install(message);
  if (message.type != Type::kPrepare && message.type != Type::kPropose) return {};
  if (message.epoch < view_.epoch) {
    ViewMessage news = said(Type::kInstall);
    news.with_witness = true;
    news.proposal = Proposal{view_.epoch, view_};
    news.since = {view_};
    news.since.back().under_way = {};
    return news;
  }
  if (message.epoch > view_.epoch) return {};  // of another branch than the one that it supports
  const bool prepares = message.type == Type::kPrepare;
  const bool agrees =
      prepares ? acceptor_.promise(message.ballot) : acceptor_.accept({message.ballot, message.proposal->view});
  ViewMessage answer = said(prepares ? Type::kPromise : Type::kAccept);
  answer.ballot = message.ballot;
  if (agrees && prepares) answer.proposal = acceptor_.accepted();
  if (!agrees) {
    answer.type = Type::kRefuse;
    answer.answered = message.ballot;
    answer.ballot = acceptor_.promised();
  }
  return answer;
}

// What it has accepted itself may be decided: then it follows nothing else.
std::optional<ViewMessage> Witness::install(const ViewMessage& decided) {
  const View& next = decided.proposal->view;
  const bool in_chain = std::any_of(decided.since.begin(), decided.since.end(),
                                    [this](const View& view) { return view.epoch == view_.epoch; });
  const bool follows = decided.epoch == view_.epoch || in_chain;
  const bool bound = accepted() && accepted()->view != next;
  if (next.epoch > view_.epoch && follows && !bound) {
    view_ = next;
    acceptor_.begin_after(view_.epoch);
  }
  if (next.epoch != view_.epoch) return {};
  return said(Type::kKnown);
}

}  // namespace ringcore::engine
