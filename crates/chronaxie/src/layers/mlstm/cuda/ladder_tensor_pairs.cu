// The ladder's second and third step by mma.sync (sm_80 and newer), f16 and bf16; formulas, names and shapes are those of
// ladder_pairs.cu.
//
//   tensor_pairs    block: kEdge rows and kColumns columns of the result of one head; x of the rows stays in shared memory, y and
//                   z come 32 terms or tokens at a time through a ring of 3; pairs with kEdge tokens, rounded, in shared memory
//
// 32 heads of 64 / 64 over 2048 tokens: 34 GFLOP, 0.069 ms at the 0.5 PFLOP/s that mma.sync may reach on an H200 (half of it
// where s <= t); from L2 0.54 GB by 64 rows a block, 0.1 ms at 5.5 TB/s; from memory 67 MB, 0.016 ms. A head wider than kColumns
// makes its pairs once for each kColumns.
#include "ladder_tensor.cuh"

constexpr int kStages = 3;
constexpr int kSlice = kEdge * kDeepPitch;  // rows or tokens, by 32 terms
constexpr int kHeld = kSlice > kStep * kWidePitch ? kSlice : kStep * kWidePitch;  // a place of the ring

extern "C" __global__ void __launch_bounds__(kBlock, kColumns == 64 ? 3 : 2) tensor_pairs(const Work w) {
  extern __shared__ __align__(16) char memory[];
  const Spot at = spot_of<kEdge, kColumns>(w);
  const Chain& chain = at.chain;
  const int warp_m = threadIdx.x / 32 / kWarpsN, warp_n = threadIdx.x / 32 % kWarpsN;
  const int terms = (int)w.terms, rows = (int)w.rows - at.row, columns = (int)w.columns - at.column;
  const int by_k = (terms + kStep - 1) / kStep;
  const Range met = met_by<kEdge>(w, at.row);
  const float scale = (float)w.scale;
  char *own = memory + kStages * kHeld, *square = own + by_k * kSlice;

  for (int k = 0; k < by_k; ++k)
    fetch<kEdge, kStep>(own + k * kSlice, part_of(w, w.x, kX, chain, at.row, k * kStep, rows, terms - k * kStep));
  // Of each kEdge tokens y by terms, then z by tokens.
  int s0_ahead = met.first, step_ahead = 0;
  auto issue = [&](char* to) {
    const int count = met.last - s0_ahead;
    if (count <= 0) return;
    const int k = step_ahead * kStep, s = (step_ahead - by_k) * kStep;
    if (s < 0)
      fetch<kEdge, kStep>(to, part_of(w, w.y, kY, chain, s0_ahead, k, count, terms - k));
    else
      fetch<kStep, kColumns>(to, part_of(w, w.z, kZ, chain, s0_ahead + s, at.column, count - s, columns));
    if (++step_ahead < by_k + (min(count, kEdge) + kStep - 1) / kStep) return;
    step_ahead = 0;
    s0_ahead += kEdge;
  };
  Ring<kHeld, decltype(issue)> ring(memory, kStages, issue);

  float acc[kMT][kNT][4];
  clear(acc);
  for (int s0 = met.first; s0 < met.last; s0 += kEdge) {
    float pairs[kMT][kPairNT][4];
    clear(pairs);
    for (int k = 0; k < by_k; ++k) {
      const unsigned tile = shared_at(ring.pull());
      multiply<kBf16, kStep, false, kDeepPitch, false, kDeepPitch, false>(
          pairs, shared_at(own) + k * kSlice + warp_m * kWarpRows * kDeepPitch, tile + warp_n * (8 * kPairNT) * kDeepPitch,
          nullptr);
    }
    // Nobody reads the pairs of the tokens before any more, since the block has met in the ring.
    each_pair(pairs, [&](int t, int s, float& y, float& z) {
      const float p0 = there(at.row + t, s0 + s) ? scale * y : 0.f, p1 = there(at.row + t, s0 + s + 1) ? scale * z : 0.f;
      *reinterpret_cast<unsigned*>(square + t * kPairPitch + 2 * s) = pack<kBf16>(p0, p1);
    });
    for (int s = 0; s < min(kEdge, met.last - s0); s += kStep) {
      const unsigned tile = shared_at(ring.pull());
      multiply<kBf16, kStep, false, kPairPitch, true, kWidePitch, false>(
          acc, shared_at(square) + warp_m * kWarpRows * kPairPitch + s * 2, tile + warp_n * (8 * kNT) * 2, nullptr);
    }
  }
  store_tile(acc, w, at);
}
