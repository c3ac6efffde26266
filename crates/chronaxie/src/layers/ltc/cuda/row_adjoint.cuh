// LTC, backward, one batch row at a time: what row_adjoint.cu and full_adjoint.cu have alike.
#pragma once
#include "row.cuh"

struct Chain {
  const float *trace_v, *trace_den;  // [steps, K, H] of a batch row, trace_b apart
  i64 trace_b;
  float* alphas;                     // [B, steps, K, H]
  const float* states;               // [B, T, H]
  const float* elapsed;
  i64 elapsed_b, elapsed_t;
  float dt;
  const float* grad_out;
  i64 grad_b, grad_t, grad_m;
  const float* output_w;
  const float* grad_end;
  i64 end_b, end_h;
  float* grad_start;
  float2* step_sums;
  float* step_changes;
  int hidden, outputs, unfolds, total_steps, t0, steps, sums_steps;
};

// What is copied of a step, of two steps in turn, [2 K + 1, H]: v before each unfold, v after the last, den of each.
struct Ahead {
  float* steps;
  unsigned long long* full;         // [2]: a step is here
  int size;                         // floats of a step
  int walkers;                      // threads of the block that walk
  bool bulk;                        // whether rows begin where bulk copies can
  __device__ __forceinline__ char* step(unsigned turn) const { return (char*)(steps + (turn & 1) * size); }

  // Copies a step of row b; by the first warp.
  __device__ __forceinline__ void copy(const Chain& w, i64 b, int step, unsigned turn) const {
    const int n = w.unfolds * w.hidden;
    const i64 first = b * w.trace_b + (i64)step * n;
    const float* const after = w.states + (b * w.total_steps + (w.t0 + step)) * w.hidden;
    float* const to = (float*)this->step(turn);
    unsigned long long* const barrier = full + (turn & 1);
    if (bulk) {
      if (threadIdx.x == 0) {
        const unsigned at = shared_address(to), done = shared_address(barrier);
        barrier_expect_at(done, 4 * (2 * n + w.hidden));
        bulk_copy_at(at, w.trace_v + first, 4 * n, done);
        bulk_copy_at(at + 4 * n, after, 4 * w.hidden, done);
        bulk_copy_at(at + 4 * (n + w.hidden), w.trace_den + first, 4 * n, done);
      }
      return;
    }
#pragma unroll 1
    for (int e = threadIdx.x; e < n; e += 32) {
      copy_ahead<4>(to + e, w.trace_v + (first + e));
      copy_ahead<4>(to + (n + w.hidden + e), w.trace_den + (first + e));
    }
#pragma unroll 1
    for (int e = threadIdx.x; e < w.hidden; e += 32) copy_ahead<4>(to + (n + e), after + e);
    copies_here();
    barrier_arrive(barrier);
  }
};

// What a thread keeps of its neuron in shared memory: sums over all steps, of alpha, beta and alpha (v - v') K / dt, and the factor
// of dL/dout.
struct alignas(16) Kept {
  float alpha, beta, change, scale;
};
