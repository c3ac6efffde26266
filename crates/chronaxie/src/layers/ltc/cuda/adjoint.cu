// LTC, backward through the recurrence, with every synapse and its four sums held in registers (the equations:
// backward.cu). For each unfold, last first, with a_j = dL/dv'_j:
//   alpha_j = a_j / den_j      beta_j = -alpha_j v'_j      dz_ij = (alpha_j q_ij + beta_j p_ij) r_ij (1 - r_ij)
//   a_i <- alpha_i c_i + sum_j dz_ij sigma_ij
// and for each synapse the sums of alpha_j r_ij, beta_j r_ij, dz_ij, dz_ij (v_i - mu_ij).
//
// A thread holds synapses of one source i, so that v_i is its own and alpha, beta of the targets are what it gathers
// from shared memory; otherwise everything is as in recurrence.cu: a cluster walks groups of kRows batch rows, several in
// turn, and cuts some in two (parts.cuh; its steps are counted from the last); alpha and beta travel to all its blocks once
// an unfold. States and denominators of the unfolds come from a trace, copied two unfolds ahead by one lane for each source
// and row. Each cluster adds to its own sums, in the order of its rows, and close.cu adds clusters in order: no atomics, the
// same bits every run.
// Work: a gate is 1 special operation (exact: 2) and 10 (12) others, so issue slots bind: 11.5 / 4 clocks of a
// multiprocessor for 32 gates. Floor (H200, 1.98 GHz): 2.2 ms for B128 T256 H256 at density 0.5. What is beside the gates is
// about 100 instructions a warp, group of rows and unfold, whatever kRows: four rows a group make it small.
// Clocks of an unfold and group (H200, fast, 256 sources at density 0.5 in a cluster of 8; reckoned from the time of the whole
// pass, less that of its other kernels): 1660 for one row, 2200 for two,
// 3390 for four, of which a row takes 550; several groups in turn hide nothing of that where there are 8 warps. With one
// group of one row: 128 sources in a cluster of 3 1780. Tried: 16 lanes a source and 512 threads 15 % slower; clusters of 6
// and 7, on more multiprocessors, 10 % slower.
// Tried for one row: its gates before alpha and beta are waited for, since states are known ahead, 6 % slower. Alpha alone travels,
// and u_ij = (q_ij - v'_j p_ij) r_ij (1 - r_ij), which is known ahead too, takes the place of p and q: 14 operations a synapse
// instead of 11, with 11 warps 1550 to 1790 clocks (a warp's instructions go in order, and are the chain); with the sums of
// synapses left to a kernel over all unfolds 1260 in one block (H 64) and 2500 in a cluster of 3, where warps that hold different
// numbers of synapses had code of their own and waited for instructions a third of the time; and 110 us a chunk for the sums.
// Bytes: 8 for each of B T K H read once, 8 B T H written, and 16 a synapse and cluster.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = kRows == 4;
#include "exchange.cuh"
#include "gate_sums.cuh"
#include "parts.cuh"

// What a thread keeps of a group of rows, for its source and row.
struct alignas(16) Turn {
  float kept, after;          // alpha c of the unfold that is under way, and v'
  float alpha, beta;          // their sums over a step
  float inverse, change;      // 1 / elapsed time, or 1; the sum of alpha (v - v') over a step
  const float* from;          // v of the unfold that is copied next, or null: not this lane
};
// What a thread keeps of its source for the whole launch, where registers are short.
struct alignas(16) Kept {
  float rate_c;            // c, or c dt where times are given
  unsigned at;             // where in a tile the rows lie of which this lane has one
  int first, givers;       // which of the lanes it is that have them, and of how many
  float alpha, beta, change, unused;  // sums over everything
};
constexpr int kAhead = 4;  // unfolds that have room, of which two are on their way

// Dynamic shared memory: where synapses lie there, kPitch of 16 bytes a thread; for each thread what it keeps, 32 bytes; for each group and thread a Turn, v and den of four
// unfolds, and dL/d out and time of a step, 72 bytes; 16 for each group and warp; alpha and beta of each group, twice [H, 2 kRows]; two barriers for each group.
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
                 unsigned* carried,                  // [B, H] of kAwaited where a group may be cut
                 int batch, int hidden, int outputs, int unfolds, int total_steps, int t0, int steps, int groups,
                 int first_chunk, int constrained) {
  extern __shared__ __align__(16) char shared[];
  unsigned rank = 0, blocks = 1;
#if __CUDA_ARCH__ >= 900
  if (kCluster) rank = cluster_rank(), blocks = cluster_blocks();
#endif
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int2 shape = schedule.warps[rank * (blockDim.x / 32) + warp];
  shape = make_int2(uniform(shape.x), uniform(shape.y));
  const int owner = schedule.target[rank * blockDim.x + threadIdx.x];
  const unsigned j = owner < 0 ? ~0u : owner & 0xffff;
  float p0, q0;
  const Held held = hold(schedule, rank, p0, q0, (float4*)shared);
  char* rest_of_shared = shared + (kShared ? blockDim.x * kPitch * sizeof(float4) : 0);
  // The lane's row; the first kRows lanes of a source copy and write.
  const int sub = lane & (shape.x - 1), row = lane & (kRows - 1);
  const bool leads = j != ~0u && sub < kRows;
  const unsigned plane = hidden * 8 * kPlane;
  Kept* kept = (Kept*)rest_of_shared + threadIdx.x;
  {
    const float c = owner < 0 ? 0.0f : positive(cm[j], constrained) * (float)unfolds / (elapsed ? 1.0f : dt);
    const unsigned at = (row / kPlane) * plane + (owner < 0 ? 0 : owner >> 16) * 8 * kPlane;
    const int first = owner < 0 ? 1 << 20 : kRows == 4 ? (sub >> 2) * 2 + (sub & 1) : sub;
    *kept = {c, at, first, kRows == 4 ? shape.x / 2 : shape.x, 0.0f, 0.0f, 0.0f, 0.0f};
  }
  Sums sums;
  auto saved_sums = [&] { return gate_sums + (i64)opaque(blockIdx.x) * kSlots * blockDim.x + threadIdx.x; };
  const float4* before = saved_sums();
#pragma unroll
  for (int i = 0; i < kSlots; i++)
    sums.of[i] = first_chunk ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : before[(i64)i * blockDim.x];
  const int size = groups * blockDim.x;
  Turn* turns = (Turn*)(rest_of_shared + blockDim.x * sizeof(Kept)); // [groups, threads]
  float2* ahead = (float2*)(turns + size);                           // [kAhead, groups, threads]: v, den
  float2* step_data = ahead + kAhead * size;                         // [groups, threads]: dL/d out, elapsed
  Part* parts = (Part*)(step_data + size) + warp * groups;           // this warp's own
  char* tiles = (char*)((Part*)(step_data + size) + groups * (blockDim.x / 32));
  const Exchange<2 * kRows> exchange(tiles, hidden, groups, owner < 0 ? ~0u : (unsigned)owner >> 16, sub, shape.x);
  auto slot_of = [&](unsigned n, int q) { return ahead + (((n & (kAhead - 1)) * groups + q) * blockDim.x); };
  auto part_of = [&](int q) -> Part { return parts[q]; };
  auto keep_part = [&](int q, Part p) {
    __syncwarp();
    if (lane == 0) parts[q] = p;
    __syncwarp();
  };
  auto row_of_part = [&](const Part& p) { return (i64)p.group * kRows + row; };
  // dL/d out and the time of step r.
  auto look_at_step = [&](int q, i64 b, int r) {
    float* to = (float*)(step_data + (q * blockDim.x + threadIdx.x));
    if ((int)j < outputs) copy_ahead<4>(to, grad_out + (b * grad_b + (t0 + r) * grad_t + (i64)opaque(j) * grad_m));
    if (elapsed) copy_ahead<4>(to + 1, elapsed + (b * elapsed_b + (t0 + r) * elapsed_t));
  };
  auto look_ahead = [&](unsigned n, int q, const float* from) {
    float* to = (float*)(slot_of(n, q) + threadIdx.x);
    copy_ahead<4>(to, from);
    copy_ahead<4>(to + 1, from + (trace_den - trace_v));
  };
  // From a = dL/dv' of the unfold of round n, its v and denominator, to its alpha and beta, given to all.
  auto prepare = [&](int q, unsigned n, int k, float a, float2 here, float after, float2 sums_so_far) {
    const float alpha = quotient(a, here.y), beta = -alpha * after;
    float pair[2 * kPlane];
    pair[0] = alpha, pair[1] = beta;
    if constexpr (kPlane == 2) {
      const float other_alpha = __shfl_xor_sync(~0u, alpha, 1), other_beta = __shfl_xor_sync(~0u, beta, 1);
      const bool upper = lane & 1;
      pair[0] = upper ? other_alpha : alpha, pair[1] = upper ? other_beta : beta;
      pair[2] = upper ? alpha : other_alpha, pair[3] = upper ? beta : other_beta;
    }
    const float4 fixed = *(const float4*)kept;
    exchange.give_plane(q, n, __float_as_uint(fixed.y), __float_as_int(fixed.z), __float_as_int(fixed.w), pair);
    Turn* turn = turns + (q * blockDim.x + threadIdx.x);
    const float4 rest = ((const float4*)turn)[1];
    Turn next;
    next.from = turn->from;
    next.kept = alpha * (elapsed ? fixed.x * rest.x : fixed.x), next.after = here.x;
    next.alpha = sums_so_far.x + alpha, next.beta = sums_so_far.y + beta;
    next.inverse = rest.x, next.change = rest.y + fmaf(alpha, here.x, beta);
    if (next.from && (k >= 2 || (part_of(q).left - 1) * unfolds + k >= 2)) {
      look_ahead(n + 2, q, next.from);
      next.from -= hidden;
    }
    commit_copies();
    *turn = next;
  };
  // Starts a part with round n: a = dL/dv' of its first unfold.
  auto begin = [&](int q, unsigned n, const Part& p) {
    const i64 b = row_of_part(p);
    const int r = steps - 1 - p.step;
    Turn turn = {0.0f, 0.0f, 0.0f, 0.0f, 1.0f, 0.0f, nullptr};
    float a = 0.0f;
    __syncwarp();
    for (int i = 0; i < kAhead; i++) slot_of(i, q)[threadIdx.x] = make_float2(0.0f, 1.0f);
    step_data[q * blockDim.x + threadIdx.x] = make_float2(0.0f, 1.0f);
    if (j != ~0u && b < batch) {
      const i64 at = (b * steps + r) * hidden + j;
      a = p.step == 0 ? grad_end[b * end_b + (i64)j * end_h] : await_state(carried + (b * hidden + j));
      turn.after = states[(b * total_steps + t0 + r) * hidden + j];
      if ((int)j < outputs) {
        const float g = grad_out[b * grad_b + (t0 + r) * grad_t + (i64)j * grad_m];
        a += output_w ? g * output_w[j] : g;
      }
      if (elapsed) turn.inverse = 1.0f / elapsed[b * elapsed_b + (t0 + r) * elapsed_t];
      if (p.left > 1) look_at_step(q, b, r - 1);
      if (leads) {
        const float* from = trace_v + (b * trace_b + ((i64)r * unfolds + unfolds - 1) * hidden + j);
        look_ahead(n, q, from);
        if (p.left * unfolds > 1) look_ahead(n + 1, q, from - hidden);
        turn.from = from - 2 * (i64)hidden;
      }
    }
    __syncwarp();
    // For the next launch.
    if (p.step > 0 && leads && b < batch) carried[b * hidden + j] = kAwaited;
    turns[q * blockDim.x + threadIdx.x] = turn;
    copies_here();
    __syncwarp();
    const float2 here = slot_of(n, q)[(threadIdx.x & ~(shape.x - 1)) + row];
    prepare(q, n, unfolds - 1, a, here, turn.after, make_float2(0.0f, 0.0f));
  };
  const int all_groups = (batch + kRows - 1) / kRows;
  unsigned n = 0;
  {
    const bool idle = exchange.idle();
#pragma unroll 1
    for (int q = 0; q < groups; q++) {
      const Part none = {0, 0, 0, 0};
      const bool walks = !idle && steps > 0;
      keep_part(q, walks ? first_part(q, groups, blockIdx.x / blocks, gridDim.x / blocks, all_groups, steps) : none);
    }
  }
#pragma unroll 1
  for (int q = 0; q < groups; q++) {
    const Part p = part_of(q);
    if (p.left == 0) break;
    begin(q, n, p);
  }
  // Without steps the gradient passes through.
#pragma unroll 1
  for (int group = blockIdx.x / blocks; steps == 0 && group < all_groups; group += gridDim.x / blocks) {
    const i64 b = (i64)group * kRows + row;
    if (leads && b < batch) grad_start[b * hidden + j] = grad_end[b * end_b + (i64)j * end_h];
  }
#pragma unroll 1
  while (true) {
    int here = 0;  // slots that have this step; later ones have no more
    while (here < groups && part_of(here).left > 0) here++;
    here = uniform(here);
    if (here == 0) break;
#pragma unroll 1
    for (int k = unfolds - 1; k >= 0; k--, n++) {
#pragma unroll 1
      for (int q = 0; q < here; q++) {
        earlier_copies_here();
        __syncwarp();
        const float2* there = slot_of(n, q) + (threadIdx.x & ~(shape.x - 1));
        float v[kRows], total[kRows];
#pragma unroll
        for (int i = 0; i < kRows; i += kPlane) {
          if constexpr (kPlane == 2) {
            const float4 two = *(const float4*)(there + i);
            v[i] = two.x, v[i + 1] = two.z;
          } else {
            v[i] = there[i].x;
          }
          for (int r = i; r < i + kPlane; r++) total[r] = 0.0f;
        }
        exchange.take(q, n);
        adjoint_gates<0>(held, sums, shape.y, exchange.tile(q, n), plane, v, total);
        // Of the next unfold, if the part has one.
        const float2 next = slot_of(n + 1, q)[(threadIdx.x & ~(shape.x - 1)) + row];
        const float4 turn = *(const float4*)(turns + (q * blockDim.x + threadIdx.x));
        float a = turn.x + owner_sum(total, lane, shape.x);
        if (k > 0) {
          prepare(q, n + 1, k - 1, a, next, turn.y, make_float2(turn.z, turn.w));
          continue;
        }
        // The step ends.
        Part p = part_of(q);
        const i64 b = row_of_part(p);
        {
          const float2 rest = *(const float2*)&turns[q * blockDim.x + threadIdx.x].inverse;
          const float per_dt = (float)unfolds * (elapsed ? rest.x : 1.0f / dt);
          kept->alpha += turn.z, kept->beta += turn.w;
          kept->change = fmaf(rest.y, per_dt, kept->change);
          if (leads && b < batch) {
            const i64 at = (b * steps + (steps - 1 - p.step)) * hidden + j;
            step_sums[at] = make_float2(turn.z, turn.w);
            if (step_changes) step_changes[at] = rest.y;
          }
        }
        p.step++, p.left--;
        if (p.left > 0) {
          copies_here();
          const float2 data = step_data[q * blockDim.x + threadIdx.x];
          if (j != ~0u && (int)j < outputs) a += output_w ? data.x * output_w[j] : data.x;
          *(float2*)&turns[q * blockDim.x + threadIdx.x].inverse = make_float2(elapsed ? 1.0f / data.y : 1.0f, 0.0f);
          if (p.left > 1 && j != ~0u && b < batch) look_at_step(q, b, steps - 2 - p.step);
          keep_part(q, p);
          prepare(q, n + 1, unfolds - 1, a, next, turn.y, make_float2(0.0f, 0.0f));
          continue;
        }
        if (leads && b < batch) {
          if (p.step == steps)
            grad_start[b * hidden + j] = a;
          else
            ((volatile unsigned*)carried)[b * hidden + j] = __float_as_uint(a);
        }
        if (p.rest > 0) p = next_part(p, steps);
        keep_part(q, p);
        if (p.left > 0) begin(q, n + 1, p);
      }
    }
  }
  float4* after = saved_sums();
#pragma unroll
  for (int i = 0; i < kSlots; i++) after[(i64)i * blockDim.x] = sums.of[i];
  float sum_alpha = kept->alpha, sum_beta = kept->beta, sum_change = kept->change;
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
