// The end of a step of plates (plates.cuh), whatever made its product.
//
//   plate_scales   plate: the norm of the grafting's step over that of its own, of parts in their order
//   plate_update   64 x 64 of a plate: the parameter
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

extern "C" __global__ void __launch_bounds__(kThreads, 3)
    plate_update(const Plate* plates, const i64* first_tile, const float* product, const float* first, const float* second,
                 const float* scales, const float* decay, const float* rate, const float* largest, const int* step,
                 float* parameter, int count, int start, int aligned, double ln_beta1, double ln_second, float eps, int squares,
                 int mode, double weight_decay) {
  const int m = plate_of(first_tile, count, (int)blockIdx.x);
  const Plate& p = plates[m];
  const Spot s = spot_of(p, (int)(blockIdx.x - first_tile[m]));
  const bool vectors = whole(p, aligned);
  const float speed = rate[0], shrink = shrink_of(mode, weight_decay, speed, largest[0]);
  float u[4][4], w[4][4], d[4][4];
  if (*step >= start) {
    const float scale = scales[p.of];
    get(u, product, s, vectors);
#pragma unroll
    for (int e = 0; e < 16; ++e) u[e / 4][e % 4] *= scale;
  } else {
    const Graft graft = graft_of(step, ln_beta1, ln_second, eps, squares);
    get(u, first, s, vectors);
    if (squares) get(d, second, s, vectors);
#pragma unroll
    for (int e = 0; e < 16; ++e) u[e / 4][e % 4] = graft.of(u[e / 4][e % 4], squares ? d[e / 4][e % 4] : 0.f);
  }
  get(w, parameter, s, vectors), get(d, decay, s, vectors);
#pragma unroll
  for (int e = 0; e < 16; ++e) {
    float& x = w[e / 4][e % 4];
    x -= fmaf(speed, u[e / 4][e % 4], x * d[e / 4][e % 4] * shrink);
  }
  put(parameter, w, s, vectors);
}
