// What steps do with blocks of parameters that are matrices, for Hopper's tensor cores (products.cuh). A plate is such a block
// G [m, n]; its blocks of 64 x 64 numbers (f16x3.cuh) lie behind each other, row after row of them.
//
//   moments_of_plates   64 x 64: first, second; g = scale grad (+ pull decay parameter) and first are the caller's to pack; where
//                       it is asked for, of each warp the sum of squares of the grafting's step
//   other_moments       run of 4096 elements of another block: g, first, second
#pragma once
#include "f16x3.cuh"
#include "onblock.cuh"

struct Plate {
  i64 first, stride;  // in the flat vector; from a row to the next
  i64 rows, columns;
  i64 block;          // its first block of numbers
  i64 factors[2], roots[2];
  i64 of;             // the grid's block
};

// Blocks of numbers along an axis.
__device__ __forceinline__ int sides_of(i64 n) { return (int)((n + kSide - 1) / kSide); }

// The last of `count` plates whose first tile is at most `tile`.
__device__ __forceinline__ int plate_of(const i64* first, int count, int tile) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (__ldg(first + middle) <= tile) low = middle; else high = middle;
  }
  return low;
}

// Where a thread's four rows of four numbers of a tile of 64 x 64 are.
struct Spot {
  i64 at, stride;  // of the first row, in the flat vector; 16 rows further
  int rows, left;  // of 64 from its first on; of 4
};
__device__ __forceinline__ Spot spot_of(const Plate& p, int nth) {
  const int across = sides_of(p.columns), row = (int)threadIdx.x / 16, column = (int)threadIdx.x % 16 * 4;
  const i64 r0 = nth / across * (i64)kSide, c0 = nth % across * (i64)kSide;
  return {p.first + (r0 + row) * p.stride + c0 + column, 16 * p.stride, (int)min(p.rows - r0 - row, (i64)kSide),
          (int)max(min(p.columns - c0 - column, 4LL), 0LL)};
}
__device__ __forceinline__ void get(float (&x)[4][4], const float* from, const Spot& s, bool aligned) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float* at = from + s.at + i * s.stride;
    const int left = 16 * i < s.rows ? s.left : 0;
    if (aligned && left == 4) {
      const float4 v = *reinterpret_cast<const float4*>(at);
      x[i][0] = v.x, x[i][1] = v.y, x[i][2] = v.z, x[i][3] = v.w;
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) x[i][e] = e < left ? at[e] : 0.f;
    }
  }
}
__device__ __forceinline__ void put(float* to, const float (&x)[4][4], const Spot& s, bool aligned) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float* at = to + s.at + i * s.stride;
    const int left = 16 * i < s.rows ? s.left : 0;
    if (aligned && left == 4) {
      *reinterpret_cast<float4*>(at) = {x[i][0], x[i][1], x[i][2], x[i][3]};
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (e < left) at[e] = x[i][e];
    }
  }
}
__device__ __forceinline__ bool whole(const Plate& p, int aligned) { return aligned && p.first % 4 == 0 && p.stride % 4 == 0; }

// What moments read and write, and the numbers of the step.
struct MomentsOf {
  const float *grad, *decay, *parameter;
  const double* partials;
  const int* step;
  float *first, *second, *grad_norm;
  double* want;
  int tiles, count, runs, has_second, aligned;
  double clip;
  float pull, beta1, rest1, keep2, new2;
  double ln_beta1, ln_second;
  float eps;
};

// Moments of all tiles; `emit(plate, its number, block, g, first, row, column)` takes each tile's g and first moment.
template <class Emit>
__device__ __forceinline__ void moments_of_plates(const Plate* plates, const i64* first_tile, const MomentsOf& o, Emit emit) {
  __shared__ double slots[kWarps];
  const float scale = scale_of(o.partials, o.runs, o.clip, slots, o.grad_norm);
  const Graft graft = graft_of(o.step, o.ln_beta1, o.ln_second, o.eps, o.has_second);
  const int row = (int)threadIdx.x / 16, column = (int)threadIdx.x % 16 * 4;
  for (int t = (int)blockIdx.x; t < o.tiles; t += (int)gridDim.x) {
    const int m = plate_of(first_tile, o.count, t);
    const Plate& p = plates[m];
    const int nth = t - (int)first_tile[m];
    const Spot s = spot_of(p, nth);
    const bool vectors = whole(p, o.aligned);
    float g[4][4], mean[4][4], square[4][4];
    get(g, o.grad, s, vectors), get(mean, o.first, s, vectors);
    if (o.has_second) get(square, o.second, s, vectors);
    if (o.pull != 0.f) {
      float d[4][4], w[4][4];
      get(d, o.decay, s, vectors), get(w, o.parameter, s, vectors);
#pragma unroll
      for (int e = 0; e < 16; ++e) g[e / 4][e % 4] = fmaf(o.pull * d[e / 4][e % 4], w[e / 4][e % 4], g[e / 4][e % 4] * scale);
    } else {
#pragma unroll
      for (int e = 0; e < 16; ++e) g[e / 4][e % 4] *= scale;
    }
    double sum = 0;
#pragma unroll
    for (int e = 0; e < 16; ++e) {
      const float x = g[e / 4][e % 4];
      float &m1 = mean[e / 4][e % 4], &m2 = square[e / 4][e % 4];
      m1 = o.beta1 * m1 + o.rest1 * x;
      if (o.has_second) m2 = o.keep2 * m2 + o.new2 * (x * x);
      const bool there = 16 * (e / 4) < s.rows && e % 4 < s.left;
      const double u = there ? graft.of(m1, o.has_second ? m2 : 0.f) : 0.f;
      sum = fma(u, u, sum);
    }
    put(o.first, mean, s, vectors);
    if (o.has_second) put(o.second, square, s, vectors);
    emit(p, m, p.block + nth, g, mean, row, column);
    if (!o.want) continue;
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) o.want[(i64)t * kWarps + threadIdx.x / 32] = sum;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    other_moments(const Block* blocks, const i64* of, const i64* first_chunk, const float* grad, const float* decay,
                  const float* parameter, const double* partials, float* g, float* first, float* second, int count, int runs,
                  int has_second, double clip, float pull, float beta1, float rest1, float keep2, float new2) {
  __shared__ double slots[kWarps];
  const float scale = scale_of(partials, runs, clip, slots, nullptr);
  const int which = entry_of(first_chunk, count, blockIdx.x);
  const Block& b = blocks[of[which]];
  const i64 begin = (blockIdx.x - first_chunk[which]) * kChunk, end = min(b.elements, begin + kChunk);
  for (i64 r = begin + threadIdx.x; r < end; r += kThreads) {
    const i64 n = b.first + offset_of(b, -1, r);
    const float x = fmaf(pull * decay[n], parameter[n], grad[n] * scale);
    g[n] = x;
    first[n] = beta1 * first[n] + rest1 * x;
    if (has_second) second[n] = keep2 * second[n] + new2 * (x * x);
  }
}
