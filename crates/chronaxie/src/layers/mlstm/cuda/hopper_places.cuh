// Where the kernel that goes through chains (hopper_walks.cu) has what in shared memory, and how its warpgroups meet.
#pragma once
#include "hopper_walks.cuh"

constexpr bool kForward = kRole == 3, kBack = kRole == 1 || kRole == 2, kRated = kRole < 2;
constexpr bool kHalved = kColumns == 512;        // two blocks have the same rows, and half of the columns each
constexpr int kWide = kHalved ? 256 : kColumns;  // columns of a block
constexpr int kWideSlices = kWide / 64, kOwn = 2;
constexpr int kRing = !kRated && !kHalved ? 4 : 3;
// A place for what reads the state has columns, rows that they are multiplied with for the gates, and pairs; one for what goes into it
// columns and rows. Where places are even, each is for one of both.
constexpr int kReads = (kWideSlices + (kRated ? kOwn : 0) + 1) * kSlice, kGoesIn = (kWideSlices + kOwn) * kSlice;
constexpr int kHold = kReads > kGoesIn ? kReads : kGoesIn, kOwnAt = (kWideSlices + 1) * kSlice;
constexpr int kPlaces = kRing % 2 ? kRing * kHold : kRing / 2 * (kReads + kGoesIn);
// Vectors come with steps whose places are free before they are.
constexpr int kVectorsOf = kRing - 1, kExchanged = 8192;
// Gradients of two chunks on their way out, each warpgroup's: tokens that this block ends by 64 columns.
constexpr int kGoesOut = kHalved ? kSlice / 2 : kSlice, kGoesOutAt = kPlaces, kExchange = kGoesOutAt + 4 * kGoesOut;
constexpr int kVectorsIn = kExchange + (kHalved ? 4 * kExchanged : 0);
// What warps have of q.dq or k.dk, of two chunks.
constexpr int kRatesIn = kVectorsIn + kVectorsOf * kVectors, kRatesOf = 32 * kRows;
constexpr int kBarriersAt = kRatesIn + (kRated ? 2 * kRatesOf : 0);
static_assert(!kForward || !kHalved, "a block knows all of q");
__device__ __forceinline__ int place_of(int p) {
  return kRing % 2 ? p % kRing * kHold : p % kRing / 2 * (kReads + kGoesIn) + p % 2 * kReads;
}
constexpr int kParts = kRated ? 2 : 1;  // of the state as it is read
static_assert(kColumns == 128 || kColumns == 256 || kColumns == 512, "blocks of 128 or 256 columns");
