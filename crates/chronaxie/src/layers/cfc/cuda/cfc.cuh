// What the CfC kernels share: the net as the host describes it, activations, and a product with weights from L2.
#pragma once
#include "walk.cuh"

typedef long long i64;

constexpr int kMaxCells = 8;
constexpr int kPure = 1, kNoGate = 2;                                    // modes; 0 is default
constexpr int kTanh = 1, kRelu = 2, kGelu = 3, kSilu = 4;                // activations; 0 is lecun_tanh

// Maps lie behind each other: the LSTM's at 0, then each cell's, its backbone first and its heads last. A map of I inputs
// and O outputs has I O weights, O biases, O columns of gradients and I of operands.
struct alignas(8) Net {
  i64 weights[kMaxCells], bias[kMaxCells], grads[kMaxCells], operands[kMaxCells];  // where the maps of a cell begin
  i64 row_grads, row_operands;                                                     // the widths of a row
  int neurons[kMaxCells], first[kMaxCells];
  int cells, layers, units, heads, kept, mode, activation, mixed, inputs, hidden;
};

__device__ __forceinline__ float tanh_of(float x) {
  if constexpr (kFast) {
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  } else {
    return tanhf(x);
  }
}
__device__ __forceinline__ float sigmoid(float x) {
  if constexpr (kFast) return fmaf(0.5f, tanh_of(0.5f * x), 0.5f);
  return 1.0f / (1.0f + expf(-x));
}
__device__ __forceinline__ float sign(float x) { return x == 0.0f ? 0.0f : copysignf(1.0f, x); }

// The activation of x, and its derivative there.
__device__ __forceinline__ float activate(int activation, float x, float& slope) {
  if (activation == kRelu) {
    slope = x > 0.0f ? 1.0f : 0.0f;
    return x <= 0.0f ? 0.0f : x;  // a NaN stays one
  }
  if (activation == kGelu) {
    const float below = 0.5f * erfcf(-0.70710678f * x);  // 1 + erf would cancel
    slope = fmaf(x, 0.39894228f * expf(-0.5f * x * x), below);
    return x * below;
  }
  if (activation == kSilu) {
    const float s = sigmoid(x);
    slope = fmaf(x, s * sigmoid(-x), s);
    return x * s;
  }
  const bool plain = activation == kTanh;
  const float t = tanh_of(plain ? x : 0.666f * x);
  slope = (plain ? 1.0f : 1.7159f * 0.666f) * (1.0f - t) * (1.0f + t);
  return plain ? t : 1.7159f * t;
}

// Columns that a pass of the block makes side by side, and the parts into which it then splits the sums.
__device__ __forceinline__ int lanes_of(int n) { return n >= kThreads ? kThreads : max((n + 31) / 32 * 32, 32); }
__device__ __forceinline__ int parts_of(int n) { return kThreads / lanes_of(n); }

// partial [parts, kRows, n] = [a0, a1] [kRows, k0 + k1] times w [k0 + k1, n], each part a share of both k. The caller
// synchronises on either side. Neighbouring threads are neighbours in n.
__device__ __forceinline__ void product(float* partial, const float* a0, int stride0, int k0, const float* a1, int stride1,
                                        int k1, const float* __restrict__ w, i64 ldw, int n) {
  const int lanes = lanes_of(n), parts = kThreads / lanes, part = threadIdx.x / lanes;
  if (part >= parts) return;
  for (int o = threadIdx.x % lanes; o < n; o += lanes) {
    float sum[kRows];
#pragma unroll
    for (int r = 0; r < kRows; r++) sum[r] = 0.0f;
    add_products(sum, a0, stride0, k0 * part / parts, k0 * (part + 1) / parts, w, ldw, o);
    add_products(sum, a1, stride1, k1 * part / parts, k1 * (part + 1) / parts, w + k0 * ldw, ldw, o);
#pragma unroll
    for (int r = 0; r < kRows; r++) partial[(part * kRows + r) * n + o] = sum[r];
  }
}
// One result of `product`: the parts in their order.
__device__ __forceinline__ float result(const float* partial, int n, int r, int o) {
  float sum = 0.0f;
  for (int part = 0, parts = parts_of(n); part < parts; part++) sum += partial[(part * kRows + r) * n + o];
  return sum;
}
