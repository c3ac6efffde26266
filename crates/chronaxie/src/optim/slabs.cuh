// Roots of plates (plates.cuh) as tiles of f16: sixteen rows of one, a slab, are under one power of two, by their largest number.
// Floor: 6 bytes of a root's element.
#pragma once
#include "plates.cuh"

constexpr int kSlab = 16;  // rows of a root, or of a product with it, under one power of two

// The power of two of numbers of at most `bound`, and its inverse.
__device__ __forceinline__ float up_of(float bound) { return scale_up(__float_as_uint(fminf(bound, 3e38f))); }
__device__ __forceinline__ float down_of(float bound) { return scale_down(__float_as_uint(fminf(bound, 3e38f))); }
// Numbers that are none must not take the others' bits.
__device__ __forceinline__ unsigned finite_magnitude(float x) {
  const unsigned m = magnitude(x);
  return m < 0x7f800000u ? m : 0u;
}

// Entry 2 m + axis of `first` and `root_at`: the slabs before the root of an axis of plate m, and its tiles.
struct SlabsOf {
  const Plate* plates;
  const i64 *first, *root_at;
  const float* roots;
  char* to;
  float* largest;
  int slabs, entries;
};
struct Slab {
  const float* root;  // its first row
  char* line;         // tiles of 64 rows of which it is a part
  float* largest;
  int n, rows, pieces, row;  // rows that there are; eights of a row; its first row's within tiles
  bool vectors;
};
__device__ __forceinline__ Slab slab_of(const SlabsOf& o, int t) {
  const int e = plate_of(o.first, o.entries, t), axis = e % 2;
  const Plate& p = o.plates[e / 2];
  const int n = (int)(axis ? p.columns : p.rows), sides = sides_of(n), row0 = (t - (int)o.first[e]) * kSlab;
  const float* root = o.roots + p.roots[axis] + (i64)row0 * n;
  char* line = o.to + (o.root_at[e] + row0 / kSide * (i64)sides) * kTileBytes;
  return {root, line, o.largest + t, n, n - row0, 8 * sides, row0 % kSide, n % 4 == 0 && (u64)root % 16 == 0};
}
// Eight numbers of a row; 0 behind its end and the last row.
__device__ __forceinline__ void read(float (&x)[8], const Slab& s, int i) {
  const int row = i / s.pieces, column = i % s.pieces * 8, left = row < s.rows ? s.n - column : 0;
  const float* at = s.root + (i64)row * s.n + column;
  if (s.vectors && left >= 8) {
    const float4 a = *reinterpret_cast<const float4*>(at), b = *reinterpret_cast<const float4*>(at + 4);
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
  } else {
#pragma unroll
    for (int k = 0; k < 8; ++k) x[k] = k < left ? at[k] : 0.f;
  }
}

// Of a slab of up to 1024 columns all stays in registers; a longer one is read again.
constexpr int kHeld = 8;
using Held = float[kHeld][8];
__device__ __forceinline__ void hold(Held& held, const Slab& s) {
#pragma unroll
  for (int h = 0; h < kHeld; ++h)
    if (const int i = (int)threadIdx.x + h * kThreads; i < kSlab * s.pieces) read(held[h], s, i);
}

// What all threads of a block put out, a slab at a time.
struct RoundedSlabs {
  int turn;
  __device__ __forceinline__ RoundedSlabs() : turn(0) {}
  __device__ __forceinline__ void put(const Held& held, const Slab& s) {
    __shared__ unsigned most[2][kWarps];
    unsigned of = 0;
    auto see = [&](const float(&x)[8]) {
#pragma unroll
      for (int k = 0; k < 8; ++k) of = max(of, finite_magnitude(x[k]));
    };
#pragma unroll
    for (int h = 0; h < kHeld; ++h)
      if ((int)threadIdx.x + h * kThreads < kSlab * s.pieces) see(held[h]);
    for (int i = (int)threadIdx.x + kHeld * kThreads; i < kSlab * s.pieces; i += kThreads) {
      float x[8];
      read(x, s, i), see(x);
    }
    of = __reduce_max_sync(~0u, of);
    // Those of the turn before may still be read.
    if (threadIdx.x % 32 == 0) most[turn][threadIdx.x / 32] = of;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) of = max(of, most[turn][w]);
    turn ^= 1;
    const float bound = __uint_as_float(of), up = up_of(bound);
    if (threadIdx.x == 0) *s.largest = bound;
    auto write = [&](const float(&x)[8], int i) {
      const int row = s.row + i / s.pieces, piece = i % s.pieces;
      const uint4 v = {pack<false>(x[0] * up, x[1] * up), pack<false>(x[2] * up, x[3] * up), pack<false>(x[4] * up, x[5] * up),
                       pack<false>(x[6] * up, x[7] * up)};
      *reinterpret_cast<uint4*>(s.line + (i64)(piece / 8) * kTileBytes + swizzled(row, piece % 8)) = v;
    };
#pragma unroll
    for (int h = 0; h < kHeld; ++h)
      if (const int i = (int)threadIdx.x + h * kThreads; i < kSlab * s.pieces) write(held[h], i);
    for (int i = (int)threadIdx.x + kHeld * kThreads; i < kSlab * s.pieces; i += kThreads) {
      float x[8];
      read(x, s, i), write(x, i);
    }
  }
};
