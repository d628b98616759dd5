#include "base/reduce.hpp"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>

#include "base/float_mode.hpp"
#include "base/kernel_choice.hpp"

namespace ringcore {
namespace {

using kernels::KernelTable;

struct Choice {
  const KernelTable* table;
  const char* name;
};

// RINGCORE_KERNELS names a smaller instruction set, for tests and for measuring.
Choice choose() {
  [[maybe_unused]] const char* wanted = std::getenv("RINGCORE_KERNELS");
#if defined(__x86_64__)
  const auto allows = [wanted](std::string_view name) { return wanted == nullptr || wanted == name; };
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx512 && allows("avx512")) return {&kernels::avx512::kTable, "avx512"};
  if (avx2 && allows("avx2")) return {&kernels::avx2::kTable, "avx2"};
  return {&kernels::baseline::kTable, "sse2"};
#else
  return {&kernels::baseline::kTable, "baseline"};
#endif
}

const Choice& choice() {
  static const Choice chosen = choose();
  return chosen;
}

const kernels::ElementKernels& kernels_of(DType dtype) {
  return kernels::chosen().by_dtype[static_cast<std::size_t>(dtype)];
}

const kernels::Reduction& reduction_of(DType dtype, ReduceOp op) {
  return kernels_of(dtype).reductions[static_cast<std::size_t>(op)];
}

template <class T>
void fill(std::byte* data, std::size_t count, T value) {
  for (std::size_t i = 0; i < count; ++i) std::memcpy(data + i * sizeof(T), &value, sizeof(T));
}

template <class T>
void fill_identity_of(ReduceOp op, std::byte* data, std::size_t count) {
  using Limits = std::numeric_limits<T>;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage: return fill<T>(data, count, T{0});
    case ReduceOp::kProduct: return fill<T>(data, count, T{1});
    case ReduceOp::kMin: return fill<T>(data, count, Limits::has_infinity ? Limits::infinity() : Limits::max());
    case ReduceOp::kMax: return fill<T>(data, count, Limits::has_infinity ? -Limits::infinity() : Limits::lowest());
  }
}

// 16-bit floats by their bits: zero, one, infinity, minus infinity.
void fill_half(ReduceOp op, std::byte* data, std::size_t count, std::uint16_t one, std::uint16_t infinity) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage: return fill<std::uint16_t>(data, count, 0);
    case ReduceOp::kProduct: return fill<std::uint16_t>(data, count, one);
    case ReduceOp::kMin: return fill<std::uint16_t>(data, count, infinity);
    case ReduceOp::kMax: return fill<std::uint16_t>(data, count, static_cast<std::uint16_t>(infinity | 0x8000));
  }
}

}  // namespace

const KernelTable& kernels::chosen() { return *choice().table; }

void reduce_into(DType dtype, ReduceOp op, std::byte* dst, const std::byte* src, std::size_t count, double scale) {
  const FloatMode mode;
  if (count > 0) reduction_of(dtype, op).into(dst, src, count, scale);
}

void reduce_many(DType dtype, ReduceOp op, std::span<const std::byte* const> srcs, std::span<std::byte* const> dsts,
                 std::size_t count, double scale, bool past_caches) {
  const FloatMode mode;
  const kernels::Reduction& reduction = reduction_of(dtype, op);
  const auto reduce = past_caches ? reduction.past_caches : reduction.many;
  if (count > 0) reduce(srcs.data(), srcs.size(), dsts.data(), dsts.size(), count, scale);
}

void scale_in_place(DType dtype, std::byte* data, std::size_t count, double factor) {
  const FloatMode mode;
  if (count > 0) kernels_of(dtype).scale(data, count, factor);
}

void fill_identity(DType dtype, ReduceOp op, std::byte* data, std::size_t count) {
  switch (dtype) {
    case DType::kUInt8: return fill_identity_of<std::uint8_t>(op, data, count);
    case DType::kInt8: return fill_identity_of<std::int8_t>(op, data, count);
    case DType::kUInt16: return fill_identity_of<std::uint16_t>(op, data, count);
    case DType::kInt16: return fill_identity_of<std::int16_t>(op, data, count);
    case DType::kInt32: return fill_identity_of<std::int32_t>(op, data, count);
    case DType::kInt64: return fill_identity_of<std::int64_t>(op, data, count);
    case DType::kFloat16: return fill_half(op, data, count, 0x3c00, 0x7c00);
    case DType::kBFloat16: return fill_half(op, data, count, 0x3f80, 0x7f80);
    case DType::kFloat32: return fill_identity_of<float>(op, data, count);
    case DType::kFloat64: return fill_identity_of<double>(op, data, count);
    case DType::kBool: return fill<std::uint8_t>(data, count, op == ReduceOp::kMin || op == ReduceOp::kProduct ? 1 : 0);
  }
}

const char* kernel_instruction_set() { return choice().name; }

}  // namespace ringcore
