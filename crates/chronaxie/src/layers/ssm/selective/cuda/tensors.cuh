// What the kernels of selective_scan share: their argument.
#pragma once

#include "number.cuh"
#include "phase.cuh"

// Steps from one saved state to the next.
constexpr int kChunk = 64;

struct Tensors {
  Array u, delta, a, b, c, skip, z, bias, h0;  // what is not given has no base
  Array out, last, chunks;
  Array grad_out, grad_last;
  Array g_u, g_delta, g_a, g_b, g_c, g_skip, g_z, g_bias, g_h0;
  Number *part_a, *part_b, *part_c, *trace;  // [parts, D, N] or (varying weights) [slices, B, G, N, T]; [warps, 64, N]
  float* part_vectors;                       // [2, parts, D]
  const int* table;                          // [B] or null: the step's
  Marks marks;
  i64 batch, channels, states, groups, parts, slices, own, b_varies, c_varies, softplus, slots;
  i64 aligned, channels_a_warp, segments;    // what only lanes.cu and lanes_backward.cu use
  float* carry;                              // [segments, B, D, N, 2]
};
