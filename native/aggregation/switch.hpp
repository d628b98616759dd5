// A switch that adds: sorts what comes by session, and turns away what is not ours.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>

#include "aggregation/session.hpp"
#include "aggregation/wire.hpp"
#include "base/clock.hpp"

namespace ringcore::aggregation {

struct SwitchConfig {
  Key key;
  std::uint32_t seed = 0;     // of generations: another one each time that a switch is started
  std::uint32_t members = 0;  // of a session; 0: as many as the job has ranks
  std::optional<Address> parent;
  MemberId own_id = 0;  // as a member of the parent's sessions
  std::size_t most_sessions = 64;
  Nanoseconds idle = 60 * kSecond;  // what is silent for so long has ended
  Nanoseconds silence = 5 * kSecond;
};

class Switch {
 public:
  explicit Switch(SwitchConfig config) : config_(config), generation_(config.seed) {}

  void receive(std::span<const std::byte> bytes, const Address& from, Nanoseconds now, Outbox& out);
  void check_timers(Nanoseconds now, Outbox& out);
  Nanoseconds next_timer() const;
  // As a member of the parent's sessions.
  void leave(Outbox& out);

  struct Counts {
    std::uint64_t packets = 0;  // ours
    std::uint64_t foreign = 0;  // that nobody of ringcore has sent
    std::uint64_t forged = 0;   // whose sender does not have the key
    std::uint64_t refused = 0;  // without a session, and no room for one
  };
  const Counts& counts() const { return counts_; }
  std::size_t sessions() const { return sessions_.size(); }
  std::size_t held_bytes() const;

 private:
  Session* find(const Packet& packet);
  bool make_room();

  SwitchConfig config_;
  std::uint32_t generation_;
  std::map<std::uint64_t, Session> sessions_;
  Counts counts_;
};

}  // namespace ringcore::aggregation
