// Eigenvalues and eigenvectors of the sides of maps whose turn it is, by groups of blocks that take a side at a time: A = Q^T diag(l) Q, rows of
// Q by falling l, l at least 0. Row r of `turns` says which sides are due where (step - 1) % every is r (2 map + side, -1: none), the largest
// first; of a row a launch takes those from `from` to `end`, so that groups have as many blocks as their sides are long. A factor
// that is 0 gives I; one that is not finite leaves what there was, and harms no other. Floors: jacobi.cuh.
#include "eigenbasis.cuh"
#include "maps.cuh"

extern "C" __global__ void __launch_bounds__(kJacobiThreads, kJacobiBlocksBeside)
    eigen(double* work, unsigned* counters, int blocks, double* lengths, const Map* maps, const i64* turns, const float* factors, const int* step,
          float* bases, float* values, int most, int every, int rows, int from, int end) {
  __shared__ JacobiShared shared;
  JacobiGroup g = jacobi_group(counters, blocks);
  const int group = blockIdx.x / blocks;
  double *a = work + group * (i64)most * most, *value = lengths + group * (i64)most;
  for (int y = from + group; y < end; y += gridDim.x / blocks) {
    auto which = [&](int y) { return turns[(i64)((*step - 1) % every) * rows + y]; };
    if (which(y) < 0) break;
    EigenBasis found;
    {
      const Side side = side_of(maps, which(y));
      found = eigenbasis(a, value, Triangle{factors + side.factor}, (int)side.n, g, shared);
    }
    if (!found.finite) {
      // All have read the lengths of its rows.
      jacobi_meet(g);
      continue;
    }
    // Opaque: what is reckoned from them ahead would have no registers.
    int thread = threadIdx.x, now = y;
    asm volatile("" : "+r"(thread), "+r"(now));
    const int lane = thread % 32, warps = blocks * kJacobiWarps;
    const Side side = side_of(maps, which(now));
    const int n = (int)side.n;
    for (int k = g.rank * kJacobiWarps + thread / 32; k < n; k += warps) {
      const double mine = found.any ? value[k] : 1.;
      const i64 rank = found.any ? rank_of(value, k, n) : k;
      for (int i = lane; i < n; i += 32)
        bases[side.basis + rank * n + i] = found.any ? (float)(a[(i64)k * n + i] / mine) : i == k ? 1.f : 0.f;
      if (lane == 0) values[side.values + rank] = found.any ? (float)fmax((mine - found.shift) / found.scale, 0.) : 0.f;
    }
    // The next matrix takes this one's place.
    jacobi_meet(g);
  }
}
