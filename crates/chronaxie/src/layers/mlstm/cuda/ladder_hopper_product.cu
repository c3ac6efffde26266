// The ladder's first step by wgmma (sm_90a), f16 and bf16: to = x y, either of which may lie as its transpose (kTurned 1: y, 2:
// x), as gradients want it. Names and shapes are those of ladder_product.cu.
//
//   hopper_product    block: 128 x kColumns elements of the result of one head, 64 terms at a time through a ring of 4; two
//                     warpgroups have 64 rows each, and begin products while those of the terms before are made
//
// 4096 x 4096 x 4096: 0.137 TFLOP, 0.17 ms at 0.79 PFLOP/s; from L2 1.6 GB by tiles of 128 x 256, 0.29 ms at 5.5 TB/s; from
// memory 0.1 GB, 0.024 ms.
#include "ladder_hopper.cuh"

constexpr int kStages = 4;

extern "C" __global__ void __launch_bounds__(kBlock, 1) hopper_product(const Work w) {
  extern __shared__ __align__(16) char memory[];
  constexpr bool kTurnedX = (kTurned & 2) != 0, kTurnedY = (kTurned & 1) != 0;
  const Spot at = spot_of<kEdge, kColumns>(w);
  const int terms = (int)w.terms, rows = (int)w.rows - at.row, columns = (int)w.columns - at.column, group = own_group();
  int ahead = 0;
  auto issue = [&](char* to) {
    const int k = ahead, left = terms - k;
    ahead += kTerms;
    if (left <= 0) return;
    fetch_blocks<kTileA>(to,
                         kTurnedX ? part_of(w, w.x, kX, at.chain, k, at.row, left, rows)
                                  : part_of(w, w.x, kX, at.chain, at.row, k, rows, left),
                         kTurnedX);
    fetch_blocks<kTileB>(to + kTileA,
                         kTurnedY ? part_of(w, w.y, kY, at.chain, at.column, k, columns, left)
                                  : part_of(w, w.y, kY, at.chain, k, at.column, left, columns),
                         !kTurnedY);
  };
  Trailing<kHold, decltype(issue)> ring(tiles_begin(memory), kStages, issue);
  float acc[kColumns / 8][4];
  clear_sums(acc);
  for (int k = 0; k < terms; k += kTerms) {
    const unsigned tile = ring.pull();
    begin_products<kTurnedX, !kTurnedY>(acc, tile + group * kGroupRows, tile + kTileA, kTerms * kLine);
    products_wait_but_one();
  }
  products_wait(acc);
  store_tile(acc, w, at);
}
