// Bases of factors: eigenvectors of the first ones, then Q <- QR(L Q), for the matrices of one size whose turn it is: a batch of
// [rows, n, n], whose row y is the member of the pool that a table says for this step (none: every kernel passes over it).
//
//   stretch   tile of 64 x 64: s = (L Q)^T; a column of the new basis is a row of s [rows, n, n] until the end
//   values    column: the estimate q . L q of its eigenvalue; s over the power of two in its length
//   order     matrix: columns by falling estimates; where one is not finite, or L is 0, the basis stays
//   then for each panel of 64 columns in that order, twice:
//   dots      tile of 64 x 64: c = panel against the columns that there are
//   project   tile of 64 x 64: panel -= c of them
//   cholesky  matrix: L L^T = the panel's Gram matrix, of f64; a column is spent where next to nothing of it is left
//   solve     row of the basis: panel = L^-1 panel, by substitution, a spent column is 0
//   and
//   refill    matrix: what is spent goes on as the old basis had it, at right angles to all others, a panel at a time
//   fill      matrix: what was in the others' span there too goes on as a unit vector
//   keep      tile of 64 x 64: the basis
//
// At the first step eigen.cu stands for the first three: its rows are eigenvectors, of which the panels have roundings of f32 to take away.
//
// This is CholeskyQR inside of a panel and Gram-Schmidt between panels, each twice: both are products. What is at right angles to the
// others to no more than its roundings shows in the second pass, where less than half of it is left, and is spent too: no column is
// kept unchecked. Householder's reflections need n steps after each other, each of which reads all that is left of the matrix.
//
// Floors of a matrix: its factor and basis in and the basis out, 10 n^2 bytes; 2 n^3 operations of the product and 4 n^3 of the
// panels: 6 GFLOP at n = 1024, 0.13 ms at 51 TFLOP/s of f32 on the whole GPU, 0.1 GFLOP at 256. What it does read: each pass of panel p
// the p panels before it twice, n^3 / 8 bytes in all, 134 MB at 1024, from L2 as far as the batch fits. `cholesky` is one block a
// matrix, 64 steps after each other; at 1024 there are 32 passes of four kernels: some ms, whatever the batch.
#include "stepper.cuh"

constexpr int kPanel = kTile;
// Squared: what is left of a column's length after the first pass, below which it is the rounding of f32 in its product; and after the
// second, of a column of length 1.
constexpr double kSpent = 1e-12, kSecond = 0.25;

__device__ __forceinline__ i64 packed(i64 i, i64 j) { return i >= j ? i * (i + 1) / 2 + j : j * (j + 1) / 2 + i; }

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    stretch(const i64* factor_at, const i64* due, const float* factors, const float* bases, const int* step, float* s, int n,
            int every) {
  __shared__ __align__(16) Stage stage;
  const i64 which = member(due, step, every, 0);
  if (which < 0) return;
  const float *factor = factors + factor_at[which], *q = bases + which * n * n;
  const int tiles = (n + kTile - 1) / kTile, row = blockIdx.x / tiles * kTile, column = blockIdx.x % tiles * kTile;
  float acc[4][4] = {};
  // A triangle is read along its rows: from the left of the diagonal's tile along j, from there on along i.
  tile(acc, stage, column, [&](i64 j, int k) { return row + k < n ? q[j * n + row + k] : 0.f; }, false,
       [&](i64 j, int i) { return column + i < n ? factor[packed(column + i, j)] : 0.f; }, true);
  tile(acc, stage, n - column, [&](i64 j, int k) { return row + k < n ? q[(column + j) * n + row + k] : 0.f; }, false,
       [&](i64 j, int i) { return column + i < n ? factor[packed(column + j, column + i)] : 0.f; }, false);
#pragma unroll
  for (int e = 0; e < 16; ++e) {
    const i64 k = row + threadIdx.x / 16 * 4 + e / 4, i = column + threadIdx.x % 16 * 4 + e % 4;
    if (k < n && i < n) s[(blockIdx.y * (i64)n + k) * n + i] = acc[e / 4][e % 4];
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    values(const i64* due, const float* bases, const int* step, float* s, double* values, double* lengths, int n, int every) {
  const i64 which = member(due, step, every, 0);
  const int k = blockIdx.x * kWarps + threadIdx.x / 32;
  if (which < 0 || k >= n) return;
  const float* q = bases + which * n * n;
  const i64 at = blockIdx.y * (i64)n + k;
  float* row = s + at * n;
  double value = 0, square = 0;
  for (int i = threadIdx.x % 32; i < n; i += 32) {
    const double x = row[i];
    value = fma((double)q[(i64)i * n + k], x, value), square = fma(x, x, square);
  }
  value = warp_sum(value), square = warp_sum(square);
  // An exact division: columns come to lengths of 1 to 2, however small gradients are.
  const double unit = __longlong_as_double(__double_as_longlong(sqrt(square)) & 0x7ff0000000000000ll);
  const double scale = unit > 0 ? 1 / unit : 0.;
  for (int i = threadIdx.x % 32; i < n; i += 32) row[i] = (float)(row[i] * scale);
  if (threadIdx.x % 32 == 0) values[at] = value, lengths[at] = square * scale * scale;
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    order(const i64* due, const int* step, const double* values, const double* lengths, int* order, int* live, int* spent, int n,
          int every) {
  __shared__ double others[kThreads];
  const i64 which = member(due, step, every, 0), at = blockIdx.y * (i64)n;
  bool bad = which < 0, any = false;
  for (int k = threadIdx.x; k < n && !bad; k += kThreads) {
    bad = !isfinite(values[at + k]) || !isfinite(lengths[at + k]);
    any |= lengths[at + k] > 0;
  }
  bad = __syncthreads_or(bad) || !__syncthreads_or(any);
  if (threadIdx.x == 0) live[blockIdx.y] = !bad;
  if (bad) return;
  for (int first = 0; first < n; first += kThreads) {
    const int k = first + threadIdx.x;
    const double mine = k < n ? values[at + k] : 0.;
    int rank = 0;
    for (int from = 0; from < n; from += kThreads) {
      const int count = min(kThreads, n - from);
      __syncthreads();
      if (threadIdx.x < count) others[threadIdx.x] = values[at + from + threadIdx.x];
      __syncthreads();
      for (int j = 0; j < count; ++j) rank += others[j] > mine || (others[j] == mine && from + j < k);
    }
    if (k < n) order[at + rank] = k, spent[at + k] = 0;
  }
}

// Where the rows of a panel begin in s.
struct Panel {
  i64 at[kPanel];
};
// The rows `list[first ..]`, or from `first` on; returns how many there are.
__device__ __forceinline__ int load(Panel& panel, const int* list, int first, int n, int count) {
  const int width = min(kPanel, count - first);
  __syncthreads();
  if (threadIdx.x < width) panel.at[threadIdx.x] = (i64)(list ? list[first + threadIdx.x] : first + threadIdx.x) * n;
  __syncthreads();
  return width;
}

// acc = panel x others^T.
__device__ __forceinline__ void against(float (&acc)[4][4], Stage& stage, const float* s, const Panel& mine, int width,
                                        const Panel& others, int most, int n) {
  tile(acc, stage, n, [&](i64 i, int w) { return w < width ? s[mine.at[w] + i] : 0.f; }, true,
       [&](i64 i, int j) { return j < most ? s[others.at[j] + i] : 0.f; }, true);
}

// Of columns `column` on: panel -= c [64, n] x the rows `list[.. depth]`, or the first `depth` ones.
__device__ __forceinline__ void subtract(Stage& stage, float* s, const Panel& mine, int width, const float* c, const int* list,
                                         int depth, int column, int n) {
  float acc[4][4] = {};
  tile(acc, stage, depth, [&](i64 j, int w) { return c[(i64)w * n + j]; }, true,
       [&](i64 j, int i) { return column + i < n ? s[(list ? list[j] : j) * n + column + i] : 0.f; }, false);
#pragma unroll
  for (int e = 0; e < 16; ++e) {
    const int w = threadIdx.x / 16 * 4 + e / 4, i = column + threadIdx.x % 16 * 4 + e % 4;
    if (w < width && i < n) s[mine.at[w] + i] -= acc[e / 4][e % 4];
  }
}

struct Pivots {
  float stage[kDepth][kPanel + 4];
  double column[2][kPanel];  // the pivot's, of the step and of the next one
};

// out [64, 64] = the triangle L of the panel's Gram matrix; columns that are spent are 0 in it.
__device__ __forceinline__ void factorize(Pivots& p, float* out, const float* s, const Panel& mine, int width, int n, int second,
                                          const double* lengths, int* spent) {
  const int row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
  constexpr int each = kDepth * kPanel / kThreads;
  float next[each];
  auto fetch = [&](int k0) {
#pragma unroll
    for (int t = 0; t < each; ++t) {
      const int e = threadIdx.x + t * kThreads, k = k0 + e % kDepth, w = e / kDepth;
      next[t] = k < n && w < width ? s[mine.at[w] + k] : 0.f;
    }
  };
  double g[4][4] = {};
  fetch(0);
  for (int k0 = 0; k0 < n; k0 += kDepth) {
    __syncthreads();
#pragma unroll
    for (int t = 0; t < each; ++t) {
      const int e = threadIdx.x + t * kThreads;
      p.stage[e % kDepth][e / kDepth] = next[t];
    }
    __syncthreads();
    if (k0 + kDepth < n) fetch(k0 + kDepth);
#pragma unroll 4
    for (int k = 0; k < kDepth; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) g[i][j] = fma((double)p.stage[k][row + i], (double)p.stage[k][column + j], g[i][j]);
  }
  // Step k takes the outer product of column k off what is right of it, which each thread has in registers: columns stay undivided, so
  // that there is one barrier a step. A column that is spent takes nothing off.
  auto publish = [&](int k) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (column + j == k) p.column[k % 2][row + i] = g[i][j];
  };
  publish(0);
  for (int k = 0; k < width; ++k) {
    __syncthreads();
    const double *now = p.column[k % 2], d = now[k];
    const i64 at = mine.at[k] / n;
    const bool good = d > (second ? kSecond : kSpent * (lengths ? lengths[at] : 1.));
    const double part = good ? 1 / d : 0.;
    double right[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) right[j] = now[column + j];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const double left = -now[row + i] * part;
#pragma unroll
      for (int j = 0; j < 4; ++j) g[i][j] = fma(left, right[j], g[i][j]);
    }
    if (k + 1 < width) publish(k + 1);
    if (threadIdx.x < kPanel) {
      const int i = threadIdx.x;
      out[i * kPanel + k] = good && i >= k && i < width ? (float)(now[i] / sqrt(d)) : 0.f;
    }
    if (!good && threadIdx.x == 0) spent[at] = 1;
  }
  __syncthreads();
}

// Column i of the panel: x = L^-1 x, a row that is spent is 0.
__device__ __forceinline__ void substitute(float* column, const Panel& mine, int width, const float (*l)[kPanel]) {
  float x[kPanel];
#pragma unroll
  for (int w = 0; w < kPanel; ++w) {
    x[w] = 0.f;
    if (w >= width) continue;
    float sum = column[mine.at[w]];
#pragma unroll
    for (int v = 0; v < w; ++v) sum = fmaf(-l[w][v], x[v], sum);
    x[w] = l[w][w] > 0 ? sum / l[w][w] : 0.f;
    column[mine.at[w]] = x[w];
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    dots(const float* s, const int* order, const int* live, float* c, int n, int first) {
  __shared__ __align__(16) Stage stage;
  __shared__ Panel mine, others;
  if (!live[blockIdx.y]) return;
  const int* list = order + blockIdx.y * (i64)n;
  const int width = load(mine, list, first, n, n);
  load(others, list, blockIdx.x * kPanel, n, n);
  float acc[4][4] = {};
  against(acc, stage, s + blockIdx.y * (i64)n * n, mine, width, others, kPanel, n);
#pragma unroll
  for (int e = 0; e < 16; ++e) {
    const int w = threadIdx.x / 16 * 4 + e / 4, j = threadIdx.x % 16 * 4 + e % 4;
    c[(blockIdx.y * (i64)kPanel + w) * n + blockIdx.x * kPanel + j] = acc[e / 4][e % 4];
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    project(float* s, const int* order, const int* live, const float* c, int n, int first) {
  __shared__ __align__(16) Stage stage;
  __shared__ Panel mine;
  if (!live[blockIdx.y]) return;
  const int* list = order + blockIdx.y * (i64)n;
  const int width = load(mine, list, first, n, n);
  subtract(stage, s + blockIdx.y * (i64)n * n, mine, width, c + blockIdx.y * (i64)kPanel * n, list, first, blockIdx.x * kTile, n);
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    cholesky(const float* s, const int* order, const int* live, const double* lengths, int* spent, float* triangle, int n,
             int first, int second) {
  __shared__ Pivots pivots;
  __shared__ Panel mine;
  if (!live[blockIdx.y]) return;
  const int width = load(mine, order + blockIdx.y * (i64)n, first, n, n);
  factorize(pivots, triangle + blockIdx.y * (i64)kPanel * kPanel, s + blockIdx.y * (i64)n * n, mine, width, n, second,
            lengths + blockIdx.y * (i64)n, spent + blockIdx.y * (i64)n);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    solve(float* s, const int* order, const int* live, const float* triangle, int n, int first) {
  __shared__ __align__(16) float l[kPanel][kPanel];
  __shared__ Panel mine;
  if (!live[blockIdx.y]) return;
  const int width = load(mine, order + blockIdx.y * (i64)n, first, n, n), i = blockIdx.x * kThreads + threadIdx.x;
  for (int e = threadIdx.x; e < kPanel * width; e += kThreads)
    l[e / width][e % width] = triangle[blockIdx.y * (i64)kPanel * kPanel + e / width * kPanel + e % width];
  __syncthreads();
  if (i < n) substitute(s + blockIdx.y * (i64)n * n + i, mine, width, l);
}

// Old columns in the place of those that are spent, a panel at a time, by one block: a matrix of rank r has n - r of them, which
// are 4 n^2 (n - r) operations; 30 ms of a multiprocessor where n is 1024 and r is small. Those that are in the others' span stay spent.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    refill(const i64* due, const float* bases, const int* step, float* s, const int* order, const int* live, int* spent,
           int* places, float* along, int n, int every) {
  __shared__ __align__(16) Stage stage;
  __shared__ __align__(16) float l[kPanel][kPanel];
  __shared__ Pivots pivots;
  __shared__ Panel mine, others;
  __shared__ int found;
  if (!live[blockIdx.y]) return;
  const i64 at = blockIdx.y * (i64)n;
  bool any = false;
  for (int k = threadIdx.x; k < n; k += kThreads) any |= spent[at + k] != 0;
  if (!__syncthreads_or(any)) return;
  const float* q = bases + member(due, step, every, 0) * n * n;
  float *made = s + at * n, *c = along + blockIdx.y * (i64)kPanel * n;
  int* list = places + at;
  if (threadIdx.x == 0) {
    found = 0;
    for (int p = 0; p < n; ++p)
      if (spent[at + order[at + p]]) list[found++] = order[at + p];
  }
  __syncthreads();
  const int count = found;
  for (int first = 0; first < count; first += kPanel) {
    const int width = load(mine, list, first, n, count);
    for (int e = threadIdx.x; e < width * n; e += kThreads) {
      const int w = e % width, i = e / width;
      made[mine.at[w] + i] = q[i * (i64)n + mine.at[w] / n];
    }
    // 2: in this panel, and nobody's other.
    if (threadIdx.x < width) spent[at + mine.at[threadIdx.x] / n] = 2;
    for (int second = 0; second < 2; ++second) {
      for (int j0 = 0; j0 < n; j0 += kPanel) {
        const int most = load(others, nullptr, j0, n, n);
        float acc[4][4] = {};
        against(acc, stage, made, mine, width, others, most, n);
#pragma unroll
        for (int e = 0; e < 16; ++e) {
          const int w = threadIdx.x / 16 * 4 + e / 4, j = threadIdx.x % 16 * 4 + e % 4;
          if (j < most) c[(i64)w * n + j0 + j] = spent[at + j0 + j] == 2 ? 0.f : acc[e / 4][e % 4];
        }
      }
      __syncthreads();
      for (int column = 0; column < n; column += kTile) subtract(stage, made, mine, width, c, nullptr, n, column, n);
      __syncthreads();
      factorize(pivots, &l[0][0], made, mine, width, n, second, nullptr, spent + at);
      for (int i0 = 0; i0 < n; i0 += kThreads) {
        if (i0 + threadIdx.x < n) substitute(made + i0 + threadIdx.x, mine, width, l);
        // Also keeps l out of registers.
        __syncthreads();
      }
    }
    if (threadIdx.x < width && spent[at + mine.at[threadIdx.x] / n] == 2) spent[at + mine.at[threadIdx.x] / n] = 0;
    __syncthreads();
  }
}

// What is spent now too, one after the other, as there are hardly any: unit vectors of which most is not in the
// others' span. Each reads the basis seven times.
extern "C" __global__ void __launch_bounds__(kThreads, 2)
    fill(float* s, const int* order, const int* live, int* spent, double* along, int n) {
  __shared__ double slots[kWarps];
  __shared__ int places[kWarps];
  if (!live[blockIdx.y]) return;
  const i64 first = blockIdx.y * (i64)n;
  bool any = false;
  for (int k = threadIdx.x; k < n; k += kThreads) any |= spent[first + k] != 0;
  if (!__syncthreads_or(any)) return;
  float* made = s + first * n;
  double* c = along + first;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int p = 0; p < n; ++p) {
    const int k = order[first + p];
    if (!spent[first + k]) continue;
    float* v = made + (i64)k * n;
    double least = 2;
    int best = 0;
    for (int i = threadIdx.x; i < n; i += kThreads) {
      double sum = 0;
      for (int j = 0; j < n; ++j) {
        // Spent rows are 0.
        const double x = made[(i64)j * n + i];
        sum = fma(x, x, sum);
      }
      if (sum < least) least = sum, best = i;
    }
    for (int o = 16; o > 0; o /= 2) {
      const double sum = __shfl_xor_sync(~0u, least, o);
      const int at = __shfl_xor_sync(~0u, best, o);
      if (sum < least || (sum == least && at < best)) least = sum, best = at;
    }
    __syncthreads();
    if (lane == 0) slots[warp] = least, places[warp] = best;
    __syncthreads();
    for (int w = 0; w < kWarps; ++w)
      if (slots[w] < least || (slots[w] == least && places[w] < best)) least = slots[w], best = places[w];
    for (int i = threadIdx.x; i < n; i += kThreads) v[i] = i == best ? 1.f : 0.f;
    for (int pass = 0; pass < 3; ++pass) {
      __syncthreads();
      for (int j = warp; j < n; j += kWarps) {
        double sum = 0;
        for (int i = lane; i < n && j != k; i += 32) sum = fma((double)made[(i64)j * n + i], (double)v[i], sum);
        sum = warp_sum(sum);
        if (lane == 0) c[j] = sum;
      }
      __syncthreads();
      double square = 0;
      for (int i = threadIdx.x; i < n; i += kThreads) {
        double x = v[i];
        for (int j = 0; j < n; ++j) x = fma(-c[j], (double)(j == k ? 0.f : made[(i64)j * n + i]), x);
        v[i] = (float)x;
        square = fma(x, x, square);
      }
      square = block_sum(square, slots);
      const double scale = 1 / sqrt(square);
      for (int i = threadIdx.x; i < n; i += kThreads) v[i] = (float)(v[i] * scale);
    }
    __syncthreads();
    if (threadIdx.x == 0) spent[first + k] = 0;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    keep(const i64* due, const float* s, const int* step, const int* live, float* bases, int n, int every) {
  __shared__ float cell[kTile][kTile + 1];
  if (!live[blockIdx.y]) return;
  float* q = bases + member(due, step, every, 0) * n * n;
  const int tiles = (n + kTile - 1) / kTile, row = blockIdx.x / tiles * kTile, column = blockIdx.x % tiles * kTile;
  for (int e = threadIdx.x; e < kTile * kTile; e += kThreads) {
    const int k = row + e / kTile, i = column + e % kTile;
    cell[e / kTile][e % kTile] = k < n && i < n ? s[(blockIdx.y * (i64)n + k) * n + i] : 0.f;
  }
  __syncthreads();
  for (int e = threadIdx.x; e < kTile * kTile; e += kThreads) {
    const int i = column + e / kTile, k = row + e % kTile;
    if (k < n && i < n) q[(i64)i * n + k] = cell[e % kTile][e / kTile];
  }
}
