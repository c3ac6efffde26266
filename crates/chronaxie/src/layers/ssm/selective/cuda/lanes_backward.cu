// selective_scan, backward, where A is real, the rule `exp`, B and C vary, time is contiguous, and N is at most 16.
//
//   as in lanes.cu; grad_out [B, D, T], grad_last [B, D, N]; gradients of all inputs
//
// With lambda_t = C_t dy_t + mu_t, mu_{t-1} = a_t lambda_t and q_t = a_t h_{t-1}, p = lambda q:
//   grad_delta = sum_n A p + u sum_n lambda B    grad_u = delta sum_n lambda B + D dy    grad_A = sum_t delta p
//   grad_B = sum_d lambda delta u                grad_C = sum_d dy h
//
// A warp takes tiles of 64 steps against time, and in each tile its channels one after the other: lane 8 i + j has the
// states 4 i to 4 i + 3 over steps 8 j to 8 j + 7. So what sums over channels (grad_B, grad_C: 64 numbers a lane) stays in
// registers while the channels pass by, and what sums over states (y, sum A p, sum lambda B) goes through shared memory,
// 24 words a lane and channel. h comes from the saved states, one each tile, then a scan over eight lanes each way; mu waits
// in shared memory for the warp's next tile. The four warps of a block share the tiles of B and C and add up grad_B and
// grad_C at the end of each; the blocks' shares lie in scratch and are summed in one order by selective_fold_slices.
//
// Where there are too few channels for the machine, time is cut into segments: selective_lanes_carry, the same walk with
// nothing but mu, from 0, says what mu each segment would hand to the one before, and its sum of delta; a block then folds
// those of the later segments in their order.
//
// What binds on an H200, B8 D2048 T2048 N16: memory 0.11 (bf16) or 0.22 ms (f32); instructions, of which 4 warps issue a
// clock: 17 a step of a state, 3.2 for two scans, 1.6 for shared memory, 4 for what a channel's step costs, 26: 0.47 ms;
// shared memory and shuffles 5 words a lane: 0.36 ms; exponentials 0.18 ms. The segments of T65536 cost 0.35 ms more.
#ifndef __CUDACC_RTC__
#include "defaults.cuh"
#endif
#include "lanes.cuh"

constexpr int kLanesOfTime = 8, kRun = 8, kPitch = kRun + 4, kRow = kLanesOfTime * kPitch;
constexpr int kStates = 16, kPer = 4, kWarps = kThreads / 32;
static_assert(kLanesOfTime * kRun == kChunk, "a tile starts from a saved state");
// Words of a warp: three rows of what all states read, (3 x 4 rows) what each group of four adds up, and two that wait for
// them; or, at the end of a tile, 16 rows of sums over channels. Then, for each channel: sums of grad_A, grad_D and bias, lane by lane; rates; mu; its
// D and bias; where its rows begin, which would take sixteen registers or as many multiplications.
constexpr int kStage = 17 * kRow, kRows = 8, kOfChannel = 6 * 32 + 2 * kStates + 4 + 2 * kRows;

// The inclusive scan of affine maps h -> product h + x over eight lanes, from lane 0 on or from lane 7 on; gives what comes
// before this lane, and `edge` where nothing does.
template <bool kUp>
__device__ __forceinline__ float scan_before(float product, float& x, float edge) {
  const int seg = threadIdx.x % kLanesOfTime;
#pragma unroll
  for (int by = 1; by < kLanesOfTime; by *= 2) {
    const float x_before = kUp ? __shfl_up_sync(~0u, x, by, kLanesOfTime) : __shfl_down_sync(~0u, x, by, kLanesOfTime);
    const float before =
        kUp ? __shfl_up_sync(~0u, product, by, kLanesOfTime) : __shfl_down_sync(~0u, product, by, kLanesOfTime);
    if (kUp ? seg >= by : seg + by < kLanesOfTime) x = fmaf(product, x_before, x), product *= before;
  }
  const float before = kUp ? __shfl_up_sync(~0u, x, 1, kLanesOfTime) : __shfl_down_sync(~0u, x, 1, kLanesOfTime);
  return seg == (kUp ? 0 : kLanesOfTime - 1) ? edge : before;
}

// Whether a channel's loads start while the one before it is at work; sm_120's compiler has no registers left for them.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
constexpr bool kAhead = false;
#else
constexpr bool kAhead = true;
#endif

// Two steps of a channel as they are loaded, and the states that a lane of the tile's first run starts from.
struct Raw {
  float u[2], delta[2], z[2], grad[2], start[kPer];
};

template <bool kCarry>
__device__ __forceinline__ void walk(const Tensors& p) {
  extern __shared__ __align__(16) float shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, seg = lane % kLanesOfTime, part_of_n = lane / kLanesOfTime;
  const int most = static_cast<int>(p.channels_a_warp), states = static_cast<int>(p.states);
  float *tile_b = shared, *tile_c = tile_b + kStates * kRow, *stages = tile_c + kStates * kRow;
  float *stage = stages + warp * kStage, *of_channels = stages + kWarps * kStage + warp * most * kOfChannel;
  float *sums_a = of_channels, *sums_d = sums_a + most * 128, *rates = sums_d + most * 64, *mus = rates + most * kStates;
  float2* vectors = reinterpret_cast<float2*>(mus + most * kStates);

  const i64 width = p.channels / p.groups, steps = p.marks.steps, batch = p.batch;
  // Blocks: [row, segment, group, slice]; a carry of the first segment is nobody's.
  i64 at = blockIdx.x;
  const i64 slice = at % p.slices, group = (at /= p.slices) % p.groups;
  const i64 runs = kCarry ? p.segments - 1 : p.segments;
  const i64 segment = (at /= p.groups) % runs + (kCarry ? 1 : 0), row = at / runs;
  const i64 begin = slice * kWarps * most + warp * most;
  const int mine = static_cast<int>(max(0ll, min(width - begin, static_cast<i64>(most))));
  const i64 first = group * width + begin, part = row * p.segments + segment;
  const i64 tiles = (steps + kChunk - 1) / kChunk;
  const i64 first_tile = segment * tiles / p.segments, end_tile = (segment + 1) * tiles / p.segments;
  const bool aligned = p.aligned != 0, gated = p.z.base != nullptr;

  for (int i = lane; i < most * kStates; i += 32) {
    const int j = i / kStates, n = i % kStates;
    float rate = 0.0f, mu = 0.0f;
    if (j < mine && n < states) {
      const i64 d = first + j;
      rate = kLog2e * load_float(p.a, offset(p.a, d, n));
      if (!kCarry) {
        mu = load_float(p.grad_last, offset(p.grad_last, row, d, n));
        for (i64 s = p.segments - 1; s > segment; --s) {
          const i64 cell = (s * batch + row) * p.channels + d;
          mu = fmaf(ex2(rate * p.carry_sum[cell]), mu, p.carry[cell * states + n]);
        }
      }
    }
    rates[i] = rate, mus[i] = mu;
  }
  for (int i = lane; i < most * 192; i += 32) sums_a[i] = 0.0f;
  for (int j = lane; j < mine; j += 32) {
    const i64 d = first + j;
    const float skip = p.skip.base ? load_float(p.skip, d * p.skip.s[0]) : 0.0f;
    vectors[j] = make_float2(skip, p.bias.base ? load_float(p.bias, d * p.bias.s[0]) : 0.0f);
  }
  // u, delta, z, grad_out, chunk_states; gradients of u, delta, z.
  char** rows_of = reinterpret_cast<char**>(vectors + most * 2);
  const Array of_row[kRows] = {p.u, p.delta, p.z, p.grad_out, p.chunks, p.g_u, p.g_delta, p.g_z};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    for (int j = lane; j < mine; j += 32) {
      const i64 d = first + j, size = r == 4 ? sizeof(float) : sizeof(Stored);
      rows_of[j * kRows + r] = of_row[r].base + size * (row * of_row[r].s[0] + d * of_row[r].s[r == 4 ? 2 : 1]);
    }
  }
  __syncwarp();

  for (i64 tile = end_tile - 1; tile >= first_tile; --tile) {
    const i64 from = tile * kChunk, t = from + 2 * lane, left = steps - t;
    const bool whole = aligned && left >= 2;
    __syncthreads();  // everybody is done with the last tile
    if (!kCarry) {
      fill_weights<kLanesOfTime, kRun, kPitch>(tile_b, kStates, p.b, row, group, states, from, steps, aligned);
    }
    fill_weights<kLanesOfTime, kRun, kPitch>(tile_c, kStates, p.c, row, group, states, from, steps, aligned);
    __syncthreads();
    float of_b[kPer][kRun], of_c[kPer][kRun];
#pragma unroll
    for (int s = 0; s < kPer; ++s) {
#pragma unroll
      for (int k = 0; k < kRun; ++k) of_b[s][k] = of_c[s][k] = 0.0f;
    }
    const bool starts = !kCarry && seg == 0 && (tile > 0 || p.h0.base);
    auto row_at = [&](int j, int r) { return reinterpret_cast<Stored*>(rows_of[j * kRows + r]) + t; };
    auto fetch = [&](int j) {
      Raw r = {};
      load_run(r.delta, row_at(j, 1), 0, left, whole);
      load_run(r.grad, row_at(j, 3), 0, left, whole);
      if (gated) load_run(r.z, row_at(j, 2), 0, left, whole);
      if (kCarry) return r;
      load_run(r.u, row_at(j, 0), 0, left, whole);
      if (!starts) return r;
      const float* cell = reinterpret_cast<const float*>(rows_of[j * kRows + 4]) + tile * p.chunks.s[1];
      i64 step = 1;
      if (tile == 0) {
        cell = reinterpret_cast<const float*>(p.h0.base) + offset(p.h0, row, first + j);
        step = p.h0.s[2];
      }
#pragma unroll
      for (int s = 0; s < kPer; ++s) {
        const int n = part_of_n * kPer + s;
        if (n < states) r.start[s] = cell[n * step];
      }
      return r;
    };
    Raw next = {};
    if (kAhead && mine > 0) next = fetch(0);
#pragma unroll 1
    for (int j = 0; j < mine; ++j) {
      const Raw raw = kAhead ? next : fetch(j);
      if (kAhead && j + 1 < mine) next = fetch(j + 1);
      const float2 of_j = vectors[j];
      const float skip = of_j.x, bias = of_j.y;
      // A pair of steps lies in one run.
      const int pair = lane / 4 * kPitch + lane % 4 * 2;
      {
        float delta[2], du[2], dy[2], slope[2], of_gate[2];  // of softplus, and of the output by z but for y
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const float x = raw.delta[k] + bias;
          delta[k] = x, slope[k] = 1.0f;
          if (p.softplus) {
            const float e = ex2(-fabsf(x) * kLog2e), r = rcp(1.0f + e);
            delta[k] = fmaxf(x, 0.0f) + log_one_plus(e);
            slope[k] = x < 0.0f ? e * r : r;
          }
          if (t + k >= steps) delta[k] = 0.0f, slope[k] = 0.0f;
          dy[k] = raw.grad[k], of_gate[k] = 0.0f;
          if (gated) {
            const float s = sigmoid_of(raw.z[k]), silu = raw.z[k] * s;
            of_gate[k] = dy[k] * fmaf(silu, 1.0f - s, s);
            dy[k] *= silu;
          }
          du[k] = delta[k] * raw.u[k];
        }
        *reinterpret_cast<float2*>(stage + pair) = make_float2(delta[0], delta[1]);
        *reinterpret_cast<float2*>(stage + kRow + pair) = make_float2(dy[0], dy[1]);
        if (!kCarry) {
          *reinterpret_cast<float2*>(stage + 2 * kRow + pair) = make_float2(du[0], du[1]);
          *reinterpret_cast<float2*>(stage + 15 * kRow + pair) = make_float2(slope[0], slope[1]);
          *reinterpret_cast<float2*>(stage + 16 * kRow + pair) = make_float2(of_gate[0], of_gate[1]);
        }
      }
      __syncwarp();
      float delta[kRun], dy[kRun], du[kRun], total = 0.0f;
      load_words(delta, stage + seg * kPitch);
      load_words(dy, stage + kRow + seg * kPitch);
      if (!kCarry) load_words(du, stage + 2 * kRow + seg * kPitch);
#pragma unroll
      for (int k = 0; k < kRun; ++k) total += delta[k];
      float y[kRun], of_rate[kRun], of_drive[kRun], of_a[kPer];
#pragma unroll
      for (int k = 0; k < kRun; ++k) y[k] = of_rate[k] = of_drive[k] = 0.0f;
#pragma unroll
      for (int s = 0; s < kPer; ++s) {
        const int n = part_of_n * kPer + s;
        const float rate = rates[j * kStates + n], product = ex2(rate * total);
        float a[kRun], b[kRun], c[kRun], q[kRun];
        load_words(c, tile_c + n * kRow + seg * kPitch);
#pragma unroll
        for (int k = 0; k < kRun; ++k) a[k] = ex2(rate * delta[k]);
        if (!kCarry) {
          load_words(b, tile_b + n * kRow + seg * kPitch);
          const float start = raw.start[s];
          float h = start;
#pragma unroll
          for (int k = 0; k < kRun; ++k) h = fmaf(a[k], h, b[k] * du[k]);
          h = scan_before<true>(product, h, start);
#pragma unroll
          for (int k = 0; k < kRun; ++k) {
            q[k] = a[k] * h;
            h = fmaf(b[k], du[k], q[k]);
            y[k] = fmaf(c[k], h, y[k]);
            of_c[s][k] = fmaf(dy[k], h, of_c[s][k]);
          }
        }
        const float edge = seg == kLanesOfTime - 1 ? mus[j * kStates + n] : 0.0f;
        float mu = edge;
#pragma unroll
        for (int k = kRun - 1; k >= 0; --k) mu = a[k] * fmaf(c[k], dy[k], mu);
        const float before = scan_before<false>(product, mu, edge);
        if (seg == 0) mus[j * kStates + n] = mu;
        if (!kCarry) {
          mu = before, of_a[s] = 0.0f;
#pragma unroll
          for (int k = kRun - 1; k >= 0; --k) {
            const float lambda = fmaf(c[k], dy[k], mu), product_q = lambda * q[k];
            of_rate[k] = fmaf(rate, product_q, of_rate[k]);
            of_a[s] = fmaf(delta[k], product_q, of_a[s]);
            of_drive[k] = fmaf(b[k], lambda, of_drive[k]);
            of_b[s][k] = fmaf(du[k], lambda, of_b[s][k]);
            mu = a[k] * lambda;
          }
        }
      }
      if (kCarry) {
        // Each step is in four lanes.
        if (part_of_n == 0) sums_a[j * 128 + seg] += total;
        __syncwarp();
        continue;
      }
      float* shares = stage + (3 + part_of_n) * kRow + seg * kPitch;
      store_words(shares, y);
      store_words(shares + 4 * kRow, of_rate);
      store_words(shares + 8 * kRow, of_drive);
      float kept[kPer];
      load_words(kept, sums_a + j * 128 + lane * kPer);
#pragma unroll
      for (int s = 0; s < kPer; ++s) kept[s] += of_a[s];
      store_words(sums_a + j * 128 + lane * kPer, kept);
      __syncwarp();
      float sum[3][2];
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        sum[i][0] = sum[i][1] = 0.0f;
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          const float2 v = *reinterpret_cast<const float2*>(stage + (3 + 4 * i + s) * kRow + pair);
          sum[i][0] += v.x, sum[i][1] += v.y;
        }
      }
      const float2 of_pair = *reinterpret_cast<const float2*>(stage + pair);
      const float2 dy_pair = *reinterpret_cast<const float2*>(stage + kRow + pair);
      const float2 slopes = *reinterpret_cast<const float2*>(stage + 15 * kRow + pair);
      const float2 gates = *reinterpret_cast<const float2*>(stage + 16 * kRow + pair);
      const float slope[2] = {slopes.x, slopes.y}, of_gate[2] = {gates.x, gates.y};
      const float deltas[2] = {of_pair.x, of_pair.y}, dys[2] = {dy_pair.x, dy_pair.y};
      float g_u[2], g_delta[2], g_z[2], g_skip = 0.0f, g_bias = 0.0f;
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        g_u[k] = fmaf(deltas[k], sum[2][k], skip * dys[k]);
        g_delta[k] = fmaf(kLn2, sum[1][k], raw.u[k] * sum[2][k]) * slope[k];
        g_z[k] = of_gate[k] * fmaf(skip, raw.u[k], sum[0][k]);
        g_skip = fmaf(dys[k], raw.u[k], g_skip), g_bias += t + k < steps ? g_delta[k] : 0.0f;
      }
      store_run(row_at(j, 5), 0, left, whole, g_u);
      store_run(row_at(j, 6), 0, left, whole, g_delta);
      if (gated) store_run(row_at(j, 7), 0, left, whole, g_z);
      float2* others = reinterpret_cast<float2*>(sums_d) + j * 32 + lane;
      *others = make_float2(others->x + g_skip, others->y + g_bias);
      __syncwarp();  // the stage is written again
    }
    if constexpr (!kCarry) {
      // The block's sums over channels, B's and then C's.
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        __syncthreads();
#pragma unroll
        for (int s = 0; s < kPer; ++s) {
          store_words(stage + (part_of_n * kPer + s) * kRow + seg * kPitch, which ? of_c[s] : of_b[s]);
        }
        __syncthreads();
        float* to = reinterpret_cast<float*>(which ? p.part_c : p.part_b);
        to += ((slice * batch + row) * p.groups + group) * p.states * steps + from;
#pragma unroll 1
        for (int i = threadIdx.x; i < states * kChunk; i += kThreads) {
          const int n = i / kChunk, k = i % kChunk;
          float sum = 0.0f;
#pragma unroll
          for (int w = 0; w < kWarps; ++w) sum += stages[w * kStage + n * kRow + k / kRun * kPitch + k % kRun];
          if (from + k < steps) to[n * steps + k] = sum;
        }
      }
    }
  }
  __syncwarp();
  if constexpr (kCarry) {
    for (int i = lane; i < mine * states; i += 32) {
      const i64 cell = (segment * batch + row) * p.channels + first + i / states;
      p.carry[cell * states + i % states] = mus[i / states * kStates + i % states];
    }
    for (int j = lane; j < mine; j += 32) {
      float sum = 0.0f;
      for (int i = 0; i < kLanesOfTime; ++i) sum += sums_a[j * 128 + i];
      p.carry_sum[(segment * batch + row) * p.channels + first + j] = sum;
    }
  } else {
    for (int i = lane; i < mine * states; i += 32) {
      const int j = i / states, n = i % states;
      float sum = 0.0f;
#pragma unroll
      for (int k = 0; k < kLanesOfTime; ++k) {
        sum += sums_a[j * 128 + (n / kPer * kLanesOfTime + k) * kPer + n % kPer];
      }
      reinterpret_cast<float*>(p.part_a)[(part * p.channels + first + j) * states + n] = sum;
      if (p.g_h0.base && segment == 0) store_float(p.g_h0, offset(p.g_h0, row, first + j, n), mus[j * kStates + n]);
    }
    for (int j = lane; j < mine; j += 32) {
      float skip = 0.0f, bias = 0.0f;
      for (int i = 0; i < 32; ++i) {
        skip += sums_d[j * 64 + 2 * i], bias += sums_d[j * 64 + 2 * i + 1];
      }
      p.part_vectors[part * p.channels + first + j] = skip;
      p.part_vectors[(p.parts + part) * p.channels + first + j] = bias;
    }
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 2) selective_lanes_backward(Tensors p) { walk<false>(p); }
extern "C" __global__ void __launch_bounds__(kThreads, 2) selective_lanes_carry(Tensors p) { walk<true>(p); }
