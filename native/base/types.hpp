// The words every layer shares: ranks, dtypes, reductions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ringcore {

using Rank = std::int32_t;

// The numeric values are part of the wire format and of the Python binding: append only.
enum class DType : std::uint8_t {
  kUInt8,
  kInt8,
  kUInt16,
  kInt16,
  kInt32,
  kInt64,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kBool,
};
inline constexpr int kDTypeCount = 11;

// `kAverage` exists only in requests: the engine runs it as `kSum` with a scale of 1 / ranks.
enum class ReduceOp : std::uint8_t { kSum, kAverage, kMin, kMax, kProduct };
inline constexpr int kReduceOpCount = 5;

enum class Collective : std::uint8_t {
  kAllreduce,
  kAllgather,
  kBroadcast,
  kReduceScatter,
  kAlltoall,
  kReduce,
  kGather,
  kScatter,
  kBarrier,
};
inline constexpr int kCollectiveCount = 9;

// Values of several ranks become one.
constexpr bool reduces(Collective collective) {
  return collective == Collective::kAllreduce || collective == Collective::kReduceScatter ||
         collective == Collective::kReduce;
}
// One rank gives what the others get, or gets what all give.
constexpr bool has_root(Collective collective) {
  return collective == Collective::kBroadcast || collective == Collective::kReduce ||
         collective == Collective::kGather || collective == Collective::kScatter;
}

// Data are blocks, of which each belongs to one rank.
constexpr bool is_in_blocks(Collective collective) {
  return collective == Collective::kAllgather || collective == Collective::kReduceScatter ||
         collective == Collective::kAlltoall || collective == Collective::kGather || collective == Collective::kScatter;
}

// How the values of a sum travel between hosts (quantise.hpp); inside a host they are not touched.
enum class Compression : std::uint8_t { kNone, kInt8, kInt4 };
inline constexpr int kCompressionCount = 3;

// Bytes of one element.
std::size_t size_of(DType dtype);
bool is_float(DType dtype);
// float16 and bfloat16: summed in float32 and rounded once.
bool is_half(DType dtype);

// Lower-case names as in numpy and in the Python API: "float32", "sum", "allreduce".
std::string_view name_of(DType dtype);
std::string_view name_of(ReduceOp op);
std::string_view name_of(Collective collective);
std::string_view name_of(Compression compression);

}  // namespace ringcore
