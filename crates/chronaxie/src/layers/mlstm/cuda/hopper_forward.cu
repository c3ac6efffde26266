// mLSTM, forward, outputs by wgmma (sm_90a); what runs before it, its formulas and names are those of tensor_forward.cu.
//
//   hopper_states     block: a tile [128 of K, kColumns of V] of C of one chain, as tensor_states
//   hopper_outputs    block: a chunk of up to 128 tokens: its pairs once, in shared memory, then tiles of kColumns of h one after
//                     the other; two warpgroups have 64 rows each
//
// At 8 heads, 256 / 512, 65536 tokens, L = 128: 0.24 TFLOP, 0.3 ms at 0.8 PFLOP/s; from memory 2.68 GB, 0.63 ms at 4.28 TB/s;
// from L2 0.64 MB a chunk, 2.6 GB.
#include "hopper.cuh"

extern "C" __global__ void __launch_bounds__(kBlock, 256 / kColumns)
    hopper_states(const Call x, i64 window, int mode, int stages) {
  extern __shared__ __align__(16) char memory[];
  scan<false, ByWgmma>(x, window, mode, stages, memory);
}

extern "C" __global__ void __launch_bounds__(kBlock, 1) hopper_outputs(const Call x, i64 window, int stages) {
  extern __shared__ __align__(16) char memory[];
  __shared__ __align__(16) float n[kHeadMost];
  __shared__ float column[kEdge], top[kEdge], weight[kEdge], over[kEdge], inter[kEdge];
  const Chain chain = chain_of(x, blockIdx.y);
  const i64 nth = window * x.window + blockIdx.x;
  if (nth >= chain.chunks) return;
  const Chunk chunk = chunk_of(x, chain, nth);
  const i64 slot = chain.nth * (x.window + 1) + blockIdx.x;
  const char* c = reinterpret_cast<const char*>(x.c) + 2 * slot * x.dk * x.dv;
  const int thread = threadIdx.x, group = own_group(), row = own_row();
  const float scale = (float)x.scale;
  const int by_k = (int)((x.dk + kTerms - 1) / kTerms), by_s = (chunk.n + kTerms - 1) / kTerms;

  // Pairs, then for each tile of h q C and P v.
  int v0_ahead = -kColumns, step_ahead = 0;
  auto issue = [&](char* to) {
    if (v0_ahead >= x.dv) return;
    const int k = step_ahead * kTerms, s = (step_ahead - by_k) * kTerms;
    const bool paired = v0_ahead < 0;
    if (s < 0) fetch_blocks<kTileA>(to, tokens_at(x, x.q, kQ, chain, chunk.first, k, chunk.n, x.dk), false);
    Source b = tokens_at(x, x.k, kK, chain, chunk.first, k, chunk.n, x.dk);
    if (!paired)
      b = s < 0 ? state_at(x, c, k, v0_ahead) : tokens_at(x, x.v, kV, chain, chunk.first + s, v0_ahead, chunk.n - s, x.dv);
    fetch_blocks<kTileB>(to + kTileA, b, !paired);
    if (++step_ahead < (paired ? by_k : by_k + by_s)) return;
    step_ahead = 0;
    v0_ahead += kColumns;
  };
  char *begin = tiles_begin(memory), *pairs = begin + stages * kHold;
  Places<decltype(issue)> ring(begin, stages, issue);

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
    for (int k = thread; k < by_k * kTerms; k += kBlock) n[k] = k < x.dk ? x.n[slot * x.dk + k] : 0.f;

  {
    float acc[kEdge / 8][4];
    clear_sums(acc);
    // Two threads a row have q.n, each of half of the terms.
    float dot = 0.f;
    for (int k = 0; k < by_k; ++k) {
      const char* place = ring.pull();
      const unsigned tile = shared_at(place);
      begin_products<false, false>(acc, tile + group * kGroupRows, tile + kTileA, 0);
      if (x.normalize) {
        const float* with = n + k * kTerms + thread % 2 * 32;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const uint4 y = *reinterpret_cast<const uint4*>(place + swizzled(thread / 2, thread % 2 * 4 + e));
          const unsigned words[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            const float2 z = unpack<kBf16>(words[w]);
            dot = fmaf(z.x, with[8 * e + 2 * w], dot);
            dot = fmaf(z.y, with[8 * e + 2 * w + 1], dot);
          }
        }
      }
      products_wait(acc);
    }
    dot += __shfl_xor_sync(~0u, dot, 1);
    if (thread % 2 == 0) inter[thread / 2] = dot;
    float sums[2] = {};
    each_couple(acc, [&](int half, int s, float& y, float& z) {
      const int t = row + 8 * half;
      const float p0 = s <= t ? y * scale * __expf(column[s] - top[t]) : 0.f;
      const float p1 = s + 1 <= t ? z * scale * __expf(column[s + 1] - top[t]) : 0.f;
      sums[half] += p0 + p1;
      put_pair(pairs, t, s, p0, p1);
    });
    sum_rows(sums);
    // A row is of one warp, whose two threads had q.n of it too.
    __syncwarp();
    if (thread % 4 < 2 && row + 8 * (thread % 4) < chunk.n) {
      const int t = row + 8 * (thread % 4);
      const i64 flat = chunk.flat + t;
      const double m = x.sigmoid ? 0. : x.sums[flat] + top[t];
      if (x.m) x.m[flat] = (float)m;
      if (x.normalize) {
        const float l = weight[t] * inter[t] + (thread % 4 == 0 ? sums[0] : sums[1]);
        bool open;
        over[t] = 1.f / denominator(x, l, m, &open);
        if (x.l) x.l[flat] = l;
      }
    }
    __syncwarp();
  }

  for (i64 v0 = 0; v0 < x.dv; v0 += kColumns) {
    float acc[kColumns / 8][4];
    clear_sums(acc);
    for (int k = 0; k < by_k; ++k) {
      const unsigned tile = shared_at(ring.pull());
      begin_products<false, true>(acc, tile + group * kGroupRows, tile + kTileA, kTerms * kLine);
      products_wait(acc);
    }
    const float by_row[2] = {weight[row], weight[row + 8]};
    each_couple(acc, [&](int half, int, float& y, float& z) {
      y *= by_row[half];
      z *= by_row[half];
    });
    for (int s = 0; s < by_s; ++s) {
      const unsigned b = shared_at(ring.pull()) + kTileA;
      // Pairs above the diagonal are zeros.
      if (s > group) continue;
      begin_products<false, true>(acc, shared_at(pairs) + s * (kEdge * kLine) + group * kGroupRows, b, kTerms * kLine);
      products_wait(acc);
    }
    const float last[2] = {over[row], over[row + 8]};
    each_couple(acc, [&](int half, int, float& y, float& z) {
      y *= last[half];
      z *= last[half];
    });
    store_rows(acc, x.h, (x.plain & kH) != 0, chain, chunk, v0, x.dv);
  }
}
