// How quick a connection is, as far as what went over it has shown.
#pragma once

#include <span>

namespace ringcore::transport {

struct Pace {
  double bytes_per_s = 0;  // while there was always something to send; 0: not known
  double latency_s = 0;    // one way, at its shortest; 0: not known
  bool sure = false;       // the rate is that of several measurements
};

// What connections carry together that share what is to be sent. Of those that have shown no rate yet the others tell it: a few
// measurements on some of many would else make the link seem slow.
Pace side_by_side(std::span<const Pace> connections);

}  // namespace ringcore::transport
