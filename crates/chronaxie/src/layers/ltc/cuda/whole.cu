// LTC, forward, of short sequences: one block, or a cluster of kBlocks, does all of one batch row in one launch (whole.cuh). kOthers
// threads of each block make the sums over its share of the inputs of all steps, in shared memory of the first block, while those
// of that which walk fold their synapses; then they walk the recurrence as row.cu does (the equations: forward.cu).
//
// Floor (H200, 1.98 GHz) for B24 T8 D128 H64 at density 0.5 in clusters of four: 96 KB of parameters from L2 into the first
// multiprocessor, 64 bytes a clock: 1500 clocks; 8,192 gates of its inputs, 16 a clock: 510; 48 unfolds of 128 clocks for 2048 gates
// and a chain of about 180 beside them: 14,800. Together 8.5 us.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = false;
constexpr int kWalkers = 256;
constexpr bool kAllSend = false;
#include "whole.cuh"

// Dynamic shared memory: Ns and Ds, [kBlocks, steps, H]; u of eight steps, two planes [inputs of a block, 4]; the matrices of the sides
// that are staged.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
ltc_whole(Schedule schedule, Schedule sensory, RawSide recurrent, RawSide inputs_side,
          const float* __restrict__ gleak, const float* __restrict__ vleak, const float* __restrict__ cm,
          const float* __restrict__ x, i64 stride_b, i64 stride_t, i64 stride_d,
          const float* __restrict__ norm_weight, const float* __restrict__ norm_bias,
          const float* __restrict__ input_w, const float* __restrict__ input_b,  // each [D] or null
          const float* start, i64 start_b, i64 start_h,                          // [B, H], any strides, or null: zeros
          const float* __restrict__ elapsed, i64 elapsed_b, i64 elapsed_t, float dt,  // [B, T] or null: dt
          const float* __restrict__ output_w, const float* __restrict__ output_b,     // [M] or null
          float* __restrict__ out,                                          // [B, T, M]
          float* __restrict__ states,                                       // [B, T, H] or null
          float* final_state,                                               // [B, H]
          float* __restrict__ unfold_states, float* __restrict__ unfold_dens,  // [B, T, K, H] or null
          int hidden, int inputs, int outputs, int unfolds, int steps, int constrained, float epsilon, float norm_epsilon,
          int staged_sides, int input_slots) {
  extern __shared__ __align__(16) char shared[];
  __shared__ __align__(16) char tiles[2 * kTileBytes];
  __shared__ unsigned long long sums_here;  // of several blocks: in the first
  const unsigned rank = rank_of_block();
  const i64 b = blockIdx.x / kBlocks;
  const int share = (inputs + kBlocks - 1) / kBlocks, first = min((int)rank * share, inputs), count = min(share, inputs - first);
  float2* const sums = (float2*)shared;
  float* const u = (float*)(shared + (kBlocks * (i64)steps * hidden * 8 + 15) / 16 * 16);
  char* const room = (char*)(u + kSteps * share);
#if __CUDA_ARCH__ >= 900
  if (kBlocks > 1 && rank == 0 && threadIdx.x == 0) {
    barrier_init(&sums_here, 1);
    barrier_init_fence();
    barrier_expect(&sums_here, kBlocks * steps * hidden * 8);
  }
#endif
  blocks_begin();
  if (threadIdx.x >= kWalkers) {
    const RawSide mine = part_of(inputs_side, rank, input_slots, (i64)first * hidden);
    const Side side = stage(mine, staged_sides & 2, count * hidden, hidden, room + (staged_sides & 1 ? 16 * hidden * hidden : 0),
                            threadIdx.x - kWalkers, kOthers);
    const Inputs in = {x, stride_b, stride_t, stride_d, norm_weight, norm_bias, input_w, input_b, inputs, first, count, norm_epsilon};
    float2* const to = sums + (i64)rank * steps * hidden;
    input_sums(part_of(sensory, rank, input_slots), side, in, b, steps, constrained, u, false,
               [&](int step, int j, float2 both) { store_counted(0, to + step * hidden + j, both, &sums_here); });
    if constexpr (kBlocks == 1) blocks_wait();
    return;
  }
  blocks_begun();
  if (rank > 0) return;
  const Side side = stage(recurrent, staged_sides & 1, hidden * hidden, hidden, room, threadIdx.x, kWalkers);
  int2 shape = schedule.warps[threadIdx.x / 32];
  shape = make_int2(uniform(shape.x), uniform(shape.y));
  Held held;
  float p0 = 0.0f, q0 = 0.0f;
  read_sources(schedule, 0, kWalkers, held);
  const auto here = [] { copies_here(), walkers_meet(); };
  fold_slots<kSlots>(side, kWalkers, threadIdx.x, constrained, here, [&](int i, const float4& f) {
    held.a[i] = f.x, held.b[i] = f.y, held.p[i] = f.z, held.q[i] = f.w;
    p0 += f.z, q0 += f.w;
  });
  const Neurons n = neuron_of(schedule.target[threadIdx.x], shape.x, gleak, vleak, cm, unfolds, elapsed ? 1.0f : dt, constrained,
                              epsilon, p0, q0);
  const Walk w = {sums, 0, start, start_b, start_h, elapsed, elapsed_b, elapsed_t, output_w, output_b, out, states,
                  final_state, unfold_states, unfold_dens, hidden, outputs, unfolds, steps, 0, steps};
  const Others others = {false, false, 0, 0, 0, 0};
  unsigned round = 0;
#if __CUDA_ARCH__ >= 900
  if constexpr (kBlocks > 1) barrier_wait(&sums_here, 0);
#endif
  if constexpr (kBlocks == 1) blocks_wait();
  // The blocks' parts in their order; the walk begins with a barrier.
  for (int e = threadIdx.x; kBlocks > 1 && e < steps * hidden; e += kWalkers) {
    float2 both = sums[e];
#pragma unroll
    for (int r = 1; r < kBlocks; r++) {
      const float2 more = sums[(i64)r * steps * hidden + e];
      both.x += more.x, both.y += more.y;
    }
    sums[e] = both;
  }
  walk_used<kSlots>(shape.y, w, held, n, others, shape.x, tiles, b, round);
}
