// kfac_factors: second moments of what a linear map reads and of the gradients of what it gives, over all samples.
//
//   x [B, G, T, D / G], grad [B, K, T, H / K], lengths [B]; bases [A, A], [H, H]
//   a, g: lower triangles, of orders A = D (+ 1, a one) and H; squares [H, A]
//
// A sample is a step that is no padding, n = b T + t; padding is never read and counts as 0. Of `reduce` it is a row, whose mean
// and sum are made first.
//
//   count   one block: what A is divided by and G is multiplied by
//   pool    channel of a row, a thread or a warp: its mean or sum over the steps, of f64 [B, A], [B, H]
//   turn    tile of 64 samples x 64 rows of a basis: (q . x)^2 [N, A], [N, H]
//   sums    tile of 64 x 64 of a triangle or of the squares, over one run of samples
//   fold    element: the runs' sums in their order, of f64, times their scale
//
// Floors: 4 bytes of each input and output once, 4 B T (D + H) + 2 (A^2 + H^2); B T (A^2 + H^2) operations of the triangles, and
// 2 B T (A^2 + A H + H^2) more of squares. At B = 32, T = 64, D = H = 256: 4.5 MB, 1.1 us at 4.28 TB/s; 0.27 GFLOP, 5.3 us at 51
// TFLOP/s of f32, which is what binds. What it does read: of a triangle's tiles 64 columns twice for each, from L2; and runs' sums
// [runs, tiles, 64, 64] are written and read once, which is why there are few of them. A tile across the diagonal is made whole.
// Squares write and read what was turned, 8 B T (A + H) bytes. No atomics; what is summed in which order follows from sizes alone.
#include "channels.cuh"

// Where sample n < end begins on both sides; -1 of padding.
__device__ __forceinline__ bool begin(const Side& left, const Side& right, const int* lengths, i64 n, i64 end, i64* at_left,
                                      i64* at_right) {
  i64 b = 0, t = 0;
  bool live = n < end;
  if (live) {
    b = n / left.steps, t = n - b * left.steps;
    live = !lengths || t < lengths[b];
  }
  *at_left = live ? b * left.steps * left.count + t * left.width : -1;
  *at_right = live ? b * right.steps * right.count + t * right.width : -1;
  return live;
}

// counts: 1 / max(1, samples), terms of the loss. Rows and positions are integers: their order is anybody's.
extern "C" __global__ void __launch_bounds__(kThreads, 4)
    count(const int* lengths, double* counts, i64 batch, i64 steps, int reduces, int by_row) {
  __shared__ double slots[kWarps];
  double rows = 0, positions = 0;
  for (i64 b = threadIdx.x; b < batch; b += kThreads) {
    const i64 len = min((i64)max(lengths[b], 0), steps);
    rows += len > 0, positions += (double)len;
  }
  rows = block_sum(rows, slots), positions = block_sum(positions, slots);
  if (threadIdx.x == 0) {
    counts[0] = 1 / fmax(reduces ? rows : positions, 1.);
    counts[1] = by_row ? rows : positions;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    pool(const float* of, const int* lengths, float* pooled, i64 steps, int count, int width, int columns, int mean, int lanes) {
  const Side s = {of, steps, count, width, columns};
  const i64 b = blockIdx.x;
  const int c = blockIdx.y * (kThreads / lanes) + threadIdx.x / lanes, lane = threadIdx.x % lanes;
  const i64 len = min((i64)max(lengths[b], 0), steps), place = place_of(s, c);
  double sum = 0;
  if (place >= 0)
    for (i64 t = lane; t < len; t += lanes) sum += of[b * steps * count + t * width + place];
  if (lanes == 32)
    for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
  if (lane != 0 || place == kBeyond) return;
  if (place == kOne) sum = len > 0;
  else if (mean && len > 0) sum /= (double)len;
  pooled[b * columns + c] = (float)sum;
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    turn(const float* of, const int* lengths, const float* basis, float* turned, i64 rows, i64 steps, int count, int width,
         int columns) {
  __shared__ __align__(16) Stage stage;
  __shared__ i64 at[kTile];
  const Side s = {of, steps, count, width, columns};
  const i64 first = blockIdx.x * (i64)kTile, n = columns;
  const int column = blockIdx.y * kTile;
  if (threadIdx.x < kTile) {
    i64 mine, same;
    begin(s, s, lengths, first + threadIdx.x, rows, &mine, &same);
    at[threadIdx.x] = mine;
  }
  __syncthreads();
  auto sample = [&](i64 k, int i) { return value(s, at[i], place_of(s, k)); };
  auto vector = [&](i64 k, int j) { return column + j < columns ? basis[(column + j) * n + k] : 0.f; };
  float acc[4][4] = {};
  if (width == 1) tile(acc, stage, n, sample, false, vector, true);
  else tile(acc, stage, n, sample, true, vector, true);
#pragma unroll
  for (int e = 0; e < 16; ++e) {
    const i64 i = first + threadIdx.x / 16 * 4 + e / 4;
    const int j = column + threadIdx.x % 16 * 4 + e % 4;
    if (i < rows && j < columns) turned[i * n + j] = acc[e / 4][e % 4] * acc[e / 4][e % 4];
  }
}

// Which of the tiles of A's triangle, G's, and the squares number `t` is.
struct Which {
  int matrix;
  i64 row, column;
};
__device__ __forceinline__ Which which_of(i64 t, int tiles_a, int tiles_g, int across) {
  Which w = {0, 0, 0};
  if (t >= tiles_a) w.matrix = 1, t -= tiles_a;
  if (w.matrix == 1 && t >= tiles_g) {
    t -= tiles_g;
    return {2, t / across * kTile, t % across * kTile};
  }
  i64 ti = 0;
  while (t > ti) t -= ++ti;
  w.row = ti * kTile, w.column = t * kTile;
  return w;
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    sums(const float* x, const float* grad, const float* turned_x, const float* turned_g, const int* lengths, float* partial,
         i64 rows, i64 steps, i64 run, int tiles_a, int tiles_g, int from_count, int from_width, int to_count, int to_width,
         int inputs) {
  __shared__ __align__(16) Stage stage;
  __shared__ i64 at_left[kThreads], at_right[kThreads], of_left[kTile], of_right[kTile];
  const Which w = which_of(blockIdx.x, tiles_a, tiles_g, (inputs + kTile - 1) / kTile);
  const Side of_x = {x, steps, from_count, from_width, inputs}, of_g = {grad, steps, to_count, to_width, to_count};
  const Side squares_x = {turned_x, steps, inputs, inputs, inputs}, squares_g = {turned_g, steps, to_count, to_count, to_count};
  const Side left = w.matrix == 0 ? of_x : w.matrix == 1 ? of_g : squares_g;
  const Side right = w.matrix == 0 ? of_x : w.matrix == 1 ? of_g : squares_x;
  if (threadIdx.x < kTile) {
    of_left[threadIdx.x] = place_of(left, w.row + threadIdx.x);
    of_right[threadIdx.x] = place_of(right, w.column + threadIdx.x);
  }
  const i64 first = blockIdx.y * run, end = min(rows, first + run);
  auto one = [&](i64 k, int i) { return value(left, at_left[k], of_left[i]); };
  auto other = [&](i64 k, int j) { return value(right, at_right[k], of_right[j]); };
  // Which index is the faster one in memory.
  const bool along = left.width == 1 && w.matrix < 2;
  float acc[4][4] = {};
  for (i64 n = first; n < end; n += kThreads) {
    __syncthreads();
    const bool live = begin(left, right, lengths, n + threadIdx.x, end, &at_left[threadIdx.x], &at_right[threadIdx.x]);
    if (!__syncthreads_or(live)) continue;
    // Sums of sums: an error grows with the roots of 256 and of how often there are as many.
    float some[4][4] = {};
    tile(some, stage, min((i64)kThreads, end - n), one, along, other, along);
#pragma unroll
    for (int e = 0; e < 16; ++e) acc[e / 4][e % 4] += some[e / 4][e % 4];
  }
  float* to = partial + (blockIdx.y * (i64)gridDim.x + blockIdx.x) * (kTile * kTile);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    *(float4*)&to[(threadIdx.x / 16 * 4 + i) * kTile + threadIdx.x % 16 * 4] =
        make_float4(acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    fold(const float* partial, const double* counts, float* a, float* g, float* squares, i64 tiles, int runs, int tiles_a,
         int tiles_g, int inputs, int outputs) {
  const i64 e = blockIdx.x * (i64)kThreads + threadIdx.x, stride = tiles * (kTile * kTile);
  const Which w = which_of(e / (kTile * kTile), tiles_a, tiles_g, (inputs + kTile - 1) / kTile);
  const i64 i = w.row + e % (kTile * kTile) / kTile, j = w.column + e % kTile;
  const i64 height = w.matrix == 0 ? inputs : outputs;
  if (i >= height || (w.matrix == 2 ? j >= inputs : j > i)) return;
  double sum = 0;
  for (int r = 0; r < runs; ++r) sum += partial[r * stride + e];
  const float made = (float)(sum * counts[w.matrix > 0]);
  if (w.matrix == 2) squares[i * inputs + j] = made;
  else (w.matrix == 0 ? a : g)[i * (i + 1) / 2 + j] = made;
}
