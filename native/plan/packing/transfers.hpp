// In which order the chunks of packed trees go: list scheduling (Graham, 1966). What can go goes, and of several that want
// the same thing the one that comes first in its tree's share.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/packing/forest.hpp"

namespace ringcore::plan {

struct Transfer {
  Rank from = 0;
  Rank to = 0;
  std::uint32_t chunk = 0;
  bool up = false;  // to the node above: a sum of what stands below
  bool at_root = false;  // one of its ends is the root
  std::uint32_t departs = 0;  // through this, of the network's things
  std::uint32_t arrives = 0;
  // A leaf does not run ahead, or its port were full of what nobody waits for: the result of this chunk comes before.
  int paced_by = -1;
};

// A transfer departs, or has arrived.
struct Moment {
  std::uint32_t transfer = 0;  // index
  bool arrives = false;
};

// Chunk by chunk of the first tree, then of the next one, in the order in which they begin.
struct TransferOrder {
  std::vector<Transfer> transfers;
  // One after the other: what waits, waits for earlier ones. What departs first through a slow link arrives late, and
  // whoever receives does not wait for it meanwhile.
  std::vector<Moment> moments;
  double seconds = 0;  // of chunks of one byte, until the last one has arrived
};
// With more `haste` what has a long way before it goes earlier than its place in its tree's share says.
TransferOrder order_transfers(const Fabric& fabric, const Forest& forest, bool reduces, double haste);
// A sum that goes up to the root is a broadcast that is played backwards, of the reversed fabric; a gather is a scatter.
TransferOrder played_backwards(TransferOrder down, bool reduces);

}  // namespace ringcore::plan
