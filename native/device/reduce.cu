// Sums, minima, maxima and products of the same elements of several buffers, in the order of the buffers.
// Compiled by NVRTC when ranks that share a GPU meet on it. 16-bit floats are computed in float32 and rounded once; NaN
// stays NaN, also in minima and maxima; integers wrap.
#include "kernels.cu"

// As in device/reduce.hpp.
struct Sources {
  Address from[64];
  Address to;  // may be one of them
  Address vectors;
  double factor;
  int count;
  int op;
};

enum Op { kSum = 0, kMin = 2, kMax = 3, kProduct = 4 };  // as base/types.hpp

template <class Type>
struct Unsigned {
  typedef Type Same;
};
template <>
struct Unsigned<int> {
  typedef unsigned Same;
};
template <>
struct Unsigned<long long> {
  typedef unsigned long long Same;
};

template <int op, class Wide>
__device__ Wide combined(Wide a, Wide b) {
  typedef typename Unsigned<Wide>::Same Wrapping;
  if constexpr (op == kSum) return static_cast<Wide>(static_cast<Wrapping>(a) + static_cast<Wrapping>(b));
  if constexpr (op == kProduct) return static_cast<Wide>(static_cast<Wrapping>(a) * static_cast<Wrapping>(b));
  if constexpr (op == kMin) return a < b || a != a ? a : b;
  if constexpr (op == kMax) return a > b || a != a ? a : b;
}

template <class Kind, int op>
__device__ void reduce(const Sources& sources) {
  typedef typename Kind::Stored Stored;
  typedef typename Kind::Wide Wide;
  constexpr int kEach = sizeof(Vector) / sizeof(Stored);
  const Address threads = static_cast<Address>(gridDim.x) * blockDim.x;
  for (Address i = static_cast<Address>(blockIdx.x) * blockDim.x + threadIdx.x; i < sources.vectors; i += threads) {
    Vector vector = reinterpret_cast<const Vector*>(sources.from[0])[i];
    Stored* elements = reinterpret_cast<Stored*>(&vector);
    Wide result[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) result[k] = Kind::widened(elements[k]);
    for (int source = 1; source < sources.count; ++source) {
      vector = reinterpret_cast<const Vector*>(sources.from[source])[i];
#pragma unroll
      for (int k = 0; k < kEach; ++k) result[k] = combined<op>(result[k], Kind::widened(elements[k]));
    }
    if (sources.factor != 1.0) {
#pragma unroll
      for (int k = 0; k < kEach; ++k) result[k] *= static_cast<Wide>(sources.factor);
    }
#pragma unroll
    for (int k = 0; k < kEach; ++k) elements[k] = Kind::narrowed(result[k]);
    reinterpret_cast<Vector*>(sources.to)[i] = vector;
  }
}

template <class Kind>
__device__ void reduce(const Sources& sources) {
  switch (sources.op) {
    case kSum: return reduce<Kind, kSum>(sources);
    case kMin: return reduce<Kind, kMin>(sources);
    case kMax: return reduce<Kind, kMax>(sources);
    case kProduct: return reduce<Kind, kProduct>(sources);
  }
}

extern "C" {
__global__ void ringcore_reduce_uint8(const IN_PLACE Sources s) { reduce<Plain<Byte>>(s); }
__global__ void ringcore_reduce_int8(const IN_PLACE Sources s) { reduce<Plain<signed char>>(s); }
__global__ void ringcore_reduce_uint16(const IN_PLACE Sources s) { reduce<Plain<unsigned short>>(s); }
__global__ void ringcore_reduce_int16(const IN_PLACE Sources s) { reduce<Plain<short>>(s); }
__global__ void ringcore_reduce_int32(const IN_PLACE Sources s) { reduce<Plain<int>>(s); }
__global__ void ringcore_reduce_int64(const IN_PLACE Sources s) { reduce<Plain<long long>>(s); }
__global__ void ringcore_reduce_float16(const IN_PLACE Sources s) { reduce<Float16>(s); }
__global__ void ringcore_reduce_bfloat16(const IN_PLACE Sources s) { reduce<BFloat16>(s); }
__global__ void ringcore_reduce_float32(const IN_PLACE Sources s) { reduce<Float32>(s); }
__global__ void ringcore_reduce_float64(const IN_PLACE Sources s) { reduce<Float64>(s); }
}
