// LTC, forward, of short sequences: one block does all of one batch row in one launch. It folds its synapses, makes the sums
// over the inputs of all steps in shared memory, and walks the recurrence as row.cu does (the equations: forward.cu).
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = false;
#include "whole.cuh"

// Dynamic shared memory: Ns and Ds, [steps, H]; u of eight steps, two planes [D, 4].
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
          int hidden, int inputs, int outputs, int unfolds, int steps, int constrained, float epsilon, float norm_epsilon) {
  extern __shared__ __align__(16) char shared[];
  float2* const sums = (float2*)shared;
  float* const u = (float*)(shared + ((i64)steps * hidden * 8 + 15) / 16 * 16);
  const Inputs in = {x, stride_b, stride_t, stride_d, norm_weight, norm_bias, input_w, input_b, inputs, norm_epsilon};
  input_sums(sensory, inputs_side, in, blockIdx.x, steps, hidden, constrained, sums, u, false);
  int2 shape = schedule.warps[threadIdx.x / 32];
  shape = make_int2(uniform(shape.x), uniform(shape.y));
  Held held;
  float p0 = 0.0f, q0 = 0.0f;
  {
    float4 x[kSlots];
    fold_slots<kSlots>(recurrent, x, constrained);
#pragma unroll
    for (int i = 0; i < kSlots; i++) {
      held.a[i] = x[i].x, held.b[i] = x[i].y, held.p[i] = x[i].z, held.q[i] = x[i].w;
      p0 += x[i].z, q0 += x[i].w;
    }
  }
  read_sources(schedule, 0, held);
  const Neurons n = neuron_of(schedule, 0, shape.x, gleak, vleak, cm, unfolds, elapsed ? 1.0f : dt, constrained, epsilon, p0, q0);
  const Walk w = {sums, 0, start, start_b, start_h, elapsed, elapsed_b, elapsed_t, output_w, output_b, out, states,
                  final_state, unfold_states, unfold_dens, hidden, outputs, unfolds, steps, 0, steps};
  __shared__ __align__(16) char tiles[2 * kTile * 4];
  const Others others = {false, false, 0, 0, 0, 0};
  unsigned round = 0;
  walk_used<kSlots>(shape.y, w, held, n, others, shape.x, tiles, blockIdx.x, round);
}
