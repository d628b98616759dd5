// What goes wrong in a simulated job.
#pragma once

#include <vector>

#include "transport/sim/network.hpp"
#include "workload.hpp"

namespace ringcore::simulation {

enum class FaultKind : std::uint8_t {
  kPause,
  kKill,
  kKillAtWrite,
  kCut,
  kSilence,
  kStaleEpoch,
  kDuplicate,
  kLeave,
  kNoLanes,
  kStarve,
  kTamper  // of encrypted links only
};
inline constexpr int kFaultKinds = 11;

struct Fault {
  FaultKind kind{};
  int at_event = 0;
  Rank victim = 0;
  Rank other = 0;
  int writes = 0;  // kKillAtWrite
  bool injected = false;

  // Whether an operation may fail because of it.
  bool may_fail() const { return kind != FaultKind::kPause && kind != FaultKind::kStarve; }
  // Whether nothing more is expected of the victim.
  bool ends_victim() const {
    return kind == FaultKind::kKill || kind == FaultKind::kKillAtWrite || kind == FaultKind::kLeave;
  }
};

// None, or up to three, in the order in which they happen.
std::vector<Fault> draw_faults(Draw& draw, int ranks, bool encrypted);

// Does to the network what the fault says; leaving is the engine's own. False when that cannot be done yet.
bool inject(const Fault& fault, transport::SimNetwork& network, std::uint32_t epoch, Nanoseconds heartbeat);

}  // namespace ringcore::simulation
