// LTC: x and the gradient of out, stored in 16 bits, to f32, and out and the gradient of x back.
//
//   from [B, T, width] of any strides <-> f32 [B, T, width] without gaps
//
// One thread an element, and then one a grid further, so that a grid of any size takes any number of elements. 6 bytes an
// element, of which the recurrence's gates take far longer.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
#include "half.cuh"
typedef long long i64;

// kDtype: 1 f16, 2 bf16.
static_assert(kDtype == 1 || kDtype == 2, "what is stored in 16 bits");

// Where the i-th element lies; of fewer than 2^32 in 32 bits, of which a division takes a third of the time.
template <class I>
__device__ __forceinline__ i64 place(I i, I steps, I width, i64 b, i64 t, i64 d) {
  const I row = i / width, batch = row / steps;
  return (i64)batch * b + (i64)(row - batch * steps) * t + (i64)(i - row * width) * d;
}

// flat: the elements lie one behind the other.
extern "C" __global__ void __launch_bounds__(256)
ltc_widen(const unsigned short* __restrict__ from, float* __restrict__ to, i64 count, i64 steps, i64 width, i64 b, i64 t, i64 d,
          int flat) {
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < count; i += gridDim.x * (i64)blockDim.x) {
    i64 at = i;
    if (!flat)
      at = count <= 0xffffffffll ? place<unsigned>((unsigned)i, (unsigned)steps, (unsigned)width, b, t, d)
                                 : place<i64>(i, steps, width, b, t, d);
    const unsigned short bits = from[at];
    to[i] = kDtype == 1 ? f16_value(bits) : bf16_value(bits);
  }
}

extern "C" __global__ void __launch_bounds__(256)
ltc_round(const float* __restrict__ from, unsigned short* __restrict__ to, i64 count) {
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < count; i += gridDim.x * (i64)blockDim.x)
    to[i] = kDtype == 1 ? f16_bits(from[i]) : bf16_bits(from[i]);
}
