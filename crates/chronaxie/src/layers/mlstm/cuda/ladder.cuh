// What the kernels of the ladder's steps share: the tensors of one product or of one sum over pairs, and what a block has of it.
#pragma once
#ifndef __CUDACC_RTC__
#include "defaults.cuh"
#endif
#include "mlstm.cuh"

// Field by field as in ladder.rs. Of a product x is [rows, terms] and y [terms, columns], either perhaps as its transpose; of a
// sum over pairs x and y are [rows, terms] and z [rows, columns]. `to` is [rows, columns].
struct Work {
  Tokens x, y, z, to;
  i64 heads, rows, terms, columns;
  i64 across;  // blocks along the columns
  i64 plain;   // bits of x, y, z, to: rows of 16-byte pieces
  double scale;
};
enum { kX = 1, kY = 2, kZ = 4, kTo = 8 };

// Which pairs (t, s) there are, as kMask says: all, s up to t, s from t on.
enum { kAll, kUntil, kFrom };

// The first row and column of a block, and its head.
struct Spot {
  int row, column;
  Chain chain;
};
template <int kRows, int kWidth>
__device__ __forceinline__ Spot spot_of(const Work& w) {
  const int across = (int)w.across, down = (int)blockIdx.x / across;
  // Rows that meet most others come first.
  const int nth = kMask == kUntil ? (int)gridDim.x / across - 1 - down : down;
  const i64 chain = blockIdx.y;
  return {nth * kRows, (int)blockIdx.x % across * kWidth, {chain, chain / w.heads, chain % w.heads, 0, w.rows, 0}};
}
// The tokens that the rows of a block may meet: from the first up to the last, which is none of them.
struct Range {
  int first, last;
};
template <int kRows>
__device__ __forceinline__ Range met_by(const Work& w, int row) {
  const int rows = (int)w.rows;
  return {kMask == kFrom ? row : 0, kMask == kUntil ? min(rows, row + kRows) : rows};
}
__device__ __forceinline__ bool there(int t, int s) {
  return kMask == kAll || (kMask == kUntil ? s <= t : s >= t);
}
