// Packing, unpacking and scaling of tensors: each of many segments is copied, or multiplied on the way.
// Compiled by NVRTC when a GPU is first used: no header is included here. 16-bit floats are multiplied in float32 and
// rounded once, to nearest, ties to even.
typedef unsigned char Byte;
typedef unsigned short Half;
typedef unsigned int Word;
typedef unsigned long long Address;

struct Segment {
  Address from;
  Address to;
  Address elements;
};

// As in device/kernels.hpp; below the 4 KiB that a kernel's parameters may have.
struct Segments {
  Segment at[128];
  double factor;
};

struct alignas(16) Vector {
  Word words[4];
};

// Each kind of element: how it is stored, and what it is computed in.
struct Float16 {
  typedef Half Stored;
  typedef float Wide;
  static __device__ Wide widened(Stored value) {
    Wide wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value));
    return wide;
  }
  static __device__ Stored narrowed(Wide value) {
    Stored narrow;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow) : "f"(value));
    return narrow;
  }
};

struct BFloat16 {
  typedef Half Stored;
  typedef float Wide;
  static __device__ Wide widened(Stored value) { return __uint_as_float(static_cast<Word>(value) << 16); }
  static __device__ Stored narrowed(Wide value) {
    const Word bits = __float_as_uint(value);
    if (value != value) return static_cast<Stored>(bits >> 16 | 0x40);  // stays a NaN
    return static_cast<Stored>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
};

template <class Type>
struct Plain {
  typedef Type Stored;
  typedef Type Wide;
  static __device__ Wide widened(Stored value) { return value; }
  static __device__ Stored narrowed(Wide value) { return value; }
};
typedef Plain<float> Float32;
typedef Plain<double> Float64;
typedef Plain<Byte> Bytes;

template <class Kind>
__device__ typename Kind::Stored scaled(typename Kind::Stored value, double factor) {
  return Kind::narrowed(Kind::widened(value) * static_cast<typename Kind::Wide>(factor));
}

template <>
__device__ Byte scaled<Bytes>(Byte value, double) {
  return value;
}

template <class Kind>
__device__ Vector scaled(Vector vector, double factor) {
  typedef typename Kind::Stored Stored;
  Stored* elements = reinterpret_cast<Stored*>(&vector);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(Vector) / sizeof(Stored)); ++i) {
    elements[i] = scaled<Kind>(elements[i], factor);
  }
  return vector;
}

// One segment for each row of blocks.
template <class Kind>
__device__ void copy(const Segments& segments) {
  typedef typename Kind::Stored Stored;
  const Segment segment = segments.at[blockIdx.y];
  const Stored* from = reinterpret_cast<const Stored*>(segment.from);
  Stored* to = reinterpret_cast<Stored*>(segment.to);
  const Address thread = static_cast<Address>(blockIdx.x) * blockDim.x + threadIdx.x;
  const Address threads = static_cast<Address>(gridDim.x) * blockDim.x;
  Address done = 0;
  if (((segment.from | segment.to) & 15) == 0) {
    constexpr Address kEach = sizeof(Vector) / sizeof(Stored);
    const Vector* source = reinterpret_cast<const Vector*>(from);
    Vector* target = reinterpret_cast<Vector*>(to);
    const Address vectors = segment.elements / kEach;
    Address i = thread;
    // Four loads are under way before the first one is stored.
    for (; i + 3 * threads < vectors; i += 4 * threads) {
      Vector loaded[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) loaded[k] = source[i + k * threads];
#pragma unroll
      for (int k = 0; k < 4; ++k) target[i + k * threads] = scaled<Kind>(loaded[k], segments.factor);
    }
    for (; i < vectors; i += threads) target[i] = scaled<Kind>(source[i], segments.factor);
    done = vectors * kEach;
  }
  for (Address i = done + thread; i < segment.elements; i += threads) to[i] = scaled<Kind>(from[i], segments.factor);
}

// Parameters that are read where they lie; GPUs before sm_70 cannot be told so.
#if __CUDA_ARCH__ >= 700
#define IN_PLACE __grid_constant__
#else
#define IN_PLACE
#endif

extern "C" {
__global__ void ringcore_copy(const IN_PLACE Segments segments) { copy<Bytes>(segments); }
__global__ void ringcore_scale_float16(const IN_PLACE Segments segments) { copy<Float16>(segments); }
__global__ void ringcore_scale_bfloat16(const IN_PLACE Segments segments) { copy<BFloat16>(segments); }
__global__ void ringcore_scale_float32(const IN_PLACE Segments segments) { copy<Float32>(segments); }
__global__ void ringcore_scale_float64(const IN_PLACE Segments segments) { copy<Float64>(segments); }
}
