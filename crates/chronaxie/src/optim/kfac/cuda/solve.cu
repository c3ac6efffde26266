// What a side (A or G) of a map whose turn it is becomes: eigenvalues and eigenvectors, or with factored damping an inverse. A block
// a matrix; row r of `turns` says which sides are due where (step - 1) % every is r (2 map + side, -1: none), the largest first.
// Blocks stride over them. All in f64, rounded to f32 at the end; what fails leaves what there was, and harms no other matrix.
//
//   eigen     A = Q^T diag(l) Q: Householder's reflections to a tridiagonal matrix, implicit QL steps, reflections back (Golub and
//             Van Loan, "Matrix Computations", 8.3); rows of Q by falling l, l at least 0
//   inverse   (F + e I)^-1 = X^T X, X = L^-1, L L^T = F + e I, by panels of 32 columns; e as reference.rs `balance` has it
//
// eigen: warps take rows in the reductions (each reads and writes what is left of the matrix once: the last update and the next product
// in one pass) and on the way back; one thread makes the rotations of a QL step, then each thread turns its own columns by all of
// them. Eigenvectors of any sign and order come from it at right angles to the roundings of f64, whatever the rank of the factor,
// which one-sided rotations of the factor itself and subspace iterations do not give, but those of jacobi.cuh do, by many blocks.
//
// Floors of a matrix: 2 n^2 bytes of the factor in and 4 n^2 of the basis out. eigen: 4 n^3 / 3 operations of the reductions, 2 n^3 on
// the way back and about 1.5 n^2 rotations of 6 n; 13 GFLOP of f64 at n = 1024, 25 ms at the 0.5 TFLOP/s of one multiprocessor of an
// H200, and 0.4 ms at n = 256. What it does read: 16 n^3 / 3 + 24 n^3 + 4 n^3 bytes of its workspace, from L2. The rotations themselves
// are one chain of 1.5 n^2 reciprocal roots, which is what binds where n is small. inverse: n^3 operations, and one read of
// two panels for each tile of 64 x 32: 3 n^3 / 16 bytes.
// Workspace of a block: 2 n^2 + 6 n doubles of the largest of its sides.
#include "maps.cuh"

constexpr int kEigenThreads = 512;
constexpr int kMostSteps = 100;  // QL steps an eigenvalue
// What is beside the diagonal and smaller counts as 0: its square would lose its digits. Factors are of f32, 1e-45 at the least.
constexpr double kNothing = 1e-140;

__device__ __forceinline__ float of_triangle(const float* f, i64 i, i64 j) {
  return i >= j ? f[triangle(i) + j] : f[triangle(j) + i];
}

// A side of a map.
struct Side {
  i64 n, factor, basis, values;
};
__device__ __forceinline__ Side side_of(const Map* maps, i64 which) {
  const Map& m = maps[which / 2];
  if (which % 2 == 0) return {m.inputs, m.a, m.basis_a, m.values_a};
  return {m.rows, m.g, m.basis_g, m.values_g};
}

// a [n, n] comes to diagonals d and e, and its row k to reflection I - v v^T, v in what is right of the diagonal; w holds 2 n.
__device__ __forceinline__ void reduce(double* a, double* d, double* e, double* w, i64 n, double* slots) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (i64 k = 0; k < n; ++k) {
    double *row = a + k * n, *now = w + k % 2 * n;
    const double *last = row - n, *was = w + (k + 1) % 2 * n;
    // The last reflection of this row; of the others the pass below makes it.
    if (k > 0)
      for (i64 c = k + threadIdx.x; c < n; c += kEigenThreads) row[c] -= last[k] * was[c] + was[k] * last[c];
    __syncthreads();
    const i64 left = n - k - 1;
    if (threadIdx.x == 0) d[k] = row[k];
    if (left == 0) break;
    double square = 0;
    for (i64 c = k + 1 + threadIdx.x; c < n; c += kEigenThreads) square = fma(row[c], row[c], square);
    square = block_sum<kEigenThreads / 32>(square, slots);
    const double x = row[k + 1], norm = sqrt(square), end = x > 0 ? -norm : norm;
    const bool none = left == 1 || square == 0;
    // |v|^2 = 2.
    const double scale = none ? 0. : 1 / sqrt(norm * (norm + fabs(x)));
    __syncthreads();
    if (threadIdx.x == 0) e[k] = none ? x : end;
    for (i64 c = k + 1 + threadIdx.x; c < n; c += kEigenThreads) row[c] = scale * (c == k + 1 ? x - end : row[c]);
    __syncthreads();
    for (i64 i = k + 1 + warp; i < n; i += kEigenThreads / 32) {
      double *of = a + i * n, sum = 0;
      const double left_v = k > 0 ? last[i] : 0., left_w = k > 0 ? was[i] : 0.;
      for (i64 c = k + 1 + lane; c < n; c += 32) {
        double y = of[c];
        if (k > 0) y -= left_v * was[c] + left_w * last[c];
        of[c] = y;
        sum = fma(y, row[c], sum);
      }
      sum = warp_sum(sum);
      if (lane == 0) now[i] = sum;
    }
    __syncthreads();
    double along = 0;
    for (i64 c = k + 1 + threadIdx.x; c < n; c += kEigenThreads) along = fma(row[c], now[c], along);
    along = block_sum<kEigenThreads / 32>(along, slots);
    for (i64 c = k + 1 + threadIdx.x; c < n; c += kEigenThreads) now[c] = fma(-0.5 * along, row[c], now[c]);
    __syncthreads();
  }
  __syncthreads();
}

// By one thread: an implicit QL step on rows l to m; rotation i of rows i and i + 1 is turns[2 i ..]. The lowest of them.
__device__ __forceinline__ i64 step_of(double* d, double* e, double* turns, i64 l, i64 m) {
  const double half = (d[l + 1] - d[l]) / (2 * e[l]);
  double g = d[m] - d[l] + e[l] / (half + copysign(sqrt(fma(half, half, 1.)), half));
  double s = 1, c = 1, p = 0;
  for (i64 i = m - 1; i >= l; --i) {
    const double f = s * e[i], b = c * e[i], square = fma(f, f, g * g);
    // Rotations wait for each other: a reciprocal root is shorter than a root and two divisions.
    const double over = square < 1e-290 ? 0. : rsqrt(square), r = square * over;
    e[i + 1] = r;
    if (r == 0) {
      d[i + 1] -= p;
      e[m] = 0;
      return i + 1;
    }
    s = f * over, c = g * over;
    const double x = d[i + 1] - p, y = (d[i] - x) * s + 2 * c * b;
    p = s * y;
    d[i + 1] = x + p;
    g = c * y - b;
    turns[2 * i] = c, turns[2 * i + 1] = s;
  }
  d[l] -= p;
  e[l] = g;
  e[m] = 0;
  return l;
}

extern "C" __global__ void __launch_bounds__(kEigenThreads, 1)
    eigen(const Map* maps, const i64* turns, const i64* work_at, const float* factors, const int* step, double* work,
          float* bases, float* values, int every, int rows) {
  __shared__ double slots[kEigenThreads / 32];
  __shared__ i64 lowest;
  __shared__ int ends[kEigenThreads / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int y = blockIdx.x; y < rows; y += gridDim.x) {
    const i64 which = turns[(i64)((*step - 1) % every) * rows + y];
    if (which < 0) break;
    const Side side = side_of(maps, which);
    const i64 n = side.n, size = n * n;
    const float* factor = factors + side.factor;
    double *a = work + work_at[blockIdx.x], *z = a + size, *d = z + size, *e = d + n, *w = e + n, *angles = w + 2 * n;
    bool bad = false;
    __syncthreads();
    for (i64 k = threadIdx.x; k < size; k += kEigenThreads) {
      const float x = of_triangle(factor, k / n, k % n);
      bad |= !isfinite(x);
      a[k] = x, z[k] = k / n == k % n ? 1. : 0.;
    }
    if (__syncthreads_or(bad)) continue;
    reduce(a, d, e, w, n, slots);
    for (i64 l = 0; l < n && !bad; ++l) {
      for (int steps = 0;; ++steps) {
        // The end of the part that hangs together.
        int mine = (int)n - 1;
        for (i64 m = l + threadIdx.x; m < mine; m += kEigenThreads)
          if (fabs(e[m]) <= 2.220446049250313e-16 * (fabs(d[m]) + fabs(d[m + 1])) || fabs(e[m]) < kNothing) mine = (int)m;
        for (int o = 16; o > 0; o /= 2) mine = min(mine, __shfl_xor_sync(~0u, mine, o));
        if (lane == 0) ends[warp] = mine;
        __syncthreads();
        for (int k = 0; k < kEigenThreads / 32; ++k) mine = min(mine, ends[k]);
        const i64 m = mine;
        if (m == l) break;
        bad = steps >= kMostSteps;
        if (bad) break;
        if (threadIdx.x == 0) lowest = step_of(d, e, angles, l, m);
        __syncthreads();
        for (i64 c = threadIdx.x; c < n; c += kEigenThreads) {
          double high = z[m * n + c];
          for (i64 i = m - 1; i >= lowest; --i) {
            const double low = z[i * n + c], cosine = angles[2 * i], sine = angles[2 * i + 1];
            z[(i + 1) * n + c] = fma(sine, low, cosine * high);
            high = fma(cosine, low, -sine * high);
          }
          z[lowest * n + c] = high;
        }
        __syncthreads();
      }
      // Everybody has read `ends`.
      __syncthreads();
    }
    for (i64 k = threadIdx.x; k < n; k += kEigenThreads) bad |= !isfinite(d[k]);
    if (__syncthreads_or(bad)) continue;
    // A lane keeps its columns, so that nobody waits.
    for (i64 r = warp; r < n; r += kEigenThreads / 32) {
      double* row = z + r * n;
      for (i64 k = n - 3; k >= 0; --k) {
        const double* v = a + k * n;
        double along = 0;
        for (i64 c = k / 32 * 32 + lane; c < n; c += 32)
          if (c > k) along = fma(v[c], row[c], along);
        along = warp_sum(along);
        for (i64 c = k / 32 * 32 + lane; c < n; c += 32)
          if (c > k) row[c] = fma(-along, v[c], row[c]);
      }
      const double mine = d[r];
      double higher = 0;
      for (i64 j = lane; j < n; j += 32) higher += d[j] > mine || (d[j] == mine && j < r);
      const i64 rank = (i64)warp_sum(higher);
      if (lane == 0) values[side.values + rank] = (float)fmax(mine, 0.);
      for (i64 c = lane; c < n; c += 32) bases[side.basis + rank * n + c] = (float)row[c];
    }
  }
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
