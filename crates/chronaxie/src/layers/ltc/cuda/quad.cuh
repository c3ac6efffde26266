// Four batch rows side by side in each half of the blocks of a cluster (quad.cu, quad_adjoint.cu): how lanes share the rows of an
// owner, and how blocks tell each other what their owners have (exchange.cuh says why it is enough).
#pragma once
#include "held.cuh"
#include "parts.cuh"
#if __CUDA_ARCH__ >= 900
#include "cluster.cuh"
#endif

// The row, of four, that a lane has after `four_sum`: lanes that differ by 2 have neighbours.
__device__ __forceinline__ int four_row(int lane) { return (lane & 1) * 2 + ((lane >> 1) & 1); }

// The sum of each row over the lanes of an owner, eight at least; a lane gets that of row four_row(lane). The order of
// additions is fixed.
__device__ __forceinline__ float four_sum(const float (&x)[4], int lane, int lanes) {
  const bool odd = lane & 1, second = lane & 2;
  const float x0 = (odd ? x[2] : x[0]) + __shfl_xor_sync(~0u, odd ? x[0] : x[2], 1);
  const float x1 = (odd ? x[3] : x[1]) + __shfl_xor_sync(~0u, odd ? x[1] : x[3], 1);
  float sum = (second ? x1 : x0) + __shfl_xor_sync(~0u, second ? x0 : x1, 2);
  sum += __shfl_xor_sync(~0u, sum, 4);
  if (lanes == 8) return sum;
#pragma unroll 1
  for (int o = 8; o < lanes; o *= 2) sum += __shfl_xor_sync(~0u, sum, o);
  return sum;
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
