#include "aggregation/tensor.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace ringcore::aggregation {
namespace {

constexpr std::size_t kGroup = kElements;  // blocks whose exponents are one segment

}  // namespace

std::int32_t exponent_of(std::span<const float> values) {
  float largest = 0;
  bool finite = true;
  for (const float value : values) {
    largest = std::max(largest, std::fabs(value));
    finite = finite && std::isfinite(value);
  }
  if (!finite) return kNotFinite;
  if (largest == 0) return kNoExponent;
  int exponent = 0;
  std::frexp(largest, &exponent);
  return exponent;
}

Tensor::Tensor(std::span<float> data, Segment first, bool integers, std::uint32_t ranks)
    : data_(data),
      first_(first),
      // One less: each rank rounds.
      limit_(std::floor(std::numeric_limits<std::int32_t>::max() / static_cast<double>(ranks)) - 1),
      blocks_((data.size() + kElements - 1) / kElements) {
  if (!integers) return;
  groups_ = (blocks_ + kGroup - 1) / kGroup;
  exponents_.resize(blocks_);
  known_.resize(groups_);
}

// The exponents of a group go before the blocks of the one before it: E0 E1 D0 E2 D1 ... D(last).
Tensor::Place Tensor::place(Segment segment) const {
  const std::size_t at = segment - first_;
  if (groups_ == 0) return {false, at};
  if (at == 0) return {true, 0};
  const std::size_t rest = at - 1;
  const std::size_t led = (groups_ - 1) * (kGroup + 1);  // all but the last group are led by exponents
  if (rest >= led) return {false, (groups_ - 1) * kGroup + rest - led};
  const std::size_t group = rest / (kGroup + 1);
  const std::size_t within = rest % (kGroup + 1);
  return within == 0 ? Place{true, group + 1} : Place{false, group * kGroup + within - 1};
}

std::span<float> Tensor::block(std::size_t index) const {
  const std::size_t begin = index * kElements;
  return data_.subspan(begin, std::min(kElements, data_.size() - begin));
}

std::size_t Tensor::blocks_in(std::size_t group) const { return std::min(kGroup, blocks_ - group * kGroup); }

bool Tensor::ready(Segment segment) const {
  if (segment < first_ || segment >= end()) return false;
  const Place at = place(segment);
  return groups_ == 0 || at.exponents || known_[at.index / kGroup];
}

Source::Contribution Tensor::contribution(Segment segment) {
  const Place at = place(segment);
  if (groups_ == 0) return {Sum::kFloat32, 1, std::as_bytes(block(at.index))};
  if (!at.exponents) return {Sum::kInt32, 1, quantised(at.index)};
  const std::size_t count = blocks_in(at.index);
  for (std::size_t i = 0; i < count; ++i) integers_[i] = exponent_of(block(at.index * kGroup + i));
  return {Sum::kMaxInt32, 1, std::as_bytes(std::span(integers_).first(count))};
}

bool Tensor::take(Segment segment, const Source::Contribution& sum) {
  const Place at = place(segment);
  const Sum kind = groups_ == 0 ? Sum::kFloat32 : at.exponents ? Sum::kMaxInt32 : Sum::kInt32;
  const std::size_t count = at.exponents ? blocks_in(at.index) : block(at.index).size();
  if (sum.sum != kind || sum.payload.size() != count * sizeof(float)) return false;
  ++taken_;
  if (groups_ == 0) {
    std::memcpy(block(at.index).data(), sum.payload.data(), sum.payload.size());
  } else if (at.exponents) {
    std::memcpy(exponents_.data() + at.index * kGroup, sum.payload.data(), sum.payload.size());
    known_[at.index] = true;
  } else {
    restore(at.index, sum.payload);
  }
  return true;
}

std::span<const std::byte> Tensor::quantised(std::size_t index) {
  const std::span<const float> values = block(index);
  const std::int32_t exponent = exponents_[index];
  const bool plain = exponent != kNoExponent && exponent != kNotFinite;
  const double factor = plain ? std::ldexp(limit_, -exponent) : 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    integers_[i] = plain ? static_cast<std::int32_t>(std::nearbyint(values[i] * factor)) : 0;
  }
  return std::as_bytes(std::span(integers_).first(values.size()));
}

void Tensor::restore(std::size_t index, std::span<const std::byte> sum) {
  const std::int32_t exponent = exponents_[index];
  const bool plain = exponent != kNoExponent && exponent != kNotFinite;
  const double factor = plain ? std::ldexp(1.0, exponent) / limit_ : 0;
  const std::byte* at = sum.data();
  for (float& value : block(index)) {
    std::int32_t integer = 0;
    std::memcpy(&integer, at, sizeof(integer));
    at += sizeof(integer);
    value = static_cast<float>(integer * factor);
    if (exponent == kNotFinite) value = std::numeric_limits<float>::quiet_NaN();
  }
}

}  // namespace ringcore::aggregation
