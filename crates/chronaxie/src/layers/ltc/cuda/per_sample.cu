// LTC, backward: from the sums that each batch row left to the gradients of all parameters and to what is known of single rows'
// gradients: of each parameter the sum of the squares of a row's gradient, and over rows those of each element.
// Four threads of a block share one synapse, neuron, input or output: each goes through every fourth eight of the rows. Squares of eight rows
// and four gradients are added over the lanes of a warp in 31 exchanges, which halve the numbers of each lane, then over two warps in
// order, and over blocks by the second kernel; what is added over rows, over the four threads in order.
// Floor (H200): 16 bytes a slot and row, read once from L2 (B32 D128 H128 at density 0.5: 8.4 MB, some 2 us), and 20 an element of the
// matrices; 20 operations and 4 exchanges a slot and row: 1 us.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
#include "ltc.cuh"

constexpr int kPlaces = 64, kSharers = 4, kTogether = 8, kAtOnce = kSharers * kTogether;
constexpr int kSamplers = kPlaces * kSharers;
static_assert(kPlaces == 64, "two warps are a sharer");
static_assert(kTogether * 4 == 32, "a lane is left with the squares of one row and gradient");

// Rows' sums of one side, by slot, or by element of the matrices [sources, H].
struct SampleSide {
  const unsigned* map;  // [count]: of a slot its element, of an element its slot; or all ones
  const float4* sums;   // [rows, pitch]: ltc_close (close.cu) says of what; by element alpha r, beta r, dz, dz v
  const float* of[4];   // w, mu, sigma, erev
  float *grad[4], *moments[4];  // grad: of all rows; or `each` of each row, elements apart, and no moments
  i64 count, pitch, first_block, by_element, elements;
};
struct SampleNeurons {
  const float4* sums;  // [rows, count]: alpha, beta, alpha (v - v') K / dt
  const float* of[3];  // gleak, vleak, cm
  float *grad[3], *moments[3];
  i64 count, first_block;
};
// The first numbers that each row left of a column: two, or four.
struct SampleColumns {
  const float* sums;  // [rows, pitch], `each` of a column
  float *grad[4], *moments[4];  // or null
  i64 count, pitch, each, first_block;
};

// Of twice kHalf numbers a lane keeps half, and gives the others to the lane that keeps those.
template <int kHalf>
__device__ __forceinline__ void share(float (&x)[32], int lane) {
  const bool upper = lane & kHalf;
#pragma unroll
  for (int i = 0; i < kHalf; i++) {
    const float gone = upper ? x[i] : x[i + kHalf];
    x[i] = (upper ? x[i + kHalf] : x[i]) + __shfl_xor_sync(~0u, gone, kHalf);
  }
}

// What each row has of N gradients, which `of` gives, `elements` apart.
template <int kN, typename Of>
__device__ __forceinline__ void each_row(int rows, float* const (&to)[kN], i64 elements, i64 at, Of of) {
#pragma unroll 4
  for (int b = threadIdx.x / kPlaces; b < rows; b += kSharers) {
    float g[kN] = {};
    of(b, g);
#pragma unroll
    for (int k = 0; k < kN; k++)
      if (to[k]) to[k][b * elements + at] = g[k];
  }
}

// Sums over rows of N gradients and of their squares, in the first of the threads that share a place, and of each row those over the block.
// `of` gives what a row has.
template <int kN, typename Of>
__device__ __forceinline__ void over_rows(int rows, float* __restrict__ parts, float (&total)[kN], float (&moment)[kN], Of of) {
  __shared__ float warps[kSamplers / 32][32];
  __shared__ float shared[2 * kN][kSamplers - kPlaces];
  const int lane = threadIdx.x % 32, sharer = threadIdx.x / kPlaces;
#pragma unroll
  for (int k = 0; k < kN; k++) total[k] = moment[k] = 0.0f;
#pragma unroll 1
  for (int b0 = 0; b0 < rows; b0 += kAtOnce) {
    const int first = b0 + sharer * kTogether;
    float x[32];
#pragma unroll
    for (int r = 0; r < kTogether; r++) {
      float g[kN] = {};
      if (first + r < rows) of(first + r, g);
#pragma unroll
      for (int k = 0; k < 4; k++) x[4 * r + k] = k < kN ? g[k < kN ? k : 0] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 32; i++) {
      if (i % 4 >= kN) continue;
      total[i % 4 < kN ? i % 4 : 0] += x[i];
      x[i] *= x[i];
      moment[i % 4 < kN ? i % 4 : 0] += x[i];
    }
    share<16>(x, lane), share<8>(x, lane), share<4>(x, lane), share<2>(x, lane), share<1>(x, lane);
    warps[threadIdx.x / 32][lane] = x[0];
    __syncthreads();
    // Of each sharer's rows and gradients the two warps.
    if (threadIdx.x < 32 * kSharers) {
      const int b = b0 + threadIdx.x / 32 * kTogether + lane / 4;
      const float sum = warps[threadIdx.x / 32 * 2][lane] + warps[threadIdx.x / 32 * 2 + 1][lane];
      if (b < rows) parts[(lane % 4) * rows + b] = sum;
    }
    __syncthreads();
  }
  if (sharer > 0) {
#pragma unroll
    for (int k = 0; k < kN; k++) {
      shared[k][threadIdx.x - kPlaces] = total[k];
      shared[kN + k][threadIdx.x - kPlaces] = moment[k];
    }
  }
  __syncthreads();
  if (sharer > 0) return;
#pragma unroll
  for (int at = 0; at < kSamplers - kPlaces; at += kPlaces) {
#pragma unroll
    for (int k = 0; k < kN; k++) total[k] += shared[k][at + threadIdx.x], moment[k] += shared[kN + k][at + threadIdx.x];
  }
}

__device__ __forceinline__ void close_side(const SampleSide& side, const float4* __restrict__ neurons, float* __restrict__ parts, i64 i,
                                           int rows, int hidden, int constrained, int each) {
  const unsigned other = i < side.count ? side.map[i] : ~0u;
  const bool there = other != ~0u;
  const i64 at = side.by_element ? i : (i64)other, slot = side.by_element ? (i64)other : i;
  const float w = there ? side.of[0][at] : 0.0f, mu = there ? side.of[1][at] : 0.0f, sigma = there ? side.of[2][at] : 0.0f,
              erev = there ? side.of[3][at] : 0.0f, slope = positive_slope(w, constrained), p = positive(w, constrained);
  const int j = there ? (int)(at % hidden) : 0;
  const bool halved = kFast && !side.by_element, centred = !kFast && !side.by_element;
  auto of = [&](int b, float (&g)[4]) {
    if (!there) return;
    float4 sum = side.sums[b * side.pitch + slot];
    if (halved) {
      const float4 n = neurons[(i64)b * hidden + j];
      sum = make_float4(0.5f * (n.x + sum.x), 0.5f * (n.y + sum.y), 0.5f * sum.z, 0.5f * sum.w);
    }
    g[0] = slope * fmaf(erev, sum.x, sum.y), g[1] = -sigma * sum.z;
    g[2] = centred ? sum.w : fmaf(-mu, sum.z, sum.w), g[3] = p * sum.x;
  };
  // By slot what has none was cleared.
  const bool written = there || (side.by_element && i < side.count);
  if (each) {
    if (written) each_row<4>(rows, side.grad, side.elements, at, of);
    return;
  }
  float total[4], moment[4];
  over_rows<4>(rows, parts, total, moment, of);
  if (!written || threadIdx.x >= kPlaces) return;
#pragma unroll
  for (int k = 0; k < 4; k++) side.grad[k][at] = total[k], side.moments[k][at] = moment[k];
}

__device__ __forceinline__ void close_neuron(const SampleNeurons& n, float* __restrict__ parts, i64 j, int rows, int constrained,
                                             int each) {
  const bool there = j < n.count;
  const float g = there ? n.of[0][j] : 0.0f, v = there ? n.of[1][j] : 0.0f, c = there ? n.of[2][j] : 0.0f;
  const float slope = positive_slope(g, constrained), leak = positive(g, constrained), of_cm = positive_slope(c, constrained);
  auto of = [&](int b, float (&x)[3]) {
    if (!there) return;
    const float4 sum = n.sums[b * n.count + j];
    x[0] = slope * fmaf(v, sum.x, sum.y), x[1] = leak * sum.x, x[2] = of_cm * sum.z;
  };
  if (each) {
    if (there) each_row<3>(rows, n.grad, n.count, j, of);
    return;
  }
  float total[3], moment[3];
  over_rows<3>(rows, parts, total, moment, of);
  if (!there || threadIdx.x >= kPlaces) return;
#pragma unroll
  for (int k = 0; k < 3; k++) n.grad[k][j] = total[k], n.moments[k][j] = moment[k];
}

__device__ __forceinline__ void close_column(const SampleColumns& columns, float* __restrict__ parts, i64 c, int rows, int each) {
  auto of = [&](int b, float (&x)[4]) {
    if (c >= columns.count) return;
    const float* const sums = columns.sums + (b * columns.pitch + c * columns.each);
    const float2 first = *(const float2*)sums;
    x[0] = first.x, x[1] = first.y;
    if (columns.each < 4) return;
    const float2 second = *(const float2*)(sums + 2);
    x[2] = second.x, x[3] = second.y;
  };
  if (each) {
    if (c < columns.count) each_row<4>(rows, columns.grad, columns.count, c, of);
    return;
  }
  float total[4], moment[4];
  over_rows<4>(rows, parts, total, moment, of);
  if (c >= columns.count || threadIdx.x >= kPlaces) return;
#pragma unroll
  for (int k = 0; k < 4; k++)
    if (columns.grad[k]) columns.grad[k][c] = total[k], columns.moments[k][c] = moment[k];
}

// A block has 64 slots, elements, neurons or columns of one kind; parts: [blocks, 4, rows]. `each`: gradients of rows are written, and
// nothing else.
extern "C" __global__ void __launch_bounds__(kSamplers, 2)
ltc_close_samples(SampleSide recurrent, SampleSide sensory, SampleNeurons n, SampleColumns inputs, SampleColumns outputs,
                  float* __restrict__ parts, int rows, int hidden, int constrained, int each) {
  const i64 block = blockIdx.x;
  float* const mine = parts + block * 4 * rows;
  auto place = [&](i64 first) { return (block - first) * kPlaces + threadIdx.x % kPlaces; };
  if (block >= outputs.first_block) return close_column(outputs, mine, place(outputs.first_block), rows, each);
  if (block >= inputs.first_block) return close_column(inputs, mine, place(inputs.first_block), rows, each);
  if (block >= n.first_block) return close_neuron(n, mine, place(n.first_block), rows, constrained, each);
  if (block >= sensory.first_block)
    return close_side(sensory, n.sums, mine, place(sensory.first_block), rows, hidden, constrained, each);
  close_side(recurrent, n.sums, mine, place(0), rows, hidden, constrained, each);
}

// Of up to so many parameters the blocks that left their squares, which of four they are there, and where they go.
struct Squares {
  struct {
    float* to;  // [rows]
    int first_block, blocks, which, unused;
  } of[18];
};

// One warp a row of a parameter.
extern "C" __global__ void __launch_bounds__(128)
ltc_sample_squares(Squares all, const float* __restrict__ parts, int rows) {
  const int b = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (b >= rows) return;
  const auto& of = all.of[blockIdx.y];
  float sum = 0.0f;
#pragma unroll 4
  for (int block = lane; block < of.blocks; block += 32) sum += parts[((i64)(of.first_block + block) * 4 + of.which) * rows + b];
  sum = warp_sum(sum);
  if (lane == 0) of.to[b] = sum;
}

// What a part of the rows left of up to so many parameters, which is added to what was there.
struct Parts {
  struct {
    const float *from, *from_moments;  // [elements]; of one row no moments but its squares
    float *grad, *moments;
    float* squares;  // of that row; or null
    i64 elements;
  } of[24];
};

// A block for each parameter where there are squares, and else as many as there are in x.
extern "C" __global__ void __launch_bounds__(1024)
ltc_add_samples(Parts all) {
  const auto& of = all.of[blockIdx.y];
  float sum = 0.0f;
  for (i64 e = blockIdx.x * 1024ll + threadIdx.x; e < of.elements; e += gridDim.x * 1024ll) {
    const float g = of.from[e], square = g * g;
    of.grad[e] += g;
    of.moments[e] += of.from_moments ? of.from_moments[e] : square;
    sum += square;
  }
  if (!of.squares) return;
  __shared__ float warps[32];
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  sum = warp_sum(warps[threadIdx.x]);
  if (threadIdx.x == 0) *of.squares = sum;
}
