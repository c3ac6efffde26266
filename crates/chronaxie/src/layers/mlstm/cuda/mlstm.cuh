// What the portable mLSTM kernels share: tensors of any strides, chains of chunks, and a product of 64 x 64 tiles.
#pragma once
#include "half.cuh"

typedef long long i64;

constexpr int kThreads = 256;
constexpr int kTile = 64;   // rows and columns of a tile, and the tokens of a chunk at most
constexpr int kDepth = 16;  // terms of a sum that are staged at a time

// [B, NH, T, width] or, with d = 1, [B, NH, T]; strides in elements.
struct Tokens {
  char* data;
  i64 b, h, t, d;
};

// Everything that a call is, field by field as in mod.rs. Pointers are null where the problem has no such tensor.
struct Call {
  Tokens q, k, v, i, f, h, grad_h, grad_q, grad_k, grad_v, grad_i, grad_f;
  const int* cuts;                                          // [S + 1]
  const float *c_initial, *n_initial, *m_initial;           // [S, NH, K, V], [S, NH, K], [S, NH]
  float *c_last, *n_last, *m_last;                          // likewise
  const float *grad_c_last, *grad_n_last, *grad_m_last;     // likewise
  float *grad_c_initial, *grad_n_initial, *grad_m_initial;  // likewise
  float *l, *m;                                             // [B, NH, T]; m null where it is 0
  double* sums;                                             // b, [B, NH, T]
  float* input;                                             // log of the input gate, [B, NH, T]
  double* most;                                             // max of log i - b, [chains, chunks]
  float *c, *n;                                             // [chains, window + 1, K, V], [.., K]
  float *start_c, *start_n;                                 // [chains, windows, K, V], [.., K]
  float *inverse, *grad_l;                                  // [B, NH, T]
  float *grad_c, *grad_n;                                   // [chains, window, K, V], [.., K]
  float *carry_c, *carry_n;                                 // [chains, K, V], [chains, K]
  double* excess;                                           // [chains]
  // Of the kernels on tensor cores alone: log i - b, and the largest of them up to a token; the gauge before a chunk.
  float *column, *until;   // [B, NH, T]
  float* before;           // [chains, chunks + 1]
  float *ahead_c, *ahead_n;  // [chains, K, V], [chains, K]: the state behind a window
  float *rate_q, *rate_i;  // [B, NH, T]: q.dq and k.dk
  double* products;        // [chains, segments]: <C, dC> + <n, dn> behind a segment
  // Where sums of all chunks are made at once: what each adds to C and n, and to their gradients, [chains, chunks, ..].
  float *sum_c, *sum_n, *slope_c, *slope_n;
  // By chains [chains, chunks] records. Forward n is what each adds, then the state before it, [chains, chunks, K]. Backward
  // rate_q and rate_i are [chains, chunks, blocks of a chain, 64], products [chains, 8 times as many].
  char* records;
  i64 heads, steps, dk, dv, length, chains, chunks, window, windows;
  i64 segment, segments;         // chunks of a segment of tokens; segments of a chain
  i64 plain;                     // bits of q, k, v, h, grad_h, grad_q, grad_k, grad_v: rows of 16-byte pieces
  i64 sigmoid, normalize, through;
  double scale, eps;
};

// One head of one sequence.
struct Chain {
  i64 nth, batch, head, from, len, chunks;
};

__device__ __forceinline__ Chain chain_of(const Call& x, i64 nth) {
  const i64 s = nth / x.heads, head = nth % x.heads;
  Chain chain = {nth, s, head, 0, x.steps, 0};
  if (x.cuts) {
    // Cuts that are none cannot be refused here, but lead nowhere either.
    const i64 from = min(max((i64)x.cuts[s], 0LL), x.steps), to = min(max((i64)x.cuts[s + 1], from), x.steps);
    chain = {nth, 0, head, from, to - from, 0};
  }
  chain.chunks = (chain.len + x.length - 1) / x.length;
  return chain;
}

// A chunk: its first token in time, its tokens, and their place in a contiguous [B, NH, T].
struct Chunk {
  i64 first, flat;
  int n;
};

__device__ __forceinline__ Chunk chunk_of(const Call& x, const Chain& chain, i64 nth) {
  const i64 first = chain.from + nth * x.length;
  const int n = (int)min(x.length, chain.len - nth * x.length);
  return {first, (chain.batch * x.heads + chain.head) * x.steps + first, n};
}

// kDtype: 0 f32, 1 f16, 2 bf16.
template <int kType>
__device__ __forceinline__ float load_as(const char* data, i64 at) {
  if (kType == 0) return reinterpret_cast<const float*>(data)[at];
  const unsigned short bits = reinterpret_cast<const unsigned short*>(data)[at];
  return kType == 1 ? f16_value(bits) : bf16_value(bits);
}
template <int kType>
__device__ __forceinline__ void store_as(char* data, i64 at, float x) {
  if (kType == 0)
    reinterpret_cast<float*>(data)[at] = x;
  else
    reinterpret_cast<unsigned short*>(data)[at] = kType == 1 ? f16_bits(x) : bf16_bits(x);
}

__device__ __forceinline__ i64 place(const Tokens& x, const Chain& c, i64 t, i64 d) {
  return c.batch * x.b + c.head * x.h + t * x.t + d * x.d;
}
__device__ __forceinline__ float load(const Tokens& x, const Chain& c, i64 t, i64 d) {
  return load_as<kDtype>(x.data, place(x, c, t, d));
}
__device__ __forceinline__ void store(const Tokens& x, const Chain& c, i64 t, i64 d, float y) {
  store_as<kDtype>(x.data, place(x, c, t, d), y);
}
// Gates are f32 whatever the data are.
__device__ __forceinline__ float load_gate(const Tokens& x, const Chain& c, i64 t) {
  return load_as<0>(x.data, place(x, c, t, 0));
}
__device__ __forceinline__ void store_gate(const Tokens& x, const Chain& c, i64 t, float y) {
  store_as<0>(x.data, place(x, c, t, 0), y);
}

// From where on a forget gate leaves nothing, and the least gauge, as spec.rs has them.
constexpr float kLogForgetLeast = -192.f, kGaugeLeast = -80.f;
// The larger of both; NaN stays.
template <typename T>
__device__ __forceinline__ T at_least(T x, float least) { return x < least ? (T)least : x; }

// log sigmoid(x), and the derivative of it; that of a forget gate, which owes nothing where it is shut for good.
__device__ __forceinline__ double log_sigmoid(double x) { return x < 0 ? x - log1p(exp(x)) : -log1p(exp(-x)); }
__device__ __forceinline__ float slope(float x) {
  const float e = expf(-fabsf(x));
  return x < 0 ? 1.f / (1.f + e) : e / (1.f + e);
}
__device__ __forceinline__ float forget_slope(float x) { return x < kLogForgetLeast ? 0.f : slope(x); }

// The gauge of a token, and that before a chunk.
__device__ __forceinline__ double gauge(const Call& x, i64 flat) { return x.m ? (double)x.m[flat] : 0.0; }
__device__ __forceinline__ double gauge_before(const Call& x, const Chain& chain, const Chunk& chunk) {
  if (!x.m) return 0;
  if (chunk.first > chain.from) return x.m[chunk.flat - 1];
  return x.m_initial ? x.m_initial[chain.nth] : 0;
}
// What is left of the state behind a chunk, and at its token t; and what of token t enters the state behind it.
__device__ __forceinline__ float kept(const Call& x, const Chain& chain, const Chunk& c) {
  const i64 last = c.flat + c.n - 1;
  return (float)exp(x.sums[last] + gauge_before(x, chain, c) - gauge(x, last));
}
__device__ __forceinline__ float past(const Call& x, const Chain& chain, const Chunk& c, int t) {
  return (float)exp(x.sums[c.flat + t] + gauge_before(x, chain, c) - gauge(x, c.flat + t));
}
__device__ __forceinline__ float entering(const Call& x, const Chunk& c, int t) {
  const i64 last = c.flat + c.n - 1;
  return (float)exp(x.sums[last] - gauge(x, last) - x.sums[c.flat + t] + x.input[c.flat + t]);
}
// The weight of the pair (t, s), s <= t. The difference of sums is f64, its exponential f32.
__device__ __forceinline__ float pair(const Call& x, const Chunk& c, int t, int s) {
  return expf((float)(x.sums[c.flat + t] - x.sums[c.flat + s] + x.input[c.flat + s] - gauge(x, c.flat + t)));
}

// max(|l|, e^-m) + eps, and whether l decides.
__device__ __forceinline__ float denominator(const Call& x, float l, double m, bool* open) {
  const float floor = (float)exp(-m), size = fabsf(l);
  *open = size > floor;
  return (size < floor ? floor : size) + (float)x.eps;
}

struct Slices {
  float a[kDepth][kTile + 4], b[kDepth][kTile + 4];
};

// acc += a b of a 64 x 64 tile over `depth` terms: thread (ty, tx) holds rows ty + 16 i and columns tx + 16 j. a(m, k) and
// b(k, n) give elements, zeros where there are none. All threads of the block take part; the slices may be used again at once.
template <typename A, typename B>
__device__ __forceinline__ void product(float (&acc)[4][4], Slices& s, int depth, A a, B b) {
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  for (int k0 = 0; k0 < depth; k0 += kDepth) {
    __syncthreads();
    for (int at = threadIdx.x; at < kDepth * kTile; at += kThreads) {
      const int m = at / kDepth, ka = at % kDepth, kb = at / kTile, n = at % kTile;
      s.a[ka][m] = k0 + ka < depth ? a(m, k0 + ka) : 0.f;
      s.b[kb][n] = k0 + kb < depth ? b(k0 + kb, n) : 0.f;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      float x[4], y[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        x[e] = s.a[k][ty + 16 * e];
        y[e] = s.b[k][tx + 16 * e];
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) acc[i][j] = fmaf(x[i], y[j], acc[i][j]);
    }
  }
}

// f(row, column, element) for each element that this thread holds.
template <typename F>
__device__ __forceinline__ void each(float (&acc)[4][4], F f) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) f((int)(threadIdx.x / 16 + 16 * i), (int)(threadIdx.x % 16 + 16 * j), acc[i][j]);
}

// The same with the row's number among the thread's four.
template <typename F>
__device__ __forceinline__ void each_row(float (&acc)[4][4], F f) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) f(i, (int)(threadIdx.x / 16 + 16 * i), (int)(threadIdx.x % 16 + 16 * j), acc[i][j]);
}

// The sum over the block, in one order, for all threads.
__device__ __forceinline__ double block_sum(double x, double* slots) {
  slots[threadIdx.x] = x;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if ((int)threadIdx.x < half) slots[threadIdx.x] += slots[threadIdx.x + half];
  }
  __syncthreads();
  const double sum = slots[0];
  __syncthreads();
  return sum;
}
