// LTC, forward. For each batch row b, step t and unfold k, with all v_i the old ones (Jacobi):
//   r_ij = sig(sigma_ij (v_i - mu_ij))
//   v_j <- (c_j v_j + g_j vleak_j + sum_i q_ij r_ij + Ns_j) / (c_j + g_j + sum_i p_ij r_ij + Ds_j + eps)
// Ns, Ds are the same sums over the inputs u; they do not depend on the state, so they are made first, for a chunk of
// steps at a time, by a kernel that is parallel over (b, t, j).
//
// Work: ltc_forward has one block for a batch row and all steps of the chunk; v lies twice in shared memory, so that no
// thread ever reads a state that another writes in the same unfold; kLanes lanes share a neuron's synapse list and add
// in a fixed order. Synapses are read from L2 for every unfold: 20 bytes a gate.
// Floor (H200): B T (K S + SS) gates, one MUFU operation each (fast) or two (exact), 4.2e12 a second. Bytes are small:
// x, out and the sensory sums of one chunk. With one block a row, a batch below 132 leaves multiprocessors idle, and
// each unfold costs a barrier: this is the plain variant that every architecture runs.
//
// With mixed memory (kMixed) an LSTM cell (kernels/walk.cuh) goes ahead of each step. Its W x + b is there already (lstm.cu);
// kLanes lanes share the four rows of R of a neuron, as they were given, and a thread then makes its gates. Floor of that: 16 H H
// bytes from L2 a step and row, 4 H H multiply-adds: 128 rows of H 256 read 34 GB in 256 steps, 6 ms of an H200 at 5.5 TB/s, beside
// the 18 that the unfolds of 32768 synapses take. Its tanh and sigmoid are exact with fast gates, too: 5 a neuron and step, beside
// K gates for each of its synapses, and their errors would add up in c.
// Other variants hold the synapses in the registers of blocks that have no room for R; there a step would be two launches.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
#include "ltc.cuh"
#include "walk.cuh"

// Folds the parameters [I, H] of one side into its two synapse lists. One warp for each target, then for each source.
extern "C" __global__ void __launch_bounds__(256)
ltc_fold(const float* __restrict__ w, const float* __restrict__ mu, const float* __restrict__ sigma,
         const float* __restrict__ erev, const int* __restrict__ target_offsets, const int* __restrict__ source_of,
         const int* __restrict__ source_offsets, const int* __restrict__ target_of, Synapse* __restrict__ by_target,
         int* __restrict__ target_index, Synapse* __restrict__ by_source, int sources, int targets, int constrained) {
  i64 warp = (blockIdx.x * (i64)blockDim.x + threadIdx.x) >> 5;
  int lane = threadIdx.x & 31;
  if (warp >= (i64)targets + sources) return;
  bool onto = warp < targets;
  int node = onto ? (int)warp : (int)(warp - targets);
  const int* offsets = onto ? target_offsets : source_offsets;
  for (int s = offsets[node] + lane; s < offsets[node + 1]; s += 32) {
    int i = onto ? source_of[s] : node, j = onto ? node : target_of[s];
    i64 at = (i64)i * targets + j;  // [I, H]
    float p = positive(w[at], constrained);
    Synapse folded = {sigma[at], mu[at], p, p * erev[at]};
    if (onto) {
      by_target[s] = folded;
      target_index[s] = j;
    } else if (by_source) {
      by_source[s] = folded;
    }
  }
}

// u = (LayerNorm(x)) * input_w + input_b for the rows (b, t0 + r), r < rows_per_batch. One warp a row.
extern "C" __global__ void __launch_bounds__(256)
ltc_inputs(const float* __restrict__ x, i64 stride_b, i64 stride_t, i64 stride_d,  // [B, T, D], any strides
           const float* __restrict__ norm_weight, const float* __restrict__ norm_bias,
           const float* __restrict__ input_w, const float* __restrict__ input_b,  // each [D] or null
           float* __restrict__ u, float2* __restrict__ stats,  // [rows, D]; mean and 1 / deviation, [rows]
           i64 rows, i64 rows_per_batch, i64 t0, int inputs, float norm_epsilon) {
  i64 row = (blockIdx.x * (i64)blockDim.x + threadIdx.x) >> 5;
  int lane = threadIdx.x & 31;
  if (row >= rows) return;
  const float* from = x + (row / rows_per_batch) * stride_b + (t0 + row % rows_per_batch) * stride_t;
  float mean = 0.0f, rstd = 1.0f;
  if (norm_weight) {
    for (int d = lane; d < inputs; d += 32) mean += from[d * stride_d];
    mean = warp_sum(mean) / (float)inputs;
    float var = 0.0f;
    for (int d = lane; d < inputs; d += 32) {
      float e = from[d * stride_d] - mean;
      var = fmaf(e, e, var);
    }
    rstd = 1.0f / sqrtf(warp_sum(var) / (float)inputs + norm_epsilon);
    if (lane == 0) stats[row] = make_float2(mean, rstd);
  }
  for (int d = lane; d < inputs; d += 32) {
    float y = from[d * stride_d];
    if (norm_weight) y = fmaf((y - mean) * rstd, norm_weight[d], norm_bias[d]);
    if (input_w) y *= input_w[d];
    if (input_b) y += input_b[d];
    u[row * inputs + d] = y;
  }
}

// Ns and Ds of four rows for each group of lanes, so that a synapse is read once for four gates.
extern "C" __global__ void __launch_bounds__(256)
ltc_sensory(const Synapse* __restrict__ synapses, const int* __restrict__ source_of,
            const int* __restrict__ target_offsets, const float* __restrict__ u,  // [rows, D]
            float2* __restrict__ sums,                                           // [rows, H]
            i64 rows, int inputs, int hidden) {
  constexpr int kGroups = 256 / kLanes;
  int j = blockIdx.y * kGroups + threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  bool active = j < hidden;
  int end = active ? target_offsets[j + 1] : 0, begin = active ? target_offsets[j] : 0;
  for (i64 first = blockIdx.x * 4ll; first < rows; first += gridDim.x * 4ll) {
    float num[4] = {}, den[4] = {};
    int count = (int)(rows - first < 4 ? rows - first : 4);
    for (int s = begin + lane; s < end; s += kLanes) {
      Synapse syn = synapses[s];
      const float* from = u + first * inputs + source_of[s];
#pragma unroll
      for (int r = 0; r < 4; r++) {
        if (r < count) {
          float gated = gate(syn, from[(i64)r * inputs]);
          num[r] = fmaf(syn.q, gated, num[r]);
          den[r] = fmaf(syn.p, gated, den[r]);
        }
      }
    }
    __syncwarp();
#pragma unroll
    for (int r = 0; r < 4; r++) {
      float n = group_sum<kLanes>(num[r]), d = group_sum<kLanes>(den[r]);
      if (active && lane == 0 && r < count) sums[(first + r) * hidden + j] = make_float2(n, d);
    }
  }
}

// The LSTM ahead of each step, with mixed memory.
struct alignas(8) Lstm {
  const float* recurrent;   // [4 H, H]
  float* gates;             // [B, steps, 4, H], gates_b a batch row: the sums W x + b, then, where they are kept, the gates
  i64 gates_b;
  const float* start;       // [B, H], any strides, or null: zeros
  i64 start_b, start_h;
  float *cells, *states;    // [B, T, H], or null: nothing is kept
  float* final_cell;        // [B, H]
};

// What the LSTM makes of the state v and the cell c, both [H], in their places. `sums` is [4, H] of shared memory.
__device__ __forceinline__ void lstm_ahead(const Lstm& lstm, float* v, float* c, float* sums, float* gates, i64 at,
                                           int hidden) {
  const int groups = blockDim.x / kLanes, group = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  for (int base = 0; base < hidden; base += groups) {
    const int j = base + group;
    float sum[4] = {};
    if (j < hidden) {
      if (lane == 0)
#pragma unroll
        for (int k = 0; k < 4; k++) sum[k] = gates[k * hidden + j];
      add_rows<kLanes>(sum, v, lstm.recurrent, j, lane, hidden);
    }
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 4; k++) {
      sum[k] = group_sum<kLanes>(sum[k]);
      if (j < hidden && lane == 0) sums[k * hidden + j] = sum[k];
    }
  }
  __syncthreads();
  for (int j = threadIdx.x; j < hidden; j += blockDim.x) {
    float z[4];
#pragma unroll
    for (int k = 0; k < 4; k++) z[k] = sums[k * hidden + j];
    float cell = c[j];
    const float h = lstm_step(z, cell, [](float x) { return tanhf(x); }, [](float x) { return sigmoid(x); });
    c[j] = cell, v[j] = h;
    if (lstm.cells) {
#pragma unroll
      for (int k = 0; k < 4; k++) gates[k * hidden + j] = z[k];
      lstm.cells[at + j] = cell, lstm.states[at + j] = h;
    }
  }
  __syncthreads();
}

// The recurrence over `steps` steps from t0. Dynamic shared memory: v, twice [H]; with mixed memory c and sums behind it, [5, H].
extern "C" __global__ void __launch_bounds__(1024)
ltc_forward(const Synapse* __restrict__ synapses, const int* __restrict__ source_of,
            const int* __restrict__ target_offsets, const Neuron* __restrict__ neurons,
            const float2* __restrict__ sensory,                  // [B, steps, H]
            const float* start, i64 start_b, i64 start_h,        // [B, H], any strides, or null: zeros
            const float* __restrict__ elapsed, i64 elapsed_b, i64 elapsed_t, float dt,  // [B, T] or null: dt
            const float* __restrict__ output_w, const float* __restrict__ output_b,     // [M] or null
            float* __restrict__ out,                             // [B, T, M]
            float* __restrict__ states,                          // [B, T, H] or null
            float* final_state,                                  // [B, H]
            float* __restrict__ unfold_states, float* __restrict__ unfold_dens,  // [B, T, K, H] or null; as in row.cuh
            int hidden, int outputs, int unfolds, i64 total_steps, i64 t0, i64 steps, float epsilon,
            Lstm lstm) {  // kMixed alone reads it
  extern __shared__ float shared[];
  float *v = shared, *v_next = shared + hidden;
  i64 b = blockIdx.x;
  int groups = blockDim.x / kLanes, group = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  for (int j = threadIdx.x; j < hidden; j += blockDim.x) v[j] = start ? start[b * start_b + j * start_h] : 0.0f;
  float* const cell = shared + 2 * (i64)hidden;
  if constexpr (kMixed)
    for (int j = threadIdx.x; j < hidden; j += blockDim.x)
      cell[j] = lstm.start ? lstm.start[b * lstm.start_b + j * lstm.start_h] : 0.0f;
  __syncthreads();
  for (i64 r = 0; r < steps; r++) {
    i64 t = t0 + r;
    float rate = 1.0f / (elapsed ? elapsed[b * elapsed_b + t * elapsed_t] : dt);
    const float2* sums = sensory + (b * steps + r) * hidden;
    if constexpr (kMixed)
      lstm_ahead(lstm, v, cell, cell + hidden, lstm.gates + (b * lstm.gates_b + r * 4 * hidden), (b * total_steps + t) * hidden,
                 hidden);
    for (int k = 0; k < unfolds; k++) {
      i64 trace = ((b * total_steps + t) * unfolds + k) * hidden;
      for (int base = 0; base < hidden; base += groups) {
        int j = base + group;
        float num = 0.0f, den = 0.0f;
        if (j < hidden) {
          int end = target_offsets[j + 1];
          // Unrolled further, newer compilers spill at the 64 registers that 1024 threads leave.
#pragma unroll 2
          for (int s = target_offsets[j] + lane; s < end; s += kLanes) {
            Synapse syn = synapses[s];
            float gated = gate(syn, v[source_of[s]]);
            num = fmaf(syn.q, gated, num);
            den = fmaf(syn.p, gated, den);
          }
        }
        __syncwarp();
        num = group_sum<kLanes>(num);
        den = group_sum<kLanes>(den);
        if (j < hidden && lane == 0) {
          Neuron n = neurons[j];
          float2 s = sums[j];
          float c = n.c_dt * rate;
          den = c + n.g + den + s.y + epsilon;
          float old = v[j];
          v_next[j] = (fmaf(c, old, n.g_vleak) + num + s.x) / den;
          if (unfold_dens) {
            unfold_states[trace + j] = old;
            unfold_dens[trace + j] = den;
          } else if (unfold_states) {
            unsigned* const words = (unsigned*)unfold_states + ((b * total_steps + t) * (unfolds + 1) * hidden + j);
            // 1 / den of the step's first unfold, ahead of the words.
            if (k == 0) *words = __float_as_uint(1.0f / den);
            words[(k + 1) * hidden] = k == 0 ? __float_as_uint(old) : pack_unfold(old, den, __uint_as_float(*(volatile unsigned*)words));
          }
        }
      }
      __syncthreads();
      float* swap = v;
      v = v_next;
      v_next = swap;
    }
    for (int j = threadIdx.x; j < hidden; j += blockDim.x) {
      float now = v[j];
      if (states) states[(b * total_steps + t) * hidden + j] = now;
      if (j < outputs) {
        if (output_w) now *= output_w[j];
        if (output_b) now += output_b[j];
        out[(b * total_steps + t) * outputs + j] = now;
      }
    }
  }
  for (int j = threadIdx.x; j < hidden; j += blockDim.x) final_state[b * hidden + j] = v[j];
  if constexpr (kMixed)
    for (int j = threadIdx.x; j < hidden; j += blockDim.x) lstm.final_cell[b * hidden + j] = cell[j];
}
