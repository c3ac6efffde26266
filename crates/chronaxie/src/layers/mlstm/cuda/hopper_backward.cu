// mLSTM, backward, gradients of q, k and v by wgmma (sm_90a); what runs before it, its formulas and names are those of
// tensor_backward.cu.
//
//   hopper_grad_states  block: a tile [128 of K, kColumns of V] of dC of one chain, as tensor_grad_states
//   hopper_gradients    block: a chunk of up to 128 tokens: P' and dS once, in shared memory, then tiles of kColumns of dq, dk
//                       and dv one after the other; two warpgroups have 64 rows each
//
// Tiles of 64 terms come by cp.async into blocks that wgmma reads, through a ring of 2 to 4 places that runs on from product
// to product. What is left of <C, dC> behind a segment is made of the tiles of dC while products with them are made.
//
// At 8 heads, 256 / 512, 65536 tokens, L = 128: 0.65 TFLOP, 0.8 ms at 0.8 PFLOP/s. A chunk brings 0.13 MB for q k, 0.26 for dh v,
// 0.45 each for dq and dk, 0.26 for <C, dC>, and 0.51 for dv, and the chunks that run at a time are more than L2 holds: 8.4 GB, 2 ms
// at 4.28 TB/s. Every instruction runs but some times a chunk, so that code beyond the instruction cache (128 KB) waits for it: one
// code copies all tiles, and of kinds that differ in addresses alone there is one.
#include "gradients.cuh"
#include "hopper.cuh"

extern "C" __global__ void __launch_bounds__(kBlock, 256 / kColumns)
    hopper_grad_states(const Call x, i64 window, int stages) {
  extern __shared__ __align__(16) char memory[];
  scan<true, ByWgmma>(x, window, 0, stages, memory);
}

extern "C" __global__ void __launch_bounds__(kBlock, 1) hopper_gradients(const Call x, i64 window, int stages) {
  extern __shared__ __align__(16) char memory[];
  __shared__ float n[kHeadMost], dn[kHeadMost];
  __shared__ GradientRows of_rows;
  const float *column = of_rows.column, *top = of_rows.top, *weight = of_rows.weight, *into = of_rows.into;
  const float *over = of_rows.over, *rate_l = of_rows.rate_l;
  __shared__ double parts[kBlock / 32];
  const Chain chain = chain_of(x, blockIdx.y);
  const i64 nth = window * x.window + blockIdx.x;
  if (nth >= chain.chunks) return;
  const Chunk chunk = chunk_of(x, chain, nth);
  const i64 size = x.dk * x.dv, slot = chain.nth * (x.window + 1) + blockIdx.x, back = chain.nth * x.window + blockIdx.x;
  const char *c = reinterpret_cast<const char*>(x.c) + 2 * slot * size;
  const char *dc = reinterpret_cast<const char*>(x.grad_c) + 2 * back * size;
  const int thread = threadIdx.x, group = own_group(), row = own_row();
  const float scale = (float)x.scale;
  const int by_k = (int)((x.dk + kTerms - 1) / kTerms), by_v = (int)((x.dv + kTerms - 1) / kTerms);
  const int by_t = (chunk.n + kTerms - 1) / kTerms;
  const int across_k = (int)((x.dk + kColumns - 1) / kColumns);
  const int across_v = x.grad_v.data ? (int)((x.dv + kColumns - 1) / kColumns) : 0;

  // Pairs from q k and dh v; tiles of dq from dh C and dS k; of dk from v dC and dS q; of dv from k dC and P' dh: -1, 0, 1, 2.
  int kind_ahead = -1, tile_ahead = 0, step_ahead = 0;
  auto issue = [&](char* to) {
    const i64 t = chunk.first;
    const int j = step_ahead++, d = j * kTerms;
    const int kind = kind_ahead;
    if (kind > 2 || (kind == 2 && tile_ahead >= across_v)) return;
    const int by = kind < 0 ? by_k + by_v : kind == 2 ? by_k : by_v;
    const i64 d0 = (i64)tile_ahead * kColumns;
    Source a, b;
    bool wide = false;
    if (kind < 0) {
      const bool first = j < by_k;
      const int at = first ? d : d - by_k * kTerms;
      const i64 width = first ? x.dk : x.dv;
      a = tokens_at(x, first ? x.q : x.grad_h, first ? kQ : kGradH, chain, t, at, chunk.n, width);
      b = tokens_at(x, first ? x.k : x.v, first ? kK : kV, chain, t, at, chunk.n, width);
    } else if (j < by) {
      const Tokens& y = kind == 0 ? x.grad_h : kind == 1 ? x.v : x.k;
      a = tokens_at(x, y, kind == 0 ? kGradH : kind == 1 ? kV : kK, chain, t, d, chunk.n, kind == 2 ? x.dk : x.dv);
      wide = kind == 2;
      b = wide ? state_at(x, dc, d, d0) : state_at(x, kind == 0 ? c : dc, d0, d);
    } else {
      const Tokens& y = kind == 0 ? x.k : kind == 1 ? x.q : x.grad_h;
      const int done = (j - by) * kTerms;
      wide = true;
      b = tokens_at(x, y, kind == 0 ? kK : kind == 1 ? kQ : kGradH, chain, t + done, d0, chunk.n - done, kind == 2 ? x.dv : x.dk);
    }
    if (j < by) fetch_blocks<kTileA>(to, a, false);
    fetch_blocks<kTileB>(to + kTileA, b, wide);
    if (kind < 0) {
      if (step_ahead < by) return;
      kind_ahead = 0;
      step_ahead = 0;
      return;
    }
    if (step_ahead < by + by_t) return;
    step_ahead = 0;
    if (++tile_ahead < (kind == 2 ? across_v : across_k)) return;
    tile_ahead = 0;
    ++kind_ahead;
  };
  char* begin = tiles_begin(memory);
  char *pairs = begin + stages * kHold, *slopes = pairs + kSquare;
  Places<decltype(issue)> ring(begin, stages, issue);

  const float before = before_of(x, chain, nth), behind = max(before, x.until[chunk.flat + chunk.n - 1]);
  of_rows.begin(x, chunk, before, behind);
  begin_n(x, slot, back, n, dn);

  {
    float acc[kEdge / 8][4];
    clear_sums(acc);
    for (int j = 0; j < by_k + by_v; ++j) {
      const unsigned tile = shared_at(ring.pull());
      begin_products<false, false>(acc, tile + group * kGroupRows, tile + kTileA, 0);
      products_wait(acc);
      const bool first = j == by_k - 1;
      if (!first && j != by_k + by_v - 1) continue;
      each_couple(acc, [&](int half, int s, float& y, float& z) {
        const int t = row + 8 * half;
        const float w = scale * over[t], r = first ? 0.f : scale * rate_l[t], high = top[t];
        const float p0 = s <= t ? fmaf(y, w, r) * __expf(column[s] - high) : 0.f;
        const float p1 = s + 1 <= t ? fmaf(z, w, r) * __expf(column[s + 1] - high) : 0.f;
        put_pair(first ? pairs : slopes, t, s, p0, p1);
      });
      clear_sums(acc);
    }
  }

  // Behind a segment <C, dC> is what this chunk's keys give to later tokens, from the same sums as dk, and what C gave them
  // before: what the gates' sums must cancel then does.
  const bool ends = nth + 1 == chain.chunks, closes = ends || (nth + 1) % x.segment == 0;
  const bool meets = closes && (!ends || x.grad_c_last);
  float later = 0.f, sum = 0.f, sums[2] = {};
  float acc[kColumns / 8][4];
  for (int at = 0; at < 2 * across_k + across_v; ++at) {
    const int kind = at < across_k ? 0 : at < 2 * across_k ? 1 : 2;
    const int nth_tile = at - kind * across_k, by = kind == 2 ? by_k : by_v;
    const i64 d0 = (i64)nth_tile * kColumns, width = kind == 2 ? x.dv : x.dk;
    clear_sums(acc);
    for (int j = 0; j < by; ++j) {
      const char* place = ring.pull();
      const unsigned tile = shared_at(place);
      if (kind == 2)
        begin_products<false, true>(acc, tile + group * kGroupRows, tile + kTileA, kTerms * kLine);
      else
        begin_products<false, false>(acc, tile + group * kGroupRows, tile + kTileA, 0);
      if (kind == 1 && meets) {
        // What this thread copied of dC, and the same of C.
        const int piece = thread % 8;
        uint4 y[kColumns / 32];
#pragma unroll
        for (int i = 0; i < kColumns / 32; ++i) {
          const int k = thread / 8 + 32 * i;
          const bool there = d0 + k < x.dk && j * kTerms + 8 * piece < x.dv;
          y[i] = there ? *reinterpret_cast<const uint4*>(c + 2 * ((d0 + k) * x.dv + j * kTerms + 8 * piece)) : uint4{};
        }
#pragma unroll
        for (int i = 0; i < kColumns / 32; ++i) {
          const uint4 z = *reinterpret_cast<const uint4*>(place + kTileA + swizzled(thread / 8 + 32 * i, piece));
          sum = dot_pieces(y[i], z, sum);
        }
      }
      products_wait(acc);
    }
    {
      const float* with = (kind == 0 ? n : dn) + d0;
      const float* of_row = kind == 0 ? weight : into;
      const float by_row[2] = {of_row[row], of_row[row + 8]};
      const float inverse[2] = {kind == 0 ? over[row] : 1.f, kind == 0 ? over[row + 8] : 1.f};
      const float rate[2] = {kind == 0 ? rate_l[row] : kind == 1 ? 1.f : 0.f,
                             kind == 0 ? rate_l[row + 8] : kind == 1 ? 1.f : 0.f};
      each_couple(acc, [&](int half, int d, float& y, float& z) {
        y = by_row[half] * fmaf(inverse[half], y, rate[half] * with[d]);
        z = by_row[half] * fmaf(inverse[half], z, rate[half] * with[d + 1]);
      });
    }
    const Tokens& with = kind == 0 ? x.q : x.k;
    const unsigned of = shared_at(kind == 2 ? pairs : slopes);
    // First what goes to tokens of other chunks, if that is asked for, then all.
#pragma unroll 1
    for (int all = kind == 1 && closes ? 0 : 1; all < 2; ++all) {
      for (int j = 0; j < by_t && all == 1; ++j) {
        const unsigned b = shared_at(ring.pull()) + kTileA;
        // Rows are later tokens and terms earlier ones, or the other way about.
        if (kind == 0 ? j > group : j < group) continue;
        if (kind == 0)
          begin_products<false, true>(acc, of + j * (kEdge * kLine) + group * kGroupRows, b, kTerms * kLine);
        else
          begin_products<true, true>(acc, of + group * (kEdge * kLine) + j * kGroupRows, b, kTerms * kLine);
        products_wait(acc);
      }
      if (kind == 2) continue;
      float some[2] = {};
      dot_rows(acc, with, chain, chunk, d0, width, some);
      if (all == 0) {
        later += own_row() < chunk.n ? some[0] : 0.f;
        later += own_row() + 8 < chunk.n ? some[1] : 0.f;
      } else {
        sums[0] += some[0];
        sums[1] += some[1];
      }
    }
    if (kind != 2 && nth_tile == across_k - 1) {
      sum_rows(sums);
      float* to = (kind == 0 ? x.rate_q : x.rate_i) + chunk.flat;
      if (thread % 4 == 0 && row < chunk.n) to[row] = sums[0];
      if (thread % 4 == 0 && row + 8 < chunk.n) to[row + 8] = sums[1];
      sums[0] = sums[1] = 0.f;
    }
    const Tokens& to = kind == 0 ? x.grad_q : kind == 1 ? x.grad_k : x.grad_v;
    if (to.data)
      store_rows(acc, to, (x.plain & (kind == 0 ? kGradQ : kind == 1 ? kGradK : kGradV)) != 0, chain, chunk, d0, width);
  }

  if (!closes) return;
  if (meets) {
    for (int k = thread; k < x.dk; k += kBlock) sum = fmaf(n[k], dn[k], sum);
    sum = fmaf(sum, expf(before - behind), later);
  }
  end_segment(x, chain, nth, sum, parts);
}
