// mLSTM, forward, on tensor cores (mma.sync, sm_80 and newer): f16 or bf16 operands, sums in f32, chunks of up to 128 tokens.
//
//   b_t = sum of log f over the chunk up to t       col_s = log i_s - b_s       M_t = max(m, max_{s <= t} col_s, -80 - b_t),
//   m the gauge before the chunk
//   m_t = b_t + M_t      P_ts = s q_t.k_s e^(col_s - M_t)      C' = e^(m - M_L) C + sum_s e^(col_s - M_L) k_s v_s^T
//   h_t = (s e^(m - M_t) C^T q_t + sum_s P_ts v_s) / (max(|l_t|, e^-m_t) + eps)
// With the sigmoid gate m = 0 and M_t = -b_t. The gauge of a row is known before any product, so nothing is scaled again.
//
//   gate_scan        warp: a chunk: b, col, and the largest col up to each token
//   gate_carry       warp: a chain: the gauge before each chunk, 32 chunks at a time
//   tensor_states    block: a tile [kEdge of K, kEdge of V] of C of one chain, in registers, chunk after chunk of a window
//   tensor_outputs   block: a chunk: its pairs once, in shared memory, then tiles of kColumns of h one after the other
//
// Tiles come by cp.async through a ring of 2 to 4 places of 32 terms that runs on from product to product. n and l are f32
// from exact products, since h divides by l and l may nearly cancel.
//
// At 8 heads, 256 / 512, 65536 tokens, L = 128: states 0.137 TFLOP and 1.88 GB (k, v read, C written in bf16), outputs
// 0.24 TFLOP and 2.68 GB; at 4.28 TB/s and the 0.5 PFLOP/s that mma.sync may reach on an H200 the floor is 0.44 + 0.62 ms,
// both of bytes. Measured with 8 x 8 chains of 8192: 2.27 ms.
#include "tensor.cuh"

extern "C" __global__ void __launch_bounds__(kThreads) gate_scan(const Call x) {
  const int lane = threadIdx.x % 32;
  const i64 at = (blockIdx.x * (i64)kThreads + threadIdx.x) / 32;
  if (at >= x.chains * x.chunks) return;
  const Chain chain = chain_of(x, at / x.chunks);
  if (at % x.chunks >= chain.chunks) return;
  const Chunk chunk = chunk_of(x, chain, at % x.chunks);
  const float lowest = __int_as_float(0xff800000);
  double sum = 0;
  float most = lowest;
  auto log_of = [](float y) { return min(y, 0.f) - log1pf(expf(-fabsf(y))); };
  for (int t0 = 0; t0 < chunk.n; t0 += 32) {
    const int t = t0 + lane;
    const bool on = t < chunk.n;
    double b = on ? at_least(log_of(load_gate(x.f, chain, chunk.first + t)), kLogForgetLeast) : 0.f;
    float i = on ? load_gate(x.i, chain, chunk.first + t) : 0.f;
    if (x.sigmoid) i = log_of(i);
    for (int d = 1; d < 32; d *= 2) {
      const double other = __shfl_up_sync(~0u, b, d);
      if (lane >= d) b += other;
    }
    b += sum;
    const float column = on ? (float)(i - b) : lowest;
    float until = on ? max(most, (float)(at_least(i, kGaugeLeast) - b)) : most;
    for (int d = 1; d < 32; d *= 2) {
      const float other = __shfl_up_sync(~0u, until, d);
      if (lane >= d) until = max(until, other);
    }
    if (on) {
      x.sums[chunk.flat + t] = b;
      x.input[chunk.flat + t] = i;
      x.column[chunk.flat + t] = column;
      x.until[chunk.flat + t] = x.sigmoid ? (float)-b : until;
    }
    sum = __shfl_sync(~0u, b, 31);
    most = __shfl_sync(~0u, until, 31);
  }
  if (lane == 0) x.most[at] = most;
}

// m behind a chunk is max(m + g, a): maps that compose to such maps.
extern "C" __global__ void __launch_bounds__(kThreads) gate_carry(const Call x) {
  const int lane = threadIdx.x % 32;
  const i64 at = (blockIdx.x * (i64)kThreads + threadIdx.x) / 32;
  if (at >= x.chains) return;
  const Chain chain = chain_of(x, at);
  const double lowest = __int_as_float(0xff800000);
  float* before = x.before + at * (x.chunks + 1);
  double m = x.m_initial ? x.m_initial[at] : 0;
  auto load_map = [&](i64 c, double& g, double& a) {
    g = 0;
    a = lowest;
    if (c >= chain.chunks) return;
    const Chunk chunk = chunk_of(x, chain, c);
    g = x.sums[chunk.flat + chunk.n - 1];
    a = g + x.most[at * x.chunks + c];
  };
  double g, a, next_g, next_a;
  load_map(lane, g, a);
  for (i64 c0 = 0; c0 < chain.chunks; c0 += 32) {
    load_map(c0 + 32 + lane, next_g, next_a);
    for (int d = 1; d < 32; d *= 2) {
      const double other_g = __shfl_up_sync(~0u, g, d), other_a = __shfl_up_sync(~0u, a, d);
      if (lane < d) continue;
      a = max(other_a + g, a);
      g += other_g;
    }
    const double until_g = __shfl_up_sync(~0u, g, 1), until_a = __shfl_up_sync(~0u, a, 1);
    if (c0 + lane < chain.chunks) before[c0 + lane] = (float)(lane == 0 ? m : max(m + until_g, until_a));
    m = max(m + __shfl_sync(~0u, g, 31), __shfl_sync(~0u, a, 31));
    g = next_g;
    a = next_a;
  }
  if (lane != 0) return;
  before[chain.chunks] = (float)m;
  if (x.m_last) x.m_last[at] = (float)m;
}

extern "C" __global__ void __launch_bounds__(kBlock, kScans)
    tensor_states(const Call x, i64 window, int mode, int stages) {
  extern __shared__ __align__(16) char memory[];
  scan<false, ByMma>(x, window, mode, stages, memory);
}

extern "C" __global__ void __launch_bounds__(kBlock, kTogether) tensor_outputs(const Call x, i64 window, int stages) {
  extern __shared__ __align__(16) char memory[];
  __shared__ __align__(16) float n[kHeadMost];
  __shared__ float column[kEdge], top[kEdge], weight[kEdge], over[kEdge], inter[kEdge], rows[kWarpsN][kEdge];
  const Chain chain = chain_of(x, blockIdx.y);
  const i64 nth = window * x.window + blockIdx.x;
  if (nth >= chain.chunks) return;
  const Chunk chunk = chunk_of(x, chain, nth);
  const i64 slot = chain.nth * (x.window + 1) + blockIdx.x;
  const char* c = reinterpret_cast<const char*>(x.c) + 2 * slot * x.dk * x.dv;
  const int thread = threadIdx.x, warp = thread / 32, warp_m = warp / kWarpsN, warp_n = warp % kWarpsN;
  constexpr int kRowsOfWarp = kEdge / kWarpsM;
  const float scale = (float)x.scale;
  const int by_k = (int)((x.dk + kStep - 1) / kStep), by_s = (chunk.n + kStep - 1) / kStep;

  // Pairs, then for each tile of h q C and P v.
  int v0_ahead = -kColumns, k_ahead = 0;
  auto issue = [&](char* to) {
    if (v0_ahead >= x.dv) return;
    const int k = k_ahead * kStep, s = (k_ahead - by_k) * kStep;
    const bool paired = v0_ahead < 0;
    if (s < 0) fetch<kEdge, kStep>(to, tokens_at(x, x.q, kQ, chain, chunk.first, k, chunk.n, x.dk));
    if (paired)
      fetch<kEdge, kStep>(to + kPlaceB, tokens_at(x, x.k, kK, chain, chunk.first, k, chunk.n, x.dk));
    else
      fetch<kStep, kColumns>(to + kPlaceB, s < 0 ? state_at(x, c, k, v0_ahead)
                                                 : tokens_at(x, x.v, kV, chain, chunk.first + s, v0_ahead, chunk.n - s, x.dv));
    if (++k_ahead < (paired ? by_k : by_k + by_s)) return;
    k_ahead = 0;
    v0_ahead += kColumns;
  };
  Ring<kPlace, decltype(issue)> ring(memory, stages, issue);
  char* pairs = memory + stages * kPlace;

  const float before = before_of(x, chain, nth);
  if (thread < kEdge) {
    const bool on = thread < chunk.n;
    const float until = on ? x.until[chunk.flat + thread] : 0.f;
    column[thread] = on ? x.column[chunk.flat + thread] : __int_as_float(0xff800000);
    // Rows that are not there have no pairs.
    top[thread] = on ? max(before, until) : __int_as_float(0x7f800000);
    weight[thread] = on ? scale * expf(before - max(before, until)) : 0.f;
    over[thread] = 1.f;
  }
  if (x.normalize)
    for (int k = thread; k < by_k * kStep; k += kBlock) n[k] = k < x.dk ? x.n[slot * x.dk + k] : 0.f;

  {
    float acc[kMT][kPairNT][4];
    clear(acc);
    // Two threads a row have q.n, each of half of the terms.
    float dot = 0.f;
    const bool below = warp_n * 32 < (warp_m + 1) * kRowsOfWarp;
    for (int k = 0; k < by_k; ++k) {
      const char* tile = ring.pull();
      if (below)
        multiply<kBf16, kStep, false, kDeepPitch, false, kDeepPitch, false>(
            acc, shared_at(tile) + warp_m * kRowsOfWarp * kDeepPitch, shared_at(tile) + kPlaceB + warp_n * 32 * kDeepPitch, nullptr);
      if (!x.normalize) continue;
      const uint4* q = reinterpret_cast<const uint4*>(tile + thread / 2 * kDeepPitch + thread % 2 * 32);
      const float* with = n + k * kStep + thread % 2 * 16;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const uint4 y = q[e];
        const unsigned words[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const float2 z = unpack<kBf16>(words[w]);
          dot = fmaf(z.x, with[8 * e + 2 * w], dot);
          dot = fmaf(z.y, with[8 * e + 2 * w + 1], dot);
        }
      }
    }
    dot += __shfl_xor_sync(~0u, dot, 1);
    if (thread % 2 == 0) inter[thread / 2] = dot;
    float sums[2 * kMT] = {};
    each_pair_of_row(acc, [&](int nth, int t, int s, float& y, float& z) {
      const float p0 = s <= t ? y * scale * __expf(column[s] - top[t]) : 0.f;
      const float p1 = s + 1 <= t ? z * scale * __expf(column[s + 1] - top[t]) : 0.f;
      sums[nth] += p0 + p1;
      *reinterpret_cast<unsigned*>(pairs + t * kPairPitch + 2 * s) = pack<kBf16>(p0, p1);
    });
#pragma unroll
    for (int e = 0; e < 2 * kMT; ++e) {
      sums[e] += __shfl_xor_sync(~0u, sums[e], 1);
      sums[e] += __shfl_xor_sync(~0u, sums[e], 2);
      if (thread % 4 == 0) rows[warp_n][warp_m * kRowsOfWarp + thread % 32 / 4 + 8 * e] = sums[e];
    }
  }
  __syncthreads();
  if (thread < chunk.n) {
    const i64 flat = chunk.flat + thread;
    const double m = x.sigmoid ? 0. : x.sums[flat] + top[thread];
    if (x.m) x.m[flat] = (float)m;
    if (x.normalize) {
      float l = weight[thread] * inter[thread];
#pragma unroll
      for (int w = 0; w < kWarpsN; ++w) l += rows[w][thread];
      bool open;
      over[thread] = 1.f / denominator(x, l, m, &open);
      if (x.l) x.l[flat] = l;
    }
  }

  for (i64 v0 = 0; v0 < x.dv; v0 += kColumns) {
    float acc[kMT][kNT][4];
    clear(acc);
    for (int k = 0; k < by_k; ++k) {
      const char* tile = ring.pull();
      multiply<kBf16, kStep, false, kDeepPitch, true, kWidePitch, false>(
          acc, shared_at(tile) + warp_m * kRowsOfWarp * kDeepPitch, shared_at(tile) + kPlaceB + warp_n * (8 * kNT) * 2, nullptr);
    }
    each_pair(acc, [&](int t, int, float& y, float& z) {
      y *= weight[t];
      z *= weight[t];
    });
    for (int s = 0; s < by_s; ++s) {
      const char* tile = ring.pull();
      // Pairs above the diagonal are zeros.
      if (s * kStep < (warp_m + 1) * kRowsOfWarp)
        multiply<kBf16, kStep, false, kPairPitch, true, kWidePitch, false>(
            acc, shared_at(pairs) + warp_m * kRowsOfWarp * kPairPitch + s * kStep * 2,
            shared_at(tile) + kPlaceB + warp_n * (8 * kNT) * 2, nullptr);
    }
    each_pair(acc, [&](int t, int, float& y, float& z) {
      y *= over[t];
      z *= over[t];
    });
    each_piece(acc, [&](int t, int v, uint4 piece) {
      if (t < chunk.n && v0 + v < x.dv) store_piece(x.h, x.plain & kH, chain, chunk.first + t, v0 + v, piece);
    });
  }
}
