// LTC, forward and rebuilt unfolds, of wirings that are nearly acyclic, level by level (levels.cuh; the equations: forward.cu):
//   ltc_apart of lone neurons      their states before each unfold, into U
//   ltc_state_sums                 of U's lone columns: the chain's sums over lone neurons, far [rows, C]
//   ltc_chain                      the chain, of which near synapses alone are left; its states into U
//   ltc_state_sums                 of U's columns that sinks read: all of the sinks' sums, [rows, sinks]
//   ltc_apart of sinks             their states
// each over a chunk of steps of all rows.
//
// Floor (1.98 GHz, 132 multiprocessors) of B128 T64 H256 K6 by AutoNCP, 7,437 synapses of which 89 are near: 366 M gates at 16 a clock
// and multiprocessor 0.087 ms, the chain 384 unfolds of one gate each, some 170 clocks: 0.033 ms; bytes: U, far and the sinks' sums written and
// read once each, 90 MB, in chunks that the second-level cache holds.
// Measured (H100, ms): that case 0.470, where lone.cu takes 0.258; B32 T8 H1024, whose floor is 0.055, 0.167 (grid.cu 0.226), B8 T8 H1024 0.096
// (0.156), B1 T64 H1024 0.288 (0.993), B32 T64 H1024 1.214 (1.622), B128 T8 H1024 0.506 (0.472). By ncu of the first in three chunks of 22 steps:
// lone neurons 24 us each, the chain 38, sinks 23, sums 46 and 17; of the second 11, 20, 11, 87 and 25. A kernel of these takes some 8 us beside
// its unfolds, and an unfold 0.08, 0.2 to 0.24 and 0.08 us of one that waits for the one before. Tried: what is read of unfolds into registers,
// eight unfolds ahead: the chain 0.65 us an unfold and sinks 0.5, since loads share few scoreboards, and each waited for later ones.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = false;
#include "levels.cuh"

// The state before step s of row b: of a rebuilt one what the forward pass left.
__device__ __forceinline__ float before(const float* kept, const float* start, i64 start_b, i64 start_h, i64 b, int t, const Pass& p, int j) {
  if (kept && t > 0) return kept[(b * p.total_steps + (t - 1)) * p.hidden + j];
  return start ? start[b * start_b + j * start_h] : 0.0f;
}

// What a thread has on its way: sums of unfolds, and of steps with their times. `threads` apart, so that one address serves all.
struct Ahead {
  float2 *unfolds, *steps;
  float* times;
  int threads;
  static __device__ __forceinline__ int floats() { return 2 * kUnfoldsAhead + 3 * kStepsAhead; }
  __device__ __forceinline__ Ahead(float* shared, int threads)
      : unfolds((float2*)shared + threadIdx.x), steps((float2*)shared + kUnfoldsAhead * threads + threadIdx.x),
        times(shared + 2 * (kUnfoldsAhead + kStepsAhead) * threads + threadIdx.x), threads(threads) {}
  __device__ __forceinline__ float2& unfold(int m) const { return unfolds[(m & (kUnfoldsAhead - 1)) * threads]; }
  __device__ __forceinline__ float2& step(int s) const { return steps[(s & (kStepsAhead - 1)) * threads]; }
  __device__ __forceinline__ float& time(int s) const { return times[(s & (kStepsAhead - 1)) * threads]; }
};

// The sums of a row on their way: of unfolds from `pairs` on, if there are any, `count` apart, and of steps.
struct Row {
  const Pass& p;
  const Ahead& ahead;
  const float2* pairs;
  int count, first, each, all, j;
  i64 b;
  __device__ __forceinline__ void copy_unfold(int m) const {
    if (pairs && m < all) copy_ahead<8>(&ahead.unfold(m), pairs + (i64)m * count);
  }
  __device__ __forceinline__ void copy_step(int n) const {
    if (n >= each) return;
    copy_ahead<8>(&ahead.step(n), p.sensory + ((b * p.steps + first + n) * p.hidden + j));
    if (p.elapsed) copy_ahead<4>(&ahead.time(n), p.elapsed + (b * p.elapsed_b + (p.t0 + first + n) * p.elapsed_t));
  }
  // Those of the first steps and unfolds, with as many commits as unfolds.
  __device__ __forceinline__ void begin() const {
    for (int n = 0; n < kStepsAhead; n++) copy_step(n);
    for (int m = 0; m < kUnfoldsAhead - 1; m++) copy_unfold(m), commit_copies();
  }
};

// Lone neurons, or sinks, a thread each and row: one of the batch, or of (b, t) where unfolds are rebuilt.
constexpr int kApart = 128;
extern "C" __global__ void __launch_bounds__(kApart)
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
  __shared__ __align__(16) float shared[(2 * kUnfoldsAhead + 3 * kStepsAhead) * kApart];
  const i64 n = blockIdx.x * (i64)blockDim.x + threadIdx.x, row = n / count;
  const int i = (int)(n - row * count), each = kept ? 1 : steps;
  const i64 b = kept ? row / steps : row;
  if (b >= batch) return;
  const Pass p = {sensory, elapsed, elapsed_b, elapsed_t, hidden, unfolds, total_steps, t0, steps};
  const Ends ends = {output_w, output_b, out, states, final_state, outputs};
  const Ahead ahead(shared, kApart);
  const int first = kept ? (int)(row - b * steps) : 0, j = ids[i], all = each * unfolds;
  const i64 begin = (b * steps + first) * unfolds;
  float2* const mine = pairs ? pairs + (begin * count + i) : nullptr;
  float* const column = u + (begin * pitch + i);
  const Row from = {p, ahead, mine, count, first, each, all, j, b};
  from.begin();
  const Cell cell = cell_of(j, gleak, vleak, cm, unfolds, elapsed ? 1.0f : dt, constrained, epsilon);
  float v = before(kept, start, start_b, start_h, b, t0 + first, p, j);
  float c = 0.0f, num = 0.0f, den = 1.0f, inverse = 1.0f;
  int k = 0, s = 0;
#pragma unroll 2
  for (int m = 0; m < all; m++) {
    from.copy_unfold(m + kUnfoldsAhead - 1);
    commit_copies();
    copies_of_unfold(unfolds);
    if (k == 0) {
      const float2 sums = ahead.step(s);
      c = elapsed ? __fdiv_rn(cell.rate_c, ahead.time(s)) : cell.rate_c;
      num = cell.num + sums.x, den = cell.den + c + sums.y;
      inverse = reciprocal(den);
      from.copy_step(s + kStepsAhead);
    }
    if (pairs) {
      const float2 far = ahead.unfold(m);
      const float d = den + far.y;
      v = quotient(fmaf(c, v, num) + far.x, d);
      if (kept) mine[(i64)m * count] = make_float2(v, d);
    } else {
      if (u) column[(i64)m * pitch] = v;
      v = quotient(fmaf(c, v, num), den, inverse);
    }
    if (++k == unfolds) {
      if (!kept) ends.step(b * total_steps + (t0 + s), hidden, j, v);
      k = 0, s++;
    }
  }
  if (!kept) final_state[b * hidden + j] = v;
}

// The chain: a block has a row, of the batch or of (b, t), and then others. Near synapses are held in registers, by target; states lie in
// two tiles in turn, so that one barrier an unfold is enough. The first lane of a target has its state.
// Dynamic shared memory: what each thread has ahead, Ahead::floats of it.
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
  extern __shared__ __align__(16) float shared[];
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
  const Ahead ahead(shared, blockDim.x);
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
    const Row from = {p, ahead, mine, count, first, each, all, j, b};
    if (leads) from.begin();
    float v = leads ? before(kept, start, start_b, start_h, b, t0 + first, p, j) : 0.0f;
    float c = 0.0f, num0 = 0.0f, den0 = 1.0f;
    int k = 0, s = 0;
    __syncthreads();
    if (leads) tiles[0][i] = v;
    __syncthreads();
    auto unfold = [&](auto which, int m) {
      constexpr int kHalf = decltype(which)::value;
      float x[kSlots], num = 0.0f, den = 0.0f;
#pragma unroll
      for (int h = 0; h < kSlots; h++) x[h] = *(const volatile float*)((const char*)tiles[kHalf] + source_of(held, h));
      float2 far = make_float2(0.0f, 0.0f);
      if (leads) {
        from.copy_unfold(m + kUnfoldsAhead - 1);
        commit_copies();
        copies_of_unfold(unfolds);
        if (k == 0) {
          const float2 sums = ahead.step(s);
          c = elapsed ? __fdiv_rn(cell.rate_c, ahead.time(s)) : cell.rate_c;
          num0 = cell.num + sums.x, den0 = cell.den + c + sums.y;
          from.copy_step(s + kStepsAhead);
        }
        column[(i64)m * pitch] = v;
        far = ahead.unfold(m);
        far = make_float2(fmaf(c, v, num0 + far.x), den0 + far.y);
      }
#pragma unroll
      for (int h = 0; h < kSlots; h++) x[h] = gate_of(held.a[h], held.b[h], x[h]);
#pragma unroll
      for (int h = 0; h < kSlots; h++) num = fmaf(held.q[h], x[h], num), den = fmaf(held.p[h], x[h], den);
      num = lanes_sum(num, shape.x), den = lanes_sum(den, shape.x);
      if (leads) {
        const float d = far.y + den;
        v = quotient(far.x + num, d);
        tiles[1 - kHalf][i] = v;
        if (kept) mine[(i64)m * count] = make_float2(v, d);
      }
      if (++k == unfolds) {
        if (leads && !kept) ends.step(b * total_steps + (t0 + s), hidden, j, v);
        k = 0, s++;
      }
      __syncthreads();
    };
#pragma unroll 1
    for (int m = 0; m < all; m += 2) {
      unfold(Number<0>(), m);
      if (m + 1 < all) unfold(Number<1>(), m + 1);
    }
    if (leads && !kept) final_state[b * hidden + j] = v;
  }
}
