// Kernels with one defect each, which kBroken turns on: what the emulated GPU (tests/emulated-gpu) must find.
#ifndef CHRONAXIE_PROLOGUE
constexpr bool kBroken = true;
#endif

__device__ __forceinline__ unsigned address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void wait(unsigned long long* barrier, unsigned parity) {
  asm volatile(
      "{\n\t.reg .pred done;\n\t"
      "AGAIN:\n\t"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
      "@!done bra AGAIN;\n\t}" ::"r"(address(barrier)), "r"(parity)
      : "memory");
}
__device__ __forceinline__ void init(unsigned long long* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(barrier)) : "memory");
}
__device__ __forceinline__ void expect(unsigned long long* barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(barrier)), "r"(bytes) : "memory");
}

// out[i] = 127 - i by way of shared memory: no barrier between writing and reading.
extern "C" __global__ void __launch_bounds__(128) no_barrier(int* out /* [128] */, const int* in) {
  __shared__ int s[128];
  s[threadIdx.x] = threadIdx.x;
  if (!kBroken) __syncthreads();
  out[threadIdx.x] = s[127 - threadIdx.x];
}

// The same within a warp.
extern "C" __global__ void __launch_bounds__(128) no_warp_barrier(int* out /* [128] */, const int* in) {
  __shared__ int s[128];
  s[threadIdx.x] = threadIdx.x ^ 31;
  if (!kBroken) __syncwarp();
  out[threadIdx.x] = 127 - s[threadIdx.x ^ 31];
}

// Reads `in` [128] at 128.
extern "C" __global__ void __launch_bounds__(128) reads_beyond(int* out /* [128] */, const int* in) {
  out[threadIdx.x] = 127 - threadIdx.x + (in[threadIdx.x + kBroken] >> 31);
}

// Writes before `out`.
extern "C" __global__ void __launch_bounds__(128) writes_before(int* out /* [128] */, const int* in) {
  out[threadIdx.x] = 127 - threadIdx.x;
  if (kBroken && threadIdx.x == 0) out[-1] = 1;
}

// Dynamic shared memory of 512 bytes, one element too far.
extern "C" __global__ void __launch_bounds__(128) shared_beyond(int* out /* [128] */, const int* in) {
  extern __shared__ int s[];
  s[threadIdx.x + kBroken] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = kBroken ? 0 : s[127 - threadIdx.x];
}

// A variable in shared memory, one element too far, by a pointer.
extern "C" __global__ void __launch_bounds__(128) variable_beyond(int* out /* [128] */, const int* in) {
  __shared__ int s[128];
  int* to = s + threadIdx.x;
  to[kBroken] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = kBroken ? 0 : s[127 - threadIdx.x];
}

// An index beyond the bounds that the type tells.
extern "C" __global__ void __launch_bounds__(128) beyond_bounds(int* out /* [128] */, const int* in) {
  __shared__ int s[128];
  s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = s[127 - threadIdx.x + 128 * (kBroken && threadIdx.x == 3)];
}

// A vector that is not aligned to its size.
extern "C" __global__ void __launch_bounds__(128) misaligned(int* out /* [128] */, const int* in) {
  int4 x = *(const int4*)(in + (threadIdx.x & ~3) + (kBroken && threadIdx.x == 5));
  int part[4] = {x.x, x.y, x.z, x.w};
  out[threadIdx.x] = 127 - part[threadIdx.x % 4];
}

// Shared memory that nobody wrote.
extern "C" __global__ void __launch_bounds__(128) not_written(int* out /* [128] */, const int* in) {
  __shared__ int s[129];
  s[threadIdx.x + 1] = 0;
  if (!kBroken && threadIdx.x == 0) s[0] = 0;
  __syncthreads();
  out[threadIdx.x] = 127 - threadIdx.x + s[threadIdx.x];
}

// One lane is at another barrier than its warp.
extern "C" __global__ void __launch_bounds__(128) different_barriers(int* out /* [128] */, const int* in) {
  if (kBroken && threadIdx.x == 5)
    __syncwarp();
  else
    __syncthreads();
  out[threadIdx.x] = 127 - threadIdx.x;
}

// A lane is missing in a shuffle that names it.
extern "C" __global__ void __launch_bounds__(128) missing_lane(int* out /* [128] */, const int* in) {
  int x = 127 - threadIdx.x;
  if (!(kBroken && threadIdx.x == 5)) x = __shfl_xor_sync(~0u, __shfl_xor_sync(~0u, x, 1), 1);
  __syncthreads();
  out[threadIdx.x] = x;
}

// Waits for a flag that nobody sets.
extern "C" __global__ void __launch_bounds__(128) waits_for_ever(int* out /* [128] */, const int* in) {
  __shared__ int flag;
  if (threadIdx.x == 0) flag = 0;
  __syncthreads();
  if (threadIdx.x == 1 && !kBroken) flag = 1;
  while (*(volatile int*)&flag == 0) {
  }
  out[threadIdx.x] = 127 - threadIdx.x;
}

// cp.async, read without a wait.
extern "C" __global__ void __launch_bounds__(128) no_copy_wait(int* out /* [128] */, const int* in) {
  __shared__ int s[128];
  s[threadIdx.x] = -1;
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address(s + threadIdx.x)), "l"(in + threadIdx.x), "n"(4)
               : "memory");
  if (!kBroken) asm volatile("cp.async.wait_all;" ::: "memory");
#endif
  out[threadIdx.x] = 127 - s[threadIdx.x];
}

#if __CUDA_ARCH__ >= 900
// Threads that spin until another one has waited for a bulk copy, and has said so; or not.
extern "C" __global__ void __launch_bounds__(128) spins_beside_a_copy(int* out /* [128] */, const int* in) {
  __shared__ alignas(128) int s[128];
  __shared__ unsigned long long barrier;
  __shared__ int flag;
  if (threadIdx.x == 0) init(&barrier), flag = 0;
  __syncthreads();
  if (threadIdx.x == 0) {
    expect(&barrier, sizeof s);
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(address(s)),
        "l"(in), "r"((unsigned)sizeof s), "r"(address(&barrier))
        : "memory");
    wait(&barrier, 0);
    if (!kBroken) *(volatile int*)&flag = 1;
  } else {
    while (*(volatile int*)&flag == 0) {
    }
    wait(&barrier, 0);
  }
  out[threadIdx.x] = 127 - s[threadIdx.x];
}

// A bulk copy of `in`, read without a wait.
extern "C" __global__ void __launch_bounds__(128) no_bulk_wait(int* out /* [128] */, const int* in) {
  __shared__ alignas(128) int s[128];
  __shared__ unsigned long long barrier;
  if (threadIdx.x == 0) {
    init(&barrier);
    expect(&barrier, sizeof s);
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(address(s)),
        "l"(in), "r"((unsigned)sizeof s), "r"(address(&barrier))
        : "memory");
  }
  __syncthreads();
  if (!kBroken) wait(&barrier, 0);
  out[threadIdx.x] = 127 - s[threadIdx.x];
  // The copy has come before the block ends.
  __syncthreads();
  wait(&barrier, 0);
}

// A bulk copy of more bytes than the barrier expects: the phase never ends.
extern "C" __global__ void __launch_bounds__(128) wrong_bytes(int* out /* [128] */, const int* in) {
  __shared__ alignas(128) int s[128];
  __shared__ unsigned long long barrier;
  if (threadIdx.x == 0) {
    init(&barrier);
    expect(&barrier, sizeof s - (kBroken ? 16 : 0));
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(address(s)),
        "l"(in), "r"((unsigned)sizeof s), "r"(address(&barrier))
        : "memory");
  }
  __syncthreads();
  wait(&barrier, 0);
  out[threadIdx.x] = 127 - s[threadIdx.x];
}

// Clusters of 2: a block ends while the other still writes to its shared memory.
extern "C" __global__ void __launch_bounds__(128) block_ends_early(int* out /* [128] */, const int* in) {
  __shared__ alignas(128) int s[128];
  __shared__ unsigned long long barrier;
  unsigned rank, to, to_barrier;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) {
    init(&barrier);
    expect(&barrier, sizeof s);
  }
  __syncthreads();
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  if (!(kBroken && rank == 1)) wait(&barrier, 1);
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(address(s + threadIdx.x)), "r"(rank ^ 1));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to_barrier) : "r"(address(&barrier)), "r"(rank ^ 1));
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
               "r"(127 - threadIdx.x), "r"(to_barrier)
               : "memory");
  // What comes from the other block is there; the broken one does not wait for it.
  if (!(kBroken && rank == 1)) wait(&barrier, 0);
  if (rank == 0) out[threadIdx.x] = s[threadIdx.x];
}
#endif
