// selective_scan, forward, with at most 16 states, where there are many channels or time is long: A real, the rule `exp`, B
// and C vary, time is contiguous.
//
//   as in lanes.cu
//
// A thread holds four states of a channel and takes them through time, step after step: no scan, and nothing is computed
// twice. A warp has 8 channels of one sequence: lane bits 0, 2 and 4 say which channel, bits 1 and 3 which four states. (So a
// lane's neighbour by bit 0 reads the same weights and that by bit 1 the same channel: equal words of such neighbours cost one
// trip to shared memory.) Tiles are 32 steps: the warp's lanes first make delta and delta u of all steps of its channels, a
// quarter of a row each, then take the states through them, each leaving its share of y in shared memory, and at last add up
// the shares, a quarter of a row each. What the next tile reads is loaded while the states go through this one. (With two
// channels a thread shared memory is asked for a third less, but eight warps a multiprocessor wait for their own results.)
//
// Where channels are few time is cut into segments, of whole pieces of 64 steps; carry.cu has said before what each would hand
// on from none, and a block folds those before its own, in their order.
//
// What binds on an H200 (132 multiprocessors, at 1.755 GHz; at 1.98, which the card allows, an eighth less), B8 D2048 T2048
// N16, 537 M steps of states: memory 0.062 ms (bf16) or 0.125 ms (f32); exponentials, 16 a clock, 19/16 a step of a state with
// softplus and gate, 0.172 ms; instructions, of which 4 warps issue a clock, 9.7 as compiled (6.2 of them walk): 0.176 ms;
// shared memory 0.15 ms. Measured 0.26 and 0.275 ms (2026-11-22): two thirds of both, since 3.9 warps a scheduler, as many as
// there are channels for, do not hide all that they wait for. A polynomial in place of some exponentials would take from the
// instructions what it gives. B1 D1024 T65536, twice the work: 0.54 ms and 0.39 ms for what segments hand on.
//
// Tried on an H100 (2026-11-26), this kernel 0.2555 to 0.2574 (bf16) and 0.271 to 0.274 (f32): y as products of tensor cores
// (mma.sync of h cut to 11 bits, eight channels and half of the states by rows; no shares: 8.2 instructions a step of a state,
// not 9.7, and exponentials then 62 % of the time): 0.268, and 0.263 with all of a tile unrolled. Weights in shared memory
// by states, so that operands meet in different banks of registers, and one branch for all loads of a tile (f32): 0.272 to
// 0.275. Two states a thread, 64 registers and twice the warps: 0.308 to 0.313 (bf16), so more warps alone do not help; each
// step then asks shared memory twice as often for a channel's numbers and shares. Of at most 4 warps a scheduler 3.4 and 3.6
// are at work on the average of a launch (ncu, of the first two of these): blocks of the one wave do not end together.
#ifndef __CUDACC_RTC__
#include "defaults.cuh"
#endif
#include "lanes.cuh"

constexpr int kStates = 16, kPer = 4, kParts = kStates / kPer, kOfWarp = 8, kWarps = kThreads / 32;
constexpr int kSteps = 32, kRun = kSteps * kOfWarp / 32, kRow = 2 * kStates;
constexpr int kChannels = kWarps * kOfWarp;
// Words of a tile of B and C, of delta and delta u of a warp's channels, and of its shares of y.
constexpr int kTile = kSteps * kRow, kDrive = kSteps * 2 * kOfWarp, kShares = kParts * kOfWarp * kSteps;
static_assert(kChunk % kSteps == 0, "tiles start where states are saved");

// How many times four steps of weights a thread loads for a tile.
constexpr int kQuads = 2 * kStates * kSteps / 4 / kThreads;

// Threads that are to be on a multiprocessor at once: 512 leave 128 registers each, which suffices on sm_90.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1000
constexpr int kAtOnce = 512;
#else
constexpr int kAtOnce = 384;
#endif

extern "C" __global__ void __launch_bounds__(kThreads, kAtOnce / kThreads) selective_many_forward(Tensors p) {
  extern __shared__ __align__(16) float shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, states = static_cast<int>(p.states);
  float* drive = shared + 2 * kTile + warp * (kDrive + kShares);  // after two tiles of weights, [steps][B, C]
  float* shares = drive + kDrive;
  // Of the walk through time: which channel, and which states.
  const int channel = (lane & 1) | (lane >> 1 & 2) | (lane >> 2 & 4), part = (lane >> 1 & 1) | (lane >> 2 & 2);
  // Of what belongs to a channel's step: which channel, and which quarter of the tile's steps.
  const int own = lane / 4, quarter = lane % 4;

  const i64 width = p.channels / p.groups, slices = (width + kChannels - 1) / kChannels;
  // Blocks: [row, segment, group, slice].
  i64 block = blockIdx.x;
  const i64 begin = block % slices * kChannels + warp * kOfWarp, group = (block /= slices) % p.groups;
  const i64 segment = (block /= p.groups) % p.segments, row = block / p.segments, first = group * width;
  const i64 parts = (p.marks.steps + kChunk - 1) / kChunk;
  const i64 from_step = segment * parts / p.segments * kChunk;
  const i64 steps = segment + 1 < p.segments ? (segment + 1) * parts / p.segments * kChunk : p.marks.steps;
  const bool aligned = p.aligned != 0, gated = p.z.base != nullptr, active = begin + own < width;
  const i64 d = first + min(begin + own, width - 1);
  const Stored *u_row = row_of(p.u, row, d), *delta_row = row_of(p.delta, row, d);
  const Stored* z_row = gated ? row_of(p.z, row, d) : u_row;
  const float skip = p.skip.base ? load_float(p.skip, d * p.skip.s[0]) : 0.0f;
  const float bias = p.bias.base ? load_float(p.bias, d * p.bias.s[0]) : 0.0f;

  float rate[kPer], h[kPer];
  const i64 walked = begin + channel;
#pragma unroll
  for (int s = 0; s < kPer; ++s) {
    const i64 c = first + min(walked, width - 1);
    const int n = part * kPer + s;
    const bool known = n < states;
    rate[s] = known ? kLog2e * load_float(p.a, offset(p.a, c, n)) : 0.0f;
    h[s] = known && p.h0.base ? load_float(p.h0, offset(p.h0, row, c, n)) : 0.0f;
    for (i64 k = 0; known && k < segment; ++k) {
      const i64 cell = (k * p.batch + row) * p.channels + c;
      const float2 of_segment = reinterpret_cast<const float2*>(p.carry)[cell * states + n];
      h[s] = fmaf(of_segment.y, h[s], of_segment.x);
    }
  }
  // Each of the thread's states that there are.
  auto give = [&](auto to) {
    if (walked >= width) return;
#pragma unroll
    for (int s = 0; s < kPer; ++s) {
      if (part * kPer + s < states) to(first + walked, part * kPer + s, h[s]);
    }
  };

  // B and C of a tile: a thread has four steps of some states.
  const int which = threadIdx.x / kStates % 2, of_n = threadIdx.x % kStates, of_q = threadIdx.x / kRow;
  const Array& weights = which ? p.c : p.b;
  const Stored* w_at = reinterpret_cast<const Stored*>(weights.base) + 4 * of_q;
  w_at += offset(weights, row, group, min(of_n, states - 1)) + from_step;
  const bool filled = of_n < states;
  Raw<4> quads[kQuads];
  // Of the tile that begins where the pointers stand, `left` steps before the end of time.
  auto fetch_weights = [&](int left, bool whole) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const int q = i * (kThreads / kRow);
      quads[i] = fetch_part<4>(w_at + 4 * q, left - 4 * (of_q + q), whole);
    }
  };
  auto keep_weights = [&](float* to) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      float x[4];
      widen_run(x, quads[i]);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        to[(4 * (of_q + i * (kThreads / kRow)) + k) * kRow + which * kStates + of_n] = filled ? x[k] : 0.0f;
      }
    }
  };
  const i64 at_first = from_step + quarter * kRun;
  const Stored *u_at = u_row + at_first, *delta_at = delta_row + at_first, *z_at = z_row + at_first;
  Stored* out_at = row_to(p.out, row, d) + at_first;
  Raw<kRun> next_u, next_delta;
  auto fetch_channel = [&](int left, bool whole) {
    next_u = fetch_part<kRun>(u_at, left - quarter * kRun, whole);
    next_delta = fetch_part<kRun>(delta_at, left - quarter * kRun, whole);
  };
  // Steps that are left of the row from a tile on.
  auto left_from = [&](i64 tile) { return static_cast<int>(min(p.marks.steps - tile, 1ll << 30)); };
  int left = left_from(from_step);
  bool whole = aligned && left >= kSteps;
  fetch_weights(left, whole);
  fetch_channel(left, whole);
  keep_weights(shared);
  __syncthreads();

  int turn = 0;
  for (i64 tile = from_step; tile < steps; tile += kSteps, turn ^= 1) {
    const Raw<kRun> raw_u = next_u;
    {
      float u[kRun], delta[kRun];
      widen_run(u, raw_u);
      widen_run(delta, next_delta);
#pragma unroll
      for (int k = 0; k < kRun; ++k) delta[k] += bias;
      if (p.softplus) {
#pragma unroll
        for (int k = 0; k < kRun; ++k) delta[k] = softplus_of(delta[k]);
      }
      if (!whole) {
#pragma unroll
        for (int k = 0; k < kRun; ++k) {
          if (quarter * kRun + k >= left) delta[k] = 0.0f;  // a step that is none changes nothing
        }
      }
      // Two steps of a channel are four words, folded by the quarter: eight lanes meet eight groups of banks.
      float* to = drive + quarter * kRun * 2 * kOfWarp + (own ^ 2 * quarter) * 4;
#pragma unroll
      for (int k = 0; k < kRun; k += 2) {
        const float4 two = make_float4(delta[k], delta[k] * u[k], delta[k + 1], delta[k + 1] * u[k + 1]);
        *reinterpret_cast<float4*>(to + k * 2 * kOfWarp) = two;
      }
    }
    __syncwarp();
    if (tile % kChunk == 0) {
      give([&](i64 c, int n, float x) {
        reinterpret_cast<float*>(p.chunks.base)[row * p.chunks.s[0] + tile / kChunk * p.chunks.s[1] + c * p.chunks.s[2] + n] = x;
      });
    }
    const bool more = tile + kSteps < steps, now_whole = whole;
    const int now_left = left;
    Raw<kRun> raw_z = raw_u;
    if (gated) raw_z = fetch_part<kRun>(z_at, now_left - quarter * kRun, now_whole);
    if (more) {
      left = left_from(tile + kSteps);
      whole = aligned && left >= kSteps;
      w_at += kSteps, u_at += kSteps, delta_at += kSteps, z_at += kSteps;
      fetch_weights(left, whole);
      fetch_channel(left, whole);
    }
    const float *now = shared + turn * kTile + part * kPer;
    float* share = shares + (part * kOfWarp + channel) * kSteps;
#pragma unroll 4
    for (int step = 0; step < kSteps; step += 4) {
      float y[4];
#pragma unroll
      for (int two = 0; two < 4; two += 2) {
        const float* from = drive + (step + two) * 2 * kOfWarp + (channel ^ step / kRun * 2) * 4;
        const float4 of_steps = *reinterpret_cast<const float4*>(from);
#pragma unroll
        for (int k = two; k < two + 2; ++k) {
          const float4 b = *reinterpret_cast<const float4*>(now + (step + k) * kRow);
          const float4 c = *reinterpret_cast<const float4*>(now + (step + k) * kRow + kStates);
          const float bs[kPer] = {b.x, b.y, b.z, b.w}, cs[kPer] = {c.x, c.y, c.z, c.w};
          const float delta = k > two ? of_steps.z : of_steps.x, du = k > two ? of_steps.w : of_steps.y;
#pragma unroll
          for (int s = 0; s < kPer; ++s) {
            h[s] = fmaf(ex2(rate[s] * delta), h[s], bs[s] * du);
            y[k] = s ? fmaf(cs[s], h[s], y[k]) : cs[s] * h[s];
          }
        }
      }
      *reinterpret_cast<float4*>(share + (step / 4 ^ (lane & 7)) * 4) = make_float4(y[0], y[1], y[2], y[3]);
    }
    __syncwarp();
    float y[kRun], u[kRun];
    widen_run(u, raw_u);
#pragma unroll
    for (int k = 0; k < kRun; ++k) y[k] = skip * u[k];
#pragma unroll
    for (int s = 0; s < kParts; ++s) {
      // The lane that left it, by its bits 0 to 2.
      const int left_by = (own & 1) | (s & 1) << 1 | (own & 2) << 1;
      const float* from = shares + (s * kOfWarp + own) * kSteps;
#pragma unroll
      for (int q = 0; q < kRun / 4; ++q) {
        const float4 v = *reinterpret_cast<const float4*>(from + ((quarter * (kRun / 4) + q) ^ left_by) * 4);
        y[4 * q] += v.x, y[4 * q + 1] += v.y, y[4 * q + 2] += v.z, y[4 * q + 3] += v.w;
      }
    }
    if (gated) {
      float z[kRun];
      widen_run(z, raw_z);
#pragma unroll
      for (int k = 0; k < kRun; ++k) y[k] *= z[k] * sigmoid_of(z[k]);
    }
    if (active) store_part(out_at, now_left - quarter * kRun, now_whole, y);
    out_at += kSteps;
    if (more) keep_weights(shared + (turn ^ 1) * kTile);
    __syncthreads();
  }
  if (segment + 1 == p.segments) give([&](i64 c, int n, float x) { store_float(p.last, offset(p.last, row, c, n), x); });
}
