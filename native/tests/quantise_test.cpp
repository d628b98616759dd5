// Quantised blocks against a plain reference: how far values may move, and that they move once only.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/float_mode.hpp"
#include "base/quantise.hpp"

using namespace ringcore;

namespace {

constexpr Compression kCompressions[] = {Compression::kInt8, Compression::kInt4};
constexpr std::size_t kCounts[] = {0, 1, 2, 7, 127, 128, 129, 255, 256, 1000, 4096, 10001};

double most_of(Compression compression) { return compression == Compression::kInt8 ? 127 : 7; }

// float32 with a mantissa of 7 bits, to nearest, ties to even: on doubles, which are exact enough.
double scale_of(Compression compression, double largest) {
  const double scale = static_cast<double>(static_cast<float>(largest / most_of(compression)));
  if (scale < std::ldexp(1.0, -126)) return 0;
  const int exponent = std::ilogb(scale) - 7;
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(scale, -exponent)), exponent);
  const double longest = static_cast<double>(std::numeric_limits<float>::max()) / most_of(compression);
  const int last = std::ilogb(longest) - 7;
  return std::min(rounded, std::ldexp(std::floor(std::ldexp(longest, -last)), last));
}

template <class T>
const std::byte* bytes_of(const std::vector<T>& values) {
  return reinterpret_cast<const std::byte*>(values.data());
}
template <class T>
std::byte* bytes_of(std::vector<T>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

template <class T>
constexpr DType kDTypeOf = std::is_same_v<T, float> ? DType::kFloat32 : DType::kFloat64;

// Of all magnitudes, in each block others.
template <class T>
std::vector<T> draw(std::size_t count, std::mt19937& random) {
  std::normal_distribution<double> value;
  std::uniform_int_distribution<int> exponent(-130, 126);
  std::vector<T> values(count);
  int magnitude = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (i % kQuantisedBlock == 0) magnitude = exponent(random);
    values[i] = static_cast<T>(static_cast<float>(std::ldexp(std::clamp(value(random), -1.99, 1.99), magnitude)));
  }
  return values;
}

// What a value is afterwards, at most half a scale away, and a multiple of it.
template <class T>
void check_values(Compression compression, const std::vector<T>& before, const std::vector<T>& after) {
  for (std::size_t begin = 0; begin < before.size(); begin += kQuantisedBlock) {
    const std::size_t end = std::min(before.size(), begin + kQuantisedBlock);
    double largest = 0;
    for (std::size_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(static_cast<double>(before[i])));
    const double scale = scale_of(compression, largest);
    for (std::size_t i = begin; i < end; ++i) {
      const auto value = static_cast<double>(after[i]);
      const double multiple = scale == 0 ? 0 : value / scale;
      REQUIRE(multiple == std::trunc(multiple));
      REQUIRE(std::abs(multiple) <= most_of(compression));
      // The largest ones of a range that ends before the last multiple may move further.
      if (scale > 0 && std::abs(static_cast<double>(before[i])) <= most_of(compression) * scale) {
        REQUIRE(std::abs(value - static_cast<double>(before[i])) <= scale * 0.500001);
      }
    }
  }
}

template <class T>
void check(Compression compression, std::size_t count, std::mt19937& random) {
  const std::vector<T> before = draw<T>(count, random);
  const std::size_t bytes = quantised_bytes(compression, count);
  std::vector<std::byte> sent(bytes + 1);
  std::byte* const at = sent.data() + 1;  // aligned to nothing
  quantise(compression, kDTypeOf<T>, bytes_of(before), count, at);
  std::vector<T> after(count, T{5});
  dequantise(compression, kDTypeOf<T>, at, count, bytes_of(after));
  check_values(compression, before, after);
  std::vector<std::byte> again(bytes);
  quantise(compression, kDTypeOf<T>, bytes_of(after), count, again.data());
  CHECK(std::equal(again.begin(), again.end(), sent.begin() + 1));
  std::vector<T> rounded = before;
  round_to_quantised(compression, kDTypeOf<T>, bytes_of(rounded), count);
  CHECK(rounded == after);
  std::vector<T> sums(count);
  for (T& sum : sums) sum = static_cast<T>(static_cast<int>(random() % 100));
  std::vector<T> expected = sums;
  for (std::size_t i = 0; i < count; ++i) expected[i] = (expected[i] + after[i]) * static_cast<T>(0.25);
  add_quantised(compression, kDTypeOf<T>, at, count, bytes_of(sums), 0.25);
  CHECK(sums == expected);
}

}  // namespace

TEST_CASE("quantised values are the nearest multiples of their block's scale, and stay what they are") {
  for (const Compression compression : kCompressions) {
    for (const std::size_t count : kCounts) {
      std::mt19937 random(static_cast<unsigned>(count));
      CAPTURE(name_of(compression));
      CAPTURE(count);
      check<float>(compression, count, random);
      check<double>(compression, count, random);
    }
  }
}

TEST_CASE("quantised blocks are as long as they are said to be") {
  CHECK(quantised_bytes(Compression::kInt8, 0) == 0);
  CHECK(quantised_bytes(Compression::kInt8, 1) == 3);
  CHECK(quantised_bytes(Compression::kInt8, 128) == 130);
  CHECK(quantised_bytes(Compression::kInt8, 129) == 133);
  CHECK(quantised_bytes(Compression::kInt4, 128) == 66);
  CHECK(quantised_bytes(Compression::kInt4, 129) == 69);
  CHECK(quantised_values(Compression::kInt8, 129, 300) == 0);
  CHECK(quantised_values(Compression::kInt8, 260, 300) == 256);
  CHECK(quantised_values(Compression::kInt8, quantised_bytes(Compression::kInt8, 300), 300) == 300);
  CHECK(!can_quantise(DType::kFloat16));
  CHECK(!can_quantise(DType::kInt32));
}

TEST_CASE("a block with something that is no number is NaN, and no other block") {
  for (const Compression compression : kCompressions) {
    for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> values(3 * kQuantisedBlock, 1.0F);
      values[kQuantisedBlock + 5] = bad;
      round_to_quantised(compression, DType::kFloat32, bytes_of(values), values.size());
      for (std::size_t i = 0; i < values.size(); ++i) {
        REQUIRE(std::isnan(values[i]) == (i / kQuantisedBlock == 1));
      }
    }
  }
}

TEST_CASE("what is added to sums near zero leaves them on a thread that takes such numbers for zero") {
  constexpr float kNearZero = 3e-40F;
  const std::vector<float> zeros(kQuantisedBlock);
  for (const Compression compression : kCompressions) {
    std::vector<std::byte> quantised(quantised_bytes(compression, zeros.size()));
    quantise(compression, DType::kFloat32, bytes_of(zeros), zeros.size(), quantised.data());
    std::vector<float> sums(zeros.size(), kNearZero);
    const auto before = FloatMode::read();
    FloatMode::write(before | FloatMode::kFlush);
    add_quantised(compression, DType::kFloat32, quantised.data(), sums.size(), bytes_of(sums), 1.0);
    FloatMode::write(before);
    CHECK(sums == std::vector<float>(zeros.size(), kNearZero));
  }
}

TEST_CASE("the largest floats stay finite, the smallest become zero") {
  for (const Compression compression : kCompressions) {
    std::vector<float> values(kQuantisedBlock, std::numeric_limits<float>::max());
    round_to_quantised(compression, DType::kFloat32, bytes_of(values), values.size());
    CHECK(std::isfinite(values[0]));
    CHECK(values[0] > 0.98F * std::numeric_limits<float>::max());
    values.assign(kQuantisedBlock, std::numeric_limits<float>::denorm_min());
    round_to_quantised(compression, DType::kFloat32, bytes_of(values), values.size());
    CHECK(values[0] == 0);
    std::vector<double> wide(kQuantisedBlock, 1e300);
    round_to_quantised(compression, DType::kFloat64, bytes_of(wide), wide.size());
    CHECK(std::isnan(wide[0]));
  }
}
