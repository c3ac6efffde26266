// Wirings that are nearly acyclic (NCP, AutoNCP), level by level: what their kernels share.
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

// What a state goes to at a step's end.
struct Ends {
  const float *output_w, *output_b;    // [M] or null
  float *out, *states, *final_state;   // [B, T, M], [B, T, H] or null, [B, H]
  int outputs;
  __device__ __forceinline__ void step(i64 row, int hidden, int j, float v) const {
    if (states) states[row * hidden + j] = v;
    if (j < outputs) out[row * outputs + j] = output(v, output_w ? output_w[j] : 1.0f, output_b ? output_b[j] : 0.0f);
  }
  __device__ __forceinline__ float output(float v, float weight, float bias) const {
    if (output_w) v *= weight;
    if (output_b) v += bias;
    return v;
  }
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

// Sums of gates over states (levels_sums.cu, levels_row.cu) go over tiles of so many rows.
constexpr int kTileRows = 64;
// Where in a tile row m of column d lies: columns follow each other, and each is turned, quarter by quarter, so that 16 neighbours are written
// to different banks; rows of the same place in two quarters are read from different halves of the banks, whatever their columns.
__device__ __forceinline__ int in_tile(int d, int m) { return d * kTileRows + (m & 48) + ((m + d) & 15); }

// Both sums of one target over all of a tile, which begins at a multiple of 128 bytes: those of rows `lane` and `lane` + 32. A half of the warp has half of the synapses, 4 unit.y, and
// all rows, four a lane: a broadcast takes as many clocks as it brings words to a lane, so what belongs to a synapse takes four, and a state
// one. `from` has in_tile(d, 0) of four synapses.
__device__ __forceinline__ void tile_sums(const float4* synapses, const uint2* from, int4 unit, const float* tile, int lane,
                                          float (&num)[2], float (&den)[2]) {
  const int half = lane >> 4, own = lane & 15;
  const float4* w = synapses + (unit.x + half * 4 * unit.y);
  const uint2* f = from + (unit.x / 4 + half * unit.y);
  // Quarters in pairs, those of one half of the warp the other way round.
  const unsigned first = (unsigned)__cvta_generic_to_shared(tile) + half * 64, second = first ^ 64;
  float n[4] = {0.0f, 0.0f, 0.0f, 0.0f}, d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 1
  for (int e = 0; e < unit.y; e++, w += 4, f++) {
    const uint2 at = *f;
    const unsigned place[4] = {at.x & 0xffffu, at.x >> 16, at.y & 0xffffu, at.y >> 16};
    float x[4][4];
    float4 s[4];
#pragma unroll
    for (int h = 0; h < 4; h++) {
      const unsigned turned = ((place[h] + own) & 15u) | (place[h] & ~15u);
      s[h] = w[h];
      const unsigned a = first + 4 * turned, b = second + 4 * turned;
      x[h][0] = at_shared(a), x[h][1] = at_shared(b), x[h][2] = at_shared(a + 128), x[h][3] = at_shared(b + 128);
    }
#pragma unroll
    for (int h = 0; h < 4; h++)
#pragma unroll
      for (int r = 0; r < 4; r++) x[h][r] = gate_of(s[h].x, s[h].y, x[h][r]);
#pragma unroll
    for (int h = 0; h < 4; h++)
#pragma unroll
      for (int r = 0; r < 4; r++) n[r] = fmaf(s[h].w, x[h][r], n[r]), d[r] = fmaf(s[h].z, x[h][r], d[r]);
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    num[r] += n[2 * r] + __shfl_xor_sync(~0u, n[2 * r + 1], 16);
    den[r] += d[2 * r] + __shfl_xor_sync(~0u, d[2 * r + 1], 16);
  }
}
