// The end of a step of plates (plates.cuh), whatever made its product.
//
//   plate_scales    plate: the norm of the grafting's step over that of its own, of parts in their order
//   update_plates   64 x 64 of a plate: the parameter; the product is the caller's
#pragma once
#include "plates.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    plate_scales(const Plate* plates, const i64* first_tile, const i64* first_product, const double* want, const double* have,
                 float* scales, int grafts) {
  __shared__ double slots[kWarps];
  double wanted = 0, had = 0;
  for (i64 t = first_tile[blockIdx.x] * 8 + threadIdx.x; t < first_tile[blockIdx.x + 1] * 8; t += kThreads) wanted += want[t];
  for (i64 t = first_product[blockIdx.x] * 8 + threadIdx.x; t < first_product[blockIdx.x + 1] * 8; t += kThreads) had += have[t];
  wanted = block_sum(wanted, slots), had = block_sum(had, slots);
  if (threadIdx.x == 0) scales[plates[blockIdx.x].of] = grafts ? (float)(sqrt(wanted) / (sqrt(had) + 1e-16)) : 1.f;
}

// What an update reads, and the numbers of the step.
struct UpdateOf {
  const float *first, *second, *scales, *decay, *rate, *largest;
  const int* step;
  float* parameter;
  int count, start, aligned;
  double ln_beta1, ln_second;
  float eps;
  int squares, mode;
  double weight_decay;
};
// 64 x 64 of a plate; `product(u, plate, its number, tile, spot, whether rows are read in pieces of 16 bytes)` gives a thread's part.
template <class Product>
__device__ __forceinline__ void update_plates(const Plate* plates, const i64* first_tile, const UpdateOf& o, Product product) {
  const int m = plate_of(first_tile, o.count, (int)blockIdx.x), nth = (int)(blockIdx.x - first_tile[m]);
  const Plate& p = plates[m];
  const Spot s = spot_of(p, nth);
  const bool vectors = whole(p, o.aligned);
  const float speed = o.rate[0], shrink = shrink_of(o.mode, o.weight_decay, speed, o.largest[0]);
  float u[4][4], w[4][4], d[4][4];
  if (*o.step >= o.start) {
    const float scale = o.scales[p.of];
    product(u, p, m, nth, s, vectors);
#pragma unroll
    for (int e = 0; e < 16; ++e) u[e / 4][e % 4] *= scale;
  } else {
    const Graft graft = graft_of(o.step, o.ln_beta1, o.ln_second, o.eps, o.squares);
    get(u, o.first, s, vectors);
    if (o.squares) get(d, o.second, s, vectors);
#pragma unroll
    for (int e = 0; e < 16; ++e) u[e / 4][e % 4] = graft.of(u[e / 4][e % 4], o.squares ? d[e / 4][e % 4] : 0.f);
  }
  get(w, o.parameter, s, vectors);
  // Which parameters decay is read where some do.
  if (shrink != 0.f) get(d, o.decay, s, vectors);
#pragma unroll
  for (int e = 0; e < 16; ++e) {
    float& x = w[e / 4][e % 4];
    x -= fmaf(speed, u[e / 4][e % 4], shrink != 0.f ? x * d[e / 4][e % 4] * shrink : 0.f);
  }
  put(o.parameter, w, s, vectors);
}
