// Inverse p-th roots on tensor cores (newton.cuh): c blocks make a group, a group takes a matrix at a time, groups stride over the batch.
#include "newton.cuh"

extern "C" __global__ void clear(unsigned* counters, int count, unsigned* idle_counters, int idle) {
  clear_counters(counters, count);
  clear_counters(idle_counters, idle);
}

extern "C" __global__ void __launch_bounds__(newton::kLaunched, 1)
    newton_roots(const float* __restrict__ a, float* root, float* record, u16* work, double* sums, unsigned* counters, i64 count, int n,
                 int p, int blocks, int stages, double absolute, double relative) {
  newton::Ring ring;
  float* tile_f32 = ring.begin();
  if (ring.share(true))
    newton::roots_of(ring, tile_f32, a, root, record, work, sums, counters, count, n, p, blocks, (int)gridDim.x / blocks, stages, absolute, relative);
}
