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
