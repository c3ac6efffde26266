// selective_scan where time is cut into segments: what a segment hands on, forward and backward.
//
//   as in lanes.cu; carry [segments, B, D, N, 2]: that, and the product of the segment's gates
//
// Forward: the state after a segment that starts from none, sum_t e^{A S_t} delta_t B_t u_t with S_t the sum of delta over
// the segment's later steps. Backward: the gradient by the state before it if nothing came from behind,
// sum_t e^{A S_t} C_t dy_t, S_t from the segment's start through t. Both are sums and no recurrences; taken in the order
// in which S grows, they end where every e^{A S} of the block's channels is 0 in f32: no later term changes a bit.
// The product of the gates is 0 then too.
//
// The mapping is that of many.cu, and what binds, without y: on an H200 at 1.755 GHz, B1 D1024 T65536 N16, exponentials, 17/16
// a step of a state, 0.31 ms, instructions, some 6.3, 0.23 ms; measured 0.39 ms forward and 0.42 ms backward (2026-11-22),
// where the walks go all the way.
#ifndef __CUDACC_RTC__
#include "defaults.cuh"
#endif
#include "lanes.cuh"

constexpr int kStates = 16, kPer = 4, kOfWarp = 8, kWarps = kThreads / 32;
constexpr int kSteps = 32, kRun = kSteps * kOfWarp / 32, kChannels = kWarps * kOfWarp;
constexpr int kTile = kSteps * kStates, kDrive = kSteps * 2 * kOfWarp;
static_assert(kStates * kSteps / 4 == kThreads, "a thread loads four steps of a state");
// Exponents below which ex2 gives 0 for certain.
constexpr float kGone = -150.0f;

template <bool kBackward>
__device__ __forceinline__ void walk(const Tensors& p) {
  __shared__ __align__(16) float tiles[2 * kTile], drives[kWarps * kDrive];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, states = static_cast<int>(p.states);
  float* drive = drives + warp * kDrive;
  // As in many.cu: a lane's channel and states in the walk, its channel and quarter of the tile before it.
  const int channel = (lane & 1) | (lane >> 1 & 2) | (lane >> 2 & 4), part = (lane >> 1 & 1) | (lane >> 2 & 2);
  const int own = lane / 4, quarter = lane % 4;

  // Blocks: [row, segment, group, slice, sixteen states], less the segment that nobody comes after.
  const i64 width = p.channels / p.groups, slices = (width + kChannels - 1) / kChannels;
  const int sixteens = (states + kStates - 1) / kStates, base = blockIdx.x % sixteens * kStates;
  i64 block = blockIdx.x / sixteens;
  const i64 begin = block % slices * kChannels + warp * kOfWarp, group = (block /= slices) % p.groups;
  const i64 segment = (block /= p.groups) % (p.segments - 1) + (kBackward ? 1 : 0), row = block / (p.segments - 1);
  const i64 first = group * width, chunks = (p.marks.steps + kChunk - 1) / kChunk;
  const i64 from = segment * chunks / p.segments * kChunk;
  const i64 end = min((segment + 1) * chunks / p.segments * kChunk, p.marks.steps);
  const int count = static_cast<int>((end - from + kSteps - 1) / kSteps);
  const bool aligned = p.aligned != 0, gated = kBackward && p.z.base != nullptr;
  const i64 d = first + min(begin + own, width - 1), walked = begin + channel, c = first + min(walked, width - 1);
  const float bias = p.bias.base ? load_float(p.bias, d * p.bias.s[0]) : 0.0f;

  float rate[kPer], sum[kPer], past = 0.0f;
  bool known[kPer];
#pragma unroll
  for (int s = 0; s < kPer; ++s) {
    const int n = base + part * kPer + s;
    known[s] = n < states;
    rate[s] = known[s] ? kLog2e * load_float(p.a, offset(p.a, c, n)) : 0.0f;
    sum[s] = 0.0f;
  }

  const int of_n = threadIdx.x % kStates, of_q = threadIdx.x / kStates;
  const Array& weights = kBackward ? p.c : p.b;
  const Stored* w_row = reinterpret_cast<const Stored*>(weights.base);
  w_row += offset(weights, row, group, min(base + of_n, states - 1));
  const Stored *delta_row = row_of(p.delta, row, d), *x_row = row_of(kBackward ? p.grad_out : p.u, row, d);
  const Stored* z_row = gated ? row_of(p.z, row, d) : x_row;
  Raw<4> quad;
  Raw<kRun> next_x, next_delta, next_z;
  int left = 0;
  // The tiles in their order.
  auto tile_at = [&](int i) { return from + (kBackward ? i : count - 1 - i) * kSteps; };
  auto fetch = [&](int i) {
    const i64 t = tile_at(i);
    left = static_cast<int>(min(p.marks.steps - t, 1ll << 30));
    const bool whole = aligned && left >= kSteps;
    const int mine = left - quarter * kRun;
    quad = fetch_part<4>(w_row + t + 4 * of_q, left - 4 * of_q, whole);
    next_delta = fetch_part<kRun>(delta_row + t + quarter * kRun, mine, whole);
    next_x = fetch_part<kRun>(x_row + t + quarter * kRun, mine, whole);
    if (gated) next_z = fetch_part<kRun>(z_row + t + quarter * kRun, mine, whole);
  };
  if (count > 0) fetch(0);
  bool alive = true;
  for (int i = 0; i < count; ++i) {
    {
      float x[kRun], delta[kRun];
      widen_run(x, next_x);
      widen_run(delta, next_delta);
#pragma unroll
      for (int k = 0; k < kRun; ++k) delta[k] += bias;
      if (p.softplus) {
#pragma unroll
        for (int k = 0; k < kRun; ++k) delta[k] = softplus_of(delta[k]);
      }
      if (gated) {
        float z[kRun];
        widen_run(z, next_z);
#pragma unroll
        for (int k = 0; k < kRun; ++k) x[k] *= z[k] * sigmoid_of(z[k]);
      }
#pragma unroll
      for (int k = 0; k < kRun; ++k) {
        if (quarter * kRun + k >= left) delta[k] = 0.0f, x[k] = 0.0f;
        if (!kBackward) x[k] *= delta[k];
      }
      float* to = drive + quarter * kRun * 2 * kOfWarp + (own ^ 2 * quarter) * 4;
#pragma unroll
      for (int k = 0; k < kRun; k += 2) {
        *reinterpret_cast<float4*>(to + k * 2 * kOfWarp) = make_float4(delta[k], x[k], delta[k + 1], x[k + 1]);
      }
    }
    float w[4], *now = tiles + i % 2 * kTile;
    widen_run(w, quad);
#pragma unroll
    for (int k = 0; k < 4; ++k) now[(4 * of_q + k) * kStates + of_n] = w[k];
    // Whoever is done with all of its channels still loads for the others.
    if (!__syncthreads_or(alive)) break;
    if (i + 1 < count) fetch(i + 1);
    if (__any_sync(~0u, alive)) {
      const float* mine = now + part * kPer;
#pragma unroll 4
      for (int pair = 0; pair < kSteps; pair += 2) {
        const int step = kBackward ? pair : kSteps - 2 - pair;
        const float4 of_steps =
            *reinterpret_cast<const float4*>(drive + step * 2 * kOfWarp + (channel ^ step / kRun * 2) * 4);
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const bool second = kBackward == (k == 1);
          const float4 b = *reinterpret_cast<const float4*>(mine + (step + second) * kStates);
          const float bs[kPer] = {b.x, b.y, b.z, b.w};
          const float delta = second ? of_steps.z : of_steps.x, x = second ? of_steps.w : of_steps.y;
          if (kBackward) past += delta;
#pragma unroll
          for (int s = 0; s < kPer; ++s) sum[s] = fmaf(ex2(rate[s] * past), bs[s] * x, sum[s]);
          if (!kBackward) past += delta;
        }
      }
      alive = false;
#pragma unroll
      for (int s = 0; s < kPer; ++s) alive |= known[s] && !(rate[s] * past < kGone);
    }
    __syncwarp();
  }
  if (walked >= width) return;
  const i64 cell = (segment * p.batch + row) * p.channels + c;
#pragma unroll
  for (int s = 0; s < kPer; ++s) {
    if (!known[s]) continue;
    reinterpret_cast<float2*>(p.carry)[cell * states + base + part * kPer + s] = make_float2(sum[s], ex2(rate[s] * past));
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 512 / kThreads) selective_carry_forward(Tensors p) { walk<false>(p); }
extern "C" __global__ void __launch_bounds__(kThreads, 512 / kThreads) selective_carry_backward(Tensors p) { walk<true>(p); }
