// y[n, h] = bias[h] + sum_d weight[h, d] x[n, d] at every step n = b T + t, and its gradients, in f32.
//
//   x [B, G, T, D / G]   y [B, K, T, H / K]   weight, grad_weight [H, D]   bias, grad_bias [H]
//   partial [runs, H, D + 1]: the sums of a run of kRun steps; the last column is the bias's
//
//   dense_map     block: 64 steps by 64 outputs, a thread 4 x 4; also grad_x, with the weight's strides exchanged
//   dense_sums    block: 64 outputs by 64 inputs over one run of steps; column D reads 1
//   dense_fold    thread: one gradient, the runs' sums in their order
//   dense_add     thread: one number, that of each part, in their order (the gradient of x by tensor.cu and hopper.cu)
//
// A step of the inner loops is 8 loads from shared memory (2 of 16 bytes) for 16 multiply-adds: half of the rate of the f32
// units, 2 n H D flops at 33 TFLOP/s on an H200. Bytes: x and y once, the weight from the L2. For channels that lie along
// time neighbouring threads load neighbouring steps, else neighbouring channels. No atomics; sums in an order that sizes
// alone decide.
//
// What binds the layers that are trained here (64 channels, some thousand steps) is the launch, so there is one shape.
#include "tiles.cuh"

typedef long long i64;

constexpr int kThreads = 256;

// Where channel c of a step lies from the step's beginning.
__device__ __forceinline__ i64 channel(int c, int width, i64 steps) {
  return (i64)(c / width) * steps * width + c % width;
}

// Where step n begins.
__device__ __forceinline__ i64 row(i64 n, i64 steps, int channels, int width) {
  return n / steps * steps * channels + n % steps * width;
}

extern "C" __global__ void __launch_bounds__(kThreads, 3)
    dense_map(const float* from, const float* weight, const float* bias, float* to, i64 rows, i64 steps, int inputs,
              int from_width, int outputs, int to_width, i64 stride_o, i64 stride_i) {
  __shared__ __align__(16) Tiles s;
  __shared__ i64 from_row[kTile], to_row[kTile];
  const i64 first = blockIdx.x * (i64)kTile;
  const int o = blockIdx.y * kTile;
  if (threadIdx.x < kTile) {
    const i64 n = min(first + threadIdx.x, rows - 1);
    from_row[threadIdx.x] = row(n, steps, inputs, from_width);
    to_row[threadIdx.x] = row(n, steps, outputs, to_width);
  }
  float acc[4][4] = {}, some[4][4] = {};
  for (int i = 0; i < inputs; i += kDepth) {
    // Sums of sums of 256 terms: one of thousands would round as often.
    if (i % 256 == 0) add_up(acc, some);
    __syncthreads();
    for (int e = threadIdx.x; e < kDepth * kTile; e += kThreads) {
      const bool along = from_width == 1;
      const int n = along ? e % kTile : e / kDepth, k = along ? e / kTile : e % kDepth;
      const bool there = i + k < inputs && first + n < rows;
      s.a[k][n] = there ? from[from_row[n] + channel(i + k, from_width, steps)] : 0.0f;
      const bool columns = stride_i == 1;
      const int w = columns ? e / kDepth : e % kTile, l = columns ? e % kDepth : e / kTile;
      const bool known = i + l < inputs && o + w < outputs;
      s.b[l][w] = known ? weight[(o + w) * stride_o + (i + l) * stride_i] : 0.0f;
    }
    __syncthreads();
    multiply(s, some);
  }
  add_up(acc, some);
  __syncthreads();
  const int n = threadIdx.x % 16 * 4, c = threadIdx.x / 16 * 4;
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    if (o + c + q >= outputs) break;
    const float start = bias ? bias[o + c + q] : 0.0f;
    const i64 at = channel(o + c + q, to_width, steps);
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      if (first + n + p < rows) to[to_row[n + p] + at] = acc[p][q] + start;
    }
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    dense_sums(const float* x, const float* grad_y, float* partial, i64 rows, i64 steps, int inputs, int from_width,
               int outputs, int to_width) {
  __shared__ __align__(16) Tiles s;
  const int o = blockIdx.x * kTile, i = blockIdx.y * kTile;
  const i64 width = inputs + 1;
  for (i64 run = blockIdx.z; run * kRun < rows; run += gridDim.z) {
    const i64 end = min(rows, (run + 1) * kRun);
    float acc[4][4] = {};
    for (i64 first = run * kRun; first < end; first += kDepth) {
      __syncthreads();
      for (int e = threadIdx.x; e < kDepth * kTile; e += kThreads) {
        const bool out_along = to_width == 1, in_along = from_width == 1;
        const int k = out_along ? e % kDepth : e / kTile, c = out_along ? e / kDepth : e % kTile;
        const bool there = first + k < end && o + c < outputs;
        const i64 n = min(first + k, end - 1);
        s.a[k][c] = there ? grad_y[row(n, steps, outputs, to_width) + channel(o + c, to_width, steps)] : 0.0f;
        const int l = in_along ? e % kDepth : e / kTile, d = in_along ? e / kDepth : e % kTile;
        const i64 m = min(first + l, end - 1);
        float value = 0.0f;
        if (first + l < end && i + d < inputs) {
          value = x[row(m, steps, inputs, from_width) + channel(i + d, from_width, steps)];
        } else if (first + l < end && i + d == inputs) {
          value = 1.0f;
        }
        s.b[l][d] = value;
      }
      __syncthreads();
      // Sums of sums: an error grows with the roots of 16 and of 32 instead of that of 512.
      float some[4][4] = {};
      multiply(s, some);
      add_up(acc, some);
    }
    const int c = o + threadIdx.x % 16 * 4, d = i + threadIdx.x / 16 * 4;
#pragma unroll
    for (int p = 0; p < 4; ++p) {
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        if (c + p < outputs && d + q <= inputs) partial[(run * outputs + c + p) * width + d + q] = acc[p][q];
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    dense_fold(const float* partial, float* grad_weight, float* grad_bias, i64 runs, int inputs, int outputs) {
  const i64 width = inputs + 1, elements = outputs * width;
  const i64 e = blockIdx.x * (i64)kThreads + threadIdx.x;
  if (e >= elements) return;
  float sum = 0.0f;
  for (i64 run = 0; run < runs; ++run) sum += partial[run * elements + e];
  const i64 o = e / width, i = e % width;
  if (i < inputs) {
    grad_weight[o * inputs + i] = sum;
  } else if (grad_bias) {
    grad_bias[o] = sum;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 4) dense_add(const float* parts, float* to, i64 count, i64 elements) {
  const i64 e = blockIdx.x * (i64)kThreads + threadIdx.x;
  if (e >= elements) return;
  float sum = parts[e];
  for (i64 part = 1; part < count; ++part) sum += parts[part * elements + e];
  to[e] = sum;
}
