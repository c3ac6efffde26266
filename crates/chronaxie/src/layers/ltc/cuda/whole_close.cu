// LTC, backward, of short sequences: from what the blocks of whole_adjoint.cu left, a block a batch row, to the gradients of all
// parameters. A thread makes one synapse, neuron, input or output: it adds the rows in order. What a mask leaves out is zero.
// Bytes: 16 a slot and row, read once from L2 (B24 D128 H64 at density 0.5: 2.4 MB, 0.5 us), and 16 an element of the matrices.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
#include "ltc.cuh"

// One side: matrices [sources, H].
struct WholeSide {
  const unsigned* slot_of;  // [elements]: the slot of a synapse, or all ones
  const float4* sums;       // [rows, slots]: alpha r, beta r, dz, dz v
  const float *w, *mu, *sigma, *erev;
  float *grad_w, *grad_mu, *grad_sigma, *grad_erev;
  i64 elements, slots;  // 0 elements: not asked for
};
struct WholeNeurons {
  const float4* sums;  // [rows, neurons]: alpha, beta, alpha (v - v') K / dt
  const float *gleak, *vleak, *cm;
  float *grad_gleak, *grad_vleak, *grad_cm;
  i64 neurons;  // 0: not asked for
};
// Both columns of sums to up to two vectors.
struct WholeColumns {
  const float2* sums;  // [rows, pitch]
  float *first, *second;  // or null
  i64 columns, pitch;
};

__device__ __forceinline__ void close_element(const WholeSide& side, i64 e, int rows, int constrained) {
  const unsigned slot = side.slot_of[e];
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  float w = 0.0f, mu = 0.0f, sigma = 0.0f, erev = 0.0f;
  if (slot != ~0u) {
    w = side.w[e], mu = side.mu[e], sigma = side.sigma[e], erev = side.erev[e];
#pragma unroll 12
    for (int b = 0; b < rows; b++) {
      const float4 p = side.sums[b * side.slots + slot];
      sum.x += p.x, sum.y += p.y, sum.z += p.z, sum.w += p.w;
    }
  }
  side.grad_mu[e] = -sigma * sum.z;
  side.grad_sigma[e] = fmaf(-mu, sum.z, sum.w);
  side.grad_w[e] = positive_slope(w, constrained) * fmaf(erev, sum.x, sum.y);
  side.grad_erev[e] = positive(w, constrained) * sum.x;
}

__device__ __forceinline__ void close_columns(const WholeColumns& of, i64 c, int rows) {
  float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll 12
  for (int b = 0; b < rows; b++) {
    const float2 p = of.sums[b * of.pitch + c];
    sum.x += p.x, sum.y += p.y;
  }
  if (of.first) of.first[c] = sum.x;
  if (of.second) of.second[c] = sum.y;
}

extern "C" __global__ void __launch_bounds__(128)
ltc_whole_close(WholeSide recurrent, WholeSide inputs_side, WholeNeurons n, WholeColumns inputs, WholeColumns outputs, int rows,
                int constrained) {
  i64 e = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (e < recurrent.elements) return close_element(recurrent, e, rows, constrained);
  e -= recurrent.elements;
  if (e < inputs_side.elements) return close_element(inputs_side, e, rows, constrained);
  e -= inputs_side.elements;
  if (e < n.neurons) {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 12
    for (int b = 0; b < rows; b++) {
      const float4 p = n.sums[b * n.neurons + e];
      sum.x += p.x, sum.y += p.y, sum.z += p.z;
    }
    const float g = n.gleak[e];
    n.grad_gleak[e] = positive_slope(g, constrained) * fmaf(n.vleak[e], sum.x, sum.y);
    n.grad_vleak[e] = positive(g, constrained) * sum.x;
    n.grad_cm[e] = positive_slope(n.cm[e], constrained) * sum.z;
    return;
  }
  e -= n.neurons;
  if (e < inputs.columns) return close_columns(inputs, e, rows);
  e -= inputs.columns;
  if (e < outputs.columns) close_columns(outputs, e, rows);
}
