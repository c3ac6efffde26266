// What lanes.cu and lanes_backward.cu share: the functions of a step, and tiles of weights.
#pragma once

#include "runs.cuh"
#include "tensors.cuh"

constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

__device__ __forceinline__ float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float rcp(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// log(1 + t) for t within 0 and 1: t times a polynomial, to 2e-7 of the value. No cancellation near 0, as 1 + t would have.
__device__ __forceinline__ float log_one_plus(float t) {
  float r = fmaf(0.005232676398009062f, t, -0.029505180194973946f);
  r = fmaf(r, t, 0.07822588086128235f);
  r = fmaf(r, t, -0.13663242757320404f);
  r = fmaf(r, t, 0.19106006622314453f);
  r = fmaf(r, t, -0.24842983484268188f);
  r = fmaf(r, t, 0.3331909775733948f);
  r = fmaf(r, t, -0.4999949336051941f);
  r = fmaf(r, t, 0.9999999403953552f);
  return r * t;
}
__device__ __forceinline__ float softplus_of(float x) {
  return fmaxf(x, 0.0f) + log_one_plus(ex2(-fabsf(x) * kLog2e));
}
__device__ __forceinline__ float sigmoid_of(float x) { return rcp(1.0f + ex2(-x * kLog2e)); }

// Fills a tile of weights, [kStates][kRuns][kRun] with kPitch words from run to run, from `t` on: every thread of the block
// takes part, with the same four steps of some states. What lies outside is 0.
template <int kRuns, int kRun, int kPitch>
__device__ __forceinline__ void fill_weights(float* to, int states, const Array& from, i64 row, i64 group, int known, i64 t,
                                             i64 steps, bool aligned) {
  constexpr int kQuads = kRuns * kRun / 4, kAtOnce = kThreads / kQuads;
  static_assert(kThreads % kQuads == 0, "a thread keeps to its steps");
  const int q = threadIdx.x % kQuads * 4;
  const i64 left = steps - t - q, stride = kAtOnce * from.s[2];
  int n = threadIdx.x / kQuads;
  const Stored* at = reinterpret_cast<const Stored*>(from.base) + row * from.s[0] + group * from.s[1] + n * from.s[2] + t + q;
  to += (n * kRuns + q / kRun) * kPitch + q % kRun;
  if (aligned && left >= 4 && states == known) {
#pragma unroll 4
    for (; n < states; n += kAtOnce, at += stride, to += kAtOnce * kRuns * kPitch) {
      float x[4];
      load_run(x, at, 0, 4, true);
      store_words(to, x);
    }
  } else {
    for (; n < states; n += kAtOnce, at += stride, to += kAtOnce * kRuns * kPitch) {
      float x[4];
      load_run(x, at, 0, n < known ? left : 0, false);
      store_words(to, x);
    }
  }
}
