// CfC: what is made for all (b, t) at once, and the weights as the kernels read them.
//
//   cfc_pack      thread: an element of a parameter, times its mask's, to its place in a packed matrix
//   cfc_rows      C [rows, n] (+)= bias + A [rows, k] B [k, n]: what the first maps make of x, and the gradient of x
//   cfc_operands  thread: an element of what the maps read, copied side by side
//   cfc_sums      partial [slices, m, n] = grads^T operands, with a column of ones behind the operands for the biases,
//                 whose sums are compensated: what is left of a bias's gradient may be a thousandth of its terms
//   cfc_close     thread: an element of a gradient: the slices in their order, times its mask's
//
// A product is a block of 256 threads for 64 x 64 elements, 4 x 4 a thread, 16 steps of the sum at a time from shared
// memory: 2 flops for each 1/32 byte of it. No tensor cores: f32 all the way.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
#include "cfc.cuh"

constexpr int kTile = 64, kDepth = 16, kSide = 16, kEach = kTile / kSide;

// Rows lie `len` to a batch row: row m is step m % len of batch row m / len.
struct alignas(8) Steps {
  i64 b, t;
};
__device__ __forceinline__ i64 offset(Steps s, i64 m, i64 len) { return m / len * s.b + m % len * s.t; }

struct alignas(8) Packed {
  const float* from;  // [rows, columns]
  const float* mask;  // likewise, or null
  float* to;
  i64 row_stride, column_stride;  // of `to`
  int rows, columns;
};
struct alignas(8) PackedList {
  Packed piece[kPieces];
};

extern "C" __global__ void __launch_bounds__(256) cfc_pack(PackedList list) {
  const Packed p = list.piece[blockIdx.y];
  const i64 elements = (i64)p.rows * p.columns;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < elements; i += (i64)gridDim.x * blockDim.x) {
    const i64 r = i / p.columns, c = i % p.columns;
    p.to[r * p.row_stride + c * p.column_stride] = p.mask ? p.from[i] * p.mask[i] : p.from[i];
  }
}

// One step of a tile's sum: 16 x 64 of each side are in shared memory.
__device__ __forceinline__ void multiply(const float (*a)[kTile], const float (*b)[kTile], float (&sum)[kEach][kEach]) {
  const int x = threadIdx.x % kSide, y = threadIdx.x / kSide;
#pragma unroll
  for (int k = 0; k < kDepth; k++) {
    float av[kEach], bv[kEach];
#pragma unroll
    for (int i = 0; i < kEach; i++) av[i] = a[k][y * kEach + i], bv[i] = b[k][x + i * kSide];
#pragma unroll
    for (int i = 0; i < kEach; i++)
#pragma unroll
      for (int j = 0; j < kEach; j++) sum[i][j] = fmaf(av[i], bv[j], sum[i][j]);
  }
}

extern "C" __global__ void __launch_bounds__(256)
cfc_rows(const float* __restrict__ a, Steps a_steps, i64 a_k, const float* __restrict__ b, i64 ldb,
         const float* __restrict__ bias,  // [n] or null
         float* __restrict__ c, Steps c_steps, i64 rows, i64 len, int k, int n, int add) {
  __shared__ float as[kDepth][kTile], bs[kDepth][kTile];
  __shared__ i64 from[kTile];
  const int n0 = blockIdx.x * kTile;
  for (i64 m0 = (i64)blockIdx.y * kTile; m0 < rows; m0 += (i64)gridDim.y * kTile) {
    __syncthreads();
    for (int i = threadIdx.x; i < kTile; i += blockDim.x) from[i] = m0 + i < rows ? offset(a_steps, m0 + i, len) : -1;
    __syncthreads();
    float sum[kEach][kEach];
#pragma unroll
    for (int i = 0; i < kEach; i++)
#pragma unroll
      for (int j = 0; j < kEach; j++) sum[i][j] = 0.0f;
    for (int k0 = 0; k0 < k; k0 += kDepth) {
      for (int i = threadIdx.x; i < kDepth * kTile; i += blockDim.x) {
        // Neighbouring threads are neighbours in k of a, and in n of b.
        const int ak = i % kDepth, am = i / kDepth, bk = i / kTile, bn = i % kTile;
        as[ak][am] = m0 + am < rows && k0 + ak < k ? a[from[am] + (k0 + ak) * a_k] : 0.0f;
        bs[bk][bn] = k0 + bk < k && n0 + bn < n ? b[(k0 + bk) * ldb + n0 + bn] : 0.0f;
      }
      __syncthreads();
      multiply(as, bs, sum);
      __syncthreads();
    }
    const int x = threadIdx.x % kSide, y = threadIdx.x / kSide;
#pragma unroll
    for (int i = 0; i < kEach; i++) {
      const i64 m = m0 + y * kEach + i;
      if (m >= rows) continue;
      float* to = c + offset(c_steps, m, len);
#pragma unroll
      for (int j = 0; j < kEach; j++) {
        const int o = n0 + x + j * kSide;
        if (o < n) to[o] = (add ? to[o] : 0.0f) + (bias ? bias[o] : 0.0f) + sum[i][j];
      }
    }
  }
}

// operands [B, len, row_operands]: of the LSTM x and the state before the step; of each cell what feeds it and its own
// state before the step (the LSTM's of this step), then what its backbone's layers gave.
extern "C" __global__ void __launch_bounds__(256)
cfc_operands(Net net, const float* __restrict__ x, i64 x_b, i64 x_t, i64 x_d,  // [B, T, D]
             const float* __restrict__ h0, i64 h0_b, i64 h0_h,                 // [B, H] or null
             const float* __restrict__ states,                                 // [B, T, H]
             const float* __restrict__ backbone,                               // [B, T, L, U]
             const float* __restrict__ lstm_states,                            // [B, T, H] or null
             float* __restrict__ operands, i64 rows, i64 steps, i64 t0, i64 len) {
  const i64 elements = rows * net.row_operands;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < elements; i += (i64)gridDim.x * blockDim.x) {
    const i64 m = i / net.row_operands, b = m / len, t = t0 + m % len, at = b * steps + t;
    const int column = (int)(i % net.row_operands);
    int l = net.cells - 1;
    while (l >= 0 && column < net.operands[l]) l--;
    int feeds = net.inputs, own = 0, rest = column;
    if (l >= 0) {
      feeds = l ? net.neurons[l - 1] : net.inputs, own = net.first[l], rest = column - (int)net.operands[l];
    }
    float value = 0.0f;
    if (l >= 0 && rest >= feeds + net.neurons[l]) {
      value = backbone[(at * net.cells + l) * net.layers * net.units + rest - feeds - net.neurons[l]];
    } else if (rest < feeds) {
      value = l > 0 ? states[at * net.hidden + own - feeds + rest] : x[b * x_b + t * x_t + rest * x_d];
    } else {
      const int j = own + rest - feeds;
      if (l >= 0 && net.mixed)
        value = lstm_states[at * net.hidden + j];
      else if (t > 0)
        value = states[(at - 1) * net.hidden + j];
      else if (h0)
        value = h0[b * h0_b + j * h0_h];
    }
    operands[i] = value;
  }
}

// A sum with what its roundings have lost.
struct Compensated {
  float sum, lost;
  __device__ __forceinline__ void add(float x) {
    const float next = sum + x, taken = next - sum;
    lost += (sum - (next - taken)) + (x - taken);
    sum = next;
  }
};

// Elements [m, n] of a map whose gradients begin at `grad` of a row and whose operands at `operand`; column k is ones.
extern "C" __global__ void __launch_bounds__(256)
cfc_sums(const float* __restrict__ grads, i64 row_grads, i64 grad, const float* __restrict__ operands, i64 row_operands,
         i64 operand, float* __restrict__ partial, i64 rows, i64 slice_rows, int m, int k) {
  __shared__ float as[kDepth][kTile], bs[kDepth][kTile], column[kTile];
  const int n = k + 1, n0 = blockIdx.x * kTile, m0 = blockIdx.y * kTile;
  const i64 begin = blockIdx.z * slice_rows, end = min(rows, begin + slice_rows);
  float sum[kEach][kEach];
#pragma unroll
  for (int i = 0; i < kEach; i++)
#pragma unroll
    for (int j = 0; j < kEach; j++) sum[i][j] = 0.0f;
  const bool sums = k < n0 + kTile && threadIdx.x < kTile;  // of the column of ones
  Compensated ones = {0.0f, 0.0f};
  for (i64 r0 = begin; r0 < end; r0 += kDepth) {
    for (int i = threadIdx.x; i < kDepth * kTile; i += blockDim.x) {
      const int d = i / kTile, e = i % kTile;
      const i64 r = r0 + d;
      as[d][e] = r < end && m0 + e < m ? grads[r * row_grads + grad + m0 + e] : 0.0f;
      bs[d][e] = r < end && n0 + e < k ? operands[r * row_operands + operand + n0 + e] : 0.0f;
    }
    __syncthreads();
    multiply(as, bs, sum);
    if (sums) {
#pragma unroll
      for (int d = 0; d < kDepth; d++) ones.add(as[d][threadIdx.x]);
    }
    __syncthreads();
  }
  if (sums) column[threadIdx.x] = ones.sum + ones.lost;
  __syncthreads();
  const int x = threadIdx.x % kSide, y = threadIdx.x / kSide;
#pragma unroll
  for (int i = 0; i < kEach; i++)
#pragma unroll
    for (int j = 0; j < kEach; j++) {
      const int o = m0 + y * kEach + i, c = n0 + x + j * kSide;
      if (o < m && c < n) partial[((i64)blockIdx.z * m + o) * n + c] = c < k ? sum[i][j] : column[y * kEach + i];
    }
}

struct alignas(8) Closed {
  const float* partial;  // its first element
  const float* mask;     // [rows, columns] or null
  float* to;             // [rows, columns]
  i64 slice_stride;
  int row_stride, slices, rows, columns;
};
struct alignas(8) ClosedList {
  Closed piece[kPieces];
};

// `add`: to what earlier chunks have left; `last`: no chunk is left, and masks come.
extern "C" __global__ void __launch_bounds__(256) cfc_close(ClosedList list, int add, int last) {
  const Closed p = list.piece[blockIdx.y];
  const i64 elements = (i64)p.rows * p.columns;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < elements; i += (i64)gridDim.x * blockDim.x) {
    const i64 r = i / p.columns, c = i % p.columns;
    Compensated sum = {add ? p.to[i] : 0.0f, 0.0f};
    for (int s = 0; s < p.slices; s++) sum.add(p.partial[s * p.slice_stride + r * p.row_stride + c]);
    const float all = sum.sum + sum.lost;
    p.to[i] = last && p.mask ? all * p.mask[i] : all;
  }
}
