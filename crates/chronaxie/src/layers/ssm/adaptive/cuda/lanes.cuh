// What the kernels share in which a lane takes kRun steps of a channel: runs of angles, and sums of them.
#pragma once

#include "adaptive.cuh"
#include "runs.cuh"

constexpr int kRun = 8, kTile = 32 * kRun, kWarps = kThreads / 32;
static_assert(kTile % kChunk == 0 && kChunk % kRun == 0, "lanes save the states");

// Runs of angles are f32 whatever the sequences are.
__device__ __forceinline__ void load_angles(float (&to)[kRun], const Array& a, i64 row, i64 d, i64 n, i64 t, i64 steps,
                                            bool aligned) {
  const float* from = reinterpret_cast<const float*>(a.base) + row * a.s[0] + d * a.s[1] + n * a.s[2] + t;
  if (aligned && t + kRun <= steps) {
    load_words(to, from);
  } else {
#pragma unroll
    for (int k = 0; k < kRun; ++k) to[k] = t + k < steps ? from[k] : 0.0f;
  }
}
template <int kCount>
__device__ __forceinline__ void store_angles(const Array& a, i64 row, i64 d, i64 n, i64 t, i64 steps, bool aligned,
                                             const float (&from)[kCount]) {
  float* to = reinterpret_cast<float*>(a.base) + row * a.s[0] + d * a.s[1] + n * a.s[2] + t;
  if (aligned && t + kCount <= steps) {
    store_words(to, from);
  } else {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (t + k < steps) to[k] = from[k];
    }
  }
}

// The phases behind each step of the lane, from the one before the tile; gives the phase before the lane's steps.
__device__ __forceinline__ unsigned scan_phases(unsigned (&phase)[kRun], const float (&theta)[kRun], unsigned before) {
  const int lane = threadIdx.x % 32;
  float most = 0.0f;
#pragma unroll
  for (int k = 0; k < kRun; ++k) most = fmaxf(most, fabsf(theta[k]));
  unsigned sum = 0;
  if (most < kNear) {
#pragma unroll
    for (int k = 0; k < kRun; ++k) phase[k] = sum += static_cast<unsigned>(turns_near(theta[k]));
  } else {
#pragma unroll
    for (int k = 0; k < kRun; ++k) phase[k] = sum += static_cast<unsigned>(turns_of(theta[k]));
  }
  unsigned all = sum;
#pragma unroll
  for (int by = 1; by < 32; by *= 2) {
    const unsigned other = __shfl_up_sync(~0u, all, by);
    if (lane >= by) all += other;
  }
  before += all - sum;
#pragma unroll
  for (int k = 0; k < kRun; ++k) phase[k] += before;
  return before;
}
