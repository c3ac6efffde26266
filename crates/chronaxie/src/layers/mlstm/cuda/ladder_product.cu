// The ladder's first step, portable: c = a b, and its gradients grad_a = grad_c b^T and grad_b = a^T grad_c.
//
//   a [B, NH, T, K], b [B, NH, K, V], c [B, NH, T, V], any strides: a transpose is other strides
//
//   ladder_product    block: 64 x 64 elements of the result of one head
//
// 2 T K V flops and 2 (T K + K V + T V) bytes a head in 16 bits. Of 4096 x 4096 x 4096 that is 0.137 TFLOP, 2.1 ms at the 67
// TFLOP/s of an H200's f32 units, of which this form has half at most (ladder_simt.cuh); bytes are 0.02 ms of it.
#include "ladder_simt.cuh"

extern "C" __global__ void __launch_bounds__(kThreads) ladder_product(const Work w) {
  __shared__ __align__(16) Slices s;
  const Spot at = spot_of<kTile, kTile>(w);
  const int rows = (int)w.rows - at.row, columns = (int)w.columns - at.column, terms = (int)w.terms;
  float acc[4][4] = {};
  add_products(acc, s, by_rows_of(w.x, at.chain, at.row, 0, rows, terms),
               by_columns_of(w.y, at.chain, 0, at.column, columns, terms));
  store_tile(acc, w, at, at.column);
}
