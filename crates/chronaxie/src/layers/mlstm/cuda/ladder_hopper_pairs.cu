// The ladder's second and third step by wgmma (sm_90a), f16 and bf16; formulas, names and shapes are those of ladder_pairs.cu.
//
//   hopper_pairs    block: 128 rows and kColumns columns of the result of one head; x of the rows stays in shared memory, y and z
//                   of 64 tokens come through a ring. Two warpgroups have 64 rows each, with their pairs in registers: once
//                   rounded they are an operand as they lie. The next tokens' pairs begin while those of these are multiplied.
//
// 32 heads of 64 / 64 over 2048 tokens: 34 GFLOP, 0.043 ms at 0.79 PFLOP/s on an H200 (half of it where s <= t); from L2 0.27 GB,
// 0.05 ms at 5.5 TB/s; from memory 67 MB, 0.016 ms. 64 heads of 256 / 512 over 8192: 6.6 TFLOP, 8.4 ms; a head wider than
// kColumns makes its pairs once for each kColumns: 1.33 as much there. From L2 69 GB, 12.5 ms.
#include "ladder_hopper.cuh"

constexpr int kBlocks = kColumns / 64;  // blocks of 64 tokens by 64 columns that a place of the ring holds

extern "C" __global__ void __launch_bounds__(kBlock, kColumns == 64 ? 2 : 1) hopper_pairs(const Work w, int stages) {
  extern __shared__ __align__(16) char memory[];
  const Spot at = spot_of<kEdge, kColumns>(w);
  const Chain& chain = at.chain;
  const int terms = (int)w.terms, rows = (int)w.rows - at.row, columns = (int)w.columns - at.column;
  // Blocks of terms, and places that they fill; blocks of columns that are there.
  const int by_k = (terms + 63) / 64, slices = (by_k + kBlocks - 1) / kBlocks, by_d = min(kBlocks, (columns + 63) / 64);
  const int group = own_group(), row = own_row();
  const Range met = met_by<kEdge>(w, at.row);
  const float scale = (float)w.scale;
  char *own = tiles_begin(memory), *places = own + by_k * kTileA;

#pragma unroll 1
  for (int k = 0; k < by_k; ++k)
    fetch_blocks<kTileA>(own + k * kTileA, part_of(w, w.x, kX, chain, at.row, 64 * k, rows, terms - 64 * k), false);
  // Of each 64 tokens y, then z.
  int s0_ahead = met.first, slice_ahead = 0;
  auto issue = [&](char* to) {
    const int count = met.last - s0_ahead, first = slice_ahead * kBlocks;
    if (count <= 0) return;
    const bool paired = slice_ahead < slices;
    const int blocks = paired ? min(kBlocks, by_k - first) : by_d;
    Source from = paired ? part_of(w, w.y, kY, chain, s0_ahead, 64 * first, count, terms - 64 * first)
                         : part_of(w, w.z, kZ, chain, s0_ahead, at.column, count, columns);
#pragma unroll 1
    for (int b = 0; b < blocks; ++b) {
      fetch_blocks<kGroupRows>(to + b * kGroupRows, from, true);
      from.data += 64 * from.step;
      from.columns -= 64;
    }
    if (++slice_ahead <= slices) return;
    slice_ahead = 0;
    s0_ahead += 64;
  };
  Trailing<kBlocks * kGroupRows, decltype(issue)> ring(places, stages, issue);

  float pairs[8][4], acc[kColumns / 8][4];
  clear_sums(acc);
  const unsigned x = shared_at(own) + group * kGroupRows;
  // The pairs' products over the blocks of a slice of terms, from block b on.
  auto add_pairs = [&](unsigned y, int slice, int b) {
    const int first = slice * kBlocks, blocks = min(kBlocks, by_k - first);
#pragma unroll 1
    for (; b < blocks; ++b)
#pragma unroll
      for (int k = 0; k < 4; ++k)
        wgmma<kBf16, false, false>(pairs, by_rows(x + (first + b) * kTileA + 32 * k), by_rows(y + b * kGroupRows + 32 * k));
    products_end();
    products_wait_but_one();
  };
  // The pairs with the next 64 tokens, which products_wait has then. From here to there products alone write them: ptxas would
  // wait for each product otherwise.
  auto begin_pairs = [&]() {
    const unsigned y = ring.pull();
    products_begin();
    wgmma_first<kBf16, false, false>(pairs, by_rows(x), by_rows(y));
#pragma unroll
    for (int k = 1; k < 4; ++k) wgmma<kBf16, false, false>(pairs, by_rows(x + 32 * k), by_rows(y + 32 * k));
    add_pairs(y, 0, 1);
    for (int slice = 1; slice < slices; ++slice) {
      const unsigned next = ring.pull();
      products_begin();
      add_pairs(next, slice, 0);
    }
  };
  if (met.first < met.last) begin_pairs();
  for (int s0 = met.first; s0 < met.last; s0 += 64) {
    products_wait(pairs);
    if (kMask != kAll && !(kMask == kUntil ? s0 + 63 <= at.row : s0 >= at.row + kEdge - 1))
      each_couple(pairs, [&](int half, int s, float& y, float& z) {
        const int t = at.row + row + 8 * half;
        if (!there(t, s0 + s)) y = 0.f;
        if (!there(t, s0 + s + 1)) z = 0.f;
      });
    unsigned p[4][4];
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float* pair = pairs[2 * k + e / 2] + e % 2 * 2;
        p[k][e] = pack<kBf16>(scale * pair[0], scale * pair[1]);
      }
    const unsigned z = ring.pull();
    products_begin();
#pragma unroll
    for (int k = 0; k < 4; ++k) wgmma_of<kBf16, true>(acc, p[k], by_terms(z + 16 * k * kLine, kGroupRows));
    products_end();
    products_wait_but_one();
    if (s0 + 64 < met.last) begin_pairs();
    products_wait(acc);
  }
  store_tile(acc, w, at);
}
