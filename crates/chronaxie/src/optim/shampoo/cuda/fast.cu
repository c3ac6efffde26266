// shampoo with precision `fast` on Hopper's tensor cores (sm_90a): what hopper.cu does, of numbers rounded to f16 (halves.cuh).
//
//   half_largest, half_bounds, half_moments, other_moments   powers of two, moments
//   half_roots, half_due, half_gram                          roots as f16, of all plates or of those made in this step, where beside.cu
//                                                            has rounded all beside them; factors
//   half_left         128 x 256 of R_0 m as tiles of f16, which overwrite g's
//   half_right        128 x 256 of (R_0 m) R_1^T as tiles of f16, which overwrite m's; a warp's part of its squared norm
//   plate_scales, half_update                                norms (plate_ends.cuh); 64 x 64 of a plate: the parameter
//
// Floors, the 350 M parameters of 24 layers of width 1024 in blocks of 1024, at 4.28 TB/s and 0.62 PFLOP/s: largest numbers read 8
// bytes an element, 0.66 ms; moments move 24, 2.0; Gram matrices are 2 * (40 / 64) n flops an element and axis, 0.9 TFLOP, 1.5 ms,
// beside 2 bytes an element and 8 a factor's; roots 6 bytes of each number, 1.0; products 2 n flops, 1.45 TFLOP, 2.3 ms; the update
// 10 bytes, 0.8 ms (14 where parameters decay).
#include "halves.cuh"
#include "plate_ends.cuh"

extern "C" __global__ void __launch_bounds__(kHalfThreads, 1)
    half_left(const Plate* plates, const i64* first, const i64* first_slab, const i64* root_at, const char* packed,
              const char* roots, const float* largest, const float* bounds, char* to, int tiles, int count) {
  half_left_of(plates, first, {first_slab, root_at, roots, largest, bounds}, packed, to, tiles, count);
}

extern "C" __global__ void __launch_bounds__(kHalfThreads, 1)
    half_right(const Plate* plates, const i64* first, const i64* first_slab, const i64* root_at, const char* packed,
               const char* roots, const float* largest, const float* bounds, char* to, float* downs, const int* step, double* have,
               int tiles, int count, double ln_beta1) {
  const float c1 = (float)(1. / correction(ln_beta1, *step));
  half_right_of(plates, first, {first_slab, root_at, roots, largest, bounds}, packed, to, downs, have, c1, tiles, count);
}

extern "C" __global__ void __launch_bounds__(kThreads, 3)
    half_update(const Plate* plates, const i64* first_tile, const char* product, const float* first, const float* second,
                const float* scales, const float* decay, const float* rate, const float* largest, const int* step,
                float* parameter, int count, int start, int aligned, double ln_beta1, double ln_second, float eps, int squares,
                int mode, double weight_decay, const i64* first_product, const float* downs) {
  const UpdateOf o = {first, second,  scales,   decay,     rate, largest, step, parameter,
                      count, start,   aligned,  ln_beta1,  ln_second, eps, squares, mode, weight_decay};
  update_plates(plates, first_tile, o, [&](float(&u)[4][4], const Plate& p, int m, int nth, const Spot&, bool) {
    const int across = sides_of(p.columns), row = nth / across, column = nth % across, wide = (across + 3) / 4;
    const char* tile = product + (p.block + nth) * kTileBytes;
    const float* down = downs + (first_product[m] + row / 2 * wide + column / 4) * 8 + row % 2 * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint2 v = *reinterpret_cast<const uint2*>(tile + swizzled_at(threadIdx.x / 16 + 16 * i, threadIdx.x % 16 * 4));
      const float2 a = unpack<false>(v.x), b = unpack<false>(v.y);
      u[i][0] = a.x * down[i], u[i][1] = a.y * down[i], u[i][2] = b.x * down[i], u[i][3] = b.y * down[i];
    }
  });
}
