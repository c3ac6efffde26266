// LTC, backward, of wirings that are nearly acyclic, level by level (levels.cuh; the equations: backward.cu), over a chunk of steps of
// all rows, whose unfolds levels.cu has rebuilt:
//   ltc_apart_adjoint of sinks     alpha and beta of each unfold, [rows, sinks]; nobody reads a sink, so that a' = alpha c
//   ltc_state_adjoint              of the synapses to sinks: their sums, and dL/dU of what sinks read
//   ltc_chain_adjoint              alpha and beta of the chain, [rows, C]; near synapses alone are left in it
//   ltc_state_adjoint              of all synapses to the chain: their sums, and dL/dU
//   ltc_apart_adjoint of lone ones
//
// Floor (1.98 GHz, 132 multiprocessors) of B128 T64 H256 K6 by AutoNCP: 7,437 synapses of 49,152 unfolds at 11.5 / 4 clocks for 32 gates
// 0.125 ms, the unfolds rebuilt 0.087 (levels.cu), the chain 384 unfolds of some 200 clocks 0.039.
// Measured (H100, ms): that case 1.284 (turn_adjoint.cu 1.346), B32 0.538 (row_adjoint.cu 0.650), B512 4.07 (5.08); B32 T8 H1024 0.487
// (grid_adjoint.cu 0.812), B128 T8 H1024 1.491 (2.44). By ncu of the first in four chunks of 16 steps: all synapses to the chain 87 us each, those
// to sinks 32, the chain 43, sinks 23, lone neurons 26; of B32 T8 H1024 174, 41, 32, 14, 15.
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

// What a thread has on its way: two floats of unfolds, kMore more of them, and of a step sums over the inputs, its time and dL/d out.
template <int kMore>
struct Ahead {
  float *unfolds, *steps;
  int threads;
  enum { kUnfold = 2 + kMore, kStep = 4, kFloats = kUnfold * kUnfoldsAhead + kStep * kStepsAhead };
  __device__ __forceinline__ Ahead(float* shared, int threads) : unfolds(shared), steps(shared + kUnfold * kUnfoldsAhead * threads), threads(threads) {}
  __device__ __forceinline__ float2& pair(int m) const { return ((float2*)unfolds)[(m & (kUnfoldsAhead - 1)) * threads + threadIdx.x]; }
  __device__ __forceinline__ float& more(int m, int which) const {
    return unfolds[(2 * kUnfoldsAhead + which * kUnfoldsAhead + (m & (kUnfoldsAhead - 1))) * threads + threadIdx.x];
  }
  __device__ __forceinline__ float2& sums(int s) const { return ((float2*)steps)[(s & (kStepsAhead - 1)) * threads + threadIdx.x]; }
  __device__ __forceinline__ float& time(int s) const { return steps[(2 * kStepsAhead + (s & (kStepsAhead - 1))) * threads + threadIdx.x]; }
  __device__ __forceinline__ float& given(int s) const { return steps[(3 * kStepsAhead + (s & (kStepsAhead - 1))) * threads + threadIdx.x]; }
};

// What is read of step s of row b on its way.
template <class Ahead>
__device__ __forceinline__ void copy_step(const Ahead& ahead, const Pass& p, const Steps& at, i64 b, int s, int j) {
  if (s < 0) return;
  if (p.sensory) copy_ahead<8>(&ahead.sums(s), p.sensory + ((b * p.steps + s) * p.hidden + j));
  if (p.elapsed) copy_ahead<4>(&ahead.time(s), p.elapsed + (b * p.elapsed_b + (p.t0 + s) * p.elapsed_t));
  if (j < at.outputs) copy_ahead<4>(&ahead.given(s), at.grad_out + (b * at.grad_b + (p.t0 + s) * at.grad_t + j * at.grad_m));
}

// Lone neurons, or sinks, a thread each and row of the batch.
constexpr int kApart = 128;
extern "C" __global__ void __launch_bounds__(kApart)
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
  __shared__ __align__(16) float shared[Ahead<1>::kFloats * kApart];
  const i64 n = blockIdx.x * (i64)blockDim.x + threadIdx.x, b = n / count;
  if (b >= batch) return;
  const int i = (int)(n - b * count), j = ids[i], all = steps * unfolds;
  const Pass p = {sensory, elapsed, elapsed_b, elapsed_t, hidden, unfolds, total_steps, t0, steps};
  const Steps at_steps = {grad_out, grad_b, grad_t, grad_m, output_w, step_sums, step_changes, outputs};
  const Ahead<1> ahead(shared, kApart);
  const i64 begin = b * steps * unfolds;
  // Of a lone neuron dL/dU by both ways and the state before an unfold, of a sink v' and den.
  const bool sink = pairs != nullptr, both = of_sinks && i >= from;
  auto copy_unfold = [&](int m) {
    if (m < 0) return;
    const i64 row = begin + m;
    if (sink) return copy_ahead<8>(&ahead.pair(m), pairs + (row * count + i));
    float* const to = (float*)&ahead.pair(m);
    copy_ahead<4>(to, of_chain + (row * chain_pitch + i));
    if (both) copy_ahead<4>(to + 1, of_sinks + (row * sinks_pitch + (i - from)));
    copy_ahead<4>(&ahead.more(m, 0), u + (row * pitch + i));
  };
  for (int s = steps - 1; s > steps - 1 - kStepsAhead; s--) copy_step(ahead, p, at_steps, b, s, j);
  for (int m = all - 1; m > all - kUnfoldsAhead; m--) copy_unfold(m), commit_copies();
  const Cell cell = cell_of(j, gleak, vleak, cm, unfolds, elapsed ? 1.0f : dt, constrained, epsilon);
  const float output = output_w && j < outputs ? output_w[j] : 1.0f;
  Back x;
  x.a = grad_end[b * end_b + j * end_h];
  // v' of the last unfold; of sinks what it is of the one before.
  float then = all > 0 ? states[(b * total_steps + (t0 + steps - 1)) * hidden + j] : 0.0f, origin = 0.0f;
  if (sink && t0 > 0)
    origin = states[(b * total_steps + (t0 - 1)) * hidden + j];
  else if (sink && start)
    origin = start[b * start_b + j * start_h];
  int k = unfolds - 1, s = steps - 1;
  float c = 0.0f, inverse = 1.0f, per_time = 0.0f;
#pragma unroll 2
  for (int m = all - 1; m >= 0; m--) {
    copy_unfold(m - kUnfoldsAhead + 1);
    commit_copies();
    copies_of_unfold(unfolds);
    if (k == unfolds - 1) {
      c = elapsed ? __fdiv_rn(cell.rate_c, ahead.time(s)) : cell.rate_c;
      per_time = (float)unfolds / (elapsed ? ahead.time(s) : dt);
      inverse = reciprocal(cell.den + c + ahead.sums(s).y);
      if (j < outputs) x.a = fmaf(ahead.given(s), output, x.a);
      copy_step(ahead, p, at_steps, b, s - kStepsAhead, j);
    }
    const float2 y = ahead.pair(m);
    if (sink) {
      const float v = m == 0 ? origin : ahead.pair(m - 1).x;
      const float2 pair = unfold_back(x, v, y.x, reciprocal(y.y));
      pairs[(begin + m) * count + i] = pair;
      x.a = pair.x * c;
    } else {
      const float v = ahead.more(m, 0);
      const float2 pair = unfold_back(x, v, then, inverse);
      x.a = fmaf(pair.x, c, y.x + (both ? y.y : 0.0f));
      then = v;
    }
    if (k-- == 0) {
      at_steps.begin(x, p, b, s, j, per_time);
      k = unfolds - 1, s--;
    }
  }
  leave(x, neuron_sums, grad_start, b * hidden + j, first_chunk);
}

// The chain: a block has a row of the batch. Near synapses are held in registers, by source; alpha and beta of all targets lie in two
// tiles in turn. What gates are derived by is known ahead, and made while alpha is waited for.
// Dynamic shared memory: what each thread has ahead, Ahead<2>::kFloats.
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
  extern __shared__ __align__(16) float shared[];
  const int lane = threadIdx.x % 32;
  int2 shape = schedule.warps[threadIdx.x / 32];
  shape = make_int2(uniform(shape.x), uniform(shape.y));
  const int i = schedule.target[threadIdx.x], j = i < 0 ? -1 : ids[i], leader = lane & ~(shape.x - 1);
  const bool leads = i >= 0 && lane == leader;
  float p0, q0;
  const Held held = hold(schedule, 0, p0, q0);
  const float rate_c = j < 0 ? 0.0f : positive(cm[j], constrained) * (float)unfolds / (elapsed ? 1.0f : dt);
  const float output = output_w && leads && j < outputs ? output_w[j] : 1.0f;
  const Pass p = {nullptr, elapsed, elapsed_b, elapsed_t, hidden, unfolds, total_steps, t0, steps};
  const Steps at_steps = {grad_out, grad_b, grad_t, grad_m, output_w, step_sums, step_changes, outputs};
  const Ahead<2> ahead(shared, blockDim.x);
  for (int e = threadIdx.x; e < 2 * kThreads; e += blockDim.x) (&tiles[0][0])[e] = make_float2(0.0f, 0.0f);
  const int all = steps * unfolds;
  const bool below = of_sinks && i >= from && i < to;
  __syncthreads();
#pragma unroll 1
  for (i64 b = blockIdx.x; b < batch; b += gridDim.x) {
    const i64 begin = b * steps * unfolds;
    // v' and den, v and what sinks give.
    auto copy_unfold = [&](int m) {
      if (m < 0) return;
      copy_ahead<8>(&ahead.pair(m), pairs + ((begin + m) * count + i));
      copy_ahead<4>(&ahead.more(m, 0), u + ((begin + m) * pitch + i));
      if (below) copy_ahead<4>(&ahead.more(m, 1), of_sinks + ((begin + m) * sinks_pitch + (i - from)));
    };
    Back x;
    if (leads) {
      for (int s = steps - 1; s > steps - 1 - kStepsAhead; s--) copy_step(ahead, p, at_steps, b, s, j);
      for (int m = all - 1; m > all - kUnfoldsAhead; m--) copy_unfold(m), commit_copies();
      x.a = grad_end[b * end_b + j * end_h];
    }
    int k = unfolds - 1, s = steps - 1;
    float c = 0.0f, per_time = 0.0f;
    auto unfold = [&](auto which, int m) {
      constexpr int kHalf = decltype(which)::value;
      float v = 0.0f;
      float2 pair = make_float2(0.0f, 0.0f);
      if (leads) {
        copy_unfold(m - kUnfoldsAhead + 1);
        commit_copies();
        copies_of_unfold(unfolds);
        if (k == unfolds - 1) {
          c = elapsed ? __fdiv_rn(rate_c, ahead.time(s)) : rate_c;
          per_time = (float)unfolds / (elapsed ? ahead.time(s) : dt);
          if (j < outputs) x.a = fmaf(ahead.given(s), output, x.a);
          copy_step(ahead, p, at_steps, b, s - kStepsAhead, j);
        }
        const float2 y = ahead.pair(m);
        v = ahead.more(m, 0);
        pair = unfold_back(x, v, y.x, reciprocal(y.y));
        tiles[kHalf][i] = pair;
        pairs[(begin + m) * count + i] = pair;
      }
      v = __shfl_sync(~0u, v, leader);
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
        const float2 other = *(const float2*)((const char*)tiles[kHalf] + source_of(held, h));
        sum = fmaf(slope[h], fmaf(other.x, held.q[h], other.y * held.p[h]), sum);
      }
      sum = lanes_sum(sum, shape.x);
      if (leads) x.a = fmaf(pair.x, c, sum + (below ? ahead.more(m, 1) : 0.0f));
      if (k-- == 0) {
        if (leads) at_steps.begin(x, p, b, s, j, per_time);
        k = unfolds - 1, s--;
      }
    };
#pragma unroll 1
    for (int m = all - 1; m >= 0; m -= 2) {
      unfold(Number<0>(), m);
      if (m > 0) unfold(Number<1>(), m - 1);
    }
    if (leads) leave(x, neuron_sums, grad_start, b * hidden + j, first_chunk);
    __syncthreads();
  }
}
