// selective_scan, forward, where A is real, the rule `exp`, B and C vary, and time is contiguous: what Mamba does.
//
//   u, delta, z, out [B, D, T] f32, bf16 or f16; A [D, N] f32; B, C [B, G, N, T]; D, delta_bias [D] f32;
//   h0, last [B, D, N] f32; chunk_states [B, ceil(T/64), D, N] f32
//
// A lane holds kRun steps of one channel in registers, kLanes lanes a stretch of kTile steps, 32 / kLanes channels a warp,
// whose lanes of the same steps lie side by side (they read the same weights, and neighbours' equal words cost one trip);
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

// States that are at work at a time: where few warps share a multiprocessor each must have more to do while it waits.
constexpr int kTogether = kLanes == 32 ? 2 : 1;
// Threads that are to be on a multiprocessor at once: 512 leave 128 registers each, which suffices from sm_90 on.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int kAtOnce = kThreads == 128 ? 384 : 256;
#else
constexpr int kAtOnce = kThreads == 256 ? 256 : kStored == 2 ? 384 : 512;
#endif

extern "C" __global__ void __launch_bounds__(kThreads, kAtOnce / kThreads) selective_lanes_forward(Tensors p) {
  extern __shared__ __align__(16) float shared[];
  const int states = static_cast<int>(p.states), padded = (states + kTogether - 1) / kTogether * kTogether;
  const int pitch = padded + 1;  // so that the channels of a warp meet different banks
  float *tile_b = shared, *tile_c = tile_b + padded * kRow;
  float2* rates = reinterpret_cast<float2*>(tile_c + padded * kRow);  // [kChannels, pitch]: a rate, and the state before the tile

  const int seg = threadIdx.x % 32 / kAcross, mine = threadIdx.x / 32 * kAcross + threadIdx.x % kAcross;
  const i64 width = p.channels / p.groups, slices = (width + kChannels - 1) / kChannels;
  const i64 row = blockIdx.x / (p.groups * slices), group = blockIdx.x / slices % p.groups;
  const i64 begin = blockIdx.x % slices * kChannels, steps = p.marks.steps;
  const int here = static_cast<int>(min(width - begin, static_cast<i64>(kChannels)));  // channels that there are
  const bool active = mine < here;
  const i64 first = group * width + begin, d = first + min(mine, here - 1);
  const bool aligned = p.aligned != 0;

  for (int i = threadIdx.x; i < kChannels * padded; i += kThreads) {
    const i64 c = first + min(i / padded, here - 1), n = i % padded;
    float2& to = rates[i / padded * pitch + n];
    to = make_float2(0.0f, 0.0f);
    if (n >= states) continue;
    const float h = p.h0.base ? load_float(p.h0, offset(p.h0, row, c, n)) : 0.0f;
    to = make_float2(kLog2e * load_float(p.a, offset(p.a, c, n)), h);
  }
  const Stored *u_row = row_of(p.u, row, d), *delta_row = row_of(p.delta, row, d);
  const bool gated = p.z.base != nullptr;
  const Stored* z_row = gated ? row_of(p.z, row, d) : u_row;
  const float skip = p.skip.base ? load_float(p.skip, d * p.skip.s[0]) : 0.0f;
  const float bias = p.bias.base ? load_float(p.bias, d * p.bias.s[0]) : 0.0f;
  float* saved = reinterpret_cast<float*>(p.chunks.base) + row * p.chunks.s[0] + d * p.chunks.s[2];

  for (i64 tile = 0; tile < steps; tile += kTile) {
    const i64 t = tile + seg * kRun;
    float delta[kRun], du[kRun], y[kRun], total = 0.0f;
    const Raw<kRun> raw_u = fetch_run<kRun>(u_row, t, steps, aligned), raw_delta = fetch_run<kRun>(delta_row, t, steps, aligned);
    __syncthreads();  // everybody is done with the last tile
    fill_weights<kLanes, kRun, kPitch>(tile_b, tile_c, padded, states, p.b, p.c, row, group, tile, steps, aligned);
    widen_run(du, raw_u);
    widen_run(delta, raw_delta);
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
    float2* of_state = rates + mine * pitch;
#pragma unroll 1
    for (int n = 0; n < padded; n += kTogether, at += kTogether * kRow, of_state += kTogether, saved_here += kTogether) {
      float a[kTogether][kRun], x[kTogether][kRun], h[kTogether], product[kTogether], carry[kTogether], weight[kRun];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const float2 state = of_state[i];
        const float rate = state.x;
        load_words(weight, at + i * kRow);
        h[i] = carry[i] = seg == 0 ? state.y : 0.0f, product[i] = ex2(rate * total);
#pragma unroll
        for (int k = 0; k < kRun; ++k) {
          a[i][k] = ex2(rate * delta[k]);
          x[i][k] = weight[k] * du[k];
          h[i] = fmaf(a[i][k], h[i], x[i][k]);
        }
      }
#pragma unroll
      for (int by = 1; by < kLanes; by *= 2) {
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          const float h_before = __shfl_up_sync(~0u, h[i], by * kAcross);
          const float before = __shfl_up_sync(~0u, product[i], by * kAcross);
          if (seg >= by) h[i] = fmaf(product[i], h_before, h[i]), product[i] *= before;
        }
      }
      __syncwarp();  // the first lanes have read the carry
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (seg == kLanes - 1) of_state[i].y = h[i];
        h[i] = __shfl_up_sync(~0u, h[i], kAcross);
        if (seg == 0) h[i] = carry[i];
        if (saves && (kTogether == 1 || n + i < states)) saved_here[i] = h[i];
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        load_words(weight, at + (padded + i) * kRow);
#pragma unroll
        for (int k = 0; k < kRun; ++k) {
          h[i] = fmaf(a[i][k], h[i], x[i][k]);
          y[k] = fmaf(weight[k], h[i], y[k]);
        }
      }
    }
    if (gated) {
      float z[kRun];
      widen_run(z, fetch_run<kRun>(z_row, t, steps, aligned));
#pragma unroll
      for (int k = 0; k < kRun; ++k) y[k] *= z[k] * sigmoid_of(z[k]);
    }
    if (active) store_run(row_to(p.out, row, d), t, steps, aligned, y);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < here * states; i += kThreads) {
    store_float(p.last, offset(p.last, row, first + i / states, i % states), rates[i / states * pitch + i % states].y);
  }
}
