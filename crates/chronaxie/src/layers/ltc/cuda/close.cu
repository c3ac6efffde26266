// LTC: from sums to gradients. Those of clusters are added in order.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
#include "ltc.cuh"

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

// Held synapses of one side, and the sums that the clusters left.
struct CloseSide {
  const unsigned* at;  // [slots]: source H + target, or all ones
  const float4* partial;  // [clusters, slots]
  const float *w, *mu, *sigma, *erev;
  float *grad_w, *grad_mu, *grad_sigma, *grad_erev;
  i64 slots, clusters;
};
struct CloseNeurons {
  const float4* sums;  // [parts, H]: alpha, beta, alpha (v - v') K / dt
  const float *gleak, *vleak;
  const Neuron* folded;
  float *grad_gleak, *grad_vleak, *grad_cm;
  i64 neurons, parts;  // 0: not asked for; clusters that left them, or 1
};
// Up to four columns of sums, which slices of rows left, to up to four vectors.
struct CloseColumns {
  const float4* sums;  // [slices, columns]
  float* to[4];        // or null
  i64 columns, slices;
};

// Lanes of each sum over clusters or slices, and the sum of all that a lane has of it: every kSharers-th from `first` on. The order of
// additions is fixed.
constexpr int kSharers = 4;
static_assert(kSharers == 4, "close_synapse leaves each lane one of four gradients");
__device__ __forceinline__ float4 strided_sum(const float4* __restrict__ from, i64 stride, i64 count, int first) {
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
  for (i64 c = first; c < count; c += kSharers) {
    const float4 p = from[c * stride];
    sum.x += p.x, sum.y += p.y, sum.z += p.z, sum.w += p.w;
  }
  const unsigned together = ((1u << kSharers) - 1u) << (threadIdx.x & 31 & ~(kSharers - 1));
#pragma unroll
  for (int o = 1; o < kSharers; o *= 2) {
    sum.x += __shfl_xor_sync(together, sum.x, o), sum.y += __shfl_xor_sync(together, sum.y, o);
    sum.z += __shfl_xor_sync(together, sum.z, o), sum.w += __shfl_xor_sync(together, sum.w, o);
  }
  return sum;
}

// The matrices [H, H] are zero elsewhere. In the tanh form r = (1 + t) / 2 the sums are of alpha t, beta t, 2 dz, 2 dz v;
// otherwise of alpha r, beta r, dz, dz (v - mu).
__device__ __forceinline__ void close_synapse(const CloseSide& side, const CloseNeurons& neurons, i64 s, int sub, int hidden,
                                              int constrained) {
  const unsigned at = side.at[s];
  if (at == ~0u) return;
  const float weight = side.w[at];
  float4 sum = strided_sum(side.partial + s, side.slots, side.clusters, sub);
  if (kFast) {
    const float4* const of = neurons.sums + at % (unsigned)hidden;
    const float4 n = neurons.parts > 1 ? strided_sum(of, hidden, neurons.parts, sub) : *of;
    sum = make_float4(0.5f * (n.x + sum.x), 0.5f * (n.y + sum.y), 0.5f * sum.z, 0.5f * sum.w);
    sum.w = fmaf(-side.mu[at], sum.z, sum.w);
  }
  // A lane has one of the gradients.
  if (sub == 0) side.grad_mu[at] = -side.sigma[at] * sum.z;
  if (sub == 1) side.grad_sigma[at] = sum.w;
  if (sub == 2) side.grad_w[at] = positive_slope(weight, constrained) * fmaf(side.erev[at], sum.x, sum.y);
  if (sub == 3) side.grad_erev[at] = positive(weight, constrained) * sum.x;
}
__device__ __forceinline__ void close_column(const CloseColumns& of, i64 c, int sub) {
  const float4 sum = strided_sum(of.sums + c, of.columns, of.slices, sub);
  if (sub > 0) return;
  if (of.to[0]) of.to[0][c] = sum.x;
  if (of.to[1]) of.to[1][c] = sum.y;
  if (of.to[2]) of.to[2][c] = sum.z;
  if (of.to[3]) of.to[3][c] = sum.w;
}

// From sums to gradients: of two sides of held synapses, of the neurons, of the inputs and the outputs, kSharers lanes for each.
extern "C" __global__ void __launch_bounds__(256)
ltc_close(CloseSide recurrent, CloseSide sensory, CloseNeurons n, CloseColumns inputs, CloseColumns outputs, int hidden,
          int constrained) {
  i64 s = (blockIdx.x * (i64)blockDim.x + threadIdx.x) / kSharers;
  const int sub = threadIdx.x % kSharers;
  if (s < recurrent.slots) return close_synapse(recurrent, n, s, sub, hidden, constrained);
  s -= recurrent.slots;
  if (s < sensory.slots) return close_synapse(sensory, n, s, sub, hidden, constrained);
  s -= sensory.slots;
  if (s < n.neurons) {
    if (sub > 0) return;
    const float4 sum = n.sums[s];
    n.grad_gleak[s] = positive_slope(n.gleak[s], constrained) * fmaf(n.vleak[s], sum.x, sum.y);
    n.grad_vleak[s] = n.folded[s].g * sum.x;
    n.grad_cm[s] = n.folded[s].cm_slope * sum.z;
    return;
  }
  s -= n.neurons;
  if (s < inputs.columns) return close_column(inputs, s, sub);
  s -= inputs.columns;
  if (s < outputs.columns) close_column(outputs, s, sub);
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

// States before the unfolds and denominators of the steps t0 .. t0 + steps, from what is kept of them as words (ltc.cuh); a thread each
// neuron of a step. Bytes: 4 read and 8 written for each of B steps K H: 3 us for 32 rows of 32 steps of 128 neurons.
extern "C" __global__ void __launch_bounds__(256)
ltc_unpack(const float* __restrict__ words,  // [B, T, K + 1, H]
           float* __restrict__ trace_v, float* __restrict__ trace_den,  // [B / together, steps, K, H, together]
           int batch, int hidden, int unfolds, int total_steps, int t0, int steps, int together) {
  const i64 n = blockIdx.x * (i64)blockDim.x + threadIdx.x, row = n / hidden, b = row / steps;
  if (b >= batch) return;
  const int j = (int)(n - row * hidden), r = (int)(row - b * steps);
  const float* const from = words + ((b * total_steps + (t0 + r)) * (unfolds + 1) * hidden + j);
  const float first = 1.0f / *from;
  for (int k = 0; k < unfolds; k++) {
    const float word = from[(k + 1) * hidden];
    const i64 at = (((b / together * steps + r) * unfolds + k) * hidden + j) * together + b % together;
    trace_v[at] = word;
    trace_den[at] = k == 0 ? first : __fdividef(first, den_quotient(word));
  }
}
