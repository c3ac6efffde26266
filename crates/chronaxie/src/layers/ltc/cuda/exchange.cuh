// How blocks tell each other what their targets have: kWidth values a neuron and group of rows, to every block of a
// cluster, or to all threads of the one block, into the other of two buffers each time.
//
// In a cluster the values are stores that complete on a barrier of the block they go to: one trip, no barrier of the
// whole cluster. A block that has all values of round n knows that every block has read those of round n - 1, which
// is where those of round n + 1 will go. For that, every warp that waits must be one without which no later round can be
// complete: it gives values of its own, or has the thread that sets barriers up again. The others stay away (`idle`):
// one that was kept from running for two rounds would wait for a phase that has passed.
//
// The targets of a warp lie side by side in a tile (schedule.rs), and the lanes that serve one block store next to each
// other: such stores travel together. A round, with nothing else in it, takes (H200, clocks) 116 to 170 in one block,
// and 460 to 620 in a cluster of 2 to 8 with 64 to 256 targets; 530 to 1060 where places are scattered.
// Tried: vectors of the values of four targets, gathered by shuffles, 30 slower; plain stores and an arrival of each
// warp at the barriers of all blocks 1100 to 1900; barrier.cluster 800 to 1300; plain stores of values whose last bit tells the
// round, which readers poll for, each its own or a warp all of them: 5 to 40 % longer (H100, 128 values, clusters of 2 to 4).
#pragma once
#include "held.cuh"
#if __CUDA_ARCH__ >= 900
#include "cluster.cuh"
#endif

// In one block each row of four is stored by the lane that has it; and where it can, warps do not wait for each other at once, but
// before they read: each arrives at a barrier of the group, and has gates of the other one meanwhile.
constexpr bool kOwnRows = !kCluster && !kPairs && kRows == 4;
#if __CUDA_ARCH__ >= 900
constexpr bool kApart = kOwnRows;
#endif

template <int kWidth>
struct Exchange {
  char* tiles;     // [groups, 2, hidden, kWidth]; behind them, in a cluster, a barrier for each tile
  unsigned bytes;  // of a tile
  unsigned mine;   // where in a tile this lane's target lies, or ~0
  int sub, lanes;  // this lane among those of its target
  bool sends, few;  // whether it stores its target's values, to block `sub`; fewer lanes a target than blocks
#if __CUDA_ARCH__ >= 900
  unsigned long long* barriers;
#endif

  __device__ __forceinline__ Exchange(char* tiles, int hidden, int groups, unsigned place, int sub, int lanes)
      : tiles(tiles), bytes(hidden * kWidth * 4), mine(place == ~0u ? ~0u : place * kWidth * 4), sub(sub), lanes(lanes) {
    few = false;
    sends = opaque(place != ~0u && sub < (kOwnRows ? kWidth : 1));
#if __CUDA_ARCH__ >= 900
    barriers = (unsigned long long*)(tiles + groups * 2 * bytes);
    if (kApart) {
      if (threadIdx.x == 0)
        for (int q = 0; q < groups; q++) barrier_init(barriers + q, blockDim.x / 32);
      __syncthreads();
    }
    if (!kCluster) return;
    const unsigned blocks = cluster_blocks();
    if (threadIdx.x == 0) {
      for (int i = 0; i < 2 * groups; i++) barrier_init(barriers + i, 1);
      barrier_init_fence();
      for (int i = 0; i < 2 * groups; i++) barrier_expect(barriers + i, bytes);
    }
    __syncthreads();
    cluster_sync();
    sends = opaque(place != ~0u && sub < (int)blocks);
    few = uniform(lanes < (int)blocks);
#endif
  }

  // Whether this warp has no part in any round.
  __device__ __forceinline__ bool idle() const { return kCluster && threadIdx.x >= 32 && !__any_sync(~0u, mine != ~0u); }

  // The values of round n of group q.
  __device__ __forceinline__ const char* tile(int q, unsigned n) const { return tiles + (q * 2 + (n & 1)) * bytes; }

  // All lanes of a target have its values of round n of group q, and give them.
  __device__ __forceinline__ void give(int q, unsigned n, const float (&x)[kWidth]) const {
    const unsigned i = q * 2 + (n & 1);
#if __CUDA_ARCH__ >= 900
    if (kCluster) {
      const unsigned to = shared_address(tiles) + i * bytes + mine, barrier = shared_address(barriers) + i * 8;
      if (sends) store_async(in_block(to, sub), x, in_block(barrier, sub));
      // Few lanes in a large cluster: the other blocks.
      if (few && mine != ~0u)
        for (unsigned block = sub + lanes; block < cluster_blocks(); block += lanes)
          store_async(in_block(to, block), x, in_block(barrier, block));
      return;
    }
#endif
    if (sends) {
#pragma unroll
      for (int r = 0; r < kWidth; r++) ((float*)(tiles + i * bytes + mine))[r] = x[r];
    }
    arrive(q);
  }

  // The same of one row of a target, which this lane has: lane n of a target has row n. Of one block.
  __device__ __forceinline__ void give_own(int q, unsigned n, float x) const {
    if (sends) ((float*)(tiles + (q * 2 + (n & 1)) * bytes + mine))[sub] = x;
    arrive(q);
  }

  // This warp's values of a group are there.
  __device__ __forceinline__ void arrive(int q) const {
#if __CUDA_ARCH__ >= 900
    if (!kApart) return;
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(barriers + q);
#endif
  }

  // The same of a plane of pairs (gate_sums.cuh) that starts `plane` bytes into a tile: this lane is the first-th of `lanes`
  // that have it.
  template <int kCount>
  __device__ __forceinline__ void give_plane(int q, unsigned n, unsigned plane, int first, int lanes,
                                             const float (&x)[kCount]) const {
    const unsigned i = q * 2 + (n & 1), at = i * bytes + plane;
#if __CUDA_ARCH__ >= 900
    if (kCluster) {
      const unsigned blocks = cluster_blocks(), to = shared_address(tiles) + at, barrier = shared_address(barriers) + i * 8;
      if (first < (int)blocks) store_async(in_block(to, first), x, in_block(barrier, first));
      for (unsigned block = first + lanes; block < blocks; block += lanes)
        store_async(in_block(to, block), x, in_block(barrier, block));
      return;
    }
#endif
    if (first == 0) {
#pragma unroll
      for (int r = 0; r < kCount; r++) ((float*)(tiles + at))[r] = x[r];
    }
  }

  // Waits until the values of round n of group q are all here.
  __device__ __forceinline__ void take(int q, unsigned n) const {
#if __CUDA_ARCH__ >= 900
    if (kCluster) {
      unsigned long long* barrier = barriers + (q * 2 + (n & 1));
      barrier_wait(barrier, (n >> 1) & 1);
      __syncwarp();
      if (threadIdx.x == 0) barrier_expect(barrier, bytes);
      return;
    }
#endif
#if __CUDA_ARCH__ >= 900
    if (kApart) return barrier_wait(barriers + q, n & 1);
#endif
    __syncthreads();
  }

  // No block may end while another still writes to its shared memory.
  __device__ __forceinline__ void end() const {
#if __CUDA_ARCH__ >= 900
    if (kCluster) cluster_sync();
#endif
  }
};
