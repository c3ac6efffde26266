// Numbers stored in 16 bits, f16 and bf16, by operations on bits, so that every architecture gives the same: widened exactly,
// rounded to the nearest, ties to even.
#pragma once

__device__ __forceinline__ float f16_value(unsigned short bits) {
  const unsigned sign = (bits & 0x8000u) << 16, rest = (bits & 0x7fffu) << 13;
  // Exponents are moved by a multiplication, which makes subnormal numbers normal too.
  const unsigned moved = __float_as_uint(__uint_as_float(rest) * __uint_as_float(0x77800000u));
  return __uint_as_float(sign | (rest >= (0x7c00u << 13) ? rest | 0x7f800000u : moved));
}

__device__ __forceinline__ unsigned short f16_bits(float x) {
  const unsigned bits = __float_as_uint(x), sign = bits >> 16 & 0x8000u, a = bits & 0x7fffffffu;
  if (a >= 0x477ff000u) return sign | (a > 0x7f800000u ? 0x7e00u : 0x7c00u);
  // The unit of 0.5 in the last place is that of subnormal halves, so the addition rounds as it should.
  if (a < 0x38800000u) return sign | (__float_as_uint(__uint_as_float(a) + 0.5f) - 0x3f000000u);
  const unsigned moved = a - 0x38000000u;
  return sign | (moved + 0xfffu + (moved >> 13 & 1u)) >> 13;
}

__device__ __forceinline__ float bf16_value(unsigned short bits) { return __uint_as_float((unsigned)bits << 16); }

__device__ __forceinline__ unsigned short bf16_bits(float x) {
  const unsigned bits = __float_as_uint(x);
  return x != x ? 0x7fc0 : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}
