// What newton.cuh multiplies: matrices as halves in blocks, tasks, and a tile's sums, by mma.sync or, on sm_90a, by wgmma.
#pragma once
#include "meet.cuh"
#include "mma.cuh"
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "barriers.cuh"
#include "wgmma.cuh"
#endif

typedef long long i64;
typedef unsigned short u16;

namespace newton {

constexpr int kThreads = 256, kTile = 128, kTerms = 32;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr int kLaunched = kThreads + 128;    // a warpgroup more, one of whose threads asks the copy engine
#else
constexpr int kLaunched = kThreads;
#endif
constexpr int kWarps = kThreads / 32, kRows = 4 * kTile / kWarps;  // a warp's part of a tile has that many rows and 32 columns
constexpr int kPlane = kTile * kTerms;       // halves of a block: 128 rows of 32 terms, hi, and behind it lo
constexpr int kStage = 4 * 2 * kPlane;       // bytes of two blocks, one of each operand
constexpr int kPlaces = 4;                   // of such pairs, in the ring that Hopper's copy engine fills behind a tile of f32
constexpr int kMostPhases = 16;              // between barriers, of an iteration: p is at most 64
constexpr int kBuffers = 7, kMostIterations = 24;
constexpr int kDeep = 1024;                  // beyond, another squaring of A pays: it saves an iteration
constexpr float kScale = 2048.f, kFirstScale = 32768.f;  // s of all but Y, entries of at most 31; of A / ||A||_F
constexpr float kLargest = 60000.f;
constexpr float kEnough = 2e-8f;                      // of the root, relative: a third of an f32's rounding
enum { kNewton = 0, kFailed = 3 };

// One product c = a b and what becomes of it: out = beta c + first x + second y; also = also_of out + first2 x + delta I.
struct Task {
  const u16 *a, *b, *x, *y;
  u16 *out, *also;
  float* flat;  // gamma out, [n, flat_pitch], instead of out's halves
  double* sums; // [tiles] of out^2, or of also^2 where there is one
  float beta, first, second, out_scale, also_of, first2, delta, also_scale, gamma;
  int flat_pitch;
};

// Buffers lie in blocks as shared memory has them: [n / 128][n / 32][hi, lo][128][32], and of each row the four pieces of 16 bytes
// are exchanged so that the eight rows of an ldmatrix lie in eight different banks.
struct Shape {
  int n, pitch, tiles, rank, blocks, stages;
  int chunks;  // of terms: n / 32, rounded up
  i64 buffer;  // halves
};
__device__ __forceinline__ i64 place_of(const Shape& s, int row, int column) {
  return ((i64)(row / kTile) * s.chunks + column / kTerms) * (2 * kPlane) + row % kTile * kTerms +
         ((column / 8 ^ row / 2) % 4 * 8) + column % 8;
}

// Where the first block of a tile's columns begins; the others follow.
__device__ __forceinline__ i64 block_of(const Shape& s, int row, int column) {
  return ((i64)row * s.chunks + column * (kTile / kTerms)) * (2 * kPlane);
}

// d (16 x 8) = a (16 x 16) b (16 x 8), added to d or not.
template <bool kAdd>
__device__ __forceinline__ void product16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if (kAdd)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.f));
}

// Between the threads that work on tiles.
__device__ __forceinline__ void block_sync() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("bar.sync 1, 256;" ::: "memory");
#else
  __syncthreads();
#endif
}

// This thread's number, of which nothing is reckoned ahead: there are not registers for it where products are made.
__device__ __forceinline__ int thread_now() {
  int x = threadIdx.x;
  asm volatile("" : "+r"(x));
  return x;
}

__device__ double block_sum(double x, double* slots) {
  for (int o = 16; o > 0; o /= 2) x += __shfl_xor_sync(~0u, x, o);
  block_sync();
  const int thread = thread_now();
  if (thread % 32 == 0) slots[thread / 32] = x;
  block_sync();
  x = slots[0];
  for (int w = 1; w < kThreads / 32; ++w) x += slots[w];
  return x;
}

// What this thread wrote of a buffer, the copy engine will read behind the next group_sync, or what others did.
__device__ __forceinline__ void copies_see() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}
// Between the blocks of a group: all that was written before is seen after.
__device__ __forceinline__ void group_sync(unsigned* counter, unsigned& round, int blocks) {
  block_sync();
  if (blocks == 1) return;
  round += blocks;
  if (threadIdx.x == 0) blocks_meet(counter, round);
  block_sync();
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

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
using Sums = float[16][4];  // rows 16 (warp % 4) + lane / 4 of the warpgroup's 64, and 8 below; columns 8 n + 2 (lane % 4)

// Pairs of blocks of 32 terms on their way to shared memory, behind those of a tile what is added to it, and those that all warps are
// done with. A thread of its own asks for them, product after product as it is told: whoever multiplies never waits for those who are
// behind.
struct Told {
  const Shape* shape;
  const Task* tasks;
  int count;  // of products; -1: it is done
};
struct Ring {
  unsigned places, full, empty, told;
  unsigned taken;  // or asked for
  Told* what;
  // Gives where a tile of f32 lies.
  __device__ __forceinline__ float* begin() {
    extern __shared__ __align__(128) float dynamic[];
    __shared__ unsigned long long barriers[2 * kPlaces + 1];
    __shared__ Told of;
    float* tile_f32 = dynamic + (1024 - shared_at(dynamic) % 1024) % 1024 / 4;
    places = shared_at(tile_f32 + kTile * kTile), full = shared_at(barriers), empty = full + 8 * kPlaces, told = empty + 8 * kPlaces;
    taken = 0, what = &of;
    if (threadIdx.x == 0) {
      for (int i = 0; i < kPlaces; ++i) barrier_init(barriers + i, 1), barrier_init(barriers + kPlaces + i, kThreads);
      barrier_init(barriers + 2 * kPlaces, 1);
      barrier_init_fence();
    }
    __syncthreads();
    return tile_f32;
  }
  __device__ __forceinline__ unsigned at(unsigned ahead) const { return places + (taken + ahead) % kPlaces * kStage; }
  // Until what comes after so many others is there.
  __device__ __forceinline__ void wait(unsigned ahead) const {
    const unsigned nth = taken + ahead;
    barrier_wait_at(full + 8 * (nth % kPlaces), nth / kPlaces & 1);
  }
  // This thread is done with what came first. Each arrives, not one of a warp: so racecheck sees the order.
  __device__ __forceinline__ void done() { barrier_arrive_at(empty + 8 * (taken++ % kPlaces)); }
  // By the thread that asks: a place takes that much of `a` and, behind it, of `b`.
  __device__ __forceinline__ void bring(const u16* a, unsigned bytes_a, const u16* b, unsigned bytes_b) {
    const unsigned place = taken % kPlaces, full_at = full + 8 * place, to = places + place * kStage;
    if (taken >= kPlaces) barrier_wait_at(empty + 8 * place, (taken / kPlaces - 1) & 1);
    barrier_expect_at(full_at, bytes_a + bytes_b);
    if (bytes_a > 0) bulk_copy_at(to, a, bytes_a, full_at);
    if (bytes_b > 0) bulk_copy_at(to + kStage / 2, b, bytes_b, full_at);
    ++taken;
  }
  // By one thread of those that multiply: these products are to be made.
  __device__ __forceinline__ void tell(const Shape* shape, const Task* tasks, int count) const {
    what->shape = shape, what->tasks = tasks, what->count = count;
    barrier_arrive_at(told);
  }
  // For all threads, of which those that multiply go on, with registers of the others; one of those asks until it is told to end.
  __device__ __forceinline__ bool share(bool multiplies) {
    if (threadIdx.x >= kThreads) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
      if (multiplies && threadIdx.x == kThreads) feed();
      return false;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    return true;
  }
  // The blocks of this block's tiles, one pair after the other.
  __device__ __forceinline__ void feed() {
    for (unsigned products = 0;; ++products) {
      barrier_wait_at(told, products & 1);
      const Told now = *what;
      if (now.count < 0) return;
      const Shape s = *now.shape;
      copies_see();
      for (int nth = s.rank; nth < now.count * s.tiles; nth += s.blocks) {
        const Task& t = now.tasks[nth / s.tiles];
        const int2 at = tile_of(nth % s.tiles);
        const u16 *a = t.a + block_of(s, at.x, 0), *b = t.b + block_of(s, at.y, 0);
        for (int c = 0; c < s.chunks; ++c, a += 2 * kPlane, b += 2 * kPlane) bring(a, kStage / 2, b, kStage / 2);
        if (t.flat) continue;
        // What is there of the tile's four blocks of columns.
        auto add = [&](const u16* from) {
          const u16* x = from + block_of(s, at.x, at.y);
          for (int i = 0; i < 2; ++i) {
            const int blocks = min(max(s.chunks - 4 * at.y - 2 * i, 0), 2);
            bring(x + i * (4 * kPlane), blocks > 0 ? kStage / 2 : 0, x + i * (4 * kPlane) + 2 * kPlane, blocks > 1 ? kStage / 2 : 0);
          }
        };
        if (t.x) add(t.x);
        if (t.y) add(t.y);
      }
    }
  }
};

// sum[n] of this warpgroup's 64 rows of a tile. 64 columns are added up while the products of the other 64 are under way.
__device__ __forceinline__ void multiply_tile(const Shape& s, Ring& ring, bool works, Sums& sum) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int e = 0; e < 64; ++e) sum[e / 4][e % 4] = 0.f;
  if (!works) {
    for (int c = 0; c < s.chunks; ++c) ring.wait(0), ring.done();
    return;
  }
  unsigned high[2][2][4], low[2][2][4];
  float part[2][8][4];
  // A's rows of a pair of blocks, into one of two sets of registers; gives B.
  auto load = [&](int set, unsigned ahead) {
    ring.wait(ahead);
    const unsigned stage = ring.at(ahead);
    const unsigned fa = stage + (warp * 16 + lane % 16) * 64 + (lane / 16 ^ lane / 2 % 4) * 16;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      load_matrices<false>(low[set][k], (fa ^ 32 * k) + 2 * kPlane);
      load_matrices<false>(high[set][k], fa ^ 32 * k);
    }
    return by_short_rows(stage + kStage / 2);
  };
  auto multiply = [&](int set, float(&d)[8][4], u64 b) {
    const u64 b_low = further(b, 2 * kPlane);
    products_begin();
    // The large ones last.
    wgmma_of_first<false, false>(d, low[set][0], b);
    wgmma_of<false, false>(d, low[set][1], further(b, 32));
    wgmma_of<false, false>(d, high[set][0], b_low);
    wgmma_of<false, false>(d, high[set][1], further(b_low, 32));
    wgmma_of<false, false>(d, high[set][0], b);
    wgmma_of<false, false>(d, high[set][1], further(b, 32));
    products_end();
  };
  auto add = [&](int half) {
#pragma unroll
    for (int e = 0; e < 32; ++e) sum[8 * half + e / 4][e % 4] += part[half][e / 4][e % 4];
  };
  // From one pair to the next, which is in that set; 64 columns' products of the former are under way.
  auto step = [&](int set, u64 b, bool more) {
    multiply(set, part[0], b);
    products_wait_but_one(part[1]);
    ring.done();
    add(1);
    multiply(set, part[1], further(b, 64 * 2 * kTerms));
    const u64 next = more ? load(set ^ 1, 1) : 0;
    products_wait_but_one(part[0]);
    add(0);
    return next;
  };
  u64 b = load(0, 0);
  multiply(0, part[0], b);
  multiply(0, part[1], further(b, 64 * 2 * kTerms));
  if (s.chunks > 1) b = load(1, 1);
  products_wait_but_one(part[0]);
  add(0);
  auto end = [&] {
    products_wait(part[1]);
    ring.done();
    add(1);
  };
  // An end for each way there: where they meet before it, compilers wait for each product.
  int c = 1;
#pragma unroll 1
  while (true) {
    if (c == s.chunks) {
      end();
      return;
    }
    b = step(1, b, ++c < s.chunks);
    if (c == s.chunks) {
      end();
      return;
    }
    b = step(0, b, ++c < s.chunks);
  }
}
// A thread's sums, where `emit` finds them.
__device__ __forceinline__ void put_down(const Sums& sum, float* tile_f32) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4 * 2;
  // Odd rows have the two of a pair the other way round.
#pragma unroll
  for (int n = 0; n < 16; ++n)
#pragma unroll
    for (int low = 0; low < 2; ++low) {
      const float x = sum[n][2 * low], y = sum[n][2 * low + 1];
      *(float2*)&tile_f32[at(16 * warp + 8 * low + g, 8 * n + c) & ~1] = g % 2 ? make_float2(y, x) : make_float2(x, y);
    }
}
#else
using Sums = float[kRows / 16][4][4];

// Stages that threads fill for themselves, where tiles of f32 come to lie too.
struct Ring {
  unsigned places;
  __device__ __forceinline__ float* begin() {
    extern __shared__ __align__(128) float dynamic[];
    places = shared_at(dynamic);
    return dynamic;
  }
  __device__ __forceinline__ bool share(bool) { return true; }
};

// Both operands' blocks of 32 terms: each thread copies its 16 bytes of every 4 KB.
__device__ __forceinline__ void copy_blocks(unsigned to, const u16* a, const u16* b) {
#pragma unroll
  for (int q = 0; q < 4 * kPlane; q += 16 * kThreads) {
    copy_ahead(to + q, a + q / 2, true);
    copy_ahead(to + 4 * kPlane + q, b + q / 2, true);
  }
}

// sum[i][j] of this warp's elements of a tile.
__device__ __forceinline__ void multiply_tile(const Shape& s, const Task& task, int2 tile, unsigned shared, bool works,
                                              Sums& sum) {
  const int chunks = s.chunks, stages = s.stages, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const u16* a = task.a + (i64)tile.x * chunks * (2 * kPlane) + 8 * threadIdx.x;
  const u16* b = task.b + (i64)tile.y * chunks * (2 * kPlane) + 8 * threadIdx.x;
  const unsigned to = shared + 16 * threadIdx.x;
  const unsigned fa = shared + (warp / 4 * kRows + lane % 16) * 64 + (lane / 16 ^ lane / 2 % 4) * 16;
  const unsigned fb = shared + 4 * kPlane + (warp % 4 * 32 + lane % 8 + lane / 16 * 8) * 64 + (lane / 8 % 2 ^ lane / 2 % 4) * 16;
#pragma unroll
  for (int e = 0; e < kRows; ++e) sum[e / 16][e / 4 % 4][e % 4] = 0.f;
  // Half of the stages are worked on while the others come.
  const int half = stages / 2;
  auto ahead = [&](int from, int side) {
    for (int u = 0; u < half && from + u < chunks; ++u) copy_blocks(to + (side * half + u) * kStage, a + (i64)(from + u) * (2 * kPlane), b + (i64)(from + u) * (2 * kPlane));
    copy_commit();
  };
  ahead(0, 0);
  int side = 0;
  for (int c = 0; c < chunks; c += half) {
    copy_wait(0);
    __syncthreads();
    ahead(c + half, side ^ 1);
    if (works)
#pragma unroll 1
      for (int u = 0; u < half && c + u < chunks; ++u) {
        const unsigned stage = (side * half + u) * kStage;
        float part[kRows / 16][4][4];
#pragma unroll
        for (int k = 0; k < kTerms / 16; ++k) {
          const unsigned xa = (fa + stage) ^ 32 * k, yb = (fb + stage) ^ 32 * k;
          unsigned y[2][2][4];
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            load_matrices<false>(y[0][j], yb + j * 1024);
            load_matrices<false>(y[1][j], yb + 2 * kPlane + j * 1024);
          }
#pragma unroll
          for (int i0 = 0; i0 < kRows / 16; i0 += 2) {
            unsigned x[2][2][4];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              load_matrices<false>(x[0][i], xa + (i0 + i) * 1024);
              load_matrices<false>(x[1][i], xa + 2 * kPlane + (i0 + i) * 1024);
            }
            // lo hi, hi lo, hi hi: the large one last.
#pragma unroll
            for (int term = 0; term < 3; ++term)
#pragma unroll
              for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                  float(&d)[4] = part[i0 + i][j];
                  const unsigned b0 = y[term == 1][j / 2][j % 2 * 2], b1 = y[term == 1][j / 2][j % 2 * 2 + 1];
                  if (k == 0 && term == 0)
                    product16<false>(d, x[1][i], b0, b1);
                  else
                    product16<true>(d, x[term == 0][i], b0, b1);
                }
          }
        }
#pragma unroll
        for (int e = 0; e < kRows; ++e) sum[e / 16][e / 4 % 4][e % 4] += part[e / 16][e / 4 % 4][e % 4];
      }
    side ^= 1;
  }
  __syncthreads();
}
// A thread's sums, where `emit` finds them.
__device__ __forceinline__ void put_down(const Sums& sum, float* tile_f32) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4 * 2;
  // Odd rows have the two of a pair the other way round.
#pragma unroll
  for (int e = 0; e < kRows / 2; ++e) {
    const int i = e / 8, j = e / 2 % 4, low = e % 2, row = warp / 4 * kRows + 16 * i + 8 * low + g;
    const float x = sum[i][j][2 * low], y = sum[i][j][2 * low + 1];
    *(float2*)&tile_f32[at(row, warp % 4 * 32 + 8 * j + c) & ~1] = g % 2 ? make_float2(y, x) : make_float2(x, y);
  }
}
#endif
}  // namespace newton
