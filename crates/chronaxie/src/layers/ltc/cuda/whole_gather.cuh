// What a short sequence's row leaves of each parameter (whole_adjoint.cu): sums over its steps and unfolds, part by part as the walk
// comes to them, last first. The blocks beside that of the walk share the recurrent gates; each has its own inputs'. Between two parts
// the synapses and their sums lie in shared memory; of one block alone, whose parts follow the walk, sums lie where they end.
#pragma once
#include "whole_walk.cuh"

constexpr bool kKept = kBlocks > 1;

// Dynamic shared memory of `count` synapses: 36 bytes each.
struct Kept {
  float4 *of, *sums;
  unsigned* at;  // source, 65536 target; of the inputs' the target
  __device__ __forceinline__ Kept(float4* from, unsigned* at, int count) : of(from), sums(from + count), at(at) {}
};

struct Gather {
  const float *trace_v, *alphas;  // [steps K + 1, H]; [steps K, H]
  const float* u;                 // as input_sums leaves it
  float2* sums;                   // of alpha and beta of a step, [steps to a multiple of 8, H]
  float* changes;                 // of alpha (v - v') of a step, [steps, H]: where they are written
  float2* of_neuron;              // of alpha and beta of all
  Side target, input;             // the recurrent side; the inputs', `at` by source
  const uint2* synapses;          // of the recurrent side: place in a matrix; source, 65536 target
  int begin, end;                 // those of this block
  Kept recurrent, inputs;
  Schedule by_input;
  int2 shape;                     // of this warp's share of the inputs
  int place, kept_place;          // where the rows of slots of this warp begin: of the row's sums, of those of this block
  const float *x, *elapsed;       // of this row
  i64 stride_t, stride_d, elapsed_t;
  float4 *gate_sums, *inputs_sums, *neuron_sums;  // of this row
  float *step_changes, *grad_x;   // of this row, or null
  int hidden, count, inputs_all, first_input, unfolds, steps, constrained;
  float dt, scale;                // of this thread's input
  bool writes;                    // whether this block leaves what there is of neurons
};

// Of r = (1 + t) / 2 instead of t.
__device__ __forceinline__ float4 of_sigmoid(const float2& neuron, const float4& of) {
  return make_float4(0.5f * (neuron.x + of.x), 0.5f * (neuron.y + of.y), 0.5f * of.z, 0.5f * of.w);
}

// alpha t, beta t, 2 dz, 2 dz v of a gate with both sums of alpha and beta, of which dz comes back.
__device__ __forceinline__ float add_gate(const float4& f, float v, float2 pair, float4& of) {
  const float t = gate_of(f.x, f.y, v), dz = fmaf(pair.x, f.w, pair.y * f.z) * fmaf(-t, t, 1.0f);
  of.x = fmaf(pair.x, t, of.x), of.y = fmaf(pair.y, t, of.y);
  of.z += dz, of.w = fmaf(dz, v, of.w);
  return dz;
}

// The steps of part `part`; `columns`: this thread's part of dL/du x and dL/du of its input.
__device__ __forceinline__ void gather_part(const Gather& g, int part, float2& columns) {
  const int thread = threadIdx.x, lane = thread % 32, hidden = g.hidden, first = part * kPart, end = min(first + kPart, g.steps);
  const bool begins = end == g.steps, ends = part == 0;
  // Sums over the unfolds of each step, and in the end over all steps.
#pragma unroll 1
  for (int e = thread; e < kPart * hidden; e += kOthers) {
    const int step = first + e / hidden, j = e % hidden;
    float2 both = make_float2(0.0f, 0.0f);
    if (step < g.steps) {
      float change = 0.0f;
      int at = ((step + 1) * g.unfolds - 1) * hidden + j;
      float after = g.trace_v[at + hidden];
#pragma unroll 2
      for (int k = 0; k < g.unfolds; k++, at -= hidden) {
        const float alpha = g.alphas[at], v = g.trace_v[at];
        both.x += alpha, both.y = fmaf(-alpha, after, both.y), change = fmaf(alpha, v - after, change);
        after = v;
      }
      if (g.writes) {
        g.changes[step * hidden + j] = change * ((float)g.unfolds / (g.elapsed ? g.elapsed[step * g.elapsed_t] : g.dt));
        if (g.step_changes) g.step_changes[step * hidden + j] = change;
      }
    }
    g.sums[step * hidden + j] = both;
  }
  __syncthreads();
  if (ends) {
#pragma unroll 1
    for (int j = thread; j < hidden; j += kOthers) {
      float2 both = make_float2(0.0f, 0.0f);
      float change = 0.0f;
#pragma unroll 4
      for (int step = g.steps - 1; step >= 0; step--) {
        const float2 pair = g.sums[step * hidden + j];
        both.x += pair.x, both.y += pair.y;
        if (g.writes) change += g.changes[step * hidden + j];
      }
      g.of_neuron[j] = both;
      if (g.writes) g.neuron_sums[j] = make_float4(both.x, both.y, change, 0.0f);
    }
    __syncthreads();
  }
  // The recurrent gates.
#pragma unroll 1
  for (int e = g.begin + thread; e < g.end; e += kOthers) {
    const int kept = e - g.begin;
    unsigned which;
    float4 f, of = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (kKept && !begins) {
      f = g.recurrent.of[kept], which = g.recurrent.at[kept], of = g.recurrent.sums[kept];
    } else {
      const uint2 synapse = g.synapses[e];
      f = fold_one(g.target, synapse.x, g.constrained), which = synapse.y;
      if (kKept) g.recurrent.of[kept] = f, g.recurrent.at[kept] = which;
      if (!kKept && !begins) of = g.gate_sums[e];
    }
    const int i = which & 0xffffu, j = which >> 16;
    int at = end * g.unfolds * hidden;
    float after = g.trace_v[at + j];
#pragma unroll 4
    for (int n = first * g.unfolds; n < end * g.unfolds; n++) {
      at -= hidden;
      const float alpha = g.alphas[at + j];
      add_gate(f, g.trace_v[at + i], make_float2(alpha, -alpha * after), of);
      after = g.trace_v[at + j];
    }
    if (ends) of = of_sigmoid(g.of_neuron[j], of);
    (kKept && !ends ? g.recurrent.sums[kept] : g.gate_sums[e]) = of;
  }
  // The gates of the inputs.
  const int owner = g.by_input.target[thread], of_owner = owner < 0 ? 0 : owner, sub = lane & (g.shape.x - 1);
  float v[kPart], total[kPart];
  {
    const float* at = g.u + first / kSteps * kSteps * g.count + (first % kSteps / 4 * g.count + of_owner) * 4 + first % 4;
    if constexpr (kPart == 2) {
      *(float2*)v = *(const float2*)at;
    } else {
      *(float4*)v = *(const float4*)at;
      *(float4*)(v + 4) = *(const float4*)(at + 4 * g.count);
    }
  }
#pragma unroll
  for (int r = 0; r < kPart; r++) total[r] = 0.0f;
#pragma unroll 2
  for (int slot = 0; slot < g.shape.y; slot++) {
    const int kept = (g.kept_place + slot) * 32 + lane, row = (g.place + slot) * 32 + lane;
    unsigned j;
    float4 f, of = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (kKept && !begins) {
      f = g.inputs.of[kept], j = g.inputs.at[kept], of = g.inputs.sums[kept];
    } else {
      const unsigned from = g.by_input.from[slot / 2 * kOthers + thread];
      f = fold_one(g.input, g.input.at[slot * kOthers + thread], g.constrained), j = slot % 2 ? from >> 16 : from & 0xffffu;
      if (kKept) g.inputs.of[kept] = f, g.inputs.at[kept] = j;
      if (!kKept && !begins) of = g.inputs_sums[row];
    }
#pragma unroll
    for (int r = 0; r < kPart; r++) total[r] = fmaf(add_gate(f, v[r], g.sums[(first + r) * hidden + j], of), f.x, total[r]);
    if (ends) of = of_sigmoid(g.of_neuron[j], of);
    (kKept && !ends ? g.inputs.sums[kept] : g.inputs_sums[row]) = of;
  }
  // Of two lanes and more of a source each of the first two ends with the sums of half of the steps.
  constexpr int kHalf = kPart / 2;
  const bool upper = lane & 1;
#pragma unroll
  for (int r = 0; r < kHalf; r++)
    total[r] = (upper ? total[kHalf + r] : total[r]) + __shfl_xor_sync(~0u, upper ? total[r] : total[kHalf + r], 1);
#pragma unroll 1
  for (int o = 2; o < g.shape.x; o *= 2) {
#pragma unroll
    for (int r = 0; r < kHalf; r++) total[r] += __shfl_xor_sync(~0u, total[r], o);
  }
  if (owner < 0 || sub > 1) return;
#pragma unroll
  for (int r = 0; r < kHalf; r++) {
    const int step = first + (upper ? kHalf : 0) + r, d = g.first_input + owner;
    if (step >= end) break;
    if (g.grad_x) g.grad_x[(i64)step * g.inputs_all + d] = total[r] * g.scale;
    columns.x = fmaf(total[r], g.x[step * g.stride_t + d * g.stride_d], columns.x);
    columns.y += total[r];
  }
}
