// LTC, forward, with every synapse held in registers for the whole sequence (the equations: forward.cu).
//
// A cluster of blocks, or one block, holds all recurrent synapses and walks kRows batch rows, or several such groups in
// turn, through all steps and unfolds. Ns and Ds come from sensory.cu.
// Within a cluster each block owns some targets (exchange.cuh). While the states of one group travel, the next group is
// computed.
//
// Work: a gate is 1 load of kRows values for kRows gates, 1 + 2 fused multiply-adds, and 1 (fast: tanh) or 2 (exact:
// ex2, rcp) operations of the special-function unit, 16 a clock and multiprocessor, which bind once there are enough
// rows: floor (H200, 1.98 GHz, fast) 1.5 ms for B128 T256 H256 at density 0.5. With few rows the chain of an unfold
// binds: wait, load, gates, shuffles, division, store to the others. Measured: 400 clocks in one block, 750 in a cluster of
// 3, 900 in one of 8, with next to no synapses. It is not hidden by other groups of the same block, whose warps run in
// step: a group takes about 960 clocks and 280 a row in a cluster of 8 at H 256. Two blocks on a multiprocessor hide some.
// Tried (ms, B128 T256 H256 forward): 4 rows 5.15, 16 warps of 12 slots 5.8, clusters of 4 and 5 5.05 (30 and 22 fit, so
// that some take 3 groups), warps that start apart 5.82 as without; two blocks of 256 threads with 128 registers 4.59.
// kRebuild: for the backward pass every step is a row of its own, which starts from the state before it; only the
// states and denominators of its unfolds are written.
// Bytes: the parameters once, Ns and Ds written once and read once from L2 for every unfold, the outputs once.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
#include "exchange.cuh"

// Dynamic shared memory: for each group and thread what the next step adds and, where there are several groups, what
// this step adds, 16 bytes each; for each thread 8 bytes; the states of each group, twice [H, kRows]; two barriers for
// each group.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
ltc_recurrence(Schedule schedule,
               const float* __restrict__ gleak, const float* __restrict__ vleak, const float* __restrict__ cm,
               const float2* __restrict__ sensory,                               // [B, steps, H]
               const float* start, i64 start_b, i64 start_h,                     // [B, H], any strides, or null: zeros
               const float* __restrict__ elapsed, i64 elapsed_b, i64 elapsed_t, float dt,  // [B, T] or null: dt
               const float* __restrict__ output_w, const float* __restrict__ output_b,     // [M] or null
               float* __restrict__ out,                                          // [B, T, M]
               float* __restrict__ states,                                       // [B, T, H] or null
               float* final_state,                                               // [B, H]
               float* __restrict__ unfold_states, float* __restrict__ unfold_dens,  // [B, T, K, H] or null
               int batch, int hidden, int outputs, int unfolds, int total_steps, int t0, int steps, int groups,
               int constrained, float epsilon,
               const float* __restrict__ before, int rows_per_batch) {  // kRebuild: [B, T, H], steps of a batch row
  if (kRebuild) steps = 1;
  extern __shared__ __align__(16) char shared[];
  if (!kMany) groups = 1;
  unsigned rank = 0, blocks = 1;
#if __CUDA_ARCH__ >= 900
  if (kCluster) rank = cluster_rank(), blocks = cluster_blocks();
#endif
  const int clusters = gridDim.x / blocks;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int2 shape = schedule.warps[rank * (blockDim.x / 32) + warp];
  shape = make_int2(uniform(shape.x), uniform(shape.y));
  const unsigned j = schedule.target[rank * blockDim.x + threadIdx.x];
  float p0, q0;
  const Held held = hold(schedule, rank, p0, q0);
  const int sub = lane & (shape.x - 1), row = row_of(lane);
  const bool writer = opaque(j != ~0u && sub < 2 * kRows && !(lane & 1));
  p0 = lanes_sum(p0, shape.x), q0 = lanes_sum(q0, shape.x);
  float rate_c = 0.0f, base_num = q0, base_den = 1.0f;  // c (c dt where times are given), g vleak, g + epsilon
  if (j != ~0u) {
    float g = positive(gleak[j], constrained);
    rate_c = positive(cm[j], constrained) * (float)unfolds / (elapsed ? 1.0f : dt);
    base_num = fmaf(g, vleak[j], q0);
    base_den = g + epsilon + p0;
  }
  // This thread's own; no other thread reads it.
  float4* ahead = (float4*)shared + threadIdx.x;  // Ns, Ds and time of the next step, and rate_c
  float4* own = (float4*)shared + blockDim.x * (kMany ? groups : 0) + threadIdx.x;  // c, num, den, v of this step
  float2* bases = (float2*)(shared + blockDim.x * groups * (kMany ? 32 : 16)) + threadIdx.x;  // of num and den
  char* tiles = shared + blockDim.x * (groups * (kMany ? 32 : 16) + 8);
  const Exchange<kRows> exchange(tiles, hidden, groups, j, sub, shape.x);
  // The states of group q after unfold n - 1, to all blocks.
  auto give = [&](int q, unsigned n, float mine) {
    float x[kRows];
    all_rows(mine, lane, x);
    exchange.give(q, n, x);
  };
#pragma unroll 1
  for (int q = 0; q < groups; q++) ahead[q * blockDim.x].w = rate_c;
  *bases = make_float2(base_num, base_den);
  const int all_groups = (batch + kRows - 1) / kRows;
  unsigned n = 0;
  for (int wave = exchange.idle() ? all_groups : blockIdx.x / blocks; wave < all_groups; wave += clusters * groups) {
    int live = 1;
    if (kMany) live = min(groups, (all_groups - wave + clusters - 1) / clusters);
    // Of the lane's row in group q; rows beyond the batch stay at zero.
    auto batch_row = [&](int q) { return (wave + q * clusters) * kRows + row; };
    auto look_ahead = [&](int q, int r) {
      const i64 b = batch_row(q);
      if (j == ~0u || b >= batch) return;
      copy_ahead<8>(ahead + q * blockDim.x, sensory + ((b * steps + r) * hidden + j));
      if (elapsed) {
        const int sequence = kRebuild ? (int)b / rows_per_batch : (int)b;
        const int t = t0 + (kRebuild ? (int)b - sequence * rows_per_batch : r);
        const i64 at = sequence * elapsed_b + t * elapsed_t;
        copy_ahead<4>((float*)(ahead + q * blockDim.x) + 2, elapsed + at);
      }
    };
    float c = 0.0f, num0 = 0.0f, den0 = 1.0f, v = 0.0f;
    for (int q = 0; q < live; q++) {
      const i64 b = batch_row(q);
      v = 0.0f;
      if (j != ~0u && b < batch) {
        if (kRebuild) {
          // Row b is a step: its state before is in `before`, or for the first step where the sequence starts.
          const int sequence = (int)b / rows_per_batch, t = t0 + (int)b - sequence * rows_per_batch;
          if (t > 0)
            v = before[((i64)sequence * total_steps + t - 1) * hidden + j];
          else if (start)
            v = start[sequence * start_b + opaque(j) * start_h];
        } else if (start) {
          v = start[b * start_b + opaque(j) * start_h];
        }
      }
      put(ahead + q * blockDim.x, 0.0f, 0.0f, 1.0f);
      if (steps == 0) {
        if (writer && b < batch) final_state[b * hidden + j] = v;
        continue;
      }
      if (kMany) own[q * blockDim.x].w = v;
      look_ahead(q, 0);
      give(q, n, v);
    }
#pragma unroll 1
    for (int r = 0; r < steps; r++) {
      copies_here();
#pragma unroll 1
      for (int q = 0; q < live; q++) {
        float4 s = ahead[q * blockDim.x];
        c = elapsed ? __fdiv_rn(s.w, s.z) : s.w;
        num0 = bases->x + s.x;
        den0 = bases->y + c + s.y;
        if (kMany) put(own + q * blockDim.x, c, num0, den0);
        if (r + 1 < steps) look_ahead(q, r + 1);
      }
#pragma unroll 1
      for (int k = 0; k < unfolds; k++, n++) {
        const bool last = r + 1 == steps && k + 1 == unfolds;
#pragma unroll 1
        for (int q = 0; q < live; q++) {
          exchange.take(q, n);
          if (kMany) {
            float4 s = own[q * blockDim.x];
            c = s.x, num0 = s.y, den0 = s.z, v = s.w;
          }
          float sum[2 * kRows], num, den;
          gate_sums(held, shape.y, exchange.tile(q, n), sum);
          float base = fmaf(c, v, num0);
          reduce(sum, lane, shape.x, num, den);
          den += den0;
          float next = kFast ? __fdividef(num + base, den) : __fdiv_rn(num + base, den);
          if (!last) give(q, n + 1, next);
          if (unfold_states && writer && batch_row(q) < batch) {
            i64 step = kRebuild ? (i64)batch_row(q) : (i64)batch_row(q) * total_steps + (t0 + r);
            i64 trace = (step * unfolds + k) * hidden + j;
            unfold_states[trace] = v;
            unfold_dens[trace] = den;
          }
          v = next;
          if (kMany) own[q * blockDim.x].w = v;
        }
      }
#pragma unroll 1
      for (int q = 0; q < live && !kRebuild; q++) {
        const i64 b = batch_row(q);
        if (!writer || b >= batch) continue;
        if (kMany) v = own[q * blockDim.x].w;
        i64 at = b * total_steps + (t0 + r);
        if (states) states[at * hidden + j] = v;
        if ((int)j < outputs) {
          float y = v;
          if (output_w) y *= output_w[j];
          if (output_b) y += output_b[j];
          out[at * outputs + j] = y;
        }
        if (r + 1 == steps) final_state[b * hidden + j] = v;
      }
    }
  }
  exchange.end();
}
