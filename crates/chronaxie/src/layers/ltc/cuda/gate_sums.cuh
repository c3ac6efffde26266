// The gradient through the gates of held synapses, source by source (held.cuh), and the sums of each synapse.
#pragma once
#include "held.cuh"

// Rows whose alpha and beta lie side by side: of four rows two and two, so that each load is of 16 bytes, and all banks are
// read alike.
constexpr int kPlane = kRows < 2 ? 1 : 2;

// alpha and beta of the rows of plane p, in turn; planes are `plane` bytes apart.
__device__ __forceinline__ void load_pairs(const char* tile, unsigned offset, unsigned plane, float (&x)[2 * kRows]) {
  if constexpr (kRows == 1) {
    const float2 y = *(const float2*)(tile + offset);
    x[0] = y.x, x[1] = y.y;
  } else {
#pragma unroll
    for (int p = 0; p < kRows / 2; p++) {
      const float4 y = *(const float4*)(tile + p * plane + offset);
      x[4 * p] = y.x, x[4 * p + 1] = y.y, x[4 * p + 2] = y.z, x[4 * p + 3] = y.w;
    }
  }
}

struct Sums {
  float4 of[kSlots];
};

constexpr int kBatch = kRows == 1 ? (kFast ? 4 : 2) : kRows == 2 && !kFast ? 1 : 2;
// Slots that are computed whether they are in use or not, as in held.cuh.
constexpr int kAlwaysPairs = kSlots >= 16 ? kSlots * 4 / 5 : kSlots / 2;

template <int kFirst, int kCount>
__device__ __forceinline__ void adjoint_batch(const Held& held, Sums& sums, const char* tile, unsigned plane,
                                              const float (&v)[kRows], float (&total)[kRows]) {
  float x[kCount][2 * kRows], g[kCount][kRows];
  float4 w[kCount];
#pragma unroll
  for (int h = 0; h < kCount; h++) {
    w[h] = synapse_of(held, kFirst + h);
    load_pairs(tile, source_of(held, kFirst + h), plane, x[h]);
  }
#pragma unroll
  for (int h = 0; h < kCount; h++)
#pragma unroll
    for (int r = 0; r < kRows; r++) g[h][r] = gate_of(w[h].x, w[h].y, v[r]);
#pragma unroll
  for (int h = 0; h < kCount; h++) {
    constexpr int i0 = kFirst;
    float4& s = sums.of[i0 + h];
#pragma unroll
    for (int r = 0; r < kRows; r++) {
      const float alpha = x[h][2 * r], beta = x[h][2 * r + 1], t = g[h][r];
      const float rho = fmaf(alpha, w[h].w, beta * w[h].z);
      // fast: twice dz, from halved p and q; and dz v.
      const float dz = rho * (kFast ? fmaf(-t, t, 1.0f) : fmaf(-t, t, t));
      s.x = fmaf(alpha, t, s.x);
      s.y = fmaf(beta, t, s.y);
      s.z += dz;
      s.w = fmaf(dz, kFast ? v[r] : v[r] - w[h].y, s.w);
      total[r] = fmaf(dz, w[h].x, total[r]);
    }
  }
}

template <int kFirst>
__device__ __forceinline__ void adjoint_gates(const Held& held, Sums& sums, int used, const char* tile, unsigned plane,
                                              const float (&v)[kRows], float (&total)[kRows]) {
  if constexpr (kFirst < kSlots) {
    if (kFirst >= kAlwaysPairs && kFirst >= used) return;
    constexpr int kCount = kSlots - kFirst < kBatch ? kSlots - kFirst : kBatch;
    adjoint_batch<kFirst, kCount>(held, sums, tile, plane, v, total);
    adjoint_gates<kFirst + kCount>(held, sums, used, tile, plane, v, total);
  }
}

// The same of one row in two parts: first its gates, while alpha and beta are still on their way; then the rest.
__device__ __forceinline__ void gates_ahead(const Held& held, int used, float v, float (&t)[kSlots]) {
#pragma unroll
  for (int i = 0; i < kSlots; i++) {
    // As many as adjoint_rest reads.
    if (i >= kAlwaysPairs && i % kBatch == 0 && i >= used) break;
    t[i] = gate_of(held.a[i], held.b[i], v);
  }
}
template <int kFirst>
__device__ __forceinline__ void adjoint_rest(const Held& held, Sums& sums, int used, const char* tile, float v,
                                             const float (&t)[kSlots], float& total) {
  if constexpr (kFirst < kSlots) {
    if (kFirst >= kAlwaysPairs && kFirst >= used) return;
    constexpr int kCount = kSlots - kFirst < kBatch ? kSlots - kFirst : kBatch;
    float2 x[kCount];
#pragma unroll
    for (int h = 0; h < kCount; h++) x[h] = *(const float2*)(tile + source_of(held, kFirst + h));
#pragma unroll
    for (int h = 0; h < kCount; h++) {
      const int i = kFirst + h;
      float4& s = sums.of[i];
      const float rho = fmaf(x[h].x, held.q[i], x[h].y * held.p[i]);
      const float dz = rho * (kFast ? fmaf(-t[i], t[i], 1.0f) : fmaf(-t[i], t[i], t[i]));
      s.x = fmaf(x[h].x, t[i], s.x);
      s.y = fmaf(x[h].y, t[i], s.y);
      s.z += dz;
      s.w = fmaf(dz, kFast ? v : v - held.b[i], s.w);
      total = fmaf(dz, held.a[i], total);
    }
    adjoint_rest<kFirst + kCount>(held, sums, used, tile, v, t, total);
  }
}

// The sum over targets of dz sigma, of one row: row lane % kRows of the lane's source. The order of additions is fixed.
__device__ __forceinline__ float owner_sum(float (&total)[kRows], int lane, int lanes) {
#pragma unroll
  for (int half = kRows / 2; half > 0; half /= 2) {
    const bool upper = lane & half;
#pragma unroll
    for (int i = 0; i < half; i++) {
      float keep = upper ? total[half + i] : total[i], give = upper ? total[i] : total[half + i];
      total[i] = keep + __shfl_xor_sync(~0u, give, half);
    }
  }
  float sum = total[0];
#pragma unroll
  for (int o = kRows; o < 32; o *= 2)
    if (o < lanes) sum += __shfl_xor_sync(~0u, sum, o);
  // Held.a is sigma / 2 and dz twice itself, or -sigma log2(e).
  return kFast ? sum : sum * -0.69314718055994531f;
}
