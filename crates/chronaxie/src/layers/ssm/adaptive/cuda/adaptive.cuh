// What the kernels of adaptive_theta share: their argument, and sums that keep what rounding takes.
#pragma once

#include "number.cuh"
#include "phase.cuh"

// Steps from one saved state to the next.
constexpr int kChunk = 128;

struct Tensors {
  Array theta, rho, u, delta, b, c, skip, z, h0;         // what is not given has no base
  Array out, last, chunks, phases;                       // forward writes, backward reads the saved ones
  Array grad_out, grad_last;
  Array g_theta, g_rho, g_u, g_delta, g_b, g_c, g_skip, g_z, g_h0;
  Complex *part_b, *part_c, *trace;                      // [parts, D, N] twice, [warps, 128, N]
  float* part_skip;                                      // [parts, D]
  Marks marks;
  i64 channels, states, parts, silu, aligned;
};

struct Sum {
  float value, lost;
};
__device__ __forceinline__ Sum plus(Sum s, float x) {
  x += s.lost;
  const float value = s.value + x;
  return {value, x - (value - s.value)};
}
// e^rho s + x
__device__ __forceinline__ Sum decay_plus(Sum s, float e, float less, float x) {
  const float rest = fmaf(s.lost, e, x);
  if (less < -0.5f) return {fmaf(s.value, e, rest), 0.0f};
  const float difference = fmaf(s.value, less, rest), value = s.value + difference;
  return {value, difference - (value - s.value)};
}
