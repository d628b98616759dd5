// What an elastic engine keeps besides: how far it is in agreeing on who goes on, see view_change.hpp.
//
// Whoever loses a peer freezes: its runs are dropped, nothing new is started, and so nothing of this rank is stored in the
// memory of others. Every member of the next view has answered its leader frozen, so that all of them stand still when the
// first one goes on. Then each process set is made anew, over the same links.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/state.hpp"
#include "engine/view_change.hpp"

namespace ringcore::engine {

struct Engine::Elastic {
  ViewChange views;
  bool still = false;  // the runs are dropped
  bool frozen = false;  // ... and the agreement knows who has left
  bool plans_only = false;  // in the present epoch, see View
  bool draining = false;  // what was written in the epochs before is still in the lanes
  Nanoseconds frozen_since = 0;
  Nanoseconds waits_since = 0;  // this rank has announced nothing more, and nothing of it was released
  Nanoseconds waited = 0;  // see Engine::waited_for_others
  std::map<Place, std::string> reasons;  // why this rank takes a member for lost
  std::shared_ptr<const Error> change;  // that this rank's caller has not taken note of
  bool has_failed = false;  // ... and that has made operations fail
  bool lost_results = false;  // ... and that came before this rank's GPUs had ended what was launched
  // What a carrier's library has noticed of a loss, before it is known here who was lost.
  std::shared_ptr<const Error> noticed;
  Nanoseconds noticed_at = 0;
  bool caller_goes_back = false;
  std::vector<Rank> excused;  // see Engine::excuse
  std::map<std::uint32_t, std::vector<Place>> members_of;  // by epoch
  std::vector<std::vector<std::byte>> for_witness;
  bool wants_in = false;  // the caller of who joins is ready
  bool has_asked = false;  // to be let in
  bool tells_host = false;  // it was no member at first, and knows which host it is of
  bool joins = false;  // ... and was, and has yet to hear how the others count process sets
  std::optional<Place> lets_in;  // whom this rank's caller would let in now
  std::map<Place, Places> let_in_by;  // in the present epoch
  std::vector<std::unique_ptr<Peer>> former;  // whose links are open until the caller takes note
};

}  // namespace ringcore::engine
