// What mLSTM's backward kernels by chains (sm_90a) share: what is known of a chunk of 64 tokens before any state is.
#pragma once
#include "hopper_chains.cuh"
#include "cluster.cuh"

// A chunk's record in memory: P' and dS as slices, rounded; then, 64 numbers each, what tokens put into the state, what rows read
// of it, l's part, and what is left of the state (one number); then u = q.dq - k.dk and k.dk, at first of the chunk's pairs alone.
constexpr int kPairsAt = 0, kSlopesAt = kSlice, kVectorsAt = 2 * kSlice, kVectors = 12 * kRows + 16;
constexpr int kRatesAt = kVectorsAt + 16 * kRows, kRecord = kRatesAt + 8 * kRows;
enum { kInto = 0, kRead = kRows, kOfL = 2 * kRows, kLeft = 3 * kRows };

__device__ __forceinline__ char* record_of(const Call& x, i64 chain, i64 chunk) {
  return x.records + (chain * x.chunks + chunk) * kRecord;
}
// The warps that each have a part of q.dq and k.dk: of heads of v above 256 two blocks have half of the columns each.
__device__ __forceinline__ int parts_of(const Call& x) { return 8 * (int)((x.dk + 127) / 128) * (x.dv > 256 ? 2 : 1); }
// Of two numbers that lanes d apart have, the sum of the first for the lower lane, of the second for the other.
__device__ __forceinline__ float2 fold(float2 first, float2 second, int d) {
  const bool high = threadIdx.x & d;
  const float2 mine = high ? second : first, other = high ? first : second;
  return {mine.x + __shfl_xor_sync(~0u, other.x, d), mine.y + __shfl_xor_sync(~0u, other.y, d)};
}

// Four 8 x 8 matrices of 16-bit numbers, as mma has them, turned, to rows of 16 bytes: lane l has the address of row l % 8 of matrix
// l / 8.
__device__ __forceinline__ void store_turned(unsigned to, const unsigned (&x)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]),
               "r"(x[3])
               : "memory");
}

// What is known of a chunk's tokens while its pairs are made, in shared memory; of_column is of warps.
struct Making {
  float column[kRows], top[kRows], factor[kRows], of_l[kRows], dots[kRows], of_row[kRows];
  float of_column[4][kRows];
};

// For dh.h of a chunk's tokens, 64 columns from d: h from memory. Thread: 8 columns of every 16th token.
__device__ __forceinline__ void load_h(const Call& x, const Chain& chain, const Chunk& chunk, int thread, int d, uint4 (&h)[4]) {
  d += thread % 8 * 8;
  const char* from = x.h.data + 2 * place(x.h, chain, chunk.first + thread / 8, d);
#pragma unroll
  for (int i = 0; i < 4; ++i, from += 32 * x.h.t) {
    h[i] = {};
    if (thread / 8 + 16 * i >= chunk.n || d >= x.dv) continue;
    if (x.plain & kH) {
      h[i] = *reinterpret_cast<const uint4*>(from);
    } else {
#pragma unroll 1
      for (int e = 0; e < 8; ++e) {
        const unsigned next = *reinterpret_cast<const unsigned short*>(from + 2 * e * x.h.d);
        h[i] = {h[i].x >> 16 | h[i].y << 16, h[i].y >> 16 | h[i].z << 16, h[i].z >> 16 | h[i].w << 16, h[i].w >> 16 | next << 16};
      }
    }
  }
}
// And its products with the slice `of` of dh.
__device__ __forceinline__ void dot_slice(const char* of, int thread, const uint4 (&h)[4], float (&dot)[4]) {
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
// Their sums, for all of these threads.
__device__ __forceinline__ void sum_dots(Making& of, int thread, float (&dot)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int d = 1; d < 8; d *= 2) dot[i] += __shfl_xor_sync(~0u, dot[i], d);
    if (thread % 8 == 0) of.dots[thread / 8 + 16 * i] = dot[i];
  }
}

// What the tokens of a chunk weigh, to its record and to `also`, if it is there, by a thread of each token.
__device__ __forceinline__ void weigh_tokens(const Call& x, const Chain& chain, const Chunk& chunk, i64 nth, Making& of, int thread,
                                             float* also) {
  constexpr float kLog2 = 1.4426950408889634f;
  float* vectors = reinterpret_cast<float*>(record_of(x, chain.nth, nth) + kVectorsAt);
  const float scale = (float)x.scale, lowest = __int_as_float(0xff800000);
  const bool on = thread < chunk.n, through = x.normalize && x.through;
  const i64 flat = chunk.flat + (on ? thread : 0);
  const float before = before_of(x, chain, nth), behind = max(before, x.until[chunk.flat + chunk.n - 1]);
  const float highest = max(before, x.until[flat]);
  float over = 1.f, rate = 0.f;
  if (x.normalize) {
    const float l = x.l[flat];
    bool open;
    over = 1.f / denominator(x, l, gauge(x, flat), &open);
    if (open && through) rate = l < 0 ? of.dots[thread] : -of.dots[thread];
  }
  of.column[thread] = on ? kLog2 * x.column[flat] : lowest;
  of.top[thread] = on ? kLog2 * highest : -lowest;
  of.factor[thread] = on ? scale * over : 0.f;
  of.of_l[thread] = on ? rate : 0.f;
  const float into = on ? expf(x.column[flat] - behind) : 0.f, read = on ? scale * expf(before - highest) * over : 0.f;
  const float left = expf(before - behind);
  auto put = [&](float* to) {
    to[kInto + thread] = into;
    to[kRead + thread] = read;
    to[kOfL + thread] = on ? rate : 0.f;
    if (thread < 4) to[kLeft + thread] = left;
  };
  put(vectors);
  if (also) put(also);
}

// P' and dS of a chunk from its products, of columns from s0 on, as slices, and what of q.dq and k.dk is these pairs': `rows` adds up.
template <int NT>
__device__ __forceinline__ void weigh_pairs(Making& of, int thread, int s0, const float (&pairs)[NT][4], const float (&slopes)[NT][4],
                                            float (&rows)[2], char* to_pairs, char* to_slopes) {
  const int lane = thread % 32, warp = thread / 32, row = 16 * warp + lane / 4;
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    const int s = s0 + 8 * n + lane % 4 * 2;
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
}
__device__ __forceinline__ void sum_pairs(Making& of, int thread, float (&rows)[2]) {
  const int lane = thread % 32, row = thread / 32 * 16 + lane / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    rows[half] += __shfl_xor_sync(~0u, rows[half], 1);
    rows[half] += __shfl_xor_sync(~0u, rows[half], 2);
    if (lane % 4 == 0) of.of_row[row + 8 * half] = rows[half];
  }
}
// Both slices and these sums to the record, behind a barrier.
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
