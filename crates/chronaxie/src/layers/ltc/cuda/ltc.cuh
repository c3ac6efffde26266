// What the LTC kernels share: the folded synapse, the gate, sums over a group of lanes.
#pragma once
typedef long long i64;

// One synapse, folded once a call: z = sigma (v - mu), p = softplus(w), q = p erev.
struct alignas(16) Synapse {
  float sigma, mu, p, q;
};
// One neuron: c dt = softplus(cm) K, g = softplus(gleak), g vleak, d softplus(cm) / d cm.
struct alignas(16) Neuron {
  float c_dt, g, g_vleak, cm_slope;
};

// sig(sigma (v - mu)). Exact: ex2 and rcp, relative error about 3e-7; fast: one tanh of relative error 2^-11.
__device__ __forceinline__ float gate(const Synapse& s, float v) {
  float z = s.sigma * (v - s.mu);
  if constexpr (kFast) {
    float t;
    asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(0.5f * z));
    return fmaf(0.5f, t, 0.5f);
  } else {
    float e, r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(-1.4426950408889634f * z));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + e));
    return r;
  }
}

__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
// The value that is used for a parameter kept positive, and its derivative.
__device__ __forceinline__ float positive(float x, int constrained) { return constrained ? softplus(x) : x; }
__device__ __forceinline__ float positive_slope(float x, int constrained) { return constrained ? sigmoid(x) : 1.0f; }

// What is kept of an unfold, other than a step's first, for the backward pass where a word is (spec.rs): the state before it, a float as
// it stands, whose last 12 bits are something else: the logarithm (of 2) of its den over that of the step's first unfold, with a sign, 5
// bits of exponent and 6 behind them. The word is the nearest to the state that has those bits: as far off as 2^-12 of it.
constexpr int kWordBase = 107 << 23, kWordMost = 0x0fffffff;
__device__ __forceinline__ unsigned pack_unfold(float v, float logarithm) {
  const unsigned bits = __float_as_uint(v);
  const int size = min(__float_as_int(fmaxf(fabsf(logarithm), __int_as_float(kWordBase))) - (kWordBase - (1 << 16)), kWordMost);
  const int low = (size >> 17) | (int)(__float_as_uint(logarithm) >> 20 & 0x800u);
  const int high = max((int)(bits & 0x7fffffffu) - low + 0x800, 0) & ~0xfff;
  return (bits & 0x80000000u) | (unsigned)(high | low);
}
// The same of den and 1 / den of the step's first unfold.
__device__ __forceinline__ unsigned pack_unfold(float v, float den, float first) {
  float l;
  // Where it stands: behind what was sent.
  asm volatile("lg2.approx.ftz.f32 %0, %1;" : "=f"(l) : "f"(den * first));
  return pack_unfold(v, l);
}
// How many times the step's first den is this one's, from a word.
__device__ __forceinline__ float den_quotient(float word) {
  const unsigned bits = __float_as_uint(word);
  float q;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(q) : "f"(__uint_as_float(((bits & 0x7ffu) << 17) + kWordBase | (~bits & 0x800u) << 20)));
  return q;
}

// The sum over `lanes` neighbouring lanes, in every one of them, always in the same order.
template <int lanes>
__device__ __forceinline__ float group_sum(float x) {
#pragma unroll
  for (int o = lanes / 2; o > 0; o >>= 1) x += __shfl_xor_sync(0xffffffffu, x, o);
  return x;
}
template <class T>
__device__ __forceinline__ T warp_sum(T x) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) x += __shfl_xor_sync(0xffffffffu, x, o);
  return x;
}
