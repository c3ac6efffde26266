// Twins of what the bodies of models share (simd_math.rs, models/mod.rs, models/rk4.rs): the same operations in the same order,
// so that a GPU has the CPU's bits. Compiled with --fmad=false: nothing is fused but what says fmaf; denormals stay, and a
// division is rounded once.
#pragma once

// `yes` where x >= than, else `no` (also where x is NaN).
__device__ __forceinline__ float at_least(float x, float than, float yes, float no) { return x >= than ? yes : no; }

__device__ __forceinline__ float clamped(float x, float low, float high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}

// e^x; 0 below -87.7 and infinity above 88.4.
__device__ __forceinline__ float exp_twin(float x) {
  const float round = 12582912.f + 127.f;
  x = clamped(x, -88.f, 88.8f);
  const float u = clamped(x * 1.44269504088896340736f, -127.f, 128.f) + round;
  const float n = u - round, power = __uint_as_float(__float_as_uint(u) << 23);
  float f = fmaf(n, -0.6933594f, x);
  f = fmaf(n, 2.1219444e-4f, f);
  float p = 0.0014064854f;
  p = fmaf(p, f, 0.008379963f);
  p = fmaf(p, f, 0.041664697f);
  p = fmaf(p, f, 0.16666353f);
  p = fmaf(p, f, 0.50000006f);
  p = fmaf(p, f, 1.f);
  p = fmaf(p, f, 1.f);
  return p * power;
}

// Holds a refractory cell, and fires one at or above the threshold.
__device__ __forceinline__ bool fire(float threshold, float reset, float steps, float moved, float& v, float& refractory) {
  const float left = refractory;
  v = at_least(left, 1.f, v, moved);
  const bool fires = v >= threshold;
  v = fires ? reset : v;
  refractory = fires ? steps : at_least(left, 1.f, left - 1.f, 0.f);
  return fires;
}

// One step of Runge and Kutta, of order four; f(stage, state, derivative).
template <int kState, class F>
__device__ __forceinline__ void rk4(float (&s)[kState], float h, float half, float sixth, F f) {
  float k[kState], sum[kState], twice[kState], x[kState];
#pragma unroll
  for (int i = 0; i < kState; ++i) x[i] = s[i];
  f(0, x, k);
#pragma unroll
  for (int i = 0; i < kState; ++i) sum[i] = k[i], x[i] = fmaf(half, k[i], s[i]);
  f(1, x, k);
#pragma unroll
  for (int i = 0; i < kState; ++i) twice[i] = k[i], x[i] = fmaf(half, k[i], s[i]);
  f(2, x, k);
#pragma unroll
  for (int i = 0; i < kState; ++i) twice[i] = twice[i] + k[i], x[i] = fmaf(h, k[i], s[i]);
  f(3, x, k);
#pragma unroll
  for (int i = 0; i < kState; ++i) s[i] = fmaf(sixth, fmaf(2.f, twice[i], sum[i] + k[i]), s[i]);
}
