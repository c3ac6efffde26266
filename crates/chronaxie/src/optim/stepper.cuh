// What the steps of optimizers share on a GPU: blocks of parameters as a table, sums, and tiles of products.
#pragma once

#include "sums.cuh"

typedef long long i64;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kTile = 64, kDepth = 16;
constexpr int kAxes = 6;
constexpr i64 kChunk = 4096;  // elements of a block that a thread block updates

// A block of a parameter, as stepper.rs packs it.
struct Block {
  i64 first, elements, order, matrices;
  i64 sizes[kAxes], strides[kAxes], factors[kAxes], roots[kAxes];
};

// The sum over the block, known to every thread.
__device__ __forceinline__ double block_sum(double x, double* slots) { return block_sum<kWarps>(x, slots); }

// The last of `count` entries whose first job is at most `job`.
__device__ __forceinline__ int entry_of(const i64* first, int count, i64 job) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (first[middle] <= job) low = middle; else high = middle;
  }
  return low;
}

// Where element `r` of all axes but `axis` (-1: of all) lies, the last axis fastest.
__device__ __forceinline__ i64 offset_of(const Block& b, int axis, i64 r) {
  i64 at = 0;
  for (int k = (int)b.order - 1; k >= 0; --k) {
    if (k == axis) continue;
    // Divisions of 64 bits are what this costs: none where the rest lies within this axis.
    if (r < b.sizes[k]) return at + r * b.strides[k];
    at += r % b.sizes[k] * b.strides[k];
    r /= b.sizes[k];
  }
  return at;
}

// 1 - beta^t, or 1 where beta is 1; expm1 is inlined, where pow would be a call.
__device__ __forceinline__ double correction(double ln_beta, double t) { return ln_beta == 0 ? 1. : -expm1(t * ln_beta); }

// A tile of a product is 64 x 64 (W = 1) or 128 x 128 (W = 2): half the loads for each operation, where there are enough of them.
template <int W>
struct StageOf {
  float a[kDepth][W * kTile + 4], b[kDepth][W * kTile + 4];
};
using Stage = StageOf<1>;

// acc[i][j] += sum_k a(k, x) b(k, y) over a tile, in the order of k whatever W is, where x is place(threadIdx.x / 16, i) and y
// place(threadIdx.x % 16, j). `k_first` says which index is the faster one in memory.
__device__ __forceinline__ int place(int thread, int i) { return i / 4 * kTile + thread * 4 + i % 4; }
template <int W, class A, class B>
__device__ __forceinline__ void tile(float (&acc)[4 * W][4 * W], StageOf<W>& s, i64 depth, A a, bool a_k_first, B b, bool b_k_first) {
  constexpr int side = W * kTile, each = kDepth * side / kThreads;
  const int row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
  float next_a[each], next_b[each];
  auto fetch = [&](i64 k0) {
#pragma unroll
    for (int t = 0; t < each; ++t) {
      const int e = threadIdx.x + t * kThreads;
      const int ka = a_k_first ? e % kDepth : e / side, xa = a_k_first ? e / kDepth : e % side;
      const int kb = b_k_first ? e % kDepth : e / side, xb = b_k_first ? e / kDepth : e % side;
      next_a[t] = k0 + ka < depth ? a(k0 + ka, xa) : 0.f;
      next_b[t] = k0 + kb < depth ? b(k0 + kb, xb) : 0.f;
    }
  };
  for (i64 k0 = 0; k0 < depth; k0 += kDepth) {
    // Loads are on their way before warps wait for each other, and those of one block a multiprocessor while it multiplies.
    if (W == 1 || k0 == 0) fetch(k0);
    __syncthreads();
#pragma unroll
    for (int t = 0; t < each; ++t) {
      const int e = threadIdx.x + t * kThreads;
      s.a[a_k_first ? e % kDepth : e / side][a_k_first ? e / kDepth : e % side] = next_a[t];
      s.b[b_k_first ? e % kDepth : e / side][b_k_first ? e / kDepth : e % side] = next_b[t];
    }
    __syncthreads();
    if (W > 1 && k0 + kDepth < depth) fetch(k0 + kDepth);
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      float p[4 * W], q[4 * W];
#pragma unroll
      for (int w = 0; w < W; ++w) {
        const float4 x = *(const float4*)&s.a[k][w * kTile + row], y = *(const float4*)&s.b[k][w * kTile + column];
        p[4 * w] = x.x, p[4 * w + 1] = x.y, p[4 * w + 2] = x.z, p[4 * w + 3] = x.w;
        q[4 * w] = y.x, q[4 * w + 1] = y.y, q[4 * w + 2] = y.z, q[4 * w + 3] = y.w;
      }
#pragma unroll
      for (int i = 0; i < 4 * W; ++i)
#pragma unroll
        for (int j = 0; j < 4 * W; ++j) acc[i][j] = fmaf(p[i], q[j], acc[i][j]);
    }
  }
}

// The norm of the gradient from its runs' sums, known to every thread.
__device__ __forceinline__ double folded(const double* partials, int runs, double* slots) {
  double sum = 0;
  for (int r = threadIdx.x; r < runs; r += kThreads) sum += partials[r];
  return sqrt(block_sum(sum, slots));
}

// What clipping leaves of the gradient; the norm is written where that is asked for.
__device__ __forceinline__ float scale_of(const double* partials, int runs, double clip, double* slots, float* grad_norm) {
  const double norm = folded(partials, runs, slots);
  if (grad_norm && blockIdx.x == 0 && threadIdx.x == 0) grad_norm[0] = (float)norm;
  return clip > 0. && norm > clip ? (float)(clip / norm) : 1.f;
}

// By what share of itself a parameter shrinks: decoupled, (l2: not here), corrected, independent.
__device__ __forceinline__ float shrink_of(int mode, double weight_decay, float rate, float largest) {
  const double part = largest > 0 ? (double)rate / largest : 0.;
  const double by[4] = {rate * weight_decay, 0., rate * weight_decay * part, weight_decay * part};
  return (float)(mode == 0 ? by[0] : mode == 1 ? by[1] : mode == 2 ? by[2] : by[3]);
}

// Of row `blockIdx.y` of the batch the member of the pool whose turn it is, or -1.
__device__ __forceinline__ i64 member(const i64* due, const int* step, int every, int start) {
  const int t = *step;
  return t < start ? -1 : due[(i64)(t % every) * gridDim.y + blockIdx.y];
}

// Sums of squares of runs of the gradient, in f64; block 0 also counts the step and keeps the largest rate.
extern "C" __global__ void __launch_bounds__(kThreads, 4)
    squares(const float* grad, double* partials, const float* rate, int* step, float* largest, i64 elements, i64 run) {
  __shared__ double slots[kWarps];
  const i64 first = blockIdx.x * run, end = min(elements, first + run);
  double sum = 0.0;
  for (i64 n = first + threadIdx.x; n < end; n += kThreads) {
    const double g = grad[n];
    sum = fma(g, g, sum);
  }
  sum = block_sum(sum, slots);
  if (threadIdx.x == 0) {
    if (first < elements) partials[blockIdx.x] = sum;
    if (blockIdx.x == 0) {
      if (*step < 2147483647) *step += 1;
      largest[0] = max(largest[0], rate[0]);
    }
  }
}
