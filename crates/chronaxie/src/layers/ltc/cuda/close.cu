// LTC: from the sums that ltc_adjoint_held left to gradients. Clusters are added in order.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
#include "ltc.cuh"

struct Tensors {
  struct {
    unsigned* at;
    i64 elements;
  } of[28];
};

// Zeros in several tensors of four-byte elements: blockIdx.y says which.
extern "C" __global__ void __launch_bounds__(256)
ltc_clear(Tensors tensors) {
  unsigned* at = tensors.of[blockIdx.y].at;
  i64 elements = tensors.of[blockIdx.y].elements;
  for (i64 e = blockIdx.x * 256ll + threadIdx.x; e < elements; e += gridDim.x * 256ll) at[e] = 0u;
}

// The sums of each neuron over clusters: alpha, beta, alpha (v - v') K / dt.
extern "C" __global__ void __launch_bounds__(256)
ltc_add_neurons(const float4* __restrict__ partial, float4* __restrict__ sums, int clusters, int hidden) {
  int j = blockIdx.x * blockDim.x + threadIdx.x;
  if (j >= hidden) return;
  float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  for (int c = 0; c < clusters; c++) {
    float4 p = partial[(i64)c * hidden + j];
    total.x += p.x, total.y += p.y, total.z += p.z;
  }
  sums[j] = total;
}

// One thread a slot; the matrices [H, H] are zero elsewhere. In the tanh form r = (1 + t) / 2 the sums are of alpha t,
// beta t, 2 dz, 2 dz v; otherwise of alpha r, beta r, dz, dz (v - mu).
extern "C" __global__ void __launch_bounds__(256)
ltc_close_held(const unsigned* __restrict__ at_slot, const float4* __restrict__ partial,
               const float4* __restrict__ neurons, const float* __restrict__ w, const float* __restrict__ mu,
               const float* __restrict__ sigma, const float* __restrict__ erev, float* __restrict__ grad_w,
               float* __restrict__ grad_mu, float* __restrict__ grad_sigma, float* __restrict__ grad_erev, i64 slots,
               int clusters, int hidden, int constrained) {
  i64 s = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (s >= slots) return;
  unsigned at = at_slot[s];
  if (at == ~0u) return;
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  for (int c = 0; c < clusters; c++) {
    float4 p = partial[c * slots + s];
    sum.x += p.x, sum.y += p.y, sum.z += p.z, sum.w += p.w;
  }
  if (kFast) {
    float4 n = neurons[at % (unsigned)hidden];
    sum = make_float4(0.5f * (n.x + sum.x), 0.5f * (n.y + sum.y), 0.5f * sum.z, 0.5f * sum.w);
    sum.w = fmaf(-mu[at], sum.z, sum.w);
  }
  grad_w[at] = positive_slope(w[at], constrained) * fmaf(erev[at], sum.x, sum.y);
  grad_mu[at] = -sigma[at] * sum.z;
  grad_sigma[at] = sum.w;
  grad_erev[at] = positive(w[at], constrained) * sum.x;
}

// dL/d elapsed[b, t] from the sums of alpha (v - v') over the unfolds of a step. One warp for each (b, r).
extern "C" __global__ void __launch_bounds__(256)
ltc_close_elapsed(const float* __restrict__ step_changes,  // [B, steps, H]
                  const float* __restrict__ cm, const float* __restrict__ elapsed, i64 elapsed_b, i64 elapsed_t,
                  float* __restrict__ grad_elapsed,  // [B, T]
                  i64 rows, int hidden, int unfolds, i64 total_steps, i64 t0, i64 steps, int constrained) {
  i64 n = (blockIdx.x * (i64)blockDim.x + threadIdx.x) >> 5;
  int lane = threadIdx.x & 31;
  if (n >= rows) return;
  float sum = 0.0f;
  for (int j = lane; j < hidden; j += 32)
    sum = fmaf(step_changes[n * hidden + j], positive(cm[j], constrained) * (float)unfolds, sum);
  sum = warp_sum(sum);
  i64 b = n / steps, t = t0 + n % steps;
  float time = elapsed[b * elapsed_b + t * elapsed_t];
  if (lane == 0) grad_elapsed[b * total_steps + t] = -sum / (time * time);
}
