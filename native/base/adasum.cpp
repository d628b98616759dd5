#include "base/adasum.hpp"

#include <cstring>
#include <vector>

#include "base/error.hpp"
#include "base/float_mode.hpp"

namespace ringcore {
namespace {

#include "base/half.inc"

// A float that rounds to 16 bits as the double does: what the double has more than it is kept in its last bit.
float rounded_to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  if (!(static_cast<double>(nearest) != value) || nearest != nearest) return nearest;
  const bool is_beyond = value < 0 ? nearest < value : nearest > value;
  return bits<float>((bits<std::uint32_t>(nearest) - (is_beyond ? 1 : 0)) | 1);
}

template <class T>
struct Plain {
  using Stored = T;
  static double load(Stored stored) { return stored; }
  static Stored store(double value) { return static_cast<T>(value); }
};
struct Float16 {
  using Stored = std::uint16_t;
  static double load(Stored stored) { return half_to_float(stored); }
  static Stored store(double value) { return float_to_half(rounded_to_odd(value)); }
};
struct BFloat16 {
  using Stored = std::uint16_t;
  static double load(Stored stored) { return bfloat_to_float(stored); }
  static Stored store(double value) { return float_to_bfloat(rounded_to_odd(value)); }
};

void combine(std::vector<double>& a, const std::vector<double>& b) {
  double dot = 0.0, norm_a = 0.0, norm_b = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    dot += a[i] * b[i];
    norm_a += a[i] * a[i];
    norm_b += b[i] * b[i];
  }
  const double of_a = norm_a > 0.0 ? 1.0 - dot / (2.0 * norm_a) : 1.0;
  const double of_b = norm_b > 0.0 ? 1.0 - dot / (2.0 * norm_b) : 1.0;
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = of_a * a[i] + of_b * b[i];
}

template <class E>
void adasum_of(std::span<const std::byte* const> sources, std::byte* target, std::size_t count, double scale) {
  const FloatMode mode;
  std::vector<std::vector<double>> vectors(sources.size(), std::vector<double>(count));
  for (std::size_t s = 0; s < sources.size(); ++s) {
    for (std::size_t i = 0; i < count; ++i) {
      typename E::Stored stored;
      std::memcpy(&stored, sources[s] + i * sizeof(stored), sizeof(stored));
      vectors[s][i] = E::load(stored) * scale;
    }
  }
  for (std::size_t distance = 1; distance < vectors.size(); distance *= 2) {
    for (std::size_t s = 0; s + distance < vectors.size(); s += 2 * distance)
      combine(vectors[s], vectors[s + distance]);
  }
  for (std::size_t i = 0; i < count; ++i) {
    const typename E::Stored stored = E::store(vectors[0][i]);
    std::memcpy(target + i * sizeof(stored), &stored, sizeof(stored));
  }
}

}  // namespace

void adasum(DType dtype, std::span<const std::byte* const> sources, std::byte* target, std::size_t count,
            double scale) {
  switch (dtype) {
    case DType::kFloat16: return adasum_of<Float16>(sources, target, count, scale);
    case DType::kBFloat16: return adasum_of<BFloat16>(sources, target, count, scale);
    case DType::kFloat32: return adasum_of<Plain<float>>(sources, target, count, scale);
    case DType::kFloat64: return adasum_of<Plain<double>>(sources, target, count, scale);
    default: break;
  }
  throw Error(ErrorKind::kInvalidArgument, "Adasum of " + std::string(name_of(dtype)) +
                                               " is not defined. Remedy: convert the tensor to a float dtype.");
}

}  // namespace ringcore
