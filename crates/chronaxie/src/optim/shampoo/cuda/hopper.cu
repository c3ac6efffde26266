// shampoo on Hopper's tensor cores (sm_90a): what becomes of the blocks of parameters that are matrices (plates.cuh). All other blocks,
// roots, and the sums of squares of the gradient are those of shampoo.cu.
//
//   plate_moments     64 x 64 of a plate: first, second, and g = scale grad (+ pull decay parameter) and first as blocks of numbers;
//                     a warp's part of the squared norm of the grafting's step
//   plate_gram_rows, plate_gram_columns   factors (plates.cuh)
//   plate_left        128 x 128 of R_0 m, as blocks of numbers, which overwrite g's
//   plate_right       128 x 128 of (R_1 (R_0 m)^T)^T, to a flat vector; a warp's part of its squared norm
//   plate_scales      plate: the norm of the grafting's step over that of its own, of parts in their order
//   plate_update      64 x 64 of a plate: the parameter
//   other_moments     run of 4096 elements of another block: g, first, second
//
// Floors, the 350 M parameters of 24 layers of width 1024 in blocks of 1024: moments move 28 bytes an element (36 with a pull), 2.3 ms
// at 4.28 TB/s; Gram matrices 3 * 2 * (36 / 64) n flops of f16 an element and axis, in all 2.4 PFLOP, 3.9 ms at 0.62 PFLOP/s, beside
// 8 + 8 bytes; products 3 * 2 n, 4.3 PFLOP, 6.9 ms; the update 16 bytes, 1.3 ms.
#include "onblock.cuh"
#include "plates.cuh"

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

__device__ __forceinline__ double warp_sum(double x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    plate_moments(const Plate* plates, const i64* first_tile, const float* grad, const float* decay, const float* parameter,
                  const double* partials, const int* step, float* first, float* second, float* grad_norm, char* g_to,
                  float* g_scales, char* m_to, float* m_scales, double* want, int tiles, int count, int runs, int has_second,
                  int aligned, double clip, float pull, float beta1, float rest1, float keep2, float new2, double ln_beta1,
                  double ln_second, float eps) {
  __shared__ double slots[kWarps];
  __shared__ unsigned most[2][kWarps];
  const double norm = folded(partials, runs, slots);
  if (blockIdx.x == 0 && threadIdx.x == 0) grad_norm[0] = (float)norm;
  const float scale = clip > 0. && norm > clip ? (float)(clip / norm) : 1.f;
  const Graft graft = graft_of(step, ln_beta1, ln_second, eps, has_second);
  const int row = (int)threadIdx.x / 16, column = (int)threadIdx.x % 16 * 4;
  for (int t = (int)blockIdx.x; t < tiles; t += (int)gridDim.x) {
    const int m = plate_of(first_tile, count, t);
    const Plate& p = plates[m];
    const int nth = t - (int)first_tile[m];
    const Spot s = spot_of(p, nth);
    const bool vectors = whole(p, aligned);
    float g[4][4], mean[4][4], square[4][4];
    get(g, grad, s, vectors), get(mean, first, s, vectors);
    if (has_second) get(square, second, s, vectors);
    if (pull != 0.f) {
      float d[4][4], w[4][4];
      get(d, decay, s, vectors), get(w, parameter, s, vectors);
#pragma unroll
      for (int e = 0; e < 16; ++e) g[e / 4][e % 4] = fmaf(pull * d[e / 4][e % 4], w[e / 4][e % 4], g[e / 4][e % 4] * scale);
    } else {
#pragma unroll
      for (int e = 0; e < 16; ++e) g[e / 4][e % 4] *= scale;
    }
    double sum = 0;
#pragma unroll
    for (int e = 0; e < 16; ++e) {
      const float x = g[e / 4][e % 4];
      float &m1 = mean[e / 4][e % 4], &m2 = square[e / 4][e % 4];
      m1 = beta1 * m1 + rest1 * x;
      if (has_second) m2 = keep2 * m2 + new2 * (x * x);
      const bool there = 16 * (e / 4) < s.rows && e % 4 < s.left;
      const double u = there ? graft.of(m1, has_second ? m2 : 0.f) : 0.f;
      sum = fma(u, u, sum);
    }
    put(first, mean, s, vectors);
    if (has_second) put(second, square, s, vectors);
    const i64 block = p.block + nth;
    const unsigned of_g = pack_block(g, g_to + block * kBlockBytes, row, column, most[0]);
    const unsigned of_m = pack_block(mean, m_to + block * kBlockBytes, row, column, most[1]);
    if (threadIdx.x == 0) g_scales[block] = scale_down(of_g), m_scales[block] = scale_down(of_m);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) want[(i64)t * kWarps + threadIdx.x / 32] = sum;
  }
}

extern "C" __global__ void __launch_bounds__(kPlateThreads, 1)
    plate_left(const Plate* plates, const i64* first, const char* packed, const float* scales, const float* roots, char* to,
               float* to_scales, int tiles, int count) {
  __shared__ unsigned most[16];
  auto emit = [&](const float(&acc)[16][4], const ProductTile<0>& t, int, int, float* own) {
    const i64 block = plates[t.nth].block;
    pack_tile(acc, own, most, to + block * kBlockBytes, to_scales + block, t.b.down, t.b.across, t.row, t.column);
  };
  multiply<0, false>(plates, first, packed, scales, roots, tiles, count, emit);
}

extern "C" __global__ void __launch_bounds__(kPlateThreads, 1)
    plate_right(const Plate* plates, const i64* first, const char* packed, const float* scales, const float* roots, float* to,
                const int* step, double* have, int tiles, int count, double ln_beta1) {
  const float c1 = (float)(1. / correction(ln_beta1, *step));
  auto emit = [&](const float(&acc)[16][4], const ProductTile<1>& t, int tile, int group, float*) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    // Two columns of the plate, side by side.
    const int column = t.row * kEdge + 64 * group + 16 * warp + lane / 4 * 2;
    const Plate& p = plates[t.nth];
    float* at = to + p.first + column;
    const bool vectors = (u64)at % 8 == 0 && p.stride % 2 == 0;
    double sum = 0;
#pragma unroll
    for (int n = 0; n < 16; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int row = t.column * kEdge + 8 * n + lane % 4 * 2 + e, left = row < t.others ? t.n - column : 0;
        const float x = c1 * acc[n][e], y = c1 * acc[n][2 + e];
        store_two(at + row * p.stride, x, y, vectors, left);
        if (left > 0) sum = fma((double)x, (double)x, sum);
        if (left > 1) sum = fma((double)y, (double)y, sum);
      }
    sum = warp_sum(sum);
    if (lane == 0) have[tile * 8LL + 4 * group + warp] = sum;
  };
  multiply<1, true>(plates, first, packed, scales, roots, tiles, count, emit);
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    plate_scales(const Plate* plates, const i64* first_tile, const i64* first_product, const double* want, const double* have,
                 float* scales, int grafts) {
  __shared__ double slots[kWarps];
  double wanted = 0, had = 0;
  for (i64 t = first_tile[blockIdx.x] * 8 + threadIdx.x; t < first_tile[blockIdx.x + 1] * 8; t += kThreads) wanted += want[t];
  for (i64 t = first_product[blockIdx.x] * 8 + threadIdx.x; t < first_product[blockIdx.x + 1] * 8; t += kThreads) had += have[t];
  wanted = block_sum(wanted, slots), had = block_sum(had, slots);
  if (threadIdx.x == 0) scales[plates[blockIdx.x].of] = grafts ? (float)(sqrt(wanted) / (sqrt(had) + 1e-16)) : 1.f;
}

extern "C" __global__ void __launch_bounds__(kThreads, 3)
    plate_update(const Plate* plates, const i64* first_tile, const float* product, const float* first, const float* second,
                 const float* scales, const float* decay, const float* rate, const float* largest, const int* step,
                 float* parameter, int count, int start, int aligned, double ln_beta1, double ln_second, float eps, int squares,
                 int mode, double weight_decay) {
  const int m = plate_of(first_tile, count, (int)blockIdx.x);
  const Plate& p = plates[m];
  const Spot s = spot_of(p, (int)(blockIdx.x - first_tile[m]));
  const bool vectors = whole(p, aligned);
  const float speed = rate[0], shrink = shrink_of(mode, weight_decay, speed, largest[0]);
  float u[4][4], w[4][4], d[4][4];
  if (*step >= start) {
    const float scale = scales[p.of];
    get(u, product, s, vectors);
#pragma unroll
    for (int e = 0; e < 16; ++e) u[e / 4][e % 4] *= scale;
  } else {
    const Graft graft = graft_of(step, ln_beta1, ln_second, eps, squares);
    get(u, first, s, vectors);
    if (squares) get(d, second, s, vectors);
#pragma unroll
    for (int e = 0; e < 16; ++e) u[e / 4][e % 4] = graft.of(u[e / 4][e % 4], squares ? d[e / 4][e % 4] : 0.f);
  }
  get(w, parameter, s, vectors), get(d, decay, s, vectors);
#pragma unroll
  for (int e = 0; e < 16; ++e) {
    float& x = w[e / 4][e % 4];
    x -= fmaf(speed, u[e / 4][e % 4], x * d[e / 4][e % 4] * shrink);
  }
  put(parameter, w, s, vectors);
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    other_moments(const Block* blocks, const i64* of, const i64* first_chunk, const float* grad, const float* decay,
                  const float* parameter, const double* partials, float* g, float* first, float* second, int count, int runs,
                  int has_second, double clip, float pull, float beta1, float rest1, float keep2, float new2) {
  __shared__ double slots[kWarps];
  const double norm = folded(partials, runs, slots);
  const float scale = clip > 0. && norm > clip ? (float)(clip / norm) : 1.f;
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
