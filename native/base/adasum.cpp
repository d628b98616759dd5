#include "base/adasum.hpp"

#include <bit>
#include <cstring>
#include <vector>

#include "base/error.hpp"

namespace ringcore {
namespace {

struct BFloat16 {
  std::uint16_t bits;
};

double load(float value) { return value; }
double load(double value) { return value; }
double load(_Float16 value) { return static_cast<double>(value); }
double load(BFloat16 value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16); }

void store(float& to, double value) { to = static_cast<float>(value); }
void store(double& to, double value) { to = value; }
void store(_Float16& to, double value) { to = static_cast<_Float16>(value); }
void store(BFloat16& to, double value) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  // To nearest, ties to even; a NaN keeps its sign and stays one.
  to.bits = static_cast<std::uint16_t>(is_nan ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

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

template <class T>
void adasum_of(std::span<const std::byte* const> sources, std::byte* target, std::size_t count, double scale) {
  std::vector<std::vector<double>> vectors(sources.size(), std::vector<double>(count));
  for (std::size_t s = 0; s < sources.size(); ++s) {
    for (std::size_t i = 0; i < count; ++i) {
      T value;
      std::memcpy(&value, sources[s] + i * sizeof(T), sizeof(T));
      vectors[s][i] = load(value) * scale;
    }
  }
  for (std::size_t distance = 1; distance < vectors.size(); distance *= 2) {
    for (std::size_t s = 0; s + distance < vectors.size(); s += 2 * distance)
      combine(vectors[s], vectors[s + distance]);
  }
  for (std::size_t i = 0; i < count; ++i) {
    T value;
    store(value, vectors[0][i]);
    std::memcpy(target + i * sizeof(T), &value, sizeof(T));
  }
}

}  // namespace

void adasum(DType dtype, std::span<const std::byte* const> sources, std::byte* target, std::size_t count,
            double scale) {
  switch (dtype) {
    case DType::kFloat16: return adasum_of<_Float16>(sources, target, count, scale);
    case DType::kBFloat16: return adasum_of<BFloat16>(sources, target, count, scale);
    case DType::kFloat32: return adasum_of<float>(sources, target, count, scale);
    case DType::kFloat64: return adasum_of<double>(sources, target, count, scale);
    default: break;
  }
  throw Error(ErrorKind::kInvalidArgument, "Adasum of " + std::string(name_of(dtype)) +
                                               " is not defined. Remedy: convert the tensor to a float dtype.");
}

}  // namespace ringcore
