// How transfers of several runs share a lane of a link. Kept by carriers/plans/transfers.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace ringcore::transport {

// A transfer that stood in the way: its run here has not come to it yet.
struct SetAside {
  std::uint32_t run = 0;
  std::vector<std::byte> payload;
  bool arriving = true;
};

// Runs of several process sets may share a lane; a transfer, once begun, has it until its end. This says whose turn it is.
struct LaneUse {
  std::uint32_t sending_run = 0;      // 0: nobody is in the middle of a transfer
  bool receiving = false;             // a transfer's header has been read, its payload not wholly
  bool accepted = false;              // by the run that it is for
  std::uint32_t receiving_run = 0;
  std::uint64_t receiving_bytes = 0;  // of the payload
  std::deque<SetAside> set_aside;     // in the order of their arrival
  std::uint64_t written = 0;          // since the link was made; so much was taken from what the peer has written
  std::uint64_t taken = 0;
};

}  // namespace ringcore::transport
