// muon on Hopper's tensor cores (sm_90a): matrices with sides of a tile of a product and more, as plates (plates.cuh, products.cuh) at the
// accuracy of f32. All else is muon.cu's.
//
//   plate_momentum    64 x 64: first; what is made orthogonal as blocks of numbers x, lying down; its sum of squares
//   plate_divide      plate: x over its norm, by its blocks' powers of two
//   and `steps` times, a launch each:
//   plate_triangles   128 x 128 of the triangle of t = x x^T
//   plate_pack        64 x 64 of the triangle: the whole of t as blocks of numbers
//   plate_triangles   of t = b t + c t t^T, since t is symmetric
//   plate_pack        of a I + t
//   plate_advance     128 x 128 of (a I + t) x, as blocks of numbers of the next x
//   plate_apply       64 x 64: the parameter
//
// Floors at 0.62 PFLOP/s: an iteration of a matrix of n elements is 3 * 2 * (9 / 16 + 1) side n + 3 * 2 * 9 / 16 side^3 flops of f16. The 24
// layers of width 1024 of lm350m, and its words (354 M parameters in matrices), have 3.7 TFLOP an iteration, 6.0 ms, and 30 in five; f32 units
// would take 117. A step takes 43.3 ms (NVIDIA H200, 2026-11-28), where its kernels one by one, at 1980 MHz and not at 1650, take 39.4: of an
// iteration the triangles 2.48 and 0.68, packing 0.21 twice, the product with x 3.75; momentum 1.56, the parameters 1.07 (1.3, 0.9 by bytes). With x's product as products.cuh has it of roots, whose rows go
// through registers, that was 5.19, and the step 50.7.
//
// With kFast (precision `fast`) the upper f16 of each number alone is multiplied: a third of the flops, 10 ms, and half of what comes from L2,
// 32 KB for 128 x 128 x 64 multiply-adds, which is 64 bytes a clock and multiprocessor at the whole rate, and binds: 25.2 ms (of an iteration
// 1.35 and 0.44, and 2.10).
#include "products.cuh"

// A plate lies down: rows are its smaller side. `of` says whether the parameter stands, whose first element and stride are the plate's. Of
// the plates of triangles rows and columns are that side.

constexpr int kTurn = kSide + 1;
// A tile turned over; all threads take part.
__device__ __forceinline__ void turn_over(float (&x)[4][4], float* tile) {
  const int row = threadIdx.x / 16, column = threadIdx.x % 16 * 4;
  __syncthreads();
#pragma unroll
  for (int e = 0; e < 16; ++e) tile[(row + 16 * (e / 4)) * kTurn + column + e % 4] = x[e / 4][e % 4];
  __syncthreads();
#pragma unroll
  for (int e = 0; e < 16; ++e) x[e / 4][e % 4] = tile[(column + e % 4) * kTurn + row + 16 * (e / 4)];
}
// Where the parameter of a plate's tile is.
__device__ __forceinline__ Spot parameter_of(const Plate& p, int nth) {
  const int across = sides_of(p.columns), row = (int)threadIdx.x / 16, column = (int)threadIdx.x % 16 * 4;
  const i64 down = nth / across * (i64)kSide, right = nth % across * (i64)kSide;
  const i64 r0 = p.of ? right : down, c0 = p.of ? down : right, rows = p.of ? p.columns : p.rows, columns = p.of ? p.rows : p.columns;
  return {p.first + (r0 + row) * p.stride + c0 + column, 16 * p.stride, (int)min(rows - r0 - row, (i64)kSide),
          (int)max(min(columns - c0 - column, 4LL), 0LL)};
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    plate_momentum(const Plate* plates, const i64* first_tile, const float* grad, const float* decay, const float* parameter,
                   const double* partials, float* first, char* to, float* scales, double* sums, int count, int runs, int aligned,
                   double clip, float pull, float keep, int nesterov) {
  __shared__ double slots[kWarps];
  __shared__ unsigned most[kWarps];
  __shared__ float tile[kSide * kTurn];
  const float scale = scale_of(partials, runs, clip, slots, nullptr);
  const int m = plate_of(first_tile, count, (int)blockIdx.x), nth = (int)(blockIdx.x - first_tile[m]);
  const Plate& p = plates[m];
  const Spot s = parameter_of(p, nth);
  const bool vectors = whole(p, aligned);
  float g[4][4], x[4][4];
  get(g, grad, s, vectors), get(x, first, s, vectors);
  if (pull != 0.f) {
    float d[4][4], w[4][4];
    get(d, decay, s, vectors), get(w, parameter, s, vectors);
#pragma unroll
    for (int e = 0; e < 16; ++e) g[e / 4][e % 4] = fmaf(pull * d[e / 4][e % 4], w[e / 4][e % 4], g[e / 4][e % 4] * scale);
  } else {
#pragma unroll
    for (int e = 0; e < 16; ++e) g[e / 4][e % 4] *= scale;
  }
#pragma unroll
  for (int e = 0; e < 16; ++e) x[e / 4][e % 4] = fmaf(keep, x[e / 4][e % 4], g[e / 4][e % 4]);
  put(first, x, s, vectors);
  double sum = 0;
#pragma unroll
  for (int e = 0; e < 16; ++e) {
    float& v = x[e / 4][e % 4];
    if (nesterov) v = fmaf(keep, v, g[e / 4][e % 4]);
    sum = fma((double)v, (double)v, sum);
  }
  sum = block_sum(sum, slots);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
  if (p.of) turn_over(x, tile);
  const unsigned largest = pack_block(x, to + (p.block + nth) * kBlockBytes, (int)threadIdx.x / 16, (int)threadIdx.x % 16 * 4, most);
  if (threadIdx.x == 0) scales[p.block + nth] = scale_down(largest);
}

// And nothing is left of the triangle of an earlier step.
extern "C" __global__ void __launch_bounds__(kThreads, 4)
    plate_divide(const Plate* plates, const i64* first_tile, const double* sums, float* scales, float* triangles) {
  __shared__ double slots[kWarps];
  const Plate& p = plates[blockIdx.x];
  const i64 begin = first_tile[blockIdx.x], end = first_tile[blockIdx.x + 1], size = p.rows * (p.rows + 1) / 2;
  double sum = 0;
  for (i64 t = begin + threadIdx.x; t < end; t += kThreads) sum += sums[t];
  const float by = (float)(1. / (sqrt(block_sum(sum, slots)) + 1e-7));
  for (i64 t = threadIdx.x; t < end - begin; t += kThreads) scales[p.block + t] *= by;
  for (i64 e = threadIdx.x; e < size; e += kThreads) triangles[p.factors[0] + e] = 0.f;
}

extern "C" __global__ void __launch_bounds__(kPlateThreads, 1)
    plate_triangles(const Plate* plates, const i64* first, const char* packed, const float* scales, float* triangles, int tiles,
                    int count, float keep, float weight) {
  gram_of_plates<false, kFast>(plates, first, packed, scales, triangles, tiles, count, keep, weight);
}

// A tile of a product of a symmetric matrix t, [rows, rows] of a plate, and the plate x.
struct AdvanceTile {
  Blocks t, x;
  int chunks, row, column, plate;
  __device__ __forceinline__ bool one() const { return false; }
  __device__ __forceinline__ void copy(unsigned at, int k, unsigned barrier) const {
    barrier_expect_at(barrier, Ring<kFast>::kPlace);
    t.copy_two<kFast>(at, t.at(2 * row, k), t.at(2 * row + 1, k), barrier);
    x.copy_two<kFast>(at + Ring<kFast>::kOperand, x.at(k, 2 * column), x.at(k, 2 * column + 1), barrier);
  }
  __device__ __forceinline__ float scale_a(int side, int k) const { return __ldg(t.scale + t.at(2 * row + side, k)); }
  __device__ __forceinline__ float scale_b(int side, int k) const { return __ldg(x.scale + x.at(k, 2 * column + side)); }
  __device__ __forceinline__ void ahead(int) const {}
};
extern "C" __global__ void __launch_bounds__(kPlateThreads, 1)
    plate_advance(const Plate* plates, const Plate* squares, const i64* first, const char* of_t, const float* scales_t, const char* of_x,
                  const float* scales_x, char* to, float* to_scales, int tiles, int count) {
  __shared__ unsigned most[16];
  auto take = [&](AdvanceTile& tile, int m, int nth) {
    tile.t = blocks_of(squares[m], of_t, scales_t), tile.x = blocks_of(plates[m], of_x, scales_x);
    const int across = edges_of(plates[m].columns), here = nth - (int)__ldg(first + m);
    tile.chunks = tile.x.down, tile.row = here / across, tile.column = here % across, tile.plate = m;
  };
  auto emit = [&](const float(&acc)[16][4], const AdvanceTile& tile, int group, float* own) {
    const i64 block = plates[tile.plate].block;
    // All warps of the group have read what the last tile's largest numbers were.
    asm volatile("bar.sync %0, 128;" ::"r"(3 + group) : "memory");
    pack_tile<false>(acc, own, most, to + block * kBlockBytes, to_scales + block, tile.x.down, tile.x.across, tile.row, tile.column);
  };
  multiply_blocks<AdvanceTile, kFast, false, true>(first, tiles, count, take, emit);
}

// `emit(plate, row, column, x)` of each tile of 64 x 64 of a I and a symmetric matrix, of which the triangle is there.
template <class Emit>
__device__ __forceinline__ void both_triangles(const Plate* plates, const i64* first_pair, const float* triangles, int count, float a,
                                               Emit emit) {
  __shared__ float tile[kSide * kTurn];
  const int m = plate_of(first_pair, count, (int)blockIdx.x);
  const Plate& p = plates[m];
  const int2 at = below_diagonal((int)(blockIdx.x - first_pair[m]));
  const float* from = triangles + p.factors[0];
  const int row = (int)threadIdx.x / 16, column = (int)threadIdx.x % 16 * 4, n = (int)p.rows;
  float x[4][4];
#pragma unroll
  for (int e = 0; e < 16; ++e) {
    const int i = at.x * kSide + row + 16 * (e / 4), j = at.y * kSide + column + e % 4;
    x[e / 4][e % 4] = i < n && j <= i ? from[triangle(i) + j] + (i == j ? a : 0.f) : 0.f;
  }
  if (at.x == at.y) {
    float y[4][4];
#pragma unroll
    for (int e = 0; e < 16; ++e) y[e / 4][e % 4] = x[e / 4][e % 4];
    turn_over(y, tile);
#pragma unroll
    for (int e = 0; e < 16; ++e)
      if (column + e % 4 > row + 16 * (e / 4)) x[e / 4][e % 4] = y[e / 4][e % 4];
  }
  emit(p, at.x, at.y, x);
  if (at.x == at.y) return;
  turn_over(x, tile);
  emit(p, at.y, at.x, x);
}

extern "C" __global__ void __launch_bounds__(kThreads, 3)
    plate_pack(const Plate* plates, const i64* first_pair, const float* triangles, char* to, float* scales, int count, float a) {
  __shared__ unsigned most[kWarps];
  both_triangles(plates, first_pair, triangles, count, a, [&](const Plate& p, int r, int c, const float(&x)[4][4]) {
    const i64 block = p.block + r * (i64)sides_of(p.columns) + c;
    const unsigned largest = pack_block(x, to + block * kBlockBytes, (int)threadIdx.x / 16, (int)threadIdx.x % 16 * 4, most);
    if (threadIdx.x == 0) scales[block] = scale_down(largest);
  });
}

extern "C" __global__ void __launch_bounds__(kThreads, 3)
    plate_apply(const Plate* plates, const i64* first_tile, const char* packed, const float* scales, const float* decay,
                const float* rate, const float* largest, float* parameter, int count, int aligned, int mode, double weight_decay) {
  __shared__ float tile[kSide * kTurn];
  const int m = plate_of(first_tile, count, (int)blockIdx.x), nth = (int)(blockIdx.x - first_tile[m]);
  const Plate& p = plates[m];
  const Spot s = parameter_of(p, nth);
  const bool vectors = whole(p, aligned);
  const double ratio = p.of ? (double)p.columns / (double)p.rows : 1.;
  const float speed = (float)(rate[0] * sqrt(ratio)), shrink = shrink_of(mode, weight_decay, rate[0], largest[0]);
  const char* from = packed + (p.block + nth) * kBlockBytes;
  const float scale = scales[p.block + nth];
  float x[4][4], w[4][4], d[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned place = swizzled_at(threadIdx.x / 16 + 16 * i, threadIdx.x % 16 * 4);
    const uint2 high = *reinterpret_cast<const uint2*>(from + place), low = *reinterpret_cast<const uint2*>(from + kTileBytes + place);
    const float2 a = unpack<false>(high.x), b = unpack<false>(high.y), c = unpack<false>(low.x), e = unpack<false>(low.y);
    x[i][0] = (a.x + c.x) * scale, x[i][1] = (a.y + c.y) * scale, x[i][2] = (b.x + e.x) * scale, x[i][3] = (b.y + e.y) * scale;
  }
  if (p.of) turn_over(x, tile);
  get(w, parameter, s, vectors);
  if (shrink != 0.f) get(d, decay, s, vectors);
#pragma unroll
  for (int e = 0; e < 16; ++e) {
    float& y = w[e / 4][e % 4];
    y -= fmaf(speed, x[e / 4][e % 4], shrink != 0.f ? y * d[e / 4][e % 4] * shrink : 0.f);
  }
  put(parameter, w, s, vectors);
}
