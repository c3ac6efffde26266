// What the kernels share in which a lane takes kRun steps of a channel: runs of angles, and sums of them.
#pragma once

#include "adaptive.cuh"
#include "runs.cuh"

constexpr int kRun = 8, kTile = 32 * kRun, kWarps = kThreads / 32;
static_assert(kTile % kChunk == 0 && kChunk % kRun == 0, "lanes save the states");

// Kept in a register, and not made again where it is used.
__device__ __forceinline__ int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
// Steps of the run at t, and kRun + 1 if it is whole vectors.
__device__ __forceinline__ int run_at(i64 t, i64 steps, bool aligned) {
  const i64 left = steps - t;
  return left < kRun ? static_cast<int>(left) : kRun + aligned;
}
// Runs of angles are f32 whatever the sequences are.
__device__ __forceinline__ float* angles_of(const Array& a, i64 row, i64 d, i64 n) {
  return reinterpret_cast<float*>(a.base) + offset(a, row, d, n);
}
__device__ __forceinline__ void load_angles(float (&to)[kRun], const float* from, int run) {
  if (run > kRun) {
    load_words(to, from);
  } else {
#pragma unroll
    for (int k = 0; k < kRun; ++k) to[k] = k < run ? from[k] : 0.0f;
  }
}
__device__ __forceinline__ void load_angles(float (&to)[kRun], const Array& a, i64 row, i64 d, i64 n, i64 t, i64 steps,
                                            bool aligned) {
  load_angles(to, angles_of(a, row, d, n) + t, run_at(t, steps, aligned));
}
// Of steps `first` on of the run.
template <int kCount>
__device__ __forceinline__ void store_angles(float* to, int run, int first, const float (&from)[kCount]) {
  if (run > kRun) {
    store_words(to + first, from);
  } else {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (first + k < run) to[first + k] = from[k];
    }
  }
}
// The phases behind each step of the lane, from the one before the tile; gives the phase before the lane's steps.
__device__ __forceinline__ unsigned scan_phases(unsigned (&phase)[kRun], const float (&theta)[kRun], unsigned before) {
  const int lane = threadIdx.x % 32;
  bool far = false;
#pragma unroll
  for (int k = 0; k < kRun; ++k) far |= !(fabsf(theta[k]) < kNear);
  unsigned sum = 0;
  if (!far) {
#pragma unroll
    for (int k = 0; k < kRun; ++k) phase[k] = sum += turns_near(theta[k]);
  } else {
#pragma unroll
    for (int k = 0; k < kRun; ++k) phase[k] = sum += static_cast<unsigned>(turns_of(theta[k])) + kBias;
  }
  sum -= kRun * kBias;
  unsigned all = sum;
#pragma unroll
  for (int by = 1; by < 32; by *= 2) {
    unsigned both = all + __shfl_up_sync(~0u, all, by);
    // One instruction, and not a choice and a sum.
    asm("" : "+r"(both));
    if (lane >= by) all = both;
  }
  before += all - sum;
#pragma unroll
  for (int k = 0; k < kRun; ++k) phase[k] += before - (k + 1) * kBias;
  return before;
}
