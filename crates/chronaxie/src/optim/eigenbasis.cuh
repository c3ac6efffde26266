// Eigenvectors of symmetric matrices of f32, by groups of blocks (jacobi.cuh).
#pragma once

#include "jacobi.cuh"

// A factor, which is kept as a triangle.
struct Triangle {
  const float* factor;
  __device__ __forceinline__ double operator()(i64 i, i64 j) const {
    return factor[i >= j ? i * (i + 1) / 2 + j : j * (j + 1) / 2 + i];
  }
};
// (A + A^T) / 2.
struct Mean {
  const float* a;
  int n;
  __device__ __forceinline__ double operator()(i64 i, i64 j) const { return 0.5f * (a[i * n + j] + a[j * n + i]); }
};

// ||A||_F, known to all threads of the group's blocks; `squares` are n of f64.
__device__ __forceinline__ double mean_norm(const Mean& mean, double* squares, JacobiGroup& g, double* slots) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = mean.n;
  for (int i = g.rank * kJacobiWarps + warp; i < n; i += g.blocks * kJacobiWarps) {
    double of_row = 0;
    for (int j = lane; j < n; j += 32) {
      const double x = mean(i, j);
      of_row = fma(x, x, of_row);
    }
    of_row = warp_sum(of_row);
    if (lane == 0) squares[i] = of_row;
  }
  jacobi_meet(g);
  double square = 0;
  for (int i = threadIdx.x; i < n; i += kJacobiThreads) square += squares[i];
  return sqrt(block_sum<kJacobiWarps>(square, slots));
}

// Eigenvectors of a symmetric matrix of n rows by all blocks of the group, rows of a [n, n] whose lengths are `value` [n]; known to all.
struct EigenBasis {
  double scale, shift;  // eigenvalue k is (value[k] - shift) / scale
  bool finite, any;     // any: there are eigenvectors; a finite matrix without is 0
};
template <class Matrix>
__device__ __forceinline__ EigenBasis eigenbasis(double* a, double* value, const Matrix& matrix, int n, JacobiGroup& g, JacobiShared& shared) {
  const int lane = threadIdx.x % 32, first = g.rank * kJacobiWarps + threadIdx.x / 32, warps = g.blocks * kJacobiWarps;
  // What is beside the diagonal is there twice.
  for (i64 i = first; i < n; i += warps) {
    double of_row = 0;
    for (i64 j = lane; j <= i; j += 32) {
      const double x = matrix(i, j);
      of_row = fma(j < i ? 2 * x : x, x, of_row);
    }
    of_row = warp_sum(of_row);
    if (lane == 0) value[i] = of_row;
  }
  jacobi_meet(g);
  double square = 0;
  for (int i = threadIdx.x; i < n; i += kJacobiThreads) square += value[i];
  double norm = sqrt(block_sum<kJacobiWarps>(square, shared.slots));
  if (norm > 0 && isfinite(norm)) {
    const double scale = jacobi_scale(norm);
    for (i64 i = first; i < n; i += warps) {
      for (i64 j = lane; j < n; j += 32) {
        const double x = matrix(i, j);
        a[i * n + j] = scale * (i == j ? x + kJacobiShift * norm : x);
      }
    }
    jacobi_meet(g);
    jacobi(a, n, g, shared);
    // Opaque: what is reckoned here ahead would have no registers.
    int thread = threadIdx.x;
    asm volatile("" : "+r"(thread), "+d"(norm));
    for (int k = g.rank * kJacobiWarps + thread / 32; k < n; k += warps) {
      const double length = jacobi_length(a + (i64)k * n, n);
      if (thread % 32 == 0) value[k] = length;
    }
    jacobi_meet(g);
  }
  const double scale = jacobi_scale(norm);
  return {scale, kJacobiShift * norm * scale, (bool)isfinite(norm), norm > 0 && isfinite(norm)};
}

// How many come before row k by falling lengths, what is equal in its order; by a warp.
__device__ __forceinline__ i64 rank_of(const double* value, int k, int n) {
  const double mine = value[k];
  double before = 0;
  for (int j = threadIdx.x % 32; j < n; j += 32) before += value[j] > mine || (value[j] == mine && j < k);
  return (i64)warp_sum(before);
}
