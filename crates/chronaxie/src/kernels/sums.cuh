// Sums of f64 over a warp and over a block, known to every thread.
#pragma once

__device__ __forceinline__ double warp_sum(double x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}
// By all of the block's kWarps warps; `slots` holds as many numbers.
template <int kWarps>
__device__ __forceinline__ double block_sum(double x, double* slots) {
  x = warp_sum(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = x;
  __syncthreads();
  x = slots[0];
  for (int w = 1; w < kWarps; ++w) x += slots[w];
  return x;
}
