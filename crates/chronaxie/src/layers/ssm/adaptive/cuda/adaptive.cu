// adaptive_theta: h_t = e^{rho_t + i theta_t} h_{t-1} + delta_t B v_t, y_t = Re(C h_t) + D v_t, out = y silu(z)
//
//   theta, rho [B, D, N, T] f32; u, delta, z, out [B, D, T] f32, bf16 or f16; B, C [D, N] c64; D [D] f32; h0, last [S, D, N]
//   c64; chunk_states [B, ceil(T/128), D, N] c64, chunk_phases the same in i32; any strides but for the saved ones
//
// A warp takes one channel of one sequence through time, a lane the states n = lane + 32 k. A state is kept turned back by
// the sum G of its angles, s_t = e^{-i G_t} h_t, so that s_t = e^{rho_t} s_{t-1} + e^{-i G_t} x_t: without decay a sum, which
// is compensated; a decay near 1 is added as (e^rho - 1) s. The way back takes 128 steps at a time from the saved states,
// keeps each state of them in scratch, and turns G back by subtracting the same integers.
//
// The first right kernels: loads of a warp lie N T apart, and each step waits for the one before. Memory would bind at
// 8 bytes a state and step forward (theta, and what channels share), 12 backward.
#ifndef __CUDACC_RTC__
#include "defaults.cuh"
#endif
#include "adaptive.cuh"

// States of a lane are in registers up to 2 of them, and in local memory beyond.
constexpr int kUnroll = kPerLane <= 2 ? kPerLane : 1;

struct State {
  Sum re, im;
  unsigned phase;
};

// One step of a state; returns the rotation, and the decayed state before in `before`.
__device__ __forceinline__ Complex advance(State& s, const Tensors& p, i64 at_theta, i64 at_rho, float drive, Complex b,
                                           bool fresh, Complex& before) {
  s.phase += static_cast<unsigned>(turns_of(load_float(p.theta, at_theta)));
  const Circular turn = circular(static_cast<int>(s.phase));
  const Complex rotation = {turn.cos, turn.sin};
  if (fresh) s.re = s.im = {0.0f, 0.0f};
  const Complex x = scale(mul(b, conj(rotation)), drive);
  before = {s.re.value, s.im.value};
  if (kDecay) {
    const float rho = load_float(p.rho, at_rho), e = expf(rho), less = expm1f(rho);
    before = scale(before, e);
    s.re = decay_plus(s.re, e, less, x.re);
    s.im = decay_plus(s.im, e, less, x.im);
  } else {
    s.re = plus(s.re, x.re);
    s.im = plus(s.im, x.im);
  }
  return rotation;
}

__device__ __forceinline__ i64 saved_at(const Array& a, i64 row, i64 t, i64 d, i64 n) {
  return offset(a, row, t / kChunk, d, n);
}

extern "C" __global__ void __launch_bounds__(kThreads) adaptive_forward(Tensors p) {
  const int lane = threadIdx.x % 32;
  const i64 warps = gridDim.x * static_cast<i64>(kThreads / 32);
  for (i64 task = blockIdx.x * static_cast<i64>(kThreads / 32) + threadIdx.x / 32; task < p.marks.units * p.channels;
       task += warps) {
    const i64 i = task / p.channels, d = task % p.channels;
    const Unit unit = unit_at(p.marks, i);
    const float skip = p.skip.base ? load_float(p.skip, d * p.skip.s[0]) : 0.0f;
    State state[kPerLane];
    Complex b[kPerLane], c[kPerLane];
#pragma unroll kUnroll
    for (int k = 0; k < kPerLane; ++k) {
      const i64 n = lane + 32 * k;
      state[k] = {{0.0f, 0.0f}, {0.0f, 0.0f}, 0u};
      b[k] = c[k] = {0.0f, 0.0f};
      if (n >= p.states) continue;
      b[k] = load_number(p.b, offset(p.b, d, n)), c[k] = load_number(p.c, offset(p.c, d, n));
      if (!p.h0.base) continue;
      const Complex h = load_number(p.h0, offset(p.h0, i, d, n));
      state[k].re.value = h.re, state[k].im.value = h.im;
    }
    for (i64 t = unit.begin; t < unit.end; ++t) {
      const float u = load_stored(p.u, offset(p.u, unit.row, d, t)), v = p.silu ? u * sigmoid(u) : u;
      const float drive = v * load_stored(p.delta, offset(p.delta, unit.row, d, t));
      const bool fresh = is_fresh(p.marks, unit.row, t);
      float y = 0.0f;
#pragma unroll kUnroll
      for (int k = 0; k < kPerLane; ++k) {
        const i64 n = lane + 32 * k;
        if (n >= p.states) continue;
        if (t % kChunk == 0) {
          store_number(p.chunks, saved_at(p.chunks, unit.row, t, d, n), {state[k].re.value, state[k].im.value});
          reinterpret_cast<unsigned*>(p.phases.base)[saved_at(p.phases, unit.row, t, d, n)] = state[k].phase;
        }
        Complex before;
        const Complex rotation = advance(state[k], p, offset(p.theta, unit.row, d, n, t),
                                         offset(p.rho, unit.row, d, n, t), drive, b[k], fresh, before);
        y += dot(mul(rotation, Complex{state[k].re.value, state[k].im.value}), conj(c[k]));
      }
      y = fmaf(skip, v, warp_sum(y));
      if (p.z.base) {
        const float z = load_stored(p.z, offset(p.z, unit.row, d, t));
        y *= z * sigmoid(z);
      }
      if (lane == 0) store_stored(p.out, offset(p.out, unit.row, d, t), y);
    }
#pragma unroll kUnroll
    for (int k = 0; k < kPerLane; ++k) {
      const i64 n = lane + 32 * k;
      if (n >= p.states) continue;
      const Circular turn = circular(static_cast<int>(state[k].phase));
      const Complex s = {state[k].re.value, state[k].im.value};
      store_number(p.last, offset(p.last, i, d, n), mul(Complex{turn.cos, turn.sin}, s));
    }
  }
}

// A task is a channel in one part of the units.
extern "C" __global__ void __launch_bounds__(kThreads, 1) adaptive_backward(Tensors p) {
  __shared__ float y_of[kThreads / 32][kChunk];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 first = blockIdx.x * static_cast<i64>(kThreads / 32) + warp;
  const i64 warps = gridDim.x * static_cast<i64>(kThreads / 32);
  Complex* trace = p.trace + first * kChunk * p.states;
  for (i64 task = first; task < p.parts * p.channels; task += warps) {
    const i64 part = task / p.channels, d = task % p.channels;
    const float skip = p.skip.base ? load_float(p.skip, d * p.skip.s[0]) : 0.0f;
    Complex b[kPerLane], c[kPerLane], sum_b[kPerLane], sum_c[kPerLane];
    float sum_skip = 0.0f;
#pragma unroll kUnroll
    for (int k = 0; k < kPerLane; ++k) {
      const i64 n = lane + 32 * k;
      sum_b[k] = sum_c[k] = b[k] = c[k] = {0.0f, 0.0f};
      if (n < p.states) b[k] = load_number(p.b, offset(p.b, d, n)), c[k] = load_number(p.c, offset(p.c, d, n));
    }
    for (i64 i = part * p.marks.units / p.parts; i < (part + 1) * p.marks.units / p.parts; ++i) {
      const Unit unit = unit_at(p.marks, i);
      Sum mu_re[kPerLane], mu_im[kPerLane];
      const i64 chunks = unit.begin == unit.end ? 0 : (unit.end - 1) / kChunk - unit.begin / kChunk + 1;
      for (i64 nth = 0; nth < chunks; ++nth) {
        const i64 chunk = (unit.end - 1) / kChunk - nth;
        const i64 from = max(chunk * kChunk, unit.begin), to = min((chunk + 1) * kChunk, unit.end);
        State state[kPerLane];
        Complex start[kPerLane], tile_b[kPerLane], tile_c[kPerLane];
#pragma unroll kUnroll
        for (int k = 0; k < kPerLane; ++k) {
          const i64 n = lane + 32 * k;
          state[k] = {{0.0f, 0.0f}, {0.0f, 0.0f}, 0u};
          tile_b[k] = tile_c[k] = {0.0f, 0.0f};
          if (n < p.states) {
            Complex s = {0.0f, 0.0f};
            if (from > unit.begin) {
              s = load_number(p.chunks, saved_at(p.chunks, unit.row, from, d, n));
              state[k].phase = reinterpret_cast<const unsigned*>(p.phases.base)[saved_at(p.phases, unit.row, from, d, n)];
            } else if (p.h0.base) {
              s = load_number(p.h0, offset(p.h0, i, d, n));
            }
            state[k].re.value = s.re, state[k].im.value = s.im;
          }
          start[k] = {state[k].re.value, state[k].im.value};
        }
        for (i64 t = from; t < to; ++t) {
          const float u = load_stored(p.u, offset(p.u, unit.row, d, t)), v = p.silu ? u * sigmoid(u) : u;
          const float drive = v * load_stored(p.delta, offset(p.delta, unit.row, d, t));
          const bool fresh = is_fresh(p.marks, unit.row, t);
          float y = 0.0f;
#pragma unroll kUnroll
          for (int k = 0; k < kPerLane; ++k) {
            const i64 n = lane + 32 * k;
            if (n >= p.states) continue;
            Complex before;
            const Complex rotation = advance(state[k], p, offset(p.theta, unit.row, d, n, t),
                                             offset(p.rho, unit.row, d, n, t), drive, b[k], fresh, before);
            const Complex s = {state[k].re.value, state[k].im.value};
            trace[(t - from) * p.states + n] = s;
            y += dot(mul(rotation, s), conj(c[k]));
          }
          y = fmaf(skip, v, warp_sum(y));
          if (lane == 0) y_of[warp][t - from] = y;
        }
        __syncwarp();
        if (nth == 0) {
#pragma unroll kUnroll
          for (int k = 0; k < kPerLane; ++k) {
            const i64 n = lane + 32 * k;
            mu_re[k] = mu_im[k] = {0.0f, 0.0f};
            if (n >= p.states) continue;
            const Circular turn = circular(static_cast<int>(state[k].phase));
            const Complex g = mul(load_number(p.grad_last, offset(p.grad_last, i, d, n)), Complex{turn.cos, -turn.sin});
            mu_re[k].value = g.re, mu_im[k].value = g.im;
          }
        }
        float tile_skip = 0.0f;
        for (i64 t = to - 1; t >= from; --t) {
          const float u = load_stored(p.u, offset(p.u, unit.row, d, t)), v = p.silu ? u * sigmoid(u) : u;
          const float delta = load_stored(p.delta, offset(p.delta, unit.row, d, t)), drive = v * delta;
          const float g = load_stored(p.grad_out, offset(p.grad_out, unit.row, d, t));
          const float z = p.z.base ? load_stored(p.z, offset(p.z, unit.row, d, t)) : 0.0f;
          const float dy = p.z.base ? g * (z * sigmoid(z)) : g;
          const bool fresh = is_fresh(p.marks, unit.row, t);
          float of_drive = 0.0f;
#pragma unroll kUnroll
          for (int k = 0; k < kPerLane; ++k) {
            const i64 n = lane + 32 * k;
            if (n >= p.states) continue;
            const i64 at = offset(p.theta, unit.row, d, n, t);
            const Circular turn = circular(static_cast<int>(state[k].phase));
            const Complex rotation = {turn.cos, turn.sin};
            const Complex s = trace[(t - from) * p.states + n];
            Complex before = t > from ? trace[(t - 1 - from) * p.states + n] : start[k];
            if (fresh) before = {0.0f, 0.0f};
            const Complex by = scale(conj(mul(rotation, c[k])), dy);
            mu_re[k] = plus(mu_re[k], by.re), mu_im[k] = plus(mu_im[k], by.im);
            const Complex m = {mu_re[k].value, mu_im[k].value};
            float e = 1.0f, less = 0.0f;
            if (kDecay) {
              const float rho = load_float(p.rho, offset(p.rho, unit.row, d, n, t));
              e = expf(rho), less = expm1f(rho);
              before = scale(before, e);
            }
            const Complex product = mul(m, conj(before)), lambda = mul(rotation, m);
            store_float(p.g_theta, offset(p.g_theta, unit.row, d, n, t), product.im);
            if (kDecay) store_float(p.g_rho, offset(p.g_rho, unit.row, d, n, t), product.re);
            tile_c[k] = add(tile_c[k], scale(conj(mul(rotation, s)), dy));
            tile_b[k] = add(tile_b[k], scale(lambda, drive));
            of_drive += dot(lambda, b[k]);
            if (kDecay) mu_re[k] = decay_plus(mu_re[k], e, less, 0.0f), mu_im[k] = decay_plus(mu_im[k], e, less, 0.0f);
            if (fresh) mu_re[k] = mu_im[k] = {0.0f, 0.0f};
            state[k].phase -= static_cast<unsigned>(turns_of(load_float(p.theta, at)));
          }
          of_drive = warp_sum(of_drive);
          tile_skip = fmaf(dy, v, tile_skip);
          if (lane == 0) {
            const float of_v = fmaf(delta, of_drive, dy * skip);
            store_stored(p.g_u, offset(p.g_u, unit.row, d, t), p.silu ? of_v * silu_slope(u) : of_v);
            store_stored(p.g_delta, offset(p.g_delta, unit.row, d, t), v * of_drive);
            if (p.z.base) {
              store_stored(p.g_z, offset(p.g_z, unit.row, d, t), g * silu_slope(z) * y_of[warp][t - from]);
            }
          }
        }
        __syncwarp();
        sum_skip += tile_skip;
#pragma unroll kUnroll
        for (int k = 0; k < kPerLane; ++k) sum_b[k] = add(sum_b[k], tile_b[k]), sum_c[k] = add(sum_c[k], tile_c[k]);
      }
      if (!p.g_h0.base) continue;
#pragma unroll kUnroll
      for (int k = 0; k < kPerLane; ++k) {
        const i64 n = lane + 32 * k;
        if (n >= p.states) continue;
        // A sequence without steps hands its gradient through; else the phase before the first step is 0.
        Complex g = load_number(p.grad_last, offset(p.grad_last, i, d, n));
        if (chunks > 0) g = {mu_re[k].value, mu_im[k].value};
        store_number(p.g_h0, offset(p.g_h0, i, d, n), g);
      }
    }
#pragma unroll kUnroll
    for (int k = 0; k < kPerLane; ++k) {
      const i64 n = lane + 32 * k;
      if (n >= p.states) continue;
      p.part_b[task * p.states + n] = sum_b[k];
      p.part_c[task * p.states + n] = sum_c[k];
    }
    if (lane == 0) p.part_skip[task] = sum_skip;
  }
}

// The sums of the parts, in their order: a thread a weight.
extern "C" __global__ void __launch_bounds__(kThreads) adaptive_fold(Tensors p) {
  const i64 weights = p.channels * p.states;
  for (i64 w = blockIdx.x * static_cast<i64>(kThreads) + threadIdx.x; w < weights;
       w += gridDim.x * static_cast<i64>(kThreads)) {
    const i64 d = w / p.states, n = w % p.states;
    Complex b = {0.0f, 0.0f}, c = b;
    float skip = 0.0f;
    for (i64 part = 0; part < p.parts; ++part) {
      b = add(b, p.part_b[part * weights + w]), c = add(c, p.part_c[part * weights + w]);
      skip += p.part_skip[part * p.channels + d];
    }
    store_number(p.g_b, offset(p.g_b, d, n), b);
    store_number(p.g_c, offset(p.g_c, d, n), c);
    if (n == 0 && p.g_skip.base) store_float(p.g_skip, d * p.g_skip.s[0], skip);
  }
}
