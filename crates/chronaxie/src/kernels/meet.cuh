// Blocks of a grid that wait for each other: a group of them, by a counter in global memory. All must be on the device at once.
#pragma once

// By one thread of each block of a group: arrives and waits until `round` have; what its block wrote before is seen by the others behind
// that.
__device__ __forceinline__ void blocks_meet(unsigned* counter, unsigned round) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 700
  // Compute capability 6 has no additions and loads with an order of their own.
  __threadfence();
  atomicAdd(counter, 1u);
  while ((int)(*(volatile unsigned*)counter - round) < 0) {
  }
  __threadfence();
#else
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(1u) : "memory");
  unsigned seen;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
  } while ((int)(seen - round) < 0);
#endif
}

// Counters of groups that meet later, by all threads of the grid.
__device__ __forceinline__ void clear_counters(unsigned* counters, int count) {
  for (int k = blockIdx.x * blockDim.x + threadIdx.x; k < count; k += gridDim.x * blockDim.x) counters[k] = 0;
}
