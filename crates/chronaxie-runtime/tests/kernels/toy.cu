// y[i] = 2 a x[i] + kShift, one thread an element.
#ifndef CHRONAXIE_PROLOGUE
constexpr int kShift = 1;
#endif
#include "toy.cuh"

extern "C" __global__ void __launch_bounds__(256) toy_scale(
    const float* x,  // [n]
    float* y,        // [n]
    float a, long long n) {
  long long i = blockIdx.x * 256LL + threadIdx.x;
  if (i < n) y[i] = twice(a * x[i]) + kShift;
}

struct Pair {
  float gain;
  int offset;
  double unused[3];
};

// y[i] += gain, from a struct that is passed by value.
extern "C" __global__ void toy_pair(float* y /* [n] */, Pair p, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += p.gain + (float)p.offset;
}

// total[0] += 1 for each block, in a loop that takes a while.
extern "C" __global__ void toy_slow(unsigned long long* total /* [1] */, int rounds) {
  unsigned v = threadIdx.x + 1;
  for (int i = 0; i < rounds; i++) v = v * 1664525u + 1013904223u;
  if (threadIdx.x == 0) atomicAdd(total, v == 0 ? 2ULL : 1ULL);
}

// out[b] is the sum of a block's dynamic shared memory, which it fills with its index.
extern "C" __global__ void toy_shared(float* out /* [blocks] */, int words) {
  extern __shared__ float s[];
  for (int i = threadIdx.x; i < words; i += blockDim.x) s[i] = 1.0f;
  __syncthreads();
  if (threadIdx.x == 0) {
    float sum = 0;
    for (int i = 0; i < words; i++) sum += s[i];
    out[blockIdx.x] = sum;
  }
}

// out[b] is the rank of block b in its cluster.
extern "C" __global__ void toy_cluster(unsigned* out /* [blocks] */) {
  unsigned rank = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  if (threadIdx.x == 0) out[blockIdx.x] = rank;
}

// A barrier over the whole grid, safe only in a cooperative launch; counter starts at 0.
extern "C" __global__ void toy_grid(unsigned* counter /* [1] */, unsigned* out /* [blocks] */) {
  if (threadIdx.x == 0) {
    atomicAdd(counter, 1u);
    while (*(volatile unsigned*)counter < gridDim.x) {
    }
    out[blockIdx.x] = *(volatile unsigned*)counter;
  }
}

// Writes where nobody may.
extern "C" __global__ void toy_fault(float* nowhere) { nowhere[threadIdx.x] = 1.0f; }
