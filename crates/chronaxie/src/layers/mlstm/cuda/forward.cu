// mLSTM, forward, portable: chunks of at most 64 tokens, f32 multiply-adds on 64 x 64 tiles, no tensor cores.
//
//   b_t = sum of log f over the chunk up to t      m_t = max(b_t + m, max_{s <= t} b_t - b_s + log i_s, -80)
//   P_ts = s q_t.k_s e^(b_t - b_s + log i_s - m_t)      C' = kept C + sum_s into_s k_s v_s^T
//   h_t = (past_t s C^T q_t + sum_s P_ts v_s) / (max(|l_t|, e^-m_t) + eps)
//
//   gate_sums    thread: a chunk       gate_gauge  thread: a chain, chunk after chunk       gate_tokens  thread: a chunk
//   states       block: a tile of c of one chain, in registers, chunk after chunk of a window; each is written
//   outputs      block: a chunk: its pairs once, then tiles of h one after the other
//
// This is the simplest right form: every element is read where it lies, of any strides and type. A chunk of L tokens makes
// 4 K V + 2 L (K + V) flops a token (all of the pairs' square) and reads 4 K V / L bytes of states a token twice. Not timed.
#ifndef __CUDACC_RTC__
#include "defaults.cuh"
#endif
#include "mlstm.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, 1) gate_sums(const Call x) {
  const i64 at = blockIdx.x * (i64)kThreads + threadIdx.x;
  if (at >= x.chains * x.chunks) return;
  const Chain chain = chain_of(x, at / x.chunks);
  if (at % x.chunks >= chain.chunks) return;
  const Chunk chunk = chunk_of(x, chain, at % x.chunks);
  double sum = 0, most = 0;
  for (int t = 0; t < chunk.n; ++t) {
    const double i = load_gate(x.i, chain, chunk.first + t);
    const float li = (float)(x.sigmoid ? log_sigmoid(i) : i);
    sum += at_least(log_sigmoid(load_gate(x.f, chain, chunk.first + t)), kLogForgetLeast);
    x.input[chunk.flat + t] = li;
    x.sums[chunk.flat + t] = sum;
    const double here = at_least(li, kGaugeLeast) - sum;
    most = t == 0 || !(most > here) ? here : most;
  }
  x.most[at] = most;
}

// The gauge behind each chunk, in the place of its last token.
extern "C" __global__ void __launch_bounds__(kThreads, 1) gate_gauge(const Call x) {
  const i64 at = blockIdx.x * (i64)kThreads + threadIdx.x;
  if (at >= x.chains) return;
  const Chain chain = chain_of(x, at);
  double m = x.m_initial ? x.m_initial[at] : 0;
  for (i64 c = 0; c < chain.chunks; ++c) {
    const Chunk chunk = chunk_of(x, chain, c);
    const i64 last = chunk.flat + chunk.n - 1;
    const double most = x.most[at * x.chunks + c];
    m = x.m[last] = (float)(x.sums[last] + (m > most ? m : most));
  }
}

// That of the other tokens.
extern "C" __global__ void __launch_bounds__(kThreads, 1) gate_tokens(const Call x) {
  const i64 at = blockIdx.x * (i64)kThreads + threadIdx.x;
  if (at >= x.chains * x.chunks) return;
  const Chain chain = chain_of(x, at / x.chunks);
  if (at % x.chunks >= chain.chunks) return;
  const Chunk chunk = chunk_of(x, chain, at % x.chunks);
  double most = gauge_before(x, chain, chunk);
  for (int t = 0; t + 1 < chunk.n; ++t) {
    const double here = at_least(x.input[chunk.flat + t], kGaugeLeast) - x.sums[chunk.flat + t];
    most = most > here ? most : here;
    x.m[chunk.flat + t] = (float)(x.sums[chunk.flat + t] + most);
  }
}

// States at the starts of a window's chunks and behind its last. The window's first comes from the window before it, or,
// with `restart`, from where an earlier scan kept it.
extern "C" __global__ void __launch_bounds__(kThreads, 1) states(const Call x, i64 window, int restart) {
  __shared__ Slices slices;
  __shared__ float into[kTile];
  const Chain chain = chain_of(x, blockIdx.y);
  const i64 first = window * x.window, last = min(chain.chunks, first + x.window);
  if (chain.chunks < first || (chain.chunks == first && window > 0)) return;
  const i64 tiles = (x.dv + kTile - 1) / kTile, size = x.dk * x.dv;
  const i64 k0 = blockIdx.x / tiles * kTile, v0 = blockIdx.x % tiles * kTile;
  const i64 slot = chain.nth * (x.window + 1), kept_at = chain.nth * x.windows + window;
  // Columns of n belong to the blocks of the first columns of c.
  const i64 own = k0 + threadIdx.x;
  const bool has_n = v0 == 0 && threadIdx.x < kTile && own < x.dk;
  const float* from = window == 0 ? x.c_initial : restart ? x.start_c : x.c;
  const float* from_n = window == 0 ? x.n_initial : restart ? x.start_n : x.n;
  const i64 at = window == 0 ? chain.nth : restart ? kept_at : slot + x.window;
  float acc[4][4] = {};
  each(acc, [&](int k, int v, float& c) {
    if (from && k0 + k < x.dk && v0 + v < x.dv) c = from[at * size + (k0 + k) * x.dv + v0 + v];
  });
  float n = has_n && from_n ? from_n[at * x.dk + own] : 0.f;
  auto write = [&](float* c, float* to_n, i64 to) {
    each(acc, [&](int k, int v, float& y) {
      if (c && k0 + k < x.dk && v0 + v < x.dv) c[to * size + (k0 + k) * x.dv + v0 + v] = y;
    });
    if (has_n && to_n) to_n[to * x.dk + own] = n;
  };
  write(x.c, x.n, slot);
  if (!restart) write(x.start_c, x.start_n, kept_at);
  for (i64 c = first; c < last; ++c) {
    const Chunk chunk = chunk_of(x, chain, c);
    const float left = kept(x, chain, chunk);
    __syncthreads();
    if ((int)threadIdx.x < chunk.n) into[threadIdx.x] = entering(x, chunk, threadIdx.x);
    __syncthreads();
    each(acc, [&](int, int, float& y) { y *= left; });
    product(
        acc, slices, chunk.n,
        [&](int k, int t) { return k0 + k < x.dk ? into[t] * load(x.k, chain, chunk.first + t, k0 + k) : 0.f; },
        [&](int t, int v) { return v0 + v < x.dv ? load(x.v, chain, chunk.first + t, v0 + v) : 0.f; });
    if (has_n && x.normalize) {
      n *= left;
      for (int t = 0; t < chunk.n; ++t) n = fmaf(into[t], load(x.k, chain, chunk.first + t, own), n);
    }
    write(x.c, x.n, slot + c - first + 1);
  }
  if (last < chain.chunks) return;
  write(x.c_last, x.n_last, chain.nth);
  if (blockIdx.x == 0 && threadIdx.x == 0 && x.m_last) {
    float m = x.m_initial ? x.m_initial[chain.nth] : 0.f;
    if (chain.chunks > 0) {
      const Chunk end = chunk_of(x, chain, chain.chunks - 1);
      m = x.m[end.flat + end.n - 1];
    }
    x.m_last[chain.nth] = m;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 1) outputs(const Call x, i64 window) {
  __shared__ Slices slices;
  __shared__ float pairs[kTile][kTile + 1], weight[kTile], over[kTile];
  const Chain chain = chain_of(x, blockIdx.y);
  const i64 nth = window * x.window + blockIdx.x;
  if (nth >= chain.chunks) return;
  const Chunk chunk = chunk_of(x, chain, nth);
  const i64 slot = chain.nth * (x.window + 1) + blockIdx.x;
  const float* c = x.c + slot * x.dk * x.dv;
  const float* n = x.n + slot * x.dk;
  const float scale = (float)x.scale;
  auto query = [&](int t, int k) { return t < chunk.n ? scale * load(x.q, chain, chunk.first + t, k) : 0.f; };
  float acc[4][4] = {};
  product(acc, slices, (int)x.dk, query,
          [&](int k, int s) { return s < chunk.n ? load(x.k, chain, chunk.first + s, k) : 0.f; });
  each(acc, [&](int t, int s, float& y) {
    pairs[t][s] = s <= t && t < chunk.n ? y * pair(x, chunk, t, s) : 0.f;
  });
  __syncthreads();
  const int own = threadIdx.x;
  if (own < chunk.n) {
    weight[own] = past(x, chain, chunk, own);
    over[own] = 1.f;
    if (x.normalize) {
      float l = 0.f, sum = 0.f;
      for (int k = 0; k < x.dk; ++k) l = fmaf(query(own, k), n[k], l);
      for (int s = 0; s <= own; ++s) sum += pairs[own][s];
      l = fmaf(weight[own], l, sum);
      bool open;
      over[own] = 1.f / denominator(x, l, gauge(x, chunk.flat + own), &open);
      if (x.l) x.l[chunk.flat + own] = l;
    }
  }
  for (i64 v0 = 0; v0 < x.dv; v0 += kTile) {
    each(acc, [&](int, int, float& y) { y = 0.f; });
    product(acc, slices, (int)x.dk, query,
            [&](int k, int v) { return v0 + v < x.dv ? c[k * x.dv + v0 + v] : 0.f; });
    each(acc, [&](int t, int, float& y) { y = t < chunk.n ? y * weight[t] : 0.f; });
    product(acc, slices, chunk.n, [&](int t, int s) { return pairs[t][s]; },
            [&](int s, int v) { return v0 + v < x.dv ? load(x.v, chain, chunk.first + s, v0 + v) : 0.f; });
    each(acc, [&](int t, int v, float& y) {
      if (t < chunk.n && v0 + v < x.dv) store(x.h, chain, chunk.first + t, v0 + v, y * over[t]);
    });
  }
}
