// Whole numbers of a distribution, drawn by 32 bits: the twin of network/distribution.rs and network/weights.rs.
#pragma once
#include "draws.cuh"

struct Codes {
  const unsigned* thresholds;  // [count] 2^32 P(code <= first + k)
  int count, first;
};
__device__ __forceinline__ int pick(const Codes& codes, unsigned bits) {
  return codes.first + reached(bits, codes.thresholds, codes.count);
}

// Knots of an octave, as a power of two, and of either half of a curve, one less.
constexpr unsigned kFine = 8, kKnots = (32 - kFine) << kFine;

// On the line between two quantiles, rounded to single precision.
__device__ __forceinline__ int on_curve(const int* knots, unsigned bits) {
  const unsigned upper = bits >> 31, share = upper ? ~bits : bits, zeros = (unsigned)__clz((int)share);
  const unsigned octave = zeros < 31 - kFine ? 31 - kFine - zeros : 0;
  const int* at = knots + upper * (kKnots + 1) + (octave << kFine) + (share >> octave);
  const long long from = __ldg(at), to = __ldg(at + 1);
  const long long past = share & ((1u << octave) - 1);
  return (int)(float)(int)(from + (((to - from) * past + (1u << octave >> 1)) >> octave));
}

// A weight. Of kLong the upper eight bits of the count say by how many bits a code is shifted, or, all ones, that there is a curve.
__device__ __forceinline__ int pick_weight(const Codes& codes, unsigned bits) {
  if constexpr (kLong) {
    const unsigned count = (unsigned)codes.count, more = count >> 24;
    if (more == 0xFF) return on_curve((const int*)codes.thresholds, bits);
    return (codes.first + reached(bits, codes.thresholds, (int)(count & 0xFFFFFFu))) * (1 << more);
  } else {
    return pick(codes, bits);
  }
}
