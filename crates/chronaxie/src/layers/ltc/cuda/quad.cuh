// Four batch rows side by side in each half of the blocks of a cluster (quad.cu, quad_adjoint.cu): how lanes share the synapses and
// rows of an owner, and how blocks tell each other what their owners have (exchange.cuh says why it is enough).
#pragma once
#include "held.cuh"
#include "parts.cuh"
#if __CUDA_ARCH__ >= 900
#include "cluster.cuh"
#endif

// Of the lanes of a warp eight neighbours end what an owner has, two for each row; its synapses are dealt to lanes of the warp of
// which it has as many as its list needs (schedule/four.rs), and whose parts of its sums go through shared memory.
constexpr int kOwners = 4;
// The most lanes that have synapses of an owner; and how many parts are added without asking how many there are.
constexpr int kParts = 16, kTogether = 10;
// Elements of 16 bytes of the parts of a warp: those of lanes without synapses are apart, and a second plane's banks are the other half.
constexpr int kPlane = kOwners * kParts + 32 + 4;

// The row, of four, that a lane ends: lanes that differ by 2 have neighbours.
__device__ __forceinline__ int four_row(int lane) { return (lane & 1) * 2 + ((lane >> 1) & 1); }
// The lane, of those of an owner, that ends a row.
__device__ __forceinline__ int lane_of_row(int row) { return (row & 1) * 2 + (row >> 1); }

// Where this thread's warp has its parts, `planes` planes of them, from `first` on.
__device__ __forceinline__ float4* parts_of_warp(float4* first, int planes) {
  return first + opaque(threadIdx.x) / 32u * (planes * kPlane);
}
// Where this lane finds the first of the parts that it adds: of its row.
__device__ __forceinline__ const float* parts_of_row(const float4* parts) {
  const int lane = opaque(threadIdx.x) & 31;
  return (const float*)(parts + lane / 8) + four_row(lane);
}

// The sum of `count` parts that lie kStride floats apart. What no lane has is zero; the order of additions is fixed.
template <int kFixed, int kStride>
__device__ __forceinline__ float parts_sum(const float* at, int count) {
  float x[kFixed];
#pragma unroll
  for (int i = 0; i < kFixed; i++) x[i] = at[i * kStride];
#pragma unroll
  for (int o = 1; o < kFixed; o *= 2)
#pragma unroll
    for (int i = 0; i + o < kFixed; i += 2 * o) x[i] += x[i + o];
#pragma unroll 1
  for (int i = kFixed; i < count; i++) x[0] += at[i * kStride];
  return x[0];
}

// The four rows of an owner from the lanes that have one each.
__device__ __forceinline__ void four_rows(float mine, int lane, float (&x)[4]) {
  const bool odd = lane & 1, second = lane & 2;
  const float other = __shfl_xor_sync(~0u, mine, 2);
  const float x0 = second ? other : mine, x1 = second ? mine : other;
  const float y0 = __shfl_xor_sync(~0u, x0, 1), y1 = __shfl_xor_sync(~0u, x1, 1);
  x[0] = odd ? y0 : x0, x[1] = odd ? y1 : x1, x[2] = odd ? x0 : y0, x[3] = odd ? x1 : y1;
}

// A slot's byte offset in a tile, of pairs.
template <int kPairCount>
__device__ __forceinline__ unsigned four_source(const unsigned (&from)[kPairCount], int slot) {
  return slot % 2 ? high_half(from[slot / 2]) : low_half(from[slot / 2]);
}

// A block has two halves with the same synapses and rows of their own: which of them a thread is in, and where.
struct Half {
  int index, threads, thread;  // of two; threads of a half; which of them
  // Of the groups of rows that are walked side by side, which this half has, and how many there are.
  __device__ __forceinline__ int slot(unsigned blocks) const { return blockIdx.x / blocks * 2 + index; }
  __device__ __forceinline__ int slots(unsigned blocks) const { return gridDim.x / blocks * 2; }
};
__device__ __forceinline__ Half half_of_block() {
  const int threads = blockDim.x / 2, index = uniform(threadIdx.x >= threads);
  return {index, threads, (int)threadIdx.x - index * threads};
}

#if __CUDA_ARCH__ >= 900
// Two barriers of a half, one for each tile of `bytes`, set up by its first thread; ends with the whole cluster here.
__device__ __forceinline__ void four_barriers(unsigned long long* barriers, unsigned bytes, const Half& half) {
  if (half.thread == 0) {
    for (int i = 0; i < 2; i++) barrier_init(barriers + i, 1);
    barrier_init_fence();
    for (int i = 0; i < 2; i++) barrier_expect(barriers + i, bytes);
  }
  __syncthreads();
  cluster_sync();
}
// The second half begins later: they keep the distance with which they begin, and should not have their gates at the same time,
// nor their exchange.
__device__ __forceinline__ void stand_apart(const Half& half, unsigned nanoseconds) {
  if (half.index == 1) __nanosleep(nanoseconds);
}
// Waits for all of tile `which`, whose phase has this parity, and sets its barrier up again. `barriers`: their address.
__device__ __forceinline__ void four_take(unsigned barriers, int which, unsigned parity, unsigned bytes, const Half& half) {
  barrier_wait_at(barriers + which * 8, parity);
  __syncwarp();
  if (half.thread == 0) barrier_expect_at(barriers + which * 8, bytes);
}
#endif
