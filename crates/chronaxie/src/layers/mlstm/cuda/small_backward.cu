// mLSTM, backward, for heads of q, k and v of at most 64, on tensor cores; tensor_backward.cu has the equations, and
// small_forward.cu the idea: what chunks add to C and to its gradient is made of all at once.
//
//   small_back_sums     block: a chunk: its gates, 1 / N and dl of its tokens, sum_s e^(col_s - r) k_s v_s^T as forward, and
//                       sum_t s e^(p - M_t) / N_t q_t dh_t^T, p the M of its first token
//   small_back_states   thread: four elements of C, n, dC or dn of one chain, through all its chunks; gauges are those of forward
//   small_gradients     block: a chunk: pairs and their slopes, then dq, dk, dv, and what its gates are owed
//
// M_t is m_t - b_t, of the m that forward left. At 32 chains of 2048 tokens, 64 / 64: 67 MB in and out, 16 us at 4.28 TB/s; 34 MB
// of sums and 17 MB of states are written and read, in L2 as long as they fit. Three launches.
// Measured there (H200): 28.9 + 17.7 + 38.0 us; the last waits for what its rows weigh a quarter of its time.
#include "small.cuh"

// The gauge before a chunk, as forward left it.
__device__ __forceinline__ float left_before(const Call& x, const Chain& chain, const Chunk& chunk) {
  return (float)gauge_before(x, chain, chunk);
}
// M of a token.
__device__ __forceinline__ float highest(const Call& x, i64 flat) { return (float)(gauge(x, flat) - x.sums[flat]); }

extern "C" __global__ void __launch_bounds__(kBlock, 4) small_back_sums(const Call x, int base) {
  extern __shared__ __align__(16) char memory[];
  char *queries = memory, *keys = queries + kSquare, *values = keys + kSquare, *up = values + kSquare, *out = up + kSquare;
  __shared__ Weights enters, leaves;
  __shared__ float parts[4 * kEdge], tops[kEdge];
  const Chain chain = chain_at(x, base + blockIdx.y);
  const int nth = blockIdx.x;
  if (nth >= chain.chunks) return;
  const Chunk chunk = chunk_at(x, chain, nth);
  fetch_tokens(queries, x, x.q, kQ, chain, chunk, x.dk);
  fetch_tokens(keys, x, x.k, kK, chain, chunk, x.dk);
  fetch_tokens(values, x, x.v, kV, chain, chunk, x.dv);
  fetch_tokens(up, x, x.grad_h, kGradH, chain, chunk, x.dv);
  const bool dots = x.normalize && x.through;
  if (dots) fetch_tokens(out, x, x.h, kH, chain, chunk, x.dv);
  copy_commit();
  const int thread = threadIdx.x, t = thread / 2;
  if (thread < 32) {
    const ChunkGates gates(x, chain, chunk, nth);
    const float low = expf(gates.column[0] - gates.ref), high = expf(gates.column[1] - gates.ref);
    enters.put(thread, low, high, low, high);
#pragma unroll
    for (int e = 0; e < 2; ++e)
      tops[2 * thread + e] = gates.on[e] ? (float)(gauge(x, chunk.flat + 2 * thread + e) - gates.b[e]) : 0.f;
  }
  copy_wait(0);
  __syncthreads();
  // Two threads a token, which take half of dh.h each.
  const bool on = t < chunk.n;
  float inverse = 1.f, dl = 0.f;
  if (x.normalize) {
    const i64 flat = chunk.flat + (on ? t : 0);
    const float l = x.l[flat];
    bool open;
    inverse = 1.f / denominator_of(x, l, (float)gauge(x, flat), &open);
    if (x.through) {
      float dot = 0.f;
#pragma unroll
      for (int e = 0; e < 32; e += 2) {
        const int v = thread % 2 * 32 + e;
        const float2 y = pair_at(out, t, v), z = pair_at(up, t, v);
        dot = fmaf(y.x, z.x, fmaf(y.y, z.y, dot));
      }
      dot += __shfl_xor_sync(~0u, dot, 1);
      if (open) dl = dot * (l < 0 ? inverse : -inverse);
    }
    if (on && thread % 2 == 0) {
      x.inverse[flat] = inverse;
      x.grad_l[flat] = dl;
    }
  }
  if (!on) inverse = dl = 0.f;
  const float past = on ? (float)x.scale * expf(tops[0] - tops[t]) : 0.f;
  const float low = past * inverse, low_n = past * dl;
  const float high = __shfl_down_sync(~0u, low, 2), high_n = __shfl_down_sync(~0u, low_n, 2);
  if (thread % 4 == 0) leaves.put(thread / 4, low, high, low_n, high_n);
  float units = 1.f;
  if (kBf16) {
    __syncthreads();
  } else if (__syncthreads_or(low > kMostWeight)) {
    units = units_of(low, tops);
    if (thread % 4 == 0) leaves.put(thread / 4, low / units, high / units, low_n, high_n);
    __syncthreads();
  }
  const i64 at = blockIdx.y * x.chunks + nth;
  store_sum(x, keys, values, enters, x.sum_c, x.sum_n, at, parts, 1.f);
  __syncthreads();
  store_sum(x, queries, up, leaves, x.slope_c, x.slope_n, at, parts, units);
}

// The elements of one chain in one direction.
template <bool kBack>
__device__ __forceinline__ void back_states(const Call& x, const Chain& chain, i64 block, float2* shared) {
  const i64 size = x.dk * x.dv, e = 4 * (block * kBlock + threadIdx.x), k = e - size;
  const bool of_c = e < size, of_n = !of_c && x.normalize && k < x.dk;
  const i64 first = blockIdx.y * x.chunks, at = of_c ? chain.nth * size + e : chain.nth * x.dk + k;
  auto one_of = [&](auto* c, auto* n) { return of_c ? c : of_n ? n : nullptr; };
  const float* begin = kBack ? one_of(x.grad_c_last, x.grad_n_last) : one_of(x.c_initial, x.n_initial);
  float4 y = {0.f, 0.f, 0.f, 0.f};
  if (begin) y = {begin[at], begin[at + 1], begin[at + 2], begin[at + 3]};
  auto factors = [&](i64 from, float2* to) {
    const i64 i = from + threadIdx.x;
    if (i >= chain.chunks) return;
    const i64 c = kBack ? chain.chunks - 1 - i : i;
    const Chunk chunk = chunk_at(x, chain, (int)c);
    const float before = left_before(x, chain, chunk), top = highest(x, chunk.flat + chunk.n - 1);
    const float ref = kBack ? before - highest(x, chunk.flat) : x.sigmoid ? 0.f : (float)x.most[chain.nth * x.chunks + c] - top;
    to[threadIdx.x] = {expf(before - top), expf(ref)};
  };
  const i64 width = of_c ? size : x.dk, own = of_c ? e : k, begins = kBack ? chain.chunks - 1 : 0;
  const float* sums = kBack ? one_of(x.slope_c, x.slope_n) : one_of(x.sum_c, x.sum_n);
  if (sums) sums += (first + begins) * width + own;
  const i64 slot = (blockIdx.y * (kBack ? x.window : x.window + 1) + begins) * width + own;
  char* to = of_c ? reinterpret_cast<char*>(kBack ? x.grad_c : x.c) + 2 * slot
                  : reinterpret_cast<char*>((kBack ? x.grad_n : x.n) + slot);
  const i64 stride = kBack ? -width : width;
  y = walk(y, reinterpret_cast<const char*>(sums), 4 * stride, chain.chunks, shared, factors, [&](float4 state) {
    if (of_c)
      *reinterpret_cast<uint2*>(to) = pack_four(state);
    else if (of_n)
      *reinterpret_cast<float4*>(to) = state;
    to += (of_c ? 2 : 4) * stride;
  });
  if (!kBack) return;
#pragma unroll
  for (int kept = 0; kept < 2; ++kept) {
    float* out = kept ? one_of(x.carry_c, x.carry_n) : one_of(x.grad_c_initial, x.grad_n_initial);
    if (out) out[at] = y.x, out[at + 1] = y.y, out[at + 2] = y.z, out[at + 3] = y.w;
  }
}

// The first half of the blocks of a chain has C and n, the second their gradients.
extern "C" __global__ void __launch_bounds__(kBlock) small_back_states(const Call x, int base) {
  __shared__ float2 shared[kTileOf];
  const Chain chain = chain_at(x, base + blockIdx.y);
  const i64 half = gridDim.x / 2;
  if (blockIdx.x < half)
    back_states<false>(x, chain, blockIdx.x, shared);
  else
    back_states<true>(x, chain, blockIdx.x - half, shared);
}

extern "C" __global__ void __launch_bounds__(kBlock, kRoomy ? 4 : 3) small_gradients(const Call x, int base) {
  extern __shared__ __align__(16) char memory[];
  char *queries = memory, *keys = queries + kSquare, *values = keys + kSquare, *up = values + kSquare;
  char *state = up + kSquare, *slope_of = state + kSquare;
  __shared__ __align__(8) float column[kEdge], n[kEdge], dn[kEdge];
  __shared__ float rate_q[kEdge], rate_i[kEdge];
  __shared__ double warps[kBlock / 32];
  const Chain chain = chain_at(x, base + blockIdx.y);
  const int nth = blockIdx.x;
  if (nth >= chain.chunks) return;
  const Chunk chunk = chunk_at(x, chain, nth);
  fetch_tokens(queries, x, x.q, kQ, chain, chunk, x.dk);
  fetch_tokens(keys, x, x.k, kK, chain, chunk, x.dk);
  fetch_tokens(values, x, x.v, kV, chain, chunk, x.dv);
  fetch_tokens(up, x, x.grad_h, kGradH, chain, chunk, x.dv);
  copy_commit();
  fetch_state(state, x, x.c, blockIdx.y * (x.window + 1) + nth);
  fetch_state(slope_of, x, x.grad_c, blockIdx.y * x.window + nth);
  copy_commit();
  const int thread = threadIdx.x, lane = thread % 32, own = first_row() + lane / 4;
  const float scale = (float)x.scale;
  const bool ends = nth + 1 == chain.chunks;
  float left, behind, weight[2], over[2], rate_l[2], top[2];
  {
    // Everything is asked for before anything is used.
    const float lowest = __int_as_float(0xff800000);
    const i64 last = chunk.flat + chunk.n - 1;
    const double g = x.sums[last], m = gauge(x, last), m_before = gauge_before(x, chain, chunk);
    double sum[2], m_of[2];
    float column_of = lowest, n_of = 0.f, dn_of = 0.f;
    bool on[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      on[half] = own + 8 * half < chunk.n;
      const i64 flat = on[half] ? chunk.flat + own + 8 * half : last;
      sum[half] = x.sums[flat];
      m_of[half] = gauge(x, flat);
      over[half] = x.inverse ? x.inverse[flat] : 1.f;
      rate_l[half] = x.grad_l ? x.grad_l[flat] : 0.f;
    }
    if (thread < chunk.n) column_of = x.column[chunk.flat + thread];
    if (x.normalize && thread < x.dk) {
      n_of = x.n[(blockIdx.y * (x.window + 1) + nth) * x.dk + thread];
      dn_of = x.grad_n[(blockIdx.y * x.window + nth) * x.dk + thread];
    }
    if (thread < kEdge) {
      column[thread] = column_of;
      n[thread] = n_of;
      dn[thread] = dn_of;
    }
    const float before = (float)m_before;
    behind = (float)(m - g);
    left = power((before - behind) * kLog2E);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      top[half] = (float)(m_of[half] - sum[half]);
      // Rows that are not there have no pairs.
      weight[half] = on[half] ? scale * power((before - top[half]) * kLog2E) : 0.f;
      if (!on[half]) top[half] = -lowest;
      if (!on[half]) over[half] = rate_l[half] = 0.f;
    }
  }
  copy_wait(1);
  // dh.v / N + dl is made as (dh.v + dl N) / N.
#pragma unroll
  for (int half = 0; half < 2; ++half) rate_l[half] = over[half] == 0.f ? 0.f : rate_l[half] / over[half];
  float units = 1.f;
  if (kBf16) {
    __syncthreads();
  } else if (__syncthreads_or(max(over[0], over[1]) > kMostWeight)) {
    units = units_of(max(over[0], over[1]), rate_q);
    over[0] /= units;
    over[1] /= units;
  }
  auto in_ones = [&](Rows& y) {
    if (kBf16 || units == 1.f) return;
    each_of_rows(y, [&](int, int, int, float& y, float& z) {
      y *= units;
      z *= units;
    });
  };
  Rows acc;
  Operand of_q, of_up, pairs, slopes;
  take(of_q, queries);
  // The scale of a pair is in its exponent.
  const float shift = log2f(scale);
  auto weigh = [&](int half, int s) {
    const float2 c = *reinterpret_cast<const float2*>(column + s);
    return float2{power(fmaf(c.x - top[half], kLog2E, shift)) * over[half], power(fmaf(c.y - top[half], kLog2E, shift)) * over[half]};
  };
  make_pairs(pairs, of_q, keys, weigh, [](int) { return 0.f; });
  take(of_up, up);
  make_pairs(slopes, of_up, values, weigh, [&](int half) { return rate_l[half]; });
  copy_wait(0);
  __syncthreads();
  // The sum of products of the warp's rows with its own tokens, to which all four threads of a row add.
  auto dot_rows = [&](const Operand& tokens, float (&sums)[2]) {
    sums[0] = sums[1] = 0.f;
    each_of_operand(tokens, [&](int half, int eight, float2 e) {
      sums[half] = fmaf(e.x, acc[eight][2 * half], fmaf(e.y, acc[eight][2 * half + 1], sums[half]));
    });
  };
  auto keep_rates = [&](float* rates, float (&sums)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sums[half] = row_sum(sums[half]);
      if (lane % 4 == 0) rates[own + 8 * half] = sums[half];
    }
  };
  float sums[2];

  // <C, dC>, as far as it is known before the chunk; rows and columns that are not there are zeros.
  float product = 0.f;
  for (int at = thread; at < kEdge * 8; at += kBlock) {
    const int from = at / 8 * kPairPitch + at % 8 * 16;
    const uint4 y = *reinterpret_cast<const uint4*>(state + from), z = *reinterpret_cast<const uint4*>(slope_of + from);
    const unsigned p[4] = {y.x, y.y, y.z, y.w}, q[4] = {z.x, z.y, z.z, z.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float2 f = unpack<kBf16>(p[w]), g = unpack<kBf16>(q[w]);
      product = fmaf(f.x, g.x, fmaf(f.y, g.y, product));
    }
  }
  if (thread < kEdge) product = fmaf(n[thread], dn[thread], product);
  product *= left;

  clear(acc);
  multiply_all<false>(acc, of_up, state);
  each_of_rows(acc, [&](int half, int, int k, float& y, float& z) {
    y = weight[half] * over[half] * fmaf(rate_l[half], n[k], y);
    z = weight[half] * over[half] * fmaf(rate_l[half], n[k + 1], z);
  });
  multiply_pairs(acc, slopes, keys);
  in_ones(acc);
  dot_rows(of_q, sums);
  keep_rates(rate_q, sums);
  // Behind this nobody reads C, whose tile gets the slopes, and keys and values but of the warp's own rows: v's tile gets the
  // pairs, and k's is where gradients wait for their rows to be whole.
  __syncthreads();
  put(state, slopes);
  Operand of_k, of_v;
  take(of_v, values);
  put(values, pairs);
  take(of_k, keys);
  if (x.grad_q.data) store_rows(x, x.grad_q, kGradQ, chain, chunk, x.dk, acc, keys);
  __syncthreads();

  const float into[2] = {power((column[own] - behind) * kLog2E) / units, power((column[own + 8] - behind) * kLog2E) / units};
  // Behind the chunk <C, dC> is what its keys give to later tokens, from the same sums as dk, and what C gave them before: what
  // the gates' sums must cancel then does.
  clear(acc);
  multiply_all<false>(acc, of_v, slope_of);
  each_of_rows(acc, [&](int half, int, int k, float& y, float& z) {
    y = into[half] * (y + dn[k]);
    z = into[half] * (z + dn[k + 1]);
  });
  dot_rows(of_k, sums);
  const float later = units * (sums[0] + sums[1]);
  multiply_across(acc, state, queries);
  in_ones(acc);
  dot_rows(of_k, sums);
  keep_rates(rate_i, sums);
  if (x.grad_k.data) store_rows(x, x.grad_k, kGradK, chain, chunk, x.dk, acc, keys);

  if (x.grad_v.data) {
    clear(acc);
    multiply_all<true>(acc, of_k, slope_of);
    each_of_rows(acc, [&](int half, int, int, float& y, float& z) {
      y *= into[half];
      z *= into[half];
    });
    multiply_across(acc, values, up);
    in_ones(acc);
    store_rows(x, x.grad_v, kGradV, chain, chunk, x.dv, acc, keys);
  }

  double part = ends && !x.grad_c_last ? 0. : product + later;
  for (int d = 16; d > 0; d /= 2) part += __shfl_xor_sync(~0u, part, d);
  if (lane == 0) warps[thread / 32] = part;
  __syncthreads();
  if (thread >= 32) return;
  const double rest = warps[0] + warps[1] + warps[2] + warps[3];
  if (ends && lane == 0) x.excess[chain.nth] = x.grad_m_last ? x.grad_m_last[chain.nth] - rest : 0;
  // Lane 0 has the two latest tokens.
  const int late = 2 * (31 - lane) + 1;
  double rate[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) rate[e] = late - e < chunk.n ? (double)rate_q[late - e] - rate_i[late - e] : 0.;
  double all = rate[0] + rate[1];
  for (int d = 1; d < 32; d *= 2) {
    const double other = __shfl_up_sync(~0u, all, d);
    if (lane >= d) all += other;
  }
  const double owed[2] = {rest + all - rate[1], rest + all};
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int t = late - e;
    if (t >= chunk.n) continue;
    const i64 time = chunk.first + t;
    if (x.grad_f.data) store_gate(x.grad_f, chain, time, (float)owed[e] * forget_slope(load_gate(x.f, chain, time)));
    if (x.grad_i.data)
      store_gate(x.grad_i, chain, time, rate_i[t] * (x.sigmoid ? slope(load_gate(x.i, chain, time)) : 1.f));
  }
}
