// Affine maps h -> a h + x, and their scan over a warp and a block.
#pragma once

struct Affine {
  float a, x;
};

// The map that does nothing: what positions outside a sequence hold.
__device__ __forceinline__ Affine identity() { return {1.f, 0.f}; }

// First `first`, then `second`.
__device__ __forceinline__ Affine then(Affine first, Affine second) {
  return {first.a * second.a, fmaf(second.a, first.x, second.x)};
}

__device__ __forceinline__ float apply(Affine f, float h) { return fmaf(f.a, h, f.x); }

__device__ __forceinline__ Affine shuffle_up(Affine f, int lanes) {
  return {__shfl_up_sync(~0u, f.a, lanes), __shfl_up_sync(~0u, f.x, lanes)};
}

__device__ __forceinline__ Affine shuffle(Affine f, int lane) {
  return {__shfl_sync(~0u, f.a, lane), __shfl_sync(~0u, f.x, lane)};
}

// The composition of lanes 0 to this one, in that order (Kogge and Stone: five rounds).
__device__ __forceinline__ Affine warp_inclusive(Affine f, int lane) {
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    Affine before = shuffle_up(f, d);
    if (lane >= d) f = then(before, f);
  }
  return f;
}

// The states in which each of a thread's runs starts, and the block's state behind the tile.
//
// A tile is a sequence of runs: warp w owns runs w kRuns 32 + v 32 + lane for v < kRuns, and run[v] is the map of a
// whole run. `state` is the block's state before the tile (equal in all threads) and after it on return. `slots` is
// one of two arrays in shared memory, used in turn, so that one barrier a tile is enough. Behind that barrier every
// thread's earlier reads of shared memory are over: on_barrier() may refill what the tile was read from.
template <int kWarps, int kRuns, typename OnBarrier>
__device__ __forceinline__ void block_scan(const Affine (&run)[kRuns], float (&start)[kRuns], float& state,
                                           Affine* slots, OnBarrier on_barrier) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Affine before[kRuns], whole[kRuns];
#pragma unroll
  for (int v = 0; v < kRuns; ++v) {
    Affine inclusive = warp_inclusive(run[v], lane);
    whole[v] = shuffle(inclusive, 31);
    before[v] = shuffle_up(inclusive, 1);
    if (lane == 0) before[v] = identity();
  }
  Affine total = whole[0];
#pragma unroll
  for (int v = 1; v < kRuns; ++v) total = then(total, whole[v]);
  if (lane == 0) slots[warp] = total;
  __syncthreads();
  on_barrier();
  float mine = state;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w == warp) mine = state;
    state = apply(slots[w], state);
  }
#pragma unroll
  for (int v = 0; v < kRuns; ++v) {
    start[v] = apply(before[v], mine);
    mine = apply(whole[v], mine);
  }
}
