// What an operation did, and when: recorded while it is switched on, and given to whoever writes it down.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"

namespace ringcore::engine {

// Where a thread of the program waits.
inline constexpr int kProgramLane = -1;

struct Span {
  std::string name;      // of the tensor
  std::string activity;  // "negotiate", "queue", "pack", "ring", "unpack", "send chunk 3 to rank 1" ...
  int lane = 0;
  int channel = -1;  // of a step of a plan; -1: of the operation as a whole
  Nanoseconds begin = 0;
  Nanoseconds end = 0;
  std::uint64_t bytes = 0;
  Nanoseconds submitted = 0;  // when the operation was; 0: that is not known
  bool awaited = false;  // a thread of the program stood still for it all the while
};

// Takes spans as they come. Handed in: the engine opens no file.
class SpanSink {
 public:
  virtual ~SpanSink() = default;
  virtual void add(const Span& span) = 0;
  // An operation has ended, and all its spans were added.
  virtual void flush() = 0;
  // Why nothing more is taken; empty: it is.
  virtual std::string failure() const = 0;
};

// Without a sink the spans are kept, as many as there is room for, until `take`.
class Timeline {
 public:
  bool enabled() const { return enabled_; }
  void start(std::unique_ptr<SpanSink> sink = nullptr) {
    sink_ = std::move(sink);
    enabled_ = true;
  }
  std::unique_ptr<SpanSink> stop() {
    enabled_ = false;
    return std::move(sink_);
  }
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
    if (sink_ != nullptr) {
      sink_->add(span);
    } else if (spans_.size() < kMostSpans) {
      spans_.push_back(std::move(span));
    } else {
      ++lost_;
    }
  }
  void flush() {
    if (sink_ != nullptr) sink_->flush();
  }
  std::string failure() const { return sink_ == nullptr ? "" : sink_->failure(); }

 private:
  // Some 150 MB, when nobody takes them.
  static constexpr std::size_t kMostSpans = 1'000'000;

  bool enabled_ = false;
  std::unique_ptr<SpanSink> sink_;
  std::vector<Span> spans_;
  std::uint64_t lost_ = 0;  // since the last call of `take`
};

}  // namespace ringcore::engine
