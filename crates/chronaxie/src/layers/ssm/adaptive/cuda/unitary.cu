// adaptive_theta without decay where time is contiguous: a lane takes kRun steps of a channel of one sequence, a warp 256.
//
//   shapes and the turned states s_t = e^{-i G_t} h_t as in adaptive.cu
//
// Turned back, a state is a sum, s_t = s_0 + b S_t with S_t = sum_{r <= t} e^{-i G_r} x_r, and so is its gradient against time,
// m_t = m_T + conj(c) M_t with M_t = sum_{r >= t} e^{-i G_r} dy_r. B and C do not depend on time: the sums go without them, and
//
//   y_t     += Re(e^{i G_t} (c s_0 + c b S_t))
//   dtheta_t = Im(m_t conj(s_{t-1}))              dx_t += Re(e^{i G_t} conj(b) m_t)
//   dB       = m_T conj(S_T) + conj(c) Q          dC    = conj(s_0) M_1 + conj(b) Q,   Q = sum_t e^{-i G_t} dy_t conj(S_t)
//
// where the run of a lane is 1 to T, and s_0 and m_T are what lanes and tiles before and behind it have left.
// The angles' sum is a scan of integers. Each tile of 256 steps adds to a carry whose rounding is kept, in shared memory. What
// belongs to the channel stays in registers while its states pass by, one after the other. A block's warps share a channel's
// states (kSlices), and meet once a tile to add up what they have for it, in their order; or its time (kTimes): neighbouring tiles,
// whose turns and sums each of them adds to its own copy of the carry in the order of time, so that states have the same bits.
//
// What binds on an H200: one state a channel memory, 16 bytes a step forward (B1 D1024 T1000000 3.8 ms at 4.28 TB/s), 28
// backward (6.7 ms): 4.39 and 8.45 (2026-11-23). With two warps on a scheduler, each waiting for itself, it took 6.99 and
// 21.4, with four and three by kTimes 5.07 and 15.5. Backward a third of the warps' waits was for what they loaded only when
// they wanted it; what a round needs of the channel and of the saved states is now loaded during the round before, by four
// warps (T200000 1.69 ms, by three 1.95, before 3.14). Loads share a scoreboard: what is loaded ahead must be begun behind the
// wait for what was loaded before it, or that wait is for both (forward 0.88 and 0.96 ms). A run that went out as words and
// not as vectors took 1.25. Many states instructions: 51 a step of a state forward (70 before), of which 7 for the turns (13),
// 18 for the rotation (22) and 8 for sums, states and y, the rest for scans over lanes, the carry and loads; backward 102. b8
// d128 n64 T2048 (134 M) takes 0.31 and 0.64 ms (0.407 and 0.751) where 528 lanes at 1.83 GHz would take 0.22 and 0.44, and
// theta and its gradient 0.125 and 0.25.
#ifndef __CUDACC_RTC__
#include "defaults.cuh"
#endif
#include "lanes.cuh"

// Words of a state and of a lane in shared memory; lanes begin in different banks.
constexpr int kWordsForward = 12, kWordsBackward = 20, kLaneWords = (kSlices > 1 ? 6 : 8) * kRun + 4;
// Of a multiprocessor, by registers; backward with kTimes 128 of them are not quite enough as compiled for sm_100 and newer.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr bool kTight = kTimes > 1;
#else
constexpr bool kTight = false;
#endif
constexpr int kBlocks = kSlices * kTimes > 1 ? 4 : 2, kBlocksBackward = kTight ? 3 : kBlocks;
static_assert(kSlices * kTimes == 1 || kSlices * kTimes == kWarps, "a block's warps share a channel, or have one each");

// e^{2 pi i phase / 2^32}, each part within 1.4e-7: polynomials on a quarter of a turn to each side, and the sign of the half.
__device__ __forceinline__ Complex turned(unsigned phase) {
  // Else what was added last would be added to what comes of it, too.
  asm("" : "+r"(phase));
  const float x = static_cast<float>(static_cast<int>(phase << 1)) * 4.656612873077393e-10f, x2 = x * x;
  float s = fmaf(fmaf(1.492835144745186e-4f, x2, -4.6689473092556e-3f), x2, 7.968617975711823e-2f);
  float c = fmaf(fmaf(-2.340222090424504e-5f, x2, 9.16733464691788e-4f), x2, -2.0861899480223656e-2f);
  s = fmaf(fmaf(s, x2, -0.6459627747535706f), x2, 1.570796251296997f) * x;
  c = fmaf(fmaf(fmaf(c, x2, 0.2536690831184387f), x2, -1.2337005138397217f), x2, 1.0f);
  const unsigned sign = (phase ^ phase << 1) & 1u << 31;
  return {__uint_as_float(__float_as_uint(c) ^ sign), __uint_as_float(__float_as_uint(s) ^ sign)};
}

// a + b c
__device__ __forceinline__ Complex plus_product(Complex a, Complex b, Complex c) {
  return {fmaf(b.re, c.re, fmaf(-b.im, c.im, a.re)), fmaf(b.re, c.im, fmaf(b.im, c.re, a.im))};
}
__device__ __forceinline__ Complex product(Complex a, Complex b) {
  return {fmaf(a.re, b.re, -(a.im * b.im)), fmaf(a.re, b.im, a.im * b.re)};
}

// What lanes before this one have, or with !kUp those behind it; and the sum of all in `whole`.
template <bool kUp>
__device__ __forceinline__ Complex sum_before(Complex x, Complex& whole) {
  const int lane = threadIdx.x % 32, place = kUp ? lane : 31 - lane;
#pragma unroll
  for (int by = 1; by < 32; by *= 2) {
    const float re = kUp ? __shfl_up_sync(~0u, x.re, by) : __shfl_down_sync(~0u, x.re, by);
    const float im = kUp ? __shfl_up_sync(~0u, x.im, by) : __shfl_down_sync(~0u, x.im, by);
    if (place >= by) x = {x.re + re, x.im + im};
  }
  const int end = kUp ? 31 : 0;
  whole = {__shfl_sync(~0u, x.re, end), __shfl_sync(~0u, x.im, end)};
  const float re = kUp ? __shfl_up_sync(~0u, x.re, 1) : __shfl_down_sync(~0u, x.re, 1);
  const float im = kUp ? __shfl_up_sync(~0u, x.im, 1) : __shfl_down_sync(~0u, x.im, 1);
  return place == 0 ? Complex{0.0f, 0.0f} : Complex{re, im};
}
// The sums over the lanes of four numbers, in one order; lane i of the first four has that of x[i].
__device__ __forceinline__ float sums_of_four(const float (&x)[4]) {
  const bool odd = threadIdx.x % 2, upper = threadIdx.x / 2 % 2;
  const float a = (odd ? x[1] : x[0]) + __shfl_xor_sync(~0u, odd ? x[0] : x[1], 1);
  const float b = (odd ? x[3] : x[2]) + __shfl_xor_sync(~0u, odd ? x[2] : x[3], 1);
  float sum = (upper ? b : a) + __shfl_xor_sync(~0u, upper ? a : b, 2);
#pragma unroll
  for (int by = 4; by < 32; by *= 2) sum += __shfl_xor_sync(~0u, sum, by);
  return sum;
}

// What this warp has: a channel of a sequence, and states of it.
struct Task {
  int row, d, slice, time, first, end, states;
  bool there;
  __device__ __forceinline__ Task(const Tensors& p) {
    const int warp = threadIdx.x / 32;
    states = static_cast<int>(p.states);
    slice = kSlices > 1 ? warp : 0;
    time = kTimes > 1 ? warp : 0;
    const i64 number = kSlices * kTimes > 1 ? blockIdx.x : blockIdx.x * static_cast<i64>(kWarps) + warp;
    row = static_cast<int>(number / p.channels), d = static_cast<int>(number % p.channels);
    there = row < p.marks.units;
    first = states * slice / kSlices, end = states * (slice + 1) / kSlices;
  }
};

// What the warps of a channel have for its steps, added up in their order, in the first of them. A tile's places are written
// again two tiles on, behind the next tile's meeting.
template <int kArrays>
__device__ __forceinline__ void add_up(float (&x)[kArrays][kRun], float* places, const Task& task, int tile) {
  if (kSlices == 1) return;
  const int lane = threadIdx.x % 32;
  float* at = places + tile % 2 * ((kSlices - 1) * kArrays * kTile) + lane * kRun;
  if (task.slice > 0) {
#pragma unroll
    for (int a = 0; a < kArrays; ++a) store_words(at + ((task.slice - 1) * kArrays + a) * kTile, x[a]);
  }
  __syncthreads();
  if (task.slice > 0) return;
#pragma unroll
  for (int slice = 1; slice < kSlices; ++slice)
#pragma unroll
    for (int a = 0; a < kArrays; ++a) {
      float other[kRun];
      load_words(other, at + ((slice - 1) * kArrays + a) * kTile);
#pragma unroll
      for (int k = 0; k < kRun; ++k) x[a][k] += other[k];
    }
}

extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) unitary_forward(const __grid_constant__ Tensors p) {
  extern __shared__ __align__(16) float shared[];
  // Of the warps that share a channel's time: turns of a tile, and its sum.
  __shared__ unsigned turns_of_tile[kTimes];
  __shared__ __align__(8) Complex sum_of_tile[kTimes];
  const Task task(p);
  const int lane = threadIdx.x % 32;
  const i64 steps = p.marks.steps;
  const int rounds = static_cast<int>((steps + kTimes * kTile - 1) / (kTimes * kTile));
  if (!task.there) return;
  const int row = task.row, d = task.d;
  const bool aligned = p.aligned != 0;
  // Words of a state: its carry and what rounding took; b, the phase; c, b c.
  float* kept = shared + (kSlices > 1 ? 0 : threadIdx.x / 32 * task.states * kWordsForward);
  float* places = shared + task.states * kWordsForward;
  for (int n = task.first + lane; n < task.end; n += 32) {
    const Complex b = load_number(p.b, offset(p.b, d, n)), c = load_number(p.c, offset(p.c, d, n)), both = product(b, c);
    Complex h = {0.0f, 0.0f};
    if (p.h0.base) h = load_number(p.h0, offset(p.h0, row, d, n));
    float* k = kept + n * kWordsForward;
    k[0] = h.re, k[1] = 0.0f, k[2] = h.im, k[3] = 0.0f;
    k[4] = b.re, k[5] = b.im, k[6] = __uint_as_float(0u);
    k[8] = c.re, k[9] = c.im, k[10] = both.re, k[11] = both.im;
  }
  __syncwarp();
  const float skip = task.slice == 0 && p.skip.base ? load_float(p.skip, d * p.skip.s[0]) : 0.0f;
  const Stored *u_row = row_of(p.u, row, d), *delta_row = row_of(p.delta, row, d);
  float next_u[kRun], next_delta[kRun], next_theta[kRun];
  auto fetch_channel = [&](i64 t) {
    load_run(next_u, u_row, t, steps, aligned);
    load_run(next_delta, delta_row, t, steps, aligned);
  };
  // With few states a tile is short, and its channel's steps are loaded ahead.
  const int begin = task.time * kTile + lane * kRun;
  const float* theta_row = angles_of(p.theta, row, d, task.first);
  const i64 to_state = p.theta.s[2];
  if (kSlices == 1) fetch_channel(begin);
  if (task.first < task.end) load_angles(next_theta, theta_row + begin, run_at(begin, steps, aligned));
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {
    const i64 t = static_cast<i64>(round) * (kTimes * kTile) + begin;
    if (kSlices > 1) fetch_channel(t);
    float drive[kRun], sums[1][kRun];
    float(&y)[kRun] = sums[0];
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
      const float u = next_u[k], v = p.silu ? u * sigmoid(u) : u;
      drive[k] = v * next_delta[k];
      y[k] = skip * v;
    }
    const float* theta = theta_row + t;
    const int run = opaque(run_at(t, steps, aligned)), next_run = opaque(run_at(t + kTimes * kTile, steps, aligned));
    // Saved tensors are dense.
    const int saves = opaque(lane % (kChunk / kRun) == 0 && t < steps);
    const i64 chunk = offset(p.chunks, row, t / kChunk, d, task.first);
    Complex* chunk_to = reinterpret_cast<Complex*>(p.chunks.base) + chunk;
    unsigned* phase_to = reinterpret_cast<unsigned*>(p.phases.base) + chunk;
    float* k_of = kept + task.first * kWordsForward;
#pragma unroll 1
    for (int n = task.first; n < task.end; ++n, ++chunk_to, ++phase_to, k_of += kWordsForward) {
      float held[4], more[4], both[4];
      load_words(held, k_of);
      load_words(more, k_of + 4);
      load_words(both, k_of + 8);
      const Complex b = {more[0], more[1]}, c = {both[0], both[1]}, bc = {both[2], both[3]};
      unsigned phase[kRun];
      unsigned phase_before = scan_phases(phase, next_theta, kTimes > 1 ? 0 : __float_as_uint(more[2]));
      unsigned end = __shfl_sync(~0u, phase[kRun - 1], 31);
      const bool last = n + 1 == task.end;
      theta = last ? theta_row + (t + kTimes * kTile) : theta + to_state;
      load_angles(next_theta, theta, last ? next_run : run);
      // Not before: what waits for these angles would wait for it, too.
      if (kSlices == 1 && n == task.first) fetch_channel(t + kTimes * kTile);
      if (kTimes > 1) {
        // What tiles before this one turn, and all of the round.
        if (lane == 0) turns_of_tile[task.time] = end;
        __syncthreads();
        unsigned so_far = end = __float_as_uint(more[2]);
#pragma unroll
        for (int i = 0; i < kTimes; ++i) {
          const unsigned of = turns_of_tile[i];
          if (i < task.time) so_far += of;
          end += of;
        }
        phase_before += so_far;
#pragma unroll
        for (int k = 0; k < kRun; ++k) phase[k] += so_far;
      }
      Complex rotation[kRun], s[kRun], sum = {0.0f, 0.0f}, whole;
#pragma unroll
      for (int k = 0; k < kRun; ++k) {
        rotation[k] = turned(phase[k]);
        sum = {fmaf(rotation[k].re, drive[k], sum.re), fmaf(-rotation[k].im, drive[k], sum.im)};
        s[k] = sum;
      }
      const Complex before = product(b, sum_before<true>(sum, whole));
      whole = product(b, whole);
      Sum re = {held[0], held[1]}, im = {held[2], held[3]}, from_re = re, from_im = im;
      if (kTimes > 1) {
        if (lane == 0) sum_of_tile[task.time] = whole;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kTimes; ++i) {
          const Complex of = sum_of_tile[i];
          re = plus(re, of.re), im = plus(im, of.im);
          if (i + 1 == task.time) from_re = re, from_im = im;
        }
      } else {
        re = plus(re, whole.re), im = plus(im, whole.im);
      }
      const Complex base = {from_re.value + (from_re.lost + before.re), from_im.value + (from_im.lost + before.im)};
      if (saves) *chunk_to = base, *phase_to = phase_before;
      const Complex from = product(c, base);
#pragma unroll
      for (int k = 0; k < kRun; ++k) {
        const Complex w = plus_product(from, bc, s[k]);
        y[k] = fmaf(rotation[k].re, w.re, fmaf(-rotation[k].im, w.im, y[k]));
      }
      __syncwarp();
      if (lane == 0) {
        const float words[4] = {re.value, re.lost, im.value, im.lost};
        store_words(k_of, words);
        k_of[6] = __uint_as_float(end);
      }
      __syncwarp();
    }
    add_up(sums, places, task, round);
    if (task.slice > 0) continue;
    if (p.z.base) {
      float z[kRun];
      load_run(z, row_of(p.z, row, d), t, steps, aligned);
#pragma unroll
      for (int k = 0; k < kRun; ++k) y[k] *= z[k] * sigmoid(z[k]);
    }
    store_run(row_to(p.out, row, d), t, steps, aligned, y);
  }
  if (task.time > 0) return;
  for (int n = task.first + lane; n < task.end; n += 32) {
    const float* k = kept + n * kWordsForward;
    store_number(p.last, offset(p.last, row, d, n), mul(turned(__float_as_uint(k[6])), Complex{k[0], k[2]}));
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, kBlocksBackward) unitary_backward(const __grid_constant__ Tensors p) {
  extern __shared__ __align__(16) float shared[];
  const Task task(p);
  // Of the warps that share a channel's time: a tile's sum, now and a state ago, the turns of all, and what is added up last.
  __shared__ __align__(8) Complex sum_of_tile[2][kTimes];
  __shared__ unsigned last_turn;
  __shared__ float skip_of[kTimes];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 steps = p.marks.steps;
  const int tiles = static_cast<int>((steps + kTile - 1) / kTile), rounds = (tiles + kTimes - 1) / kTimes;
  if (!task.there) return;
  const int row = task.row, d = task.d;
  const bool aligned = p.aligned != 0, gated = p.z.base != nullptr;
  // Words of a state: m behind the tile and what rounding took; b, c; b c; the sums of dB and dC and what rounding took.
  float* kept = shared + (kSlices > 1 ? 0 : warp * task.states * kWordsBackward);
  float* places = shared + (kSlices > 1 ? 1 : kWarps) * task.states * kWordsBackward;
  // Of the lane's steps: the drive, the gradient of y and that of the drive, y, where the gradient of z wants it, and M; and what
  // the channel has, where few states come between, and at last the sum of D's gradient and what rounding took.
  float* mine = places + (kSlices > 1 ? 2 * (kSlices - 1) * 2 * kTile : 0) + (warp * 32 + lane) * kLaneWords;
  float *drive_of = mine, *dy_of = mine + kRun, *of_drive_of = mine + 2 * kRun, *y_of = mine + 3 * kRun, *m_of = mine + 4 * kRun;
  float *u_of = mine + 6 * kRun, *delta_of = mine + 7 * kRun;
  for (int n = task.first + lane; n < task.end; n += 32) {
    const Complex b = load_number(p.b, offset(p.b, d, n)), c = load_number(p.c, offset(p.c, d, n)), both = product(b, c);
    // Turned back by the phase of the end, once that is known.
    const Complex g = load_number(p.grad_last, offset(p.grad_last, row, d, n));
    float* k = kept + n * kWordsBackward;
    k[0] = g.re, k[1] = 0.0f, k[2] = g.im, k[3] = 0.0f;
    k[4] = b.re, k[5] = b.im, k[6] = c.re, k[7] = c.im, k[8] = both.re, k[9] = both.im;
    for (int i = 12; i < 20; ++i) k[i] = 0.0f;
  }
  __syncwarp();
  mine[kLaneWords - 4] = mine[kLaneWords - 3] = 0.0f;
  mine[kLaneWords - 2] = p.skip.base ? load_float(p.skip, d * p.skip.s[0]) : 0.0f;
  float next_theta[kRun];
  const float* theta_row = angles_of(p.theta, row, d, task.first);
  const i64 to_state = p.theta.s[2], of_state = p.g_theta.s[2];
  const i64 begin = ((rounds - 1) * kTimes + task.time) * static_cast<i64>(kTile) + lane * kRun;
  float next_dy[kRun], next_u[kRun], next_delta[kRun], next_z[kRun];
  auto fetch_channel = [&](i64 t) {
    load_run(next_dy, row_of(p.grad_out, row, d), t, steps, aligned);
    load_run(next_u, row_of(p.u, row, d), t, steps, aligned);
    load_run(next_delta, row_of(p.delta, row, d), t, steps, aligned);
    if (gated) load_run(next_z, row_of(p.z, row, d), t, steps, aligned);
  };
  // Where a tile's state begins.
  Complex next_start = {0.0f, 0.0f};
  unsigned next_phase = 0;
  auto fetch_start = [&](int tile, int n) {
    if (tile >= tiles) {
      // Nothing begins there.
    } else if (tile > 0) {
      const i64 at = offset(p.chunks, row, tile * static_cast<i64>(kTile / kChunk), d, n);
      next_start = load_number(p.chunks, at);
      next_phase = reinterpret_cast<const unsigned*>(p.phases.base)[at];
    } else {
      next_start = {0.0f, 0.0f}, next_phase = 0;
      if (p.h0.base) next_start = load_number(p.h0, offset(p.h0, row, d, n));
    }
  };
  if (kSlices == 1 && rounds > 0) fetch_channel(begin);
  if (rounds > 0 && task.first < task.end) {
    load_angles(next_theta, theta_row + begin, run_at(begin, steps, aligned));
    fetch_start((rounds - 1) * kTimes + task.time, task.first);
  }
#pragma unroll 1
  for (int round = rounds - 1; round >= 0; --round) {
    // A round's last tiles may lie behind the end, where all is zeros.
    const int tile = round * kTimes + task.time;
    const i64 t = static_cast<i64>(tile) * kTile + lane * kRun;
    if (kSlices > 1) fetch_channel(t);
    float dy[kRun], none[kRun] = {};
    if (kSlices == 1) store_words(u_of, next_u), store_words(delta_of, next_delta);
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
      dy[k] = next_dy[k];
      next_delta[k] *= p.silu ? next_u[k] * sigmoid(next_u[k]) : next_u[k];
    }
    if (gated) {
#pragma unroll
      for (int k = 0; k < kRun; ++k) dy[k] *= next_z[k] * sigmoid(next_z[k]);
      store_words(y_of, none);
    }
    store_words(dy_of, dy);
    store_words(of_drive_of, none);
    store_words(drive_of, next_delta);
    const float* theta = theta_row + t;
    const int run = opaque(run_at(t, steps, aligned));
    float* k_of = kept + task.first * kWordsBackward;
    float* g_theta = angles_of(p.g_theta, row, d, task.first) + t;
#pragma unroll 1
    for (int n = task.first; n < task.end; ++n, k_of += kWordsBackward, g_theta += of_state) {
      float held[4], more[4];
      load_words(held, k_of);
      load_words(more, k_of + 4);
      Complex b = {more[0], more[1]}, c = {more[2], more[3]};
      const Complex start = next_start;
      unsigned phase[kRun];
      scan_phases(phase, next_theta, next_phase);
      // Read here and not where it is wanted, so that the phases end with their rotations: sm_75 would spill.
      unsigned end = __shfl_sync(~0u, phase[kRun - 1], 31);
      const bool last = n + 1 == task.end;
      theta = last ? theta_row + (t - kTimes * kTile) : theta + to_state;
      if (!last || round > 0) {
        load_angles(next_theta, theta, last ? kRun + aligned : run);
        fetch_start(last ? tile - kTimes : tile, last ? task.first : n + 1);
      }
      Complex rotation[kRun], s[kRun], sum = {0.0f, 0.0f}, q = sum, whole;
      float steps_of[kRun];
      load_words(steps_of, drive_of);
#pragma unroll
      for (int k = 0; k < kRun; ++k) {
        rotation[k] = turned(phase[k]);
        sum = {fmaf(rotation[k].re, steps_of[k], sum.re), fmaf(-rotation[k].im, steps_of[k], sum.im)};
        s[k] = sum;
      }
      const Complex before = product(b, sum_before<true>(sum, whole));
      const Complex from = {start.re + before.re, start.im + before.im};
      if (round == rounds - 1) {
        if (kTimes > 1) {
          if (tile == tiles - 1 && lane == 0) last_turn = end;
          __syncthreads();
          end = last_turn;
        }
        const Complex turn = turned(end);
        const Complex g = product(Complex{held[0], held[2]}, conj(turn));
        held[0] = g.re, held[2] = g.im;
      }
      Complex behind = {0.0f, 0.0f};
#pragma unroll
      for (int half = kRun - 4; half >= 0; half -= 4) {
        float dy_k[4], m[8];
        load_words(dy_k, dy_of + half);
#pragma unroll
        for (int i = 3; i >= 0; --i) {
          const Complex turn = rotation[half + i], by = {turn.re * dy_k[i], -turn.im * dy_k[i]};
          behind = {behind.re + by.re, behind.im + by.im};
          m[2 * i] = behind.re, m[2 * i + 1] = behind.im;
          q = plus_product(q, by, conj(s[half + i]));
        }
        store_words(m_of + 2 * half, m);
      }
      const Complex after = product(conj(c), sum_before<false>(behind, whole));
      whole = product(conj(c), whole);
      Sum re = {held[0], held[1]}, im = {held[2], held[3]};
      Complex to = {re.value + (re.lost + after.re), im.value + (im.lost + after.im)};
      if (kTimes > 1) {
        Complex* of_tile = sum_of_tile[(round * task.states + n) & 1];
        if (lane == 0) of_tile[task.time] = whole;
        __syncthreads();
#pragma unroll
        for (int i = kTimes - 1; i >= 0; --i) {
          const Complex of = of_tile[i];
          re = plus(re, of.re), im = plus(im, of.im);
          if (i - 1 == task.time) to = {re.value + (re.lost + after.re), im.value + (im.lost + after.im)};
        }
        // All lanes have read what was there before they met.
        if (lane == 0) {
          const float words[4] = {re.value, re.lost, im.value, im.lost};
          store_words(k_of, words);
        }
      } else {
        re = plus(re, whole.re), im = plus(im, whole.im);
      }
      const Complex of_b = plus_product(product(to, conj(s[kRun - 1])), conj(c), q);
      const Complex of_c = plus_product(product(conj(from), behind), conj(b), q);
      const float four[4] = {of_b.re, of_b.im, of_c.re, of_c.im};
      const float total = sums_of_four(four);
      __syncwarp();
      if (lane < 4) {
        const Sum of = plus({k_of[12 + lane], k_of[16 + lane]}, total);
        k_of[12 + lane] = of.value, k_of[16 + lane] = of.lost;
      }
      if (kTimes == 1 && lane == 0) {
        const float words[4] = {re.value, re.lost, im.value, im.lost};
        store_words(k_of, words);
      }
      __syncwarp();
      // Again from shared memory, and not kept in registers.
      load_words(more, k_of + 4);
      b = {more[0], more[1]}, c = {more[2], more[3]};
      const Complex bc = {k_of[8], k_of[9]}, turned_b = product(conj(b), to);
      // Four steps at a time: there are no registers for more.
#pragma unroll
      for (int half = 0; half < kRun; half += 4) {
        float of_theta[4], of_drive[4], m[8];
        load_words(of_drive, of_drive_of + half);
        load_words(m, m_of + 2 * half);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int k = half + i;
          const Complex m_k = {m[2 * i], m[2 * i + 1]};
          const Complex at = plus_product(to, conj(c), m_k), w = plus_product(turned_b, conj(bc), m_k);
          const Complex previous = k > 0 ? plus_product(from, b, s[k > 0 ? k - 1 : 0]) : from;
          of_theta[i] = fmaf(at.im, previous.re, -(at.re * previous.im));
          of_drive[i] = fmaf(rotation[k].re, w.re, fmaf(-rotation[k].im, w.im, of_drive[i]));
        }
        store_words(of_drive_of + half, of_drive);
        store_angles(g_theta, run, half, of_theta);
      }
      if (gated) {
        float y[kRun];
        load_words(y, y_of);
        const Complex there = product(c, from);
#pragma unroll
        for (int k = 0; k < kRun; ++k) {
          const Complex w = plus_product(there, bc, s[k]);
          y[k] = fmaf(rotation[k].re, w.re, fmaf(-rotation[k].im, w.im, y[k]));
        }
        store_words(y_of, y);
      }
    }
    float sums[2][kRun];
    float(&of_drive)[kRun] = sums[0];
    load_words(of_drive, of_drive_of);
    load_words(sums[1], gated ? y_of : of_drive_of);
    add_up(sums, places, task, tile);
    if (task.slice > 0) continue;
    float v[kRun], delta[kRun], tile_skip = 0.0f;
    const float skip = mine[kLaneWords - 2];
    if (kSlices == 1) {
      // The next round's are under way meanwhile.
      if (round > 0) fetch_channel(t - kTimes * kTile);
      load_words(v, u_of);
      load_words(delta, delta_of);
    } else {
      load_run(v, row_of(p.u, row, d), t, steps, aligned);
      load_run(delta, row_of(p.delta, row, d), t, steps, aligned);
    }
    load_words(dy, dy_of);
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
      const float s = p.silu ? sigmoid(v[k]) : 1.0f, of_v = fmaf(delta[k], of_drive[k], dy[k] * skip);
      v[k] *= s;
      delta[k] = v[k] * of_drive[k];
      of_drive[k] = p.silu ? of_v * fmaf(v[k], 1.0f - s, s) : of_v;
      tile_skip = fmaf(dy[k], v[k], tile_skip);
    }
    const Sum sum_skip = plus({mine[kLaneWords - 4], mine[kLaneWords - 3]}, tile_skip);
    mine[kLaneWords - 4] = sum_skip.value, mine[kLaneWords - 3] = sum_skip.lost;
    store_run(row_to(p.g_u, row, d), t, steps, aligned, of_drive);
    store_run(row_to(p.g_delta, row, d), t, steps, aligned, delta);
    if (gated) {
      float z[kRun], g[kRun];
      load_run(z, row_of(p.z, row, d), t, steps, aligned);
      load_run(g, row_of(p.grad_out, row, d), t, steps, aligned);
#pragma unroll
      for (int k = 0; k < kRun; ++k) z[k] = fmaf(skip, v[k], sums[1][k]) * (g[k] * silu_slope(z[k]));
      store_run(row_to(p.g_z, row, d), t, steps, aligned, z);
    }
  }
  float of_skip = warp_sum(mine[kLaneWords - 4]);
  if (kTimes > 1) {
    if (lane == 0) skip_of[task.time] = of_skip;
    __syncthreads();
    if (task.time > 0) return;
#pragma unroll
    for (int i = 1; i < kTimes; ++i) of_skip += skip_of[i];
  }
  for (int n = task.first + lane; n < task.end; n += 32) {
    const float* k = kept + n * kWordsBackward;
    float of[4] = {k[12], k[13], k[14], k[15]};
#pragma unroll
    for (int i = 1; i < kTimes; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) of[e] += k[i * task.states * kWordsBackward + 12 + e];
    p.part_b[(row * p.channels + d) * task.states + n] = {of[0], of[1]};
    p.part_c[(row * p.channels + d) * task.states + n] = {of[2], of[3]};
    if (p.g_h0.base) store_number(p.g_h0, offset(p.g_h0, row, d, n), {k[0], k[2]});
  }
  if (task.slice > 0) return;
  if (lane == 0) p.part_skip[row * p.channels + d] = of_skip;
}
