// Products of matrices of f32 on Hopper's tensor cores (sm_90a) at the accuracy of f32: every number is the sum of two of f16
// under a power of two that a block of numbers shares, and three products are made for one.
//
// A matrix lies in blocks of 64 x 64, 16 KB each: two tiles of f16, as wgmma reads them (wgmma.cuh), the upper halves of the
// numbers and the lower ones, and 2^-k in a table beside. Rows of a matrix can also come from memory as they are, into
// registers, where 64 terms of a row get their power of two.
//
// Tensor cores cut their sums off: a sum has no more than 64 terms there, low products first, and goes into one of f32 with
// both powers of two, by one fma.
//
// A number is left with 22 bits or more, where it is more than 2^-17 of the largest of its block or row, and within 2^-39 of
// that one else: f32's accuracy wherever no number is more than 10^6 times the others that share its power. An infinite or NaN
// number makes NaN of its row or column. Products below 1e-34 may be lost, and 2^156 of both largest numbers is infinite.
#pragma once
#include "barriers.cuh"
#include "mma.cuh"
#include "wgmma.cuh"

typedef long long i64;

constexpr int kSide = 64;               // of a block of numbers
constexpr int kTileBytes = 2 * kSide * kSide, kBlockBytes = 2 * kTileBytes;
constexpr int kPair = 2 * kBlockBytes;  // two blocks beside or below each other: both upper tiles, then both lower ones

// A matrix in blocks: 16 KB each, row after row of blocks, batch row after batch row; a scale each.
struct Packed {
  const char* base;
  const float* scale;
  i64 down, across;  // blocks
};
__device__ __forceinline__ i64 block_of(const Packed& p, int batch, int row, int column) {
  // What lies behind the last block is never stored, and any numbers do.
  return (batch * p.down + min(row, static_cast<int>(p.down) - 1)) * p.across + min(column, static_cast<int>(p.across) - 1);
}

// 2^k with which the largest of some numbers, of these bits, comes into 2^14 .. 2^15, and 2^-k.
__device__ __forceinline__ float scale_up(unsigned largest) {
  return __uint_as_float((268u - max(largest >> 23, 20u)) << 23);
}
__device__ __forceinline__ float scale_down(unsigned largest) { return __uint_as_float((max(largest >> 23, 20u) - 14u) << 23); }
__device__ __forceinline__ unsigned magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// Two blocks of numbers to a place of the ring.
__device__ __forceinline__ void copy_blocks(unsigned to, const char* x, const char* y, unsigned barrier) {
  bulk_copy_at(to, x, kTileBytes, barrier);
  bulk_copy_at(to + kTileBytes, y, kTileBytes, barrier);
  bulk_copy_at(to + 2 * kTileBytes, x + kTileBytes, kTileBytes, barrier);
  bulk_copy_at(to + 3 * kTileBytes, y + kTileBytes, kTileBytes, barrier);
}
__device__ __forceinline__ void copy_pair(unsigned to, const Packed& p, i64 first, i64 second, unsigned barrier) {
  copy_blocks(to, p.base + first * kBlockBytes, p.base + second * kBlockBytes, barrier);
}
// Sixteen terms `nth` of b: a pair, its upper tiles or its lower ones.
template <bool kByTerms>
__device__ __forceinline__ u64 columns_of(unsigned pair, int nth) {
  return kByTerms ? by_terms(pair + 2048 * nth, kTileBytes) : by_rows(pair + 32 * nth);
}

__device__ __forceinline__ void arrive_at(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Where a ring is.
struct Turn {
  int place = 0;
  unsigned round = 0;
  __device__ __forceinline__ void advance(int ring) {
    if (++place == ring) place = 0, ++round;
  }
};

// acc += some under both scales; the columns of two blocks.
__device__ __forceinline__ void take_in(float (&acc)[16][4], const float (&some)[16][4], const float (&scale)[2]) {
#pragma unroll
  for (int n = 0; n < 16; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) acc[n][e] = fmaf(some[n][e], scale[n / 8], acc[n][e]);
}

__device__ __forceinline__ void store_two(float* to, float x, float y, bool vector, int left) {
  if (vector && left > 1) {
    *reinterpret_cast<float2*>(to) = {x, y};
  } else {
    if (left > 0) to[0] = x;
    if (left > 1) to[1] = y;
  }
}

// Where the n-th of 16 columns of a product lies among those of its operand, so that a thread's four of them are neighbours.
__device__ __forceinline__ int shuffled(int n) { return (n & ~15) | (n & 2) << 2 | (n & 12) >> 1 | (n & 1); }
enum { kInOrder = 0, kRowsShuffled = 1, kColumnsShuffled = 2 };

// Four rows of four numbers of each of 256 threads, a block of 64 x 64: x[i] is row `row` + 16 i, from `column` on. Gives the
// bits of the largest number; `most` holds one a warp.
__device__ __forceinline__ unsigned pack_block(const float (&x)[4][4], char* tile, int row, int column, unsigned* most,
                                               int order = kInOrder) {
  unsigned largest = 0;
#pragma unroll
  for (int e = 0; e < 16; ++e) {
    // Numbers that are none must not take the others' bits.
    const unsigned m = magnitude(x[e / 4][e % 4]);
    largest = max(largest, m < 0x7f800000u ? m : 0u);
  }
  largest = __reduce_max_sync(~0u, largest);
  if (threadIdx.x % 32 == 0) most[threadIdx.x / 32] = largest;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < 8; ++w) largest = max(largest, most[w]);
  const float up = scale_up(largest);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint2 high, low;
    split(high.x, low.x, x[i][0] * up, x[i][1] * up);
    split(high.y, low.y, x[i][2] * up, x[i][3] * up);
    if (order == kColumnsShuffled) {
      const int c = shuffled(column);
      const unsigned place = swizzled_at(row + 16 * i, c), next = swizzled_at(row + 16 * i, c + 8);
      *reinterpret_cast<unsigned*>(tile + place) = high.x;
      *reinterpret_cast<unsigned*>(tile + next) = high.y;
      *reinterpret_cast<unsigned*>(tile + kTileBytes + place) = low.x;
      *reinterpret_cast<unsigned*>(tile + kTileBytes + next) = low.y;
      continue;
    }
    const unsigned place = swizzled_at(order == kRowsShuffled ? shuffled(row + 16 * i) : row + 16 * i, column);
    *reinterpret_cast<uint2*>(tile + place) = high;
    *reinterpret_cast<uint2*>(tile + kTileBytes + place) = low;
  }
  return largest;
}

// d = a b over 64 terms: a is the upper tile of 64 rows, whose lower one is two tiles behind, and b a pair.
template <bool kAByTerms, bool kBByTerms>
__device__ __forceinline__ void multiply_tiles(float (&d)[16][4], unsigned a, unsigned b) {
  auto rows = [](unsigned at, int i) { return kAByTerms ? by_terms(at + 2048 * i, kTileBytes) : by_rows(at + 32 * i); };
  wgmma_first<false, kAByTerms, kBByTerms>(d, rows(a + 2 * kTileBytes, 0), columns_of<kBByTerms>(b, 0));
#pragma unroll
  for (int i = 1; i < 4; ++i) wgmma<false, kAByTerms, kBByTerms>(d, rows(a + 2 * kTileBytes, i), columns_of<kBByTerms>(b, i));
#pragma unroll
  for (int i = 0; i < 4; ++i) wgmma<false, kAByTerms, kBByTerms>(d, rows(a, i), columns_of<kBByTerms>(b + 2 * kTileBytes, i));
#pragma unroll
  for (int i = 0; i < 4; ++i) wgmma<false, kAByTerms, kBByTerms>(d, rows(a, i), columns_of<kBByTerms>(b, i));
}
// The same of the upper tiles alone.
template <bool kAByTerms, bool kBByTerms>
__device__ __forceinline__ void multiply_highs(float (&d)[16][4], unsigned a, unsigned b) {
  auto rows = [](unsigned at, int i) { return kAByTerms ? by_terms(at + 2048 * i, kTileBytes) : by_rows(at + 32 * i); };
  wgmma_first<false, kAByTerms, kBByTerms>(d, rows(a, 0), columns_of<kBByTerms>(b, 0));
#pragma unroll
  for (int i = 1; i < 4; ++i) wgmma<false, kAByTerms, kBByTerms>(d, rows(a, i), columns_of<kBByTerms>(b, i));
}
// multiply_tiles with a in registers, of the 16 rows of a warp.
template <bool kBByTerms>
__device__ __forceinline__ void multiply_rows(float (&d)[16][4], const unsigned (&high)[4][4], const unsigned (&low)[4][4],
                                              unsigned b) {
  wgmma_of_first<false, kBByTerms>(d, low[0], columns_of<kBByTerms>(b, 0));
#pragma unroll
  for (int e = 1; e < 4; ++e) wgmma_of<false, kBByTerms>(d, low[e], columns_of<kBByTerms>(b, e));
#pragma unroll
  for (int e = 0; e < 4; ++e) wgmma_of<false, kBByTerms>(d, high[e], columns_of<kBByTerms>(b + 2 * kTileBytes, e));
#pragma unroll
  for (int e = 0; e < 4; ++e) wgmma_of<false, kBByTerms>(d, high[e], columns_of<kBByTerms>(b, e));
}
// Numbers of two rows under their powers: x[i][half][row][odd] is of term 16 i + 8 half + 2 (lane % 4) + odd.
__device__ __forceinline__ void split_rows(unsigned (&high)[4][4], unsigned (&low)[4][4], const float (&x)[4][2][2][2],
                                           const float (&up)[2]) {
#pragma unroll
  for (int e = 0; e < 4; ++e)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int row = 0; row < 2; ++row)
        split(high[e][2 * half + row], low[e][2 * half + row], x[e][half][row][0] * up[row], x[e][half][row][1] * up[row]);
}
