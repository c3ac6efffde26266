// Sequences stored as f32, bf16 or f16 (kStored 0, 1, 2): elements to and from f32, alone and in vectors of 16 bytes. Halves
// are widened exactly and rounded once.
#pragma once

#include "half.cuh"

template <int kType>
struct StoredOf {
  typedef unsigned short type;
  typedef uint4 vector;
};
template <>
struct StoredOf<0> {
  typedef float type;
  typedef float4 vector;
};
typedef StoredOf<kStored>::type Stored;
typedef StoredOf<kStored>::vector StoredVector;
// Elements of 16 bytes.
constexpr int kVector = 16 / sizeof(Stored);

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ float widen(unsigned short x) {
  if (kStored == 1) return bf16_value(x);
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
__device__ __forceinline__ void narrow(float& to, float x) { to = x; }
__device__ __forceinline__ void narrow(unsigned short& to, float x) {
  if (kStored == 1) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to) : "f"(x));
#else
    to = bf16_bits(x);
#endif
  } else {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to) : "f"(x));
  }
}

// Two halves in a word, the first in the low bits.
__device__ __forceinline__ unsigned narrow_pair(float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  unsigned pair;
  if (kStored == 1) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
#else
  unsigned short low, high;
  narrow(low, first);
  narrow(high, second);
  return low | static_cast<unsigned>(high) << 16;
#endif
}

// The elements of a vector of 16 bytes, in the order of memory.
__device__ __forceinline__ void widen_vector(float (&to)[4], float4 v) {
  to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}
__device__ __forceinline__ void widen_vector(float (&to)[8], uint4 v) {
  const unsigned pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[2 * i] = widen(static_cast<unsigned short>(pairs[i]));
    if (kStored == 1) to[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
    else to[2 * i + 1] = widen(static_cast<unsigned short>(pairs[i] >> 16));
  }
}
__device__ __forceinline__ float4 narrow_vector(const float (&from)[4]) {
  return make_float4(from[0], from[1], from[2], from[3]);
}
__device__ __forceinline__ uint4 narrow_vector(const float (&from)[8]) {
  return make_uint4(narrow_pair(from[0], from[1]), narrow_pair(from[2], from[3]), narrow_pair(from[4], from[5]),
                    narrow_pair(from[6], from[7]));
}
