// What the portable kernels of the ladder share: sums of 64 x 64 elements by a block of 256 threads, 4 x 4 a thread, 16 terms at
// a time from shared memory, the next ones on their way. A step is 2 loads of 16 bytes for 16 multiply-adds: half of f32's rate.
#pragma once
#include "ladder.cuh"

// Terms that are summed before they are added to the others: sums of short sums have the accuracy of short ones.
constexpr int kShort = 256;

// A side of a product: element (r, k) of its rows and terms, in elements.
struct Side {
  const char* data;
  i64 row, term;
  int rows, terms;

  __device__ __forceinline__ void skip(int n) {
    data += n * term * (kDtype == 0 ? 4 : 2);
    terms -= n;
  }
};
// From row t and column d of a tensor on; its rows are the side's, or its columns.
__device__ __forceinline__ Side by_rows_of(const Tokens& y, const Chain& c, int t, int d, int rows, int terms) {
  return {y.data + place(y, c, t, d) * (kDtype == 0 ? 4 : 2), y.t, y.d, rows, terms};
}
__device__ __forceinline__ Side by_columns_of(const Tokens& y, const Chain& c, int t, int d, int columns, int terms) {
  return {y.data + place(y, c, t, d) * (kDtype == 0 ? 4 : 2), y.d, y.t, columns, terms};
}

// This thread's four elements of 64 rows and 16 terms, neighbours in memory by neighbours; zeros where there are none.
__device__ __forceinline__ void draw(float (&held)[4], const Side& s) {
  const bool along = s.term == 1;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at = i * kThreads + threadIdx.x, r = along ? at / kDepth : at % kTile, k = along ? at % kDepth : at / kTile;
    held[i] = r < s.rows && k < s.terms ? load_as<kDtype>(s.data, r * s.row + k * s.term) : 0.f;
  }
}
__device__ __forceinline__ void put(float (&to)[kDepth][kTile + 4], const float (&held)[4], const Side& s) {
  const bool along = s.term == 1;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at = i * kThreads + threadIdx.x;
    to[along ? at % kDepth : at / kTile][along ? at / kDepth : at % kTile] = held[i];
  }
}

// acc += a b over 16 terms: this thread's rows are 4 (thread / 16) and on, its columns 4 (thread % 16) and on.
__device__ __forceinline__ void rank(float (&acc)[4][4], const float (*a)[kTile + 4], const float (*b)[kTile + 4]) {
  const int r = threadIdx.x / 16 * 4, c = threadIdx.x % 16 * 4;
#pragma unroll
  for (int k = 0; k < kDepth; ++k) {
    const float4 u = *reinterpret_cast<const float4*>(&a[k][r]), v = *reinterpret_cast<const float4*>(&b[k][c]);
    const float x[4] = {u.x, u.y, u.z, u.w}, y[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) acc[i][j] = fmaf(x[i], y[j], acc[i][j]);
  }
}
__device__ __forceinline__ void add_up(float (&acc)[4][4], float (&some)[4][4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) acc[i][j] += some[i][j], some[i][j] = 0.f;
}

// acc += x y of 64 rows of either. The whole block takes part; the slices may be used again at once.
__device__ __forceinline__ void add_products(float (&acc)[4][4], Slices& s, Side x, Side y) {
  float some[4][4] = {}, a[4], b[4];
  const int terms = x.terms;
  draw(a, x);
  draw(b, y);
  for (int k = 0; k < terms; k += kDepth) {
    __syncthreads();
    put(s.a, a, x);
    put(s.b, b, y);
    __syncthreads();
    x.skip(kDepth);
    y.skip(kDepth);
    if (k + kDepth < terms) {
      draw(a, x);
      draw(b, y);
    }
    rank(some, s.a, s.b);
    if ((k + kDepth) % kShort == 0) add_up(acc, some);
  }
  add_up(acc, some);
}

// This thread's elements of a tile of the result, of `rows` and `columns` that are there.
__device__ __forceinline__ void store_tile(const float (&acc)[4][4], const Work& w, const Spot& at, int column) {
  const int r = at.row + threadIdx.x / 16 * 4, c = column + threadIdx.x % 16 * 4;
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (r + i < w.rows && c + j < w.columns) store(w.to, at.chain, r + i, c + j, acc[i][j]);
}
