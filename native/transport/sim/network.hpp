// A network for tests: all ranks in one process and one thread, time that only moves when told to, one seed.
//
// What a rank writes becomes delivery events at random times: in order inside a lane, in any order between lanes and
// between peers. Writes are accepted partly, bytes arrive in pieces, views are short. Ranks die, connections break,
// machines stop for a while, cables fall silent. The same seed and the same calls give the same schedule.
//
//   SimNetwork network(4, seed);
//   ... give each rank its links and network.clock(), submit work ...
//   do {
//     for each rank that `runs`: progress until nothing moves
//   } while (network.step());
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/types.hpp"
#include "transport/link.hpp"
#include "transport/readiness.hpp"
#include "transport/shm/segment.hpp"

namespace ringcore::transport {

class VirtualClock final : public Clock {
 public:
  Nanoseconds now() const override { return now_; }
  void set(Nanoseconds now) { now_ = now; }

 private:
  Nanoseconds now_ = kSecond;  // not 0, which some code takes for "never"
};

struct SimOptions {
  Nanoseconds shortest_delay = 1'000;
  Nanoseconds longest_delay = kMillisecond;
  std::size_t lane_bytes = 8192;    // room in a data lane; the control lane always has room for two long records
  std::vector<int> host_of = {};    // by rank; ranks of one host see each other's arena. Empty: nobody does
  std::size_t arena_bytes = 1 << 20;
  std::size_t reserved_bytes = 0;   // of the arena, as in Arena's constructor
  bool keep_history = false;        // for SimNetwork::history
  bool short_writes = true;         // now and then a lane takes only a part, though there is room
  std::vector<Pace> paces = {};     // by rank: what its links say of theirs; empty: they know nothing
  bool late_lanes = false;          // lanes of data are opened when both ends want them
  bool encrypted = false;           // links between hosts are, with a toy cipher (encryption.hpp)
  bool watched = false;             // links that are not encrypted are seen together, see `readiness`
};

class SimNetwork {
 public:
  SimNetwork(int ranks, std::uint64_t seed, SimOptions options = {});
  SimNetwork(const SimNetwork&) = delete;
  SimNetwork& operator=(const SimNetwork&) = delete;

  // The two have no connection yet: it is made when one of them wants it.
  void disconnect(Rank a, Rank b);
  // The end that `from` holds of its link to `to`. The network must outlive it.
  std::unique_ptr<Link> link(Rank from, Rank to);
  // Of the links of a rank.
  Readiness& readiness(Rank rank) { return *readiness_[static_cast<std::size_t>(rank)]; }
  // The registered memory of a rank; null where `host_of` is empty.
  Arena* arena(Rank rank);
  // All of it, reserved bytes included; empty where `host_of` is empty.
  std::span<std::byte> arena_memory(Rank rank);
  const Clock& clock() const { return clock_; }
  // From the one generator: for what the test decides at random.
  std::uint64_t random_below(std::uint64_t bound) { return generator_() % bound; }

  // Lets the next event happen and moves time there. False when nothing is in flight.
  bool step();
  // Lets all events up to `time` happen and moves time there.
  void run_until(Nanoseconds time);
  std::optional<Nanoseconds> next_event();
  // A number that two runs share only if the same bytes arrived in the same order at the same times.
  std::uint64_t digest() const { return digest_; }

  // The rank stops for ever, at this very instruction: what it stored in shared memory stays, what it wrote is lost
  // from a random point on, and after a delay its peers find the connection closed.
  void kill(Rank rank);
  // The rank dies when it starts the write after the next `writes`: between a store and its signal, for example. It
  // may run on until it is next asked for, but nobody hears of it.
  void kill_at_write(Rank rank, std::uint64_t writes);
  // The connection of two ranks is reset; each finds out after a delay of its own.
  void cut(Rank a, Rank b);
  // Nothing is delivered to or from the rank for so long (SIGSTOP, a machine that swaps).
  void pause(Rank rank, Nanoseconds duration);
  // The same, and its peers see that it wants to run, as on one host: a machine that is overloaded.
  void starve(Rank rank, Nanoseconds duration);
  // From now on what `from` writes to `to` vanishes, and nobody is told.
  void silence(Rank from, Rank to);
  // `from` has closed its connections to `to`, of which those for data end there before all has come that it has said on
  // the one for control.
  void end_data(Rank from, Rank to);
  // What `from` writes to `to` on that lane arrives after so long at the earliest: it stands in a queue of the network.
  void delay(Rank from, Rank to, int lane, Nanoseconds duration);
  // A bit is changed in what `from` writes to `to`, once. False where that is not encrypted: nobody would notice.
  bool tamper(Rank from, Rank to);
  // Lanes of data between the two that are not open yet never will be, and nobody is told.
  void refuse_lanes(Rank a, Rank b);
  // As who drives a rank does before it sleeps: what is encrypted leaves and comes then, too. True when something came.
  bool arm(Rank rank);
  // Whether the rank may be driven: it is neither dead nor paused.
  bool runs(Rank rank) const;
  // Whether something has happened to it since this was last asked, for which a descriptor or a bell would wake it.
  bool take_ring(Rank rank) { return std::exchange(rung_[static_cast<std::size_t>(rank)], '\0') != 0; }

  // Faults of a peer's protocol: bytes that arrive behind all that `from` has written so far on that lane. False when an
  // encrypted lane does not take them yet.
  bool inject(Rank from, Rank to, int lane, std::span<const std::byte> bytes);
  // All that was accepted on a lane; needs SimOptions::keep_history.
  std::span<const std::byte> history(Rank from, Rank to, int lane) const;

 private:
  friend class SimLink;
  friend class SimReadiness;

  // One direction of a lane.
  struct Stream {
    std::vector<std::byte> arrived;
    std::size_t consumed = 0;   // of `arrived`
    std::size_t seen = 0;       // of `arrived`: shown to the reader
    bool unread = false;        // something has arrived, and the reader has not looked since
    std::size_t in_flight = 0;  // bytes accepted, not arrived
    Nanoseconds last_delivery = 0;
    std::vector<std::byte> history;
  };
  // What one rank knows of its connection to another.
  struct Connection {
    Stream lanes[kLaneCount];  // incoming
    std::optional<std::string> failure;
    bool data_has_ended = false;  // see `end_data`
    bool silent = false;  // incoming bytes vanish
    bool tampered = false;  // a bit of the next incoming bytes changes
    Link* secured = nullptr;  // the owner's end, where it is encrypted
    bool refuses_lanes = false;
    bool is_late = false;  // see `disconnect`
    std::array<bool, kLaneCount> wanted{};  // of lanes that are not there from the start
    std::array<bool, kLaneCount> open{};
    std::optional<Nanoseconds> data_came = {};  // when the last of it did
  };
  enum class EventKind : std::uint8_t { kDelivery, kFailure, kRoom, kLane };
  struct Event {
    Nanoseconds time = 0;
    std::uint64_t sequence = 0;  // given by `schedule`
    EventKind kind{};
    Rank from = 0;
    Rank to = 0;
    int lane = 0;
    std::vector<std::byte> bytes = {};  // kDelivery
    std::string reason = {};            // kFailure
    bool operator<(const Event& other) const {
      return time != other.time ? time < other.time : sequence < other.sequence;
    }
  };

  Connection& connection(Rank owner, Rank peer);
  const Connection& connection(Rank owner, Rank peer) const;
  std::size_t capacity(int lane) const;
  Nanoseconds random_delay();
  bool is_open(Rank owner, Rank peer, int lane) const;
  void want(Rank owner, Rank peer, int lane);
  std::size_t write(Rank from, Rank to, int lane, std::span<const std::byte> bytes);
  void send(Rank from, Rank to, int lane, std::span<const std::byte> bytes);
  void tell_room(Rank reader, Rank writer);
  void schedule(Event event);
  void put_off_paused();
  void happen(Event event);
  void lose_tail(Rank from, Rank to);
  void fail_later(Rank owner, Rank peer, const char* reason);
  void give_up_later(Rank owner, Rank peer);

  int ranks_;
  SimOptions options_;
  std::mt19937_64 generator_;
  VirtualClock clock_;
  std::vector<Connection> connections_;  // [owner * ranks_ + peer]
  std::vector<std::unique_ptr<Segment>> segments_;
  std::vector<std::unique_ptr<Arena>> arenas_;
  std::vector<std::unique_ptr<Readiness>> readiness_;
  std::vector<bool> dead_;
  std::vector<char> rung_;
  std::vector<std::optional<std::uint64_t>> writes_left_;  // of those that will die at a write
  std::vector<Nanoseconds> paused_until_;
  std::vector<Nanoseconds> starved_until_;
  std::set<Event> events_;
  std::uint64_t next_sequence_ = 0;
  std::uint64_t digest_ = 0;
};

}  // namespace ringcore::transport
