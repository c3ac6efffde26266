// Eigenvectors of factors, which are kept as triangles of f32, by groups of blocks (jacobi.cuh).
#pragma once

#include "jacobi.cuh"

// Eigenvectors of the triangle `factor` of n rows by all blocks of the group, rows of a [n, n] whose lengths are `value` [n]; known to all.
struct EigenBasis {
  double scale, shift;  // eigenvalue k is (value[k] - shift) / scale
  bool finite, any;     // any: there are eigenvectors; a finite factor without is 0
};
__device__ __forceinline__ EigenBasis eigenbasis(double* a, double* value, const float* factor, int n, JacobiGroup& g, JacobiShared& shared) {
  const int lane = threadIdx.x % 32, first = g.rank * kJacobiWarps + threadIdx.x / 32, warps = g.blocks * kJacobiWarps;
  // A triangle has what is beside the diagonal once.
  for (i64 i = first; i < n; i += warps) {
    double of_row = 0;
    for (i64 j = lane; j <= i; j += 32) {
      const double x = factor[i * (i + 1) / 2 + j];
      of_row = fma(j < i ? 2 * x : x, x, of_row);
    }
    of_row = warp_sum(of_row);
    if (lane == 0) value[i] = of_row;
  }
  jacobi_meet(g);
  double square = 0;
  for (int i = threadIdx.x; i < n; i += kJacobiThreads) square += value[i];
  const double norm = sqrt(block_sum<kJacobiWarps>(square, shared.slots)), scale = jacobi_scale(norm);
  const bool finite = isfinite(norm), any = norm > 0 && finite;
  if (any) {
    for (i64 i = first; i < n; i += warps) {
      for (i64 j = lane; j < n; j += 32) {
        const double x = factor[i >= j ? i * (i + 1) / 2 + j : j * (j + 1) / 2 + i];
        a[i * n + j] = scale * (i == j ? x + kJacobiShift * norm : x);
      }
    }
    jacobi_meet(g);
    jacobi(a, n, g, shared);
    for (int k = first; k < n; k += warps) {
      const double length = jacobi_length(a + (i64)k * n, n);
      if (lane == 0) value[k] = length;
    }
    jacobi_meet(g);
  }
  return {scale, kJacobiShift * norm * scale, finite, any};
}

// How many come before row k by falling lengths, what is equal in its order; by a warp.
__device__ __forceinline__ i64 rank_of(const double* value, int k, int n) {
  const double mine = value[k];
  double before = 0;
  for (int j = threadIdx.x % 32; j < n; j += 32) before += value[j] > mine || (value[j] == mine && j < k);
  return (i64)warp_sum(before);
}
