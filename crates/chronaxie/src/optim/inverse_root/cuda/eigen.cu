// Inverse roots of symmetric matrices [n, n] by eigenvalues: X = sum_k f(lambda_k) v_k v_k^T, f(x) = (x + eps)^(-q/p), by groups of blocks
// that take a matrix at a time. eps = max(absolute, relative ||A||_F); where A is indefinite f is that of x less the least eigenvalue.
//
// With `only_failed` this comes behind Newton's iteration and takes what that has left (record: 3), which costs a launch where nothing is.
//
// Eigenvalues: jacobi.cuh, which has its floors; what follows: eigen_ends.cuh.
#include "eigen_ends.cuh"

// Eigenvalues and eigenvectors of a matrix in `rows`, and of what they are in `shared`; how many sweeps it took, -1: there is no root. Its
// numbers wait in shared memory, since rotations have no registers for them.
__device__ __forceinline__ int settle(double* rows, double* squares, const float* a, int n, double absolute, double relative,
                                      JacobiGroup& g, RootShared& shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Mean mean = {a, n};
  const double norm = mean_norm(mean, squares, g, shared.jacobi.slots), scale = jacobi_scale(norm);
  const double eps = max(absolute, relative * norm), c = norm > 0 ? kJacobiShift * norm * scale : 1.;
  if (threadIdx.x == 0) shared.eps = eps, shared.scale = scale, shared.shift = c;
  if (!(norm < 1e300 && norm + eps > 0)) return -1;
  for (int i = g.rank * kJacobiWarps + warp; i < n; i += g.blocks * kJacobiWarps)
    for (int j = lane; j < n; j += 32) rows[(i64)i * n + j] = scale * mean(i, j) + (i == j ? c : 0.);
  jacobi_meet(g);
  return jacobi(rows, n, g, shared.jacobi);
}

extern "C" __global__ void __launch_bounds__(kJacobiThreads, kJacobiBlocks)
    eigen_roots(double* work,        // [groups, n, n]
                unsigned* counters,  // [groups, 16]
                int blocks,
                float* scaled,                 // [groups, n, n], f(lambda_k)^(1/2) v_k
                double* vectors,               // [groups, 3, n]: eigenvalues, and the residual's
                const float* __restrict__ a,   // [N, n, n]
                float* root,                   // [N, n, n]
                float* record,                 // [N, 4]
                i64 count, int n, int numerator, int denominator, int only_failed, double absolute, double relative) {
  __shared__ RootShared shared;
  JacobiGroup g = jacobi_group(counters, blocks);
  const int group = blockIdx.x / blocks;
  const i64 size = (i64)n * n;
  double *rows = work + group * size, *value = vectors + group * 3 * (i64)n;
  float* s = scaled + group * size;
  for (i64 nth = group; nth < count; nth += gridDim.x / blocks) {
    if (only_failed && record[nth * 4] != (float)kFailed) continue;
    const int sweeps = settle(rows, value, a + nth * size, n, absolute, relative, g, shared);
    give<false>(rows, s, value, value + n, a + nth * size, root + nth * size, record + nth * 4, n, numerator, denominator, sweeps, g, shared);
  }
}
