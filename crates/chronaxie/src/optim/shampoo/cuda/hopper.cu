// shampoo on Hopper's tensor cores (sm_90a): what becomes of the blocks of parameters that are matrices (plates.cuh,
// products.cuh). All other blocks, roots, and the sums of squares of the gradient are those of shampoo.cu.
//
//   plate_moments, other_moments, plate_gram_rows, plate_gram_columns   moments and factors (plates.cuh, plate_grams.cuh)
//   plate_left        128 x 128 of R_0 m, as blocks of numbers, which overwrite g's
//   plate_right       128 x 128 of (R_1 (R_0 m)^T)^T, to a flat vector; a warp's part of its squared norm
//   plate_scales      norms (plate_ends.cuh)
//   plate_update      64 x 64 of a plate: the parameter
//
// Floors, the 350 M parameters of 24 layers of width 1024 in blocks of 1024: moments move 28 bytes an element (36 with a pull),
// 2.3 ms at 4.28 TB/s; Gram matrices 3 * 2 * (36 / 64) n flops of f16 an element and axis, in all 2.4 TFLOP, 3.9 ms at 0.62
// PFLOP/s, beside 8 + 8 bytes; products 3 * 2 n, 4.3 TFLOP, 6.9 ms; the update 16 bytes, 1.3 ms.
#include "plate_ends.cuh"
#include "plate_grams.cuh"

extern "C" __global__ void __launch_bounds__(kPlateThreads, 1)
    plate_left(const Plate* plates, const i64* first, const char* packed, const float* scales, const float* roots, char* to,
               float* to_scales, int tiles, int count) {
  to_blocks<false>(plates, first, packed, scales, roots, to, to_scales, tiles, count);
}

extern "C" __global__ void __launch_bounds__(kPlateThreads, 1)
    plate_right(const Plate* plates, const i64* first, const char* packed, const float* scales, const float* roots, float* to,
                const int* step, double* have, int tiles, int count, double ln_beta1) {
  const float c1 = (float)(1. / correction(ln_beta1, *step));
  to_flat<false>(plates, first, packed, scales, roots, to, have, c1, tiles, count);
}

extern "C" __global__ void __launch_bounds__(kThreads, 3)
    plate_update(const Plate* plates, const i64* first_tile, const float* product, const float* first, const float* second,
                 const float* scales, const float* decay, const float* rate, const float* largest, const int* step,
                 float* parameter, int count, int start, int aligned, double ln_beta1, double ln_second, float eps, int squares,
                 int mode, double weight_decay) {
  const UpdateOf o = {first, second,  scales,   decay,     rate, largest, step, parameter,
                      count, start,   aligned,  ln_beta1,  ln_second, eps, squares, mode, weight_decay};
  update_plates(plates, first_tile, o, [&](float(&u)[4][4], const Plate&, int, int, const Spot& s, bool vectors) {
    get(u, product, s, vectors);
  });
}
