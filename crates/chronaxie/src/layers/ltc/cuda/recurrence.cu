// LTC, forward, with every synapse held in registers for the whole sequence (the equations: forward.cu).
//
// A cluster of blocks, or one block, holds all recurrent synapses and walks kRows batch rows, or several such groups side
// by side, through all steps and unfolds. Ns and Ds come from sensory.cu.
// Within a cluster each block owns some targets (exchange.cuh). While the states of one group travel, the next group is
// computed.
//
// Work: a gate is 1 load of kRows values for kRows gates, 1 + 2 fused multiply-adds, and 1 (fast: tanh) or 2 (exact:
// ex2, rcp) operations of the special-function unit, 16 a clock and multiprocessor, which bind once there are enough
// rows: floor (H200, 1.98 GHz, fast) 1.5 ms for B128 T256 H256 at density 0.5. With one group of rows the chain of an
// unfold binds: load, gates, shuffles, division, store to the others (exchange.cuh).
// Clocks of an unfold with 128 synapses a target and nothing else (H200, fast): in a cluster of 4, H 256, 512 threads, 2
// rows, 1667 for one group, 1170 each of several (88 % of the special-function unit), 1 row 1090 and 785 (issue slots
// bind); in a cluster of 8 with 256 threads, 1 row, 913 and 585; H 128 in a cluster of 4 576, of 2 651, in one block 900.
// Tried: sums of one group finished among the gates of the next: 5 to 10 % slower; four rows with synapses in shared memory:
// a third fewer instructions, and as long (loads and special operations wait for the same queue); starting each kernel ahead
// of the end of the one before it: clusters then find some multiprocessors taken and share others, 20 % slower.
// One block with four rows side by side (512 threads, 20 slots): each lane of a target stores the row that it ends, and a warp waits for
// the others only before it reads, so that it has gates of one group while states of the other are still made. Many rows of up to
// 128 neurons, and their rebuilt unfolds: 8 rows of 128 neurons at half density are 4200 clocks of the special-function unit an unfold, and
// take some 6200 (H100, reckoned from the pass; B512 T32 D32 H128 0.336 ms, two rows side by side 0.406; B32 T64 H128's rebuilt unfolds 26 us a chunk, 33).
// kRebuild: for the backward pass every step is a row of its own, which starts from the state before it; only the
// states and denominators of its unfolds are written.
// Bytes: the parameters once, Ns and Ds written once and read once from L2 for every unfold, the outputs once.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = false;
#include "exchange.cuh"
#include "parts.cuh"

// Dynamic shared memory: for each group and thread what the next step adds and, where there are several groups, what
// this step adds, 16 bytes each; for each thread 8 bytes; where there are several groups, 16 bytes for each and each warp;
// the states of each group, twice [H, kRows]; two barriers for each group.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
ltc_recurrence(Schedule schedule,
               const float* __restrict__ gleak, const float* __restrict__ vleak, const float* __restrict__ cm,
               const float2* __restrict__ sensory,  // [B, steps, H], also if kRebuild
               const float* start, i64 start_b, i64 start_h,                     // [B, H], any strides, or null: zeros
               const float* __restrict__ elapsed, i64 elapsed_b, i64 elapsed_t, float dt,  // [B, T] or null: dt
               const float* __restrict__ output_w, const float* __restrict__ output_b,     // [M] or null
               float* __restrict__ out,                                          // [B, T, M]
               float* __restrict__ states,                                       // [B, T, H] or null
               float* final_state,                                               // [B, H]
               float* __restrict__ unfold_states, float* __restrict__ unfold_dens,  // [B, T, K, H] or null; as in row.cuh
               int batch, int hidden, int outputs, int unfolds, int total_steps, int t0, int steps, int groups,
               int constrained, float epsilon,
               const float* __restrict__ before, int rows_per_batch,  // kRebuild: [B, T, H], steps of a batch row
               unsigned* carried) {  // [B, H] of kAwaited where a group may be cut
  const int sums_steps = steps;
  if (kRebuild) steps = 1;
  extern __shared__ __align__(16) char shared[];
  if (!kMany) groups = 1;
  unsigned rank = 0, blocks = 1;
#if __CUDA_ARCH__ >= 900
  if (kCluster) rank = cluster_rank(), blocks = cluster_blocks();
#endif
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int2 shape = schedule.warps[rank * (blockDim.x / 32) + warp];
  shape = make_int2(uniform(shape.x), uniform(shape.y));
  const int owner = schedule.target[rank * blockDim.x + threadIdx.x];
  const unsigned j = owner < 0 ? ~0u : owner & 0xffff, place = owner < 0 ? ~0u : owner >> 16;
  const int sub = lane & (shape.x - 1);
  const bool writer = opaque(j != ~0u && sub < kRows);
  // This thread's own; no other thread reads it.
  float4* ahead = (float4*)shared + threadIdx.x;  // Ns, Ds and time of the next step, and rate_c
  float4* own = (float4*)shared + blockDim.x * (kMany ? groups : 0) + threadIdx.x;  // c, num, den, v of this step
  const int all = blockDim.x * groups * (kMany ? 32 : 16);
  auto bases = [&] { return (float2*)(shared + all) + opaque(threadIdx.x); };  // of num and den
  // This warp's own.
  Part* parts = (Part*)(shared + all + blockDim.x * 8) + warp * groups;
  char* tiles = shared + all + blockDim.x * 8 + (kMany ? groups * (blockDim.x / 32) * (int)sizeof(Part) : 0);
  const Exchange<kRows> exchange(tiles, hidden, groups, place, sub, shape.x);
  // The states of group q after unfold n - 1, to all blocks.
  auto give = [&](int q, unsigned n, float mine) {
    if constexpr (kOwnRows) return exchange.give_own(q, n, mine);
    float x[kRows];
    all_rows(mine, lane, x);
    exchange.give(q, n, x);
  };
  Part alone = {0, 0, 0, 0};
  auto part_of = [&](int q) -> Part { return kMany ? parts[q] : alone; };
  auto keep_part = [&](int q, Part p) {
    if (!kMany) {
      alone = p;
      return;
    }
    __syncwarp();
    if (lane == 0) parts[q] = p;
    __syncwarp();
  };
  const int all_groups = (batch + kRows - 1) / kRows;
  {
    const bool idle = exchange.idle();
#pragma unroll 1
    for (int q = 0; q < groups; q++) {
      const Part none = {0, 0, 0, 0};
      keep_part(q, idle ? none : first_part(q, groups, blockIdx.x / blocks, gridDim.x / blocks, all_groups, steps));
    }
  }
  // Of the neuron: c (c dt where times are given), g vleak, g + epsilon. Before the synapses take the registers.
  float rate_c = 0.0f, base_num = 0.0f, base_den = 1.0f;
  if (j != ~0u) {
    float g = positive(gleak[j], constrained);
    rate_c = positive(cm[j], constrained) * (float)unfolds / (elapsed ? 1.0f : dt);
    base_num = g * vleak[j];
    base_den = g + epsilon;
  }
#pragma unroll 1
  for (int q = 0; q < groups; q++) ahead[q * blockDim.x].w = rate_c;
  *bases() = make_float2(base_num, base_den);
  float p0, q0;
  const Held held = hold(schedule, rank, p0, q0);
  p0 = lanes_sum(p0, shape.x), q0 = lanes_sum(q0, shape.x);
  *bases() = make_float2(bases()->x + q0, bases()->y + p0);

  // The lane's row; rows beyond the batch stay at zero.
  auto batch_row = [&](int group) { return group * kRows + (opaque(threadIdx.x) & (kRows - 1)); };
  auto look_ahead = [&](int q, int group, int step) {
    const i64 b = batch_row(group);
    if (j == ~0u || b >= batch) return;
    const int sequence = kRebuild ? (int)b / rows_per_batch : (int)b;
    if (kRebuild) step = (int)b - sequence * rows_per_batch;
    copy_ahead<8>(ahead + q * blockDim.x, sensory + (((i64)sequence * sums_steps + step) * hidden + j));
    if (elapsed) {
      const i64 at = sequence * elapsed_b + (t0 + step) * elapsed_t;
      copy_ahead<4>((float*)(ahead + q * blockDim.x) + 2, elapsed + at);
    }
  };
  // The state from which the part goes on; the row's inputs are on their way.
  auto begin = [&](int q, const Part& p) {
    const i64 b = batch_row(p.group);
    float v = 0.0f;
    put(ahead + q * blockDim.x, 0.0f, 0.0f, 1.0f);
    if (steps > 0) look_ahead(q, p.group, p.step);
    if (j != ~0u && b < batch) {
      if (kRebuild) {
        // Row b is a step: its state before is in `before`, or for the first step where the sequence starts.
        const int sequence = (int)b / rows_per_batch, t = t0 + (int)b - sequence * rows_per_batch;
        if (t > 0)
          v = before[((i64)sequence * total_steps + t - 1) * hidden + opaque(j)];
        else if (start)
          v = start[sequence * start_b + opaque(j) * start_h];
      } else if (p.step > 0) {
        v = await_state(carried + (b * hidden + opaque(j)));
      } else if (start) {
        v = start[b * start_b + opaque(j) * start_h];
      }
    }
    if (!kRebuild && p.step > 0) {
      // For the next launch.
      __syncwarp();
      if (writer && b < batch) carried[b * hidden + opaque(j)] = kAwaited;
    }
    if (kMany) own[q * blockDim.x].w = v;
    return v;
  };

  float c = 0.0f, num0 = 0.0f, den0 = 1.0f, v = 0.0f;
  unsigned n = 0;
#pragma unroll 1
  for (int q = 0; q < groups; q++) {
    const Part p = part_of(q);
    if (p.left == 0) break;
    v = begin(q, p);
    give(q, n, v);
  }
  // Without steps the last states are the first.
#pragma unroll 1
  for (int group = blockIdx.x / blocks; steps == 0 && group < all_groups; group += gridDim.x / blocks) {
    v = begin(0, Part{group, 0, 0, 0});
    if (writer && batch_row(group) < batch) final_state[(i64)batch_row(group) * hidden + j] = v;
  }
#pragma unroll 1
  while (true) {
    copies_here();
    int here = 0, ending = 0;  // slots that have this step; bits of those of whose part it is the last
#pragma unroll 1
    for (int q = 0; q < groups; q++) {
      const Part p = part_of(q);
      // Later slots have no more.
      if (p.left == 0) break;
      here = q + 1;
      if (!kRebuild) ending |= (p.left == 1) << q;
      float4 s = ahead[q * blockDim.x];
      c = elapsed ? __fdiv_rn(s.w, s.z) : s.w;
      const float2 base = *bases();
      num0 = base.x + s.x;
      den0 = base.y + c + s.y;
      if (kMany) put(own + q * blockDim.x, c, num0, den0);
      if (!kRebuild && p.left > 1) look_ahead(q, p.group, p.step + 1);
    }
    here = uniform(here), ending = kRebuild ? -1 : uniform(ending);
    if (here == 0) break;
    if (!kMany) here = 1;
#pragma unroll 1
    for (int k = 0; k < unfolds; k++, n++) {
#pragma unroll 1
      for (int q = 0; q < here; q++) {
        exchange.take(q, n);
        float sum[2 * kRows], num, den;
        gate_sums(held, shape.y, exchange.tile(q, n), sum);
        if (kMany) {
          float4 s = own[q * blockDim.x];
          c = s.x, num0 = s.y, den0 = s.z, v = s.w;
        }
        const float base = fmaf(c, v, num0);
        totals(sum, lane, shape.x, num, den);
        den += den0;
        const float next = quotient(num + base, den);
        // After the last unfold of a part the next part's state is given instead.
        if (k + 1 < unfolds || !(ending >> q & 1)) give(q, n + 1, next);
        if (unfold_states) {
          const Part p = part_of(q);
          const i64 b = batch_row(p.group);
          if (writer && b < batch) {
            const i64 step = kRebuild ? b : b * total_steps + (t0 + p.step);
            const i64 trace = (step * unfolds + k) * hidden + j;
            // Words are of fast ones.
            if (kRebuild || !kFast || unfold_dens) {
              unfold_states[trace] = v;
              unfold_dens[trace] = den;
            } else {
              // 1 / den of the step's first unfold lies ahead of the words; their place is made anew, since registers are short.
              volatile float* const at = unfold_states + ((step * (unfolds + 1)) * opaque((unsigned)hidden) + opaque(j));
              if (k == 0)
                at[0] = reciprocal(den), at[hidden] = v;
              else
                ((volatile unsigned*)at)[(k + 1) * hidden] = pack_unfold(v, den, at[0]);
            }
          }
        }
        v = next;
        if (kMany) own[q * blockDim.x].w = v;
      }
    }
#pragma unroll 1
    for (int q = 0; q < here; q++) {
      Part p = part_of(q);
      const i64 b = batch_row(p.group);
      if (!kRebuild && writer && b < batch) {
        if (kMany) v = own[q * blockDim.x].w;
        const i64 at = b * total_steps + (t0 + p.step);
        if (states) states[at * hidden + j] = v;
        if ((int)j < outputs) {
          float y = v;
          if (output_w) y *= output_w[j];
          if (output_b) y += output_b[j];
          out[at * outputs + j] = y;
        }
        if (p.step + 1 == steps)
          final_state[b * hidden + opaque(j)] = v;
        else if (p.left == 1)
          ((volatile unsigned*)carried)[b * hidden + opaque(j)] = __float_as_uint(v);
      }
      p.step++, p.left--;
      if (p.left == 0 && p.rest > 0) {
        p = next_part(p, steps);
        v = begin(q, p);
        give(q, n, v);
      }
      keep_part(q, p);
    }
  }
  exchange.end();
}
