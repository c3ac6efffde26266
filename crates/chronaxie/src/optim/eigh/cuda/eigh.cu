// Eigenvalues and eigenvectors of symmetric matrices [n, n]: A = V^T diag(l) V, rows of V by rising l, by groups of blocks that take a matrix at a
// time; or what goes before cuSOLVER's batched solver and behind it. What has a NaN or an infinity gets NaN; 0 gets I by blocks.
//
// Before the solver: matrices of f64 with norms of 1 to 2, I in place of what is not finite, so that nobody else's numbers meet a NaN. Floors
// of what is around it: 8 n^2 bytes in and 8 n^2 out, 8 n^2 in and 4 n^2 out; of eigenvectors by blocks: jacobi.cuh.
#include "eigenbasis.cuh"

extern "C" __global__ void __launch_bounds__(kJacobiThreads, kJacobiBlocksBeside)
    eigh(double* work,        // [groups, n, n]
         unsigned* counters,  // [groups, 16]
         int blocks,
         double* lengths,              // [groups, n]
         const float* __restrict__ a,  // [N, n, n]
         float* values,                // [N, n]
         float* vectors,               // [N, n, n]
         const int* info,              // [N] or null: 0 where the solver has not failed, and this has nothing to do
         i64 count, int n) {
  __shared__ JacobiShared shared;
  JacobiGroup g = jacobi_group(counters, blocks);
  for (i64 nth = blockIdx.x / blocks; nth < count; nth += gridDim.x / blocks) {
    if (info && info[nth] == 0) continue;
    auto size = [&] { return (i64)n * n; };
    EigenBasis found;
    {
      const i64 group = blockIdx.x / blocks;
      found = eigenbasis(work + group * size(), lengths + group * n, Mean{a + nth * size(), n}, n, g, shared);
    }
    // Opaque: what is reckoned from them ahead would have no registers.
    int thread = threadIdx.x, group = blockIdx.x / blocks;
    asm volatile("" : "+r"(thread), "+r"(group));
    const double *rows = work + group * size(), *value = lengths + group * (i64)n;
    const int lane = thread % 32, warps = blocks * kJacobiWarps;
    const float none = __int_as_float(0x7fffffff);
    for (int k = g.rank * kJacobiWarps + thread / 32; k < n; k += warps) {
      const double mine = found.any ? value[k] : 1.;
      const i64 at = nth * n + (found.any ? n - 1 - rank_of(value, k, n) : k);
      for (int i = lane; i < n; i += 32)
        vectors[at * n + i] = found.any ? (float)(rows[(i64)k * n + i] / mine) : !found.finite ? none : i == k ? 1.f : 0.f;
      if (lane == 0) values[at] = found.any ? (float)((mine - found.shift) / found.scale) : found.finite ? 0.f : none;
    }
    // The next matrix takes this one's place.
    jacobi_meet(g);
  }
}

extern "C" __global__ void __launch_bounds__(kJacobiThreads, 4)
    eigh_begin(double* rows,        // [N, n, n]
               unsigned* counters,  // [groups, 16]
               int blocks,
               double* values,               // [N, n]: workspace
               double* scales,               // [N]: the power of two, 0 where a number is not finite
               const float* __restrict__ a,  // [N, n, n]
               i64 count, int n) {
  __shared__ double slots[kJacobiWarps];
  JacobiGroup g = jacobi_group(counters, blocks);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 size = (i64)n * n;
  for (i64 nth = blockIdx.x / blocks; nth < count; nth += gridDim.x / blocks) {
    const Mean mean = {a + nth * size, n};
    const double norm = mean_norm(mean, values + nth * n, g, slots), scale = isfinite(norm) ? jacobi_scale(norm) : 0.;
    double* to = rows + nth * size;
    for (int i = g.rank * kJacobiWarps + warp; i < n; i += blocks * kJacobiWarps)
      for (int j = lane; j < n; j += 32) to[(i64)i * n + j] = scale > 0 ? scale * mean(i, j) : i == j ? 1. : 0.;
    if (g.rank == 0 && threadIdx.x == 0) scales[nth] = scale;
  }
}

extern "C" __global__ void __launch_bounds__(kJacobiThreads, 4)
    eigh_end(const double* rows, const double* found, const double* scales, const int* info, float* values, float* vectors, i64 count, int n) {
  const int size = n * n, stride = gridDim.x * kJacobiThreads;
  const float none = __int_as_float(0x7fffffff);
  for (i64 nth = blockIdx.y; nth < count; nth += gridDim.y) {
    if (info[nth] != 0) continue;
    const double scale = scales[nth];
    const double *from = rows + nth * size, *value = found + nth * n;
    for (int e = blockIdx.x * kJacobiThreads + threadIdx.x; e < size; e += stride) {
      vectors[nth * size + e] = scale > 0 ? (float)from[e] : none;
      if (e < n) values[nth * n + e] = scale > 0 ? (float)(value[e] / scale) : none;
    }
  }
}
