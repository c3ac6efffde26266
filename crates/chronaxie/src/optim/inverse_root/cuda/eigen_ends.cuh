// What becomes of eigenvectors: X = sum_k f(lambda_k) v_k v_k^T, f(x) = (x + eps)^(-q/p), and its record, by groups of blocks (jacobi.cuh).
//
// It is little beside the eigenvectors: n^3 / 2 multiply-adds of f32 for the product of rows with their own, by tiles of 32 x 32 that the
// group's blocks take in turns, at n = 1024 some 0.1 ms of a group's 32, and p + q times a matrix and a vector.
#pragma once

#include "eigenbasis.cuh"

enum { kEigen = 1, kShifted = 2, kFailed = 3 };

struct RootShared {
  JacobiShared jacobi;
  double eps, scale, shift;
  // 32 rows of the two parts of 32 columns that make a tile.
  __align__(16) float left[kPair][kPair + 4], right[kPair][kPair + 4];
};

// A tile of to = s^T s, and its mirror image: rows ti, columns tj <= ti.
__device__ __forceinline__ void root_tile(float* to, const float* s, int n, int ti, int tj, RootShared& shared) {
  const int row = threadIdx.x / 8 * 2, column = threadIdx.x % 8 * 4, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float sum[2][4] = {};
  for (int first = 0; first < n; first += kPair) {
    __syncthreads();
#pragma unroll
    for (int k = warp; k < kPair; k += kJacobiWarps) {
      const int i = ti * kPair + lane, j = tj * kPair + lane;
      const bool known = first + k < n;
      shared.left[k][lane] = known && i < n ? s[(i64)(first + k) * n + i] : 0.f;
      shared.right[k][lane] = known && j < n ? s[(i64)(first + k) * n + j] : 0.f;
    }
    __syncthreads();
#pragma unroll 8
    for (int k = 0; k < kPair; ++k) {
      const float2 x = *(const float2*)&shared.left[k][row];
      const float4 y = *(const float4*)&shared.right[k][column];
      const float l[2] = {x.x, x.y}, r[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[i][j] = fmaf(l[i], r[j], sum[i][j]);
    }
  }
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const int i = ti * kPair + row + e / 4, j = tj * kPair + column + e % 4;
    if (i >= n || j > i) continue;
    to[(i64)i * n + j] = sum[e / 4][e % 4];
    to[(i64)j * n + i] = sum[e / 4][e % 4];
  }
}

// ||(A + shift I)^q X^p z - z|| / ||z|| of a vector z of signs; `y` holds two vectors. Known to all blocks of the group.
__device__ __forceinline__ float root_residual(const Mean& a, const float* x, double* y, int numerator, int denominator, double shift,
                                               JacobiGroup& g, double* slots) {
  const int n = a.n, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  auto sign = [](int k) { return (k * 2654435761u >> 15 ^ k * 40503u >> 7) & 1 ? 1. : -1.; };
  double* next = y + n;
  for (int k = g.rank * kJacobiThreads + threadIdx.x; k < n; k += g.blocks * kJacobiThreads) y[k] = sign(k);
  for (int roots = 0, powers = 0; roots < denominator || powers < numerator;) {
    jacobi_meet(g);
    // By turns, so that the vector keeps its size.
    const bool root = roots * numerator <= powers * denominator && roots < denominator;
    for (int r = g.rank * kJacobiWarps + warp; r < n; r += g.blocks * kJacobiWarps) {
      double sum = 0;
      for (int c = lane; c < n; c += 32) sum = fma(root ? (double)x[(i64)r * n + c] : a(r, c), y[c], sum);
      sum = warp_sum(sum);
      if (lane == 0) next[r] = root ? sum : fma(shift, y[r], sum);
    }
    double* other = y;
    y = next, next = other;
    ++(root ? roots : powers);
  }
  jacobi_meet(g);
  double off = 0;
  for (int k = threadIdx.x; k < n; k += kJacobiThreads) off += (y[k] - sign(k)) * (y[k] - sign(k));
  return (float)sqrt(block_sum<kJacobiWarps>(off, slots) / n);
}

// The root and its record from the eigenvectors of a matrix, rows whose lengths are what belongs to them or, with kUnit, 1 and that in
// `value`; `vectors` are two of f64. Without a root `sweeps` is -1.
template <bool kUnit>
__device__ __forceinline__ void give(const double* rows, float* s, double* value, double* vectors, const float* a, float* to, float* record,
                                     int n, int numerator, int denominator, int sweeps, JacobiGroup& g, RootShared& shared) {
  int thread = threadIdx.x;
  asm volatile("" : "+r"(thread));
  const int lane = thread % 32, first = g.rank * kJacobiWarps + thread / 32, warps = g.blocks * kJacobiWarps;
  __syncthreads();
  const double c = shared.shift, scale = shared.scale, eps = shared.eps;
  float error = __int_as_float(0x7fffffff);
  int status = kFailed;
  if (sweeps >= 0) {
    if (!kUnit) {
      for (int k = first; k < n; k += warps) {
        const double length = jacobi_length(rows + (i64)k * n, n);
        if (lane == 0) value[k] = length;
      }
      jacobi_meet(g);
    }
    double least = 1e300;
    for (int k = 0; k < n; ++k) least = min(least, (value[k] - c) / scale);
    const bool shifted = least + eps < 0.5 * eps;
    const double shift = shifted ? eps - least : eps;
    if (least + shift > 0) {
      const double power = -0.5 * numerator / denominator;
      for (int k = first; k < n; k += warps) {
        const double f = pow((value[k] - c) / scale + shift, power) / (kUnit ? 1. : value[k]);
        for (int i = lane; i < n; i += 32) s[(i64)k * n + i] = (float)(f * rows[(i64)k * n + i]);
      }
      jacobi_meet(g);
      const int side = (n + kPair - 1) / kPair;
      for (int ti = 0, nth = 0; ti < side; ++ti)
        for (int tj = 0; tj <= ti; ++tj, ++nth)
          if (nth % g.blocks == g.rank) root_tile(to, s, n, ti, tj, shared);
      status = shifted ? kShifted : kEigen;
      error = root_residual({a, n}, to, vectors, numerator, denominator, shift, g, shared.jacobi.slots);
    }
  }
  if (status == kFailed)
    for (int i = first; i < n; i += warps)
      for (int j = lane; j < n; j += 32) to[(i64)i * n + j] = __int_as_float(0x7fffffff);
  // All have read the record and this matrix's numbers before others take their place.
  jacobi_meet(g);
  if (g.rank == 0 && threadIdx.x == 0) {
    record[0] = (float)status, record[1] = (float)max(sweeps, 0), record[2] = error, record[3] = (float)eps;
  }
}
