// What Shampoo and SOAP share on a GPU: the first moments, and the factors of blocks.
//
//   moments   element: g = scale grad (+ pull decay parameter) [N], first, and second where the step keeps it of g itself
//   gram      tile of 64 x 64 of a triangle, of every axis of every block: factor = keep factor + weight g_(k) g_(k)^T
#pragma once
#include "stepper.cuh"

// The grafting's step of an element.
struct Graft {
  float c1, c2, eps;
  int squares;
  __device__ __forceinline__ float of(float first, float second) const {
    const float m = first * c1;
    return squares ? m / (sqrtf(second * c2) + eps) : m;
  }
  __device__ __forceinline__ float operator()(const float* first, const float* second, i64 n) const {
    return of(first[n], squares ? second[n] : 0.f);
  }
};
__device__ __forceinline__ Graft graft_of(const int* step, double ln_beta1, double ln_second, float eps, int squares) {
  return {(float)(1. / correction(ln_beta1, *step)), (float)(1. / correction(ln_second, *step)), eps, squares};
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    moments(const float* grad, const float* decay, const float* parameter, const double* partials, float* g, float* first,
            float* second, float* grad_norm, i64 elements, int runs, int has_second, double clip, float pull, float beta1,
            float rest1, float keep2, float new2) {
  __shared__ double slots[kWarps];
  const double norm = folded(partials, runs, slots);
  if (blockIdx.x == 0 && threadIdx.x == 0) grad_norm[0] = (float)norm;
  const float scale = clip > 0. && norm > clip ? (float)(clip / norm) : 1.f;
  for (i64 n = blockIdx.x * (i64)kThreads + threadIdx.x; n < elements; n += (i64)gridDim.x * kThreads) {
    const float x = fmaf(pull * decay[n], parameter[n], grad[n] * scale);
    g[n] = x;
    first[n] = beta1 * first[n] + rest1 * x;
    if (has_second) second[n] = keep2 * second[n] + new2 * (x * x);
  }
}

template <int W>
__device__ __forceinline__ void gram_of(StageOf<W>& s, const Block* blocks, const i64* of, const i64* first_tile, const float* g,
                                        float* factors, int count, float keep, float weight) {
  const int m = entry_of(first_tile, count, blockIdx.x);
  const Block& b = blocks[of[m] / kAxes];
  const int axis = (int)(of[m] % kAxes);
  const i64 n = b.sizes[axis], stride = b.strides[axis], rest = b.elements / n;
  i64 t = blockIdx.x - first_tile[m], ti = 0;
  while (t > ti) t -= ++ti;
  const i64 row = ti * W * kTile, column = t * W * kTile;
  const float* x = g + b.first;
  auto at = [&](i64 k, i64 i) { return i < n ? x[i * stride + offset_of(b, axis, k)] : 0.f; };
  auto left = [&](i64 k, int i) { return at(k, row + i); };
  auto right = [&](i64 k, int i) { return at(k, column + i); };
  float acc[4 * W][4 * W] = {};
  // What is known when it is compiled costs no registers.
  if (stride == 1) tile(acc, s, rest, left, false, right, false);
  else tile(acc, s, rest, left, true, right, true);
  float* factor = factors + b.factors[axis];
#pragma unroll
  for (int e = 0; e < 16 * W * W; ++e) {
    const i64 i = row + place(threadIdx.x / 16, e / (4 * W)), j = column + place(threadIdx.x % 16, e % (4 * W));
    if (i >= n || j > i) continue;
    float* f = factor + i * (i + 1) / 2 + j;
    *f = keep * *f + weight * acc[e / (4 * W)][e % (4 * W)];
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    gram(const Block* blocks, const i64* of, const i64* first_tile, const float* g, float* factors, int count, float keep,
         float weight) {
  __shared__ __align__(16) Stage s;
  gram_of(s, blocks, of, first_tile, g, factors, count, keep, weight);
}
