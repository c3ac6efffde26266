// soap on Hopper's tensor cores (sm_90a): the turns of blocks of parameters that are matrices (plates.cuh, products.cuh), at
// every step but the first. All other blocks, bases, and the sums of squares of the gradient are those of soap.cu and basis.cu.
//
//   plate_moments, other_moments, plate_gram_rows, plate_gram_columns   moments and factors (plates.cuh, plate_grams.cuh)
//   turn_left, turn_right   128 x 128 of Q_0^T x, as blocks of numbers, and of (Q_1^T (Q_0^T x)^T)^T, flat: of g, then of first
//   plate_second            64 x 64 of a plate: second, of g in the basis; the largest root of it
//   plate_divide            the same: u = first / c1 / (sqrt(second / c2) + eps + noise largest), as blocks of numbers
//   back_left, back_right   Q_0 u and (Q_1 (Q_0 u)^T)^T
//   plate_apply             64 x 64 of a plate: the parameter
//
// Floors, the 350 M parameters of 24 layers of width 1024 in blocks of 1024: Gram matrices 3 * 2 * (36 / 64) n flops of f16 an
// element and axis and three turns of 3 * 2 n, in all 15.5 TFLOP, 25 ms at 0.62 PFLOP/s; moments 28 bytes an element, 2.3 ms at
// 4.28 TB/s; second 12, divide 12 and the parameter 16: 3.3 ms.
#include "plate_grams.cuh"

extern "C" __global__ void __launch_bounds__(kPlateThreads, 1)
    turn_left(const Plate* plates, const i64* first, const char* packed, const float* scales, const float* bases, char* to,
              float* to_scales, int tiles, int count) {
  to_blocks<true>(plates, first, packed, scales, bases, to, to_scales, tiles, count);
}
extern "C" __global__ void __launch_bounds__(kPlateThreads, 1)
    turn_right(const Plate* plates, const i64* first, const char* packed, const float* scales, const float* bases, float* to,
               int tiles, int count) {
  to_flat<true>(plates, first, packed, scales, bases, to, nullptr, 1.f, tiles, count);
}
extern "C" __global__ void __launch_bounds__(kPlateThreads, 1)
    back_left(const Plate* plates, const i64* first, const char* packed, const float* scales, const float* bases, char* to,
              float* to_scales, int tiles, int count) {
  to_blocks<false>(plates, first, packed, scales, bases, to, to_scales, tiles, count);
}
extern "C" __global__ void __launch_bounds__(kPlateThreads, 1)
    back_right(const Plate* plates, const i64* first, const char* packed, const float* scales, const float* bases, float* to,
               int tiles, int count) {
  to_flat<false>(plates, first, packed, scales, bases, to, nullptr, 1.f, tiles, count);
}

// By what the second moment in a basis is multiplied: it begins with the second step.
__device__ __forceinline__ float of_second(const int* step, double ln_beta2, int corrects) {
  return corrects ? (float)(1. / correction(ln_beta2, (double)max(*step - 1, 1))) : 1.f;
}
__device__ __forceinline__ float block_max(float x, float* slots) {
  for (int o = 16; o > 0; o /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, o));
  __syncthreads();
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = x;
  __syncthreads();
  x = slots[0];
  for (int w = 1; w < kWarps; ++w) x = fmaxf(x, slots[w]);
  return x;
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    plate_second(const Plate* plates, const i64* first_tile, const float* g, const int* step, float* second, float* peaks,
                 int count, int aligned, int corrects, double ln_beta2, float keep2, float new2) {
  __shared__ float slots[kWarps];
  const int m = plate_of(first_tile, count, (int)blockIdx.x);
  const Plate& p = plates[m];
  const Spot s = spot_of(p, (int)blockIdx.x - (int)first_tile[m]);
  const bool vectors = whole(p, aligned);
  const float c2 = of_second(step, ln_beta2, corrects);
  float x[4][4], v[4][4], peak = 0.f;
  get(x, g, s, vectors), get(v, second, s, vectors);
#pragma unroll
  for (int e = 0; e < 16; ++e) {
    float& to = v[e / 4][e % 4];
    to = keep2 * to + new2 * (x[e / 4][e % 4] * x[e / 4][e % 4]);
    peak = fmaxf(peak, sqrtf(to * c2));
  }
  put(second, v, s, vectors);
  peak = block_max(peak, slots);
  if (threadIdx.x == 0) peaks[blockIdx.x] = peak;
}

extern "C" __global__ void __launch_bounds__(kThreads, 3)
    plate_divide(const Plate* plates, const i64* first_tile, const float* first, const float* second, const float* peaks,
                 const int* step, char* to, float* scales, int count, int aligned, int corrects, double ln_beta1, double ln_beta2,
                 float eps, float noise) {
  __shared__ float slots[kWarps];
  __shared__ unsigned most[kWarps];
  const int m = plate_of(first_tile, count, (int)blockIdx.x);
  const Plate& p = plates[m];
  const int nth = (int)blockIdx.x - (int)first_tile[m];
  const Spot s = spot_of(p, nth);
  const bool vectors = whole(p, aligned);
  const float c1 = corrects ? (float)(1. / correction(ln_beta1, *step)) : 1.f, c2 = of_second(step, ln_beta2, corrects);
  float peak = 0.f;
  for (int t = (int)first_tile[m] + (int)threadIdx.x; t < (int)first_tile[m + 1]; t += kThreads) peak = fmaxf(peak, peaks[t]);
  const float least = fmaf(noise, block_max(peak, slots), eps);
  float u[4][4], v[4][4];
  get(u, first, s, vectors), get(v, second, s, vectors);
#pragma unroll
  for (int e = 0; e < 16; ++e) {
    // Beyond the plate's end nothing is divided by nothing.
    const bool there = 16 * (e / 4) < s.rows && e % 4 < s.left;
    float& x = u[e / 4][e % 4];
    x = there ? x * c1 / (sqrtf(v[e / 4][e % 4] * c2) + least) : 0.f;
  }
  const i64 block = p.block + nth;
  const unsigned largest = pack_block(u, to + block * kBlockBytes, (int)threadIdx.x / 16, (int)threadIdx.x % 16 * 4, most);
  if (threadIdx.x == 0) scales[block] = scale_down(largest);
}

extern "C" __global__ void __launch_bounds__(kThreads, 3)
    plate_apply(const Plate* plates, const i64* first_tile, const float* u, const float* decay, const float* rate,
                const float* largest, float* parameter, int count, int aligned, int mode, double weight_decay) {
  const int m = plate_of(first_tile, count, (int)blockIdx.x);
  const Plate& p = plates[m];
  const Spot s = spot_of(p, (int)blockIdx.x - (int)first_tile[m]);
  const bool vectors = whole(p, aligned);
  const float speed = rate[0], shrink = shrink_of(mode, weight_decay, speed, largest[0]);
  float x[4][4], w[4][4], d[4][4];
  get(x, u, s, vectors), get(w, parameter, s, vectors), get(d, decay, s, vectors);
#pragma unroll
  for (int e = 0; e < 16; ++e) {
    float& to = w[e / 4][e % 4];
    to -= fmaf(speed, x[e / 4][e % 4], to * d[e / 4][e % 4] * shrink);
  }
  put(parameter, w, s, vectors);
}
