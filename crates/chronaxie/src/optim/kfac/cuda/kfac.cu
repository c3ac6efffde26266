// kfac: one step over a flat vector, some of whose parameters are linear maps.
//
//   grad, decay [N], seen [F], seen_squares [S] in; parameter, first, second [N], factors [F] (lower triangles), bases [R],
//   values [E], squares [S], averaged [L] in place; rate, step, largest [1]; X, T, U [H, A] of every map
//
//   squares   run of the gradient: sum of squares (stepper.cuh)
//   look      run of 4096 elements of a map's A, G or squares of the batch: whether they are finite
//   mix       the same: the averages move by what was seen, where all of A and G, or of the squares, is
//   eigen, inverse   a side of a map whose turn it is (solve.cu)
//   gather    run of 4096 elements of a map: X = scale grad (+ pull decay parameter)
//   before    tile of 64 x 64 of a map: T = Qg X, or T = Qg^T U, or with factored damping T = G^-1 X
//   divide    tile of 64 x 64: U = (T Qa^T) / (lg la^T + l); with EKFAC by the squares, which turns reset
//   after     tile of 64 x 64: U = T Qa, or U = T A^-1; sum of U X over the tile
//   bound     one block: what the step is made shorter by, from the tiles' sums in their order
//   move      run of 4096 elements of a map: the sum of steps and the parameter
//   others    run of 4096 elements of a parameter that is no map: AdamW's step
//
// Floors: 24 bytes an element of its state, 12 of a factor's, 4 of a basis's, 12 of squares; here, as no product keeps its tile for
// the next one, 52 an element more (36 with factored damping). Four products are 4 (H + A) operations an element, two 2 (H + A): of 24
// layers of width 1024 with 350 M elements 2.9 TFLOP, 56 ms at 51 TFLOP/s of f32, against 15 GB, 3.6 ms at 4.28 TB/s, and 18 GB
// more: products bind. These are the simplest right tiles; split precision on tensor cores is what would be faster.
// No atomics on a result, and nothing returns to the host: turns follow from the step in device memory.
#include "maps.cuh"

// A run of elements of part `part` of map `map`: 0 of A, 1 of G, 2 of the squares.
struct Run {
  i64 map, at, begin, end;
  int part;
};
__device__ __forceinline__ Run run_of(const Map* maps, const i64* first, int count) {
  const int entry = entry_of(first, count, blockIdx.x);
  const Map& m = maps[entry / 3];
  Run r = {entry / 3, 0, (blockIdx.x - first[entry]) * kChunk, 0, entry % 3};
  const i64 n = r.part == 0 ? triangle(m.inputs) : r.part == 1 ? triangle(m.rows) : m.rows * m.inputs;
  r.at = r.part == 0 ? m.a : r.part == 1 ? m.g : m.squares;
  r.end = min(n, r.begin + kChunk);
  return r;
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    look(const Map* maps, const i64* first, const float* seen, const float* seen_squares, const float* averaged, const int* step,
         float* before, int* bad, int count, int every) {
  if ((*step - 1) % every != 0) return;
  const Run r = run_of(maps, first, count);
  const float* from = (r.part == 2 ? seen_squares : seen) + r.at;
  bool any = false;
  for (i64 e = r.begin + threadIdx.x; e < r.end; e += kThreads) any |= !isfinite(from[e]);
  any = __syncthreads_or(any);
  if (threadIdx.x == 0) {
    bad[blockIdx.x] = any;
    // The count as it is before anybody moves it.
    if (r.part == 0 && r.begin == 0) before[r.map] = averaged[r.map];
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    mix(const Map* maps, const i64* first, const float* seen, const float* seen_squares, const float* before, const int* bad,
        const int* step, float* factors, float* squares, float* averaged, int count, int every, double decay) {
  if ((*step - 1) % every != 0) return;
  const Run r = run_of(maps, first, count);
  const i64 *of = first + 3 * r.map, from = r.part == 2 ? of[2] : of[0], end = r.part == 2 ? of[3] : of[2];
  bool any = false;
  for (i64 k = from + threadIdx.x; k < end; k += kThreads) any |= bad[k] != 0;
  if (__syncthreads_or(any)) return;
  const double batches = before[r.map], ramp = batches / (batches + 1);
  const double keeps = r.part == 2 ? decay : fmin(ramp, decay);
  const float keep = (float)keeps, add = (float)(1 - keeps);
  const float* x = (r.part == 2 ? seen_squares : seen) + r.at;
  float* to = (r.part == 2 ? squares : factors) + r.at;
  for (i64 e = r.begin + threadIdx.x; e < r.end; e += kThreads) to[e] = fmaf(x[e], add, to[e] * keep);
  if (r.part == 0 && r.begin == 0 && threadIdx.x == 0) averaged[r.map] = (float)(batches + 1);
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    gather(const Map* maps, const i64* first, const float* grad, const float* decay, const float* parameter,
           const double* partials, float* x, float* grad_norm, float* scales, int count, int runs, double clip, float pull) {
  __shared__ double slots[kWarps];
  const double norm = folded(partials, runs, slots);
  const float scale = clip > 0. && norm > clip ? (float)(clip / norm) : 1.f;
  if (blockIdx.x == 0 && threadIdx.x == 0) grad_norm[0] = (float)norm, scales[0] = scale;
  if (count == 0) return;
  const int l = entry_of(first, count, blockIdx.x);
  const Map& m = maps[l];
  const i64 begin = (blockIdx.x - first[l]) * kChunk, end = min(m.rows * m.inputs, begin + kChunk);
  for (i64 e = begin + threadIdx.x; e < end; e += kThreads) {
    const i64 n = element(m, e);
    x[m.start + e] = fmaf(pull * decay[n], parameter[n], grad[n] * scale);
  }
}

// A tile of [H, A] of a map.
struct Tile {
  int map;
  i64 row, column;
};
__device__ __forceinline__ Tile tile_of(const Map* maps, const i64* first, int count) {
  const int l = entry_of(first, count, blockIdx.x);
  const i64 across = (maps[l].inputs + kTile - 1) / kTile, t = blockIdx.x - first[l];
  return {l, t / across * kTile, t % across * kTile};
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    before(const Map* maps, const i64* first, const float* bases, const float* from, float* to, int count, int back) {
  __shared__ __align__(16) Stage s;
  const Tile at = tile_of(maps, first, count);
  const Map& m = maps[at.map];
  const i64 h = m.rows, n = m.inputs;
  const float *q = bases + m.basis_g, *x = from + m.start;
  auto right = [&](i64 k, int j) { return at.column + j < n ? x[k * n + at.column + j] : 0.f; };
  float acc[4][4] = {};
  if (back) tile(acc, s, h, [&](i64 k, int i) { return at.row + i < h ? q[k * h + at.row + i] : 0.f; }, false, right, false);
  else tile(acc, s, h, [&](i64 k, int i) { return at.row + i < h ? q[(at.row + i) * h + k] : 0.f; }, true, right, false);
#pragma unroll
  for (int e = 0; e < 16; ++e) {
    const i64 i = at.row + threadIdx.x / 16 * 4 + e / 4, j = at.column + threadIdx.x % 16 * 4 + e % 4;
    if (i < h && j < n) to[m.start + i * n + j] = acc[e / 4][e % 4];
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    divide(const Map* maps, const i64* first, const float* bases, const float* values, const int* step, const float* from,
           float* squares, float* to, int count, int every, int ekfac, float damping) {
  __shared__ __align__(16) Stage s;
  const Tile at = tile_of(maps, first, count);
  const Map& m = maps[at.map];
  const i64 h = m.rows, n = m.inputs;
  const float *q = bases + m.basis_a, *t = from + m.start;
  float acc[4][4] = {};
  tile(acc, s, n, [&](i64 k, int i) { return at.row + i < h ? t[(at.row + i) * n + k] : 0.f; }, true,
       [&](i64 k, int j) { return at.column + j < n ? q[(at.column + j) * n + k] : 0.f; }, true);
  const bool resets = ekfac && due(*step, at.map, every);
#pragma unroll
  for (int e = 0; e < 16; ++e) {
    const i64 i = at.row + threadIdx.x / 16 * 4 + e / 4, j = at.column + threadIdx.x % 16 * 4 + e % 4;
    if (i >= h || j >= n) continue;
    float curvature = values[m.values_g + i] * values[m.values_a + j];
    if (resets) squares[m.squares + i * n + j] = curvature;
    else if (ekfac) curvature = squares[m.squares + i * n + j];
    to[m.start + i * n + j] = acc[e / 4][e % 4] / (curvature + damping);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    after(const Map* maps, const i64* first, const float* bases, const float* from, const float* x, float* to,
          double* agreements, int count) {
  __shared__ __align__(16) Stage s;
  __shared__ double slots[kWarps];
  const Tile at = tile_of(maps, first, count);
  const Map& m = maps[at.map];
  const i64 h = m.rows, n = m.inputs;
  const float *q = bases + m.basis_a, *t = from + m.start;
  float acc[4][4] = {};
  tile(acc, s, n, [&](i64 k, int i) { return at.row + i < h ? t[(at.row + i) * n + k] : 0.f; }, true,
       [&](i64 k, int j) { return at.column + j < n ? q[k * n + at.column + j] : 0.f; }, false);
  double sum = 0;
#pragma unroll
  for (int e = 0; e < 16; ++e) {
    const i64 i = at.row + threadIdx.x / 16 * 4 + e / 4, j = at.column + threadIdx.x % 16 * 4 + e % 4;
    if (i >= h || j >= n) continue;
    const float u = acc[e / 4][e % 4];
    to[m.start + i * n + j] = u;
    sum = fma((double)u, (double)x[m.start + i * n + j], sum);
  }
  sum = block_sum(sum, slots);
  if (threadIdx.x == 0) agreements[blockIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    bound(const double* agreements, const float* rate, float* scales, i64 count, double kl_clip) {
  __shared__ double slots[kWarps];
  double sum = 0;
  for (i64 k = threadIdx.x; k < count; k += kThreads) sum += agreements[k];
  sum = block_sum(sum, slots);
  const double r = rate[0];
  // A NaN has no part in either of these.
  if (threadIdx.x == 0) scales[1] = kl_clip == 0 ? 1.f : (float)fmin(sqrt(kl_clip / fmax(r * r * sum, 1e-30)), 1.);
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    move(const Map* maps, const i64* first, const float* u, const float* decay, const float* rate, const float* largest,
         const float* scales, float* parameter, float* sum, int count, int mode, double weight_decay, float momentum) {
  const int l = entry_of(first, count, blockIdx.x);
  const Map& m = maps[l];
  const float speed = rate[0], shorter = scales[1], shrink = shrink_of(mode, weight_decay, speed, largest[0]);
  const i64 begin = (blockIdx.x - first[l]) * kChunk, end = min(m.rows * m.inputs, begin + kChunk);
  for (i64 e = begin + threadIdx.x; e < end; e += kThreads) {
    const i64 n = element(m, e);
    const float v = fmaf(shorter, u[m.start + e], momentum * sum[n]), w = parameter[n];
    sum[n] = v;
    parameter[n] = w - fmaf(speed, v, w * decay[n] * shrink);
  }
}

// A parameter that is no map.
struct Other {
  i64 first, count;
};

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    others(const Other* list, const i64* first_chunk, const float* grad, const float* decay, const float* rate,
           const float* scales, const int* step, float* parameter, float* first, float* second, int count, double ln_beta1,
           double ln_beta2, float beta1, float rest1, float beta2, float rest2, double part, double weight_decay, float epsilon) {
  const int o = entry_of(first_chunk, count, blockIdx.x);
  const double own = rate[0] * part;
  const float speed = (float)own, shrink = (float)(own * weight_decay), scale = scales[0];
  const float c1 = (float)(1 / correction(ln_beta1, *step)), c2 = (float)(1 / correction(ln_beta2, *step));
  const i64 begin = (blockIdx.x - first_chunk[o]) * kChunk, end = min(list[o].count, begin + kChunk);
  for (i64 e = begin + threadIdx.x; e < end; e += kThreads) {
    const i64 n = list[o].first + e;
    const float g = grad[n] * scale, w = parameter[n];
    const float m = fmaf(rest1, g, beta1 * first[n]), v = fmaf(rest2, g * g, beta2 * second[n]);
    first[n] = m, second[n] = v;
    parameter[n] = w - fmaf(speed, m * c1 / (sqrtf(v * c2) + epsilon), w * decay[n] * shrink);
  }
}
