// What the scans share that run one state after the other: tensors of any strides and storage type, real and complex
// numbers, and what lies along the time axis.
#pragma once

typedef long long i64;

// Storage of the sequences: 0 f32, 1 bf16, 2 f16 (kStored). Numbers of states are f32, or pairs of f32 (kComplex).
struct Array {
  char* base;
  i64 s[4];  // strides in elements
};

__device__ __forceinline__ i64 offset(const Array& a, i64 i, i64 j, i64 k = 0, i64 l = 0) {
  return i * a.s[0] + j * a.s[1] + k * a.s[2] + l * a.s[3];
}

__device__ __forceinline__ float from_half(unsigned short h) {
  const unsigned sign = (h & 0x8000u) << 16, rest = h & 0x7fffu;
  if (rest >= 0x7c00u) return __uint_as_float(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  // The exponents of f16 lie 112 below those of f32: exact, for subnormal numbers too.
  return __uint_as_float(sign | __float_as_uint(__uint_as_float(rest << 13) * 5.192296858534828e33f));
}

// To the nearest, ties to even.
__device__ __forceinline__ unsigned short to_half(float x) {
  const unsigned bits = __float_as_uint(x), sign = bits >> 16 & 0x8000u;
  unsigned rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return sign | 0x7e00u;
  if (rest >= 0x47800000u) return sign | 0x7c00u;
  if (rest < 0x38800000u) {
    // The sum with 1/2 has the last bit of the smallest f16.
    rest = __float_as_uint(__uint_as_float(rest) + 0.5f) - 0x3f000000u;
    return sign | rest;
  }
  rest += 0xc8000fffu + (rest >> 13 & 1u);
  return sign | rest >> 13;
}

__device__ __forceinline__ unsigned short to_bfloat(float x) {
  const unsigned bits = __float_as_uint(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return bits >> 16 | 0x40u;
  return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

// An element of a sequence.
__device__ __forceinline__ float load_stored(const Array& a, i64 at) {
  if (kStored == 0) return reinterpret_cast<const float*>(a.base)[at];
  const unsigned short bits = reinterpret_cast<const unsigned short*>(a.base)[at];
  return kStored == 1 ? __uint_as_float(static_cast<unsigned>(bits) << 16) : from_half(bits);
}
__device__ __forceinline__ void store_stored(const Array& a, i64 at, float x) {
  if (kStored == 0) reinterpret_cast<float*>(a.base)[at] = x;
  else reinterpret_cast<unsigned short*>(a.base)[at] = kStored == 1 ? to_bfloat(x) : to_half(x);
}
__device__ __forceinline__ float load_float(const Array& a, i64 at) { return reinterpret_cast<const float*>(a.base)[at]; }
__device__ __forceinline__ void store_float(const Array& a, i64 at, float x) { reinterpret_cast<float*>(a.base)[at] = x; }

struct Real {
  float re;
};
struct Complex {
  float re, im;
};

// a b + c
__device__ __forceinline__ Real fma(Real a, Real b, Real c) { return {fmaf(a.re, b.re, c.re)}; }
__device__ __forceinline__ Complex fma(Complex a, Complex b, Complex c) {
  return {fmaf(a.re, b.re, fmaf(-a.im, b.im, c.re)), fmaf(a.re, b.im, fmaf(a.im, b.re, c.im))};
}
__device__ __forceinline__ Real mul(Real a, Real b) { return {a.re * b.re}; }
__device__ __forceinline__ Complex mul(Complex a, Complex b) { return fma(a, b, Complex{0.f, 0.f}); }
__device__ __forceinline__ Real conj(Real a) { return a; }
__device__ __forceinline__ Complex conj(Complex a) { return {a.re, -a.im}; }
__device__ __forceinline__ Real add(Real a, Real b) { return {a.re + b.re}; }
__device__ __forceinline__ Complex add(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
__device__ __forceinline__ Real scale(Real a, float s) { return {a.re * s}; }
__device__ __forceinline__ Complex scale(Complex a, float s) { return {a.re * s, a.im * s}; }
// The real part of a conj(b).
__device__ __forceinline__ float dot(Real a, Real b) { return a.re * b.re; }
__device__ __forceinline__ float dot(Complex a, Complex b) { return fmaf(a.re, b.re, a.im * b.im); }

template <bool kWide>
struct Of {
  typedef Real type;
};
template <>
struct Of<true> {
  typedef Complex type;
};
typedef Of<kComplex>::type Number;

// A number of a state or weight: f32, or c64.
__device__ __forceinline__ Number load_number(const Array& a, i64 at) { return reinterpret_cast<const Number*>(a.base)[at]; }
__device__ __forceinline__ void store_number(const Array& a, i64 at, Number x) { reinterpret_cast<Number*>(a.base)[at] = x; }

// Where states begin, end and are forgotten.
struct Marks {
  const unsigned char* reset;  // [B, T] or null
  const int* offsets;          // [S + 1] or null
  i64 units, steps;
};
struct Unit {
  i64 row, begin, end;
};
// The host has no look at offsets on the device: whatever they hold, a unit lies within the row.
__device__ __forceinline__ Unit unit_at(const Marks& m, i64 i) {
  if (!m.offsets) return {i, 0, m.steps};
  const i64 begin = min(max(static_cast<i64>(m.offsets[i]), 0ll), m.steps);
  return {0, begin, min(max(static_cast<i64>(m.offsets[i + 1]), begin), m.steps)};
}
__device__ __forceinline__ bool is_fresh(const Marks& m, i64 row, i64 t) {
  return m.reset && m.reset[row * m.steps + t] != 0;
}
