// soap: one step over a flat vector, whose parameters are cut into blocks (optim/blocks.rs). The bases of the next steps are made
// behind it (basis.cu), at the first step before it.
//
//   grad, decay [N] in; parameter, first, second [N], factors [F] (lower triangles), bases [R] in place; rate, step, largest [1]
//
//   squares   run of the gradient: sum of squares (stepper.cuh)
//   moments   element: g = scale grad (+ pull decay parameter) [N], first (onblock.cuh)
//   gram      tile of 64 x 64 of a triangle: factor = keep factor + weight g_(k) g_(k)^T (onblock.cuh)
//   rotate    tile of 64 x 64 of a block, an axis a launch: g and first into the basis, x = Q_k^T x, side by side
//   second    run of 4096 elements of a block: second, of g in the basis; the largest root of it
//   divide    the same: u = first / c1 / (sqrt(second / c2) + eps + noise largest)
//   rotate    u back, u = Q_k u
//   update    run of 4096 elements of a block: the parameter
//   wide_gram, wide_rotate: the same of tiles of 128 x 128, the same bits, where they fill the GPU
//
// At the first step (`opens`) blocks with a basis do not turn: u = first / c1 / (|g| share + eps).
//
// Floors: 32 bytes an element of its state, 8 of a factor's, 4 of a basis's; here, as no product keeps its tile for the next one,
// 80 an element more of two axes. For the 350 M parameters of 24 layers of width 1024 in blocks of 1024 17 GB, 3.9 ms at 4.28 TB/s,
// and 28 GB more. Half a Gram matrix and three turns are 7 n operations an element and axis: 5.0 TFLOP there, 98 ms at 51
// TFLOP/s of f32, which is what binds. On Hopper hopper.cu takes the place of these tiles for large matrices.
#include "onblock.cuh"

// Of a block of `order` axes the buffer that holds what has gone through all of them, and of an axis's launch where it comes from: they
// take turns.
__device__ __forceinline__ const float* either(i64 odd, const float* one, const float* other) { return odd % 2 ? one : other; }

// Row 0 of the grid turns the first pair of buffers, row 1 the second. There (`back` 0): axis 0 reads `from`, then they take turns. Back:
// what was divided lies where the last axis left it, so axis `a` of a block of order o reads the buffer of o + a.
struct Turned {
  const float* from;  // [N], what axis 0 reads on the way there
  float *odd, *even;  // [N]
};

template <int W>
__device__ __forceinline__ void rotate_of(StageOf<W>& s, i64* at, const Block* blocks, const i64* of, const i64* first_tile,
                                          const float* bases, const Turned& turned, int count, int axis, int back) {
  constexpr int side = W * kTile;
  const int m = entry_of(first_tile, count, blockIdx.x);
  const Block& b = blocks[of[m]];
  const i64 n = b.sizes[axis], stride = b.strides[axis], rest = b.elements / n, columns = (rest + side - 1) / side;
  const i64 t = blockIdx.x - first_tile[m], row = t / columns * side, column = t % columns * side;
  const float* q = bases + b.roots[axis];
  if (threadIdx.x < side) at[threadIdx.x] = offset_of(b, axis, column + threadIdx.x);
  __syncthreads();
  const i64 parity = back ? b.order + axis : axis;
  const float* x = (!back && axis == 0 ? turned.from : either(parity, turned.odd, turned.even)) + b.first;
  float* y = (parity % 2 ? turned.even : turned.odd) + b.first;
  auto left = [&](i64 k, int i) { return row + i < n ? q[back ? (row + i) * n + k : k * n + row + i] : 0.f; };
  auto right = [&](i64 k, int j) { return column + j < rest ? x[k * stride + at[j]] : 0.f; };
  float acc[4 * W][4 * W] = {};
  tile(acc, s, n, left, back, right, stride == 1);
#pragma unroll
  for (int e = 0; e < 16 * W * W; ++e) {
    const int i = place(threadIdx.x / 16, e / (4 * W)), j = place(threadIdx.x % 16, e % (4 * W));
    if (row + i < n && column + j < rest) y[(row + i) * stride + at[j]] = acc[e / (4 * W)][e % (4 * W)];
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    rotate(const Block* blocks, const i64* of, const i64* first_tile, const float* bases, const float* g, float* g_odd,
           float* g_even, const float* first, float* first_odd, float* first_even, int count, int axis, int back) {
  __shared__ __align__(16) Stage s;
  __shared__ i64 at[kTile];
  const Turned turned = blockIdx.y == 0 ? Turned{g, g_odd, g_even} : Turned{first, first_odd, first_even};
  rotate_of(s, at, blocks, of, first_tile, bases, turned, count, axis, back);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    wide_rotate(const Block* blocks, const i64* of, const i64* first_tile, const float* bases, const float* g, float* g_odd,
                float* g_even, const float* first, float* first_odd, float* first_even, int count, int axis, int back) {
  __shared__ __align__(16) StageOf<2> s;
  __shared__ i64 at[2 * kTile];
  const Turned turned = blockIdx.y == 0 ? Turned{g, g_odd, g_even} : Turned{first, first_odd, first_even};
  rotate_of(s, at, blocks, of, first_tile, bases, turned, count, axis, back);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    wide_gram(const Block* blocks, const i64* of, const i64* first_tile, const float* g, float* factors, int count, float keep,
              float weight) {
  __shared__ __align__(16) StageOf<2> s;
  gram_of(s, blocks, of, first_tile, g, factors, count, keep, weight);
}

// The largest over the block of numbers that are not negative, known to every thread.
__device__ __forceinline__ float block_max(float x, float* slots) {
  for (int o = 16; o > 0; o /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, o));
  __syncthreads();
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = x;
  __syncthreads();
  x = slots[0];
  for (int w = 1; w < kWarps; ++w) x = fmaxf(x, slots[w]);
  return x;
}

// By what the second moment is multiplied; in a basis it begins with the second step.
__device__ __forceinline__ float of_second(const int* step, double ln_beta2, bool based, int corrects) {
  const double t = based ? max(*step - 1, 1) : *step;
  return based && !corrects ? 1.f : (float)(1. / correction(ln_beta2, t));
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    second(const Block* blocks, const i64* of, const i64* first_chunk, const float* g, const float* g_odd, const int* step,
           float* second, float* peaks, int count, int opens, int corrects, double ln_beta2, float keep2, float new2) {
  __shared__ float slots[kWarps];
  const int which = entry_of(first_chunk, count, blockIdx.x);
  const Block& b = blocks[of[which]];
  const bool based = b.matrices > 0;
  if (based && opens) return;
  // Both of a block without a basis and of an even number of axes it lies in g.
  const float* x = based ? either(b.order, g_odd, g) : g;
  const float c2 = of_second(step, ln_beta2, based, corrects);
  const i64 begin = (blockIdx.x - first_chunk[which]) * kChunk, end = min(b.elements, begin + kChunk);
  float peak = 0.f;
  for (i64 r = begin + threadIdx.x; r < end; r += kThreads) {
    const i64 n = b.first + offset_of(b, -1, r);
    const float v = keep2 * second[n] + new2 * (x[n] * x[n]);
    second[n] = v;
    peak = fmaxf(peak, sqrtf(v * c2));
  }
  peak = block_max(peak, slots);
  if (threadIdx.x == 0) peaks[blockIdx.x] = peak;
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    divide(const Block* blocks, const i64* of, const i64* first_chunk, const float* g, const float* first, const float* second,
           const float* peaks, const int* step, float* odd, float* even, int count, int opens, int corrects, double ln_beta1,
           double ln_beta2, float eps, float noise, float share) {
  __shared__ float slots[kWarps];
  const int which = entry_of(first_chunk, count, blockIdx.x);
  const Block& b = blocks[of[which]];
  const bool based = b.matrices > 0, turns = based && !opens;
  const float c1 = based && !corrects ? 1.f : (float)(1. / correction(ln_beta1, *step));
  const float c2 = of_second(step, ln_beta2, based, corrects);
  float peak = 0.f;
  if (turns)
    for (i64 k = first_chunk[which] + threadIdx.x; k < first_chunk[which + 1]; k += kThreads) peak = fmaxf(peak, peaks[k]);
  const float least = fmaf(noise, block_max(peak, slots), eps);
  // Where it has turned already it is divided in its place; where it does not turn, the place is the one that it ends in.
  float* u = turns && b.order % 2 ? odd : even;
  const float* m = turns ? u : first;
  const i64 begin = (blockIdx.x - first_chunk[which]) * kChunk, end = min(b.elements, begin + kChunk);
  for (i64 r = begin + threadIdx.x; r < end; r += kThreads) {
    const i64 n = b.first + offset_of(b, -1, r);
    const float root = based && opens ? fabsf(g[n]) * share : sqrtf(second[n] * c2);
    u[n] = m[n] * c1 / (root + least);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    update(const Block* blocks, const i64* of, const i64* first_chunk, const float* u, const float* decay, const float* rate,
           const float* largest, float* parameter, int count, int mode, double weight_decay) {
  const int which = entry_of(first_chunk, count, blockIdx.x);
  const Block& b = blocks[of[which]];
  const float speed = rate[0], shrink = shrink_of(mode, weight_decay, speed, largest[0]);
  const i64 begin = (blockIdx.x - first_chunk[which]) * kChunk, end = min(b.elements, begin + kChunk);
  for (i64 r = begin + threadIdx.x; r < end; r += kThreads) {
    const i64 n = b.first + offset_of(b, -1, r);
    const float w = parameter[n];
    parameter[n] = w - fmaf(speed, u[n], w * decay[n] * shrink);
  }
}
