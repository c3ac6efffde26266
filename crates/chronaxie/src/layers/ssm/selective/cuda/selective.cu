// selective_scan and its step: h_t = a(delta_t, A) h_{t-1} + e(delta_t, A) B_t u_t, y_t = kappa Re(C_t h_t) + D u_t,
// out = y silu(z)
//
//   u, delta, z, out [B, D, T] f32, bf16 or f16; A [D, N] f32 or c64; B, C constant [D, N] or varying [B, G, N, T]; D,
//   delta_bias [D] f32; h0, last [S, D, N]; chunk_states [B, ceil(T/64), D, N]; any strides but for the saved one
//
// Forward: a warp takes one channel of one sequence through time, a lane the states n = lane + 32 k. Backward: a warp takes
// a slice of a group's channels, one after the other, in one part of the units; 64 steps at a time run forward again from
// the saved states, into scratch, and then against time. What several warps add to lies in parts of scratch of their own,
// and selective_fold sums them in one order: no atomics, the same bits every run.
//
// The first right kernels: each step waits for the one before, a warp's loads lie T apart, and N < 32 leaves lanes idle.
// Per state and step one exponential forward and one backward; they would bind (a fifth of memory's time at N = 16, bf16).
#ifndef __CUDACC_RTC__
#include "defaults.cuh"
#endif
#include "tensors.cuh"

constexpr int kWarps = kThreads / 32;
// More states a lane than two would not fit the registers: they lie in local memory, for N above 64.
constexpr int kUnroll = kPerLane <= 2 ? kPerLane : 1;
constexpr float kKappa = kComplex ? 2.0f : 1.0f;

__device__ __forceinline__ Real number(float re, Real) { return {re}; }
__device__ __forceinline__ Complex number(float re, Complex) { return {re, 0.0f}; }
__device__ __forceinline__ Number real(float re) { return number(re, Number{}); }
__device__ __forceinline__ Number recip(Number x) { return scale(conj(x), 1.0f / dot(x, x)); }

// e^w, and e^w - 1 without cancellation near 0.
__device__ __forceinline__ void exponential(Real w, Real& e, Real& less) { e.re = expf(w.re), less.re = expm1f(w.re); }
__device__ __forceinline__ void exponential(Complex w, Complex& e, Complex& less) {
  const Circular turn = circular(turns_of(w.im));
  const float radius = expf(w.re);
  e = {radius * turn.cos, radius * turn.sin};
  less = {fmaf(expm1f(w.re), turn.cos, turn.cos_m1), e.im};
}

// A gate, the factor of the input, and their derivatives: rules exp (0), zoh (1), bilinear (2).
struct Step {
  Number a, e;
};
struct Slopes {
  Number a_w, e_delta, e_a;
};
__device__ __forceinline__ Step step_of(Number a, float delta) {
  const Number w = scale(a, delta);
  if (kRule == 2) {
    const Number half = scale(w, 0.5f), inverse = recip(add(real(1.0f), scale(half, -1.0f)));
    return {mul(add(real(1.0f), half), inverse), scale(inverse, delta)};
  }
  Number e, less;
  exponential(w, e, less);
  if (kRule == 0) return {e, real(delta)};
  // A rate this small is none: (e^{delta A} - 1) / A is delta.
  return {e, dot(a, a) < 1e-30f ? real(delta) : mul(less, recip(a))};
}
__device__ __forceinline__ Slopes slopes_of(Number a, float delta, const Step& s) {
  if (kRule == 0) return {s.a, real(1.0f), real(0.0f)};
  const Number w = scale(a, delta);
  if (kRule == 2) {
    const Number inverse = recip(add(real(1.0f), scale(w, -0.5f))), square = mul(inverse, inverse);
    return {square, square, scale(square, 0.5f * delta * delta)};
  }
  // delta^2 phi1'(w): its series where the difference would cancel.
  if (dot(w, w) >= 0.5f) return {s.a, s.a, mul(add(scale(s.a, delta), scale(s.e, -1.0f)), recip(a))};
  const float c[9] = {9.0f / 3628800, 1.0f / 45360, 1.0f / 5760, 1.0f / 840, 1.0f / 144, 1.0f / 30, 0.125f, 1.0f / 3, 0.5f};
  Number sum = real(c[0]);
#pragma unroll
  for (int k = 1; k < 9; ++k) sum = fma(sum, w, real(c[k]));
  return {s.a, s.a, scale(sum, delta * delta)};
}

__device__ __forceinline__ Real stored(const Array& a, i64 at, Real) { return {load_stored(a, at)}; }
__device__ __forceinline__ Complex stored(const Array& a, i64 at, Complex) {
  return reinterpret_cast<const Complex*>(a.base)[at];
}
__device__ __forceinline__ void keep(const Array& a, i64 at, Real x) { store_stored(a, at, x.re); }
__device__ __forceinline__ void keep(const Array& a, i64 at, Complex x) { reinterpret_cast<Complex*>(a.base)[at] = x; }

__device__ __forceinline__ i64 group_of(const Tensors& p, i64 d) { return d / (p.channels / p.groups); }
__device__ __forceinline__ Number weight(const Array& w, i64 varies, i64 row, i64 group, i64 d, i64 n, i64 t) {
  return varies ? stored(w, offset(w, row, group, n, t), Number{}) : load_number(w, offset(w, d, n));
}
__device__ __forceinline__ float of_channel(const Array& a, i64 d) { return a.base ? load_float(a, d * a.s[0]) : 0.0f; }

// One step of a lane's states; returns their share of y.
__device__ __forceinline__ float advance(Number (&h)[kPerLane], const Tensors& p, i64 row, i64 group, i64 d, i64 t,
                                         float delta, float u, bool fresh) {
  float y = 0.0f;
#pragma unroll kUnroll
  for (int k = 0; k < kPerLane; ++k) {
    const i64 n = threadIdx.x % 32 + 32 * k;
    if (n >= p.states) continue;
    const Step s = step_of(load_number(p.a, offset(p.a, d, n)), delta);
    const Number x = scale(mul(s.e, weight(p.b, p.b_varies, row, group, d, n, t)), u);
    h[k] = fresh ? x : fma(s.a, h[k], x);
    y += dot(h[k], conj(weight(p.c, p.c_varies, row, group, d, n, t)));
  }
  return y;
}

extern "C" __global__ void __launch_bounds__(kThreads) selective_forward(Tensors p) {
  const int lane = threadIdx.x % 32;
  for (i64 task = blockIdx.x * static_cast<i64>(kWarps) + threadIdx.x / 32; task < p.marks.units * p.channels;
       task += gridDim.x * static_cast<i64>(kWarps)) {
    const i64 i = task / p.channels, d = task % p.channels, group = group_of(p, d);
    const Unit unit = unit_at(p.marks, i);
    const i64 own = p.table ? p.table[i] : i;
    if (own < 0 || own >= p.slots) {  // a row of the step that is skipped; nobody has looked at the table's values
      if (lane == 0) store_stored(p.out, offset(p.out, i, d), 0.0f);
      continue;
    }
    const float skip = of_channel(p.skip, d), bias = of_channel(p.bias, d);
    Number h[kPerLane];
#pragma unroll kUnroll
    for (int k = 0; k < kPerLane; ++k) {
      const i64 n = lane + 32 * k;
      h[k] = p.h0.base && n < p.states ? load_number(p.h0, offset(p.h0, own, d, n)) : Number{};
    }
#pragma unroll 1
    for (i64 t = unit.begin; t < unit.end; ++t) {
      if (p.chunks.base && t % kChunk == 0) {
#pragma unroll kUnroll
        for (int k = 0; k < kPerLane; ++k) {
          const i64 n = lane + 32 * k;
          if (n < p.states) store_number(p.chunks, offset(p.chunks, unit.row, t / kChunk, d, n), h[k]);
        }
      }
      const float u = load_stored(p.u, offset(p.u, unit.row, d, t));
      const float raw = load_stored(p.delta, offset(p.delta, unit.row, d, t)) + bias;
      float y = advance(h, p, unit.row, group, d, t, p.softplus ? softplus(raw) : raw, u, is_fresh(p.marks, unit.row, t));
      y = fmaf(skip, u, kKappa * warp_sum(y));
      if (p.z.base) {
        const float z = load_stored(p.z, offset(p.z, unit.row, d, t));
        y *= z * sigmoid(z);
      }
      if (lane == 0) store_stored(p.out, offset(p.out, unit.row, d, t), y);
    }
#pragma unroll kUnroll
    for (int k = 0; k < kPerLane; ++k) {
      const i64 n = lane + 32 * k;
      if (n < p.states) store_number(p.last, offset(p.last, own, d, n), h[k]);
    }
  }
}

// Adds a step's gradient of a weight to where it belongs: its own element, a part's, or a register.
__device__ __forceinline__ void give_weight(const Tensors& p, i64 varies, const Array& to, Number* part, i64 slice,
                                            bool first, i64 row, i64 group, i64 d, i64 n, i64 t, Number g, Number& sum) {
  if (!varies) {
    sum = add(sum, g);
  } else if (p.own) {
    keep(to, offset(to, row, d, n, t), g);
  } else {
    Number* cell = part + (((slice * p.batch + row) * p.groups + group) * p.states + n) * p.marks.steps + t;
    *cell = first ? g : add(*cell, g);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 1) selective_backward(Tensors p) {
  __shared__ float y_of[kWarps][kChunk];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 me = blockIdx.x * static_cast<i64>(kWarps) + warp, warps = gridDim.x * static_cast<i64>(kWarps);
  const i64 groups = p.own ? 1 : p.groups, width = p.channels / groups, tasks = p.parts * groups * p.slices;
  Number* trace = p.trace + me * kChunk * p.states;
  for (i64 task = me; task < tasks; task += warps) {
    const i64 part = task / (groups * p.slices), group = task / p.slices % groups, slice = task % p.slices;
    const i64 begin = group * width + slice * width / p.slices, end = group * width + (slice + 1) * width / p.slices;
    const i64 first_unit = part * p.marks.units / p.parts, last_unit = (part + 1) * p.marks.units / p.parts;
#pragma unroll 1
    for (i64 d = begin; d < end; ++d) {
      const float skip = of_channel(p.skip, d), bias = of_channel(p.bias, d);
      const i64 mine = (part * p.channels + d) * p.states, shared = p.own ? d : group;
      for (i64 n = lane; n < p.states; n += 32) {
        p.part_a[mine + n] = Number{};
        if (!p.b_varies) p.part_b[mine + n] = Number{};
        if (!p.c_varies) p.part_c[mine + n] = Number{};
      }
      float sum_skip = 0.0f, sum_bias = 0.0f;
#pragma unroll 1
      for (i64 i = first_unit; i < last_unit; ++i) {
        const Unit unit = unit_at(p.marks, i);
        Number mu[kPerLane];
#pragma unroll kUnroll
        for (int k = 0; k < kPerLane; ++k) {
          const i64 n = lane + 32 * k;
          mu[k] = n < p.states ? load_number(p.grad_last, offset(p.grad_last, i, d, n)) : Number{};
        }
        const i64 chunks = unit.begin == unit.end ? 0 : (unit.end - 1) / kChunk - unit.begin / kChunk + 1;
#pragma unroll 1
        for (i64 nth = 0; nth < chunks; ++nth) {
          const i64 chunk = (unit.end - 1) / kChunk - nth;
          const i64 from = max(chunk * kChunk, unit.begin), to = min((chunk + 1) * kChunk, unit.end);
          auto start = [&](i64 n) {
            if (from > unit.begin) return load_number(p.chunks, offset(p.chunks, unit.row, chunk, d, n));
            return p.h0.base ? load_number(p.h0, offset(p.h0, i, d, n)) : Number{};
          };
          Number h[kPerLane], tile_a[kPerLane], tile_b[kPerLane], tile_c[kPerLane];
#pragma unroll kUnroll
          for (int k = 0; k < kPerLane; ++k) {
            const i64 n = lane + 32 * k;
            h[k] = n < p.states ? start(n) : Number{};
            tile_a[k] = tile_b[k] = tile_c[k] = Number{};
          }
#pragma unroll 1
          for (i64 t = from; t < to; ++t) {
            const float u = load_stored(p.u, offset(p.u, unit.row, d, t));
            const float raw = load_stored(p.delta, offset(p.delta, unit.row, d, t)) + bias;
            const bool fresh = is_fresh(p.marks, unit.row, t);
            const float y = warp_sum(advance(h, p, unit.row, shared, d, t, p.softplus ? softplus(raw) : raw, u, fresh));
            if (lane == 0) y_of[warp][t - from] = fmaf(skip, u, kKappa * y);
#pragma unroll kUnroll
            for (int k = 0; k < kPerLane; ++k) {
              if (lane + 32 * k < p.states) trace[(t - from) * p.states + lane + 32 * k] = h[k];
            }
          }
          __syncwarp();
          float tile_skip = 0.0f, tile_bias = 0.0f;
#pragma unroll 1
          for (i64 t = to - 1; t >= from; --t) {
            const float u = load_stored(p.u, offset(p.u, unit.row, d, t));
            const float raw = load_stored(p.delta, offset(p.delta, unit.row, d, t)) + bias;
            const float delta = p.softplus ? softplus(raw) : raw;
            const float g = load_stored(p.grad_out, offset(p.grad_out, unit.row, d, t));
            const float z = p.z.base ? load_stored(p.z, offset(p.z, unit.row, d, t)) : 0.0f;
            const float dy = p.z.base ? g * (z * sigmoid(z)) : g, dk = kKappa * dy;
            const bool fresh = is_fresh(p.marks, unit.row, t);
            float of_delta = 0.0f, of_u = 0.0f;
#pragma unroll kUnroll
            for (int k = 0; k < kPerLane; ++k) {
              const i64 n = lane + 32 * k;
              if (n >= p.states) continue;
              const Number a = load_number(p.a, offset(p.a, d, n));
              const Number b = weight(p.b, p.b_varies, unit.row, shared, d, n, t);
              const Number c = weight(p.c, p.c_varies, unit.row, shared, d, n, t);
              Number before = t > from ? trace[(t - 1 - from) * p.states + n] : start(n);
              if (fresh) before = Number{};
              const Step s = step_of(a, delta);
              const Slopes slope = slopes_of(a, delta, s);
              const Number drive = scale(b, u), lambda = add(scale(conj(c), dk), mu[k]);
              const Number of_w = mul(lambda, conj(mul(before, slope.a_w)));
              of_delta += dot(of_w, a) + dot(lambda, mul(slope.e_delta, drive));
              of_u += dot(lambda, mul(s.e, b));
              tile_a[k] = add(tile_a[k], add(scale(of_w, delta), mul(lambda, conj(mul(slope.e_a, drive)))));
              const Number of_c = scale(conj(trace[(t - from) * p.states + n]), dk);
              const Number of_b = scale(mul(lambda, conj(s.e)), u);
              give_weight(p, p.b_varies, p.g_b, p.part_b, slice, d == begin, unit.row, shared, d, n, t, of_b, tile_b[k]);
              give_weight(p, p.c_varies, p.g_c, p.part_c, slice, d == begin, unit.row, shared, d, n, t, of_c, tile_c[k]);
              mu[k] = fresh ? Number{} : mul(lambda, conj(s.a));
            }
            of_delta = warp_sum(of_delta), of_u = warp_sum(of_u);
            if (p.softplus) of_delta *= sigmoid(raw);
            tile_skip = fmaf(dy, u, tile_skip), tile_bias += of_delta;
            if (lane == 0) {
              store_stored(p.g_u, offset(p.g_u, unit.row, d, t), fmaf(dy, skip, of_u));
              store_stored(p.g_delta, offset(p.g_delta, unit.row, d, t), of_delta);
              if (p.z.base) store_stored(p.g_z, offset(p.g_z, unit.row, d, t), g * silu_slope(z) * y_of[warp][t - from]);
            }
          }
          __syncwarp();
          sum_skip += tile_skip, sum_bias += tile_bias;
#pragma unroll kUnroll
          for (int k = 0; k < kPerLane; ++k) {
            const i64 n = lane + 32 * k;
            if (n >= p.states) continue;
            p.part_a[mine + n] = add(p.part_a[mine + n], tile_a[k]);
            if (!p.b_varies) p.part_b[mine + n] = add(p.part_b[mine + n], tile_b[k]);
            if (!p.c_varies) p.part_c[mine + n] = add(p.part_c[mine + n], tile_c[k]);
          }
        }
        if (!p.g_h0.base) continue;
#pragma unroll kUnroll
        for (int k = 0; k < kPerLane; ++k) {
          const i64 n = lane + 32 * k;
          if (n < p.states) store_number(p.g_h0, offset(p.g_h0, i, d, n), mu[k]);
        }
      }
      if (lane == 0) {
        p.part_vectors[part * p.channels + d] = sum_skip;
        p.part_vectors[(p.parts + part) * p.channels + d] = sum_bias;
      }
    }
  }
}

// The sums of the parts of what has no time, in their order: a thread a weight.
extern "C" __global__ void __launch_bounds__(kThreads) selective_fold(Tensors p) {
  const i64 weights = p.channels * p.states;
  for (i64 w = blockIdx.x * static_cast<i64>(kThreads) + threadIdx.x; w < weights;
       w += gridDim.x * static_cast<i64>(kThreads)) {
    const i64 d = w / p.states, n = w % p.states;
    Number a = {}, b = {}, c = {};
    float skip = 0.0f, bias = 0.0f;
    for (i64 part = 0; part < p.parts; ++part) {
      a = add(a, p.part_a[part * weights + w]);
      if (!p.b_varies) b = add(b, p.part_b[part * weights + w]);
      if (!p.c_varies) c = add(c, p.part_c[part * weights + w]);
      skip += p.part_vectors[part * p.channels + d];
      bias += p.part_vectors[(p.parts + part) * p.channels + d];
    }
    store_number(p.g_a, offset(p.g_a, d, n), a);
    if (!p.b_varies) store_number(p.g_b, offset(p.g_b, d, n), b);
    if (!p.c_varies) store_number(p.g_c, offset(p.g_c, d, n), c);
    if (n == 0 && p.g_skip.base) store_float(p.g_skip, d * p.g_skip.s[0], skip);
    if (n == 0 && p.g_bias.base) store_float(p.g_bias, d * p.g_bias.s[0], bias);
  }
}

// The sums over slices of the gradients of varying weights that channels share: a thread an element.
extern "C" __global__ void __launch_bounds__(kThreads) selective_fold_slices(Tensors p) {
  const i64 elements = p.batch * p.groups * p.states * p.marks.steps;
  for (i64 at = blockIdx.x * static_cast<i64>(kThreads) + threadIdx.x; at < elements;
       at += gridDim.x * static_cast<i64>(kThreads)) {
    const i64 t = at % p.marks.steps, row = at / p.marks.steps;
    const i64 n = row % p.states, g = row / p.states % p.groups, b = row / p.states / p.groups;
    Number of_b = {}, of_c = {};
    for (i64 slice = 0; slice < p.slices; ++slice) {
      if (p.b_varies) of_b = add(of_b, p.part_b[slice * elements + at]);
      if (p.c_varies) of_c = add(of_c, p.part_c[slice * elements + at]);
    }
    if (p.b_varies) keep(p.g_b, offset(p.g_b, b, g, n, t), of_b);
    if (p.c_varies) keep(p.g_c, offset(p.g_c, b, g, n, t), of_c);
  }
}
