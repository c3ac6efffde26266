// selective_scan, forward, where A is real, the rule `exp`, B and C vary, and time is contiguous: what Mamba does.
//
//   u, delta, z, out [B, D, T] f32, bf16 or f16; A [D, N] f32; B, C [B, G, N, T]; D, delta_bias [D] f32;
//   h0, last [B, D, N] f32; chunk_states [B, ceil(T/64), D, N] f32
//
// A lane holds kRun steps of one channel in registers, kLanes lanes a stretch of kTile steps, 32 / kLanes channels a warp;
// a block takes kChannels channels of one sequence through time, tile after tile, and shares the tiles of B and C. For one
// state after the other a lane runs its steps from zero, the ends are scanned over the lanes by shuffles (the product of
// gates over a run is one exponential of the sum of its deltas), and the run is done again from its true start.
//
// What binds on an H200 (132 multiprocessors, 1.755 GHz), B8 D2048 T2048 N16, 537 M steps of states: memory 0.062 ms (bf16)
// or 0.125 ms (f32); exponentials, 16 a clock, 19/16 a step of a state with softplus and gate, 0.172 ms; instructions, of
// which 4 warps issue a clock, 6 + 14/16 for the scan + 0.5 for loads + 1.8 for what a channel's step costs,
// 9.2: 0.165 ms; shared memory, 128 bytes a clock, 8 bytes a lane for B and C and 9 shuffles a run: 0.185 ms. All lie close
// together; 0.22 ms would be a good result. B1 D1024 T65536 N16 is twice that, with kLanes = 32: 1024 warps.
#ifndef __CUDACC_RTC__
#include "defaults.cuh"
#endif
#include "lanes.cuh"

constexpr int kRun = 16, kPitch = kRun + 4;
constexpr int kTile = kLanes * kRun, kRow = kLanes * kPitch;
constexpr int kAcross = 32 / kLanes, kChannels = kThreads / kLanes;

// Threads that are to be on a multiprocessor at once: 512 leave 128 registers each, which suffices from sm_90 on.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int kAtOnce = kThreads == 128 ? 384 : 256;
#else
constexpr int kAtOnce = kStored == 2 ? (kThreads == 128 ? 384 : 256) : 512;
#endif

extern "C" __global__ void __launch_bounds__(kThreads, kAtOnce / kThreads) selective_lanes_forward(Tensors p) {
  extern __shared__ __align__(16) float shared[];
  const int states = static_cast<int>(p.states);
  float *tile_b = shared, *tile_c = tile_b + states * kRow;
  float2* rates = reinterpret_cast<float2*>(tile_c + states * kRow);  // [kChannels, N]: a rate, and the state before the tile

  const int seg = threadIdx.x % kLanes, mine = threadIdx.x / kLanes;
  const i64 width = p.channels / p.groups, slices = (width + kChannels - 1) / kChannels;
  const i64 row = blockIdx.x / (p.groups * slices), group = blockIdx.x / slices % p.groups;
  const i64 begin = blockIdx.x % slices * kChannels, steps = p.marks.steps;
  const int here = static_cast<int>(min(width - begin, static_cast<i64>(kChannels)));  // channels that there are
  const bool active = mine < here;
  const i64 first = group * width + begin, d = first + min(mine, here - 1);
  const bool aligned = p.aligned != 0;

  for (int i = threadIdx.x; i < kChannels * states; i += kThreads) {
    const i64 c = first + min(i / states, here - 1), n = i % states;
    const float h = p.h0.base ? load_float(p.h0, offset(p.h0, row, c, n)) : 0.0f;
    rates[i] = make_float2(kLog2e * load_float(p.a, offset(p.a, c, n)), h);
  }
  const Stored *u_row = row_of(p.u, row, d), *delta_row = row_of(p.delta, row, d);
  const float skip = p.skip.base ? load_float(p.skip, d * p.skip.s[0]) : 0.0f;
  const float bias = p.bias.base ? load_float(p.bias, d * p.bias.s[0]) : 0.0f;
  float* saved = reinterpret_cast<float*>(p.chunks.base) + row * p.chunks.s[0] + d * p.chunks.s[2];

  for (i64 tile = 0; tile < steps; tile += kTile) {
    const i64 t = tile + seg * kRun;
    float delta[kRun], du[kRun], y[kRun], total = 0.0f;
    load_run(du, u_row, t, steps, aligned);
    load_run(delta, delta_row, t, steps, aligned);
    __syncthreads();  // everybody is done with the last tile
    fill_weights<kLanes, kRun, kPitch>(tile_b, states, p.b, row, group, states, tile, steps, aligned);
    fill_weights<kLanes, kRun, kPitch>(tile_c, states, p.c, row, group, states, tile, steps, aligned);
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
      const float raw = delta[k] + bias, wide = p.softplus ? softplus_of(raw) : raw;
      delta[k] = t + k < steps ? wide : 0.0f;  // a step that is none changes nothing
      total += delta[k];
      y[k] = skip * du[k];
      du[k] *= delta[k];
    }
    __syncthreads();
    const bool saves = active && t < steps && t % kChunk == 0;
    float *saved_here = saved + t / kChunk * p.chunks.s[1], *at = tile_b + seg * kPitch;
    float2* of_state = rates + mine * states;
#pragma unroll 1
    for (int n = 0; n < states; ++n, at += kRow, ++of_state, ++saved_here) {
      const float rate = of_state->x, carry = seg == 0 ? of_state->y : 0.0f;
      float a[kRun], x[kRun], weight[kRun];
      load_words(weight, at);
      float h = carry, product = ex2(rate * total);
#pragma unroll
      for (int k = 0; k < kRun; ++k) {
        a[k] = ex2(rate * delta[k]);
        x[k] = weight[k] * du[k];
        h = fmaf(a[k], h, x[k]);
      }
      load_words(weight, at + states * kRow);
#pragma unroll
      for (int by = 1; by < kLanes; by *= 2) {
        const float h_before = __shfl_up_sync(~0u, h, by, kLanes);
        const float before = __shfl_up_sync(~0u, product, by, kLanes);
        if (seg >= by) h = fmaf(product, h_before, h), product *= before;
      }
      if (seg == kLanes - 1) of_state->y = h;
      h = __shfl_up_sync(~0u, h, 1, kLanes);
      if (seg == 0) h = carry;
      if (saves) *saved_here = h;
#pragma unroll
      for (int k = 0; k < kRun; ++k) {
        h = fmaf(a[k], h, x[k]);
        y[k] = fmaf(weight[k], h, y[k]);
      }
    }
    if (p.z.base) {
      float z[kRun];
      load_run(z, row_of(p.z, row, d), t, steps, aligned);
#pragma unroll
      for (int k = 0; k < kRun; ++k) y[k] *= z[k] * sigmoid_of(z[k]);
    }
    if (active) store_run(row_to(p.out, row, d), t, steps, aligned, y);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < here * states; i += kThreads) {
    store_float(p.last, offset(p.last, row, first + i / states, i % states), rates[i].y);
  }
}
