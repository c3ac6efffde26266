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
  bool vectors, whole;       // whole: sixteen rows of whole tiles, at most 16 of them, in pieces of 16 bytes
};
__device__ __forceinline__ Slab slab_of(const SlabsOf& o, int t, int e) {
  const int axis = e % 2;
  const Plate& p = o.plates[e / 2];
  const int n = (int)(axis ? p.columns : p.rows), sides = sides_of(n), row0 = (t - (int)o.first[e]) * kSlab;
  const float* root = o.roots + p.roots[axis] + (i64)row0 * n;
  char* line = o.to + (o.root_at[e] + row0 / kSide * (i64)sides) * kTileBytes;
  const bool vectors = n % 4 == 0 && (u64)root % 16 == 0;
  return {root, line, o.largest + t, n, n - row0, 8 * sides, row0 % kSide, vectors, vectors && n % kSide == 0 && n <= 16 * kSide};
}
__device__ __forceinline__ Slab slab_of(const SlabsOf& o, int t) { return slab_of(o, t, plate_of(o.first, o.entries, t)); }
// Row and eight of a thread, which go on by so many of all threads: two divisions a slab.
struct Eight {
  int row, piece, rows, pieces;
  __device__ __forceinline__ Eight(const Slab& s)
      : row((int)threadIdx.x / s.pieces), piece((int)threadIdx.x % s.pieces), rows(kThreads / s.pieces), pieces(kThreads % s.pieces) {}
  __device__ __forceinline__ void advance(const Slab& s) {
    row += rows, piece += pieces;
    if (piece >= s.pieces) piece -= s.pieces, ++row;
  }
};
// Eight numbers of a row; 0 behind its end and the last row. Nobody reads them again soon.
template <bool kWhole>
__device__ __forceinline__ void read(float (&x)[8], const Slab& s, const Eight& i) {
  const int column = i.piece * 8, left = kWhole ? 8 : i.row < s.rows ? s.n - column : 0;
  const float* at = s.root + (i.row * (i64)s.n + column);
  if (kWhole || (s.vectors && left >= 8)) {
    const float4 a = __ldcs(reinterpret_cast<const float4*>(at)), b = __ldcs(reinterpret_cast<const float4*>(at + 4));
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
  } else {
#pragma unroll
    for (int k = 0; k < 8; ++k) x[k] = k < left ? at[k] : 0.f;
  }
}

// Of a slab of up to 1024 columns all stays in registers; a longer one is read again.
constexpr int kHeld = 8;
using Held = float[kHeld][8];
template <bool kWhole>
__device__ __forceinline__ void hold_as(Held& held, const Slab& s) {
  Eight i(s);
#pragma unroll
  for (int h = 0; h < kHeld; ++h, i.advance(s))
    if (i.row < kSlab) read<kWhole>(held[h], s, i);
}
__device__ __forceinline__ void hold(Held& held, const Slab& s) {
  if (s.whole) hold_as<true>(held, s);
  else hold_as<false>(held, s);
}

// What all threads of a block put out, a slab at a time.
struct RoundedSlabs {
  int turn;
  __device__ __forceinline__ RoundedSlabs() : turn(0) {}
  __device__ __forceinline__ void put(const Held& held, const Slab& s) {
    if (s.whole) put_as<true>(held, s);
    else put_as<false>(held, s);
  }
  template <bool kWhole>
  __device__ __forceinline__ void put_as(const Held& held, const Slab& s) {
    __shared__ unsigned most[2][kWarps];
    // A NaN is no largest number; an infinite one is found here, and passed over in a second look.
    float of = 0.f;
    auto each = [&](auto use) {
      Eight i(s);
#pragma unroll
      for (int h = 0; h < kHeld; ++h, i.advance(s))
        if (i.row < kSlab) use(held[h], i);
      if (!kWhole)
        for (; i.row < kSlab; i.advance(s)) {
          float x[8];
          read<kWhole>(x, s, i), use(x, i);
        }
    };
    each([&](const float(&x)[8], const Eight&) {
#pragma unroll
      for (int k = 0; k < 8; ++k) of = fmaxf(of, fabsf(x[k]));
    });
    unsigned bits = __float_as_uint(of);
    if (bits >= 0x7f800000u) {
      bits = 0;
      each([&](const float(&x)[8], const Eight&) {
#pragma unroll
        for (int k = 0; k < 8; ++k) bits = max(bits, finite_magnitude(x[k]));
      });
    }
    bits = __reduce_max_sync(~0u, bits);
    // Those of the turn before may still be read.
    if (threadIdx.x % 32 == 0) most[turn][threadIdx.x / 32] = bits;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) bits = max(bits, most[turn][w]);
    turn ^= 1;
    const float bound = __uint_as_float(bits), up = up_of(bound);
    if (threadIdx.x == 0) *s.largest = bound;
    each([&](const float(&x)[8], const Eight& i) {
      const uint4 v = {pack<false>(x[0] * up, x[1] * up), pack<false>(x[2] * up, x[3] * up), pack<false>(x[4] * up, x[5] * up),
                       pack<false>(x[6] * up, x[7] * up)};
      *reinterpret_cast<uint4*>(s.line + i.piece / 8 * (i64)kTileBytes + swizzled(s.row + i.row, i.piece % 8)) = v;
    });
  }
};
