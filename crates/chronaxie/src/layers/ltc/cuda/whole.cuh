// Short sequences, of which one block does all of one batch row: its synapses folded from the parameters, and the sums over
// the inputs of all steps in shared memory (whole.cu, whole_adjoint.cu).
#pragma once
#include "row.cuh"

// Synapses of one side: where the slots' places in dense matrices are, and these.
struct RawSide {
  const unsigned* at;  // [slots, threads]: source H + target, or all ones
  const float *w, *mu, *sigma, *erev;
};

// Slots of the sensory side that a thread holds, and steps whose sums are made side by side.
constexpr int kInputSlots = 12, kSteps = 8;

template <int kCount>
__device__ __forceinline__ void fold_slots(const RawSide& side, float4 (&x)[kCount], int constrained) {
  unsigned at[kCount];
#pragma unroll
  for (int i = 0; i < kCount; i++) at[i] = side.at[i * blockDim.x + threadIdx.x];
#pragma unroll
  for (int i = 0; i < kCount; i++) {
    x[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (at[i] != ~0u) x[i] = make_float4(side.w[at[i]], side.mu[at[i]], side.sigma[at[i]], side.erev[at[i]]);
  }
#pragma unroll
  for (int i = 0; i < kCount; i++) {
    const float4 raw = x[i];
    const float p = at[i] == ~0u ? 0.0f : positive(raw.x, constrained);
    x[i] = make_float4(0.5f * raw.z, -0.5f * raw.z * raw.y, 0.5f * p, 0.5f * p * raw.w);
  }
}

// The inputs of a call.
struct Inputs {
  const float* x;
  i64 stride_b, stride_t, stride_d;
  const float *norm_weight, *norm_bias, *input_w, *input_b;  // each [D] or null
  int inputs;
  float norm_epsilon;
};

// Lane n of eight of a target ends with both sums of one of kSteps steps: of which, is returned. The order is fixed.
__device__ __forceinline__ int step_sums_of(float (&num)[kSteps], float (&den)[kSteps], int lane, int lanes) {
  int mine = 0;
#pragma unroll
  for (int half = kSteps / 2, o = 1; half > 0; half /= 2, o *= 2) {
    const bool upper = lane & o;
    mine += upper ? half : 0;
#pragma unroll
    for (int r = 0; r < half; r++) {
      const float give_num = upper ? num[r] : num[half + r], give_den = upper ? den[r] : den[half + r];
      num[r] = (upper ? num[half + r] : num[r]) + __shfl_xor_sync(~0u, give_num, o);
      den[r] = (upper ? den[half + r] : den[r]) + __shfl_xor_sync(~0u, give_den, o);
    }
  }
#pragma unroll 1
  for (int o = kSteps; o < lanes; o *= 2) {
    num[0] += __shfl_xor_sync(~0u, num[0], o);
    den[0] += __shfl_xor_sync(~0u, den[0], o);
  }
  return mine;
}

// The parts of both sums of eight steps, whose values lie in two planes of four; the second is `plane` bytes behind the first.
template <int kCount>
__device__ __forceinline__ void add_steps(const float4 (&held)[kCount], const unsigned (&from)[kCount / 2], int used,
                                          const char* tile, unsigned plane, float (&num)[kSteps], float (&den)[kSteps]) {
#pragma unroll
  for (int r = 0; r < kSteps; r++) num[r] = den[r] = 0.0f;
#pragma unroll
  for (int i = 0; i < kCount; i++) {
    if (i >= used) break;
    const unsigned at = i % 2 ? from[i / 2] >> 16 : from[i / 2] & 0xffffu;
    float v[kSteps];
    *(float4*)v = *(const float4*)(tile + at);
    *(float4*)(v + 4) = *(const float4*)(tile + plane + at);
#pragma unroll
    for (int r = 0; r < kSteps; r++) {
      const float t = gate_of(held[i].x, held[i].y, v[r]);
      num[r] = fmaf(held[i].w, t, num[r]);
      den[r] = fmaf(held[i].z, t, den[r]);
    }
  }
}

// Ns and Ds of all steps of row b to `sums`, [steps, H]; u to `u`, two planes [D, 4] for eight steps, of all steps one after
// the other if `keep`. Ends without a barrier.
__device__ __forceinline__ void input_sums(const Schedule& schedule, const RawSide& side, const Inputs& in, i64 b, int steps,
                                           int hidden, int constrained, float2* sums, float* u, bool keep) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, inputs = in.inputs;
  int2 shape = schedule.warps[warp];
  shape = make_int2(uniform(shape.x), uniform(shape.y));
  const int j = schedule.target[threadIdx.x], sub = lane & (shape.x - 1);
  float4 held[kInputSlots];
  fold_slots<kInputSlots>(side, held, constrained);
  float p0 = 0.0f, q0 = 0.0f;
  unsigned from[kInputSlots / 2];
#pragma unroll
  for (int i = 0; i < kInputSlots; i++) p0 += held[i].z, q0 += held[i].w;
  p0 = lanes_sum(p0, shape.x), q0 = lanes_sum(q0, shape.x);
#pragma unroll
  for (int i = 0; i < kInputSlots / 2; i++) from[i] = schedule.from[i * blockDim.x + threadIdx.x] * 16u;
#pragma unroll 1
  for (int first = 0; first < steps; first += kSteps) {
    if (first && !keep) __syncthreads();
    const float* row = in.x + b * in.stride_b;
    if (in.norm_weight) {
      // A warp makes a step.
      for (int r = warp; r < kSteps; r += warps) {
        const bool there = first + r < steps;
        const float* at = row + (first + r) * in.stride_t;
        float mean = 0.0f, var = 0.0f;
        for (int d = lane; there && d < inputs; d += 32) mean += at[d * in.stride_d];
        mean = warp_sum(mean) / (float)inputs;
        for (int d = lane; there && d < inputs; d += 32) {
          const float e = at[d * in.stride_d] - mean;
          var = fmaf(e, e, var);
        }
        const float rstd = 1.0f / sqrtf(warp_sum(var) / (float)inputs + in.norm_epsilon);
        for (int d = lane; d < inputs; d += 32) {
          float y = there ? fmaf((at[d * in.stride_d] - mean) * rstd, in.norm_weight[d], in.norm_bias[d]) : 0.0f;
          if (in.input_w) y *= in.input_w[d];
          if (in.input_b) y += in.input_b[d];
          u[((r >> 2) * inputs + d) * 4 + (r & 3)] = y;
        }
      }
    } else {
      for (int e = threadIdx.x; e < kSteps * inputs; e += blockDim.x) {
        const int r = e / inputs, d = e - r * inputs;
        float y = first + r < steps ? row[(first + r) * in.stride_t + d * in.stride_d] : 0.0f;
        if (in.input_w) y *= in.input_w[d];
        if (in.input_b) y += in.input_b[d];
        u[((r >> 2) * inputs + d) * 4 + (r & 3)] = y;
      }
    }
    __syncthreads();
    float num[kSteps], den[kSteps];
    add_steps<kInputSlots>(held, from, shape.y, (const char*)u, 16 * inputs, num, den);
    const int mine = step_sums_of(num, den, lane, shape.x);
    if (j >= 0 && sub < kSteps && first + mine < steps)
      sums[(first + mine) * hidden + j] = make_float2(num[0] + q0, den[0] + p0);
    if (keep) u += kSteps * inputs;
  }
}
