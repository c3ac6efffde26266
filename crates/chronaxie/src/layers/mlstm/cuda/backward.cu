// mLSTM, backward, portable; forward.cu's gate_sums and states run before it, and m is what the forward pass saved.
//
//   dh' = dh / N      dl = -(dh.h) / N sign(l) where |l| > e^-m      dP_ts = dh'_t.v_s + dl_t      dS = dP D
//   dq_t = s sum_s dS_ts k_s + s past_t (C dh'_t + dl_t n)           dC = kept dC' + sum_t s past_t q_t dh'_t^T
//   dk_s = s sum_t dS_ts q_t + into_s (dC' v_s + dn')                dn = kept dn' + sum_t s past_t dl_t q_t
//   dv_s = sum_t P_ts dh'_t + into_s dC'^T k_s
//   dlog i_s = k_s.dk_s      dlog f_t = sum_{t <= j < L} (q_j.dq_j - k_j.dk_j) + <C', dC'> + <n', dn'>
//
//   tokens        thread: a token: 1 / N and dl
//   grad_states   block: a tile of dC of one chain, in registers, chunk after chunk of a window against time
//   gradients     block: a chunk: its pairs once, then tiles of dq, dk and dv one after the other
//   ends          block: a chain: what the gauges of its first and last state add
//
// Sums have one order and nothing is added atomically. Not timed.
#ifndef __CUDACC_RTC__
#include "defaults.cuh"
#endif
#include "mlstm.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, 1) tokens(const Call x) {
  const i64 at = blockIdx.x * (i64)kThreads + threadIdx.x;
  if (at >= x.chains * x.chunks * x.length) return;
  const i64 nth = at / x.length;
  const Chain chain = chain_of(x, nth / x.chunks);
  if (nth % x.chunks >= chain.chunks) return;
  const Chunk chunk = chunk_of(x, chain, nth % x.chunks);
  const int t = (int)(at % x.length);
  if (t >= chunk.n) return;
  const i64 flat = chunk.flat + t;
  float inverse = 1.f, grad_l = 0.f;
  if (x.normalize) {
    bool open;
    const float l = x.l[flat];
    inverse = 1.f / denominator(x, l, gauge(x, flat), &open);
    if (open && x.through) {
      for (i64 v = 0; v < x.dv; ++v)
        grad_l = fmaf(load(x.h, chain, chunk.first + t, v), load(x.grad_h, chain, chunk.first + t, v), grad_l);
      grad_l *= l < 0 ? inverse : -inverse;
    }
  }
  x.inverse[flat] = inverse;
  x.grad_l[flat] = grad_l;
}

extern "C" __global__ void __launch_bounds__(kThreads, 1) grad_states(const Call x, i64 window) {
  __shared__ Slices slices;
  __shared__ float weight[kTile], over[kTile], rate[kTile];
  const Chain chain = chain_of(x, blockIdx.y);
  const i64 first = window * x.window, last = min(chain.chunks, first + x.window);
  if (chain.chunks < first || (chain.chunks == first && window > 0)) return;
  const i64 tiles = (x.dv + kTile - 1) / kTile, size = x.dk * x.dv;
  const i64 k0 = blockIdx.x / tiles * kTile, v0 = blockIdx.x % tiles * kTile, own = k0 + threadIdx.x;
  const bool has_n = v0 == 0 && threadIdx.x < kTile && own < x.dk;
  const bool ends = last == chain.chunks;
  const float* from = ends ? x.grad_c_last : x.carry_c;
  const float* from_n = ends ? x.grad_n_last : x.carry_n;
  float acc[4][4] = {};
  each(acc, [&](int k, int v, float& c) {
    if (from && k0 + k < x.dk && v0 + v < x.dv) c = from[chain.nth * size + (k0 + k) * x.dv + v0 + v];
  });
  float n = has_n && from_n ? from_n[chain.nth * x.dk + own] : 0.f;
  auto write = [&](float* c, float* to_n, i64 to) {
    each(acc, [&](int k, int v, float& y) {
      if (c && k0 + k < x.dk && v0 + v < x.dv) c[to * size + (k0 + k) * x.dv + v0 + v] = y;
    });
    if (has_n && to_n) to_n[to * x.dk + own] = n;
  };
  const float scale = (float)x.scale;
  for (i64 c = last - 1; c >= first; --c) {
    const Chunk chunk = chunk_of(x, chain, c);
    write(x.grad_c, x.grad_n, chain.nth * x.window + c - first);
    const float left = kept(x, chain, chunk);
    __syncthreads();
    if ((int)threadIdx.x < chunk.n) {
      weight[threadIdx.x] = scale * past(x, chain, chunk, threadIdx.x);
      over[threadIdx.x] = x.inverse[chunk.flat + threadIdx.x];
      rate[threadIdx.x] = x.grad_l[chunk.flat + threadIdx.x];
    }
    __syncthreads();
    each(acc, [&](int, int, float& y) { y *= left; });
    product(
        acc, slices, chunk.n,
        [&](int k, int t) { return k0 + k < x.dk ? weight[t] * load(x.q, chain, chunk.first + t, k0 + k) : 0.f; },
        [&](int t, int v) { return v0 + v < x.dv ? over[t] * load(x.grad_h, chain, chunk.first + t, v0 + v) : 0.f; });
    if (has_n && x.normalize) {
      n *= left;
      for (int t = 0; t < chunk.n; ++t)
        n = fmaf(rate[t] * weight[t], load(x.q, chain, chunk.first + t, own), n);
    }
  }
  write(x.carry_c, x.carry_n, chain.nth);
  if (window == 0) write(x.grad_c_initial, x.grad_n_initial, chain.nth);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1) gradients(const Call x, i64 window) {
  __shared__ Slices slices;
  __shared__ __align__(8) float p[kTile][kTile + 1];
  __shared__ float ds[kTile][kTile + 1];
  __shared__ float weight[kTile], into[kTile], over[kTile], rate_l[kTile], rate_i[kTile], rate_q[kTile];
  const Chain chain = chain_of(x, blockIdx.y);
  const i64 nth = window * x.window + blockIdx.x;
  if (nth >= chain.chunks) return;
  const Chunk chunk = chunk_of(x, chain, nth);
  const i64 size = x.dk * x.dv, slot = chain.nth * (x.window + 1) + blockIdx.x, back = chain.nth * x.window + blockIdx.x;
  const float *c = x.c + slot * size, *n = x.n + slot * x.dk, *dc = x.grad_c + back * size, *dn = x.grad_n + back * x.dk;
  const float scale = (float)x.scale;
  const int own = threadIdx.x, column = threadIdx.x % 16;
  if (own < chunk.n) {
    weight[own] = past(x, chain, chunk, own);
    into[own] = entering(x, chunk, own);
    over[own] = x.inverse[chunk.flat + own];
    rate_l[own] = x.grad_l[chunk.flat + own];
  }
  __syncthreads();
  auto query = [&](int t, i64 k) { return t < chunk.n && k < x.dk ? scale * load(x.q, chain, chunk.first + t, k) : 0.f; };
  auto key = [&](int s, i64 k) { return s < chunk.n && k < x.dk ? load(x.k, chain, chunk.first + s, k) : 0.f; };
  auto value = [&](int s, i64 v) { return s < chunk.n && v < x.dv ? load(x.v, chain, chunk.first + s, v) : 0.f; };
  auto up = [&](int t, i64 v) {
    return t < chunk.n && v < x.dv ? over[t] * load(x.grad_h, chain, chunk.first + t, v) : 0.f;
  };
  auto state = [&](const float* y, i64 k, i64 v) { return k < x.dk && v < x.dv ? y[k * x.dv + v] : 0.f; };

  float acc[4][4] = {};
  product(acc, slices, (int)x.dk, query, [&](int k, int s) { return key(s, k); });
  each(acc, [&](int t, int s, float& y) {
    // The weight waits in ds for the pair's gradient.
    const float d = s <= t && t < chunk.n ? pair(x, chunk, t, s) : 0.f;
    p[t][s] = d == 0.f ? 0.f : y * d;
    ds[t][s] = d;
    y = 0.f;
  });
  product(acc, slices, (int)x.dv, up, [&](int v, int s) { return value(s, v); });
  each(acc, [&](int t, int s, float& y) {
    const float d = ds[t][s];
    ds[t][s] = d == 0.f ? 0.f : (y + rate_l[t]) * d;
  });
  __syncthreads();

  // A sum over the columns of a row that the row's sixteen threads hold: in the order of the threads.
  float partial[4];
  auto rows = [&](float* to) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; ++i) (&slices.a[0][0])[(own / 16 + 16 * i) * 17 + column] = partial[i];
    __syncthreads();
    if (own < kTile) {
      float sum = 0.f;
      for (int e = 0; e < 16; ++e) sum += (&slices.a[0][0])[own * 17 + e];
      to[own] = sum;
    }
  };
  static_assert(kTile * 17 <= kDepth * (kTile + 4), "the partial sums fit the slices");

#pragma unroll
  for (int i = 0; i < 4; ++i) partial[i] = 0.f;
  for (i64 k0 = 0; k0 < x.dk; k0 += kTile) {
    each(acc, [&](int, int, float& y) { y = 0.f; });
    product(acc, slices, (int)x.dv, up, [&](int v, int k) { return state(c, k0 + k, v); });
    each(acc, [&](int t, int k, float& y) {
      y = t < chunk.n && k0 + k < x.dk ? weight[t] * (y + (x.normalize ? rate_l[t] * n[k0 + k] : 0.f)) : 0.f;
    });
    product(acc, slices, chunk.n, [&](int t, int s) { return ds[t][s]; }, [&](int s, int k) { return key(s, k0 + k); });
    each_row(acc, [&](int i, int t, int k, float& y) {
      if (t >= chunk.n || k0 + k >= x.dk) return;
      if (x.grad_q.data) store(x.grad_q, chain, chunk.first + t, k0 + k, scale * y);
      partial[i] = fmaf(query(t, k0 + k), y, partial[i]);
    });
  }
  rows(rate_q);
#pragma unroll
  for (int i = 0; i < 4; ++i) partial[i] = 0.f;
  for (i64 k0 = 0; k0 < x.dk; k0 += kTile) {
    each(acc, [&](int, int, float& y) { y = 0.f; });
    product(acc, slices, (int)x.dv, value, [&](int v, int k) { return state(dc, k0 + k, v); });
    each(acc, [&](int s, int k, float& y) {
      y = s < chunk.n && k0 + k < x.dk ? into[s] * (y + (x.normalize ? dn[k0 + k] : 0.f)) : 0.f;
    });
    product(acc, slices, chunk.n, [&](int s, int t) { return ds[t][s]; }, [&](int t, int k) { return query(t, k0 + k); });
    each_row(acc, [&](int i, int s, int k, float& y) {
      if (s >= chunk.n || k0 + k >= x.dk) return;
      if (x.grad_k.data) store(x.grad_k, chain, chunk.first + s, k0 + k, y);
      partial[i] = fmaf(key(s, k0 + k), y, partial[i]);
    });
  }
  rows(rate_i);
  for (i64 v0 = 0; v0 < x.dv && x.grad_v.data; v0 += kTile) {
    each(acc, [&](int, int, float& y) { y = 0.f; });
    product(acc, slices, (int)x.dk, key, [&](int k, int v) { return state(dc, k, v0 + v); });
    each(acc, [&](int s, int, float& y) { y = s < chunk.n ? into[s] * y : 0.f; });
    product(acc, slices, chunk.n, [&](int s, int t) { return p[t][s]; }, [&](int t, int v) { return up(t, v0 + v); });
    each(acc, [&](int s, int v, float& y) {
      if (s < chunk.n && v0 + v < x.dv) store(x.grad_v, chain, chunk.first + s, v0 + v, y);
    });
  }
  if (!x.grad_i.data && !x.grad_f.data && !x.grad_m_initial) return;

  double rest = 0;
  if (nth + 1 < chain.chunks || x.grad_c_last) {
    for (i64 e = own; e < size; e += kThreads) rest += (double)c[size + e] * dc[e];
    for (i64 e = own; e < x.dk; e += kThreads) rest += (double)n[x.dk + e] * dn[e];
  }
  __syncthreads();
  // p is not needed any more.
  rest = block_sum(rest, reinterpret_cast<double*>(&p[0][0]));
  if (own != 0) return;
  if (nth + 1 == chain.chunks) x.excess[chain.nth] = x.grad_m_last ? x.grad_m_last[chain.nth] - rest : 0;
  for (int t = chunk.n - 1; t >= 0; --t) {
    const i64 time = chunk.first + t;
    rest += (double)rate_q[t] - rate_i[t];
    if (x.grad_f.data) store_gate(x.grad_f, chain, time, (float)rest * forget_slope(load_gate(x.f, chain, time)));
    if (x.grad_i.data)
      store_gate(x.grad_i, chain, time, rate_i[t] * (x.sigmoid ? slope(load_gate(x.i, chain, time)) : 1.f));
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 1) ends(const Call x) {
  __shared__ double slots[kThreads];
  const Chain chain = chain_of(x, blockIdx.x);
  const i64 size = x.dk * x.dv;
  double sum = 0;
  if (x.m_initial) {
    const float *c = x.c_initial + chain.nth * size, *n = x.n_initial + chain.nth * x.dk;
    for (i64 e = threadIdx.x; e < size; e += kThreads) sum += (double)c[e] * x.carry_c[chain.nth * size + e];
    for (i64 e = threadIdx.x; e < x.dk; e += kThreads) sum += (double)n[e] * x.carry_n[chain.nth * x.dk + e];
  }
  sum = block_sum(sum, slots);
  if (threadIdx.x != 0 || !x.m) return;
  // Without a token the last state is the initial one.
  double excess = chain.chunks > 0 ? 0 : x.grad_m_last ? x.grad_m_last[chain.nth] - sum : 0;
  bool on = chain.chunks > 0 && x.grad_m_last && (x.grad_i.data || x.grad_f.data || x.grad_m_initial);
  if (on) excess = x.excess[chain.nth];
  for (i64 c = chain.chunks - 1; on && c >= 0; --c) {
    const Chunk chunk = chunk_of(x, chain, c);
    for (int t = chunk.n - 1; on && t >= 0; --t) {
      const i64 flat = chunk.flat + t, time = chunk.first + t;
      const double before = t == 0 ? gauge_before(x, chain, chunk) : gauge(x, flat - 1);
      const double past = x.sums[flat] - (t == 0 ? 0.0 : x.sums[flat - 1]) + before;
      if (past < kGaugeLeast && x.input[flat] < kGaugeLeast) {
        // The bound is made of nothing.
        excess = 0;
        on = false;
      } else if (x.input[flat] > past) {
        if (x.grad_i.data) store_gate(x.grad_i, chain, time, (float)(load_gate(x.grad_i, chain, time) + excess));
        excess = 0;
        on = false;
      } else if (x.grad_f.data) {
        const double more = excess * forget_slope(load_gate(x.f, chain, time));
        store_gate(x.grad_f, chain, time, (float)(load_gate(x.grad_f, chain, time) + more));
      }
    }
  }
  if (x.grad_m_initial) x.grad_m_initial[chain.nth] = (float)(sum + excess);
}
