// mLSTM, backward by chains (sm_90a): what is known of chunks before any state is, and the gates' gradients behind all of them.
// Formulas and names are those of tensor_backward.cu.
//
//   chain_pairs    block: a chunk of 64 tokens: dh.h, P' = P / N and dS, what its tokens weigh, and q.dq and k.dk of its pairs
//   (hopper_walks.cu goes through the chains)
//   chain_rates    block: a chunk: q.dq - k.dk and k.dk, of its pairs and of states, which warps have in parts
//   chain_totals   warp: a chain: what the gates of a chunk owe to the chunks behind it
//   chain_gates    warp: a chunk: the gates' gradients
//
// dlog f_t = sum_{j >= t} (q_j.dq_j - k_j.dk_j), in f64 from the end of the chain. Its terms are what the products that changed the
// states gave, weights as they were rounded then and the states in two parts, so that what two tokens give each other cancels to
// 2^-17 or so, and the error of the sum grows with the square root of T from there.
//
// chain_pairs at 8 heads, 256 / 512, 65536 tokens: q, k, v, dh and h read, 2.1 GB, and records of 0.14 GB: 0.53 ms at 4.28 TB/s;
// 0.1 TFLOP.
#include "hopper_walks.cuh"

constexpr int kRing = 4;

extern "C" __global__ void __launch_bounds__(128, 3) chain_pairs(const Call x) {
  extern __shared__ __align__(16) char dynamic[];
  __shared__ float column[kRows], top[kRows], factor[kRows], of_l[kRows], dots[kRows], of_row[kRows];
  __shared__ __align__(8) float of_column[4][kRows];
  const Chain chain = chain_of(x, blockIdx.y);
  const i64 nth = blockIdx.x;
  if (nth >= chain.chunks) return;
  const Chunk chunk = chunk_of(x, chain, nth);
  char* begin = dynamic + (1024 - shared_at(dynamic) % 1024) % 1024;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int by_k = (int)((x.dk + 63) / 64), by_v = (int)((x.dv + 63) / 64), steps = by_k + by_v;
  auto push = [&](int j) {
    if (j < steps) {
      char* to = begin + j % kRing * (2 * kSlice);
      const bool keyed = j < by_k;
      const int d = 64 * (keyed ? j : j - by_k);
      const i64 width = keyed ? x.dk : x.dv;
#pragma unroll 1
      for (int of = 0; of < 2; ++of) {
        const Tokens& y = keyed ? (of ? x.k : x.q) : of ? x.v : x.grad_h;
        const int bit = keyed ? (of ? kK : kQ) : of ? kV : kGradH;
        fetch_slice(to + of * kSlice, tokens_at(x, y, bit, chain, chunk.first, d, chunk.n, width));
      }
    }
    copy_commit();
  };
  for (int j = 0; j + 1 < kRing; ++j) push(j);
  auto multiply = [&](float(&acc)[8][4], int j) {
    copy_wait(kRing - 2);
    products_see();
    __syncthreads();
    push(j + kRing - 1);
    const unsigned a = shared_at(begin) + j % kRing * (2 * kSlice);
    products_begin();
#pragma unroll
    for (int e = 0; e < 4; ++e) wgmma<kBf16, false, false>(acc, by_rows(a + 32 * e), by_rows(a + kSlice + 32 * e));
    products_end();
  };
  float pairs[8][4], slopes[8][4], dot[4] = {};
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) pairs[n][e] = slopes[n][e] = 0.f;
#pragma unroll 1
  for (int j = 0; j < by_k; ++j) {
    multiply(pairs, j);
    products_wait(pairs);
  }
  const bool through = x.normalize && x.through, plain = (x.plain & kH) != 0;
#pragma unroll 1
  for (int j = by_k; j < steps; ++j) {
    const int d = 64 * (j - by_k) + thread % 8 * 8;
    uint4 h[4] = {};
    if (through && d < x.dv)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int t = thread / 8 + 16 * i;
        const char* from = x.h.data + 2 * place(x.h, chain, chunk.first + t, d);
        if (t >= chunk.n) continue;
        if (plain) {
          h[i] = *reinterpret_cast<const uint4*>(from);
        } else {
          unsigned w[4] = {};
#pragma unroll
          for (int e = 0; e < 8; ++e)
            w[e / 2] |= (unsigned)*reinterpret_cast<const unsigned short*>(from + 2 * e * x.h.d) << e % 2 * 16;
          h[i] = {w[0], w[1], w[2], w[3]};
        }
      }
    multiply(slopes, j);
    if (through) {
      const char* of = begin + j % kRing * (2 * kSlice);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint4 g = *reinterpret_cast<const uint4*>(of + swizzled(thread / 8 + 16 * i, thread % 8));
        const unsigned p[4] = {h[i].x, h[i].y, h[i].z, h[i].w}, q[4] = {g.x, g.y, g.z, g.w};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const float2 y = unpack<kBf16>(p[w]), z = unpack<kBf16>(q[w]);
          dot[i] = fmaf(y.x, z.x, fmaf(y.y, z.y, dot[i]));
        }
      }
    }
    products_wait(slopes);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int d = 1; d < 8; d *= 2) dot[i] += __shfl_xor_sync(~0u, dot[i], d);
    if (thread % 8 == 0) dots[thread / 8 + 16 * i] = dot[i];
  }
  __syncthreads();

  char* record = record_of(x, chain.nth, nth);
  float* vectors = reinterpret_cast<float*>(record + kVectorsAt);
  const float scale = (float)x.scale;
  if (thread < kRows) {
    constexpr float kLog2 = 1.4426950408889634f;
    const bool on = thread < chunk.n;
    const i64 flat = chunk.flat + (on ? thread : 0);
    const float before = before_of(x, chain, nth), behind = max(before, x.until[chunk.flat + chunk.n - 1]);
    const float highest = max(before, x.until[flat]), lowest = __int_as_float(0xff800000);
    float over = 1.f, rate = 0.f;
    if (x.normalize) {
      const float l = x.l[flat];
      bool open;
      over = 1.f / denominator(x, l, gauge(x, flat), &open);
      if (open && through) rate = l < 0 ? dots[thread] : -dots[thread];
    }
    column[thread] = on ? kLog2 * x.column[flat] : lowest;
    top[thread] = on ? kLog2 * highest : -lowest;
    factor[thread] = on ? scale * over : 0.f;
    of_l[thread] = on ? rate : 0.f;
    vectors[kInto + thread] = on ? expf(x.column[flat] - behind) : 0.f;
    vectors[kRead + thread] = on ? scale * expf(before - highest) * over : 0.f;
    vectors[kOfL + thread] = on ? rate : 0.f;
    if (thread < 4) vectors[kLeft + thread] = expf(before - behind);
  }
  __syncthreads();
  const int row = 16 * warp + lane / 4, pair = lane % 4 * 2;
  float2 columns[8];
  float rows[2] = {};
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const int s = 8 * n + pair;
    columns[n] = {0.f, 0.f};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int t = row + 8 * half;
      const float w0 = s <= t ? power(column[s] - top[t]) * factor[t] : 0.f;
      const float w1 = s < t ? power(column[s + 1] - top[t]) * factor[t] : 0.f;
      const float y0 = w0 * (slopes[n][2 * half] + of_l[t]), y1 = w1 * (slopes[n][2 * half + 1] + of_l[t]);
      const float p0 = pairs[n][2 * half], p1 = pairs[n][2 * half + 1];
      *reinterpret_cast<unsigned*>(begin + kPairsAt + swizzled_at(t, s)) = pack<kBf16>(w0 * p0, w1 * p1);
      *reinterpret_cast<unsigned*>(begin + kSlopesAt + swizzled_at(t, s)) = pack<kBf16>(y0, y1);
      const float z0 = y0 * p0, z1 = y1 * p1;
      rows[half] += z0 + z1;
      columns[n].x += z0;
      columns[n].y += z1;
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    rows[half] += __shfl_xor_sync(~0u, rows[half], 1);
    rows[half] += __shfl_xor_sync(~0u, rows[half], 2);
    if (lane % 4 == 0) of_row[row + 8 * half] = rows[half];
  }
  // Over the eight lanes that have the same columns: lane l gets 2 l and 2 l + 1.
#pragma unroll
  for (int half = 4; half > 0; half /= 2)
#pragma unroll
    for (int n = 0; n < half; ++n) columns[n] = fold(columns[n], columns[n + half], 4 * half);
  *reinterpret_cast<float2*>(&of_column[warp][2 * lane]) = columns[0];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 8; ++i)
    reinterpret_cast<uint4*>(record)[128 * i + thread] = reinterpret_cast<const uint4*>(begin)[128 * i + thread];
  if (thread >= kRows) return;
  float sum = 0.f;
#pragma unroll
  for (int w = 0; w < 4; ++w) sum += of_column[w][thread];
  float* rates = reinterpret_cast<float*>(record + kRatesAt);
  rates[thread] = of_row[thread] - sum;
  rates[kRows + thread] = sum;
}

extern "C" __global__ void __launch_bounds__(128) chain_rates(const Call x) {
  __shared__ float of[2 * kRows];
  const Chain chain = chain_of(x, blockIdx.y);
  const i64 nth = blockIdx.x, at = chain.nth * x.chunks + nth;
  if (nth >= chain.chunks) return;
  const int thread = threadIdx.x, parts = parts_of(x);
  const float* from = (thread < kRows ? x.rate_q : x.rate_i) + at * parts * kRows + thread % kRows;
  float sum = 0.f;
#pragma unroll 8
  for (int p = 0; p < parts; ++p) sum += from[p * kRows];
  of[thread] = sum;
  __syncthreads();
  if (thread >= kRows) return;
  float* rates = reinterpret_cast<float*>(record_of(x, chain.nth, nth) + kRatesAt);
  const double u = (double)rates[thread] + ((double)of[thread] - (double)of[kRows + thread]);
  rates[thread] = (float)u;
  rates[kRows + thread] += of[kRows + thread];
  double total = (float)u;
  for (int d = 16; d > 0; d /= 2) total += __shfl_xor_sync(~0u, total, d);
  __shared__ double second;
  if (thread == 32) second = total;
  asm volatile("bar.sync 1, 64;" ::: "memory");
  if (thread == 0) x.most[at] = total + second;
}

extern "C" __global__ void __launch_bounds__(kThreads) chain_totals(const Call x) {
  const int lane = threadIdx.x % 32;
  const i64 nth = (blockIdx.x * (i64)kThreads + threadIdx.x) / 32;
  if (nth >= x.chains) return;
  const Chain chain = chain_of(x, nth);
  double rest = 0;
  for (int p = 0; x.grad_c_last && p < parts_of(x); ++p) rest += x.products[nth * parts_of(x) + p];
  if (lane == 0) x.excess[nth] = x.grad_m_last ? x.grad_m_last[nth] - rest : 0;
  double* of = x.most + nth * x.chunks;
  for (i64 behind = chain.chunks; behind > 0; behind -= 32) {
    // Lane 0 has the latest chunk.
    const i64 c = behind - 1 - lane;
    const double own = c >= 0 ? of[c] : 0.;
    double sum = own;
    for (int d = 1; d < 32; d *= 2) {
      const double other = __shfl_up_sync(~0u, sum, d);
      if (lane >= d) sum += other;
    }
    if (c >= 0) of[c] = rest + (sum - own);
    rest += __shfl_sync(~0u, sum, 31);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads) chain_gates(const Call x) {
  const int lane = threadIdx.x % 32;
  const i64 at = (blockIdx.x * (i64)kThreads + threadIdx.x) / 32;
  if (at >= x.chains * x.chunks) return;
  const Chain chain = chain_of(x, at / x.chunks);
  const i64 nth = at % x.chunks;
  if (nth >= chain.chunks) return;
  const Chunk chunk = chunk_of(x, chain, nth);
  const float* rates = reinterpret_cast<const float*>(record_of(x, chain.nth, nth) + kRatesAt);
  double rest = x.most[at];
#pragma unroll
  for (int half = 1; half >= 0; --half) {
    const int t = 32 * half + 31 - lane;
    const bool on = t < chunk.n;
    double sum = on ? (double)rates[t] : 0.;
    for (int d = 1; d < 32; d *= 2) {
      const double other = __shfl_up_sync(~0u, sum, d);
      if (lane >= d) sum += other;
    }
    sum += rest;
    const i64 time = chunk.first + t;
    if (on && x.grad_f.data) store_gate(x.grad_f, chain, time, (float)sum * forget_slope(load_gate(x.f, chain, time)));
    if (on && x.grad_i.data)
      store_gate(x.grad_i, chain, time, rates[kRows + t] * (x.sigmoid ? slope(load_gate(x.i, chain, time)) : 1.f));
    rest = __shfl_sync(~0u, sum, 31);
  }
}
