// adaptive_theta with decay where time is contiguous: a warp takes one channel of one sequence, a lane kRun steps of it.
//
//   shapes and the turned states s_t = e^{-i G_t} h_t as in adaptive.cu; without decay unitary.cu
//
// A tile is 32 kRun = 256 steps. What belongs to the channel (u, delta, z, out and their gradients) stays in registers while
// its states pass by, one after the other. The angles' sum is a scan of integers, that of the states one of affine maps with
// a real factor. Each tile adds to a carry whose rounding is kept, in shared memory, so a state of a million steps has hardly
// more error than one of 256. Backward goes against time: forward through the tile from its saved state and phase, then the
// sum of e^{i G} grad from behind. Sums over time of the gradients of B and C go through a shuffle each tile, and wait in
// shared memory.
//
// What binds on an H200: with one state a channel memory, 20 bytes a step forward and 36 backward, with many instructions. The
// next theta is loaded while one state is at work: eight warps a multiprocessor, as 1024 rows make, would not hide memory's
// latency otherwise.
#ifndef __CUDACC_RTC__
#include "defaults.cuh"
#endif
#include "lanes.cuh"

// What a state hands from tile to tile.
struct Carry {
  Sum re, im;
};

// The scan over the lanes of maps s -> e s + x with one real e and a complex x, from lane 0 on or from lane 31 on. Gives
// what comes before this lane, from nothing, with the factor of a carry in `e`; and the whole tile's in `whole`.
template <bool kUp>
__device__ __forceinline__ Complex scan_before(float& e, Complex x, Complex& whole) {
  const int lane = threadIdx.x % 32, place = kUp ? lane : 31 - lane;
#pragma unroll
  for (int by = 1; by < 32; by *= 2) {
    const Complex other = kUp ? Complex{__shfl_up_sync(~0u, x.re, by), __shfl_up_sync(~0u, x.im, by)}
                              : Complex{__shfl_down_sync(~0u, x.re, by), __shfl_down_sync(~0u, x.im, by)};
    const float factor = kUp ? __shfl_up_sync(~0u, e, by) : __shfl_down_sync(~0u, e, by);
    if (place >= by) {
      x = {fmaf(e, other.re, x.re), fmaf(e, other.im, x.im)};
      e *= factor;
    }
  }
  const int end = kUp ? 31 : 0;
  whole = {__shfl_sync(~0u, x.re, end), __shfl_sync(~0u, x.im, end)};
  Complex before = kUp ? Complex{__shfl_up_sync(~0u, x.re, 1), __shfl_up_sync(~0u, x.im, 1)}
                       : Complex{__shfl_down_sync(~0u, x.re, 1), __shfl_down_sync(~0u, x.im, 1)};
  e = kUp ? __shfl_up_sync(~0u, e, 1) : __shfl_down_sync(~0u, e, 1);
  if (place == 0) before = {0.0f, 0.0f}, e = 1.0f;
  return before;
}

// carry e + x, with what rounding has taken from the carry.
__device__ __forceinline__ float with_carry(const Sum& s, float e, float x) {
  return fmaf(s.value, e, fmaf(s.lost, e, x));
}
__device__ __forceinline__ Carry carry_on(const Carry& c, float sum_of_rho, Complex whole) {
  const float e = expf(sum_of_rho), less = expm1f(sum_of_rho);
  return {decay_plus(c.re, e, less, whole.re), decay_plus(c.im, e, less, whole.im)};
}
// The sum over the lanes of what each has, in one order, in every lane.
__device__ __forceinline__ float sum_of(float x) { return warp_sum(x); }

__device__ __forceinline__ Complex rotation_of(unsigned phase) {
  const Circular turn = circular(static_cast<int>(phase));
  return {turn.cos, turn.sin};
}

// The lane's part of one tile of one state: states from x = b conj(rotation) drive, and what they were before.
struct Tile {
  unsigned phase[kRun];
  Complex rotation[kRun], s[kRun];
  float e[kRun];
  unsigned phase_before;
  Complex before;
  float rho;     // the sum over the tile
  float factor;  // of the lane's run
  Complex whole;
};

__device__ __forceinline__ void advance(Tile& w, const float (&theta)[kRun], const float (&rho)[kRun],
                                        const float (&drive)[kRun], Complex b, unsigned phase, const Carry& carry) {
  w.phase_before = scan_phases(w.phase, theta, phase);
  Complex sum = {0.0f, 0.0f};
  float of_rho = 0.0f;
#pragma unroll
  for (int k = 0; k < kRun; ++k) {
    w.rotation[k] = rotation_of(w.phase[k]);
    const Complex x = scale(mul(b, conj(w.rotation[k])), drive[k]);
    w.s[k] = x;
    w.e[k] = expf(rho[k]), of_rho += rho[k];
    sum = {fmaf(w.e[k], sum.re, x.re), fmaf(w.e[k], sum.im, x.im)};
  }
  w.factor = expf(of_rho);
  float e = w.factor;
  const Complex before = scan_before<true>(e, sum, w.whole);
  w.before = {with_carry(carry.re, e, before.re), with_carry(carry.im, e, before.im)};
  Complex at = w.before;
#pragma unroll
  for (int k = 0; k < kRun; ++k) {
    w.s[k] = at = {fmaf(w.e[k], at.re, w.s[k].re), fmaf(w.e[k], at.im, w.s[k].im)};
  }
  w.rho = sum_of(of_rho);
}

// Words of a state in shared memory: its carry, its phase, b and c; backward also the sums of their gradients.
constexpr int kWordsForward = 9, kWordsBackward = 12;

extern "C" __global__ void __launch_bounds__(kThreads, 2) adaptive_lanes_forward(Tensors p) {
  extern __shared__ __align__(16) float shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, states = static_cast<int>(p.states);
  const i64 task = blockIdx.x * static_cast<i64>(kWarps) + warp, steps = p.marks.steps;
  if (task >= p.marks.units * p.channels) return;
  const i64 row = task / p.channels, d = task % p.channels;
  float* kept = shared + warp * states * kWordsForward;
  const bool aligned = p.aligned != 0;
  for (int n = lane; n < states; n += 32) {
    const Complex b = load_number(p.b, offset(p.b, d, n)), c = load_number(p.c, offset(p.c, d, n));
    Complex h = {0.0f, 0.0f};
    if (p.h0.base) h = load_number(p.h0, offset(p.h0, row, d, n));
    float* k = kept + n * kWordsForward;
    k[0] = h.re, k[1] = 0.0f, k[2] = h.im, k[3] = 0.0f, k[4] = __uint_as_float(0u);
    k[5] = b.re, k[6] = b.im, k[7] = c.re, k[8] = c.im;
  }
  __syncwarp();
  const float skip = p.skip.base ? load_float(p.skip, d * p.skip.s[0]) : 0.0f;
  const Stored *u_row = row_of(p.u, row, d), *delta_row = row_of(p.delta, row, d);
  float next_u[kRun], next_delta[kRun], next_theta[kRun], next_rho[kRun];
  auto fetch_channel = [&](i64 t) {
    load_run(next_u, u_row, t, steps, aligned);
    load_run(next_delta, delta_row, t, steps, aligned);
  };
  auto fetch_state = [&](int n, i64 t) {
    load_angles(next_theta, p.theta, row, d, n, t, steps, aligned);
    load_angles(next_rho, p.rho, row, d, n, t, steps, aligned);
  };
  fetch_channel(lane * kRun);
  fetch_state(0, lane * kRun);
  for (i64 tile = 0; tile < steps; tile += kTile) {
    const i64 t = tile + lane * kRun;
    float drive[kRun], y[kRun];
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
      const float u = next_u[k], v = p.silu ? u * sigmoid(u) : u;
      drive[k] = v * next_delta[k];
      y[k] = skip * v;
    }
    fetch_channel(t + kTile);
#pragma unroll 1
    for (int n = 0; n < states; ++n) {
      float theta[kRun], rho[kRun];
#pragma unroll
      for (int k = 0; k < kRun; ++k) theta[k] = next_theta[k], rho[k] = next_rho[k];
      const bool last = n + 1 == states;
      fetch_state(last ? 0 : n + 1, last ? t + kTile : t);
      float* k_of = kept + n * kWordsForward;
      const Carry carry = {{k_of[0], k_of[1]}, {k_of[2], k_of[3]}};
      const Complex b = {k_of[5], k_of[6]}, c = {k_of[7], k_of[8]};
      Tile w;
      advance(w, theta, rho, drive, b, __float_as_uint(k_of[4]), carry);
      if (t < steps && t % kChunk == 0) {
        const i64 at = offset(p.chunks, row, t / kChunk, d, n);
        store_number(p.chunks, at, w.before);
        reinterpret_cast<unsigned*>(p.phases.base)[at] = w.phase_before;
      }
#pragma unroll
      for (int k = 0; k < kRun; ++k) {
        const Complex h = mul(w.rotation[k], w.s[k]);
        y[k] = fmaf(h.re, c.re, fmaf(-h.im, c.im, y[k]));
      }
      const Carry on = carry_on(carry, w.rho, w.whole);
      const unsigned phase = __shfl_sync(~0u, w.phase[kRun - 1], 31);
      __syncwarp();
      if (lane == 0) {
        k_of[0] = on.re.value, k_of[1] = on.re.lost, k_of[2] = on.im.value, k_of[3] = on.im.lost;
        k_of[4] = __uint_as_float(phase);
      }
      __syncwarp();
    }
    if (p.z.base) {
      float z[kRun];
      load_run(z, row_of(p.z, row, d), t, steps, aligned);
#pragma unroll
      for (int k = 0; k < kRun; ++k) y[k] *= z[k] * sigmoid(z[k]);
    }
    store_run(row_to(p.out, row, d), t, steps, aligned, y);
  }
  for (int n = lane; n < states; n += 32) {
    const float* k = kept + n * kWordsForward;
    store_number(p.last, offset(p.last, row, d, n), mul(rotation_of(__float_as_uint(k[4])), Complex{k[0], k[2]}));
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 2) adaptive_lanes_backward(Tensors p) {
  extern __shared__ __align__(16) float shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, states = static_cast<int>(p.states);
  const i64 task = blockIdx.x * static_cast<i64>(kWarps) + warp, steps = p.marks.steps;
  if (task >= p.marks.units * p.channels) return;
  const i64 row = task / p.channels, d = task % p.channels;
  float* kept = shared + warp * states * kWordsBackward;
  const bool aligned = p.aligned != 0;
  const i64 tiles = (steps + kTile - 1) / kTile;
  for (int n = lane; n < states; n += 32) {
    const Complex b = load_number(p.b, offset(p.b, d, n)), c = load_number(p.c, offset(p.c, d, n));
    // Turned back by the phase of the end, once that is known.
    const Complex g = load_number(p.grad_last, offset(p.grad_last, row, d, n));
    float* k = kept + n * kWordsBackward;
    k[0] = g.re, k[1] = 0.0f, k[2] = g.im, k[3] = 0.0f;
    k[4] = b.re, k[5] = b.im, k[6] = c.re, k[7] = c.im;
    k[8] = k[9] = k[10] = k[11] = 0.0f;
  }
  __syncwarp();
  const float skip = p.skip.base ? load_float(p.skip, d * p.skip.s[0]) : 0.0f;
  float sum_skip = 0.0f;
  float next_theta[kRun], next_rho[kRun];
  auto fetch_state = [&](int n, i64 t) {
    load_angles(next_theta, p.theta, row, d, n, t, steps, aligned);
    load_angles(next_rho, p.rho, row, d, n, t, steps, aligned);
  };
  if (tiles > 0) fetch_state(0, (tiles - 1) * kTile + lane * kRun);
#pragma unroll 1
  for (i64 tile = tiles - 1; tile >= 0; --tile) {
    const i64 t = tile * kTile + lane * kRun;
    float u[kRun], delta[kRun], drive[kRun], dy[kRun], y[kRun], of_drive[kRun];
    load_run(u, row_of(p.u, row, d), t, steps, aligned);
    load_run(delta, row_of(p.delta, row, d), t, steps, aligned);
    load_run(dy, row_of(p.grad_out, row, d), t, steps, aligned);
    if (p.z.base) {
      float z[kRun];
      load_run(z, row_of(p.z, row, d), t, steps, aligned);
#pragma unroll
      for (int k = 0; k < kRun; ++k) dy[k] *= z[k] * sigmoid(z[k]);
    }
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
      const float v = p.silu ? u[k] * sigmoid(u[k]) : u[k];
      drive[k] = v * delta[k];
      y[k] = skip * v;
      sum_skip = fmaf(dy[k], v, sum_skip);
      of_drive[k] = 0.0f;
    }
#pragma unroll 1
    for (int n = 0; n < states; ++n) {
      float theta[kRun], rho[kRun];
#pragma unroll
      for (int k = 0; k < kRun; ++k) theta[k] = next_theta[k], rho[k] = next_rho[k];
      const bool last = n + 1 == states;
      if (!last || tile > 0) fetch_state(last ? 0 : n + 1, last ? t - kTile : t);
      float* k_of = kept + n * kWordsBackward;
      const Complex b = {k_of[4], k_of[5]}, c = {k_of[6], k_of[7]};
      Carry mu = {{k_of[0], k_of[1]}, {k_of[2], k_of[3]}}, start = {};
      unsigned phase = 0;
      if (tile > 0) {
        const i64 at = offset(p.chunks, row, tile * (kTile / kChunk), d, n);
        const Complex s = load_number(p.chunks, at);
        start.re.value = s.re, start.im.value = s.im;
        phase = reinterpret_cast<const unsigned*>(p.phases.base)[at];
      } else if (p.h0.base) {
        const Complex s = load_number(p.h0, offset(p.h0, row, d, n));
        start.re.value = s.re, start.im.value = s.im;
      }
      Tile w;
      advance(w, theta, rho, drive, b, phase, start);
      if (tile == tiles - 1) {
        const Complex turn = rotation_of(__shfl_sync(~0u, w.phase[kRun - 1], 31));
        const Complex g = mul(Complex{mu.re.value, mu.im.value}, conj(turn));
        mu.re.value = g.re, mu.im.value = g.im;
      }
      // From behind: m_t = conj(rotation c) dy + what comes after, and e m_t goes on.
      Complex sum = {0.0f, 0.0f}, of_b = sum, of_c = sum;
#pragma unroll
      for (int k = kRun - 1; k >= 0; --k) {
        const Complex turned = mul(w.rotation[k], w.s[k]);
        y[k] = fmaf(turned.re, c.re, fmaf(-turned.im, c.im, y[k]));
        of_c = {fmaf(turned.re, dy[k], of_c.re), fmaf(-turned.im, dy[k], of_c.im)};
        const Complex by = scale(conj(mul(w.rotation[k], c)), dy[k]);
        sum = add(sum, by);
        sum = scale(sum, w.e[k]);
      }
      float e = w.factor;
      Complex whole;
      const Complex behind = scan_before<false>(e, sum, whole);
      const Complex after = {with_carry(mu.re, e, behind.re), with_carry(mu.im, e, behind.im)};
      Complex states_before[kRun];
      states_before[0] = w.before;
#pragma unroll
      for (int k = 1; k < kRun; ++k) states_before[k] = w.s[k - 1];
      float of_theta[kRun], of_rho[kRun];
      Complex m = after;
#pragma unroll
      for (int k = kRun - 1; k >= 0; --k) {
        const Complex by = scale(conj(mul(w.rotation[k], c)), dy[k]);
        m = add(m, by);
        const Complex before = scale(states_before[k], w.e[k]);
        const Complex product = mul(m, conj(before)), lambda = mul(w.rotation[k], m);
        of_theta[k] = product.im, of_rho[k] = product.re;
        of_b = {fmaf(lambda.re, drive[k], of_b.re), fmaf(lambda.im, drive[k], of_b.im)};
        of_drive[k] = fmaf(lambda.re, b.re, fmaf(lambda.im, b.im, of_drive[k]));
        m = scale(m, w.e[k]);
      }
      store_angles(angles_of(p.g_theta, row, d, n) + t, run_at(t, steps, aligned), 0, of_theta);
      store_angles(angles_of(p.g_rho, row, d, n) + t, run_at(t, steps, aligned), 0, of_rho);
      const Carry on = carry_on(mu, w.rho, whole);
      of_b = {sum_of(of_b.re), sum_of(of_b.im)}, of_c = {sum_of(of_c.re), sum_of(of_c.im)};
      __syncwarp();
      if (lane == 0) {
        k_of[0] = on.re.value, k_of[1] = on.re.lost, k_of[2] = on.im.value, k_of[3] = on.im.lost;
        k_of[8] += of_b.re, k_of[9] += of_b.im, k_of[10] += of_c.re, k_of[11] += of_c.im;
      }
      __syncwarp();
    }
    float of_u[kRun], of_delta[kRun];
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
      const float s = p.silu ? sigmoid(u[k]) : 1.0f, v = u[k] * s;
      const float of_v = fmaf(delta[k], of_drive[k], dy[k] * skip);
      of_u[k] = p.silu ? of_v * fmaf(v, 1.0f - s, s) : of_v;
      of_delta[k] = v * of_drive[k];
    }
    store_run(row_to(p.g_u, row, d), t, steps, aligned, of_u);
    store_run(row_to(p.g_delta, row, d), t, steps, aligned, of_delta);
    if (p.z.base) {
      float z[kRun], g[kRun];
      load_run(z, row_of(p.z, row, d), t, steps, aligned);
      load_run(g, row_of(p.grad_out, row, d), t, steps, aligned);
#pragma unroll
      for (int k = 0; k < kRun; ++k) y[k] *= g[k] * silu_slope(z[k]);
      store_run(row_to(p.g_z, row, d), t, steps, aligned, y);
    }
  }
  sum_skip = sum_of(sum_skip);
  for (int n = lane; n < states; n += 32) {
    const float* k = kept + n * kWordsBackward;
    p.part_b[task * states + n] = {k[8], k[9]};
    p.part_c[task * states + n] = {k[10], k[11]};
    if (p.g_h0.base) store_number(p.g_h0, offset(p.g_h0, row, d, n), {k[0], k[2]});
  }
  if (lane == 0) p.part_skip[task] = sum_skip;
}
