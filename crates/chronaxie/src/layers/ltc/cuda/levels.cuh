// Wirings that are nearly acyclic (NCP, AutoNCP), level by level: what the kernels of levels.cu and levels_adjoint.cu share.
//
// Neurons are of three kinds. Lone ones have no synapses from others: their states follow from the inputs alone. Sinks are read by
// nobody. The others are the chain. Lone ones and the chain are sources: columns of a matrix U [rows, N] of states before each unfold,
// rows (b, t, k), lone ones first; sinks read a range of its columns. So of all synapses only those within the chain (near ones) must
// wait for the unfold before; sums over all others are those of gates over inputs, in parallel (levels_sums.cu, levels_sums_adjoint.cu).
#pragma once
#include "held.cuh"

// What is read of unfolds and of steps comes to shared memory so far ahead, to the thread that uses it: far more than a load takes.
constexpr int kUnfoldsAhead = 16, kStepsAhead = 8;

// All copies but those of the last commits, one for each unfold, are there: of the next two unfolds; of steps too, if they have enough.
__device__ __forceinline__ void copies_of_unfold(int unfolds) {
#if __CUDA_ARCH__ >= 800
  if (unfolds * kStepsAhead >= kUnfoldsAhead)
    asm volatile("cp.async.wait_group %0;" ::"n"(kUnfoldsAhead - 2) : "memory");
  else
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// What both passes know of a step: where its sums over the inputs are and how long it takes.
struct Pass {
  const float2* sensory;  // [B, steps, H]: Ns and Ds
  const float* elapsed;   // [B, T] or null: dt
  i64 elapsed_b, elapsed_t;
  int hidden, unfolds, total_steps, t0, steps;
  __device__ __forceinline__ float time(i64 b, int s) const { return elapsed ? elapsed[b * elapsed_b + (t0 + s) * elapsed_t] : 1.0f; }
  __device__ __forceinline__ float2 sums(i64 b, int s, int j) const { return sensory[(b * steps + s) * hidden + j]; }
};

// What a neuron brings to both sums of each unfold.
struct Cell {
  int j;
  float rate_c, num, den;  // c, or c dt where times are given
};
__device__ __forceinline__ Cell cell_of(int j, const float* gleak, const float* vleak, const float* cm, int unfolds, float dt,
                                        int constrained, float epsilon) {
  if (j < 0) return {-1, 0.0f, 0.0f, 1.0f};
  const float g = positive(gleak[j], constrained);
  return {j, positive(cm[j], constrained) * (float)unfolds / dt, g * vleak[j], g + epsilon};
}
