// Inverse roots of symmetric matrices [n, n] by eigenvalues that cuSOLVER's batched solver finds: what goes before it and behind it, by groups
// of blocks that take a matrix at a time.
//
// Before: matrices of f64 with norms of 1 to 2, and in place of what has no root I, so that nobody else's numbers meet a NaN. Behind: roots
// (eigen_ends.cuh). Floors: 4 n^2 bytes in twice and 8 n^2 out, 12 n^2 in and 4 n^2 out behind it; the product of n^3 / 2 multiply-adds binds.
//
// Roots on an H200, medians of a graph's replays, ms, by cuSOLVER 12.0.4 and by jacobi.cuh (eigen.cu), 2026-11-29: 600 of 64 2.38 and 3.71, 16 of 40
// 0.351 and 0.703, 16 of 128 0.924 and 1.80, 64 of 128 1.29 and 2.05, 64 of 200 6.55 and 10.2, 1 of 512 5.00 and 12.3, 16 of 512 18.2 and 15.6. The
// solver alone, awaited, which takes the host as long from 200 rows on: 64 of 128 1.27, 64 of 256 12.9, 4 of 256 9 to 12, 16 of 512 36, 1 of 512
// 4.7, 1 of 1024 10.4 (eigen.cu 39.4), 4 of 1024 64 (40), 34 of 1024 95 (276), 1 of 2048 26; those of 1024 no graph holds.
#include "eigen_ends.cuh"

extern "C" __global__ void __launch_bounds__(kJacobiThreads, 3)
    solver_begin(double* rows,        // [N, n, n]
                 unsigned* counters,  // [groups, 16]
                 int blocks,
                 double* values,               // [N, n]: workspace
                 double* known,                // [N, 2]: eps, and the power of two, 0 where there is no root
                 const float* __restrict__ a,  // [N, n, n]
                 i64 count, int n, double absolute, double relative) {
  __shared__ double slots[kJacobiWarps];
  JacobiGroup g = jacobi_group(counters, blocks);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 size = (i64)n * n;
  for (i64 nth = blockIdx.x / blocks; nth < count; nth += gridDim.x / blocks) {
    const Mean mean = {a + nth * size, n};
    const double norm = mean_norm(mean, values + nth * n, g, slots), eps = max(absolute, relative * norm);
    const bool good = norm < 1e300 && norm + eps > 0;
    const double scale = good ? jacobi_scale(norm) : 0.;
    double* to = rows + nth * size;
    for (int i = g.rank * kJacobiWarps + warp; i < n; i += blocks * kJacobiWarps)
      for (int j = lane; j < n; j += 32) to[(i64)i * n + j] = good ? scale * mean(i, j) : i == j ? 1. : 0.;
    if (g.rank == 0 && threadIdx.x == 0) known[2 * nth] = eps, known[2 * nth + 1] = scale;
  }
}

extern "C" __global__ void __launch_bounds__(kJacobiThreads, 3)
    solver_end(const double* rows,  // [N, n, n]: eigenvectors
               unsigned* counters,  // [groups, 16]
               int blocks,
               double* values,               // [N, n]: eigenvalues
               const double* known,          // [N, 2]
               const int* info,              // [N]: 0 where the solver has not failed
               float* scaled,                // [groups, n, n]
               double* vectors,              // [groups, 2, n]
               const float* __restrict__ a,  // [N, n, n]
               float* root,                  // [N, n, n]
               float* record,                // [N, 4]
               i64 count, int n, int numerator, int denominator) {
  __shared__ RootShared shared;
  JacobiGroup g = jacobi_group(counters, blocks);
  const int group = blockIdx.x / blocks;
  const i64 size = (i64)n * n;
  for (i64 nth = group; nth < count; nth += gridDim.x / blocks) {
    const double eps = known[2 * nth], scale = known[2 * nth + 1];
    __syncthreads();
    if (threadIdx.x == 0) shared.eps = eps, shared.scale = scale, shared.shift = 0;
    const int sweeps = scale > 0 && info[nth] == 0 ? 0 : -1;
    give<true>(rows + nth * size, scaled + group * size, values + nth * n, vectors + group * 2 * (i64)n, a + nth * size, root + nth * size,
               record + nth * 4, n, numerator, denominator, sweeps, g, shared);
  }
}
