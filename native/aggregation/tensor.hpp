// A tensor as the segments of a worker, in place: float32 as it is, or as integers.
//
// Source of the integers: SwitchML (Sapio et al., NSDI 2021), section 4.2. The elements of a segment are multiplied by
// one power of two that fits the largest of all ranks, rounded, and added as integers: no order changes a bit. Which
// power that is has to be known before: segments of exponents, of which the switch tells the largest, go a round ahead.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "aggregation/wire.hpp"
#include "aggregation/worker.hpp"

namespace ringcore::aggregation {

class Tensor {
 public:
  // Its segments are numbered from `first` on. `integers`: of so many ranks that their sum fits.
  Tensor(std::span<float> data, Segment first, bool integers, std::uint32_t ranks);

  Segment end() const { return first_ + blocks_ + groups_; }  // behind its segments
  bool done() const { return taken_ == blocks_ + groups_; }

  // As of Source.
  bool ready(Segment segment) const;
  Source::Contribution contribution(Segment segment);
  bool take(Segment segment, const Source::Contribution& sum);

 private:
  // Either a block of the data, or the exponents of a group of blocks.
  struct Place {
    bool exponents = false;
    std::size_t index = 0;
  };
  Place place(Segment segment) const;
  std::span<float> block(std::size_t index) const;
  std::size_t blocks_in(std::size_t group) const;
  std::span<const std::byte> quantised(std::size_t index);
  void restore(std::size_t index, std::span<const std::byte> sum);

  std::span<float> data_;
  Segment first_;
  double limit_;  // of one rank's integers
  std::size_t blocks_;
  std::size_t groups_ = 0;
  std::size_t taken_ = 0;
  std::vector<std::int32_t> exponents_;  // of each block, the largest of all ranks
  std::vector<bool> known_;  // by group
  std::array<std::int32_t, kElements> integers_{};
};

// Of the largest magnitude: all are smaller than two to its power.
std::int32_t exponent_of(std::span<const float> values);
inline constexpr std::int32_t kNoExponent = INT32_MIN;  // all are 0
inline constexpr std::int32_t kNotFinite = INT32_MAX;  // one is infinite, or no number: neither is the sum

}  // namespace ringcore::aggregation
