// mLSTM, backward, on tensor cores; tensor_forward.cu's gates and states run before it, and names are as there and in
// backward.cu, whose formulas these are:
//
//   dl = -(dh.h) / N sign(l) where |l| > e^-m      dS_ts = s (dh_t.v_s / N_t + dl_t) e^(col_s - M_t)      P'_ts = P_ts / N_t
//   dq_t = sum_s dS_ts k_s + s past_t (C dh_t / N_t + dl_t n)        dC = kept dC' + sum_t s past_t / N_t q_t dh_t^T
//   dk_s = sum_t dS_ts q_t + into_s (dC' v_s + dn')                  dn = kept dn' + sum_t s past_t dl_t q_t
//   dv_s = sum_t P'_ts dh_t + into_s dC'^T k_s
//   dlog i_s = k_s.dk_s      dlog f_t = sum_{t <= j <= e} (q_j.dq_j - k_j.dk_j) + <C_e, dC_e> + <n_e, dn_e>
//
//   tensor_tokens       warp: a token: 1 / N and dl
//   tensor_grad_states  block: a tile of dC of one chain, in registers, chunk after chunk of a window against time
//   tensor_gradients    block: a chunk: P' and dS once, in shared memory, then tiles of dq, dk and dv one after the other
//   gate_grads          warp: a segment of chunks, e its end, so that the gates' errors do not grow with T
//
// Both pairs of a chunk stay in shared memory, and q.dq and k.dk come of sums in f32, so that what pairs of tokens within a
// segment give to both cancels. Nothing is added atomically.
//
// At 8 heads, 256 / 512, 65536 tokens, L = 128: tokens 1.1 GB, states 1.88 GB and 0.137 TFLOP again, their gradients as much,
// gradients 4.8 GB and 0.65 TFLOP; at 4.28 TB/s and 0.5 PFLOP/s 0.25 + 0.44 + 0.44 + 1.3 ms. Not timed yet.
#include "gradients.cuh"

extern "C" __global__ void __launch_bounds__(kThreads) tensor_tokens(const Call x) {
  const int lane = threadIdx.x % 32;
  const i64 flat = (blockIdx.x * (i64)kThreads + threadIdx.x) / 32;
  if (flat >= (x.cuts ? x.heads : x.chains) * x.steps) return;
  const i64 row = flat / x.steps, t = flat % x.steps;
  const Chain chain = {row, row / x.heads, row % x.heads, 0, x.steps, 0};
  const float l = x.l[flat];
  bool open;
  const float inverse = 1.f / denominator(x, l, gauge(x, flat), &open);
  float dot = 0.f;
  if (open && x.through) {
    const bool plain = (x.plain & kH) && (x.plain & kGradH);
    for (i64 v = 8 * lane; v < x.dv; v += 256) {
      if (plain) {
        const uint4 a = *reinterpret_cast<const uint4*>(x.h.data + 2 * place(x.h, chain, t, v));
        const uint4 b = *reinterpret_cast<const uint4*>(x.grad_h.data + 2 * place(x.grad_h, chain, t, v));
        const unsigned p[4] = {a.x, a.y, a.z, a.w}, q[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float2 y = unpack<kBf16>(p[e]), z = unpack<kBf16>(q[e]);
          dot = fmaf(y.x, z.x, fmaf(y.y, z.y, dot));
        }
      } else {
        for (int e = 0; e < 8; ++e) dot = fmaf(load(x.h, chain, t, v + e), load(x.grad_h, chain, t, v + e), dot);
      }
    }
    for (int d = 16; d > 0; d /= 2) dot += __shfl_xor_sync(~0u, dot, d);
    dot *= l < 0 ? inverse : -inverse;
  }
  if (lane != 0) return;
  x.inverse[flat] = inverse;
  x.grad_l[flat] = dot;
}

extern "C" __global__ void __launch_bounds__(kBlock, kScans)
    tensor_grad_states(const Call x, i64 window, int stages) {
  extern __shared__ __align__(16) char memory[];
  scan<true, ByMma>(x, window, 0, stages, memory);
}

extern "C" __global__ void __launch_bounds__(kBlock, kEdge == 128 ? 1 : 2)
    tensor_gradients(const Call x, i64 window, int stages) {
  extern __shared__ __align__(16) char memory[];
  __shared__ float n[kHeadMost], dn[kHeadMost];
  __shared__ float rows[kWarpsN][kEdge];
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
  const int thread = threadIdx.x, warp = thread / 32, warp_m = warp / kWarpsN, warp_n = warp % kWarpsN;
  constexpr int kRowsOfWarp = kEdge / kWarpsM;
  const float scale = (float)x.scale;
  const int by_k = (int)((x.dk + kStep - 1) / kStep), by_v = (int)((x.dv + kStep - 1) / kStep);
  const int by_t = (chunk.n + kStep - 1) / kStep;
  const int across_k = (int)((x.dk + kColumns - 1) / kColumns);
  const int across_v = x.grad_v.data ? (int)((x.dv + kColumns - 1) / kColumns) : 0;
  const int of_k = by_v + by_t, of_v = by_k + by_t;

  // Pairs from q k and dh v; tiles of dq from dh C and dS k; of dk from v dC and dS q; of dv from k dC and P' dh.
  int ahead = 0;
  auto issue = [&](char* to) {
    const i64 t = chunk.first;
    const int paired = by_k + by_v, keyed = paired + across_k * of_k, valued = keyed + across_k * of_k;
    int step = ahead++;
    if (step >= valued + across_v * of_v) return;
    if (step < paired) {
      const bool first = step < by_k;
      const int d = (first ? step : step - by_k) * kStep;
      const i64 width = first ? x.dk : x.dv;
      fetch<kEdge, kStep>(to, tokens_at(x, first ? x.q : x.grad_h, first ? kQ : kGradH, chain, t, d, chunk.n, width));
      fetch<kEdge, kStep>(to + kPlaceB, tokens_at(x, first ? x.k : x.v, first ? kK : kV, chain, t, d, chunk.n, width));
      return;
    }
    const int kind = step < keyed ? 0 : step < valued ? 1 : 2;
    step -= kind == 0 ? paired : kind == 1 ? keyed : valued;
    const int of = kind == 2 ? of_v : of_k, by = kind == 2 ? by_k : by_v;
    const i64 d0 = (i64)(step / of) * kColumns;
    const int j = step % of;
    if (j < by) {
      const Tokens& y = kind == 0 ? x.grad_h : kind == 1 ? x.v : x.k;
      const int bit = kind == 0 ? kGradH : kind == 1 ? kV : kK;
      fetch<kEdge, kStep>(to, tokens_at(x, y, bit, chain, t, j * kStep, chunk.n, kind == 2 ? x.dk : x.dv));
      if (kind == 2)
        fetch<kStep, kColumns>(to + kPlaceB, state_at(x, dc, j * kStep, d0));
      else
        fetch<kColumns, kStep>(to + kPlaceB, state_at(x, kind == 0 ? c : dc, d0, j * kStep));
    } else {
      const Tokens& y = kind == 0 ? x.k : kind == 1 ? x.q : x.grad_h;
      const int bit = kind == 0 ? kK : kind == 1 ? kQ : kGradH, done = (j - by) * kStep;
      fetch<kStep, kColumns>(to + kPlaceB, tokens_at(x, y, bit, chain, t + done, d0, chunk.n - done, kind == 2 ? x.dv : x.dk));
    }
  };
  Ring<kPlace, decltype(issue)> ring(memory, stages, issue);
  char *pairs = memory + stages * kPlace, *slopes = pairs + kPairs;

  const float before = before_of(x, chain, nth), behind = max(before, x.until[chunk.flat + chunk.n - 1]);
  of_rows.begin(x, chunk, before, behind);
  begin_n(x, slot, back, n, dn);

  const int from_row = warp_m * kRowsOfWarp, from_column = warp_n * (8 * kNT);
  {
    float acc[kMT][kPairNT][4];
    clear(acc);
    const bool below = warp_n * 32 < from_row + kRowsOfWarp;
    for (int j = 0; j < by_k + by_v; ++j) {
      const unsigned tile = shared_at(ring.pull());
      if (below)
        multiply<kBf16, kStep, false, kDeepPitch, false, kDeepPitch, false>(
            acc, tile + from_row * kDeepPitch, tile + kPlaceB + warp_n * 32 * kDeepPitch, nullptr);
      const bool first = j == by_k - 1;
      if (!first && j != by_k + by_v - 1) continue;
      each_pair(acc, [&](int t, int s, float& y, float& z) {
        const float w = scale * over[t], r = first ? 0.f : scale * rate_l[t], high = top[t];
        const float p0 = s <= t ? fmaf(y, w, r) * __expf(column[s] - high) : 0.f;
        const float p1 = s + 1 <= t ? fmaf(z, w, r) * __expf(column[s + 1] - high) : 0.f;
        *reinterpret_cast<unsigned*>((first ? pairs : slopes) + t * kPairPitch + 2 * s) = pack<kBf16>(p0, p1);
      });
      clear(acc);
    }
  }

  // Behind a segment <C, dC> is what this chunk's keys give to later tokens, from the same sums as dk, and what C gave them
  // before: what the gates' sums must cancel then does.
  const bool ends = nth + 1 == chain.chunks, closes = ends || (nth + 1) % x.segment == 0;
  float later = 0.f;
  float acc[kMT][kNT][4];
  for (int at = 0; at < 2 * across_k + across_v; ++at) {
    const int kind = at < across_k ? 0 : at < 2 * across_k ? 1 : 2;
    const int nth_tile = at - kind * across_k, by = kind == 2 ? by_k : by_v;
    const i64 d0 = (i64)nth_tile * kColumns, width = kind == 2 ? x.dv : x.dk;
    clear(acc);
    for (int j = 0; j < by; ++j) {
      const unsigned tile = shared_at(ring.pull()), a = tile + from_row * kDeepPitch;
      if (kind == 2)
        multiply<kBf16, kStep, false, kDeepPitch, true, kWidePitch, false>(acc, a, tile + kPlaceB + from_column * 2, nullptr);
      else
        multiply<kBf16, kStep, false, kDeepPitch, false, kDeepPitch, false>(acc, a, tile + kPlaceB + from_column * kDeepPitch,
                                                                            nullptr);
    }
    each_pair(acc, [&](int t, int d, float& y, float& z) {
      const int k = (int)min(d0 + d, (i64)kHeadMost - 2);
      const float by_row = kind == 0 ? weight[t] : into[t], inverse = kind == 0 ? over[t] : 1.f;
      const float rate = kind == 0 ? rate_l[t] : kind == 1 ? 1.f : 0.f;
      const float* with = kind == 0 ? n : dn;
      y = by_row * fmaf(inverse, y, rate * with[k]);
      z = by_row * fmaf(inverse, z, rate * with[k + 1]);
    });
    const unsigned of = shared_at(kind == 2 ? pairs : slopes);
    // First what goes to tokens of other chunks, if that is asked for, then all.
#pragma unroll 1
    for (int all = kind == 1 && closes ? 0 : 1; all < 2; ++all) {
      for (int j = 0; j < by_t && all == 1; ++j) {
        const unsigned tile = shared_at(ring.pull()), b = tile + kPlaceB + from_column * 2;
        // Rows are later tokens and terms earlier ones, or the other way about.
        if (kind == 0 && j * kStep < from_row + kRowsOfWarp)
          multiply<kBf16, kStep, false, kPairPitch, true, kWidePitch, false>(
              acc, of + from_row * kPairPitch + j * kStep * 2, b, nullptr);
        if (kind != 0 && (j + 1) * kStep > from_row)
          multiply<kBf16, kStep, true, kPairPitch, true, kWidePitch, false>(
              acc, of + j * kStep * kPairPitch + from_row * 2, b, nullptr);
      }
      if (kind == 2) continue;
      const Tokens& with = kind == 0 ? x.q : x.k;
      const bool plain = (x.plain & (kind == 0 ? kQ : kK)) != 0;
      float partial[2 * kMT] = {};
      each_pair_of_row(acc, [&](int row, int t, int k, float& y, float& z) {
        if (t >= chunk.n || d0 + k >= width) return;
        const float2 e = load_pair(with, plain, chain, chunk.first + t, d0 + k);
        partial[row] = fmaf(e.x, y, fmaf(e.y, z, partial[row]));
      });
#pragma unroll
      for (int e = 0; e < 2 * kMT; ++e) {
        if (all == 0) {
          later += partial[e];
          continue;
        }
        partial[e] += __shfl_xor_sync(~0u, partial[e], 1);
        partial[e] += __shfl_xor_sync(~0u, partial[e], 2);
        // The same thread had it of the tile before.
        float& row = rows[warp_n][from_row + thread % 32 / 4 + 8 * e];
        if (thread % 4 == 0) row = nth_tile == 0 ? partial[e] : row + partial[e];
      }
    }
    if (kind != 2 && nth_tile == across_k - 1) {
      __syncthreads();
      if (thread < chunk.n) {
        float sum = 0.f;
#pragma unroll
        for (int w = 0; w < kWarpsN; ++w) sum += rows[w][thread];
        (kind == 0 ? x.rate_q : x.rate_i)[chunk.flat + thread] = sum;
      }
    }
    const Tokens& to = kind == 0 ? x.grad_q : kind == 1 ? x.grad_k : x.grad_v;
    const bool plain = (x.plain & (kind == 0 ? kGradQ : kind == 1 ? kGradK : kGradV)) != 0;
    if (to.data)
      each_piece(acc, [&](int t, int d, uint4 piece) {
        if (t < chunk.n && d0 + d < width) store_piece(to, plain, chain, chunk.first + t, d0 + d, piece);
      });
  }

  if (!closes) return;
  float sum = 0.f;
  if (!ends || x.grad_c_last) {
    const uint4 *state = reinterpret_cast<const uint4*>(c), *slope = reinterpret_cast<const uint4*>(dc);
    for (i64 e = thread; e < size / 8; e += kBlock) {
      const uint4 y = state[e], z = slope[e];
      const unsigned p[4] = {y.x, y.y, y.z, y.w}, q[4] = {z.x, z.y, z.z, z.w};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float2 f = unpack<kBf16>(p[w]), g = unpack<kBf16>(q[w]);
        sum = fmaf(f.x, g.x, fmaf(f.y, g.y, sum));
      }
    }
    for (int k = thread; k < x.dk; k += kBlock) sum = fmaf(n[k], dn[k], sum);
    sum = fmaf(sum, expf(before - behind), later);
  }
  end_segment(x, chain, nth, sum, parts);
}

extern "C" __global__ void __launch_bounds__(kThreads) gate_grads(const Call x) {
  const int lane = threadIdx.x % 32;
  const i64 at = (blockIdx.x * (i64)kThreads + threadIdx.x) / 32;
  if (at >= x.chains * x.segments) return;
  const Chain chain = chain_of(x, at / x.segments);
  const i64 first = at % x.segments * x.segment, last = min(chain.chunks, first + x.segment);
  if (first >= last) return;
  double rest = x.products[at];
  if (last == chain.chunks && lane == 0) x.excess[chain.nth] = x.grad_m_last ? x.grad_m_last[chain.nth] - rest : 0;
  const Chunk begin = chunk_of(x, chain, first), end = chunk_of(x, chain, last - 1);
  const i64 count = end.first + end.n - begin.first;
  for (i64 behind = count; behind > 0; behind -= 32) {
    // Lane 0 has the latest token.
    const i64 t = behind - 1 - lane;
    const bool on = t >= 0;
    const i64 flat = begin.flat + t, time = begin.first + t;
    const float into = on ? x.rate_i[flat] : 0.f;
    double sum = on ? (double)x.rate_q[flat] - into : 0.;
    for (int d = 1; d < 32; d *= 2) {
      const double other = __shfl_up_sync(~0u, sum, d);
      if (lane >= d) sum += other;
    }
    sum += rest;
    if (on && x.grad_f.data) store_gate(x.grad_f, chain, time, (float)sum * forget_slope(load_gate(x.f, chain, time)));
    if (on && x.grad_i.data)
      store_gate(x.grad_i, chain, time, into * (x.sigmoid ? slope(load_gate(x.i, chain, time)) : 1.f));
    rest = __shfl_sync(~0u, sum, 31);
  }
}
