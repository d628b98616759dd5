// What an operation did, and when: recorded while it is switched on, written out by the Python package.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"

namespace ringcore::engine {

struct Span {
  std::string name;      // of the tensor
  std::string activity;  // "negotiate", "queue", "pack", "ring", "unpack", "send chunk 3 to rank 1" ...
  int lane = 0;
  int channel = -1;  // of a step of a plan; -1: of the operation as a whole
  Nanoseconds begin = 0;
  Nanoseconds end = 0;
  std::uint64_t bytes = 0;
};

class Timeline {
 public:
  bool enabled() const { return enabled_; }
  void start() { enabled_ = true; }
  void stop() { enabled_ = false; }
  // Everything recorded since the last call.
  std::vector<Span> take() { return std::exchange(spans_, {}); }
  void record(Span span) {
    if (enabled_) spans_.push_back(std::move(span));
  }

 private:
  bool enabled_ = false;
  std::vector<Span> spans_;
};

}  // namespace ringcore::engine
