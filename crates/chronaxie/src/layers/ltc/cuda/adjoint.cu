// LTC, backward through the recurrence, with every synapse and its four sums held in registers (the equations:
// backward.cu). For each unfold, last first, with a_j = dL/dv'_j:
//   alpha_j = a_j / den_j      beta_j = -alpha_j v'_j      dz_ij = (alpha_j q_ij + beta_j p_ij) r_ij (1 - r_ij)
//   a_i <- alpha_i c_i + sum_j dz_ij sigma_ij
// and for each synapse the sums of alpha_j r_ij, beta_j r_ij, dz_ij, dz_ij (v_i - mu_ij).
//
// A thread holds synapses of one source i, so that v_i is its own and alpha, beta of the targets are what it gathers
// from shared memory; otherwise everything is as in recurrence.cu: a cluster walks groups of kRows batch rows, alpha and
// beta travel to all its blocks once an unfold. States and denominators of the unfolds come from a trace, copied one
// unfold ahead. Each cluster adds to its own sums, in the order of its rows, and close.cu adds clusters in order: no
// atomics, the same bits every run.
// Work: a gate is 1 special operation (exact: 2) and 10 (12) others, so issue slots bind: 11.5 / 4 clocks of a
// multiprocessor for 32 gates. Floor (H200, 1.98 GHz): 2.2 ms for B128 T256 H256 at density 0.5.
// Bytes: 8 for each of B T K H read once, 8 B T H written, and 16 a synapse and cluster.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
#include "exchange.cuh"
#include "gate_sums.cuh"

// Dynamic shared memory: for each group and thread 2 x 16 bytes that are copied ahead and 16 of its own; alpha and beta
// of each group, twice [H, 2 kRows]; two barriers for each group.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
ltc_adjoint_held(Schedule schedule, const float* __restrict__ cm,  // [H]
                 const float* __restrict__ states,                                           // [B, T, H]
                 const float* __restrict__ elapsed, i64 elapsed_b, i64 elapsed_t, float dt,  // [B, T] or null: dt
                 const float* __restrict__ grad_out, i64 grad_b, i64 grad_t, i64 grad_m,     // [B, T, M], any strides
                 const float* __restrict__ output_w,                                         // [M] or null
                 const float* grad_end, i64 end_b, i64 end_h,  // [B, H]: dL/d(state after the chunk), any strides
                 float* grad_start,                            // [B, H]: dL/d(state before the chunk)
                 const float* __restrict__ trace_v, const float* __restrict__ trace_den,  // [B, steps, K, H], trace_b apart
                 i64 trace_b,
                 float2* __restrict__ step_sums,     // [B, steps, H]: sums of alpha and of beta over k
                 float* __restrict__ step_changes,   // [B, steps, H] or null: sums of alpha (v - v') over k
                 float4* __restrict__ gate_sums,     // [clusters, blocks, kSlots, threads], added to unless first
                 float4* __restrict__ neuron_sums,   // [clusters, H]: alpha, beta, alpha (v - v') K / dt; likewise
                 int batch, int hidden, int outputs, int unfolds, int total_steps, int t0, int steps, int groups,
                 int first_chunk, int constrained) {
  extern __shared__ __align__(16) char shared[];
  unsigned rank = 0, blocks = 1;
#if __CUDA_ARCH__ >= 900
  if (kCluster) rank = cluster_rank(), blocks = cluster_blocks();
#endif
  const int clusters = gridDim.x / blocks, cluster = blockIdx.x / blocks;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int2 shape = schedule.warps[rank * (blockDim.x / 32) + warp];
  shape = make_int2(uniform(shape.x), uniform(shape.y));
  const int owner = schedule.target[rank * blockDim.x + threadIdx.x];
  const unsigned j = owner < 0 ? ~0u : owner & 0xffff, place = owner < 0 ? ~0u : owner >> 16;
  float p0, q0;
  const Held held = hold(schedule, rank, p0, q0);
  const int sub = lane & (shape.x - 1), row = lane & (kRows - 1);
  const bool writer = j != ~0u && sub < kRows;
  const float rate_c = j != ~0u ? positive(cm[j], constrained) * (float)unfolds / (elapsed ? 1.0f : dt) : 0.0f;
  const float inverse_dt = elapsed ? 1.0f : 1.0f / dt;
  Sums sums;
  auto saved_sums = [&] { return gate_sums + (i64)opaque(blockIdx.x) * kSlots * blockDim.x + threadIdx.x; };
  const float4* before = saved_sums();
#pragma unroll
  for (int i = 0; i < kSlots; i++)
    sums.of[i] = first_chunk ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : before[(i64)i * blockDim.x];
  static_assert(kRows <= 2, "what is copied ahead has room for two rows");
  float4* ahead = (float4*)shared + threadIdx.x;  // [2, groups, threads]: v of both rows; den and dL/d out of one's own
  float4* own = (float4*)shared + blockDim.x * groups * 2 + threadIdx.x;  // a, v', and sums of alpha and beta of a step
  char* tiles = shared + blockDim.x * groups * 48;
  const Exchange<2 * kRows> exchange(tiles, hidden, groups, place, sub, shape.x);
  // alpha and beta of group q for unfold n, to all blocks.
  auto give = [&](int q, unsigned n, float alpha, float beta) {
    float x[2 * kRows], y[kRows];
    all_rows(alpha, lane, y);
#pragma unroll
    for (int i = 0; i < kRows; i++) x[i] = y[i];
    all_rows(beta, lane, y);
#pragma unroll
    for (int i = 0; i < kRows; i++) x[kRows + i] = y[i];
    exchange.give(q, n, x);
  };
  const int all_groups = (batch + kRows - 1) / kRows;
  unsigned n = 0;
  float sum_alpha = 0.0f, sum_beta = 0.0f, sum_change = 0.0f;
#pragma unroll 1
  for (int wave = exchange.idle() ? all_groups : cluster; wave < all_groups; wave += clusters * groups) {
    const int live = min(groups, (all_groups - wave + clusters - 1) / clusters);
    auto first_row = [&](int q) { return (wave + q * clusters) * kRows; };
    // v of all rows; of the lane's own row, the denominator and, where a step begins, dL/d out.
    auto look_ahead = [&](int q, unsigned n, int r, int k) {
      if (j == ~0u) return;
      float* to = (float*)(ahead + ((n & 1) * groups + q) * blockDim.x);
      const i64 at = ((i64)r * unfolds + k) * hidden + opaque(j), b = first_row(q) + row;
#pragma unroll
      for (int i = 0; i < kRows; i++)
        if (first_row(q) + i < batch) copy_ahead<4>(to + i, trace_v + ((first_row(q) + i) * trace_b + at));
      if (b >= batch) return;
      copy_ahead<4>(to + 2, trace_den + (b * trace_b + at));
      if (k + 1 == unfolds && (int)j < outputs)
        copy_ahead<4>(to + 3, grad_out + (b * grad_b + (t0 + r) * grad_t + opaque(j) * grad_m));
    };
    // From a = dL/dv' of unfold k of step r to its alpha and beta, given to all; a keeps alpha c.
    auto prepare = [&](int q, unsigned n, int r, int k, float a) {
      const i64 b = first_row(q) + row;
      copies_here();
      const float4 here = ahead[((n & 1) * groups + q) * blockDim.x];
      float4 mine = own[q * blockDim.x];
      const bool valid = j != ~0u && b < batch;
      if (k + 1 == unfolds) {
        mine.z = mine.w = 0.0f;
        if (valid && (int)j < outputs) a += output_w ? here.w * output_w[j] : here.w;
      }
      const float v = row == 0 ? here.x : here.y;
      const float alpha = quotient(a, here.z), beta = -alpha * mine.y;
      give(q, n, alpha, beta);
      float c = rate_c, per_dt = (float)unfolds * inverse_dt;
      if (elapsed && valid) {
        float inverse = 1.0f / elapsed[b * elapsed_b + (t0 + r) * elapsed_t];
        c *= inverse, per_dt *= inverse;
      }
      const float moved = fmaf(alpha, v, beta);
      sum_alpha += alpha, sum_beta += beta;
      sum_change = fmaf(moved, per_dt, sum_change);
      mine = make_float4(alpha * c, v, mine.z + alpha, mine.w + beta);
      own[q * blockDim.x] = mine;
      if (writer && b < batch) {
        const i64 at = (b * steps + r) * hidden + j;
        if (k == 0) step_sums[at] = make_float2(mine.z, mine.w);
        if (step_changes) step_changes[at] = k + 1 == unfolds ? moved : step_changes[at] + moved;
      }
      if (k > 0 || r > 0) look_ahead(q, n + 1, k > 0 ? r : r - 1, k > 0 ? k - 1 : unfolds - 1);
    };
#pragma unroll 1
    for (int q = 0; q < live; q++) {
      const i64 b = first_row(q) + row;
      float a = 0.0f, after = 0.0f;
      if (j != ~0u && b < batch) {
        a = grad_end[b * end_b + opaque(j) * end_h];
        if (steps > 0) after = states[(b * total_steps + t0 + steps - 1) * hidden + j];
      }
      own[q * blockDim.x] = make_float4(a, after, 0.0f, 0.0f);
      for (int i = 0; i < 2; i++) put(ahead + (i * groups + q) * blockDim.x, 0.0f, 0.0f, 1.0f, 0.0f);
      if (steps > 0) {
        look_ahead(q, n, steps - 1, unfolds - 1);
        prepare(q, n, steps - 1, unfolds - 1, a);
      }
    }
#pragma unroll 1
    for (int r = steps - 1; r >= 0; r--) {
#pragma unroll 1
      for (int k = unfolds - 1; k >= 0; k--, n++) {
#pragma unroll 1
        for (int q = 0; q < live; q++) {
          const float2 there = *(const float2*)(ahead + ((n & 1) * groups + q) * blockDim.x);
          float v[kRows], total[kRows];
          v[0] = there.x;
          if constexpr (kRows == 2) v[1] = there.y;
#pragma unroll
          for (int i = 0; i < kRows; i++) total[i] = 0.0f;
          exchange.take(q, n);
          adjoint_gates<0>(held, sums, shape.y, exchange.tile(q, n), v, total);
          const float sum = owner_sum(total, lane, shape.x);
          const float a = own[q * blockDim.x].x + sum;
          if (k > 0 || r > 0) {
            prepare(q, n + 1, k > 0 ? r : r - 1, k > 0 ? k - 1 : unfolds - 1, a);
          } else {
            own[q * blockDim.x].x = a;
          }
        }
      }
    }
#pragma unroll 1
    for (int q = 0; q < live; q++) {
      const i64 b = first_row(q) + row;
      if (writer && b < batch) grad_start[b * hidden + j] = own[q * blockDim.x].x;
    }
  }
  float4* after = saved_sums();
#pragma unroll
  for (int i = 0; i < kSlots; i++) after[(i64)i * blockDim.x] = sums.of[i];
#pragma unroll
  for (int o = 1; o < kRows; o *= 2) {
    sum_alpha += __shfl_xor_sync(~0u, sum_alpha, o);
    sum_beta += __shfl_xor_sync(~0u, sum_beta, o);
    sum_change += __shfl_xor_sync(~0u, sum_change, o);
  }
  if (j != ~0u && sub == 0) {
    float4* to = neuron_sums + ((i64)(opaque(blockIdx.x) / (int)blocks) * hidden + j);
    float4 s = first_chunk ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : *to;
    *to = make_float4(s.x + sum_alpha, s.y + sum_beta, s.z + sum_change, 0.0f);
  }
  exchange.end();
}
