// The beginning of a step of plates whose products are exact (products.cuh).
//
//   plate_moments        64 x 64: moments (plates.cuh), g and first as blocks of numbers
//   plate_gram_rows      the factors of rows, and of columns
//   plate_gram_columns
#pragma once
#include "products.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    plate_moments(const Plate* plates, const i64* first_tile, const float* grad, const float* decay, const float* parameter,
                  const double* partials, const int* step, float* first, float* second, float* grad_norm, char* g_to,
                  float* g_scales, char* m_to, float* m_scales, double* want, int tiles, int count, int runs, int has_second,
                  int aligned, double clip, float pull, float beta1, float rest1, float keep2, float new2, double ln_beta1,
                  double ln_second, float eps) {
  __shared__ unsigned most[2][kWarps];
  const MomentsOf o = {grad,  decay,      parameter, partials, step, first, second, grad_norm, want, tiles,    count,     runs,
                       has_second, aligned, clip,    pull,  beta1, rest1,  keep2,     new2, ln_beta1, ln_second, eps};
  moments_of_plates(plates, first_tile, o, [&](const Plate&, int, i64 block, const float(&g)[4][4], const float(&mean)[4][4],
                                               int row, int column) {
    const unsigned of_g = pack_block(g, g_to + block * kBlockBytes, row, column, most[0]);
    const unsigned of_m = pack_block(mean, m_to + block * kBlockBytes, row, column, most[1]);
    if (threadIdx.x == 0) g_scales[block] = scale_down(of_g), m_scales[block] = scale_down(of_m);
  });
}

extern "C" __global__ void __launch_bounds__(kPlateThreads, 1)
    plate_gram_rows(const Plate* plates, const i64* first, const char* packed, const float* scales, float* factors, int tiles,
                    int count, float keep, float weight) {
  gram_of_plates<false>(plates, first, packed, scales, factors, tiles, count, keep, weight);
}
extern "C" __global__ void __launch_bounds__(kPlateThreads, 1)
    plate_gram_columns(const Plate* plates, const i64* first, const char* packed, const float* scales, float* factors, int tiles,
                       int count, float keep, float weight) {
  gram_of_plates<true>(plates, first, packed, scales, factors, tiles, count, keep, weight);
}
