// The ladder's second and third step, portable: to_t = s sum_s (x_t . y_s) z_s over all pairs (t, s), or those with s <= t, or,
// for gradients, with s >= t (kMask 0, 1, 2).
//
//   x, y [B, NH, T, K], z, to [B, NH, T, V], any strides: x = q, y = k, z = v make h; (grad_h, v, k) make grad_q, (v, grad_h, q)
//   grad_k, and (k, q, grad_h) grad_v
//
//   ladder_pairs    block: 64 rows and up to 64 kWide columns of the result of one head; its pairs with 64 tokens at a time, in
//                   shared memory, then those times z
//
// 2 T^2 (K + V) flops a head, half of it where s <= t, and 4 T (K + V) bytes in 16 bits; pairs are made anew for each 64 kWide
// columns. 32 heads of 64 / 64 over 2048 tokens: 34 GFLOP, 0.5 ms at the 67 TFLOP/s of an H200's f32 units, of which this form
// has half at most; 67 MB, 0.016 ms.
#include "ladder_simt.cuh"

extern "C" __global__ void __launch_bounds__(kThreads) ladder_pairs(const Work w) {
  __shared__ __align__(16) Slices s;
  __shared__ __align__(16) float square[kTile][kTile + 4];  // pairs, by tokens
  const Spot at = spot_of<kTile, kTile * kWide>(w);
  const Chain& chain = at.chain;
  const int rows = (int)w.rows - at.row, columns = (int)w.columns - at.column, terms = (int)w.terms;
  const Range met = met_by<kTile>(w, at.row);
  const float scale = (float)w.scale;
  float acc[kWide][4][4] = {};
  for (int s0 = met.first; s0 < met.last; s0 += kTile) {
    const int count = met.last - s0;
    float pairs[4][4] = {};
    add_products(pairs, s, by_rows_of(w.x, chain, at.row, 0, rows, terms), by_rows_of(w.y, chain, s0, 0, count, terms));
    // Nobody reads the pairs of the tokens before any more, since terms have been staged in between.
    const int r = threadIdx.x / 16 * 4, c = threadIdx.x % 16 * 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float of_rows[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) of_rows[i] = there(at.row + r + i, s0 + c + j) ? scale * pairs[i][j] : 0.f;
      *reinterpret_cast<float4*>(&square[c + j][r]) = {of_rows[0], of_rows[1], of_rows[2], of_rows[3]};
    }
#pragma unroll
    for (int tile = 0; tile < kWide; ++tile) {
      if (tile * kTile >= columns) break;
      Side z = by_columns_of(w.z, chain, s0, at.column + tile * kTile, columns - tile * kTile, count);
      float some[4][4] = {}, held[4];
      draw(held, z);
      for (int k = 0; k < min(count, kTile); k += kDepth) {
        __syncthreads();
        put(s.b, held, z);
        __syncthreads();
        z.skip(kDepth);
        if (k + kDepth < kTile) draw(held, z);
        rank(some, square + k, s.b);
      }
      add_up(acc[tile], some);
    }
  }
#pragma unroll
  for (int tile = 0; tile < kWide; ++tile) store_tile(acc[tile], w, at, at.column + tile * kTile);
}
