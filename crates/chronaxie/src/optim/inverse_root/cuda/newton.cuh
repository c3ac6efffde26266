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
// hi lo + lo hi + hi hi by mma.sync; on sm_90a by wgmma, whose operands one thread asks the copy engine for, through a ring, while a
// tile's sums are put out too. Tensor cores cut what they add to a sum, so sums over 32 terms are added up by f32 units.
//
// Floors, H200: mma.sync does about 620 TFLOP/s of f16, a third of that here (f32 units: 51). A product of 64 x 128^2, on 64 of 132
// multiprocessors, is 4.2 MFLOP each on 1.5 TFLOP/s: 2.7 us, 19 of them 51 us. 16 x 512^2: 160 tiles of 33.6 MFLOP on 132
// multiprocessors, two rounds: 44 us, 19 of them 0.8 ms, 0.5 ms if tiles fitted. 1 x 2048^2: 136 tiles, 1.9 ms; 1 x 4096^2: 528 tiles,
// 1.5 TFLOP in all, 7 ms. Operands of a tile are 1 KB a term for 16384 x 3 multiply-adds, from the second cache: 23 bytes a clock and
// multiprocessor at that rate. Device memory: 28 n^2 bytes of workspace a group.
//
// On sm_90a wgmma does 1.07 PFLOP/s at 1980 MHz: a tile of 1024 terms is 24600 clocks of tensor cores, and 96 KB of shared memory a
// pair of blocks for 770 of them, 125 bytes a clock of 128. A tile took 36700 clocks (4 x 1024^2, H200, 2026-11-29). The second cache is
// not what binds: bulk copies alone bring 54 bytes a clock and multiprocessor, and clusters of two and of four blocks that bring each
// other's operands were slower (34 x 1024^2 10.8 ms and 10.9 for 8.3 of single blocks). What became of a tile by loads and stores of
// threads took 18000 clocks, and its mirror image 5000: hence x by the ring, and out as whole blocks by the copy engine.
//
// H200, CUDA events, second cache flushed, `bench inverse_root4`, by wgmma (2026-11-29) and (by mma.sync): 16 x 512^2 0.73 ms (1.16),
// 4 x 1024^2 1.12 (2.00), 1 x 2048^2 1.80 (3.30), 1 x 4096^2 7.7 (12.4). What was tried with mma.sync, of 64 x 128^2 and these
// but the third, which took 0.287, 1.17, 2.01, 3.25 and 12.5 before another kernel's launch: rows of operands 80 bytes apart in
// device memory too, so that each thread finds its pieces by row, and a plan a product: 0.43, 2.0, 3.1, 5.8 (with an iteration more), 22. f32 sums every 16 terms instead of 32: 4 % to
// 10 % slower. 16 warps of 32 x 32 with diagonal tiles' work even over the four schedulers: 0.262, 1.10, 2.01, 3.37, 13.6, but 128
// registers spill. One chunk of terms a barrier: 0.290, 1.20, 2.06, 3.37, 12.8.
#pragma once
#include "newton_ends.cuh"

namespace newton {

// The tiles of `count` products that belong to this block; those that stay flat are alone between barriers.
__device__ __forceinline__ void make(const Shape& s, const Task* tasks, int count, float* tile_f32, double* slots, Ring& ring) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if (threadIdx.x == 0) ring.tell(&s, tasks, count);
#endif
  const int row0 = threadIdx.x / 128 * kRows;
  for (int nth = s.rank; nth < count * s.tiles; nth += s.blocks) {
    const Task& t = tasks[nth / s.tiles];
    const int2 tile = tile_of(nth % s.tiles);
    Sums sum;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    multiply_tile(s, ring, tile.x * kTile + row0 < s.n, sum);
    if (!t.flat) {
      put_out(s, t, tile, ring, sum, tile_f32, slots);
      continue;
    }
#else
    const int column0 = threadIdx.x / 32 % 4 * 32;
    const bool needless = tile.x == tile.y && column0 >= row0 + kRows;
    multiply_tile(s, t, tile, ring.places, tile.x * kTile + row0 < s.n && tile.y * kTile + column0 < s.n && !needless, sum);
#endif
    put_down(sum, tile_f32);
    block_sync();
    finish(s, t, tile, tile_f32, slots);
    copies_see();
    block_sync();
  }
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if (threadIdx.x == 0) bulk_stores_written();
#endif
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
    // Loads of several rows of the matrix, kStep apart, are under way together.
    constexpr int kBatch = 16, kStep = kThreads / 128;
    auto load = [&](float(&x)[kBatch], int row0, int column0, bool any) {
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        const int row = row0 + u * kStep;
        x[u] = any && row < s.n && column0 + column < s.n ? __ldg(a + (i64)row * s.n + column0 + column) : 0.f;
      }
    };
#pragma unroll 1
    for (int r0 = first; r0 < kTile; r0 += kBatch * kStep) {
      float x[kBatch];
      load(x, i0 + r0, j0, true);
#pragma unroll
      for (int u = 0; u < kBatch; ++u) tile_f32[at(r0 + u * kStep, column)] = x[u];
    }
    block_sync();
    double squares = 0;
    // Rows of the tile across; of a diagonal one those are its own.
#pragma unroll 1
    for (int r0 = first; r0 < kTile; r0 += kBatch * kStep) {
      float others[kBatch];
      load(others, j0 + r0, i0, !diagonal);
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        const int r = r0 + u * kStep;
        const float x = 0.5f * (tile_f32[at(column, r)] + (diagonal ? tile_f32[at(r, column)] : others[u]));
        squares += (diagonal ? 1. : 2.) * x * x;
        if (j0 + r < s.n && i0 + column < s.pitch) mean[(i64)(j0 + r) * s.pitch + i0 + column] = x;
        if (!diagonal) tile_f32[at(column, r)] = x;
      }
    }
    block_sync();
    if (!diagonal)
      for (int r = first; r < kTile; r += kThreads / 128)
        if (i0 + r < s.n && j0 + column < s.pitch) mean[(i64)(i0 + r) * s.pitch + j0 + column] = tile_f32[at(r, column)];
    const double all = block_sum(squares, slots);
    if (threadIdx.x == 0) sums[nth] = all;
    block_sync();
  }
}

// What the blocks of a group do; every one of them comes to the same by itself.
struct Control {
  u16 *buffers, *e, *m, *one, *two, *f, *y, *next_y;
  float *root, *squared;
  double *sums_e, *sums_y;
  double zeta, size;  // of A / size
  float c[6], within[3], growth;  // (1 - e)^(-1/p) = sum c_i e^i; norms of E below which 1, 2 and 4 of its terms are enough
  float norm_e, y_scale, residual;
  int n, p, status, iterations;
  int phases, count[kMostPhases];
};

__device__ void begin(Control& k, int p) {
  k.p = p, k.c[0] = 1.f;
  for (int i = 0; i < 5; ++i) k.c[i + 1] = k.c[i] * (1.f / p + i) / (i + 1);
  k.within[0] = sqrtf(kEnough / k.c[2]), k.within[1] = cbrtf(kEnough / k.c[3]), k.within[2] = powf(kEnough / k.c[5], 0.2f);
  k.growth = 1.f + k.c[1] + k.c[2] + k.c[3] + k.c[4];
}

// The phases of the next iteration, by one thread, from the sums of squares of E and Y; none if there is none.
__device__ __noinline__ void plan(Control& k, const Shape& s, Task (*tasks)[2], double total_e, double total_y) {
  constexpr float unit = 1.f / (kScale * kScale);
  const float* c = k.c;
  const bool begins = k.iterations == 0;
  k.phases = 0;
  if (!begins) {
    const float now = (float)sqrt(total_e);
    // Only an eigenvalue below 0, or roundings of one that is as good as 0, takes E further from 0; NaN ends it too.
    if (k.status == kNewton || !(now <= min(1.001f * k.norm_e, 1e4f)) || k.iterations == kMostIterations) return;
    k.norm_e = now;
  }
  const int terms = k.norm_e <= k.within[0] ? 1 : k.norm_e <= k.within[1] ? 2 : 4;
  const bool last = k.norm_e <= k.within[2];
  ++k.iterations;
  int phase = 0;
  auto add = [&](const Task& t, bool ends) {
    const int nth = k.count[phase]++;
    tasks[phase][nth] = t;
    if (ends) k.count[++phase] = 0;
  };
  k.count[0] = 0;
  if (!begins && terms > 1) {
    Task t = {};
    t.a = t.b = t.x = k.e;
    if (terms == 2)
      t.out = k.f, t.beta = c[2] * unit, t.first = c[1] / kScale, t.out_scale = kScale;
    else
      t.out = k.one, t.beta = unit, t.out_scale = kScale, t.also = k.two, t.also_of = c[4],
      t.first2 = c[3] / kScale, t.delta = c[2], t.also_scale = kScale;
    add(t, true);
  }
  if (terms == 4) {
    Task t = {};
    t.a = k.one, t.b = k.two, t.x = k.e, t.beta = unit, t.first = c[1] / kScale, t.out = k.f, t.out_scale = kScale;
    if (begins)
      t.also = k.y, t.also_of = 1.f, t.delta = 1.f, t.also_scale = kScale, t.sums = k.sums_y;
    add(t, true);
  }
  // Y + Y F, together with the first product of the next power or of M.
  if (!begins) {
    float next_scale = kScale;
    for (const float most = (float)sqrt(total_y) * k.growth; next_scale * most > kLargest;) next_scale *= 0.5f;
    Task t = {};
    t.a = t.x = k.y, t.b = terms == 1 ? k.e : k.f;
    t.beta = (terms == 1 ? c[1] : 1.f) / (kScale * k.y_scale), t.first = 1.f / k.y_scale;
    if (last) {
      t.flat = k.root, t.flat_pitch = k.n, t.gamma = (float)pow(k.zeta / k.size, 1. / k.p);
      add(t, true);
      const float d = k.norm_e, d2 = d * d;
      k.residual = k.p * (terms == 1 ? c[2] * d2 : terms == 2 ? c[3] * d2 * d : c[5] * d2 * d2 * d);
      k.status = kNewton, k.phases = phase;
      return;
    }
    t.out = k.next_y, t.out_scale = next_scale, t.sums = k.sums_y;
    add(t, false);
    u16* other = k.y;
    k.y = k.next_y, k.next_y = other, k.y_scale = next_scale;
  }
  // T^p - I = r, by the bits of p: 2 r + r r, and r + f + r f.
  u16* r = k.f;
  for (int bit = 30 - __clz(k.p); bit >= 0; --bit) {
    for (int times = 0; times <= (k.p >> bit & 1); ++times) {
      Task t = {};
      t.a = t.x = r, t.beta = unit, t.out = r == k.one ? k.two : k.one, t.out_scale = kScale;
      if (times)
        t.b = t.y = k.f, t.first = t.second = 1.f / kScale;
      else
        t.b = r, t.first = 2.f / kScale;
      add(t, true);
      r = t.out;
    }
  }
  // M <- M + r M and E = I - M. M's own buffer takes the place of the one that it is in then.
  u16* out = r == k.one ? k.two : k.one;
  Task t = {};
  t.a = r, t.b = t.x = k.m, t.beta = unit, t.first = 1.f / kScale, t.out = out, t.out_scale = kScale, t.sums = k.sums_e;
  t.also = k.e, t.also_of = -1.f, t.delta = 1.f, t.also_scale = kScale;
  add(t, true);
  if (out == k.one) k.one = k.m; else k.two = k.m;
  k.m = out, k.phases = phase;
}

// Four elements of by (A + eps I), by in f64, and where they are; gives the row less the column of the first.
__device__ __forceinline__ int damped(const Shape& s, float4 x, unsigned quad, double by, double eps, float (&v)[4], i64& place,
                                      int& column) {
  const int row = (int)(quad / (s.pitch / 4));
  column = (int)(quad % (s.pitch / 4)) * 4;
  place = place_of(s, row, column);
  const float xs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int e = 0; e < 4; ++e) v[e] = (float)(by * (row == column + e ? xs[e] + eps : (double)xs[e]));
  return row - column;
}
// f(quad, its four numbers in a, and in b if there is one) of all that belong to this block; loads of several are under way together.
template <int kBatch, class F>
__device__ __forceinline__ void each_quad(const Shape& s, const float* a, const float* b, F f) {
  const unsigned quads = (unsigned)((i64)s.n * s.pitch / 4), step = s.blocks * kThreads;
#pragma unroll 1
  for (unsigned q0 = s.rank * kThreads + threadIdx.x; q0 < quads; q0 += kBatch * step) {
    float4 x[kBatch], y[kBatch];
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const unsigned q = min(q0 + u * step, quads - 1);
      x[u] = __ldcg((const float4*)a + q), y[u] = b ? __ldcg((const float4*)b + q) : x[u];
    }
#pragma unroll
    for (int u = 0; u < kBatch; ++u)
      if (q0 + u * step < quads) f(q0 + u * step, x[u], y[u]);
  }
}

__device__ __noinline__ void scale(const Shape& shape, const float* mean, double by, double eps, u16* to) {
  // A copy: what is stored below could be its original for all that the compiler knows.
  const Shape s = shape;
  each_quad<8>(s, mean, nullptr, [&](unsigned q, float4 x, float4) {
    float v[4];
    i64 place;
    int column;
    damped(s, x, q, by, eps, v, place, column);
    store4(to, place, kFirstScale, v);
  });
  copies_see();
}

// M, E, E E and c2 I + c3 E + c4 E E, from A and A A.
__device__ __noinline__ void start(const Shape& shape, const Control& k, const float* mean, double eps) {
  const Shape s = shape;
  const float by = (float)(k.zeta * k.zeta), c2 = k.c[2], c3 = k.c[3], c4 = k.c[4];
  const double z = k.zeta / k.size;
  u16 *const to_m = k.m, *const to_e = k.e, *const to_one = k.one, *const to_two = k.two;
  each_quad<4>(s, k.squared, mean, [&](unsigned q, float4 x, float4 first) {
    float v[4], e1[4], e2[4], w[4];
    i64 place;
    int column;
    const int below = damped(s, first, q, z, eps, v, place, column);
    const float xs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float one = below == e ? 1.f : 0.f;
      const bool there = column + e < s.n;
      e1[e] = there ? one - v[e] : 0.f;
      e2[e] = there ? fmaf(by, xs[e], one - 2.f * v[e]) : 0.f;
      w[e] = there ? fmaf(c2, one, fmaf(c3, e1[e], c4 * e2[e])) : 0.f;
    }
    store4(to_m, place, kScale, v);
    store4(to_e, place, kScale, e1);
    store4(to_one, place, kScale, e2);
    store4(to_two, place, kScale, w);
  });
  copies_see();
}

// The greatest of n numbers of that sum and sum of squares can be no greater (Samuelson, 1968).
__device__ __forceinline__ double greatest(double sum, double squares, int n) {
  const double mean = sum / n;
  return mean + sqrt((n - 1) * max(0., squares / n - mean * mean));
}

// What blocks of groups do, the first ones of a launch: roots of a [N, n, n], by so many blocks a matrix.
__device__ __forceinline__ void roots_of(Ring& ring, float* tile_f32,
                                         const float* __restrict__ a,  // [N, n, n]
                                         float* root,                  // [N, n, n]
                                         float* record,                // [N, 4]
                                         u16* work,                    // [groups, 7, buffer]
                                         double* sums,                 // [groups, 2, tiles]
                                         unsigned* counters,           // [groups, 16]
                                         i64 count, int n, int p, int blocks, int groups, int stages, double absolute,
                                         double relative) {
  __shared__ double slots[kThreads / 32];
  __shared__ Task tasks[kMostPhases][2];
  __shared__ Control k;
  __shared__ Shape s;
  const int group = blockIdx.x / blocks;
  unsigned round = 0;
  const auto meet = [&] { group_sync(counters + 16 * group, round, blocks); };
  const bool first = threadIdx.x == 0, deep = n > kDeep;
  if (first) {
    const int side = (n + kTile - 1) / kTile;
    s.n = n, s.chunks = (n + kTerms - 1) / kTerms, s.pitch = s.chunks * kTerms, s.blocks = blocks, s.stages = stages;
    s.tiles = side * (side + 1) / 2, s.rank = blockIdx.x % blocks, s.buffer = (i64)side * s.chunks * (2 * kPlane);
    begin(k, p);
    k.n = n, k.buffers = work + group * kBuffers * s.buffer;
    k.sums_e = sums + (i64)group * 2 * s.tiles, k.sums_y = k.sums_e + s.tiles;
    k.squared = (float*)(k.buffers + 5 * s.buffer);
  }
  block_sync();
  float* mean = (float*)(k.buffers + 4 * s.buffer);
  for (i64 nth = group; nth < count; nth += groups) {
    symmetric_part(s, a + nth * n * n, mean, k.sums_e, tile_f32, slots);
    meet();
    const double norm = sqrt(total(k.sums_e, s.tiles, slots)), eps = max(absolute, relative * norm), size = norm + eps;
    // Beyond, squares of f32 are no numbers.
    const bool there = norm < 1e300 && size > 0;
    if (first) {
      k.status = kFailed, k.iterations = 0, k.residual = __int_as_float(0x7fffffff), k.phases = 0;
      k.size = size, k.root = root + nth * n * n, k.y_scale = kScale, k.norm_e = __int_as_float(0x7f800000);
      auto buffer = [&](int i) { return k.buffers + i * s.buffer; };
      k.e = buffer(0), k.one = buffer(1), k.two = buffer(2), k.f = buffer(3);
      k.y = buffer(4), k.next_y = buffer(5), k.m = buffer(6);
      Task t = {};
      t.a = t.b = buffer(0), t.beta = 1.f / (kFirstScale * kFirstScale), t.gamma = 1.f;
      t.flat = k.squared, t.flat_pitch = s.pitch, t.sums = k.sums_y;
      if (deep) t.also = k.one, t.also_of = 1.f, t.also_scale = kFirstScale;
      tasks[0][0] = t, k.count[0] = 1, k.phases = there ? 1 + deep : 0;
      t = {};
      t.a = t.b = k.one, t.beta = 1.f / (kFirstScale * kFirstScale), t.out = k.two, t.out_scale = 1.f, t.sums = k.sums_e;
      tasks[1][0] = t, k.count[1] = 1;
    }
    if (there) scale(s, mean, 1 / size, eps, k.buffers);
    meet();
    // The first round makes A A, each of the others is an iteration.
    for (bool squares = true; k.phases > 0; squares = false) {
      const int phases = k.phases;
      for (int phase = 0; phase < phases; ++phase) {
        make(s, tasks[phase], k.count[phase], tile_f32, slots, ring);
        meet();
      }
      const double total_y = total(k.sums_y, s.tiles, slots);
      double total_e = 0;
      if (squares) {
        double x = 0;
        for (int i = threadIdx.x; i < n; i += kThreads) x += __ldcg(k.squared + (i64)i * (s.pitch + 1));
        const double trace = block_sum(x, slots), fourth = deep ? total(k.sums_e, s.tiles, slots) : 0;
        if (first) {
          const double most = deep ? sqrt(greatest(total_y, fourth, n)) : greatest(trace, total_y, n);
          k.zeta = 1.75 / (1.0001 * sqrt(most));
        }
        block_sync();
        start(s, k, mean, eps);
        meet();
      } else {
        total_e = total(k.sums_e, s.tiles, slots);
      }
      block_sync();
      if (first) plan(k, s, tasks, total_e, total_y);
      block_sync();
    }
    if (first && s.rank == 0) {
      float* at = record + nth * 4;
      at[0] = (float)k.status, at[1] = (float)k.iterations, at[2] = k.residual, at[3] = (float)eps;
    }
    meet();
  }
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if (first) ring.tell(nullptr, nullptr, -1);
#endif
}
}  // namespace newton
