// How quick a connection is, as far as what went over it has shown.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace ringcore::transport {

struct Pace {
  double bytes_per_s = 0;  // while there was always something to send; 0: not known
  double latency_s = 0;    // one way, at its shortest; 0: not known
  bool sure = false;       // the rate is that of several measurements
  double mean_bytes_per_s = 0;  // of a second at least in which anything was on its way; 0: not known
};

// What a connection's kernel has counted so far, and its latest measurement.
struct SendCounters {
  double bytes_per_s = 0;        // of the last round trip; 0 where there was too little to send to tell
  std::uint64_t bytes = 0;       // that have come across
  std::uint64_t sending_us = 0;  // while something was on its way and the receiver had room
};

class PaceSamples {
 public:
  void take(const SendCounters& counters);
  // The rate is the median of the latest samples: single ones are off by several times, where a bucket of tokens was
  // full or the machine is loaded. On a loaded machine all of some tenths of a second may be. The mean, of the last
  // second of sending or two, is not; but it tells as much of how much there was to send.
  Pace pace() const;

 private:
  static constexpr std::size_t kKept = 15;
  static constexpr std::size_t kSure = 5;
  std::size_t taken_ = 0;
  std::array<double, kKept> rates_{};
  std::array<SendCounters, 2> begins_{};  // of the second of sending that has passed, and of this one
  SendCounters latest_;
};

// What connections carry together that share what is to be sent. Of those that have shown no rate yet the others tell it: a few
// measurements on some of many would else make the link seem slow.
Pace side_by_side(std::span<const Pace> connections);

}  // namespace ringcore::transport
