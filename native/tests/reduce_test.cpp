// The reduction kernels against a plain scalar reference, for every dtype, operation, odd size and alignment.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/float_mode.hpp"
#include "base/reduce.hpp"

using namespace ringcore;

namespace {

constexpr DType kDTypes[] = {DType::kUInt8,   DType::kInt8,    DType::kUInt16,  DType::kInt16,
                             DType::kInt32,   DType::kInt64,   DType::kFloat16, DType::kBFloat16,
                             DType::kFloat32, DType::kFloat64, DType::kBool};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};
constexpr std::size_t kCounts[] = {0, 1, 7, 8, 9, 15, 31, 33, 63, 64, 65, 1000, 1025};

// 16-bit floats by exact arithmetic on doubles: slow, and written differently from the kernels.
double decode(std::uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

// To nearest, ties to even: the grid of representable values around `value` has a known step.
std::uint16_t encode(double value, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const auto infinity = static_cast<std::uint16_t>(((1 << exponent_bits) - 1) << mantissa_bits);
  if (std::isnan(value)) return static_cast<std::uint16_t>(infinity | 1);
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  if (std::isinf(magnitude)) return static_cast<std::uint16_t>(sign | infinity);
  const int exponent = std::max(std::ilogb(magnitude), 1 - bias);
  const double steps = std::nearbyint(std::ldexp(magnitude, mantissa_bits - exponent));
  const double rounded = std::ldexp(steps, exponent - mantissa_bits);
  if (rounded >= std::ldexp(1.0, bias + 1)) return static_cast<std::uint16_t>(sign | infinity);
  if (rounded < std::ldexp(1.0, 1 - bias)) {
    return static_cast<std::uint16_t>(sign | static_cast<int>(std::ldexp(rounded, bias - 1 + mantissa_bits)));
  }
  const int e = std::ilogb(rounded);
  const int mantissa = static_cast<int>(std::ldexp(rounded, mantissa_bits - e)) - (1 << mantissa_bits);
  return static_cast<std::uint16_t>(sign | ((e + bias) << mantissa_bits) | mantissa);
}

struct HalfFormat {
  int exponent_bits;
  int mantissa_bits;
};
HalfFormat format_of(DType dtype) { return dtype == DType::kFloat16 ? HalfFormat{5, 10} : HalfFormat{8, 7}; }

template <class T>
T combine(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      if constexpr (std::is_integral_v<T>) {
        return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
      } else {
        return a + b;
      }
    case ReduceOp::kProduct:
      if constexpr (std::is_integral_v<T>) {
        return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
      } else {
        return a * b;
      }
    case ReduceOp::kMin:
      if constexpr (!std::is_integral_v<T>) {
        if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
      }
      return b < a ? b : a;
    case ReduceOp::kMax:
      if constexpr (!std::is_integral_v<T>) {
        if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
      }
      return b > a ? b : a;
  }
  __builtin_unreachable();
}

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

template <class T>
void reference_of(ReduceOp op, const std::vector<const std::byte*>& sources, std::byte* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    T value = load<T>(sources[0] + i * sizeof(T));
    for (std::size_t s = 1; s < sources.size(); ++s) value = combine(op, value, load<T>(sources[s] + i * sizeof(T)));
    std::memcpy(out + i * sizeof(T), &value, sizeof(T));
  }
}

void reference(DType dtype, ReduceOp op, const std::vector<const std::byte*>& sources, std::byte* out,
               std::size_t count) {
  switch (dtype) {
    case DType::kUInt8: return reference_of<std::uint8_t>(op, sources, out, count);
    case DType::kInt8: return reference_of<std::int8_t>(op, sources, out, count);
    case DType::kUInt16: return reference_of<std::uint16_t>(op, sources, out, count);
    case DType::kInt16: return reference_of<std::int16_t>(op, sources, out, count);
    case DType::kInt32: return reference_of<std::int32_t>(op, sources, out, count);
    case DType::kInt64: return reference_of<std::int64_t>(op, sources, out, count);
    case DType::kFloat32: return reference_of<float>(op, sources, out, count);
    case DType::kFloat64: return reference_of<double>(op, sources, out, count);
    case DType::kFloat16:
    case DType::kBFloat16: {
      const auto [e, m] = format_of(dtype);
      for (std::size_t i = 0; i < count; ++i) {
        auto value = static_cast<float>(decode(load<std::uint16_t>(sources[0] + 2 * i), e, m));
        for (std::size_t s = 1; s < sources.size(); ++s) {
          value = combine(op, value, static_cast<float>(decode(load<std::uint16_t>(sources[s] + 2 * i), e, m)));
        }
        const std::uint16_t bits = encode(value, e, m);
        std::memcpy(out + 2 * i, &bits, 2);
      }
      return;
    }
    case DType::kBool:
      for (std::size_t i = 0; i < count; ++i) {
        bool value = load<std::uint8_t>(sources[0] + i) != 0;
        for (std::size_t s = 1; s < sources.size(); ++s) {
          const bool other = load<std::uint8_t>(sources[s] + i) != 0;
          value = op == ReduceOp::kSum || op == ReduceOp::kMax ? value || other : value && other;
        }
        out[i] = static_cast<std::byte>(value);
      }
      return;
  }
}

bool is_nan(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::kFloat32: return std::isnan(load<float>(at));
    case DType::kFloat64: return std::isnan(load<double>(at));
    case DType::kFloat16:
    case DType::kBFloat16: {
      const auto [e, m] = format_of(dtype);
      return std::isnan(decode(load<std::uint16_t>(at), e, m));
    }
    case DType::kUInt8:
    case DType::kInt8:
    case DType::kUInt16:
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64:
    case DType::kBool: return false;
  }
  __builtin_unreachable();
}

// Bitwise, but for the payload of NaNs.
bool equal(DType dtype, const std::byte* a, const std::byte* b, std::size_t count) {
  const std::size_t element = size_of(dtype);
  for (std::size_t i = 0; i < count * element; i += element) {
    if (is_nan(dtype, a + i) && is_nan(dtype, b + i)) continue;
    if (std::memcmp(a + i, b + i, element) != 0) return false;
  }
  return true;
}

// Any bits are a valid element, except that a bool is 0 or 1: infinities, NaNs and subnormals are among them.
void fill_randomly(DType dtype, std::byte* data, std::size_t count, std::mt19937& random) {
  for (std::size_t i = 0; i < count * size_of(dtype); ++i) {
    data[i] = static_cast<std::byte>(dtype == DType::kBool ? random() & 1 : random());
  }
}

}  // namespace

TEST_CASE("reduce_into and reduce_many agree with a scalar reference") {
  MESSAGE("kernels: " << std::string(kernel_instruction_set()));
  std::mt19937 random(7);
  for (const DType dtype : kDTypes) {
    const std::size_t element = size_of(dtype);
    for (const ReduceOp op : kOps) {
      for (const std::size_t count : kCounts) {
        for (const std::size_t shift : {std::size_t{0}, element, 3 * element}) {
          const std::size_t sources = 2 + random() % 4;
          std::vector<std::vector<std::byte>> memory(sources + 1, std::vector<std::byte>(count * element + 64));
          std::vector<const std::byte*> inputs;
          for (std::size_t s = 0; s < sources; ++s) {
            fill_randomly(dtype, memory[s].data() + shift, count, random);
            inputs.push_back(memory[s].data() + shift);
          }
          std::vector<std::byte> expected(count * element);
          reference(dtype, op, inputs, expected.data(), count);
          std::byte* const outputs[] = {memory[sources].data() + shift, memory[0].data() + shift};
          const std::vector<std::byte> first(inputs[0], inputs[0] + count * element);
          reduce_many(dtype, op, inputs, outputs, count);
          CAPTURE(name_of(dtype));
          CAPTURE(name_of(op));
          CAPTURE(count);
          CHECK(equal(dtype, outputs[0], expected.data(), count));
          CHECK(equal(dtype, outputs[1], expected.data(), count));

          std::copy(first.begin(), first.end(), memory[0].data() + shift);
          std::vector<std::byte> apart(count * element + 128);
          auto* const line = apart.data() + 64 - reinterpret_cast<std::uintptr_t>(apart.data()) % 64;
          std::byte* const elsewhere[] = {line + (shift > 0 ? element : 0), memory[sources].data() + shift};
          std::memset(elsewhere[1], 0, count * element);
          reduce_many(dtype, op, inputs, elsewhere, count, 1.0, true);
          CHECK(equal(dtype, elsewhere[0], expected.data(), count));
          CHECK(equal(dtype, elsewhere[1], expected.data(), count));

          reference(dtype, op, {first.data(), inputs[1]}, expected.data(), count);
          if (count > 0) std::memcpy(memory[0].data() + shift, first.data(), count * element);
          reduce_into(dtype, op, memory[0].data() + shift, inputs[1], count);
          CHECK(equal(dtype, memory[0].data() + shift, expected.data(), count));
        }
      }
    }
  }
}

TEST_CASE("16-bit floats: every value survives, and a sum of many is rounded once") {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    const auto [e, m] = format_of(dtype);
    std::vector<std::uint16_t> all(65536);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    std::vector<std::uint16_t> result(all.size());
    const auto* from = reinterpret_cast<const std::byte*>(all.data());
    auto* to = reinterpret_cast<std::byte*>(result.data());
    const std::byte* const sources[] = {from};
    std::byte* const targets[] = {to};
    reduce_many(dtype, ReduceOp::kSum, sources, targets, all.size());
    CHECK(equal(dtype, to, from, all.size()));

    // 1 plus many times half of the last place: rounding each time would stay at 1.
    const std::uint16_t one = encode(1.0, e, m);
    const std::uint16_t tiny = encode(std::ldexp(1.0, -m - 1), e, m);
    std::vector<const std::byte*> many(9, reinterpret_cast<const std::byte*>(&tiny));
    many[0] = reinterpret_cast<const std::byte*>(&one);
    std::uint16_t sum = 0;
    std::byte* const sum_target[] = {reinterpret_cast<std::byte*>(&sum)};
    reduce_many(dtype, ReduceOp::kSum, many, sum_target, 1);
    CHECK(decode(sum, e, m) == 1.0 + 8 * std::ldexp(1.0, -m - 1));
  }
}

TEST_CASE("sums near zero are the same on a thread that takes such numbers for zero") {
  constexpr float kNearZero = 3e-40F;
  const auto before = FloatMode::read();
  FloatMode::write(before | FloatMode::kFlush);
  std::vector<float> sums(33, kNearZero);
  const std::vector<float> others(sums);
  auto* const data = reinterpret_cast<std::byte*>(sums.data());
  const auto* const source = reinterpret_cast<const std::byte*>(others.data());
  reduce_into(DType::kFloat32, ReduceOp::kSum, data, source, sums.size());
  const std::vector<const std::byte*> sources = {data, source};
  const std::vector<std::byte*> targets = {data};
  reduce_many(DType::kFloat32, ReduceOp::kSum, sources, targets, sums.size());
  scale_in_place(DType::kFloat32, data, sums.size(), 2.0);
  const bool restored = FloatMode::read() == (before | FloatMode::kFlush);
  FloatMode::write(before);
  CHECK(restored);
  for (const float sum : sums) CHECK(sum == 2 * (kNearZero + kNearZero + kNearZero));
}

TEST_CASE("scales and identities") {
  std::vector<float> floats = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const std::vector<float> others(floats);
  reduce_into(DType::kFloat32, ReduceOp::kSum, reinterpret_cast<std::byte*>(floats.data()),
              reinterpret_cast<const std::byte*>(others.data()), floats.size(), 0.25);
  for (std::size_t i = 0; i < floats.size(); ++i) CHECK(floats[i] == static_cast<float>(i + 1) / 2);
  std::vector<std::int32_t> integers = {1, -3, 2000000000};
  scale_in_place(DType::kInt32, reinterpret_cast<std::byte*>(integers.data()), integers.size(), -3);
  CHECK(integers == std::vector<std::int32_t>{-3, 9, -1705032704});  // wraps like numpy
  std::vector<std::int64_t> wide = {(std::int64_t{1} << 60) + 1};  // more than a float64 holds
  scale_in_place(DType::kInt64, reinterpret_cast<std::byte*>(wide.data()), wide.size(), 2);
  CHECK(wide[0] == (std::int64_t{1} << 61) + 2);
  std::mt19937 random(9);
  for (const DType dtype : kDTypes) {
    for (const ReduceOp op : kOps) {
      std::vector<std::byte> data(100 * size_of(dtype));
      std::vector<std::byte> identity(data.size());
      fill_randomly(dtype, data.data(), 100, random);
      const std::vector<std::byte> before(data);
      fill_identity(dtype, op, identity.data(), 100);
      reduce_into(dtype, op, data.data(), identity.data(), 100);
      CAPTURE(name_of(dtype));
      CAPTURE(name_of(op));
      // -0 + 0 is 0: equal as numbers.
      const bool sums_floats = is_float(dtype) && op == ReduceOp::kSum;
      if (!sums_floats) CHECK(equal(dtype, data.data(), before.data(), 100));
    }
  }
}
