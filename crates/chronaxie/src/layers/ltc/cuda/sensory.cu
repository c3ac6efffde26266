// LTC: the sums over the inputs, with every sensory synapse held in registers (the equations: forward.cu).
//   u = LayerNorm(x) input_w + input_b;  s_dj = sig(sigma_dj (u_d - mu_dj));  Ns_j = sum_d q_dj s_dj;  Ds_j = sum_d p_dj s_dj
// They do not depend on the state, so all (b, t) are parallel: a block holds the synapses of some targets and walks over
// tiles of rows, whose inputs u it makes in shared memory.
// Floor (H200, fast): B T SS operations of the special-function unit, 4.2e12 a second: 64 us for B128 T256 D64 H256 at
// density 0.5; bytes: x once for each part of the targets, and 8 B T H written.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = false;
#include "held.cuh"

// A lane writes those rows of its target that fall to it: with fewer lanes than rows, every lane has all of them.
// A tile is read while the gates of the one before it are made, if there is room for two (`two`), and the first one while synapses
// are read.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
ltc_sensory_sums(Schedule schedule, const float* __restrict__ x, i64 stride_b, i64 stride_t, i64 stride_d,
                 const float* __restrict__ norm_weight, const float* __restrict__ norm_bias,
                 const float* __restrict__ input_w, const float* __restrict__ input_b,  // each [D] or null
                 float2* __restrict__ sums,                                             // [B, steps, H]
                 i64 rows, i64 rows_per_batch, i64 t0, int inputs, int hidden, int parts, int tile_rows, int two,
                 float norm_epsilon) {
  extern __shared__ __align__(16) float tiles[];  // once or twice [tile_rows / kRows, D, kRows], then, twice, where each row starts
  const int size = tile_rows * inputs;
  i64* const offsets = (i64*)(tiles + (two ? 2 : 1) * (i64)size);
  const unsigned part = blockIdx.x % parts, worker = blockIdx.x / parts, workers = gridDim.x / parts;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  auto place = [&](i64 first, unsigned n) {
    for (int r = threadIdx.x; r < tile_rows; r += blockDim.x) {
      const i64 row = first + r, b = row / rows_per_batch;
      offsets[(n & 1) * tile_rows + r] = row < rows ? b * stride_b + (t0 + (row - b * rows_per_batch)) * stride_t : -1;
    }
  };
  // Inputs of a tile are on their way, each element to the thread that maps it; normalised ones are there.
  auto read = [&](unsigned n) {
    const i64* const offset = offsets + (n & 1) * tile_rows;
    float* const tile = tiles + (two ? (n & 1) * size : 0);
    if (!norm_weight) {
      for (int d = lane; d < inputs; d += 32)
#pragma unroll 4
        for (int r = warp; r < tile_rows; r += warps) {
          float* const to = tile + ((i64)(r / kRows) * inputs + d) * kRows + r % kRows;
          if (offset[r] >= 0)
            copy_ahead<4>(to, x + (offset[r] + d * stride_d));
          else
            *to = 0.0f;
        }
      return;
    }
    // A warp makes a row.
    for (int r = warp; r < tile_rows; r += warps) {
      float* row = tile + (i64)(r / kRows) * inputs * kRows + r % kRows;
      const bool there = offset[r] >= 0;
      const float* from = x + (there ? offset[r] : 0);
      float mean = 0.0f, rstd = 1.0f, var = 0.0f;
      for (int d = lane; there && d < inputs; d += 32) mean += from[d * stride_d];
      mean = warp_sum(mean) / (float)inputs;
      for (int d = lane; there && d < inputs; d += 32) {
        float e = from[d * stride_d] - mean;
        var = fmaf(e, e, var);
      }
      rstd = 1.0f / sqrtf(warp_sum(var) / (float)inputs + norm_epsilon);
      for (int d = lane; d < inputs; d += 32) {
        float y = there ? fmaf((from[d * stride_d] - mean) * rstd, norm_weight[d], norm_bias[d]) : 0.0f;
        if (input_w) y *= input_w[d];
        if (input_b) y += input_b[d];
        row[d * kRows] = y;
      }
    }
  };
  auto map = [&](unsigned n) {
    float* const tile = tiles + (two ? (n & 1) * size : 0);
    for (int d = lane; d < inputs; d += 32) {
      const float scale = input_w ? input_w[d] : 1.0f, shift = input_b ? input_b[d] : 0.0f;
      for (int r = warp; r < tile_rows; r += warps) {
        float* const at = tile + ((i64)(r / kRows) * inputs + d) * kRows + r % kRows;
        *at = fmaf(*at, scale, shift);
      }
    }
  };
  i64 first = (i64)worker * tile_rows;
  const i64 stride = (i64)workers * tile_rows;
  if (first < rows) place(first, 0);
  __syncthreads();
  if (first < rows) read(0);
  int2 shape = schedule.warps[part * warps + warp];
  shape = make_int2(uniform(shape.x), uniform(shape.y));
  const int j = schedule.target[part * blockDim.x + threadIdx.x], sub = lane & (shape.x - 1);
  float p0, q0;
  const Held held = hold(schedule, part, p0, q0);
  p0 = lanes_sum(p0, shape.x), q0 = lanes_sum(q0, shape.x);
#pragma unroll 1
  for (unsigned n = 0; first < rows; n++, first += stride) {
    const bool more = first + stride < rows;
    if (more) place(first + stride, n + 1);
    copies_here();
    if (!norm_weight && (input_w || input_b)) map(n);
    __syncthreads();
    if (more && two) read(n + 1);
    const float* const tile = tiles + (two ? (n & 1) * size : 0);
#pragma unroll 1
    for (int q = 0; q * kRows < tile_rows; q++) {
      float sum[2 * kRows];
      gate_sums(held, shape.y, (const char*)(tile + (i64)q * inputs * kRows), sum);
      const i64 at = first + q * kRows;
      if (shape.x >= kRows) {
        float num, den;
        totals(sum, lane, shape.x, num, den);
        const i64 mine = at + (lane & (kRows - 1));
        if (j >= 0 && sub < kRows && mine < rows) sums[mine * hidden + j] = make_float2(num + q0, den + p0);
        continue;
      }
#pragma unroll
      for (int o = 1; o < kRows; o *= 2)
        if (o < shape.x)
#pragma unroll
          for (int i = 0; i < 2 * kRows; i++) sum[i] += __shfl_xor_sync(~0u, sum[i], o);
#pragma unroll
      for (int r = 0; r < kRows; r++)
        if (j >= 0 && (r & (shape.x - 1)) == sub && at + r < rows)
          sums[(at + r) * hidden + j] = make_float2(sum[r] + q0, sum[kRows + r] + p0);
    }
    if (more && !two) {
      __syncthreads();
      read(n + 1);
    }
  }
}
