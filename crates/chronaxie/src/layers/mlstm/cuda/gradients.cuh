// What mLSTM's backward kernels on tensor cores share: what the rows of a chunk weigh, and the product that ends a segment.
#pragma once
#include "tensor.cuh"

// With M the gauge less the sums: log i - b, M, s e^(m - M), e^(log i - b - M_L), 1 / N and dl.
struct GradientRows {
  float column[kEdge], top[kEdge], weight[kEdge], into[kEdge], over[kEdge], rate_l[kEdge];

  // The whole block takes part; `before` and `behind` are the gauges before and behind the chunk.
  __device__ __forceinline__ void begin(const Call& x, const Chunk& chunk, float before, float behind) {
    const int thread = threadIdx.x;
    if (thread >= kEdge) return;
    const bool on = thread < chunk.n;
    const i64 flat = chunk.flat + (on ? thread : 0);
    const float highest = max(before, x.until[flat]), lowest = __int_as_float(0xff800000);
    column[thread] = on ? x.column[flat] : lowest;
    // Rows that are not there have no pairs.
    top[thread] = on ? highest : -lowest;
    weight[thread] = on ? (float)x.scale * expf(before - highest) : 0.f;
    into[thread] = on ? expf(x.column[flat] - behind) : 0.f;
    over[thread] = !on ? 0.f : x.inverse ? x.inverse[flat] : 1.f;
    rate_l[thread] = on && x.grad_l ? x.grad_l[flat] : 0.f;
  }
};

// n before a chunk, and its gradient behind it: zeros where there is none.
__device__ __forceinline__ void begin_n(const Call& x, i64 slot, i64 back, float* n, float* dn) {
  for (int k = threadIdx.x; k < kHeadMost; k += kBlock) {
    const bool on = x.normalize && k < x.dk;
    n[k] = on ? x.n[slot * x.dk + k] : 0.f;
    dn[k] = on ? x.grad_n[back * x.dk + k] : 0.f;
  }
}

// The block's part of <C, dC> + <n, dn> behind a segment, summed in one order.
__device__ __forceinline__ void end_segment(const Call& x, const Chain& chain, i64 nth, double part, double* parts) {
  for (int d = 16; d > 0; d /= 2) part += __shfl_xor_sync(~0u, part, d);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = part;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kBlock / 32; ++w) part += parts[w];
  x.products[chain.nth * x.segments + nth / x.segment] = part;
}
