// mLSTM, backward by chains (sm_90a): what is known of chunks before any state is, and the gates' gradients behind all of them.
// Formulas and names are those of tensor_backward.cu.
//
//   chain_pairs    block: a chunk of 64 tokens: dh.h, P' = P / N and dS, what its tokens weigh, and q.dq and k.dk of its pairs; where
//                  one block of hopper_walks.cu has a whole chain that makes them
//   (hopper_walks.cu goes through the chains)
//   chain_rates    block: a chunk: q.dq - k.dk and k.dk, of its pairs and of states, which warps have in parts
//   chain_totals   warp: a chain: what the gates of a chunk owe to the chunks behind it
//   chain_gates    warp: a chunk: the gates' gradients
//
// dlog f_t = sum_{j >= t} (q_j.dq_j - k_j.dk_j), in f64 from the end of the chain. Its terms are what the products that changed the
// states gave, weights as they were rounded then and the states in two parts, so that what two tokens give each other cancels to
// 2^-17 or so, and the error of the sum grows with the square root of T from there.
//
// chain_pairs at 8 heads, 256 / 512, 65536 tokens: q, k, v, dh and h read, 2.1 GB, and records of 0.14 GB: 0.53 ms at 4.28 TB/s, 0.77 at
// the 3.0 of an H100, where it takes 0.82 (2026-11-27; three blocks of four places 0.84); 0.1 TFLOP.
#include "hopper_walks.cuh"

constexpr int kRing = 3;

extern "C" __global__ void __launch_bounds__(128, 4) chain_pairs(const Call x) {
  extern __shared__ __align__(16) char dynamic[];
  __shared__ Making making;
  const Chain chain = chain_of(x, blockIdx.y);
  const i64 nth = blockIdx.x;
  if (nth >= chain.chunks) return;
  const Chunk chunk = chunk_of(x, chain, nth);
  char* begin = dynamic + (1024 - shared_at(dynamic) % 1024) % 1024;
  const int thread = threadIdx.x;
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
  const bool through = x.normalize && x.through;
#pragma unroll 1
  for (int j = by_k; j < steps; ++j) {
    uint4 h[4];
    if (through) load_h(x, chain, chunk, thread, 64 * (j - by_k), h);
    multiply(slopes, j);
    if (through) dot_slice(begin + j % kRing * (2 * kSlice), thread, h, dot);
    products_wait(slopes);
  }
  sum_dots(making, thread, dot);
  __syncthreads();
  if (thread < kRows) weigh_tokens(x, chain, chunk, nth, making, thread, nullptr);
  __syncthreads();
  float rows[2] = {};
  weigh_pairs(making, thread, 0, pairs, slopes, rows, begin + kPairsAt, begin + kSlopesAt);
  sum_pairs(making, thread, rows);
  __syncthreads();
  store_pairs(record_of(x, chain.nth, nth), making, thread, begin + kPairsAt, begin + kSlopesAt);
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
