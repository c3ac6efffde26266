// LTC, backward, of wirings that are nearly acyclic, level by level (levels.cuh; the equations: backward.cu), over a chunk of steps of
// all rows, whose unfolds levels.cu has rebuilt:
//   ltc_apart_adjoint of sinks     alpha and beta of each unfold, [rows, sinks]; nobody reads a sink, so that a' = alpha c
//   ltc_sensory_adjoint            of the synapses to sinks: their sums, and dL/dU of what sinks read
//   ltc_chain_adjoint              alpha and beta of the chain, [rows, C]; near synapses alone are left in it
//   ltc_sensory_adjoint            of all synapses to the chain: their sums, and dL/dU
//   ltc_apart_adjoint of lone ones
//
// Floor (1.98 GHz, 132 multiprocessors) of B128 T64 H256 K6 by AutoNCP: 7,437 synapses of 49,152 unfolds at 11.5 / 4 clocks for 32 gates
// 0.125 ms, the unfolds rebuilt 0.087 (levels.cu), the chain 384 unfolds of some 200 clocks 0.039.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = false;
#include "levels.cuh"

// What a neuron adds up on the way back.
struct Back {
  float a = 0.0f;                                        // dL/dv'
  float alpha = 0.0f, beta = 0.0f, change = 0.0f;        // sums over a step
  float3 all = {0.0f, 0.0f, 0.0f};                       // alpha, beta, alpha (v - v') K / dt over everything
};

// Where it takes gradients from at a step's end, and gives its sums at the beginning.
struct Steps {
  const float* grad_out;  // [B, T, M], any strides
  i64 grad_b, grad_t, grad_m;
  const float* output_w;  // [M] or null
  float2* step_sums;      // [B, steps, H]
  float* step_changes;    // [B, steps, H] or null
  int outputs;
  __device__ __forceinline__ float given(i64 b, int t, int j) const {
    if (j >= outputs) return 0.0f;
    const float g = grad_out[b * grad_b + t * grad_t + j * grad_m];
    return output_w ? g * output_w[j] : g;
  }
  __device__ __forceinline__ void begin(Back& x, const Pass& p, i64 b, int s, int j, float per_time) const {
    const i64 at = (b * p.steps + s) * p.hidden + j;
    step_sums[at] = make_float2(x.alpha, x.beta);
    if (step_changes) step_changes[at] = x.change;
    x.all.x += x.alpha, x.all.y += x.beta, x.all.z = fmaf(x.change, per_time, x.all.z);
    x.alpha = x.beta = x.change = 0.0f;
  }
};

// alpha and beta of an unfold, which are added to what the step has.
__device__ __forceinline__ float2 unfold_back(Back& x, float v, float then, float inverse) {
  const float alpha = x.a * inverse, beta = -alpha * then;
  x.alpha += alpha, x.beta += beta, x.change = fmaf(alpha, v - then, x.change);
  return make_float2(alpha, beta);
}

__device__ __forceinline__ void leave(const Back& x, float4* neuron_sums, float* grad_start, i64 at, bool first_chunk) {
  float4 sum = first_chunk ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : neuron_sums[at];
  sum.x += x.all.x, sum.y += x.all.y, sum.z += x.all.z;
  neuron_sums[at] = sum;
  grad_start[at] = x.a;
}

// Lone neurons, or sinks, a thread each and row of the batch.
extern "C" __global__ void __launch_bounds__(256)
ltc_apart_adjoint(const int* __restrict__ ids, int count,                       // the neurons
                  const float* __restrict__ u, int pitch,                       // [rows, pitch] from their columns on: lone; or null
                  float2* __restrict__ pairs,                                   // [rows, count]: v' and den of sinks; then alpha and beta
                  const float* __restrict__ of_chain, int chain_pitch,          // dL/dU, [rows, chain_pitch], or null
                  const float* __restrict__ of_sinks, int sinks_pitch, int from,  // the same, of columns from `from` on, or null
                  const float* __restrict__ gleak, const float* __restrict__ vleak, const float* __restrict__ cm,
                  const float2* __restrict__ sensory,                           // [B, steps, H]: of lone neurons
                  const float* __restrict__ states,                             // [B, T, H]
                  const float* start, i64 start_b, i64 start_h,                 // [B, H], any strides, or null: zeros
                  const float* __restrict__ elapsed, i64 elapsed_b, i64 elapsed_t, float dt,
                  const float* __restrict__ grad_out, i64 grad_b, i64 grad_t, i64 grad_m, const float* __restrict__ output_w,
                  const float* grad_end, i64 end_b, i64 end_h, float* grad_start,  // [B, H]: after the chunk and before it
                  float2* __restrict__ step_sums, float* __restrict__ step_changes,  // [B, steps, H]; or null
                  float4* __restrict__ neuron_sums,                             // [B, H], added to unless first
                  int batch, int hidden, int outputs, int unfolds, int total_steps, int t0, int steps, int first_chunk,
                  int constrained, float epsilon) {
  const i64 n = blockIdx.x * (i64)blockDim.x + threadIdx.x, b = n / count;
  if (b >= batch) return;
  const int i = (int)(n - b * count), j = ids[i];
  const Pass p = {sensory, elapsed, elapsed_b, elapsed_t, hidden, unfolds, total_steps, t0, steps};
  const Steps at_steps = {grad_out, grad_b, grad_t, grad_m, output_w, step_sums, step_changes, outputs};
  const Cell cell = cell_of(j, gleak, vleak, cm, unfolds, elapsed ? 1.0f : dt, constrained, epsilon);
  const i64 begin = b * steps * unfolds;
  const int all = steps * unfolds;
  // Of a lone neuron the state before an unfold and dL/dU, of a sink v' and den.
  const bool sink = pairs != nullptr;
  auto read = [&](int m) {
    const i64 row = begin + m;
    if (sink) return pairs[row * count + i];
    float g = of_chain ? of_chain[row * chain_pitch + i] : 0.0f;
    if (of_sinks && i >= from) g += of_sinks[row * sinks_pitch + (i - from)];
    return make_float2(u[row * pitch + i], g);
  };
  Back x;
  x.a = grad_end[b * end_b + j * end_h];
  float2 ahead[kAheadOf];
#pragma unroll
  for (int e = 0; e < kAheadOf; e++) ahead[e] = e < all ? read(all - 1 - e) : make_float2(0.0f, 0.0f);
  // v' of the last unfold; of sinks what it is of the one before.
  float then = all > 0 ? states[(b * total_steps + (t0 + steps - 1)) * hidden + j] : 0.0f;
  auto initial = [&] {
    if (t0 > 0) return states[(b * total_steps + (t0 - 1)) * hidden + j];
    return start ? start[b * start_b + j * start_h] : 0.0f;
  };
  const float origin = sink ? initial() : 0.0f;
  int k = unfolds - 1, s = steps - 1;
  float2 next = make_float2(0.0f, 0.0f);
  float time = 1.0f, given = 0.0f;
  auto look = [&](int s) { next = p.sums(b, s, j), time = p.time(b, s), given = at_steps.given(b, t0 + s, j); };
  if (steps > 0) look(s);
  float c = 0.0f, inverse = 1.0f, per_time = 0.0f;
#pragma unroll 1
  for (int m = all - 1; m >= 0; m -= kAheadOf) {
#pragma unroll
    for (int e = 0; e < kAheadOf; e++) {
      if (m - e < 0) break;
      if (k == unfolds - 1) {
        c = elapsed ? __fdiv_rn(cell.rate_c, time) : cell.rate_c;
        per_time = (float)unfolds / (elapsed ? time : dt);
        inverse = reciprocal(cell.den + c + next.y);
        x.a += given;
        if (s > 0) look(s - 1);
      }
      const float2 y = ahead[e];
      if (m - e - kAheadOf >= 0) ahead[e] = read(m - e - kAheadOf);
      if (sink) {
        const float v = m - e == 0 ? origin : ahead[(e + 1) % kAheadOf].x;
        const float2 pair = unfold_back(x, v, y.x, reciprocal(y.y));
        pairs[(begin + (m - e)) * count + i] = pair;
        x.a = pair.x * c;
      } else {
        const float2 pair = unfold_back(x, y.x, then, inverse);
        x.a = fmaf(pair.x, c, y.y);
        then = y.x;
      }
      if (k-- == 0) {
        at_steps.begin(x, p, b, s, j, per_time);
        k = unfolds - 1, s--;
      }
    }
  }
  leave(x, neuron_sums, grad_start, b * hidden + j, first_chunk);
}

// The chain: a block has a row of the batch. Near synapses are held in registers, by source; alpha and beta of all targets lie in two
// tiles in turn. What gates are derived by is known ahead, and made while alpha is waited for.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
ltc_chain_adjoint(Schedule schedule, const int* __restrict__ ids, int count,    // the chain's neurons
                  const float* __restrict__ u, int pitch,                       // [rows, pitch] from their columns on
                  float2* __restrict__ pairs,                                   // [rows, count]: v' and den; then alpha and beta
                  const float* __restrict__ of_sinks, int sinks_pitch, int from, int to,  // dL/dU of these of the chain, or null
                  const float* __restrict__ cm, const float* __restrict__ elapsed, i64 elapsed_b, i64 elapsed_t, float dt,
                  const float* __restrict__ grad_out, i64 grad_b, i64 grad_t, i64 grad_m, const float* __restrict__ output_w,
                  const float* grad_end, i64 end_b, i64 end_h, float* grad_start,
                  float2* __restrict__ step_sums, float* __restrict__ step_changes, float4* __restrict__ neuron_sums,
                  int batch, int hidden, int outputs, int unfolds, int total_steps, int t0, int steps, int first_chunk,
                  int constrained) {
  __shared__ float2 tiles[2][kThreads];
  const int lane = threadIdx.x % 32;
  int2 shape = schedule.warps[threadIdx.x / 32];
  shape = make_int2(uniform(shape.x), uniform(shape.y));
  const int i = schedule.target[threadIdx.x], j = i < 0 ? -1 : ids[i], leader = lane & ~(shape.x - 1);
  const bool leads = i >= 0 && lane == leader;
  float p0, q0;
  const Held held = hold(schedule, 0, p0, q0);
  const float rate_c = j < 0 ? 0.0f : positive(cm[j], constrained) * (float)unfolds / (elapsed ? 1.0f : dt);
  const Pass p = {nullptr, elapsed, elapsed_b, elapsed_t, hidden, unfolds, total_steps, t0, steps};
  const Steps at_steps = {grad_out, grad_b, grad_t, grad_m, output_w, step_sums, step_changes, outputs};
  for (int e = threadIdx.x; e < 2 * kThreads; e += blockDim.x) (&tiles[0][0])[e] = make_float2(0.0f, 0.0f);
  const int all = steps * unfolds;
  const bool below = of_sinks && i >= from && i < to;
  __syncthreads();
#pragma unroll 1
  for (i64 b = blockIdx.x; b < batch; b += gridDim.x) {
    const i64 begin = b * steps * unfolds;
    // v' and den, v and what sinks give.
    auto pair_of = [&](int m) { return leads && m >= 0 ? pairs[(begin + m) * count + i] : make_float2(0.0f, 1.0f); };
    auto other_of = [&](int m) {
      if (!leads || m < 0) return make_float2(0.0f, 0.0f);
      return make_float2(u[(begin + m) * pitch + i], below ? of_sinks[(begin + m) * sinks_pitch + (i - from)] : 0.0f);
    };
    Back x;
    if (leads) x.a = grad_end[b * end_b + j * end_h];
    constexpr int kFew = kAheadOf / 2;
    float2 ahead[kFew], others[kFew];
#pragma unroll
    for (int e = 0; e < kFew; e++) ahead[e] = pair_of(all - 1 - e), others[e] = other_of(all - 1 - e);
    int k = unfolds - 1, s = steps - 1, half = 0;
    float time = 1.0f, given = 0.0f, c = 0.0f, per_time = 0.0f;
    auto look = [&](int s) { time = p.time(b, s), given = at_steps.given(b, t0 + s, j); };
    if (leads && steps > 0) look(s);
#pragma unroll 1
    for (int m = all - 1; m >= 0; m -= kFew) {
#pragma unroll
      for (int e = 0; e < kFew; e++) {
        if (m - e < 0) break;
        if (leads && k == unfolds - 1) {
          c = elapsed ? __fdiv_rn(rate_c, time) : rate_c;
          per_time = (float)unfolds / (elapsed ? time : dt);
          x.a += given;
          if (s > 0) look(s - 1);
        }
        const float2 y = ahead[e], z = others[e];
        ahead[e] = pair_of(m - e - kFew), others[e] = other_of(m - e - kFew);
        float2 pair = make_float2(0.0f, 0.0f);
        if (leads) {
          pair = unfold_back(x, z.x, y.x, reciprocal(y.y));
          tiles[half][i] = pair;
          pairs[(begin + (m - e)) * count + i] = pair;
        }
        const float v = __shfl_sync(~0u, z.x, leader);
        float slope[kSlots];
#pragma unroll
        for (int h = 0; h < kSlots; h++) {
          const float t = gate_of(held.a[h], held.b[h], v);
          // fast: of halved p and q, and sigma / 2; exact: of -sigma log2(e).
          slope[h] = kFast ? fmaf(-t, t, 1.0f) * held.a[h] : fmaf(-t, t, t) * held.a[h] * -0.69314718055994531f;
        }
        __syncthreads();
        float sum = 0.0f;
#pragma unroll
        for (int h = 0; h < kSlots; h++) {
          const float2 other = *(const float2*)((const char*)tiles[half] + source_of(held, h));
          sum = fmaf(slope[h], fmaf(other.x, held.q[h], other.y * held.p[h]), sum);
        }
        sum = lanes_sum(sum, shape.x);
        half ^= 1;
        if (leads) x.a = fmaf(pair.x, c, sum + z.y);
        if (k-- == 0) {
          if (leads) at_steps.begin(x, p, b, s, j, per_time);
          k = unfolds - 1, s--;
        }
      }
    }
    if (leads) leave(x, neuron_sums, grad_start, b * hidden + j, first_chunk);
    __syncthreads();
  }
}
