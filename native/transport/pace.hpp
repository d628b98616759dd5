// How quick a connection is, as far as what went over it has shown.
#pragma once

namespace ringcore::transport {

struct Pace {
  double bytes_per_s = 0;  // while there was always something to send; 0: not known
  double latency_s = 0;    // one way, at its shortest; 0: not known
  bool sure = false;       // the rate is that of several measurements
};

}  // namespace ringcore::transport
