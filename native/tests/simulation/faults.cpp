#include "faults.hpp"

#include <algorithm>
#include <span>

#include "engine/record.hpp"

namespace ringcore::simulation {
namespace {

// A heartbeat that no correct peer sends; in everything but its epoch or its number it is right.
bool inject_record(const Fault& fault, transport::SimNetwork& network, std::uint32_t epoch) {
  engine::RecordHeader header{.bytes = sizeof(engine::RecordHeader), .type = engine::RecordType::kHeartbeat};
  header.epoch = epoch;
  return network.inject(fault.victim, fault.other, transport::kControlLane, std::as_bytes(std::span(&header, 1)));
}

}  // namespace

std::vector<Fault> draw_faults(Draw& draw, int ranks, bool encrypted) {
  constexpr int kCounts[] = {0, 0, 0, 1, 1, 1, 1, 2, 2, 3};
  std::vector<Fault> faults(static_cast<std::size_t>(draw.of(kCounts)));
  for (Fault& fault : faults) {
    fault.kind = static_cast<FaultKind>(draw.below(encrypted ? kFaultKinds : kFaultKinds - 1));
    fault.at_event = 1 + draw.below(draw.one_in(2) ? 60 : 600);
    fault.victim = draw.below(ranks);
    fault.other = (fault.victim + 1 + draw.below(ranks - 1)) % ranks;
    fault.writes = draw.below(20);
  }
  std::sort(faults.begin(), faults.end(), [](const Fault& a, const Fault& b) { return a.at_event < b.at_event; });
  return faults;
}

bool inject(const Fault& fault, transport::SimNetwork& network, std::uint32_t epoch, Nanoseconds heartbeat) {
  switch (fault.kind) {
    case FaultKind::kPause: network.pause(fault.victim, heartbeat / 6); break;  // three in a row are not yet silence
    case FaultKind::kStarve: network.starve(fault.victim, 2 * heartbeat); break;
    case FaultKind::kKill: network.kill(fault.victim); break;
    case FaultKind::kKillAtWrite: network.kill_at_write(fault.victim, static_cast<std::uint64_t>(fault.writes)); break;
    case FaultKind::kCut: network.cut(fault.victim, fault.other); break;
    case FaultKind::kSilence: network.silence(fault.victim, fault.other); break;
    case FaultKind::kStaleEpoch: return inject_record(fault, network, epoch - 1);
    case FaultKind::kDuplicate: return inject_record(fault, network, epoch);  // number 0 was the greeting's
    case FaultKind::kNoLanes: network.refuse_lanes(fault.victim, fault.other); break;
    case FaultKind::kTamper: return network.tamper(fault.victim, fault.other);
    case FaultKind::kLeave: break;
  }
  return true;
}

}  // namespace ringcore::simulation
