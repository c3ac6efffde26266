// What mLSTM's backward kernels by chains (sm_90a) share: what is known of a chunk of 64 tokens before any state is.
#pragma once
#include "hopper_chains.cuh"

// A chunk's record in memory: P' and dS as slices, rounded; then, 64 numbers each, what tokens put into the state, what rows read
// of it, l's part, and what is left of the state (one number); then u = q.dq - k.dk and k.dk, at first of the chunk's pairs alone.
constexpr int kPairsAt = 0, kSlopesAt = kSlice, kVectorsAt = 2 * kSlice, kVectors = 12 * kRows + 16;
constexpr int kRatesAt = kVectorsAt + 16 * kRows, kRecord = kRatesAt + 8 * kRows;
enum { kInto = 0, kRead = kRows, kOfL = 2 * kRows, kLeft = 3 * kRows };

__device__ __forceinline__ char* record_of(const Call& x, i64 chain, i64 chunk) {
  return x.records + (chain * x.chunks + chunk) * kRecord;
}
// The warps that each have a part of q.dq and k.dk: heads of v above 256 take both warpgroups of a block.
__device__ __forceinline__ int parts_of(const Call& x) {
  return 8 * (int)(x.dv > 256 ? (x.dk + 63) / 64 : (x.dk + 127) / 128);
}
// Of two numbers that lanes d apart have, the sum of the first for the lower lane, of the second for the other.
__device__ __forceinline__ float2 fold(float2 first, float2 second, int d) {
  const bool high = threadIdx.x & d;
  const float2 mine = high ? second : first, other = high ? first : second;
  return {mine.x + __shfl_xor_sync(~0u, other.x, d), mine.y + __shfl_xor_sync(~0u, other.y, d)};
}
