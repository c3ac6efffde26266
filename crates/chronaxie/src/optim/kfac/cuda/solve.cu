// What a side (A or G) of a map whose turn it is becomes with factored damping: an inverse. A block a matrix; row r of `turns` says which
// sides are due where (step - 1) % every is r (2 map + side, -1: none), the largest first. Blocks stride over them. All in f64,
// rounded to f32 at the end; what fails leaves what there was, and harms no other matrix.
//
//   inverse   (F + e I)^-1 = X^T X, X = L^-1, L L^T = F + e I, by panels of 32 columns; e as reference.rs `balance` has it
//
// Floors of a matrix: 2 n^2 bytes of the factor in and 4 n^2 of the inverse out; n^3 operations, and one read of two panels for each
// tile of 64 x 32: 3 n^3 / 16 bytes. Workspace of a block: 2 n^2 doubles of the largest of its sides.
#include "maps.cuh"

__device__ __forceinline__ float of_triangle(const float* f, i64 i, i64 j) {
  return i >= j ? f[triangle(i) + j] : f[triangle(j) + i];
}

constexpr int kPanel = 32, kHigh = 64, kDeep = 16;
struct Operands {
  double a[kDeep][kHigh + 2], b[kDeep][kPanel + 2];
};
struct Panel {
  double l[kPanel][kPanel + 1];
};

// acc[i][j] = sum_k a(k, x) b(k, y), k from `first` to `end`, x = 4 (thread / 16) + i of 64 and y = 2 (thread % 16) + j of 32; the
// flags say where k is the faster index in memory.
template <class A, class B>
__device__ __forceinline__ void product(double (&acc)[4][2], Operands& s, i64 first, i64 end, A a, bool a_k_first, B b,
                                        bool b_k_first) {
  const int row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 2;
  for (i64 k0 = first; k0 < end; k0 += kDeep) {
    __syncthreads();
#pragma unroll
    for (int t = 0; t < kDeep * kHigh / kThreads; ++t) {
      const int e = threadIdx.x + t * kThreads, k = a_k_first ? e % kDeep : e / kHigh, x = a_k_first ? e / kDeep : e % kHigh;
      s.a[k][x] = k0 + k < end ? a(k0 + k, x) : 0.;
    }
#pragma unroll
    for (int t = 0; t < kDeep * kPanel / kThreads; ++t) {
      const int e = threadIdx.x + t * kThreads, k = b_k_first ? e % kDeep : e / kPanel, y = b_k_first ? e / kDeep : e % kPanel;
      s.b[k][y] = k0 + k < end ? b(k0 + k, y) : 0.;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kDeep; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j) acc[i][j] = fma(s.a[k][row + i], s.b[k][column + j], acc[i][j]);
  }
  __syncthreads();
}

// By one warp: the panel's square becomes its triangle L; whether it is positive.
__device__ __forceinline__ bool cholesky(Panel& p, int width) {
  const int i = threadIdx.x;
  for (int k = 0; k < width; ++k) {
    const double pivot = p.l[k][k];
    if (!(pivot > 0 && isfinite(pivot))) return false;
    const double root = sqrt(pivot), mine = i > k ? p.l[i][k] / root : i == k ? root : 0.;
    __syncwarp();
    p.l[i][k] = mine;
    __syncwarp();
    for (int j = k + 1; j <= i && j < width; ++j) p.l[i][j] = fma(-mine, p.l[j][k], p.l[i][j]);
    __syncwarp();
  }
  return true;
}

// x <- L^-1 x of `width` numbers, each `stride` from the other.
__device__ __forceinline__ void substitute(double* x, i64 stride, const Panel& p, int width) {
  double y[kPanel];
#pragma unroll
  for (int r = 0; r < kPanel; ++r) {
    y[r] = 0;
    if (r >= width) continue;
    double sum = x[r * stride];
#pragma unroll
    for (int m = 0; m < r; ++m) sum = fma(-p.l[r][m], y[m], sum);
    y[r] = sum / p.l[r][r];
    x[r * stride] = y[r];
  }
}

__device__ __forceinline__ int load(Panel& p, const double* low, i64 first, i64 n) {
  const int width = (int)min((i64)kPanel, n - first);
  __syncthreads();
  for (int e = threadIdx.x; e < kPanel * kPanel; e += kThreads) {
    const int i = e / kPanel, j = e % kPanel;
    p.l[i][j] = i < width && j < width ? low[(first + i) * n + first + j] : 0.;
  }
  __syncthreads();
  return width;
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    inverse(const Map* maps, const i64* turns, const i64* work_at, const float* factors, const int* step, double* work,
            float* bases, int every, int rows, double root_damping, double most_pi) {
  __shared__ Operands s;
  __shared__ Panel p;
  __shared__ double slots[kWarps];
  __shared__ int good;
  const int row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 2;
  for (int y = blockIdx.x; y < rows; y += gridDim.x) {
    const i64 which = turns[(i64)((*step - 1) % every) * rows + y];
    if (which < 0) break;
    const Side side = side_of(maps, which);
    const i64 n = side.n;
    const float* factor = factors + side.factor;
    double *low = work + work_at[blockIdx.x], *back = low + n * n;
    const Map& map = maps[which / 2];
    auto mean = [&](i64 at, i64 order) {
      double sum = 0;
      for (i64 i = threadIdx.x; i < order; i += kThreads) sum += factors[at + triangle(i) + i];
      return block_sum(sum, slots) / (double)max(order, (i64)1);
    };
    // The least normal number of f32, also where there is a NaN.
    const double least = 1.1754943508222875e-38;
    const double of_a = fmax(mean(map.a, map.inputs), least), of_g = fmax(mean(map.g, map.rows), least);
    const double pi = fmin(fmax(sqrt(of_a / of_g), 1 / most_pi), most_pi);
    const double added = which % 2 == 0 ? pi * root_damping : root_damping / pi;
    if (threadIdx.x == 0) good = 1;
    __syncthreads();
    for (i64 c = 0; c < n; c += kPanel) {
      for (i64 i0 = c; i0 < n; i0 += kHigh) {
        double acc[4][2] = {};
        product(acc, s, 0, c, [&](i64 k, int i) { return i0 + i < n ? low[(i0 + i) * n + k] : 0.; }, true,
                [&](i64 k, int j) { return c + j < n ? low[(c + j) * n + k] : 0.; }, true);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          const i64 i = i0 + row + e / 2, j = c + column + e % 2;
          if (i < n && j < n) low[i * n + j] = of_triangle(factor, i, j) + (i == j ? added : 0.) - acc[e / 2][e % 2];
        }
      }
      const int width = load(p, low, c, n);
      if (threadIdx.x < 32 && !cholesky(p, width) && threadIdx.x == 0) good = 0;
      __syncthreads();
      if (!good) break;
      for (i64 r0 = c + kPanel; r0 < n; r0 += kThreads) {
        if (r0 + threadIdx.x < n) substitute(low + (r0 + threadIdx.x) * n + c, 1, p, width);
        // Also keeps the panel out of registers.
        __syncthreads();
      }
      for (int e = threadIdx.x; e < width * width; e += kThreads)
        low[(c + e / width) * n + c + e % width] = e % width <= e / width ? p.l[e / width][e % width] : 0.;
      __syncthreads();
    }
    __syncthreads();
    if (!good) continue;
    // X = L^-1, 32 rows after 32: what lies right of the diagonal is not written, and never read.
    for (i64 r0 = 0; r0 < n; r0 += kPanel) {
      for (i64 c0 = 0; c0 < min(n, r0 + kPanel); c0 += kHigh) {
        double acc[4][2] = {};
        product(acc, s, c0, r0, [&](i64 k, int i) { return c0 + i <= k ? back[k * n + c0 + i] : 0.; }, false,
                [&](i64 k, int j) { return r0 + j < n ? low[(r0 + j) * n + k] : 0.; }, true);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          const i64 c = c0 + row + e / 2, r = r0 + column + e % 2;
          if (r < n && c < min(n, r0 + kPanel)) back[r * n + c] = (r == c ? 1. : 0.) - acc[e / 2][e % 2];
        }
      }
      const int width = load(p, low, r0, n);
      for (i64 c0 = 0; c0 < r0 + width; c0 += kThreads) {
        if (c0 + threadIdx.x < r0 + width) substitute(back + r0 * n + c0 + threadIdx.x, n, p, width);
        __syncthreads();
      }
    }
    bool bad = false;
    for (i64 i0 = 0; i0 < n; i0 += kHigh)
      for (i64 j0 = 0; j0 < min(n, i0 + kHigh); j0 += kPanel) {
        double acc[4][2] = {};
        product(acc, s, max(i0, j0), n, [&](i64 k, int i) { return i0 + i <= k ? back[k * n + i0 + i] : 0.; }, false,
                [&](i64 k, int j) { return j0 + j <= k ? back[k * n + j0 + j] : 0.; }, false);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          const i64 i = i0 + row + e / 2, j = j0 + column + e % 2;
          if (i >= n || j > i) continue;
          bad |= !isfinite(acc[e / 2][e % 2]);
          low[i * n + j] = acc[e / 2][e % 2];
        }
      }
    if (__syncthreads_or(bad)) continue;
    for (i64 k = threadIdx.x; k < n * n; k += kThreads) {
      const i64 i = k / n, j = k % n;
      bases[side.basis + k] = (float)low[i >= j ? i * n + j : j * n + i];
    }
    __syncthreads();
  }
}
