// LTC, backward, of short sequences without LayerNorm: one block does all of one batch row (the equations: backward.cu). It
// makes the sums over the inputs and the unfolds again (eight steps side by side, since the states of all steps are known),
// walks the adjoint from the last unfold to the first with everything in shared memory and registers, and then goes through
// the gates of the inputs. What a block sums of each synapse it leaves for close.cu, which adds the rows in order.
//
// Chain of an unfold of the adjoint: alpha and beta to shared memory, barrier, load, 3 fused multiply-adds, sums over lanes.
// The gates do not depend on it, and are made before the barrier.
// Floor (H200) for B24 T8 D128 H64 at density 0.5: 48 such chains of about 400 clocks (13 instructions a gate, 2048 gates, four
// schedulers: 210; four warps a scheduler beside their gates: 160), 10 us; the unfolds 4 us, the inputs 1 and 2.5 us.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = false;
#include "whole.cuh"

// Slots of the recurrent side by source, and of a part of the inputs' by source, of which there are two.
constexpr int kSourceSlots = 6, kPartSlots = kInputSlots / 2;

// Twice dz = (alpha q + beta p) (1 - tanh^2), and the sums of a synapse: alpha t, beta t, 2 dz, 2 dz v.
struct GateSums {
  float x, y, z, w;
};

// A lane's part of the sum of dz sigma over targets, and the sums of its synapses. `tile`: alpha and beta of the targets.
template <int kCount>
__device__ __forceinline__ float add_adjoint(const float4 (&held)[kCount], const float (&t)[kCount],
                                             const unsigned (&from)[kCount / 2], int used, const char* tile, float v,
                                             GateSums (&sums)[kCount]) {
  float total = 0.0f;
  float2 pair[kCount];
#pragma unroll
  for (int i = 0; i < kCount; i++) {
    if (i >= used) break;
    pair[i] = *(const float2*)(tile + (i % 2 ? from[i / 2] >> 16 : from[i / 2] & 0xffffu));
  }
#pragma unroll
  for (int i = 0; i < kCount; i++) {
    if (i >= used) break;
    const float slope = fmaf(-t[i], t[i], 1.0f);
    const float dz = fmaf(pair[i].x, held[i].w * slope, pair[i].y * (held[i].z * slope));
    total = fmaf(dz, held[i].x, total);
    sums[i].x = fmaf(pair[i].x, t[i], sums[i].x);
    sums[i].y = fmaf(pair[i].y, t[i], sums[i].y);
    sums[i].z += dz;
    sums[i].w = fmaf(dz, v, sums[i].w);
  }
  return total;
}

// The sum over the lanes of a source, of which there are kLeastLanes at least; the order is fixed.
template <int kLeastLanes>
__device__ __forceinline__ float sum_of_lanes(float x, int lanes) {
#pragma unroll
  for (int o = 1; o < kLeastLanes; o *= 2) x += __shfl_xor_sync(~0u, x, o);
#pragma unroll 1
  for (int o = kLeastLanes; o < lanes; o *= 2) x += __shfl_xor_sync(~0u, x, o);
  return x;
}

template <int kCount>
__device__ __forceinline__ void leave(const GateSums (&sums)[kCount], float4* to, int used) {
#pragma unroll
  for (int i = 0; i < kCount; i++)
    if (i < used) to[i * blockDim.x] = make_float4(sums[i].x, sums[i].y, sums[i].z, sums[i].w);
}

// Dynamic shared memory: Ns and Ds, later the sums of alpha and beta, [steps, H]; u, [steps rounded up to 8, D]; v and 1 / den of
// the unfolds, each [steps, K H + 4], later dL/du, [steps, D]; a tile of states, twice two planes [H, 4]; of alpha and beta, twice
// [H, 2].
extern "C" __global__ void __launch_bounds__(kThreads, 1)
ltc_whole_adjoint(Schedule by_target, Schedule by_source, Schedule inputs_by_target, Schedule inputs_by_source,
                  RawSide target_side, RawSide source_side, RawSide inputs_target_side, RawSide inputs_source_side,
                  const float* __restrict__ gleak, const float* __restrict__ vleak, const float* __restrict__ cm,
                  const float* __restrict__ x, i64 stride_b, i64 stride_t, i64 stride_d,
                  const float* __restrict__ input_w, const float* __restrict__ input_b,  // each [D] or null
                  const float* __restrict__ start, i64 start_b, i64 start_h,             // [B, H] or null: zeros
                  const float* __restrict__ elapsed, i64 elapsed_b, i64 elapsed_t, float dt,  // [B, T] or null: dt
                  const float* __restrict__ states,                                        // [B, T, H]
                  const float* __restrict__ grad_out, i64 grad_b, i64 grad_t, i64 grad_m,  // [B, T, M], any strides
                  const float* __restrict__ output_w,                                      // [M] or null
                  const float* __restrict__ grad_end, i64 end_b, i64 end_h,  // [B, H]: dL/d(final state), any strides
                  float* __restrict__ grad_start,                            // [B, H]: dL/dh0
                  float* __restrict__ grad_x,        // [B, T, D] or null
                  float* __restrict__ grad_u,        // [B, T, D] or null
                  float* __restrict__ step_changes,  // [B, T, H] or null: sums of alpha (v - v') over the unfolds of a step
                  float4* __restrict__ gate_sums,    // [B, kSourceSlots, threads]
                  float4* __restrict__ inputs_sums,  // [B, kInputSlots, threads]
                  float4* __restrict__ neuron_sums,  // [B, H]: alpha, beta, alpha (v - v') K / dt
                  Neuron* __restrict__ folded,       // [H]
                  int hidden, int inputs, int outputs, int unfolds, int steps, int constrained, float epsilon) {
  extern __shared__ __align__(16) char shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 b = blockIdx.x;
  const int pitch = unfolds * hidden + 4;
  float2* const sums = (float2*)shared;
  float* const u = (float*)(shared + (steps * hidden * 8 + 15) / 16 * 16);
  float* const trace_v = u + (steps + kSteps - 1) / kSteps * kSteps * inputs;
  float* const trace_inverse = trace_v + steps * pitch;
  const int trace = 2 * steps * pitch > steps * inputs ? 2 * steps * pitch : steps * inputs;
  char* const tiles = (char*)(trace_v + (trace + 3) / 4 * 4);
  char* const pairs = tiles + 2 * 32 * hidden;
  const Inputs in = {x, stride_b, stride_t, stride_d, nullptr, nullptr, input_w, input_b, inputs, 0.0f};
  input_sums(inputs_by_target, inputs_target_side, in, b, steps, hidden, constrained, sums, u, true);
  __syncthreads();
  {
    // The unfolds of eight steps at a time.
    int2 shape = by_target.warps[warp];
    shape = make_int2(uniform(shape.x), uniform(shape.y));
    float4 held[kSlots];
    fold_slots<kSlots>(target_side, held, constrained);
    unsigned from[kSlots / 2];
    float p0 = 0.0f, q0 = 0.0f;
#pragma unroll
    for (int i = 0; i < kSlots; i++) p0 += held[i].z, q0 += held[i].w;
#pragma unroll
    for (int i = 0; i < kSlots / 2; i++) from[i] = by_target.from[i * blockDim.x + threadIdx.x] * 16u;
    const Neurons n = neuron_of(by_target, 0, shape.x, gleak, vleak, cm, unfolds, elapsed ? 1.0f : dt, constrained, epsilon, p0, q0);
    const bool writer = n.there && (lane & (shape.x - 1)) < kSteps;
    if (b == 0 && n.writer) {
      const float g = positive(gleak[n.j], constrained);
      folded[n.j] = {positive(cm[n.j], constrained) * (float)unfolds, g, g * vleak[n.j], positive_slope(cm[n.j], constrained)};
    }
    // Which of the eight steps is this lane's after step_sums_of.
    const int mine = (lane & 1) * 4 + (lane & 2) + ((lane >> 2) & 1);
    char* const place = tiles + (mine >> 2) * 16 * hidden + n.place * 4 + (mine & 3) * 4;
    const int half = 32 * hidden;
#pragma unroll 1
    for (int first = 0; first < steps; first += kSteps) {
      const int step = first + mine;
      const bool there = writer && step < steps;
      float v = 0.0f, c = n.rate_c;
      float2 s = make_float2(0.0f, 0.0f);
      if (there) {
        if (step > 0)
          v = states[(b * steps + step - 1) * hidden + n.j];
        else if (start)
          v = start[b * start_b + n.j * start_h];
        if (elapsed) c = __fdiv_rn(n.rate_c, elapsed[b * elapsed_b + step * elapsed_t]);
        s = sums[step * hidden + n.j];
      }
      if (first) __syncthreads();
      if (writer) *(float*)place = v;
      int at = step * pitch + n.j, side = 0;
#pragma unroll 1
      for (int k = 0; k < unfolds; k++) {
        __syncthreads();
        float num[kSteps], den[kSteps];
        add_steps<kSlots>(held, from, shape.y, tiles + side, 16 * hidden, num, den);
        step_sums_of(num, den, lane, shape.x);
        float inverse;
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(den[0] + (n.den + c + s.y)));
        if (there) trace_v[at] = v, trace_inverse[at] = inverse;
        v = (num[0] + fmaf(c, v, n.num + s.x)) * inverse;
        side ^= half;
        if (writer) *(float*)(place + side) = v;
        at += hidden;
      }
    }
  }
  __syncthreads();
  {
    int2 shape = by_source.warps[warp];
    shape = make_int2(uniform(shape.x), uniform(shape.y));
    const int owner = by_source.target[threadIdx.x], i = owner < 0 ? 0 : owner & 0xffff;
    const bool there = owner >= 0, writer = there && (lane & (shape.x - 1)) == 0;
    float4 held[kSourceSlots];
    fold_slots<kSourceSlots>(source_side, held, constrained);
    unsigned from[kSourceSlots / 2];
#pragma unroll
    for (int s = 0; s < kSourceSlots / 2; s++) from[s] = by_source.from[s * blockDim.x + threadIdx.x] * 8u;
    GateSums of[kSourceSlots];
#pragma unroll
    for (int s = 0; s < kSourceSlots; s++) of[s] = {0.0f, 0.0f, 0.0f, 0.0f};
    const float rate = there ? positive(cm[i], constrained) * (float)unfolds : 0.0f;
    float2* const place = (float2*)pairs + (owner < 0 ? 0 : owner >> 16);
    float a = there ? grad_end[b * end_b + i * end_h] : 0.0f;
    float after = there && steps > 0 ? states[(b * steps + steps - 1) * hidden + i] : 0.0f;
    float all_alpha = 0.0f, all_beta = 0.0f, all_change = 0.0f;
    int side = 0;
#pragma unroll 1
    for (int step = steps - 1; step >= 0; step--) {
      const float per_time = 1.0f / (elapsed ? elapsed[b * elapsed_b + step * elapsed_t] : dt), c = rate * per_time;
      if (there && i < outputs) {
        const float g = grad_out[b * grad_b + step * grad_t + i * grad_m];
        a += output_w ? g * output_w[i] : g;
      }
      float alphas = 0.0f, betas = 0.0f, change = 0.0f;
      int at = step * pitch + (unfolds - 1) * hidden + i;
#pragma unroll 1
      for (int k = unfolds - 1; k >= 0; k--) {
        const float v = trace_v[at], alpha = a * trace_inverse[at], beta = -alpha * after;
        if (writer) place[side] = make_float2(alpha, beta);
        float t[kSourceSlots];
#pragma unroll
        for (int s = 0; s < kSourceSlots; s++) {
          if (s >= shape.y) break;
          t[s] = gate_of(held[s].x, held[s].y, v);
        }
        __syncthreads();
        const float total = add_adjoint<kSourceSlots>(held, t, from, shape.y, (const char*)((float2*)pairs + side), v, of);
        a = fmaf(alpha, c, sum_of_lanes<kLanes>(total, shape.x));
        alphas += alpha, betas += beta;
        change += fmaf(alpha, v, beta);
        after = v;
        side = hidden - side;
        at -= hidden;
      }
      all_alpha += alphas, all_beta += betas, all_change = fmaf(change, (float)unfolds * per_time, all_change);
      // Ns and Ds of this step were read by all before the first unfold of the adjoint.
      if (writer) {
        sums[step * hidden + i] = make_float2(alphas, betas);
        if (step_changes) step_changes[(b * steps + step) * hidden + i] = change;
      }
    }
    if (writer) {
      grad_start[b * hidden + i] = a;
      neuron_sums[b * hidden + i] = make_float4(all_alpha, all_beta, all_change, 0.0f);
    }
    leave<kSourceSlots>(of, gate_sums + b * kSourceSlots * blockDim.x + threadIdx.x, shape.y);
  }
  __syncthreads();
  {
    int2 shape = inputs_by_source.warps[warp];
    shape = make_int2(uniform(shape.x), uniform(shape.y));
    const int owner = inputs_by_source.target[threadIdx.x], d = owner < 0 ? 0 : owner;
    const bool writer = owner >= 0 && (lane & (shape.x - 1)) == 0;
    float* const so_far = trace_v;
#pragma unroll 1
    for (int part = 0; part < 2; part++) {
      const int first = part * kPartSlots, used = shape.y - first;
      float4 held[kPartSlots];
      RawSide side = inputs_source_side;
      side.at += first * blockDim.x;
      fold_slots<kPartSlots>(side, held, constrained);
      unsigned from[kPartSlots / 2];
#pragma unroll
      for (int s = 0; s < kPartSlots / 2; s++)
        from[s] = inputs_by_source.from[(first / 2 + s) * blockDim.x + threadIdx.x] * 8u;
      GateSums of[kPartSlots];
#pragma unroll
      for (int s = 0; s < kPartSlots; s++) of[s] = {0.0f, 0.0f, 0.0f, 0.0f};
      const float scale = input_w ? input_w[d] : 1.0f;
#pragma unroll 1
      for (int step = 0; step < steps; step++) {
        const float v = u[((step >> 2) * inputs + d) * 4 + (step & 3)];
        float t[kPartSlots];
#pragma unroll
        for (int s = 0; s < kPartSlots; s++) {
          if (s >= used) break;
          t[s] = gate_of(held[s].x, held[s].y, v);
        }
        float total = add_adjoint<kPartSlots>(held, t, from, used, (const char*)(sums + step * hidden), v, of);
        total = sum_of_lanes<4>(total, shape.x);
        if (!writer) continue;
        if (part == 0) {
          so_far[step * inputs + d] = total;
        } else {
          total += so_far[step * inputs + d];
          if (grad_x) grad_x[(b * steps + step) * inputs + d] = total * scale;
          if (grad_u) grad_u[(b * steps + step) * inputs + d] = total;
        }
      }
      leave<kPartSlots>(of, inputs_sums + (b * kInputSlots + first) * blockDim.x + threadIdx.x, used);
    }
  }
}
