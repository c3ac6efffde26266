// shampoo: one step over a flat vector, whose parameters are cut into blocks (optim/blocks.rs).
//
//   grad, decay [N] in; parameter, first, second [N], factors [F] (lower triangles), roots [R] in place; rate, step, largest [1]
//
//   squares   run of the gradient: sum of squares (stepper.cuh)
//   moments   element: g = scale grad (+ pull decay parameter) [N], first, second
//   gram      tile of 64 x 64 of a triangle, of every axis of every block: factor = keep factor + weight g_(k) g_(k)^T
//   gather    element: the factors whose turn it is, whole and corrected, as a batch [rows, n, n]; the device counts steps, so a
//             table says for each step modulo the frequency which they are (-1: none, I in its place)
//   keep      element: their roots, which inverse_root made, into the place of the old ones, but where there is none
//   along     tile of 64 x 64 of a block, an axis a launch: y = R_k x
//   norms     block of the parameters: norm of the grafting's step over that of its own
//   update    run of 4096 elements of a block: the parameter
//
// Floors: 48 bytes an element and 12 of a factor's or root's; for the 350 M parameters of 24 layers of width 1024 in blocks of
// 1024 25 GB, 5.9 ms at 4.28 TB/s. Gram matrices and products are 3 n operations an element and axis: 2.2 TFLOP, 43 ms at 51
// TFLOP/s of f32: these tiles are the simplest right ones; on Hopper hopper.cu takes their place for large matrices.
// One pass of one block of threads over a block of the parameters (norms) is 8 bytes an element more.
#include "onblock.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    gather(const i64* factor_at, const i64* due, const float* factors, const int* step, float* a, int n, int every, int start,
           double ln_beta2) {
  const i64 which = member(due, step, every, start), size = (i64)n * n;
  const float scale = (float)(1. / correction(ln_beta2, *step));
  const float* factor = which < 0 ? nullptr : factors + factor_at[which];
  for (i64 e = blockIdx.x * (i64)kThreads + threadIdx.x; e < size; e += (i64)gridDim.x * kThreads) {
    const i64 i = max(e / n, e % n), j = min(e / n, e % n);
    a[blockIdx.y * size + e] = factor ? scale * factor[i * (i + 1) / 2 + j] : i == j ? 1.f : 0.f;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    keep(const i64* due, const float* made, const float* record, const int* step, float* roots, int n, int every, int start) {
  const i64 which = member(due, step, every, start), size = (i64)n * n;
  // 3: there is no root.
  if (which < 0 || record[blockIdx.y * 4] == 3.f) return;
  for (i64 e = blockIdx.x * (i64)kThreads + threadIdx.x; e < size; e += (i64)gridDim.x * kThreads)
    roots[which * size + e] = made[blockIdx.y * size + e];
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    along(const Block* blocks, const i64* of, const i64* first_tile, const float* from, const float* roots, float* to,
          const int* step, int count, int axis, double ln_beta1) {
  __shared__ __align__(16) Stage s;
  __shared__ i64 at[kTile];
  const int m = entry_of(first_tile, count, blockIdx.x);
  const Block& b = blocks[of[m]];
  const i64 n = b.sizes[axis], stride = b.strides[axis], rest = b.elements / n, columns = (rest + kTile - 1) / kTile;
  const i64 t = blockIdx.x - first_tile[m], row = t / columns * kTile, column = t % columns * kTile;
  if (threadIdx.x < kTile) at[threadIdx.x] = offset_of(b, axis, column + threadIdx.x);
  __syncthreads();
  const float* root = roots + b.roots[axis];
  const float* x = from + b.first;
  auto left = [&](i64 k, int i) { return row + i < n ? root[(row + i) * n + k] : 0.f; };
  auto right = [&](i64 k, int j) { return column + j < rest ? x[k * stride + at[j]] : 0.f; };
  float acc[4][4] = {};
  tile(acc, s, n, left, true, right, stride == 1);
  const float scale = axis == 0 ? (float)(1. / correction(ln_beta1, *step)) : 1.f;
#pragma unroll
  for (int e = 0; e < 16; ++e) {
    const int i = threadIdx.x / 16 * 4 + e / 4, j = threadIdx.x % 16 * 4 + e % 4;
    if (row + i < n && column + j < rest) to[b.first + (row + i) * stride + at[j]] = scale * acc[e / 4][e % 4];
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    norms(const Block* blocks, const i64* of, const float* even, const float* odd, const float* first, const float* second,
          const int* step, float* scales, double ln_beta1, double ln_second, float eps, int squares, int grafts) {
  __shared__ double slots[kWarps];
  const Block& b = blocks[of[blockIdx.x]];
  const Graft graft = graft_of(step, ln_beta1, ln_second, eps, squares);
  const float* x = b.order % 2 ? even : odd;
  double want = 0, have = 0;
  if (grafts && b.matrices) {
    for (i64 r = threadIdx.x; r < b.elements; r += kThreads) {
      const i64 n = b.first + offset_of(b, -1, r);
      const double u = graft(first, second, n), v = x[n];
      want = fma(u, u, want), have = fma(v, v, have);
    }
  }
  want = block_sum(want, slots), have = block_sum(have, slots);
  if (threadIdx.x == 0) scales[of[blockIdx.x]] = grafts ? (float)(sqrt(want) / (sqrt(have) + 1e-16)) : 1.f;
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    update(const Block* blocks, const i64* of, const i64* first_chunk, const float* even, const float* odd, const float* first,
           const float* second, const float* scales, const float* decay, const float* rate, const float* largest,
           const int* step, float* parameter, int count, int start, double ln_beta1, double ln_second, float eps, int squares,
           int mode, double weight_decay) {
  const int which = entry_of(first_chunk, count, blockIdx.x);
  const Block& b = blocks[of[which]];
  const Graft graft = graft_of(step, ln_beta1, ln_second, eps, squares);
  const float* x = b.order % 2 ? even : odd;
  const float scale = scales[of[which]], speed = rate[0];
  const float shrink = shrink_of(mode, weight_decay, speed, largest[0]);
  const bool own = b.matrices && *step >= start;
  const i64 begin = (blockIdx.x - first_chunk[which]) * kChunk, end = min(b.elements, begin + kChunk);
  for (i64 r = begin + threadIdx.x; r < end; r += kThreads) {
    const i64 n = b.first + offset_of(b, -1, r);
    const float w = parameter[n], u = own ? x[n] * scale : graft(first, second, n);
    parameter[n] = w - fmaf(speed, u, w * decay[n] * shrink);
  }
}
