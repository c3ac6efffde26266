// What the mLSTM kernels by chains are made of (sm_90a): slices of 64 tokens by 64 columns, how they come, and what products need.
#pragma once
#include "tensor.cuh"
#include "wgmma.cuh"
#include "barriers.cuh"

constexpr int kRows = 64;          // tokens of a chunk
constexpr int kLine = 128;         // bytes of a row of a slice, 64 columns
constexpr int kSlice = kRows * kLine;

// Of the third warpgroup.
__device__ __forceinline__ void helpers_meet() { asm volatile("bar.sync 1, 128;" ::: "memory"); }
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

// q, k, v, grad_h and, backward, h as the copy engine brings slices of them, and a bit for each that has such a map; as in mod.rs.
struct alignas(64) Maps {
  u64 of[5][16];
  i64 which, rest[7];
};
enum { kMapQ, kMapK, kMapV, kMapGradH, kMapH };
