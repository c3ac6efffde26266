// Angles as turns: the twin of phase.rs. The integers are those of the CPU to the bit, so the source that includes this is
// compiled with --fmad=false and fuses by name; a sum of them is exact, wraps around, and has no order.
#pragma once

__device__ __forceinline__ int turn_parts(float turns) {
  float fraction = turns - rintf(turns);
  if (fraction == 0.5f) fraction = -0.5f;
  return __float2int_rn(fraction * 4294967296.0f);
}

// An angle in radians as 2^-32 parts of a turn, through both halves of 1 / (2 pi).
__device__ __forceinline__ int turns_of(float radians) {
  const float high = radians * 0.15915493667125702f;
  const float low = fmaf(radians, 6.4206382432985265e-9f, fmaf(radians, 0.15915493667125702f, -high));
  return static_cast<int>(static_cast<unsigned>(turn_parts(high)) + static_cast<unsigned>(turn_parts(low)));
}

// The same of angles below kNear, and kBias more: the sum with 1.5 2^23 has the low half's integer in its last bits, and the high
// half's come from 64 bits where their conversion is fast, as whole turns are multiples of 2^32.
constexpr float kNear = 65536.0f;
constexpr unsigned kBias = 0x4b400000u;
__device__ __forceinline__ unsigned turns_near(float radians) {
  const float high = radians * 683565248.0f, more = fmaf(radians, -683565248.0f, high);
  const float low = fmaf(radians, 27.576432f, -more) + 12582912.0f;
#if __CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000
  const unsigned parts = static_cast<unsigned>(__float2ll_rn(high));
#else
  const float whole = high + 54043195528445952.0f;
  unsigned parts = static_cast<unsigned>(__float2int_rn(high - (whole - 54043195528445952.0f)));
  // Half a turn is more than an integer holds, and is minus half a turn.
  parts += parts == 0x7fffffffu;
#endif
  return parts + __float_as_uint(low);
}

// Cosine, sine, and cosine less 1 without cancellation near 0, of an angle in turns.
struct Circular {
  float cos, sin, cos_m1;
};
__device__ __forceinline__ Circular circular(int turns) {
  const int quarter = static_cast<int>(static_cast<unsigned>(turns) + (1u << 29)) >> 30;
  const int rest = static_cast<int>(static_cast<unsigned>(turns) - (static_cast<unsigned>(quarter) << 30));
  const float x = static_cast<float>(rest) * 1.4629180792671596e-9f, x2 = x * x;
  float s = fmaf(-2.5052108e-8f, x2, 2.7557319e-6f);
  s = fmaf(fmaf(fmaf(s, x2, -1.984127e-4f), x2, 8.333333e-3f), x2, -0.16666667f);
  s = fmaf(s * x2, x, x);
  float m = fmaf(-2.755732e-7f, x2, 2.4801587e-5f);
  m = fmaf(fmaf(fmaf(m, x2, -1.3888889e-3f), x2, 4.1666667e-2f), x2, -0.5f) * x2;
  const float c = 1.0f + m, sign = quarter & 2 ? -1.0f : 1.0f;
  Circular r;
  r.sin = sign * (quarter & 1 ? c : s);
  r.cos = sign * (quarter & 1 ? -s : c);
  r.cos_m1 = (quarter & 3) == 0 ? m : r.cos - 1.0f;
  return r;
}

__device__ __forceinline__ float sigmoid(float x) {
  const float e = expf(-fabsf(x));
  return x < 0.0f ? e / (1.0f + e) : 1.0f / (1.0f + e);
}
__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }
__device__ __forceinline__ float silu_slope(float x) {
  const float s = sigmoid(x);
  return s * fmaf(x, 1.0f - s, 1.0f);
}

// The sum over a warp, in one order, in every lane.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int by = 16; by > 0; by /= 2) x += __shfl_xor_sync(~0u, x, by);
  return x;
}
