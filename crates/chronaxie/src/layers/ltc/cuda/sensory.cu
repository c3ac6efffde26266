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

// A lane writes those rows of its target that fall to it: with fewer lanes than sums, every lane has all of them.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
ltc_sensory_sums(Schedule schedule, const float* __restrict__ x, i64 stride_b, i64 stride_t, i64 stride_d,
                 const float* __restrict__ norm_weight, const float* __restrict__ norm_bias,
                 const float* __restrict__ input_w, const float* __restrict__ input_b,  // each [D] or null
                 float2* __restrict__ sums,                                             // [B, steps, H]
                 i64 rows, i64 rows_per_batch, i64 t0, int inputs, int hidden, int parts, int tile_rows,
                 float norm_epsilon) {
  extern __shared__ __align__(16) float tile[];  // [tile_rows / kRows, D, kRows], then where each row starts
  i64* row_offset = (i64*)(tile + (i64)tile_rows * inputs);
  unsigned part = blockIdx.x % parts, worker = blockIdx.x / parts, workers = gridDim.x / parts;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  int2 shape = schedule.warps[part * warps + warp];
  shape = make_int2(uniform(shape.x), uniform(shape.y));
  int j = schedule.target[part * blockDim.x + threadIdx.x], sub = lane & (shape.x - 1);
  float p0, q0;
  Held held = hold(schedule, part, p0, q0);
  p0 = lanes_sum(p0, shape.x), q0 = lanes_sum(q0, shape.x);
  for (i64 first = (i64)worker * tile_rows; first < rows; first += (i64)workers * tile_rows) {
    __syncthreads();
    for (int r = threadIdx.x; r < tile_rows; r += blockDim.x) {
      i64 n = first + r, b = n / rows_per_batch;
      row_offset[r] = n < rows ? b * stride_b + (t0 + (n - b * rows_per_batch)) * stride_t : -1;
    }
    __syncthreads();
    if (norm_weight) {
      // A warp makes a row.
      for (int r = warp; r < tile_rows; r += warps) {
        float* row = tile + (i64)(r / kRows) * inputs * kRows + r % kRows;
        const float* from = x + row_offset[r];
        const bool there = first + r < rows;
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
    } else {
      // Several rows of a warp at once, so that their reads are in flight together.
      constexpr int kAtOnce = 8;
      for (int d = lane; d < inputs; d += 32) {
        float scale = input_w ? input_w[d] : 1.0f, shift = input_b ? input_b[d] : 0.0f;
        for (int r = warp; r < tile_rows; r += kAtOnce * warps) {
          float y[kAtOnce];
#pragma unroll
          for (int i = 0; i < kAtOnce; i++) {
            int mine = r + i * warps;
            y[i] = mine < tile_rows && first + mine < rows ? x[row_offset[mine] + d * stride_d] : 0.0f;
          }
#pragma unroll
          for (int i = 0; i < kAtOnce; i++) {
            int mine = r + i * warps;
            if (mine < tile_rows)
              tile[((i64)(mine / kRows) * inputs + d) * kRows + mine % kRows] = fmaf(y[i], scale, shift);
          }
        }
      }
    }
    __syncthreads();
    for (int q = 0; q * kRows < tile_rows; q++) {
      float sum[2 * kRows];
      gate_sums(held, shape.y, (const char*)(tile + (i64)q * inputs * kRows), sum);
      const i64 n = first + q * kRows;
      if (shape.x >= 2 * kRows) {
        float num, den;
        reduce(sum, lane, shape.x, num, den);
        i64 mine = n + row_of(lane);
        if (j >= 0 && sub < 2 * kRows && !(lane & 1) && mine < rows)
          sums[mine * hidden + j] = make_float2(num + q0, den + p0);
        continue;
      }
#pragma unroll
      for (int o = 1; o < 2 * kRows; o *= 2)
        if (o < shape.x)
#pragma unroll
          for (int i = 0; i < 2 * kRows; i++) sum[i] += __shfl_xor_sync(~0u, sum[i], o);
#pragma unroll
      for (int r = 0; r < kRows; r++)
        if (j >= 0 && (r & (shape.x - 1)) == sub && n + r < rows)
          sums[(n + r) * hidden + j] = make_float2(sum[r] + q0, sum[kRows + r] + p0);
    }
  }
}
