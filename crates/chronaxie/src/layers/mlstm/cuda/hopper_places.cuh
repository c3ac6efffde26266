// Where the kernel that goes through chains backward (hopper_walks.cu) has what in shared memory, and how its warpgroups meet.
#pragma once
#include "hopper_walks.cuh"

constexpr bool kBack = kRole > 0, kRated = kRole < 2;
// Where a block has a whole chain its third warpgroup makes what chain_pairs does elsewhere, a chunk ahead.
static_assert(!kPaired || (kRole == 0 && kColumns <= 256), "a block of the walk of dq has the whole chain");
constexpr bool kHalved = kColumns == 512;        // two blocks have the same rows, and half of the columns each
constexpr int kWide = kHalved ? 256 : kColumns;  // columns of a block
constexpr int kWideSlices = kWide / 64, kOwn = 2;
constexpr int kRing = kPaired || (!kRated && !kHalved) ? 4 : 3;
// A place for what reads the state has columns, rows that they are multiplied with for the gates, and pairs; one for what goes into it
// columns and rows. Where places are even, each is for one of both.
constexpr int kReads = (kWideSlices + (kRated ? kOwn : 0) + !kPaired) * kSlice, kGoesIn = (kWideSlices + kOwn) * kSlice;
constexpr int kHold = kReads > kGoesIn ? kReads : kGoesIn, kOwnAt = (kWideSlices + !kPaired) * kSlice;
constexpr int kPlaces = kRing % 2 ? kRing * kHold : kRing / 2 * (kReads + kGoesIn);
// Vectors come with steps whose places are free before they are.
constexpr int kVectorsOf = kRing - 1, kExchanged = 8192;
// Gradients of two chunks on their way out, each warpgroup's: tokens that this block ends by 64 columns.
constexpr bool kTiled = !kPaired;
constexpr int kGoesOut = kHalved ? kSlice / 2 : kSlice, kGoesOutAt = kPlaces, kExchange = kGoesOutAt + (kTiled ? 4 * kGoesOut : 0);
constexpr int kVectorsIn = kExchange + (kHalved ? 4 * kExchanged : 0);
// Of two chunks dS, and P' of one.
constexpr int kMadeAt = kVectorsIn + kVectorsOf * kVectors, kMakingAt = (kMadeAt + 1023) / 1024 * 1024;
constexpr int kBarriersAt = kPaired ? kMakingAt + 3 * kSlice + (int)sizeof(Making) : kMadeAt;
__device__ __forceinline__ int place_of(int p) {
  return kRing % 2 ? p % kRing * kHold : p % kRing / 2 * (kReads + kGoesIn) + p % 2 * kReads;
}
constexpr int kParts = kRated ? 2 : 1;  // of the state as it is read
constexpr int kAtOnce = 3 - kParts;     // times 16 columns
static_assert(kColumns == 128 || kColumns == 256 || kColumns == 512, "blocks of 128 or 256 columns");

// Shared memory by its own addresses, which are half as wide.
__device__ __forceinline__ float2 shared2(unsigned at) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(at));
  return x;
}
__device__ __forceinline__ float4 shared4(unsigned at) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(at));
  return x;
}
