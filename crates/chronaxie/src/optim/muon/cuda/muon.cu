// muon: one step over a flat vector: momentum of matrices made orthogonal, AdamW's step for the rest.
//
//   grad, decay [N] in; parameter, first, second [N] in place; rate, step, largest [1]
//
//   squares   run of the gradient: sum of squares (stepper.cuh)
//   momentum  run of 4096 elements of a matrix: first, and what is made orthogonal, lying down: x [side, length]
//   adamw     run of 4096 elements of what is no matrix: the whole of its step
//   divide    matrix: x over its norm
//   and `steps` times, a launch each, tiles of 64 x 64 of all matrices together:
//   gram      of a triangle: g = x x^T [side, side]
//   quintic   of a triangle: h = b g + c g g
//   advance   y = a x + h x
//   apply     run of 4096 elements of a matrix: the parameter
//
// Operations of a step: 3 side n + side^3 an iteration of a matrix of n elements: for 24 layers of width 1024 and their words (354 M
// parameters in matrices) 5 iterations are 5.95 TFLOP, 117 ms at 51 TFLOP/s of f32. These tiles are the simplest right ones; on Hopper
// matrices with sides of 128 and more are hopper.cu's. Bytes: 36 an element, 3.0 ms at 4.28 TB/s.
#include "stepper.cuh"

struct Matrix {
  i64 first, rows, columns, side, length, x, g;
};

constexpr float kA = 3.4445f, kB = -4.775f, kC = 2.0315f;

// Where element e of a matrix [rows, columns] lies in x: one that is tall lies down.
__device__ __forceinline__ i64 lying(const Matrix& m, i64 e) {
  return m.rows > m.columns ? e % m.columns * m.rows + e / m.columns : e;
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    momentum(const Matrix* matrices, const i64* first_chunk, const float* grad, const float* decay, const float* parameter,
             const double* partials, float* first, float* x, int count, int runs, double clip, float pull, float keep,
             int nesterov) {
  __shared__ double slots[kWarps];
  const float scale = scale_of(partials, runs, clip, slots, nullptr);
  const int which = entry_of(first_chunk, count, blockIdx.x);
  const Matrix m = matrices[which];
  const i64 begin = (blockIdx.x - first_chunk[which]) * kChunk, end = min(m.rows * m.columns, begin + kChunk);
  for (i64 e = begin + threadIdx.x; e < end; e += kThreads) {
    const i64 n = m.first + e;
    const float g = fmaf(pull * decay[n], parameter[n], grad[n] * scale), v = fmaf(keep, first[n], g);
    first[n] = v;
    x[m.x + lying(m, e)] = nesterov ? fmaf(keep, v, g) : v;
  }
}

// Entries are pairs of a first element and a length. Also for a model without any: the norm is written.
extern "C" __global__ void __launch_bounds__(kThreads, 4)
    adamw(const i64* others, const i64* first_chunk, const float* grad, const float* decay, const float* rate,
          const double* partials, const int* step, float* parameter, float* first, float* second, float* grad_norm, int count,
          int runs, double clip, double part, double ln_beta1, double ln_beta2, float beta1, float beta2, float rest1, float rest2,
          float eps, double weight_decay) {
  __shared__ double slots[kWarps];
  const float scale = scale_of(partials, runs, clip, slots, grad_norm);
  if (count == 0) return;
  const int which = entry_of(first_chunk, count, blockIdx.x);
  const i64 begin = (blockIdx.x - first_chunk[which]) * kChunk, end = min(others[2 * which + 1], begin + kChunk);
  const float c1 = (float)(1. / correction(ln_beta1, *step)), c2 = (float)(1. / correction(ln_beta2, *step));
  const float speed = (float)(rate[0] * part), shrink = (float)(rate[0] * part * weight_decay);
  for (i64 e = begin + threadIdx.x; e < end; e += kThreads) {
    const i64 n = others[2 * which] + e;
    const float g = grad[n] * scale, m = beta1 * first[n] + rest1 * g, v = beta2 * second[n] + rest2 * (g * g);
    first[n] = m, second[n] = v;
    const float w = parameter[n];
    parameter[n] = w - fmaf(speed, m * c1 / (sqrtf(v * c2) + eps), w * decay[n] * shrink);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 4) divide(const Matrix* matrices, float* x) {
  __shared__ double slots[kWarps];
  const Matrix m = matrices[blockIdx.x];
  double sum = 0;
  for (i64 e = threadIdx.x; e < m.side * m.length; e += kThreads) {
    const double v = x[m.x + e];
    sum = fma(v, v, sum);
  }
  const float scale = (float)(1. / (sqrt(block_sum(sum, slots)) + 1e-7));
  for (i64 e = threadIdx.x; e < m.side * m.length; e += kThreads) x[m.x + e] *= scale;
}

// The tile (row, column) of a triangle that job `t` makes.
__device__ __forceinline__ void triangle(i64 t, i64& row, i64& column) {
  i64 i = 0;
  while (t > i) t -= ++i;
  row = i * kTile, column = t * kTile;
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    gram(const Matrix* matrices, const i64* first_tile, const float* x, float* g, int count) {
  __shared__ __align__(16) Stage s;
  const int which = entry_of(first_tile, count, blockIdx.x);
  const Matrix m = matrices[which];
  i64 row, column;
  triangle(blockIdx.x - first_tile[which], row, column);
  const float* from = x + m.x;
  float acc[4][4] = {};
  tile(acc, s, m.length, [&](i64 k, int i) { return row + i < m.side ? from[(row + i) * m.length + k] : 0.f; }, true,
       [&](i64 k, int j) { return column + j < m.side ? from[(column + j) * m.length + k] : 0.f; }, true);
#pragma unroll
  for (int e = 0; e < 16; ++e) {
    const i64 i = row + threadIdx.x / 16 * 4 + e / 4, j = column + threadIdx.x % 16 * 4 + e % 4;
    if (i < m.side && j <= i) g[m.g + i * m.side + j] = g[m.g + j * m.side + i] = acc[e / 4][e % 4];
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    quintic(const Matrix* matrices, const i64* first_tile, const float* g, float* h, int count) {
  __shared__ __align__(16) Stage s;
  const int which = entry_of(first_tile, count, blockIdx.x);
  const Matrix m = matrices[which];
  i64 row, column;
  triangle(blockIdx.x - first_tile[which], row, column);
  const float* from = g + m.g;
  float acc[4][4] = {};
  tile(acc, s, m.side, [&](i64 k, int i) { return row + i < m.side ? from[k * m.side + row + i] : 0.f; }, false,
       [&](i64 k, int j) { return column + j < m.side ? from[k * m.side + column + j] : 0.f; }, false);
#pragma unroll
  for (int e = 0; e < 16; ++e) {
    const i64 i = row + threadIdx.x / 16 * 4 + e / 4, j = column + threadIdx.x % 16 * 4 + e % 4;
    if (i < m.side && j <= i)
      h[m.g + i * m.side + j] = h[m.g + j * m.side + i] = fmaf(kB, from[i * m.side + j], kC * acc[e / 4][e % 4]);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    advance(const Matrix* matrices, const i64* first_tile, const float* x, const float* h, float* y, int count) {
  __shared__ __align__(16) Stage s;
  const int which = entry_of(first_tile, count, blockIdx.x);
  const Matrix m = matrices[which];
  const i64 columns = (m.length + kTile - 1) / kTile, t = blockIdx.x - first_tile[which];
  const i64 row = t / columns * kTile, column = t % columns * kTile;
  const float *by = h + m.g, *from = x + m.x;
  float acc[4][4] = {};
  tile(acc, s, m.side, [&](i64 k, int i) { return row + i < m.side ? by[k * m.side + row + i] : 0.f; }, false,
       [&](i64 k, int j) { return column + j < m.length ? from[k * m.length + column + j] : 0.f; }, false);
#pragma unroll
  for (int e = 0; e < 16; ++e) {
    const i64 i = row + threadIdx.x / 16 * 4 + e / 4, j = column + threadIdx.x % 16 * 4 + e % 4, at = i * m.length + j;
    if (i < m.side && j < m.length) y[m.x + at] = fmaf(kA, from[at], acc[e / 4][e % 4]);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    apply(const Matrix* matrices, const i64* first_chunk, const float* x, const float* decay, const float* rate,
          const float* largest, float* parameter, int count, int mode, double weight_decay) {
  const int which = entry_of(first_chunk, count, blockIdx.x);
  const Matrix m = matrices[which];
  const double ratio = (double)m.rows / m.columns;
  const float speed = (float)(rate[0] * sqrt(max(1., ratio))), shrink = shrink_of(mode, weight_decay, rate[0], largest[0]);
  const i64 begin = (blockIdx.x - first_chunk[which]) * kChunk, end = min(m.rows * m.columns, begin + kChunk);
  for (i64 e = begin + threadIdx.x; e < end; e += kThreads) {
    const i64 n = m.first + e;
    const float w = parameter[n];
    parameter[n] = w - fmaf(speed, x[m.x + lying(m, e)], w * decay[n] * shrink);
  }
}
