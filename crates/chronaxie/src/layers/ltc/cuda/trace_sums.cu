// LTC, backward: what is summed of each recurrent synapse, from a trace of v and alpha of every unfold (row_adjoint.cu; the equations:
// backward.cu): the sums of alpha_j r_ij, beta_j r_ij, dz_ij, dz_ij (v_i - mu_ij), as close.cu takes them.
//
// Unfolds do not depend on each other here: a block holds the synapses of some targets, target by target, in groups of threads that
// hold the same, and each group walks steps of its own (b, t), copied one ahead. A thread's synapses are of one target j, whose alpha,
// and beta = -alpha v'_j, it reads once an unfold; v_i is what it gathers. At last a block adds the sums of its groups in order, and
// close.cu those of blocks.
// Work: a gate is a load, a special operation (exact: 2) and 9 (10) others. Floor (H200, 1.9 GHz): issue slots, 11 / 4 clocks of a
// multiprocessor for 32 gates: 35 us for B32 T64 H128 K6 at density 0.5. Bytes: v and alpha once for each part of the targets.
// Two unfolds side by side share a load and its address. Tried: one at a time, and the warp with the longest lists of every group on
// the same scheduler: 51 us (H100) for 6144 unfolds of these, where issue slots are 22. As it is it has not been timed.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = false;
#include "held.cuh"

constexpr int kGroup = 128;  // threads of a group

struct Sums {
  float4 of[kSlots];
};

// What step `unit` of the chunk has: v before its unfolds and after the last, and alpha, of two unfolds side by side.
struct Steps {
  const float *trace_v, *alphas, *states;
  i64 trace_b;
  int hidden, unfolds, total_steps, t0, steps;

  // Floats of a step: [K / 2 + 1, H, 2] and [K / 2, H, 2].
  __device__ __forceinline__ int size() const { return (2 * unfolds + 2) * hidden; }

  // By the threads of a group.
  __device__ __forceinline__ void copy(int unit, float* to, int thread) const {
    const int b = unit / steps, r = unit - b * steps, n = unfolds * hidden;
    const float* const v = trace_v + (b * trace_b + (i64)r * n);
    const float* const alpha = alphas + (i64)unit * n;
    const float* const after = states + ((i64)b * total_steps + t0 + r) * hidden;
#pragma unroll 1
    for (int j = thread; j < hidden; j += kGroup) {
      copy_ahead<4>(to + (n + 2 * j), after + j);
#pragma unroll 1
      for (int k = j; k < n; k += 2 * hidden) {
        float *const both = to + (j + k), *const alphas_of = both + (n + 2 * hidden);
        copy_ahead<4>(both, v + k), copy_ahead<4>(both + 1, v + (k + hidden));
        copy_ahead<4>(alphas_of, alpha + k), copy_ahead<4>(alphas_of + 1, alpha + (k + hidden));
      }
    }
  }
};

// Adds two unfolds'.
template <int kN>
__device__ __forceinline__ void add_unfolds(const Held& held, Sums& sums, const char* row, float2 alpha, float2 beta) {
  float2 x[kN];
#pragma unroll
  for (int i = 0; i < kN; i++) x[i] = *(const float2*)(row + source_of(held, i));
#pragma unroll
  for (int i = 0; i < kN; i++) {
    float4& s = sums.of[i];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float v = r ? x[i].y : x[i].x, al = r ? alpha.y : alpha.x, be = r ? beta.y : beta.x;
      const float t = gate_of(held.a[i], held.b[i], v);
      const float rho = fmaf(al, held.q[i], be * held.p[i]);
      // fast: twice dz, from halved p and q; and dz v.
      const float dz = rho * (kFast ? fmaf(-t, t, 1.0f) : fmaf(-t, t, t));
      s.x = fmaf(al, t, s.x);
      s.y = fmaf(be, t, s.y);
      s.z += dz;
      s.w = fmaf(dz, kFast ? v : v - held.b[i], s.w);
    }
  }
}

template <int kN>
__device__ __forceinline__ void add_step(int used, const Held& held, Sums& sums, const char* step, unsigned mine, int unfolds,
                                         int pitch) {
  if constexpr (kN - 2 >= kSlots / 2) {
    if (used <= kN - 2) return add_step<kN - 2>(used, held, sums, step, mine, unfolds, pitch);
  }
  const int alphas = (unfolds + 2) / 2 * pitch;
#pragma unroll 1
  for (int k = 0; k < unfolds; k += 2, step += pitch) {
    const float2 alpha = *(const float2*)(step + mine + alphas);
    const float2 beta =
        make_float2(-alpha.x * *(const float*)(step + mine + 4), -alpha.y * *(const float*)(step + mine + pitch));
    add_unfolds<kN>(held, sums, step, alpha, beta);
  }
}

// Dynamic shared memory, for each group: two steps of [2 K + 2, H] floats; of all groups no less than 16 bytes a thread.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
ltc_trace_sums(Schedule schedule, const float* __restrict__ trace_v, i64 trace_b,  // [B, steps, K, H], trace_b apart
               const float* __restrict__ alphas,                                   // [B, steps, K, H]
               const float* __restrict__ states,                                   // [B, T, H]
               float4* __restrict__ gate_sums,  // [workers, parts, kSlots, kGroup], added to unless first
               const float4* __restrict__ cluster_sums,  // [clusters, H]: those of neurons, for the last chunk, or null
               float4* __restrict__ neuron_sums,         // [H]
               int clusters, int batch, int hidden, int unfolds, int total_steps, int t0, int steps, int parts, int first_chunk) {
  extern __shared__ __align__(16) float buffers[];
  const unsigned part = blockIdx.x % parts, worker = blockIdx.x / parts, workers = gridDim.x / parts;
  const int group = threadIdx.x / kGroup, groups = blockDim.x / kGroup;
  // The warps of a group lie on other schedulers than those of the group before it with the same synapses. Made anew where it is
  // used: registers are short.
  auto of_group = [&] { return (opaque(threadIdx.x) + opaque(threadIdx.x) / kGroup * 32) % kGroup; };
  const int thread = of_group();
  auto meet = [&] { asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(kGroup) : "memory"); };
  const int used = uniform(schedule.warps[part * (kGroup / 32) + thread / 32].y), j = schedule.target[part * kGroup + thread];
  const unsigned mine = 8 * (j < 0 ? 0 : j);
  float p0, q0;
  const Held held = hold(schedule, part, p0, q0, nullptr, kGroup, thread);
  Sums sums;
  auto saved = [&] { return gate_sums + ((i64)opaque(blockIdx.x) * kSlots * kGroup + of_group()); };
  const float4* const before = saved();
#pragma unroll
  for (int i = 0; i < kSlots; i++)
    sums.of[i] = first_chunk || group > 0 ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : before[i * kGroup];
  const Steps of = {trace_v, alphas, states, trace_b, hidden, unfolds, total_steps, t0, steps};
  const int size = of.size(), units = batch * steps, stride = workers * groups;
  float* const mine_of = buffers + group * 2 * size;
  const int first = worker * groups;
  // A step is added while the next one is copied; before the first there is none. All groups meet equally often.
#pragma unroll 1
  for (int round = first - stride, turn = 1; round < units; round += stride, turn ^= 1) {
    const int unit = round + group;
    copies_here();
    meet();
    if (unit + stride < units) of.copy(unit + stride, mine_of + (turn ^ 1) * size, of_group());
    if (round >= first && unit < units) add_step<kSlots>(used, held, sums, (const char*)(mine_of + turn * size), mine, unfolds, 8 * hidden);
  }
  // Of the neurons those of clusters, in order: one block.
  for (int e = threadIdx.x; cluster_sums && blockIdx.x == 0 && e < hidden; e += blockDim.x) {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
    for (int c = 0; c < clusters; c++) {
      const float4 x = cluster_sums[(i64)c * hidden + e];
      sum.x += x.x, sum.y += x.y, sum.z += x.z;
    }
    neuron_sums[e] = sum;
  }
  // The groups' sums, in order.
  const int last = of_group();
  float4 *const all = (float4*)buffers, *const after = saved();
#pragma unroll
  for (int i = 0; i < kSlots; i++) {
    __syncthreads();
    all[group * kGroup + last] = sums.of[i];
    __syncthreads();
    if (group == 0) {
      float4 sum = sums.of[i];
      for (int k = 1; k < groups; k++) {
        const float4 x = all[k * kGroup + last];
        sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
      }
      after[i * kGroup] = sum;
    }
    __syncwarp();
  }
}
