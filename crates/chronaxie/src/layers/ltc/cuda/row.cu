// LTC, forward, where one block, or a cluster of small ones, holds every recurrent synapse and walks one batch row: the
// shortest chain of an unfold (the equations: forward.cu). For problems with few rows, whose time is T K such chains.
//
// An unfold is: barrier, the loads of all states that this lane's synapses read, in flight together; their gates; sums over
// the few lanes of a target; division; store. Tiles lie at fixed places, so that addresses are computed once for the
// sequence and not once an unfold; unfolds go in pairs, so that no branch asks which tile it is.
//
// Floor (H200, 1.98 GHz, fast): S synapses take S / 16 clocks of a multiprocessor's special-function unit (H 64 at density 0.5:
// 128; H 128: 512), and the chain beside them, by latencies, about 180, in a cluster about 350. What is measured above that is
// the issue of dependent instructions, four to six clocks each: few warps with many slots are faster than many with few.
// Clocks of an unfold, B32 T64 H128: one block of 8 warps with 40 slots 980, of 16 with 20 1070, clusters of 4 of 4 warps with
// 20 slots 670 (720 to 740 with a branch of the lanes that send; products in four turns 675), of 8 warps with 10 840, of 3 of 6 warps
// 840, of 2 of 8 warps 860 (recurrence.cu: 1000). Computing slots that are not in use costs 15 clocks each there. Tried: polynomials on
// the multiply-add units for a part of the gates: 12 instructions for an error of 2e-3, where issue slots are short already.
// Bytes: as recurrence.cu.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = false;
constexpr int kWalkers = 0;
constexpr bool kAllSend = kCluster;
#include "row.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, 1)
ltc_row(Schedule schedule,
        const float* __restrict__ gleak, const float* __restrict__ vleak, const float* __restrict__ cm,
        const float2* __restrict__ sensory,                               // [B, steps, H]
        const float* start, i64 start_b, i64 start_h,                     // [B, H], any strides, or null: zeros
        const float* __restrict__ elapsed, i64 elapsed_b, i64 elapsed_t, float dt,  // [B, T] or null: dt
        const float* __restrict__ output_w, const float* __restrict__ output_b,     // [M] or null
        float* __restrict__ out,                                          // [B, T, M]
        float* __restrict__ states,                                       // [B, T, H] or null
        float* final_state,                                               // [B, H]
        float* __restrict__ unfold_states, float* __restrict__ unfold_dens,  // [B, T, K, H] or null
        int batch, int hidden, int outputs, int unfolds, int total_steps, int t0, int steps, int constrained, float epsilon) {
  __shared__ __align__(16) char tiles[2 * kTileBytes];
  unsigned rank = 0, blocks = 1;
#if __CUDA_ARCH__ >= 900
  __shared__ unsigned long long barriers[2];
  if (kCluster) rank = cluster_rank(), blocks = cluster_blocks();
#endif
  const int lane = threadIdx.x % 32;
  int2 shape = schedule.warps[rank * (blockDim.x / 32) + threadIdx.x / 32];
  shape = make_int2(uniform(shape.x), uniform(shape.y));
#if __CUDA_ARCH__ >= 900
  // Of the warps of all blocks, read ahead: whether they have targets, and as how many lanes.
  constexpr unsigned kMost = kCluster ? 4 : 0;
  int others_have[kMost + 1], others_lanes[kMost + 1];
#pragma unroll
  for (unsigned r = 0; r < kMost; r++) {
    const unsigned at = (r < blocks ? r : 0) * blockDim.x + threadIdx.x;
    others_have[r] = schedule.target[at], others_lanes[r] = schedule.warps[at / 32].x;
  }
#endif
  float p0, q0;
  const Held held = hold(schedule, rank, p0, q0);
  const Neurons n = neuron_of(schedule.target[rank * blockDim.x + threadIdx.x], shape.x, gleak, vleak, cm, unfolds,
                              elapsed ? 1.0f : dt, constrained, epsilon, p0, q0);
  const Walk w = {sensory, (i64)steps * hidden, start, start_b, start_h, elapsed, elapsed_b, elapsed_t, output_w, output_b, out,
                  states, final_state, unfold_states, unfold_dens, hidden, outputs, unfolds, total_steps, t0, steps};
  Others others = {false, false, 0, 0, 0, 0};
  // A warp without targets has no part in any round of a cluster (exchange.cuh).
  bool walks = true;
#if __CUDA_ARCH__ >= 900
  if (kCluster) {
    // Targets have as many lanes as there are blocks, or more: the others send once more what a block has.
    const unsigned to = (lane & (shape.x - 1)) % blocks;
    others.sets = threadIdx.x == 0;
    others.tiles = opaque(in_block(shared_address(tiles) + (n.there ? n.place : 4 * kTile), to));
    others.barriers = opaque(in_block(shared_address(barriers), to));
    others.mine = opaque(shared_address(barriers)), others.bytes = 0;
#pragma unroll
    for (unsigned r = 0; r < kMost; r++) {
      const bool has = r < blocks && (threadIdx.x < 32 || __any_sync(~0u, others_have[r] >= 0));
      others.bytes += 4 * __syncthreads_count(has && (lane & (others_lanes[r] - 1)) % blocks == rank);
    }
    walks = uniform(threadIdx.x < 32 || n.there);
    if (threadIdx.x == 0) {
      for (int i = 0; i < 2; i++) barrier_init(barriers + i, 1);
      barrier_init_fence();
      for (int i = 0; i < 2; i++) barrier_expect(barriers + i, others.bytes);
    }
    __syncthreads();
    cluster_sync();
  }
#endif
  unsigned round = 0;
  if (walks) {
#pragma unroll 1
    for (i64 b = blockIdx.x / blocks; b < batch; b += gridDim.x / blocks)
      walk_used<kSlots>(shape.y, w, held, n, others, shape.x, tiles, b, round);
  }
#if __CUDA_ARCH__ >= 900
  if (kCluster) cluster_sync();
#endif
}
