// Inverse p-th roots X = (A + eps I)^(-1/p) of symmetric matrices [n, n] by a coupled iteration on tensor cores (compute
// capability 8.0 and later). c blocks make a group, a group takes a matrix at a time, groups stride over the batch.
//
//   E = I - M, M = zeta (A + eps I), ||M|| <= 1.75:  T = sum_{i<=4} c_i E^i, (1 - e)^(-1/p) = sum_i c_i e^i
//   Y <- Y T,   M <- T^p M,   X = zeta^(1/p) Y         (Lakic, "On the computation of the matrix k-th root", 1998)
//
// With d = 1 that is the coupled Newton iteration: 4 products at p = 4 for an order of 2 and a growth of small eigenvalues by 2.44.
// d = 4 takes 6 products (E2 = E E, T = I + F with F = E / p + E2 (c2 + c3 E + c4 E2), T^4 - 1 by two squarings of F + F + F F,
// M, Y) for an order of 5 and a growth by 6.86: half the products. Of T and its powers the distance from I is kept, so that products
// get smaller as it converges, and their roundings with them; M itself is kept beside E, since what is small of it is lost in E (at
// a condition number of 1e4 the root is off by 1.0e-5 with it and 1.1e-4 without; the Newton iteration in f32: 3.8e-5). The first iteration has no product of Y, and its
// E E is that of A, whose norm gives zeta: ||A||_2 <= ||A A||_F^(1/2). The last one needs no E: it is the one before whose end
// ||E||_F^5 is below f32; a small E takes two products less. At a condition number of 34 that is 5 + 6 + 6 + 2 products.
//
// All matrices are polynomials in A: they commute and are symmetric, so only tiles on and below the diagonal are made. An element x
// is kept as two halves: hi = f16(s x), lo = f16(s x - hi), s a power of 2 (23 bits: an f32 has one more), and a product is
// hi lo + lo hi + hi hi by mma.sync. Tensor cores cut what they add to a sum, so sums over 32 terms are added up by f32 units.
//
// Floors, H200: mma.sync does about 620 TFLOP/s of f16, a third of that here (f32 units: 51). A product of 64 x 128^2, on 64 of 132
// multiprocessors, is 4.2 MFLOP each on 1.5 TFLOP/s: 2.7 us, 19 of them 51 us. 16 x 512^2: 160 tiles of 33.6 MFLOP on 132
// multiprocessors, two rounds: 44 us, 19 of them 0.8 ms, 0.5 ms if tiles fitted. 1 x 2048^2: 136 tiles, 1.9 ms; 1 x 4096^2: 528 tiles,
// 1.5 TFLOP in all, 7 ms. Operands of a tile are 1 KB a term for 16384 x 3 multiply-adds, from the second cache: 23 bytes a clock and
// multiprocessor at that rate, about what it gives. Device memory: 28 n^2 bytes of workspace a group.
#include "mma.cuh"

typedef long long i64;
typedef unsigned short u16;

constexpr int kThreads = 256, kTile = 128, kTerms = 32;
constexpr int kPitch = pitch_of(kTerms);              // of a tile's rows in shared memory, bytes
constexpr int kOperand = kTile * kPitch, kStage = 4 * kOperand;
constexpr int kBuffers = 7, kMostIterations = 24;
constexpr float kScale = 2048.f, kFirstScale = 32768.f;  // s of all but Y, entries of at most 31; of A / ||A||_F
constexpr float kLargest = 60000.f;
constexpr float kEnough = 2e-8f;                      // of the root, relative: a third of an f32's rounding
enum { kNewton = 0, kFailed = 3 };

// One product c = a b and what becomes of it: out = beta c + first x + second y; also = beta2 c + first2 x + delta I.
struct Task {
  const u16 *a, *b, *x, *y;
  u16 *out, *also;
  float* flat;  // gamma out, [n, flat_pitch], instead of out's halves
  double* sums; // [tiles] of out^2, or of also^2 where there is one
  float beta, first, second, out_scale, beta2, first2, delta, also_scale, gamma;
  int flat_pitch;
};

struct Shape {
  int n, pitch, tiles, rank, blocks, stages;
  i64 plane;  // elements from a buffer's hi to its lo
};

__device__ __forceinline__ void product16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ double block_sum(double x, double* slots) {
  for (int o = 16; o > 0; o /= 2) x += __shfl_xor_sync(~0u, x, o);
  __syncthreads();
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = x;
  __syncthreads();
  x = slots[0];
  for (int w = 1; w < kThreads / 32; ++w) x += slots[w];
  return x;
}

// Between the blocks of a group: all that was written before is seen after.
__device__ __forceinline__ void group_sync(unsigned* counter, unsigned& round, int blocks) {
  __syncthreads();
  if (blocks == 1) return;
  round += blocks;
  if (threadIdx.x == 0) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(1u) : "memory");
    unsigned seen;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
    } while ((int)(seen - round) < 0);
  }
  __syncthreads();
}

// Row and column of the nth tile on and below the diagonal.
__device__ __forceinline__ int2 tile_of(int nth) {
  int row = (int)((sqrtf(8.f * nth + 1.f) - 1.f) * 0.5f);
  while ((row + 1) * (row + 2) / 2 <= nth) ++row;
  while (row * (row + 1) / 2 > nth) --row;
  return make_int2(row, nth - row * (row + 1) / 2);
}

// Where an element of a tile of f32 lies: fragments, rows and columns are read and written without conflicts of banks.
__device__ __forceinline__ int at(int row, int column) {
  return row * kTile + (column ^ (row & 31) ^ (row & 3) << 3);
}

__device__ __forceinline__ void copy_terms(const Shape& s, unsigned to, const u16* a, const u16* b, int2 tile, int term) {
  const int piece = threadIdx.x % 4, k = term + 8 * piece;
#pragma unroll
  for (int q = 0; q < 8; ++q) {
    const int operand = q / 2, r = q % 2 * (kTile / 2) + threadIdx.x / 4;
    const int row = (operand < 2 ? tile.x : tile.y) * kTile + r;
    const u16* from = (operand < 2 ? a : b) + (operand % 2 ? s.plane : 0);
    const bool there = row < s.n && k < s.pitch;
    copy_ahead(to + operand * kOperand + r * kPitch + 16 * piece, there ? from + (i64)row * s.pitch + k : from, there);
  }
}

// sum[i][j] of this warp's 64 x 32 elements of a tile.
__device__ __forceinline__ void multiply_tile(const Shape& s, const Task& task, int2 tile, unsigned shared, bool works,
                                              float (&sum)[4][4][4]) {
  const int chunks = (s.n + kTerms - 1) / kTerms, warp = threadIdx.x / 32;
  const u16 *a = task.a, *b = task.b;
#pragma unroll
  for (int e = 0; e < 64; ++e) sum[e / 16][e / 4 % 4][e % 4] = 0.f;
  for (int c = 0; c + 1 < s.stages; ++c) {
    if (c < chunks) copy_terms(s, shared + c * kStage, a, b, tile, c * kTerms);
    copy_commit();
  }
  int stage = 0;
  for (int c = 0; c < chunks; ++c) {
    copy_wait(s.stages - 2);
    __syncthreads();
    const int ahead = c + s.stages - 1;
    int free = stage - 1;
    if (free < 0) free += s.stages;
    if (ahead < chunks) copy_terms(s, shared + free * kStage, a, b, tile, ahead * kTerms);
    copy_commit();
    if (works) {
      const unsigned from = shared + stage * kStage;
      const unsigned fa = from + warp / 4 * 64 * kPitch + lane_down<kPitch>();
      const unsigned fb = from + 2 * kOperand + warp % 4 * 32 * kPitch + lane_across<kPitch>();
      float part[4][4][4];
#pragma unroll
      for (int e = 0; e < 64; ++e) part[e / 16][e / 4 % 4][e % 4] = 0.f;
#pragma unroll 1
      for (int k = 0; k < kTerms / 16; ++k) {
        unsigned y[2][2][4];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          load_matrices<false>(y[0][j], fb + j * 16 * kPitch + 32 * k);
          load_matrices<false>(y[1][j], fb + kOperand + j * 16 * kPitch + 32 * k);
        }
#pragma unroll
        for (int i0 = 0; i0 < 4; i0 += 2) {
          unsigned x[2][2][4];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            load_matrices<false>(x[0][i], fa + (i0 + i) * 16 * kPitch + 32 * k);
            load_matrices<false>(x[1][i], fa + kOperand + (i0 + i) * 16 * kPitch + 32 * k);
          }
          // lo hi, hi lo, hi hi: the large one last.
#pragma unroll
          for (int term = 0; term < 3; ++term)
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
              for (int j = 0; j < 4; ++j)
                product16(part[i0 + i][j], x[term == 0][i], y[term == 1][j / 2][j % 2 * 2], y[term == 1][j / 2][j % 2 * 2 + 1]);
        }
      }
#pragma unroll
      for (int e = 0; e < 64; ++e) sum[e / 16][e / 4 % 4][e % 4] += part[e / 16][e / 4 % 4][e % 4];
    }
    if (++stage == s.stages) stage = 0;
  }
  copy_wait(0);
  __syncthreads();
}

// Four elements of a buffer.
__device__ __forceinline__ float4 load4(const u16* from, i64 plane, i64 place) {
  const uint2 hi = __ldcg((const uint2*)(from + place)), lo = __ldcg((const uint2*)(from + plane + place));
  const float2 h0 = unpack<false>(hi.x), h1 = unpack<false>(hi.y), l0 = unpack<false>(lo.x), l1 = unpack<false>(lo.y);
  return make_float4(h0.x + l0.x, h0.y + l0.y, h1.x + l1.x, h1.y + l1.y);
}
__device__ __forceinline__ void store4(u16* to, i64 plane, i64 place, float scale, float4 v) {
  const float x = v.x * scale, y = v.y * scale, z = v.z * scale, w = v.w * scale;
  const uint2 hi = make_uint2(pack<false>(x, y), pack<false>(z, w));
  const float2 h0 = unpack<false>(hi.x), h1 = unpack<false>(hi.y);
  const uint2 lo = make_uint2(pack<false>(x - h0.x, y - h0.y), pack<false>(z - h1.x, w - h1.y));
  *(uint2*)(to + place) = hi;
  *(uint2*)(to + plane + place) = lo;
}

// What becomes of elements (row, column .. column + 3) of a product; gives the sum of the squares that are asked for.
__device__ __forceinline__ float emit(const Shape& s, const Task& t, int row, int column, const float (&c)[4]) {
  if (row >= s.n || column >= s.pitch) return 0.f;
  const i64 place = (i64)row * s.pitch + column;
  float4 x = make_float4(0.f, 0.f, 0.f, 0.f), y = x;
  if (t.x) x = load4(t.x, s.plane, place);
  if (t.y) y = load4(t.y, s.plane, place);
  const float xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
  float v[4], w[4], squares = 0.f;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const bool there = column + e < s.n;
    v[e] = there ? fmaf(t.beta, c[e], fmaf(t.first, xs[e], t.second * ys[e])) : 0.f;
    w[e] = there ? fmaf(t.beta2, c[e], fmaf(t.first2, xs[e], row == column + e ? t.delta : 0.f)) : 0.f;
    squares += t.also ? w[e] * w[e] : v[e] * v[e];
  }
  if (t.flat) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (column + e < s.n) t.flat[(i64)row * t.flat_pitch + column + e] = t.gamma * v[e];
  } else {
    store4(t.out, s.plane, place, t.out_scale, make_float4(v[0], v[1], v[2], v[3]));
  }
  if (t.also) store4(t.also, s.plane, place, t.also_scale, make_float4(w[0], w[1], w[2], w[3]));
  return squares;
}

// The tiles of `count` products that belong to this block.
__device__ __forceinline__ void make(const Shape& s, const Task* tasks, int count, float* tile_f32, double* slots) {
  const unsigned shared = shared_at(tile_f32);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int nth = s.rank; nth < count * s.tiles; nth += s.blocks) {
    const Task& t = tasks[nth / s.tiles];
    const int2 tile = tile_of(nth % s.tiles);
    const int row0 = warp / 4 * 64, column0 = warp % 4 * 32;
    const bool diagonal = tile.x == tile.y;
    const bool works = tile.x * kTile + row0 < s.n && tile.y * kTile + column0 < s.n && !(diagonal && column0 >= row0 + 64);
    {
      float sum[4][4][4];
      multiply_tile(s, t, tile, shared, works, sum);
      // Odd rows have the two of a pair the other way round.
      const int g = lane / 4, c = lane % 4 * 2;
#pragma unroll
      for (int e = 0; e < 32; ++e) {
        const int i = e / 8, j = e / 2 % 4, low = e % 2, row = row0 + 16 * i + 8 * low + g;
        const float x = sum[i][j][2 * low], y = sum[i][j][2 * low + 1];
        *(float2*)&tile_f32[at(row, column0 + 8 * j + c) & ~1] = g % 2 ? make_float2(y, x) : make_float2(x, y);
      }
    }
    __syncthreads();
    float squares = 0.f;
#pragma unroll 2
    for (int q = 0; q < kTile / 8; ++q) {
      const int r = q / 4 * 32 + warp * 4 + lane / 8, k = q % 4 * 32 + lane % 8 * 4;
      float v[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) v[e] = tile_f32[diagonal && k + e > r ? at(k + e, r) : at(r, k + e)];
      squares += emit(s, t, tile.x * kTile + r, tile.y * kTile + k, v);
    }
    if (!diagonal) {
#pragma unroll 2
      for (int q = 0; q < kTile / 8; ++q) {
        const int r = q / 4 * 32 + warp * 4 + lane / 8, k = q % 4 * 32 + lane % 8 * 4;
        float v[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) v[e] = tile_f32[at(k + e, r)];
        emit(s, t, tile.y * kTile + r, tile.x * kTile + k, v);
      }
    }
    if (t.sums) {
      const double all = block_sum(squares, slots);
      if (threadIdx.x == 0) t.sums[nth % s.tiles] = diagonal ? all : 2 * all;
    }
    __syncthreads();
  }
}

// The sum of a product's squares, in an order that no number of blocks changes.
__device__ double total(const double* sums, int tiles, double* slots) {
  double x = 0;
  for (int k = threadIdx.x; k < tiles; k += kThreads) x += __ldcg(sums + k);
  return block_sum(x, slots);
}

// (A + A^T) / 2 to `mean` [n, pitch] and its sum of squares, tile by tile; columns beyond n are 0.
__device__ __noinline__ void symmetric_part(const Shape& s, const float* a, float* mean, double* sums, float* tile_f32,
                                            double* slots) {
  const int column = threadIdx.x % 128, first = threadIdx.x / 128;
  for (int nth = s.rank; nth < s.tiles; nth += s.blocks) {
    const int2 tile = tile_of(nth);
    const bool diagonal = tile.x == tile.y;
    const int i0 = tile.x * kTile, j0 = tile.y * kTile;
    for (int r = first; r < kTile; r += 2)
      tile_f32[at(r, column)] = i0 + r < s.n && j0 + column < s.n ? a[(i64)(i0 + r) * s.n + j0 + column] : 0.f;
    __syncthreads();
    double squares = 0;
    // Rows of the tile across; of a diagonal one those are its own.
    for (int r = first; r < kTile; r += 2) {
      const bool there = j0 + r < s.n && i0 + column < s.n;
      const float other = diagonal ? tile_f32[at(r, column)] : there ? a[(i64)(j0 + r) * s.n + i0 + column] : 0.f;
      const float x = 0.5f * (tile_f32[at(column, r)] + other);
      squares += (diagonal ? 1. : 2.) * x * x;
      if (j0 + r < s.n && i0 + column < s.pitch) mean[(i64)(j0 + r) * s.pitch + i0 + column] = x;
      if (!diagonal) tile_f32[at(column, r)] = x;
    }
    __syncthreads();
    if (!diagonal)
      for (int r = first; r < kTile; r += 2)
        if (i0 + r < s.n && j0 + column < s.pitch) mean[(i64)(i0 + r) * s.pitch + j0 + column] = tile_f32[at(r, column)];
    const double all = block_sum(squares, slots);
    if (threadIdx.x == 0) sums[nth] = all;
    __syncthreads();
  }
}

// What the blocks of a group do next; every one of them comes to the same by itself.
enum Step { kSquareA, kStart, kSquareE, kFactor, kPower, kEnd };
struct Control {
  u16 *buffers, *e, *m, *one, *two, *f, *y, *next_y, *r;
  float *root, *squared;
  double *sums_e, *sums_y;
  double zeta, size;  // of A / size
  float c[6], within[3], growth;  // (1 - e)^(-1/p) = sum c_i e^i; norms of E below which 1, 2 and 4 of its terms are enough
  float norm_e, y_scale, next_scale, residual;
  int n, p, step, terms, last, bit, again, count, status, iterations;
};

__device__ void begin(Control& k, int p) {
  k.p = p, k.c[0] = 1.f;
  for (int i = 0; i < 5; ++i) k.c[i + 1] = k.c[i] * (1.f / p + i) / (i + 1);
  k.within[0] = sqrtf(kEnough / k.c[2]), k.within[1] = cbrtf(kEnough / k.c[3]), k.within[2] = powf(kEnough / k.c[5], 0.2f);
  k.growth = 1.f + k.c[1] + k.c[2] + k.c[3] + k.c[4];
}

// The next step of one thread, from the sums of squares of A A, or of E and Y where an iteration begins.
__device__ __noinline__ void plan(Control& k, const Shape& s, Task* tasks, double total_e, double total_y) {
  constexpr float unit = 1.f / (kScale * kScale);
  const float* c = k.c;
  auto buffer = [&](int i) { return k.buffers + 2 * i * s.plane; };
  k.count = 1;
  Task t = {};
  if (k.step == kSquareA) {
    t.a = t.b = buffer(0), t.beta = 1.f / (kFirstScale * kFirstScale), t.gamma = 1.f;
    t.flat = k.squared, t.flat_pitch = s.pitch, t.sums = k.sums_y;
    tasks[0] = t;
    return;
  }
  if (k.step == kStart) {
    // ||A||_2 <= ||A A||_F^(1/2); a product's roundings are far less than the margin.
    k.zeta = 1.75 / (1.0001 * sqrt(sqrt(total_y)));
    k.e = buffer(0), k.one = buffer(1), k.two = buffer(2), k.f = buffer(3), k.y = buffer(4), k.next_y = buffer(5), k.m = buffer(6);
    k.y_scale = kScale, k.norm_e = __int_as_float(0x7f800000);
    return;
  }
  if (k.step == kSquareE) {
    // An iteration begins. How many terms of T does it take, and is it the last?
    if (k.iterations > 0) {
      const float now = (float)sqrt(total_e);
      // Only an eigenvalue below 0, or roundings of one that is as good as 0, takes E further from 0; NaN ends it too.
      if (!(now <= min(1.001f * k.norm_e, 1e4f)) || k.iterations == kMostIterations) {
        k.count = 0;
        return;
      }
      k.norm_e = now;
    }
    k.terms = k.norm_e <= k.within[0] ? 1 : k.norm_e <= k.within[1] ? 2 : 4;
    k.last = k.norm_e <= k.within[2];
    k.next_scale = kScale;
    if (k.iterations > 0)
      for (const float most = (float)sqrt(total_y) * k.growth; k.next_scale * most > kLargest;) k.next_scale *= 0.5f;
    if (k.iterations == 0) {
      k.step = kFactor;
    } else if (k.terms == 1) {
      k.step = kPower;
    } else {
      t.a = t.b = t.x = k.e;
      if (k.terms == 2)
        t.out = k.f, t.beta = c[2] * unit, t.first = c[1] / kScale, t.out_scale = kScale;
      else
        t.out = k.one, t.beta = unit, t.out_scale = kScale, t.also = k.two, t.beta2 = c[4] * unit,
        t.first2 = c[3] / kScale, t.delta = c[2], t.also_scale = kScale;
      tasks[0] = t;
      return;
    }
  }
  if (k.step == kFactor) {
    t.a = k.one, t.b = k.two, t.x = k.e, t.beta = unit, t.first = c[1] / kScale, t.out = k.f, t.out_scale = kScale;
    if (k.iterations == 0)
      t.also = k.y, t.beta2 = unit, t.first2 = c[1] / kScale, t.delta = 1.f, t.also_scale = kScale, t.sums = k.sums_y;
    tasks[0] = t;
    return;
  }
  // From here on: products of powers r of T, the first of them together with Y + Y F.
  k.count = 0;
  if (k.r == nullptr) {
    k.r = k.f, k.bit = 30 - __clz(k.p), k.again = 0;
    if (k.iterations > 0) {
      t.a = t.x = k.y, t.b = k.terms == 1 ? k.e : k.f;
      t.beta = (k.terms == 1 ? c[1] : 1.f) / (kScale * k.y_scale), t.first = 1.f / k.y_scale, t.sums = k.sums_y;
      if (k.last)
        t.flat = k.root, t.flat_pitch = k.n, t.gamma = (float)pow(k.zeta / k.size, 1. / k.p);
      else
        t.out = k.next_y, t.out_scale = k.next_scale;
      tasks[k.count++] = t;
    }
    if (k.last) {
      const float d = k.norm_e, d2 = d * d;
      k.residual = k.p * (k.terms == 1 ? c[2] * d2 : k.terms == 2 ? c[3] * d2 * d : c[5] * d2 * d2 * d);
      k.status = kNewton, k.step = kEnd, ++k.iterations;
      return;
    }
  }
  t = {};
  u16* out = k.r == k.one ? k.two : k.one;
  t.a = k.r, t.out = out, t.beta = unit, t.out_scale = kScale;
  if (k.bit >= 0) {
    // T^p - I = r, by the bits of p: 2 r + r r, and r + f + r f.
    t.x = k.r;
    if (k.again)
      t.b = t.y = k.f, t.first = t.second = 1.f / kScale;
    else
      t.b = k.r, t.first = 2.f / kScale;
    if (!k.again && (k.p >> k.bit & 1))
      k.again = 1;
    else
      k.again = 0, --k.bit;
    k.r = out;
    tasks[k.count++] = t;
    return;
  }
  // M <- M + r M and E = I - M. M's own buffer takes the place of the one that it is in then.
  t.b = t.x = k.m, t.first = 1.f / kScale, t.sums = k.sums_e;
  t.also = k.e, t.beta2 = -unit, t.first2 = -1.f / kScale, t.delta = 1.f, t.also_scale = kScale;
  tasks[k.count++] = t;
  if (out == k.one) k.one = k.m; else k.two = k.m;
  k.m = out, k.r = nullptr;
  if (k.iterations++ > 0) {
    u16* other = k.y;
    k.y = k.next_y, k.next_y = other, k.y_scale = k.next_scale;
  }
  k.step = kSquareE;
}

// Four elements of by (A + eps I), by in f64; gives the row less the column of the first.
__device__ __forceinline__ int damped(const Shape& s, const float* mean, i64 quad, double by, double eps, float (&v)[4]) {
  const float4 x = __ldcg((const float4*)mean + quad);
  const int below = (int)(4 * quad / s.pitch) - (int)(4 * quad % s.pitch);
  const float xs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int e = 0; e < 4; ++e) v[e] = (float)(by * (below == e ? xs[e] + eps : (double)xs[e]));
  return below;
}

__device__ __noinline__ void scale(const Shape& s, const float* mean, double by, double eps, u16* to) {
  for (i64 q = (i64)s.rank * kThreads + threadIdx.x; q < s.plane / 4; q += (i64)s.blocks * kThreads) {
    float v[4];
    damped(s, mean, q, by, eps, v);
    store4(to, s.plane, 4 * q, kFirstScale, make_float4(v[0], v[1], v[2], v[3]));
  }
}

// M, E, E E and c2 I + c3 E + c4 E E, from A and A A.
__device__ __noinline__ void start(const Shape& s, const Control& k, const float* mean, double eps) {
  const float by = (float)(k.zeta * k.zeta);
  const double z = k.zeta / k.size;
  for (i64 q = (i64)s.rank * kThreads + threadIdx.x; q < s.plane / 4; q += (i64)s.blocks * kThreads) {
    float v[4], e1[4], e2[4], w[4];
    const int below = damped(s, mean, q, z, eps, v), column = (int)(4 * q % s.pitch);
    const float4 x = __ldcg((const float4*)k.squared + q);
    const float xs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float one = below == e ? 1.f : 0.f;
      const bool there = column + e < s.n;
      e1[e] = there ? one - v[e] : 0.f;
      e2[e] = there ? fmaf(by, xs[e], one - 2.f * v[e]) : 0.f;
      w[e] = there ? fmaf(k.c[2], one, fmaf(k.c[3], e1[e], k.c[4] * e2[e])) : 0.f;
    }
    store4(k.m, s.plane, 4 * q, kScale, make_float4(v[0], v[1], v[2], v[3]));
    store4(k.e, s.plane, 4 * q, kScale, make_float4(e1[0], e1[1], e1[2], e1[3]));
    store4(k.one, s.plane, 4 * q, kScale, make_float4(e2[0], e2[1], e2[2], e2[3]));
    store4(k.two, s.plane, 4 * q, kScale, make_float4(w[0], w[1], w[2], w[3]));
  }
}

extern "C" __global__ void clear(unsigned* counters, int groups) {
  const int k = blockIdx.x * blockDim.x + threadIdx.x;
  if (k < groups) counters[16 * k] = 0;
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    newton_roots(const float* __restrict__ a,  // [N, n, n]
                 float* root,                  // [N, n, n]
                 float* record,                // [N, 4]
                 u16* work,                    // [groups, 7, 2, n, pitch]
                 double* sums,                 // [groups, 2, tiles]
                 unsigned* counters,           // [groups, 16]
                 i64 count, int n, int p, int blocks, int stages, double absolute, double relative) {
  extern __shared__ __align__(16) float tile_f32[];
  __shared__ double slots[kThreads / 32];
  __shared__ Task tasks[2];
  __shared__ Control k;
  __shared__ Shape s;
  const int group = blockIdx.x / blocks, groups = gridDim.x / blocks;
  unsigned* counter = counters + 16 * group;
  unsigned round = 0;
  const bool first = threadIdx.x == 0;
  if (first) {
    const int side = (n + kTile - 1) / kTile;
    s.n = n, s.pitch = (n + 7) / 8 * 8, s.blocks = blocks, s.stages = stages, s.plane = (i64)n * s.pitch;
    s.tiles = side * (side + 1) / 2, s.rank = blockIdx.x % blocks;
    begin(k, p);
    k.n = n, k.buffers = work + (i64)group * kBuffers * 2 * s.plane;
    k.sums_e = sums + (i64)group * 2 * s.tiles, k.sums_y = k.sums_e + s.tiles;
    k.squared = (float*)(k.buffers + 10 * s.plane);
  }
  __syncthreads();
  for (i64 nth = group; nth < count; nth += groups) {
    float* mean = (float*)(k.buffers + 8 * s.plane);
    symmetric_part(s, a + nth * n * n, mean, k.sums_e, tile_f32, slots);
    group_sync(counter, round, blocks);
    const double norm = sqrt(total(k.sums_e, s.tiles, slots)), eps = max(absolute, relative * norm), size = norm + eps;
    // Beyond, squares of f32 are no numbers.
    const bool there = norm < 1e300 && size > 0;
    if (first) {
      k.status = kFailed, k.iterations = 0, k.residual = __int_as_float(0x7fffffff);
      k.step = there ? kSquareA : kEnd, k.size = size, k.r = nullptr, k.root = root + nth * n * n;
    }
    if (there) scale(s, mean, 1 / size, eps, k.buffers);
    group_sync(counter, round, blocks);
    for (;;) {
      const int step = k.step;
      if (step == kEnd) break;
      double total_e = 0, total_y = 0;
      if (step == kStart || step == kSquareE) {
        total_y = total(k.sums_y, s.tiles, slots);
        if (step == kSquareE && k.iterations > 0) total_e = total(k.sums_e, s.tiles, slots);
      }
      __syncthreads();
      if (first) plan(k, s, tasks, total_e, total_y);
      __syncthreads();
      if (k.count == 0) break;
      if (step == kStart)
        start(s, k, mean, eps);
      else
        make(s, tasks, k.count, tile_f32, slots);
      group_sync(counter, round, blocks);
      // What follows these is always the same; the others' next step is in the plan.
      if (first) {
        if (step == kSquareA)
          k.step = kStart;
        else if (step == kStart)
          k.step = kSquareE;
        else if (k.step == kSquareE && step == kSquareE)
          k.step = k.terms == 2 ? kPower : kFactor;
        else if (k.step == kFactor)
          k.step = kPower;
      }
      __syncthreads();
    }
    if (first && s.rank == 0) {
      float* at = record + nth * 4;
      at[0] = (float)k.status, at[1] = (float)k.iterations, at[2] = k.residual, at[3] = (float)eps;
    }
    group_sync(counter, round, blocks);
  }
}
