// What the kernel that goes through whole chains is made of (sm_90a): slices of 64 tokens by 64 columns that come by cp.async,
// barriers between its warpgroups, and what its products need.
#pragma once
#include "tensor.cuh"
#include "wgmma.cuh"
#include "barriers.cuh"

constexpr int kRows = 64;               // tokens of a chunk
constexpr int kLine = 128;              // bytes of a row of a slice, 64 columns
constexpr int kSlice = kRows * kLine;
constexpr int kSlices = kColumns / 64;  // of the queries, of a warpgroup
constexpr int kAhead = 2;               // chunks that are copied ahead
constexpr int kTile8 = 8 * kLine;       // bytes of a tile of eight rows

__device__ __forceinline__ void warp_arrives(u64* barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}
// Of the third warpgroup.
__device__ __forceinline__ void helpers_meet() { asm volatile("bar.sync 1, 128;" ::: "memory"); }
// An 8 x 8 matrix of 16-bit numbers, a row's pairs in four lanes, turned.
__device__ __forceinline__ unsigned turned(unsigned x) {
  unsigned d;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(x));
  return d;
}
// Until all products are made but the group begun last.
__device__ __forceinline__ void products_wait_but_last() { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }
// Sums that a wait for others made ready too: no use of them moves before it.
__device__ __forceinline__ void made(float (&d)[1][4]) {
#pragma unroll
  for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(d[0][e]));
}
// Two numbers as sums of three of 16 bits each: f(part, their parts as a pair).
template <typename F>
__device__ __forceinline__ void split(float x, float y, F f) {
#pragma unroll
  for (int part = 0; part < 3; ++part) {
    const unsigned pair = pack<kBf16>(x, y);
    const float2 of = unpack<kBf16>(pair);
    f(part, pair);
    x -= of.x;
    y -= of.y;
  }
}
// Operands in registers stay there until here.
template <int N>
__device__ __forceinline__ void keep(unsigned (&x)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+r"(x[n][e]));
}

// 64 rows of 64 columns by 128 threads; what is not there becomes zeros.
__device__ __forceinline__ void fetch_slice(char* to, const Source& s) {
  const int thread = threadIdx.x % 128, row = thread / 8, piece = thread % 8;
  if (s.plain) {
    const unsigned base = shared_at(to) + swizzled(row, piece);
    const char* from = s.data + row * s.stride + 16 * piece;
    const i64 down = 16 * s.stride;
    const bool inside = 8 * piece < s.columns;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool there = inside && row + 16 * i < s.rows;
      copy_ahead(base + 16 * i * kLine, there ? from : s.data, there);
      from += down;
    }
    return;
  }
#pragma unroll 1
  for (int at = thread; at < kRows * 64; at += 128) {
    const int r = at / 64, c = at % 64;
    const bool there = r < s.rows && c < s.columns;
    *reinterpret_cast<unsigned short*>(to + swizzled_at(r, c)) =
        there ? *reinterpret_cast<const unsigned short*>(s.data + r * s.stride + c * s.step) : (unsigned short)0;
  }
}

// Columns of h, which are tokens.
template <int NT>
__device__ __forceinline__ void scale_columns(float (&o)[NT][4], const float* by) {
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    const float2 w = *reinterpret_cast<const float2*>(by + 8 * n + threadIdx.x % 4 * 2);
    o[n][0] *= w.x;
    o[n][1] *= w.y;
    o[n][2] *= w.x;
    o[n][3] *= w.y;
  }
}

// q, k, v and grad_h as the copy engine brings slices of them, and a bit for each that has such a map; as in mod.rs.
struct alignas(64) Maps {
  u64 of[4][16];
  i64 which, rest[7];
};
enum { kMapQ, kMapK, kMapV, kMapGradH };

// What the rows and the keys of a chunk weigh, of two chunks.
struct Weights {
  float query[2][kRows], last[2][kRows];  // s e^(m - M), and 1 / N
  unsigned key[2][kRows / 2];             // e^(log i - b - M_L), rounded, in pairs
  float left[2];
};
