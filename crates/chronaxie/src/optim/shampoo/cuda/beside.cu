// Newton's iterations of the factors whose turn it is (inverse_root/cuda/newton.cuh), and beside them, on the multiprocessors that they
// leave, the roots of all plates as f16 (slabs.cuh), as they were before this step; half_due rounds those that it made once more.
//
//   newton_beside   the first groups x blocks blocks are newton_roots'; all others, and those when they are done, take slab after slab
//                   by a counter. Whoever takes one, it becomes the same.
//
// Floor: 6 bytes of a root's element beside what Newton's iterations take; two slabs are on their way a block, 64 KB each of 1024
// columns. Eight matrices of 1024 and the slabs of 675 such roots, H100: 3.19 ms, Newton's iterations alone 2.9, and 2.76 on 128
// multiprocessors with 1.57 for the slabs behind them. What was tried: a search for each slab's root 3.29; numbers looked at one by
// one for their place, and the counter asked when a slab is wanted: 4.4.
#include "newton.cuh"
#include "slabs.cuh"

extern "C" __global__ void __launch_bounds__(newton::kLaunched, 1)
    newton_beside(const float* __restrict__ a, float* root, float* record, u16* work, double* sums, unsigned* counters, i64 count, int n,
                  int p, int blocks, int stages, double absolute, double relative, int groups, const Plate* plates, const i64* first,
                  const i64* root_at, const float* roots, char* to, float* largest, int slabs, int entries) {
  __shared__ int tickets[2];
  const bool multiplies = (int)blockIdx.x < groups * blocks;
  newton::Ring ring;
  float* tile_f32 = ring.begin();
  if (!ring.share(multiplies)) return;
  if (multiplies)
    newton::roots_of(ring, tile_f32, a, root, record, work, sums, counters, count, n, p, blocks, groups, stages, absolute, relative);
  const SlabsOf o = {plates, first, root_at, roots, to, largest, slabs, entries};
  unsigned* next = counters + 16 * groups;
  // A slot of tickets is written again behind two barriers, that of `put` and this one; one more is on its way.
  unsigned ahead = 0;
  if (threadIdx.x == 0) ahead = atomicAdd(next, 1u);
  auto take = [&](int slot) {
    if (threadIdx.x == 0) {
      tickets[slot] = (int)ahead;
      ahead = atomicAdd(next, 1u);
    }
    __syncthreads();
    return tickets[slot];
  };
  // A block's slabs come in their order, a few entries further at most: a search each would be what a slab waits for.
  int entry = 0;
  auto find = [&](int t) {
    while (entry + 1 < entries && __ldg(first + entry + 1) <= t) ++entry;
    return slab_of(o, t, entry);
  };
  RoundedSlabs rounded;
  Held even, odd;
  Slab now, then;
  int t = take(0);
  if (t < slabs) entry = plate_of(first, entries, t), now = find(t), hold(even, now);
  while (t < slabs) {
    const int u = take(1);
    if (u < slabs) then = find(u), hold(odd, then);
    rounded.put(even, now);
    if (u >= slabs) return;
    t = take(0);
    if (t < slabs) now = find(t), hold(even, now);
    rounded.put(odd, then);
  }
}
