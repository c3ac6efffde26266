// Barriers in shared memory and bulk copies that complete on them (compute capability 9.0 and later).
#pragma once

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// Sets a barrier up for `arrivals` arrivals a phase. Follow the last one by barrier_init_fence and __syncthreads.
__device__ __forceinline__ void barrier_init(unsigned long long* barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::: "memory");
}

// Arrives, and lets the phase also wait for `bytes` from bulk copies.
__device__ __forceinline__ void barrier_expect_at(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_expect(unsigned long long* barrier, unsigned bytes) {
  barrier_expect_at(shared_address(barrier), bytes);
}

// Arrives.
__device__ __forceinline__ void barrier_arrive_at(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_arrive(unsigned long long* barrier) { barrier_arrive_at(shared_address(barrier)); }

// Waits until the phase of this parity is complete. Phases are numbered from 0.
__device__ __forceinline__ void barrier_wait_at(unsigned barrier, unsigned parity) {
  unsigned done;
  do {
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (!done);
}
__device__ __forceinline__ void barrier_wait(unsigned long long* barrier, unsigned parity) {
  barrier_wait_at(shared_address(barrier), parity);
}

// A box of a tensor by its map (of TensorMap in the runtime), to a multiple of 1024 bytes.
__device__ __forceinline__ void box_copy(unsigned to, const void* map, int column, int row, int z, int w, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(z), "r"(w), "r"(barrier)
      : "memory");
}
// `bytes` (a multiple of 16) from global to shared memory; both addresses are multiples of 16.
__device__ __forceinline__ void bulk_copy_at(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
               "r"(bytes), "r"(barrier)
               : "memory");
}

// `bytes` (a multiple of 16) from shared to global memory; both addresses are multiples of 16. This thread can wait until all that it
// stored so has been read, or is written.
__device__ __forceinline__ void bulk_store(void* to, unsigned from, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ __forceinline__ void bulk_stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void bulk_stores_written() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Both as far as L2 alone, ahead of a copy.
__device__ __forceinline__ void box_prefetch(const void* map, int column, int row, int z, int w) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(map), "r"(column), "r"(row), "r"(z), "r"(w)
               : "memory");
}
__device__ __forceinline__ void bulk_prefetch(const void* from, unsigned bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

// The same to each block of the cluster whose bit is set in `blocks`: to the same place, and its bytes count at the same barrier.
__device__ __forceinline__ void box_copy_to(unsigned to, const void* map, int column, int row, int z, int w, unsigned barrier,
                                            unsigned blocks) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3, %4, "
      "%5}], [%6], %7;" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(z), "r"(w), "r"(barrier), "h"((unsigned short)blocks)
      : "memory");
}
__device__ __forceinline__ void bulk_copy_to(unsigned to, const void* from, unsigned bytes, unsigned barrier, unsigned blocks) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "h"((unsigned short)blocks)
      : "memory");
}

// Arrives at a barrier of another block of the cluster, by its address there; and waits for such arrivals at one of this block.
__device__ __forceinline__ void barrier_arrive_in(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_wait_cluster(unsigned long long* barrier, unsigned parity) {
  unsigned done;
  do {
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  } while (!done);
}

// The cache policy under which lines stay in L2 longer than others.
__device__ __forceinline__ unsigned long long evict_last() {
  unsigned long long policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Copies `bytes` (a multiple of 16) from global to shared memory under a cache policy; both addresses are multiples of
// 16.
__device__ __forceinline__ void bulk_copy(void* to, const void* from, unsigned bytes, unsigned long long* barrier,
                                          unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}
