// How the members of a job agree on who goes on when some are lost, leave or arrive: one round of single-decree Paxos
// (Lamport, "Paxos Made Simple") for the view that follows the present one.
//
// There is no coordinator in good times. Whoever learns of a reason for a new view freezes and tells all. The lowest member
// that it does not itself suspect leads: prepare, promise by all that it does not suspect, propose, accept, install.
// Whoever installs passes the view on, so that the leader may die at any moment.
//
// Among few each tells each. Among many a member tells its neighbours, and these tell theirs; the leader alone speaks with
// all, and all with it. Who has missed a view hears of it when it asks somebody who has not.
//
// Which acceptors are enough (`decides`):
//   - where there has never been a witness: more than half of the members, or all that are not proven to have ended;
//   - with the witness: at least half of the members that are not proven to have ended;
//   - where it is not asked, or not to be reached: all members, or more than half of them who are members of the new view,
//     too; of this view, and of every view since the last that the witness is known to have.
// The last rule keeps two parts of a job from going on, of which only one has the witness: however often the other one
// shrinks, it cannot come to decide alone what the witness has decided with the rest of those that it knew.
//
// No clock, no thread, no link: the engine hands in what it sees, and sends what stands in the outbox.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "engine/view.hpp"

namespace ringcore::engine {

class ViewChange {
 public:
  // `view`: where `self` is a member, or what it wants to become a member of. `retry`: how long a leader waits that was
  // refused, before it tries again; several times a message's journey.
  // `stand_still`: called before this rank answers a leader. From then on it changes nothing, until the next view, of what
  // is under way.
  // `direct_members`: among more of them news goes from neighbour to neighbour, see `told_by_this`.
  ViewChange(View view, Place self, bool has_witness, Nanoseconds retry, std::function<UnderWay()> stand_still = {},
             std::size_t direct_members = SIZE_MAX);

  // What this rank sees.
  void suspect(Place place);  // its link has ended, or it has been silent for too long
  void prove_ended(Place place);  // its process is no more
  void lose_witness();
  // It is connected with this rank, and wants to become a member. It is told the view, and has to ask again if it is not
  // in it.
  void arrive(Place place);
  void expect(Place place);  // the same, once another member wants it, or another change comes first
  void turn_away(Place place);
  void leave();  // this member wants to be no member any more, once all agree
  void give_up_backends();  // the others are to do without them, too, from the next view on
  void commit(std::uint64_t step) { committed_ = step; }

  // What others say; `from` may be kWitness.
  void receive(Place from, const ViewMessage& message);
  void check_timers(Nanoseconds now);

  // Whether a new view is being agreed on: until then nothing new may be started.
  bool changing() const { return wanted_; }
  const View& view() const { return view_; }
  bool is_member() const { return contains(view_.members, self_); }
  // Whether it is proven that its process is no more, or has left in order.
  bool has_ended(Place place) const { return contains(ended_, place); }
  // A view was installed that this rank is not in, though it did not ask for that.
  bool evicted() const { return evicted_; }
  // What becomes of what was under way when this was last asked, or in the beginning.
  UnderWay take_under_way() { return std::exchange(under_way_, {}); }

  struct Addressed {
    Place to;
    ViewMessage message;
  };
  std::vector<Addressed> take_outbox() { return std::exchange(outbox_, {}); }

 private:
  enum class Phase { kFollowing, kPreparing, kProposing };

  bool lost(Place place) const { return contains(suspects_, place) || contains(ended_, place); }
  bool anything_wanted() const;
  Place leader() const;
  ViewMessage said(ViewMessage::Type type) const;
  void send(Place to, ViewMessage message);
  void want();
  void go_on();
  void begin(bool with_witness = false);
  void ask(Place place);
  void give_up_ballot(std::uint32_t newest);
  // Whether all of these have answered whom this rank does not take for lost.
  bool have_answered(const Places& places) const;
  bool is_suspected(Place place) const;
  Places acceptors() const;  // who has answered, and has not ended since
  bool all_agree(const Places& acceptors, const View& view) const;
  bool decides() const;
  bool awaits_somebody() const;
  void try_to_propose();
  void yield_if_in_vain();
  void try_to_install();
  View chosen() const;
  void install(const ViewMessage& decided, bool leads = false);
  void keep_for_later(Place from, const ViewMessage& message);
  void receive_what_was_early();
  void freeze();
  bool tells_all(const Places& places) const { return places.size() <= direct_members_; }
  Places told_by_this(const Places& places) const;
  void meet_leader();
  ViewMessage promise() const;

  void on_prepare(Place from, const ViewMessage& message);
  void on_propose(Place from, const ViewMessage& message);

  View view_;
  std::vector<View> since_;  // from the newest that the witness is known to have to the present one
  Place self_;
  bool has_witness_;
  bool has_had_witness_;  // it may still side with others
  std::size_t direct_members_;
  Nanoseconds retry_;
  Nanoseconds now_ = 0;
  Nanoseconds not_before_ = 0;
  Places suspects_;
  Places ended_;
  Places arriving_;
  Places met_;  // who may lead, and has heard of this change from this rank, among many
  Places yielding_;  // who has led in vain: others may reach more
  bool leaves_ = false;
  bool plans_only_ = false;  // this rank has given up a backend
  std::uint64_t committed_ = 0;
  std::function<UnderWay()> stand_still_;
  UnderWay under_way_;
  std::map<Place, ViewMessage>
      early_;  // by sender: what was last wanted in a view of which this rank has not heard yet
  std::optional<ViewMessage> news_;  // of the present view, among many: for who asks and was not told
  bool wanted_ = false;
  bool evicted_ = false;

  Acceptor acceptor_;
  Phase phase_ = Phase::kFollowing;
  std::uint32_t newest_ballot_ = 0;
  std::uint32_t ballot_ = 0;  // that this rank leads
  Proposal proposal_;
  std::map<Place, ViewMessage> answers_;  // promises, then acceptances
  bool asked_witness_ = false;
  std::vector<Addressed> outbox_;
};

// The witness: has half a vote, and remembers, so that of two parts of a job never both go on.
class Witness {
 public:
  explicit Witness(View view) : view_(std::move(view)) {}

  std::optional<ViewMessage> receive(const ViewMessage& message);
  const View& view() const { return view_; }

  // The process at this place has been seen to end. Whoever asks from now on is told so ...
  void prove_ended(Place place) { insert(ended_, place); }
  const Places& ended() const { return ended_; }
  // ... and with this those are told who have asked before, or cannot see it.
  ViewMessage proofs() const { return said(ViewMessage::Type::kFreeze); }
  // The view that it has accepted and does not know to be decided: it follows no other.
  const std::optional<Proposal>& accepted() const { return acceptor_.accepted(); }
  // Whether a view that follows the present one is being agreed on, and its vote was needed.
  bool asked() const { return acceptor_.promised() > view_.epoch; }

 private:
  std::optional<ViewMessage> install(const ViewMessage& decided);
  ViewMessage said(ViewMessage::Type type) const;

  View view_;
  Places ended_;
  Acceptor acceptor_;
};

}  // namespace ringcore::engine
