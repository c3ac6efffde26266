// The ladder's first step by mma.sync (sm_80 and newer), f16 and bf16: to = x y, either of which may lie as its transpose
// (kTurned 1: y, 2: x), as gradients want it. Names and shapes are those of ladder_product.cu.
//
//   tensor_product    block: kEdge x kColumns elements of the result of one head, 32 terms at a time through a ring of 4
//
// 4096 x 4096 x 4096: 0.137 TFLOP, 0.27 ms at the 0.5 PFLOP/s that mma.sync may reach on an H200; from L2 2.1 GB by tiles of 128
// x 128, 0.4 ms at 5.5 TB/s; from memory 0.1 GB, 0.024 ms.
#include "ladder_tensor.cuh"

constexpr int kStages = 4;

extern "C" __global__ void __launch_bounds__(kBlock, kTogether) tensor_product(const Work w) {
  extern __shared__ __align__(16) char memory[];
  constexpr bool kTurnedX = (kTurned & 2) != 0, kTurnedY = (kTurned & 1) != 0;
  const Spot at = spot_of<kEdge, kColumns>(w);
  const int warp_m = threadIdx.x / 32 / kWarpsN, warp_n = threadIdx.x / 32 % kWarpsN;
  const int terms = (int)w.terms, rows = (int)w.rows - at.row, columns = (int)w.columns - at.column;
  int ahead = 0;
  auto issue = [&](char* to) {
    const int k = ahead, left = terms - k;
    ahead += kStep;
    if (left <= 0) return;
    if (kTurnedX)
      fetch<kStep, kEdge>(to, part_of(w, w.x, kX, at.chain, k, at.row, left, rows));
    else
      fetch<kEdge, kStep>(to, part_of(w, w.x, kX, at.chain, at.row, k, rows, left));
    if (kTurnedY)
      fetch<kColumns, kStep>(to + kPlaceB, part_of(w, w.y, kY, at.chain, at.column, k, columns, left));
    else
      fetch<kStep, kColumns>(to + kPlaceB, part_of(w, w.y, kY, at.chain, k, at.column, left, columns));
  };
  Ring<kPlace, decltype(issue)> ring(memory, kStages, issue);
  float acc[kMT][kNT][4];
  clear(acc);
  for (int k = 0; k < terms; k += kStep) {
    const unsigned tile = shared_at(ring.pull());
    multiply<kBf16, kStep, kTurnedX, kTurnedX ? kPairPitch : kDeepPitch, !kTurnedY, kTurnedY ? kDeepPitch : kWidePitch, false>(
        acc, tile + warp_m * kWarpRows * (kTurnedX ? 2 : kDeepPitch),
        tile + kPlaceB + warp_n * (8 * kNT) * (kTurnedY ? kDeepPitch : 2), nullptr);
  }
  store_tile(acc, w, at);
}
