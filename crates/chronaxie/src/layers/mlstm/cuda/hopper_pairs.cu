// mLSTM, backward by chains (sm_90a): what is known of chunks before any state is, and the gates' gradients behind all of them.
// Formulas and names are those of tensor_backward.cu.
//
//   chain_pairs    block: chunks of 64 tokens, as many blocks as there is room for: dh.h, P' = P / N and dS, what tokens weigh, and
//                  q.dq and k.dk of the chunk's pairs; what it reads next, 64 columns of each tensor, comes meanwhile
//   (hopper_walks.cu goes through the chains)
//   chain_rates    block: a chunk: q.dq - k.dk and k.dk, of its pairs and of states, which blocks have in parts
//   chain_totals   warp: a chain: what the gates of a chunk owe to the chunks behind it
//   chain_gates    warp: a chunk: the gates' gradients
//
// dlog f_t = sum_{j >= t} (q_j.dq_j - k_j.dk_j), in f64 from the end of the chain. Its terms are what the products that changed the
// states gave, weights as they were rounded then and the states in two parts, so that what two tokens give each other cancels to
// 2^-17 or so, and the error of the sum grows with the square root of T from there.
//
// chain_pairs at 8 heads, 256 / 512, 65536 tokens: q, k, v, dh and h read, 2.1 GB, and records of 0.15 GB: 0.53 ms at 4.28 TB/s; 0.1
// TFLOP. It takes 0.56, and 0.58 at 16 heads of 128 / 256 (NVIDIA H200, 2026-11-28); 0.64 and 0.75 with cp.async for the copy engine and
// tokens looked at with their chunk instead of one ahead.
#include "hopper_walks.cuh"

constexpr int kRing = 4, kHeld = 3 * kSlice;

// What is known of a chunk's tokens while its pairs are made, in shared memory; of_column is of warps.
struct Making {
  float column[kRows], top[kRows], factor[kRows], sign[kRows], of_l[kRows], of_row[kRows];
  float of_column[4][kRows];
};

// The products of 64 columns of dh and h, of slices: a thread has 8 columns of every 16th token.
__device__ __forceinline__ void dot_slices(const char* of_g, const char* of_h, int thread, float (&dot)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned at = swizzled(thread / 8 + 16 * i, thread % 8);
    const uint4 g = *reinterpret_cast<const uint4*>(of_g + at), h = *reinterpret_cast<const uint4*>(of_h + at);
    const unsigned p[4] = {h.x, h.y, h.z, h.w}, q[4] = {g.x, g.y, g.z, g.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float2 y = unpack<kBf16>(p[w]), z = unpack<kBf16>(q[w]);
      dot[i] = fmaf(y.x, z.x, fmaf(y.y, z.y, dot[i]));
    }
  }
}
// What is known of a token before its chunk is looked at; it is read a chunk ahead.
struct Token {
  float before, end, column, until, l, m;
};
__device__ __forceinline__ Token look(const Call& x, const Chain& chain, i64 nth, int thread) {
  const Chunk chunk = chunk_of(x, chain, nth);
  const i64 flat = chunk.flat + min(thread, chunk.n - 1);
  Token token = {before_of(x, chain, nth), x.until[chunk.flat + chunk.n - 1], x.column[flat], x.until[flat], 0.f, 0.f};
  if (x.normalize) token.l = x.l[flat];
  if (x.normalize && x.m) token.m = x.m[flat];
  return token;
}
// What the tokens of a chunk weigh, to its record too, by a thread of each token; what is made of dh.h, too, is `sign` times that.
__device__ __forceinline__ void weigh_tokens(const Call& x, const Token& token, float* vectors, Making& of, int thread, bool on) {
  constexpr float kLog2 = 1.4426950408889634f;
  const float scale = (float)x.scale, lowest = __int_as_float(0xff800000);
  const float before = token.before, behind = max(before, token.end), highest = max(before, token.until);
  float over = 1.f, sign = 0.f;
  if (x.normalize) {
    bool open;
    over = 1.f / denominator(x, token.l, token.m, &open);
    if (open && x.through) sign = token.l < 0 ? 1.f : -1.f;
  }
  of.column[thread] = on ? kLog2 * token.column : lowest;
  of.top[thread] = on ? kLog2 * highest : -lowest;
  of.factor[thread] = on ? scale * over : 0.f;
  of.sign[thread] = on ? sign : 0.f;
  const float into = on ? expf(token.column - behind) : 0.f, read = on ? scale * expf(before - highest) * over : 0.f;
  vectors[kInto + thread] = into;
  vectors[kRead + thread] = read;
  if (thread < 4) vectors[kLeft + thread] = expf(before - behind);
}
// l's part of tokens, from the products of dh and h that their eight threads have.
__device__ __forceinline__ void sum_dots(Making& of, float* vectors, int thread, float (&dot)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int d = 1; d < 8; d *= 2) dot[i] += __shfl_xor_sync(~0u, dot[i], d);
    const int t = thread / 8 + 16 * i;
    // Where it is 0 there may be no number that it is 0 of.
    if (thread % 8 == 0) vectors[kOfL + t] = of.of_l[t] = of.sign[t] == 0.f ? 0.f : of.sign[t] * dot[i];
  }
}

// P' and dS of a chunk from its products, as slices, and what of q.dq and k.dk is these pairs': by warps and by rows.
__device__ __forceinline__ void weigh_pairs(Making& of, int thread, const float (&pairs)[8][4], const float (&slopes)[8][4],
                                            char* to_pairs, char* to_slopes) {
  const int lane = thread % 32, warp = thread / 32, row = 16 * warp + lane / 4;
  float rows[2] = {};
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const int s = 8 * n + lane % 4 * 2;
    float2 column = {0.f, 0.f};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int t = row + 8 * half;
      const float w0 = s <= t ? power(of.column[s] - of.top[t]) * of.factor[t] : 0.f;
      const float w1 = s < t ? power(of.column[s + 1] - of.top[t]) * of.factor[t] : 0.f;
      const float y0 = w0 * (slopes[n][2 * half] + of.of_l[t]), y1 = w1 * (slopes[n][2 * half + 1] + of.of_l[t]);
      const float p0 = pairs[n][2 * half], p1 = pairs[n][2 * half + 1];
      *reinterpret_cast<unsigned*>(to_pairs + swizzled_at(t, s)) = pack<kBf16>(w0 * p0, w1 * p1);
      *reinterpret_cast<unsigned*>(to_slopes + swizzled_at(t, s)) = pack<kBf16>(y0, y1);
      const float z0 = y0 * p0, z1 = y1 * p1;
      rows[half] += z0 + z1;
      column.x += z0;
      column.y += z1;
    }
    // Over the eight lanes that have the same columns: half of them have the first, half the second.
    const bool second = lane & 16;
    float sum = (second ? column.y : column.x) + __shfl_xor_sync(~0u, second ? column.x : column.y, 16);
    sum += __shfl_xor_sync(~0u, sum, 8);
    sum += __shfl_xor_sync(~0u, sum, 4);
    if ((lane & 12) == 0) of.of_column[warp][s + second] = sum;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    rows[half] += __shfl_xor_sync(~0u, rows[half], 1);
    rows[half] += __shfl_xor_sync(~0u, rows[half], 2);
    if (lane % 4 == 0) of.of_row[row + 8 * half] = rows[half];
  }
}
// Both slices and sums to the record, behind a barrier.
__device__ __forceinline__ void store_pairs(char* record, const Making& of, int thread, const char* pairs, const char* slopes) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    reinterpret_cast<uint4*>(record + kPairsAt)[128 * i + thread] = reinterpret_cast<const uint4*>(pairs)[128 * i + thread];
    reinterpret_cast<uint4*>(record + kSlopesAt)[128 * i + thread] = reinterpret_cast<const uint4*>(slopes)[128 * i + thread];
  }
  if (thread >= kRows) return;
  float sum = 0.f;
#pragma unroll
  for (int w = 0; w < 4; ++w) sum += of.of_column[w][thread];
  float* rates = reinterpret_cast<float*>(record + kRatesAt);
  rates[thread] = of.of_row[thread] - sum;
  rates[kRows + thread] = sum;
}

extern "C" __global__ void __launch_bounds__(128, 2) chain_pairs(const Call x, const __grid_constant__ Maps maps) {
  extern __shared__ __align__(16) char dynamic[];
  __shared__ Making making;
  __shared__ u64 full[kRing];
  char* begin = dynamic + (1024 - shared_at(dynamic) % 1024) % 1024;
  const int thread = threadIdx.x;
  const int by_k = (int)((x.dk + 63) / 64), steps = by_k + (int)((x.dv + 63) / 64);
  const bool through = x.normalize && x.through;
  const i64 needed = 1 << kMapQ | 1 << kMapK | 1 << kMapV | 1 << kMapGradH | (through ? 1 << kMapH : 0);
  const bool mapped = (maps.which & needed) == needed;
  if (thread == 0) {
    for (int i = 0; i < kRing; ++i) barrier_init(&full[i], 128);
    barrier_init_fence();
  }
  __syncthreads();
  Turn now, ahead;
  bool here = first_turn(x, now), more = here;
  ahead = now;
  int step = 0, to_fill = 0, to_read = 0, parity = 0;
  // What is read kRing - 1 steps later, of this chunk or of one behind it.
  auto push = [&] {
    if (!more) return;
    char* to = begin + to_fill * kHeld;
    u64* arrived = &full[to_fill];
    to_fill = to_fill + 1 == kRing ? 0 : to_fill + 1;
    const bool keyed = step < by_k;
    const int d = 64 * (keyed ? step : step - by_k), slices = keyed || !through ? 2 : 3;
    const i64 first = ahead.chain.from + ahead.nth * kRows;
    const int count = (int)min(ahead.chain.len - ahead.nth * kRows, (i64)kRows);
    const bool whole = mapped && count == kRows;
    place_begins(arrived, slices * kSlice, whole);
#pragma unroll 1
    for (int of = 0; of < slices; ++of) {
      const Tokens& y = keyed ? (of ? x.k : x.q) : of == 0 ? x.grad_h : of == 1 ? x.v : x.h;
      const int bit = keyed ? (of ? kK : kQ) : of == 0 ? kGradH : of == 1 ? kV : kH;
      const int map = keyed ? (of ? kMapK : kMapQ) : of == 0 ? kMapGradH : of == 1 ? kMapV : kMapH;
      bring_slices(x, maps, ahead.chain, first, count, to + of * kSlice, 1, y, bit, map, d, keyed ? x.dk : x.dv, arrived, whole);
    }
    place_ends(arrived, whole);
    if (++step == steps) {
      step = 0;
      more = next_turn(x, ahead);
    }
  };
  for (int j = 0; j + 1 < kRing; ++j) push();
  // The place that is read now; what all threads have read is filled again.
  auto multiply = [&](float(&acc)[8][4]) {
    barrier_wait(&full[to_read], parity);
    __syncthreads();
    push();
    char* place = begin + to_read * kHeld;
    parity ^= to_read + 1 == kRing;
    to_read = to_read + 1 == kRing ? 0 : to_read + 1;
    const u64 a = by_rows(shared_at(place));
    products_begin();
#pragma unroll
    for (int e = 0; e < 4; ++e) wgmma<kBf16, false, false>(acc, further(a, 32 * e), further(a, kSlice + 32 * e));
    products_end();
    return place;
  };
  Token token = {};
  if (thread < kRows && here) token = look(x, now.chain, now.nth, thread);
#pragma unroll 1
  while (here) {
    char* record = record_of(x, now.chain.nth, now.nth);
    float* vectors = reinterpret_cast<float*>(record + kVectorsAt);
    if (thread < kRows) weigh_tokens(x, token, vectors, making, thread, thread < now.chain.len - now.nth * kRows);
    here = next_turn(x, now);
    if (thread < kRows && here) token = look(x, now.chain, now.nth, thread);
    float pairs[8][4], slopes[8][4], dot[4] = {};
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) pairs[n][e] = slopes[n][e] = 0.f;
#pragma unroll 1
    for (int j = 0; j < by_k; ++j) {
      multiply(pairs);
      products_wait(pairs);
    }
    char* place = begin;
#pragma unroll 1
    for (int j = by_k; j < steps; ++j) {
      place = multiply(slopes);
      if (through) dot_slices(place, place + 2 * kSlice, thread, dot);
      products_wait(slopes);
    }
    sum_dots(making, vectors, thread, dot);
    __syncthreads();
    // Nothing is copied to the place read last before all threads are at the next chunk.
    weigh_pairs(making, thread, pairs, slopes, place, place + kSlice);
    __syncthreads();
    store_pairs(record, making, thread, place, place + kSlice);
    // The copy engine comes after these threads there.
    products_see();
  }
}

extern "C" __global__ void __launch_bounds__(128) chain_rates(const Call x) {
  __shared__ float of[2 * kRows];
  const Chain chain = chain_of(x, blockIdx.y);
  const i64 nth = blockIdx.x, at = chain.nth * x.chunks + nth;
  if (nth >= chain.chunks) return;
  const int thread = threadIdx.x, parts = parts_of(x);
  const float* from = (thread < kRows ? x.rate_q : x.rate_i) + at * parts * kRows + thread % kRows;
  float sum = 0.f;
#pragma unroll 4
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
  const int parts = 8 * parts_of(x);
  for (int p = 0; x.grad_c_last && p < parts; ++p) rest += x.products[nth * parts + p];
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
