#include "base/quantise.hpp"

#include <algorithm>

#include "base/float_mode.hpp"
#include "base/kernel_choice.hpp"

namespace ringcore {
namespace {

constexpr std::size_t kScaleBytes = 2;

std::size_t integer_bytes(Compression compression, std::size_t count) {
  return compression == Compression::kInt4 ? (count + 1) / 2 : count;
}

std::size_t block_bytes(Compression compression) { return kScaleBytes + integer_bytes(compression, kQuantisedBlock); }

const kernels::QuantiseKernels& kernels_of(Compression compression, DType dtype) {
  const auto& by_dtype = kernels::chosen().quantise[static_cast<std::size_t>(compression) - 1];
  return by_dtype[dtype == DType::kFloat64 ? 1 : 0];
}

}  // namespace

bool can_quantise(DType dtype) { return dtype == DType::kFloat32 || dtype == DType::kFloat64; }

std::size_t quantised_bytes(Compression compression, std::size_t count) {
  const std::size_t rest = count % kQuantisedBlock;
  return count / kQuantisedBlock * block_bytes(compression) +
         (rest > 0 ? kScaleBytes + integer_bytes(compression, rest) : 0);
}

double quantised_share(Compression compression) {
  if (compression == Compression::kNone) return 1;
  return static_cast<double>(block_bytes(compression)) / (kQuantisedBlock * sizeof(float));
}

std::size_t quantised_values(Compression compression, std::size_t bytes, std::size_t count) {
  if (bytes == quantised_bytes(compression, count)) return count;
  return bytes / block_bytes(compression) * kQuantisedBlock;
}

void quantise(Compression compression, DType dtype, const std::byte* values, std::size_t count, std::byte* to) {
  const FloatMode mode;
  kernels_of(compression, dtype).quantise(values, count, to);
}

void dequantise(Compression compression, DType dtype, const std::byte* from, std::size_t count, std::byte* values) {
  const FloatMode mode;
  kernels_of(compression, dtype).dequantise(from, count, values);
}

void add_quantised(Compression compression, DType dtype, const std::byte* from, std::size_t count, std::byte* values,
                   double scale) {
  const FloatMode mode;
  kernels_of(compression, dtype).add(from, count, values, scale);
}

void round_to_quantised(Compression compression, DType dtype, std::byte* values, std::size_t count) {
  constexpr std::size_t kAtOnce = 32 * kQuantisedBlock;
  std::byte quantised[kAtOnce + 32 * kScaleBytes];
  for (std::size_t begin = 0; begin < count; begin += kAtOnce) {
    const std::size_t some = std::min(count - begin, kAtOnce);
    std::byte* const at = values + begin * size_of(dtype);
    quantise(compression, dtype, at, some, quantised);
    dequantise(compression, dtype, quantised, some, at);
  }
}

}  // namespace ringcore
