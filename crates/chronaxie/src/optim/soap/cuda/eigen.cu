// First bases of factors: eigenvectors, by groups of blocks that take a matrix at a time, for the matrices of one size (basis.cu says what
// `due` and the rest are). Rows of s come out by falling eigenvalues, what is equal in its order; where there are no eigenvectors, since a
// factor is 0 or not finite, they are I. The panels of basis.cu do the rest, as roundings of f32 are left. Floors: jacobi.cuh.
#include "eigenbasis.cuh"

extern "C" __global__ void __launch_bounds__(kJacobiThreads, kJacobiBlocks)
    eigen(double* work, unsigned* counters, int blocks, const i64* factor_at, const i64* due, const float* factors, const int* step,
          float* s, double* values, double* lengths, int* order, int* live, int* spent, int n, int every, int rows) {
  __shared__ JacobiShared shared;
  JacobiGroup g = jacobi_group(counters, blocks);
  const int lane = threadIdx.x % 32, group = blockIdx.x / blocks, first = g.rank * kJacobiWarps + threadIdx.x / 32;
  const int warps = blocks * kJacobiWarps;
  const i64 size = (i64)n * n;
  double* a = work + group * size;
  for (int y = group; y < rows; y += gridDim.x / blocks) {
    const i64 which = due[(i64)(*step % every) * rows + y];
    if (g.rank == 0 && threadIdx.x == 0) live[y] = which >= 0;
    if (which < 0) continue;
    const Triangle factor = {factors + factor_at[which]};
    double* value = values + (i64)y * n;
    const bool any = eigenbasis(a, value, factor, n, g, shared).any;
    for (int k = first; k < n; k += warps) {
      const double mine = any ? value[k] : 0.;
      const i64 rank = any ? rank_of(value, k, n) : k;
      for (int i = lane; i < n; i += 32)
        s[(y * (i64)n + rank) * n + i] = any ? (float)(a[(i64)k * n + i] / mine) : i == k ? 1.f : 0.f;
      if (lane == 0) {
        const i64 at = (i64)y * n + k;
        order[at] = k, spent[at] = 0, lengths[at] = 1;
      }
    }
    // The next matrix takes this one's place.
    if (any) jacobi_meet(g);
  }
}
