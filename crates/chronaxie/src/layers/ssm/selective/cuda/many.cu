// selective_scan, forward, where there are many channels and at most 16 states: A real, the rule `exp`, B and C vary, time is
// contiguous.
//
//   as in lanes.cu
//
// A thread holds four states of two channels and takes them through time, step after step: no scan, and nothing is computed
// twice. A warp has 16 channels of one sequence: lane bits 0, 2 and 4 say which pair of channels, bits 1 and 3 which four
// states. (So a lane's neighbour by bit 0 reads the same weights and that by bit 1 the same channels: equal words of such
// neighbours cost one trip to shared memory.) Tiles are 32 steps: the warp's lanes first make delta and delta u of all steps
// of its channels, half a row each, then take the states through them, each leaving its share of y in shared memory, and at
// last add up the shares, half a row each. What the next tile reads is loaded while the states go through this one.
//
// What binds on an H200 (132 multiprocessors, 1.755 GHz), B8 D2048 T2048 N16, 537 M steps of states: memory 0.062 ms (bf16)
// or 0.125 ms (f32); exponentials, 16 a clock, 19/16 a step of a state with softplus and gate, 0.172 ms; instructions, of
// which 4 warps issue a clock, 5 + 0.5 for shared memory + 2.8 for what a channel's step costs, 8.3: 0.150 ms; shared memory
// 0.1 ms.
#ifndef __CUDACC_RTC__
#include "defaults.cuh"
#endif
#include "lanes.cuh"

constexpr int kStates = 16, kPer = 4, kParts = kStates / kPer, kEach = 2, kOfWarp = 16, kWarps = kThreads / 32;
constexpr int kSteps = 32, kRun = kSteps / 2, kRow = 2 * kStates;
constexpr int kChannels = kWarps * kOfWarp;
// Words of a tile of B and C, of delta and delta u of a warp's channels, and of its shares of y.
constexpr int kTile = kSteps * kRow, kDrive = kSteps * 2 * kOfWarp, kShares = kParts * kOfWarp * kSteps;
static_assert(kChunk % kSteps == 0, "tiles start where states are saved");

// Four steps of a weight, as they are stored.
struct alignas(4 * sizeof(Stored)) Quad {
  Stored x[4];
};
constexpr int kQuads = 2 * kStates * kSteps / 4 / kThreads;

#ifndef AT
#define AT 384
#endif
extern "C" __global__ void __launch_bounds__(kThreads, AT / kThreads) selective_many_forward(Tensors p) {
  extern __shared__ __align__(16) float shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, states = static_cast<int>(p.states);
  float* drive = shared + 2 * kTile + warp * (kDrive + kShares);  // after two tiles of weights, [steps][B, C]
  float* shares = drive + kDrive;
  // Of the walk through time: which channels, and which states.
  const int pair = (lane & 1) | (lane >> 1 & 2) | (lane >> 2 & 4), part = (lane >> 1 & 1) | (lane >> 2 & 2);
  // Of what belongs to a channel's step: which channel, and which half of the tile's steps.
  const int own = lane / 2, half = lane % 2;

  const i64 width = p.channels / p.groups, slices = (width + kChannels - 1) / kChannels;
  const i64 row = blockIdx.x / (p.groups * slices), group = blockIdx.x / slices % p.groups, steps = p.marks.steps;
  const i64 begin = blockIdx.x % slices * kChannels + warp * kOfWarp, first = group * width;
  const bool aligned = p.aligned != 0, gated = p.z.base != nullptr, active = begin + own < width;
  const i64 d = first + min(begin + own, width - 1);
  const Stored *u_row = row_of(p.u, row, d), *delta_row = row_of(p.delta, row, d);
  const Stored* z_row = gated ? row_of(p.z, row, d) : u_row;
  const float skip = p.skip.base ? load_float(p.skip, d * p.skip.s[0]) : 0.0f;
  const float bias = p.bias.base ? load_float(p.bias, d * p.bias.s[0]) : 0.0f;

  float rate[kEach][kPer], h[kEach][kPer];
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const i64 c = first + min(begin + kEach * pair + e, width - 1);
#pragma unroll
    for (int s = 0; s < kPer; ++s) {
      const int n = part * kPer + s;
      const bool known = n < states;
      rate[e][s] = known ? kLog2e * load_float(p.a, offset(p.a, c, n)) : 0.0f;
      h[e][s] = known && p.h0.base ? load_float(p.h0, offset(p.h0, row, c, n)) : 0.0f;
    }
  }
  // Each state of each of the thread's channels that there are.
  auto give = [&](auto to) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      if (begin + kEach * pair + e >= width) continue;
#pragma unroll
      for (int s = 0; s < kPer; ++s) {
        if (part * kPer + s < states) to(first + begin + kEach * pair + e, part * kPer + s, h[e][s]);
      }
    }
  };

  // B and C of a tile: a thread has four steps of some states.
  const int which = threadIdx.x / kStates % 2, of_n = threadIdx.x % kStates, of_q = threadIdx.x / kRow;
  const i64 of_b = offset(p.b, row, group, of_n), of_c = offset(p.c, row, group, of_n);
  const Stored* w_row = reinterpret_cast<const Stored*>(which ? p.c.base : p.b.base) + (which ? of_c : of_b);
  Quad quads[kQuads];
  auto fetch_weights = [&](i64 tile) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const i64 t = tile + 4 * (of_q + i * (kThreads / kRow));
      quads[i] = Quad{};
      if (of_n >= states) continue;
      if (aligned && t + 4 <= steps) {
        quads[i] = *reinterpret_cast<const Quad*>(w_row + t);
      } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if (t + k < steps) quads[i].x[k] = w_row[t + k];
        }
      }
    }
  };
  auto keep_weights = [&](float* to) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        to[(4 * (of_q + i * (kThreads / kRow)) + k) * kRow + which * kStates + of_n] = widen(quads[i].x[k]);
      }
    }
  };
  Raw<kRun> next_u, next_delta, next_z;
  auto fetch_channel = [&](i64 tile) {
    const i64 t = tile + half * kRun;
    next_u = fetch_run<kRun>(u_row, t, steps, aligned);
    next_delta = fetch_run<kRun>(delta_row, t, steps, aligned);
    if (gated) next_z = fetch_run<kRun>(z_row, t, steps, aligned);
  };
  fetch_weights(0);
  fetch_channel(0);
  keep_weights(shared);
  __syncthreads();

  int turn = 0;
  for (i64 tile = 0; tile < steps; tile += kSteps, turn ^= 1) {
    const i64 t = tile + half * kRun;
    const Raw<kRun> raw_u = next_u, raw_z = next_z;
    {
      float u[kRun], delta[kRun];
      widen_run(u, raw_u);
      widen_run(delta, next_delta);
      // A step's words lie in groups of four, a pair of channels each, folded by the half of the tile.
      float* to = drive + half * kRun * 2 * kOfWarp + (own / 2 ^ half * 4) * 4 + own % 2 * 2;
#pragma unroll
      for (int k = 0; k < kRun; ++k) {
        const float raw = delta[k] + bias, wide = p.softplus ? softplus_of(raw) : raw;
        const float some = t + k < steps ? wide : 0.0f;  // a step that is none changes nothing
        *reinterpret_cast<float2*>(to + k * 2 * kOfWarp) = make_float2(some, some * u[k]);
      }
    }
    __syncwarp();
    if (tile % kChunk == 0) {
      give([&](i64 c, int n, float x) {
        reinterpret_cast<float*>(p.chunks.base)[row * p.chunks.s[0] + tile / kChunk * p.chunks.s[1] + c * p.chunks.s[2] + n] = x;
      });
    }
    const bool more = tile + kSteps < steps;
    if (more) fetch_weights(tile + kSteps);
    if (more) fetch_channel(tile + kSteps);
    const float *now = shared + turn * kTile + part * kPer;
    float* share = shares + (part * kOfWarp + kEach * pair) * kSteps;
#pragma unroll 2
    for (int step = 0; step < kSteps; step += 4) {
      float y[kEach][4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float4 b = *reinterpret_cast<const float4*>(now + (step + k) * kRow);
        const float4 c = *reinterpret_cast<const float4*>(now + (step + k) * kRow + kStates);
        const int fold = (step / kRun * 4 ^ pair) * 4;
        const float4 of_step = *reinterpret_cast<const float4*>(drive + (step + k) * 2 * kOfWarp + fold);
        const float bs[kPer] = {b.x, b.y, b.z, b.w}, cs[kPer] = {c.x, c.y, c.z, c.w};
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
          const float delta = e ? of_step.z : of_step.x, du = e ? of_step.w : of_step.y;
#pragma unroll
          for (int s = 0; s < kPer; ++s) {
            h[e][s] = fmaf(ex2(rate[e][s] * delta), h[e][s], bs[s] * du);
            y[e][k] = s ? fmaf(cs[s], h[e][s], y[e][k]) : cs[s] * h[e][s];
          }
        }
      }
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        *reinterpret_cast<float4*>(share + e * kSteps + ((step / 4 ^ (lane & 7) ^ e * 2) * 4)) =
            make_float4(y[e][0], y[e][1], y[e][2], y[e][3]);
      }
    }
    __syncwarp();
    float y[kRun], u[kRun];
    widen_run(u, raw_u);
#pragma unroll
    for (int k = 0; k < kRun; ++k) y[k] = skip * u[k];
#pragma unroll
    for (int s = 0; s < kParts; ++s) {
      // The lane that left it: by its bits 0 to 2, of the pair and of the part.
      const int by = own / 2, left_by = (by & 1) | (s & 1) << 1 | (by & 2) << 1;
      const float* from = shares + (s * kOfWarp + own) * kSteps;
#pragma unroll
      for (int q = 0; q < kRun / 4; ++q) {
        const float4 v = *reinterpret_cast<const float4*>(from + ((half * 4 + q) ^ left_by ^ own % 2 * 2) * 4);
        y[4 * q] += v.x, y[4 * q + 1] += v.y, y[4 * q + 2] += v.z, y[4 * q + 3] += v.w;
      }
    }
    if (gated) {
      float z[kRun];
      widen_run(z, raw_z);
#pragma unroll
      for (int k = 0; k < kRun; ++k) y[k] *= z[k] * sigmoid_of(z[k]);
    }
    if (active) store_run(row_to(p.out, row, d), t, steps, aligned, y);
    if (more) keep_weights(shared + (turn ^ 1) * kTile);
    __syncthreads();
  }
  give([&](i64 c, int n, float x) { store_float(p.last, offset(p.last, row, c, n), x); });
}
