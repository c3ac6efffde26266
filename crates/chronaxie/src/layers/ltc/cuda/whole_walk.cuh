// The adjoint of a short sequence's row (whole_adjoint.cu): one block walks from the last unfold to the first, source by source.
//
// With v' the state after an unfold, dL/dv is linear in alpha alone, since beta is -alpha v':
//   a_i <- alpha_i c_i + sum_j alpha_j u_ij      u_ij = sigma_ij r_ij (1 - r_ij) (q_ij - v'_j p_ij)
// All states are known, so u of an unfold is made while the alphas of the one after it travel: the chain of an unfold is alpha to shared
// memory, barrier, one load and one fused multiply-add a slot, sums over lanes, a product with 1 / den.
// Clocks of an unfold (H100, 64 sources at density 0.5; reckoned from ncu's samples): with beta beside alpha 800, with alpha alone 660 (113 instructions a
// warp of 8 slots; 98 since addresses are the same for all threads).
// Tried: two groups of four warps that hold the same synapses and take unfolds in turn, one in the chain while the other makes u: 780
// (with two warps a scheduler, of which each waits for itself, what waits is not hidden).
#pragma once
#include "whole.cuh"

// Slots of the recurrent side, by target and by source.
constexpr int kHeld = 12;

// Synapses of a thread, and the other ends of them.
template <int kCount>
struct Some {
  float4 of[kCount];
  unsigned from[kCount / 2];
  __device__ __forceinline__ unsigned other(int i) const { return i % 2 ? from[i / 2] >> 16 : from[i / 2] & 0xffffu; }

  __device__ __forceinline__ void fold(const Schedule& schedule, const Side& side, unsigned scale, int constrained, int thread, int threads) {
#pragma unroll
    for (int i = 0; i < kCount / 2; i++) from[i] = schedule.from[i * threads + thread] * scale;
    fold_slots<kCount>(side, threads, thread, constrained, [] {}, [&](int i, const float4& f) { of[i] = f; });
  }
};

// `what` by the number of slots that a warp uses, rounded up to an even one: code for each would miss the instruction cache.
template <int kN, int kLeast, class What>
__device__ __forceinline__ void by_slots(int used, What what) {
  if constexpr (kN - 2 >= kLeast) {
    if (used <= kN - 2) return by_slots<kN - 2, kLeast>(used, what);
  }
  what(Number<kN>());
}

// What the walk goes through; global addresses are those of this row.
struct Back {
  const float *trace_v, *trace_inverse;  // [steps K + 1, H]; [steps K, H]
  float* alphas;                         // of every unfold, [steps K, H]; in all blocks
  const float *grad_out, *elapsed, *output_w;  // the last two, or one of them: null
  i64 grad_t, grad_m, elapsed_t;
  float dt;
  int hidden, outputs, unfolds, steps;
};

// What a thread knows at the end of its source.
struct Walked {
  float adjoint, out_w, out_b;
};

// dL/dout of a step and the time that it takes, read ahead of its turn.
struct OfStep {
  float grad, time;
  __device__ __forceinline__ void read(const Back& w, int step, int i, bool there) {
    if (step < 0) return;
    grad = there && i < w.outputs ? w.grad_out[step * w.grad_t + i * w.grad_m] : 0.0f;
    time = w.elapsed ? w.elapsed[step * w.elapsed_t] : w.dt;
  }
};

// The sum over the lanes of a source, of which there are four at least; the order is fixed.
__device__ __forceinline__ float sum_of_lanes(float x, int lanes) {
  x += __shfl_xor_sync(~0u, x, 1);
  x += __shfl_xor_sync(~0u, x, 2);
  if (lanes == 4) return x;
#pragma unroll 1
  for (int o = 4; o < lanes; o *= 2) x += __shfl_xor_sync(~0u, x, o);
  return x;
}

// u of each of kN targets, whose states after the unfold are in `after`: x.of is a, b, a p, a q.
template <int kN>
__device__ __forceinline__ void slopes_of(const Some<kHeld>& x, float v, const char* after, float (&slopes)[kN]) {
#pragma unroll
  for (int s = 0; s < kN; s++) {
    const float t = gate_of(x.of[s].x, x.of[s].y, v), next = *(const float*)(after + x.other(s));
    slopes[s] = fmaf(-next, x.of[s].z, x.of[s].w) * fmaf(-t, t, 1.0f);
  }
}

// The walk of source i, where no lane of a warp has more than kN slots; lane `sub` of those of the source. Of each part of steps
// (kPart) the other blocks wait for the alphas by a barrier of `arrived`.
template <int kN>
__device__ __forceinline__ void walk_back(const Back& w, const Some<kHeld>& x, int lanes, int i, bool there, int sub, float rate,
                                          unsigned long long* arrived, Walked& end) {
  const int row = 4 * w.hidden;
  float a = end.adjoint;
  const float output_w = there && i < w.outputs && w.output_w ? w.output_w[i] : 1.0f;
  const bool writer = there && sub == 0;
  // Bytes to this unfold, the same for all threads; from the last one on. What is read before the first is never used; it lies in shared
  // memory, too.
  int at = (w.steps * w.unfolds - 1) * row;
  const char* const own_v = (const char*)(w.trace_v + i);
  const char* const own_inverse = (const char*)(w.trace_inverse + i);
  char* const own_alpha = (char*)(w.alphas + i);
  const auto value = [](const char* p) { return *(const float*)p; };
#if __CUDA_ARCH__ >= 900
  const bool sends = kBlocks > 1 && there && sub > 0 && sub < kBlocks;
  const unsigned others = kBlocks > 1 ? in_block(shared_address(own_alpha), sends ? sub : 0) : 0;
  const unsigned barriers = kBlocks > 1 ? in_block(shared_address(arrived), sends ? sub : 0) : 0;
#endif
  float slopes[2][kN], next_v = 0.0f;
  if (at >= 0) {
    slopes_of<kN>(x, value(own_v + at), (const char*)w.trace_v + (at + row), slopes[0]);
    next_v = value(own_v + (at - row));
  }
  OfStep next_step = {0.0f, 1.0f};
  next_step.read(w, w.steps - 1, i, there);
#pragma unroll 1
  for (int step = w.steps - 1; step >= 0; step--) {
    const OfStep now = next_step;
    next_step.read(w, step - 1, i, there);
    const float c = rate / now.time;
    a = fmaf(now.grad, output_w, a);
    end.out_w = fmaf(now.grad, value(own_v + (at + row)), end.out_w), end.out_b += now.grad;
    float inverse = value(own_inverse + at);
#if __CUDA_ARCH__ >= 900
    const unsigned barrier = barriers + step / kPart * 8;
#endif
    auto unfold = [&](int which) {
      const float alpha = a * inverse;
      if (writer) *(float*)(own_alpha + at) = alpha;
#if __CUDA_ARCH__ >= 900
      const float mine[1] = {alpha};
      if (sends) store_async(others + at, mine, barrier);
#endif
      __syncthreads();
      float of[kN];
#pragma unroll
      for (int s = 0; s < kN; s++) of[s] = *(const volatile float*)((const char*)w.alphas + at + x.other(s));
      inverse = value(own_inverse + (at - row));
      const float second_v = value(own_v + (at - 2 * row));
      slopes_of<kN>(x, next_v, (const char*)w.trace_v + at, slopes[1 - which]);
      float total[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int s = 0; s < kN; s++) total[s % 4] = fmaf(of[s], slopes[which][s], total[s % 4]);
      a = fmaf(alpha, c, sum_of_lanes((total[0] + total[1]) + (total[2] + total[3]), lanes));
      next_v = second_v;
      at -= row;
    };
#pragma unroll 1
    for (int k = 0; k < w.unfolds; k += 2) {
      unfold(0);
      unfold(1);
    }
  }
  end.adjoint = a;
}
