// A view: who the members of a job are in one epoch. And what ranks say to each other while they agree on the next one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/membership.hpp"

namespace ringcore::engine {

// Sorted, without repetition.
using Places = std::vector<Place>;

bool contains(const Places& places, Place place);
void insert(Places& places, Place place);
// How many of `places` are in `others`.
std::size_t common(const Places& places, const Places& others);

// The witness has no place: it is the launcher, which trains nothing and sees processes end.
inline constexpr Place kWitness = -1;
inline constexpr Place kMaxPlaces = 1 << 14;
// Of operations under way: more than these are not repeated. They go into one record, several times.
inline constexpr std::size_t kMaxUnderWay = 1000;
// Of messages: from the last one on there is a ballot that is greater than it.
inline constexpr std::uint32_t kMaxBallot = UINT32_MAX - 2 * kMaxPlaces;

// How far those who go on had come when the members changed: told by each in its promise, and decided with the view.
// Releases of a process set come in the same order on all, and are counted through all epochs.
struct UnderWay {
  using Numbered = std::pair<std::uint16_t, std::uint64_t>;  // process set, number

  // Whether those who go on can do again what somebody has no result of; else it fails on all of them.
  bool repeats = true;
  bool counted = true;  // whether `unfinished` names all; else none counts as finished
  std::vector<Numbered> released;  // of each process set, how many operations all of them have seen released
  std::vector<Numbered> unfinished;  // of these, those that somebody has no result of

  std::uint64_t released_in(std::uint16_t set) const;
  // Whether all have a result of that operation.
  bool is_finished(const Numbered& operation) const;
  // As much of both as holds for all.
  void add(const UnderWay& other);
  bool operator==(const UnderWay&) const = default;
};

struct View {
  // Grows from view to view, not always by one: it is the ballot that the view was first proposed in, so that no two views
  // ever have the same.
  std::uint32_t epoch = 0;
  Places members;
  // The newest step that a member has committed: whoever is behind takes its result over.
  std::uint64_t committed = 0;
  UnderWay under_way = {};  // in the epoch before
  // Operations are carried out by plans alone, in this epoch and all that follow: a backend (plan/backend.hpp) was given up.
  bool plans_only = false;

  bool operator==(const View&) const = default;
};

struct Proposal {
  std::uint32_t ballot = 0;
  View view;
};

struct ViewMessage {
  enum class Type : std::uint8_t {
    kFreeze,  // I know something that asks for a new view
    kPrepare,  // promise me to accept nothing older than this ballot
    kPromise,
    kPropose,
    kAccept,
    kRefuse,  // I have promised `ballot` to somebody
    kInstall,  // this is decided
    kKnown,  // of the witness: I have installed it
  };
  Type type{};
  std::uint32_t epoch = 0;  // of the view that is to be left; of a kInstall: that was left
  std::uint32_t ballot = 0;
  std::uint32_t answered = 0;  // of a kRefuse: the ballot that it is refused for
  std::uint64_t committed = 0;
  UnderWay under_way;  // of a kPromise
  bool leaves = false;  // the sender wants to be no member any more
  bool yields = false;  // the sender has led, and those that it reaches are too few
  bool plans_only = false;  // the sender has given up a backend, as View::plans_only
  bool with_witness = false;  // of a kInstall: the witness has accepted it
  Places suspects;  // whom the sender cannot reach
  Places ended;  // whose process has been seen to end: proof, not suspicion
  Places arriving;  // connected with the sender, and no members yet
  std::optional<Proposal> proposal;  // accepted, proposed or decided
  std::vector<View> since;  // of a kInstall: from the last view that the witness is known to have to the decided one
};

std::vector<std::byte> encode(const ViewMessage& message);
// Throws Error{kProtocol}: the bytes come from another process.
ViewMessage decode_view_message(std::span<const std::byte> bytes);

// Of Paxos: what has been promised, and accepted, for the view that follows the present one.
class Acceptor {
 public:
  std::uint32_t promised() const { return promised_; }
  const std::optional<Proposal>& accepted() const { return accepted_; }

  bool promise(std::uint32_t ballot);
  bool accept(const Proposal& proposal);
  // A new view is there: what has been accepted was for the one before.
  void begin_after(std::uint32_t epoch);

 private:
  std::uint32_t promised_ = 0;
  std::optional<Proposal> accepted_;
};

}  // namespace ringcore::engine
