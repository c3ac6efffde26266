// The gradient through the gates of held synapses, source by source (held.cuh), and the sums of each synapse.
#pragma once
#include "held.cuh"

// alpha of kRows rows, then beta of them.
__device__ __forceinline__ void load_pairs(const char* tile, unsigned offset, float (&x)[2 * kRows]) {
  if constexpr (kRows >= 2) {
#pragma unroll
    for (int i = 0; i < 2 * kRows; i += 4) {
      float4 y = *(const float4*)(tile + offset + 4 * i);
      x[i] = y.x, x[i + 1] = y.y, x[i + 2] = y.z, x[i + 3] = y.w;
    }
  } else {
    float2 y = *(const float2*)(tile + offset);
    x[0] = y.x, x[1] = y.y;
  }
}

struct Sums {
  float4 of[kSlots];
};

constexpr int kBatch = kRows == 1 ? 4 : kRows == 2 && kSlots <= 12 ? 4 : 2;

template <int kFirst>
__device__ __forceinline__ void adjoint_gates(const Held& held, Sums& sums, int used, const char* tile,
                                              const float (&v)[kRows], float (&total)[kRows]) {
  if constexpr (kFirst < kSlots) {
    if (kFirst >= used) return;
    constexpr int kCount = kSlots - kFirst < kBatch ? kSlots - kFirst : kBatch;
    float x[kCount][2 * kRows], g[kCount][kRows];
#pragma unroll
    for (int h = 0; h < kCount; h++) load_pairs(tile, source_of(held, kFirst + h), x[h]);
#pragma unroll
    for (int h = 0; h < kCount; h++)
#pragma unroll
      for (int r = 0; r < kRows; r++) g[h][r] = gate_of(held.a[kFirst + h], held.b[kFirst + h], v[r]);
#pragma unroll
    for (int h = 0; h < kCount; h++) {
      constexpr int i0 = kFirst;
      float4& s = sums.of[i0 + h];
#pragma unroll
      for (int r = 0; r < kRows; r++) {
        float alpha = x[h][r], beta = x[h][kRows + r], t = g[h][r];
        float rho = fmaf(alpha, held.q[i0 + h], beta * held.p[i0 + h]);
        // fast: twice dz, from halved p and q; and dz v.
        float dz = rho * (kFast ? fmaf(-t, t, 1.0f) : fmaf(-t, t, t));
        s.x = fmaf(alpha, t, s.x);
        s.y = fmaf(beta, t, s.y);
        s.z += dz;
        s.w = fmaf(dz, kFast ? v[r] : v[r] - held.b[i0 + h], s.w);
        total[r] = fmaf(dz, held.a[i0 + h], total[r]);
      }
    }
    adjoint_gates<kFirst + kCount>(held, sums, used, tile, v, total);
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
