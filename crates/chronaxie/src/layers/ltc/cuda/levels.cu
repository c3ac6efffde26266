// LTC, forward and rebuilt unfolds, of wirings that are nearly acyclic, level by level (levels.cuh; the equations: forward.cu):
//   ltc_apart of lone neurons      their states before each unfold, into U
//   ltc_sensory_sums               of U's lone columns: the chain's sums over lone neurons, far [rows, C]
//   ltc_chain                      the chain, of which near synapses alone are left; its states into U
//   ltc_sensory_sums               of U's columns that sinks read: all of the sinks' sums, [rows, sinks]
//   ltc_apart of sinks             their states
// each over a chunk of steps of all rows.
//
// Floor (1.98 GHz, 132 multiprocessors) of B128 T64 H256 K6 by AutoNCP, 7,437 synapses of which 89 are near: 366 M gates at 16 a clock
// and multiprocessor 0.087 ms, the chain 384 unfolds of one gate each, some 170 clocks: 0.033 ms; bytes: U, far and the sinks' sums written and
// read once each, 90 MB, in chunks that the second-level cache holds.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = false;
#include "levels.cuh"

// What a state goes to at a step's end.
struct Ends {
  const float *output_w, *output_b;    // [M] or null
  float *out, *states, *final_state;   // [B, T, M], [B, T, H] or null, [B, H]
  int outputs;
  __device__ __forceinline__ void step(i64 row, int hidden, int j, float v) const {
    if (states) states[row * hidden + j] = v;
    if (j >= outputs) return;
    float y = v;
    if (output_w) y *= output_w[j];
    if (output_b) y += output_b[j];
    out[row * outputs + j] = y;
  }
};

// The state before step s of row b: of a rebuilt one what the forward pass left.
__device__ __forceinline__ float before(const float* kept, const float* start, i64 start_b, i64 start_h, i64 b, int t, const Pass& p, int j) {
  if (kept && t > 0) return kept[(b * p.total_steps + (t - 1)) * p.hidden + j];
  return start ? start[b * start_b + j * start_h] : 0.0f;
}

// Lone neurons, or sinks, a thread each and row: one of the batch, or of (b, t) where unfolds are rebuilt.
extern "C" __global__ void __launch_bounds__(256)
ltc_apart(const int* __restrict__ ids, int count,                           // the neurons
          float* __restrict__ u, int pitch,                                 // [rows, pitch] from their columns on: lone; or null
          float2* __restrict__ pairs,                                       // [rows, count]: sinks' sums; rebuilt: then v' and den
          const float* __restrict__ gleak, const float* __restrict__ vleak, const float* __restrict__ cm,
          const float2* __restrict__ sensory,                               // [B, steps, H]
          const float* start, i64 start_b, i64 start_h,                     // [B, H], any strides, or null: zeros
          const float* __restrict__ elapsed, i64 elapsed_b, i64 elapsed_t, float dt,  // [B, T] or null: dt
          const float* __restrict__ output_w, const float* __restrict__ output_b,     // [M] or null
          float* __restrict__ out, float* __restrict__ states, float* final_state,    // [B, T, M]; [B, T, H] or null; [B, H]
          const float* __restrict__ kept,                                   // [B, T, H] where unfolds are rebuilt, or null
          int batch, int hidden, int outputs, int unfolds, int total_steps, int t0, int steps, int constrained, float epsilon) {
  const i64 n = blockIdx.x * (i64)blockDim.x + threadIdx.x, row = n / count;
  const int i = (int)(n - row * count), each = kept ? 1 : steps;
  const i64 b = kept ? row / steps : row;
  if (b >= batch) return;
  const Pass p = {sensory, elapsed, elapsed_b, elapsed_t, hidden, unfolds, total_steps, t0, steps};
  const Ends ends = {output_w, output_b, out, states, final_state, outputs};
  const int first = kept ? (int)(row - b * steps) : 0, j = ids[i];
  const Cell cell = cell_of(j, gleak, vleak, cm, unfolds, elapsed ? 1.0f : dt, constrained, epsilon);
  float v = before(kept, start, start_b, start_h, b, t0 + first, p, j);
  const i64 begin = (b * steps + first) * unfolds;
  const int all = each * unfolds;
  float2* const mine = pairs + (begin * count + i);
  float* const column = u + (begin * pitch + i);
  float2 ahead[kAheadOf], next = make_float2(0.0f, 0.0f);
  float time = 1.0f;
  if (pairs)
#pragma unroll
    for (int e = 0; e < kAheadOf; e++) ahead[e] = e < all ? mine[(i64)e * count] : make_float2(0.0f, 0.0f);
  if (each > 0) next = p.sums(b, first, j), time = p.time(b, first);
  int k = 0, s = first;
  float c = 0.0f, num = 0.0f, den = 1.0f, inverse = 1.0f;
#pragma unroll 1
  for (int m = 0; m < all; m += kAheadOf) {
#pragma unroll
    for (int e = 0; e < kAheadOf; e++) {
      if (m + e >= all) break;
      if (k == 0) {
        c = elapsed ? __fdiv_rn(cell.rate_c, time) : cell.rate_c;
        num = cell.num + next.x, den = cell.den + c + next.y;
        inverse = reciprocal(den);
        if (s + 1 < first + each) next = p.sums(b, s + 1, j), time = p.time(b, s + 1);
      }
      if (pairs) {
        const float2 far = ahead[e];
        if (m + e + kAheadOf < all) ahead[e] = mine[(i64)(m + e + kAheadOf) * count];
        const float d = den + far.y;
        v = quotient(fmaf(c, v, num) + far.x, d);
        if (kept) mine[(i64)(m + e) * count] = make_float2(v, d);
      } else {
        if (u) column[(i64)(m + e) * pitch] = v;
        v = quotient(fmaf(c, v, num), den, inverse);
      }
      if (++k == unfolds) {
        if (!kept) ends.step(b * total_steps + (t0 + s), hidden, j, v);
        k = 0, s++;
      }
    }
  }
  if (!kept) final_state[b * hidden + j] = v;
}

// The chain: a block has a row, of the batch or of (b, t), and then others. Near synapses are held in registers, by target; states lie in
// two tiles in turn, so that one barrier an unfold is enough. The first lane of a target has its state.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
ltc_chain(Schedule schedule, const int* __restrict__ ids, int count,        // the chain's neurons
          float* __restrict__ u, int pitch,                                 // [rows, pitch] from their columns on
          float2* __restrict__ pairs,                                       // [rows, count]: sums over lone neurons; rebuilt: then v' and den
          const float* __restrict__ gleak, const float* __restrict__ vleak, const float* __restrict__ cm,
          const float2* __restrict__ sensory, const float* start, i64 start_b, i64 start_h,
          const float* __restrict__ elapsed, i64 elapsed_b, i64 elapsed_t, float dt,
          const float* __restrict__ output_w, const float* __restrict__ output_b,
          float* __restrict__ out, float* __restrict__ states, float* final_state, const float* __restrict__ kept,
          int batch, int hidden, int outputs, int unfolds, int total_steps, int t0, int steps, int constrained, float epsilon) {
  __shared__ float tiles[2][kThreads];
  const int lane = threadIdx.x % 32;
  int2 shape = schedule.warps[threadIdx.x / 32];
  shape = make_int2(uniform(shape.x), uniform(shape.y));
  const int i = schedule.target[threadIdx.x], j = i < 0 ? -1 : ids[i];
  const bool leads = i >= 0 && (lane & (shape.x - 1)) == 0;
  float p0, q0;
  const Held held = hold(schedule, 0, p0, q0);
  Cell cell = cell_of(j, gleak, vleak, cm, unfolds, elapsed ? 1.0f : dt, constrained, epsilon);
  cell.num += lanes_sum(q0, shape.x), cell.den += lanes_sum(p0, shape.x);
  const Pass p = {sensory, elapsed, elapsed_b, elapsed_t, hidden, unfolds, total_steps, t0, steps};
  const Ends ends = {output_w, output_b, out, states, final_state, outputs};
  // Slots that are not in use read any place, and what they make of it counts nothing.
  for (int e = threadIdx.x; e < 2 * kThreads; e += blockDim.x) (&tiles[0][0])[e] = 0.0f;
  const int each = kept ? 1 : steps, all = each * unfolds;
  const i64 rows = kept ? (i64)batch * steps : batch;
#pragma unroll 1
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const i64 b = kept ? row / steps : row;
    const int first = kept ? (int)(row - b * steps) : 0;
    const i64 begin = (b * steps + first) * unfolds;
    float2* const mine = pairs + (begin * count + i);
    float* const column = u + (begin * pitch + i);
    float v = leads ? before(kept, start, start_b, start_h, b, t0 + first, p, j) : 0.0f;
    float2 ahead[kAheadOf], next = make_float2(0.0f, 0.0f);
    float time = 1.0f, c = 0.0f, num0 = 0.0f, den0 = 1.0f;
#pragma unroll
    for (int e = 0; e < kAheadOf; e++) ahead[e] = leads && e < all ? mine[(i64)e * count] : make_float2(0.0f, 0.0f);
    if (leads && each > 0) next = p.sums(b, first, j), time = p.time(b, first);
    int k = 0, s = first, half = 0;
    __syncthreads();
    if (leads) tiles[0][i] = v;
    __syncthreads();
#pragma unroll 1
    for (int m = 0; m < all; m += kAheadOf) {
#pragma unroll
      for (int e = 0; e < kAheadOf; e++) {
        if (m + e >= all) break;
        float num = 0.0f, den = 0.0f;
#pragma unroll
        for (int h = 0; h < kSlots; h++) {
          const float g = gate_of(held.a[h], held.b[h], *(const float*)((const char*)tiles[half] + source_of(held, h)));
          num = fmaf(held.q[h], g, num), den = fmaf(held.p[h], g, den);
        }
        num = lanes_sum(num, shape.x), den = lanes_sum(den, shape.x);
        half ^= 1;
        if (leads) {
          if (k == 0) {
            c = elapsed ? __fdiv_rn(cell.rate_c, time) : cell.rate_c;
            num0 = cell.num + next.x, den0 = cell.den + c + next.y;
            if (s + 1 < first + each) next = p.sums(b, s + 1, j), time = p.time(b, s + 1);
          }
          const float2 far = ahead[e];
          if (m + e + kAheadOf < all) ahead[e] = mine[(i64)(m + e + kAheadOf) * count];
          column[(i64)(m + e) * pitch] = v;
          const float d = den0 + far.y + den;
          v = quotient(fmaf(c, v, num0 + far.x) + num, d);
          tiles[half][i] = v;
          if (kept) mine[(i64)(m + e) * count] = make_float2(v, d);
        }
        if (++k == unfolds) {
          if (leads && !kept) ends.step(b * total_steps + (t0 + s), hidden, j, v);
          k = 0, s++;
        }
        __syncthreads();
      }
    }
    if (leads && !kept) final_state[b * hidden + j] = v;
  }
}
