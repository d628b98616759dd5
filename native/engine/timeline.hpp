// What an operation did, and when: recorded while it is switched on, written out by the Python package.
#pragma once

#include <cstddef>
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
  std::vector<Span> take() {
    if (lost_ > 0) {
      const Span& last = spans_.back();
      spans_.push_back(
          {"timeline", std::to_string(std::exchange(lost_, 0)) + " spans are left out", 0, -1, last.end, last.end, 0});
    }
    return std::exchange(spans_, {});
  }
  void record(Span span) {
    if (!enabled_) return;
    if (spans_.size() < kMostSpans) {
      spans_.push_back(std::move(span));
    } else {
      ++lost_;
    }
  }

 private:
  // Some 150 MB, when nobody takes them.
  static constexpr std::size_t kMostSpans = 1'000'000;

  bool enabled_ = false;
  std::vector<Span> spans_;
  std::uint64_t lost_ = 0;  // since the last call of `take`
};

}  // namespace ringcore::engine
