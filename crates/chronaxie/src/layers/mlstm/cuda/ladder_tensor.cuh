// What the ladder's kernels on tensor cores share beside tensor.cuh.
#pragma once
#include "ladder.cuh"
#include "tensor.cuh"

constexpr int kWarpRows = kEdge / kWarpsM;

// `rows` and `columns` of a tensor from row t and column d on.
__device__ __forceinline__ Source part_of(const Work& w, const Tokens& y, int bit, const Chain& c, i64 t, i64 d, i64 rows,
                                          i64 columns) {
  return {y.data + 2 * place(y, c, t, d), 2 * y.t, 2 * y.d, rows, columns, (w.plain & bit) != 0};
}
template <int NT>
__device__ __forceinline__ void store_tile(float (&acc)[kMT][NT][4], const Work& w, const Spot& at) {
  each_piece(acc, [&](int t, int d, uint4 piece) {
    if (at.row + t < w.rows && at.column + d < w.columns)
      store_piece(w.to, (w.plain & kTo) != 0, at.chain, at.row + t, at.column + d, piece);
  });
}
