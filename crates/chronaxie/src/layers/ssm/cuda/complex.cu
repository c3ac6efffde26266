// linear_scan_complex where time is contiguous: h_t = a_t h_{t-1} + x_t over complex numbers
//
//   a, x, h and their gradients [B, D, T] c64; h0, h_last and theirs [B, D] c64
//
// A block takes one row, tile after tile of 256 steps; a thread has two steps of a tile, 16 bytes of each tensor. Runs become
// affine maps (a, x), maps are scanned by shuffles in the warp and folded over the warps in order, and each run is done again
// from its true start, as in forward.cu. The next tile is loaded into registers before this one is scanned: 1024 rows have
// 4.2 MB under way, a tile of a and x each, where 4.28 TB/s times a microsecond are 4.3.
//
// Bytes a step: 24 forward, 40 backward, so B1 D1024 T1000000 takes 5.7 and 9.6 ms on an H200 at the least; in that time a
// multiprocessor has 330 instructions for two steps of a warp, of which this needs about 150 and 200.
#ifndef __CUDACC_RTC__
#include "defaults.cuh"
#endif
#include "number.cuh"

constexpr int kWarps = kThreads / 32, kPair = 2, kTile = kThreads * kPair;
// Blocks a multiprocessor: eight hold 1024 rows at once on one of 132.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200
constexpr int kBlocks = 8;
#else
constexpr int kBlocks = 4;
#endif

struct Map {
  Complex a, x;
};
__device__ __forceinline__ Map then(Map first, Map second) {
  return {mul(first.a, second.a), fma(second.a, first.x, second.x)};
}
__device__ __forceinline__ Map shuffle_up(const Map& m, int lanes) {
  return {{__shfl_up_sync(~0u, m.a.re, lanes), __shfl_up_sync(~0u, m.a.im, lanes)},
          {__shfl_up_sync(~0u, m.x.re, lanes), __shfl_up_sync(~0u, m.x.im, lanes)}};
}

// Two steps of a row in the order of the scan, from `at` on; `outside` where there is none.
template <bool kDown>
__device__ __forceinline__ void load_pair(Complex (&to)[kPair], const Complex* row, i64 at, i64 steps, bool aligned,
                                          Complex outside) {
  if (aligned && at + 1 < steps) {
    const float4 v = *reinterpret_cast<const float4*>(row + (kDown ? steps - 2 - at : at));
    to[kDown ? 1 : 0] = {v.x, v.y}, to[kDown ? 0 : 1] = {v.z, v.w};
  } else {
#pragma unroll
    for (int k = 0; k < kPair; ++k) {
      to[k] = at + k < steps ? row[kDown ? steps - 1 - at - k : at + k] : outside;
    }
  }
}
template <bool kDown>
__device__ __forceinline__ void store_pair(Complex* row, i64 at, i64 steps, bool aligned, const Complex (&from)[kPair]) {
  if (aligned && at + 1 < steps) {
    const Complex first = from[kDown ? 1 : 0], second = from[kDown ? 0 : 1];
    *reinterpret_cast<float4*>(row + (kDown ? steps - 2 - at : at)) = make_float4(first.re, first.im, second.re, second.im);
  } else {
#pragma unroll
    for (int k = 0; k < kPair; ++k) {
      if (at + k < steps) row[kDown ? steps - 1 - at - k : at + k] = from[k];
    }
  }
}

// The state before this thread's run; `state` goes on over the whole tile. `slots` are used in turn, so that one barrier a
// tile is enough.
__device__ __forceinline__ Complex scan_tile(Map run, Complex& state, Map* slots) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int by = 1; by < 32; by *= 2) {
    const Map before = shuffle_up(run, by);
    if (lane >= by) run = then(before, run);
  }
  if (lane == 31) slots[warp] = run;
  Map before = shuffle_up(run, 1);
  __syncthreads();
  Complex mine = state;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w == warp) mine = state;
    state = fma(slots[w].a, state, slots[w].x);
  }
  return lane == 0 ? mine : fma(before.a, mine, before.x);
}

__device__ __forceinline__ Complex* row_of(const Array& a, i64 row, i64 channels) {
  return reinterpret_cast<Complex*>(a.base) + row / channels * a.s[0] + row % channels * a.s[1];
}

extern "C" __global__ void __launch_bounds__(kThreads, kBlocks)
    scan_complex_forward(Array a, Array x, Array h0, Array h, Array h_last, Marks marks, i64 channels, i64 aligned) {
  __shared__ alignas(16) Map slots[2][kWarps];
  const i64 rows = marks.units * channels, steps = marks.steps;
  const Complex one = {1.0f, 0.0f}, none = {0.0f, 0.0f};
  int turn = 0;
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const Complex *a_row = row_of(a, row, channels), *x_row = row_of(x, row, channels);
    Complex *h_row = row_of(h, row, channels), *last = row_of(h_last, row, channels);
    Complex state = h0.base ? *row_of(h0, row, channels) : none;
    const i64 own = static_cast<i64>(threadIdx.x) * kPair;
    Complex next_a[kPair], next_x[kPair];
    load_pair<kDescending>(next_a, a_row, own, steps, aligned, one);
    load_pair<kDescending>(next_x, x_row, own, steps, aligned, none);
    for (i64 tile = 0; tile < steps; tile += kTile) {
      Complex av[kPair], xv[kPair];
#pragma unroll
      for (int k = 0; k < kPair; ++k) av[k] = next_a[k], xv[k] = next_x[k];
      const i64 at = tile + own;
      load_pair<kDescending>(next_a, a_row, at + kTile, steps, aligned, one);
      load_pair<kDescending>(next_x, x_row, at + kTile, steps, aligned, none);
      Complex now = scan_tile(then({av[0], xv[0]}, {av[1], xv[1]}), state, slots[turn]);
      turn ^= 1;
#pragma unroll
      for (int k = 0; k < kPair; ++k) xv[k] = now = fma(av[k], now, xv[k]);
      store_pair<kDescending>(h_row, at, steps, aligned, xv);
    }
    // Steps beyond the last change nothing, but to a NaN: the state of the last step itself would stay one too.
    if (threadIdx.x == 0) *last = state;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, kBlocks)
    scan_complex_backward(Array a, Array h0, Array h, Array grad_h, Array grad_h_last, Array grad_a, Array grad_x,
                          Array grad_h0, Marks marks, i64 channels, i64 aligned) {
  __shared__ alignas(16) Map slots[2][kWarps];
  constexpr bool kDown = !kDescending;
  const i64 rows = marks.units * channels, steps = marks.steps;
  const Complex one = {1.0f, 0.0f}, none = {0.0f, 0.0f};
  int turn = 0;
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const Complex *a_row = row_of(a, row, channels), *h_row = row_of(h, row, channels), *g_row = row_of(grad_h, row, channels);
    Complex *to_a = row_of(grad_a, row, channels), *to_x = row_of(grad_x, row, channels);
    const Complex first = h0.base ? *row_of(h0, row, channels) : none;
    Complex state = *row_of(grad_h_last, row, channels);  // conj(a) lambda of the step behind
    const i64 own = static_cast<i64>(threadIdx.x) * kPair;
    Complex next_a[kPair], next_g[kPair], next_h[kPair];
    auto fetch = [&](i64 at) {
      load_pair<kDown>(next_a, a_row, at, steps, aligned, one);
      load_pair<kDown>(next_g, g_row, at, steps, aligned, none);
      // The state before a step lies one further in the order of this scan, and h0 behind all.
      load_pair<kDown>(next_h, h_row, at + 1, steps, false, first);
    };
    fetch(own);
    for (i64 tile = 0; tile < steps; tile += kTile) {
      Complex av[kPair], gv[kPair], hv[kPair];
#pragma unroll
      for (int k = 0; k < kPair; ++k) av[k] = conj(next_a[k]), gv[k] = next_g[k], hv[k] = next_h[k];
      const i64 at = tile + own;
      fetch(at + kTile);
      const Map run = then({av[0], mul(av[0], gv[0])}, {av[1], mul(av[1], gv[1])});
      Complex now = scan_tile(run, state, slots[turn]);
      turn ^= 1;
#pragma unroll
      for (int k = 0; k < kPair; ++k) {
        gv[k] = add(gv[k], now);
        hv[k] = mul(gv[k], conj(hv[k]));
        now = mul(av[k], gv[k]);
      }
      store_pair<kDown>(to_x, at, steps, aligned, gv);
      store_pair<kDown>(to_a, at, steps, aligned, hv);
    }
    if (grad_h0.base && threadIdx.x == 0) *row_of(grad_h0, row, channels) = state;
  }
}
