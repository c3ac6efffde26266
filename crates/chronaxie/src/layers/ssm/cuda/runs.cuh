// What the scans share that keep runs of steps in registers: rows whose time is contiguous, by vectors where they are
// aligned, and words of shared memory.
#pragma once

#include "number.cuh"
#include "stored.cuh"

// kCount steps of a row from `t` on; 0 where the row has ended. With kAligned they are whole vectors.
template <int kCount>
__device__ __forceinline__ void load_run(float (&to)[kCount], const Stored* row, i64 t, i64 steps, bool aligned) {
  constexpr int kWide = kCount < kVector ? kCount : kVector;
  struct alignas(kWide * sizeof(Stored)) Wide {
    Stored x[kWide];
  };
  if (aligned && t + kCount <= steps) {
#pragma unroll
    for (int i = 0; i < kCount; i += kWide) {
      const Wide w = *reinterpret_cast<const Wide*>(row + t + i);
#pragma unroll
      for (int k = 0; k < kWide; ++k) to[i + k] = widen(w.x[k]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = t + i < steps ? widen(row[t + i]) : 0.0f;
  }
}
// A vector of 4, 8 or 16 bytes, by name: of an assignment the compiler may make a store of each word.
__device__ __forceinline__ void store_vector(Stored* to, const unsigned (&v)[4]) {
  __stwb(reinterpret_cast<uint4*>(to), make_uint4(v[0], v[1], v[2], v[3]));
}
__device__ __forceinline__ void store_vector(Stored* to, const unsigned (&v)[2]) {
  __stwb(reinterpret_cast<uint2*>(to), make_uint2(v[0], v[1]));
}
__device__ __forceinline__ void store_vector(Stored* to, const unsigned (&v)[1]) {
  __stwb(reinterpret_cast<unsigned*>(to), v[0]);
}
template <int kCount>
__device__ __forceinline__ void store_run(Stored* row, i64 t, i64 steps, bool aligned, const float (&from)[kCount]) {
  constexpr int kWide = kCount < kVector ? kCount : kVector, kEach = 4 / sizeof(Stored);
  if (aligned && t + kCount <= steps) {
#pragma unroll
    for (int i = 0; i < kCount; i += kWide) {
      unsigned words[kWide / kEach];
#pragma unroll
      for (int k = 0; k < kWide; k += kEach) {
        words[k / kEach] = kStored == 0 ? __float_as_uint(from[i + k]) : narrow_pair(from[i + k], from[i + k + kEach - 1]);
      }
      store_vector(row + t + i, words);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (t + i < steps) narrow(row[t + i], from[i]);
    }
  }
}

// The row of a channel in a tensor whose time is contiguous.
__device__ __forceinline__ const Stored* row_of(const Array& a, i64 row, i64 d) {
  return reinterpret_cast<const Stored*>(a.base) + row * a.s[0] + d * a.s[1];
}
__device__ __forceinline__ Stored* row_to(const Array& a, i64 row, i64 d) {
  return reinterpret_cast<Stored*>(a.base) + row * a.s[0] + d * a.s[1];
}

// kCount words of shared memory, at a multiple of 16 bytes.
template <int kCount>
__device__ __forceinline__ void load_words(float (&to)[kCount], const float* from) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const float4 v = *reinterpret_cast<const float4*>(from + i);
    to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
  }
}
template <int kCount>
__device__ __forceinline__ void store_words(float* to, const float (&from)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    *reinterpret_cast<float4*>(to + i) = make_float4(from[i], from[i + 1], from[i + 2], from[i + 3]);
  }
}
