// LTC with mixed memory: what of its LSTM (the equations: kernels/walk.cuh) is made for all (b, t) of a chunk of steps at once.
//
//   ltc_lstm_map    c (+)= bias + a W: the input map's share z of the sums before the gates, and that of dz in dL/dx. Block: 64
//                   rows (b, t) by 64 columns, a thread 4 x 4 (kernels/tiles.cuh)
//   ltc_lstm_sums   partial = dz^T [x, h, 1] over a slice of rows, h the state before the step: the gradients of W, R and b.
//                   Block: 64 of 4 H by 64 of D + H + 1
//   ltc_lstm_close  thread: one gradient; the slices in their order, added to what later steps have left
//
// Sums are sums of sums, in an order that sizes alone decide; no atomics. What the state of a step depends on is in the walk
// itself (forward.cu, backward.cu).
// Floor (H200): 2 B T 4 H D flops forward; backward the same for dL/dx and 2 B T 4 H (D + H + 1) for the sums, at half of the
// 67 TFLOP/s of the f32 units; bytes: x and z once, backward dz twice, x and h once for each 64 of 4 H, from L2.
// Not timed on a GPU yet.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
#include "tiles.cuh"

typedef long long i64;

// Where a row (b, r) of a chunk lies: b and r apart, and a column.
struct alignas(8) Strides {
  i64 b, t, column;
};

extern "C" __global__ void __launch_bounds__(256, 2)
ltc_lstm_map(const float* __restrict__ a, Strides of_a,                                     // [B, steps, K]
             const float* __restrict__ w, i64 w_column, i64 w_k, const float* __restrict__ bias,  // [N, K]; [N] or null
             float* __restrict__ c, Strides of_c,                                           // [B, steps, N]
             i64 rows, i64 steps, int terms, int columns, int add) {
  __shared__ __align__(16) Tiles s;
  __shared__ i64 from[kTile], to[kTile];
  const i64 first = blockIdx.x * (i64)kTile;
  if (threadIdx.x < kTile) {
    const i64 n = min(first + threadIdx.x, rows - 1), b = n / steps, r = n % steps;
    from[threadIdx.x] = b * of_a.b + r * of_a.t;
    to[threadIdx.x] = b * of_c.b + r * of_c.t;
  }
  for (int o = blockIdx.y * kTile; o < columns; o += gridDim.y * kTile) {
    float acc[4][4] = {}, some[4][4] = {};
    for (int i = 0; i < terms; i += kDepth) {
      if (i % 256 == 0) add_up(acc, some);
      __syncthreads();
      for (int e = threadIdx.x; e < kDepth * kTile; e += 256) {
        // Neighbouring threads are neighbours in memory where they can be.
        const int n = e / kDepth, k = e % kDepth;
        s.a[k][n] = i + k < terms && first + n < rows ? a[from[n] + (i + k) * of_a.column] : 0.0f;
        const bool along = w_k == 1;
        const int p = along ? e / kDepth : e % kTile, l = along ? e % kDepth : e / kTile;
        s.b[l][p] = i + l < terms && o + p < columns ? w[(o + p) * w_column + (i + l) * w_k] : 0.0f;
      }
      __syncthreads();
      multiply(s, some);
    }
    add_up(acc, some);
    __syncthreads();
    const int n = threadIdx.x % 16 * 4, p = threadIdx.x / 16 * 4;
#pragma unroll
    for (int q = 0; q < 4; q++) {
      if (o + p + q >= columns) break;
      const float start = bias ? bias[o + p + q] : 0.0f;
#pragma unroll
      for (int m = 0; m < 4; m++) {
        if (first + n + m >= rows) break;
        float* at = c + to[n + m] + (o + p + q) * of_c.column;
        *at = (add ? *at : 0.0f) + (acc[m][q] + start);
      }
    }
  }
}

// The rows n = (b, r) of the chunk whose first step is t0. Grid: 4 H / 64, (D + H + 1) / 64, slices.
extern "C" __global__ void __launch_bounds__(256, 2)
ltc_lstm_sums(const float* __restrict__ dz,                    // [B, steps, 4 H]
              const float* __restrict__ x, Strides of_x,       // [B, T, D], any strides
              const float* __restrict__ states,                // [B, T, H]
              const float* __restrict__ h0, i64 h0_b, i64 h0_h,  // [B, H], any strides, or null: zeros
              float* __restrict__ partial,                     // [slices, 4 H, D + H + 1]
              unsigned rows, unsigned slice, unsigned steps, i64 t0, i64 total_steps, int inputs, int hidden) {
  __shared__ __align__(16) Tiles s;
  const int outputs = 4 * hidden, width = inputs + hidden + 1, o = blockIdx.x * kTile;
  const unsigned begin = blockIdx.z * slice, end = rows - begin < slice ? rows : begin + slice;
  for (int i = blockIdx.y * kTile; i < width; i += gridDim.y * kTile) {
    float acc[4][4] = {};
    for (unsigned n0 = begin; n0 < end; n0 += kDepth) {
      __syncthreads();
      for (int e = threadIdx.x; e < kDepth * kTile; e += 256) {
        const int k = e / kTile, c = e % kTile, d = i + c;
        const unsigned n = n0 + k;
        const bool there = n < end;
        s.a[k][c] = there && o + c < outputs ? dz[(i64)n * outputs + o + c] : 0.0f;
        float value = 0.0f;
        if (there && d < width) {
          const unsigned b = n / steps;
          const i64 t = t0 + (n - b * steps);
          if (d < inputs)
            value = x[b * of_x.b + t * of_x.t + d * of_x.column];
          else if (d == inputs + hidden)
            value = 1.0f;
          else if (t > 0)
            value = states[(b * total_steps + t - 1) * hidden + d - inputs];
          else if (h0)
            value = h0[b * h0_b + (d - inputs) * h0_h];
        }
        s.b[k][c] = value;
      }
      __syncthreads();
      float some[4][4] = {};
      multiply(s, some);
      add_up(acc, some);
    }
    const int m = o + threadIdx.x % 16 * 4, d = i + threadIdx.x / 16 * 4;
#pragma unroll
    for (int p = 0; p < 4; p++)
#pragma unroll
      for (int q = 0; q < 4; q++)
        if (m + p < outputs && d + q < width) partial[((i64)blockIdx.z * outputs + m + p) * width + d + q] = acc[p][q];
  }
}

extern "C" __global__ void __launch_bounds__(256)
ltc_lstm_close(const float* __restrict__ partial,              // [slices, 4 H, D + H + 1]
               float* __restrict__ grad_weight, float* __restrict__ grad_bias, float* __restrict__ grad_recurrent,
               int slices, int inputs, int hidden) {
  const i64 width = inputs + hidden + 1, elements = 4 * hidden * width;
  for (i64 e = blockIdx.x * (i64)blockDim.x + threadIdx.x; e < elements; e += gridDim.x * (i64)blockDim.x) {
    float sum = 0.0f;
    for (int k = 0; k < slices; k++) sum += partial[k * elements + e];
    const i64 o = e / width, i = e % width;
    float* to = grad_bias + o;
    if (i < inputs)
      to = grad_weight + (o * inputs + i);
    else if (i < inputs + hidden)
      to = grad_recurrent + (o * hidden + i - inputs);
    *to += sum;
  }
}
