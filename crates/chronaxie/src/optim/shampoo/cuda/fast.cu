// shampoo with precision `fast` on Hopper's tensor cores (sm_90a): what hopper.cu does, of numbers rounded to f16 (halves.cuh).
//
//   half_largest, half_bounds, half_moments, other_moments   powers of two, moments
//   half_roots, half_gram_rows, half_gram_columns            roots as f16; factors
//   half_left         128 x 256 of R_0 m as tiles of f16, which overwrite g's
//   half_right        128 x 256 of (R_0 m) R_1^T, to a flat vector; a warp's part of its squared norm
//   plate_scales, plate_update                               norms and parameters (plate_ends.cuh)
//
// Floors, the 350 M parameters of 24 layers of width 1024 in blocks of 1024, at 4.28 TB/s and 0.62 PFLOP/s: bounds read 8 bytes an
// element, 0.66 ms; moments 24, 2.0; Gram matrices 2 * (40 / 64) n flops an element and axis, 0.9 TFLOP, 1.5 ms, beside 2 bytes an
// element and 8 a factor's; roots 6 bytes each, 1.0; products 2 n, 1.45 TFLOP, 2.3 ms; the update 16 bytes, 1.3 ms.
#include "halves.cuh"
#include "plate_ends.cuh"

extern "C" __global__ void __launch_bounds__(kHalfThreads, 1)
    half_left(const Plate* plates, const i64* first, const i64* first_slab, const i64* root_at, const char* packed,
              const char* roots, const float* largest, const float* bounds, char* to, int tiles, int count) {
  half_left_of(plates, first, {first_slab, root_at, roots, largest, bounds}, packed, to, tiles, count);
}

extern "C" __global__ void __launch_bounds__(kHalfThreads, 1)
    half_right(const Plate* plates, const i64* first, const i64* first_slab, const i64* root_at, const char* packed,
               const char* roots, const float* largest, const float* bounds, float* to, const int* step, double* have, int tiles,
               int count, double ln_beta1) {
  const float c1 = (float)(1. / correction(ln_beta1, *step));
  half_right_of(plates, first, {first_slab, root_at, roots, largest, bounds}, packed, to, have, c1, tiles, count);
}
