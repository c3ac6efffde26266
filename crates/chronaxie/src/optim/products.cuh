// Products of plates G [m, n] (plates.cuh) on Hopper's tensor cores (sm_90a), at the accuracy of f32 (f16x3.cuh).
//
//   gram_of_plates       128 x 128 of the triangle of G G^T or G^T G:  factor = keep factor + weight (G G^T), packed triangles
//   multiply_blocks<..>  128 x 128 of a product of blocks of numbers; what becomes of it is the caller's
//   multiply<..>         128 x 128 of R G, R [m, m] from memory as it is, or of R G^T, R [n, n], or of these with R^T; what
//                        becomes of it is the caller's: to_blocks, to_flat
//
// A block of 384 threads a multiprocessor strides over the tiles of all plates, so that those at work have few plates in L2: two
// warpgroups of 64 rows multiply, and of the third a warp copies ahead into a ring (cp.async.bulk), says which plate a tile is of
// and, in a Gram matrix, asks L2 for the factor's rows. Both operands of a Gram matrix come packed, on its diagonal they are
// one. Of a product R goes through registers, where its rows of 64 terms get their power of two, and the warpgroups take turns.
//
// Floors: 6 f16 flops a multiply-add; a Gram matrix of n has ceil(n / 128) (ceil(n / 128) + 1) / 2 tiles of 2 * 128 * 128 m.
// From L2 64 KB for 128 x 128 x 64 x 3 multiply-adds: 43 bytes a clock and multiprocessor at the whole rate of tensor cores (21
// on the diagonal), so that L2 and not they may bind, at two thirds of it.
#pragma once
#include "plates.cuh"

constexpr int kPlateThreads = 384;
constexpr int kEdge = 128;                         // of a tile of a product
constexpr int kProductRing = 6;                    // of pairs
// Of blocks: a pair of each operand, or, where upper tiles alone are multiplied (kHighs), the half of each.
template <bool kHighs>
struct Ring {
  static constexpr int kPlaces = kHighs ? 6 : 3, kOperand = kHighs ? kPair / 2 : kPair, kPlace = 2 * kOperand;
};
constexpr int kWarpFloats = 16 * kSide;            // a warp's part of a tile on its way out: 16 rows of 64

__device__ __forceinline__ int edges_of(i64 n) { return (int)((n + kEdge - 1) / kEdge); }

// Row and column of the nth tile on and below the diagonal.
__device__ __forceinline__ int2 below_diagonal(int nth) {
  int row = 0;
  while (nth > row) nth -= ++row;
  return make_int2(row, nth);
}

// Where a row of a packed triangle begins: at most 2^29, as n is at most 2^15.
__device__ __forceinline__ int triangle(int row) { return row * (row + 1) / 2; }

// Sixteen rows of 64 numbers that a warp has of a product, columns 64 `half` on, to its place in shared memory: 8 numbers further
// lie exchanged by the row, so that rows and columns are read without conflicts of banks.
__device__ __forceinline__ int put_at(int row, int column) { return row * kSide + (column ^ row % 8 * 8); }
template <bool kBeside>
__device__ __forceinline__ void put_down(float* to, const float (&acc)[16][4], int half) {
  // Places are made here, and not before the loop over terms, whose registers are all taken.
  int lane = threadIdx.x % 32;
  asm volatile("" : "+r"(lane));
  __syncwarp();
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int low = 0; low < 2; ++low) {
      const float x = half ? acc[8 + n][2 * low] : acc[n][2 * low], y = half ? acc[8 + n][2 * low + 1] : acc[n][2 * low + 1];
      const int row = kBeside ? lane / 4 * 2 + low : lane / 4 + 8 * low;
      *reinterpret_cast<float2*>(to + put_at(row, 8 * n + lane % 4 * 2)) = {x, y};
    }
  __syncwarp();
}

__device__ __forceinline__ void prefetch(const float* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }

// A plate as blocks of numbers. What lies behind the last one is never stored, and any numbers do.
struct Blocks {
  const char* base;
  const float* scale;
  int down, across;
  __device__ __forceinline__ int at(int row, int column) const { return min(row, down - 1) * across + min(column, across - 1); }
  template <bool kHighs = false>
  __device__ __forceinline__ void copy_two(unsigned to, int x, int y, unsigned barrier) const {
    const char *of_x = base + (i64)x * kBlockBytes, *of_y = base + (i64)y * kBlockBytes;
    if constexpr (kHighs) {
      bulk_copy_at(to, of_x, kTileBytes, barrier);
      bulk_copy_at(to + kTileBytes, of_y, kTileBytes, barrier);
    } else {
      copy_blocks(to, of_x, of_y, barrier);
    }
  }
};
__device__ __forceinline__ Blocks blocks_of(const Plate& p, const char* base, const float* scale) {
  return {base + p.block * kBlockBytes, scale + p.block, sides_of(p.rows), sides_of(p.columns)};
}

// A tile of a Gram matrix: of which plate, and where.
template <bool kColumns, bool kHighs>
struct GramTile {
  using Of = Ring<kHighs>;
  Blocks g;
  float* factor;
  int n, chunks, row, column;
  // Of plate m.
  __device__ __forceinline__ void take(const Plate* plates, const i64* first, int m, int tile, const char* base,
                                       const float* scale, float* factors) {
    const Plate& p = plates[m];
    g = blocks_of(p, base, scale);
    factor = factors + p.factors[kColumns];
    n = (int)(kColumns ? p.columns : p.rows), chunks = kColumns ? g.down : g.across;
    const int2 at = below_diagonal(tile - (int)__ldg(first + m));
    row = at.x, column = at.y;
  }
  // Of 64 rows the block of terms k.
  __device__ __forceinline__ int block(int side, int k) const { return kColumns ? g.at(k, side) : g.at(side, k); }
  // On the diagonal both operands are one.
  __device__ __forceinline__ bool one() const { return row == column; }
  __device__ __forceinline__ void copy(unsigned at, int k, unsigned barrier) const {
    barrier_expect_at(barrier, one() ? Of::kOperand : Of::kPlace);
    g.template copy_two<kHighs>(at, block(2 * row, k), block(2 * row + 1, k), barrier);
    if (!one()) g.template copy_two<kHighs>(at + Of::kOperand, block(2 * column, k), block(2 * column + 1, k), barrier);
  }
  __device__ __forceinline__ float scale_a(int side, int k) const { return __ldg(g.scale + block(2 * row + side, k)); }
  __device__ __forceinline__ float scale_b(int side, int k) const { return __ldg(g.scale + block(2 * column + side, k)); }
  // L2 is asked for the factor's rows.
  __device__ __forceinline__ void ahead(int lane) const {
    const int left = column * kEdge;
#pragma unroll 1
    for (int r = lane; r < kEdge; r += 32) {
      const int i = row * kEdge + r, last = min(i, left + kEdge - 1);
      if (i >= n) break;
      const float* line = factor + triangle(i);
      for (int j = left; j < last; j += 32) prefetch(line + j);
      prefetch(line + last);
    }
  }
};

// Products of blocks of numbers, 128 x 128 a tile: `take(tile, plate, its number among all)` says what a tile is of, `emit(acc, tile, group, warp's floats)`
// takes each warpgroup's part of it.
template <class Tile, bool kHighs, bool kAByTerms, bool kBByTerms, class Take, class Emit>
__device__ __forceinline__ void multiply_blocks(const i64* first, int tiles, int count, Take take, Emit emit) {
  constexpr int kPlaces = Ring<kHighs>::kPlaces, kPlace = Ring<kHighs>::kPlace;
  extern __shared__ __align__(16) char dynamic[];
  __shared__ __align__(8) u64 barriers[2 * kPlaces];
  // Of the first terms of a tile, by their place, the plate: whoever copies ahead has looked it up.
  __shared__ int plate_at[kPlaces];
  const unsigned skip = (1024 - shared_at(dynamic) % 1024) % 1024, begin = shared_at(dynamic) + skip;
  const unsigned full = shared_at(barriers), empty = full + 8 * kPlaces;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kPlaces; ++i) {
      barrier_init(&barriers[i], 1);
      barrier_init(&barriers[kPlaces + i], 256);
    }
    barrier_init_fence();
  }
  __syncthreads();
  Turn turn;
  Tile now;
  const int lane = threadIdx.x % 32;

  if (threadIdx.x >= 256) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x >= 288) return;
#pragma unroll 1
    for (int tile = (int)blockIdx.x; tile < tiles; tile += (int)gridDim.x) {
      const int m = plate_of(first, count, tile);
      take(now, m, tile);
#pragma unroll 1
      for (int k = 0; k < now.chunks; ++k) {
        if (lane == 0) {
          const unsigned at = begin + turn.place * kPlace, barrier = full + 8 * turn.place;
          if (turn.round > 0) barrier_wait_at(empty + 8 * turn.place, (turn.round - 1) & 1);
          if (k == 0) plate_at[turn.place] = m;
          now.copy(at, k, barrier);
        }
        turn.advance(kPlaces);
        __syncwarp();
        if (k == 0) now.ahead(lane);
      }
    }
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4;
  float* own = reinterpret_cast<float*>(dynamic + skip + kPlaces * kPlace) + (4 * group + warp) * kWarpFloats;
  int tile = (int)blockIdx.x;
  if (tile >= tiles) return;
  float acc[16][4] = {}, some[2][16][4], scale[2][2];
  barrier_wait_at(full, 0);
  take(now, plate_at[0], tile);
  Tile done = now;
  int k = 0, done_k = 0;
  Turn freed = turn;
  auto start = [&](float(&d)[16][4], float(&both)[2]) {
    barrier_wait_at(full + 8 * turn.place, turn.round & 1);
    if (k == now.chunks) {
      k = 0;
      take(now, plate_at[turn.place], tile);
    }
    const unsigned at = begin + turn.place * kPlace;
    const float of_a = now.scale_a(group, k);
#pragma unroll
    for (int i = 0; i < 2; ++i) both[i] = of_a * now.scale_b(i, k);
    const unsigned of_b = now.one() ? at : at + kPlace / 2;
    products_begin();
    if constexpr (kHighs)
      multiply_highs<kAByTerms, kBByTerms>(d, at + group * kTileBytes, of_b);
    else
      multiply_tiles<kAByTerms, kBByTerms>(d, at + group * kTileBytes, of_b);
    products_end();
    turn.advance(kPlaces);
    if (++k == now.chunks) tile += (int)gridDim.x;
  };
  auto finish = [&](const float(&d)[16][4], const float(&both)[2]) {
    arrive_at(empty + 8 * freed.place);
    freed.advance(kPlaces);
    take_in(acc, d, both);
    if (++done_k < done.chunks) return;
    done_k = 0;
    emit(acc, done, group, own);
#pragma unroll
    for (int n = 0; n < 16; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[n][e] = 0.f;
    // What began last is the next one to end.
    done = now;
  };
  auto more = [&] { return k < now.chunks || tile < tiles; };
  start(some[0], scale[0]);
#pragma unroll 1
  while (true) {
    if (!more()) {
      products_wait(some[0]);
      finish(some[0], scale[0]);
      break;
    }
    start(some[1], scale[1]);
    products_wait_but_one(some[0]);
    finish(some[0], scale[0]);
    if (!more()) {
      products_wait(some[1]);
      finish(some[1], scale[1]);
      break;
    }
    start(some[0], scale[0]);
    products_wait_but_one(some[1]);
    finish(some[1], scale[1]);
  }
}
template <bool kColumns, bool kHighs = false>
__device__ __forceinline__ void gram_of_plates(const Plate* plates, const i64* first, const char* packed, const float* scales,
                                               float* factors, int tiles, int count, float keep, float weight) {
  using Tile = GramTile<kColumns, kHighs>;
  auto take = [&](Tile& t, int m, int tile) { t.take(plates, first, m, tile, packed, scales, factors); };
  auto emit = [&](const float(&acc)[16][4], const Tile& t, int group, float* own) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const int row = t.row * kEdge + 64 * group + 16 * warp;
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      const int column = t.column * kEdge + kSide * half + lane;
      put_down<false>(own, acc, half);
#pragma unroll 1
      for (int r0 = 0; r0 < 16; r0 += 8) {
        float old[8][2];
#pragma unroll
        for (int e = 0; e < 16; ++e) {
          const int i = row + r0 + e / 2, j = column + e % 2 * 32;
          old[e / 2][e % 2] = i < t.n && j <= i ? t.factor[triangle(i) + j] : 0.f;
        }
#pragma unroll
        for (int e = 0; e < 16; ++e) {
          const int i = row + r0 + e / 2, j = column + e % 2 * 32;
          if (i < t.n && j <= i)
            t.factor[triangle(i) + j] = keep * old[e / 2][e % 2] + weight * own[put_at(r0 + e / 2, e % 2 * 32 + lane)];
        }
      }
    }
  };
  multiply_blocks<Tile, kHighs, kColumns, kColumns>(first, tiles, count, take, emit);
}
// Where a tile of a product is: of plate `nth` the tile `tile`, rows are those of R and columns the other axis.
struct Place {
  int nth, tile, row, column;
};
template <int kAxis>
struct ProductTile {
  Blocks b;
  const float* root;
  int n, chunks;
  Place place;
  // Tile `tile` of plate m.
  __device__ __forceinline__ void take(const Plate* plates, int m, int tile, const char* base, const float* scale,
                                       const float* roots) {
    const Plate& p = plates[m];
    b = blocks_of(p, base, scale);
    root = roots + p.roots[kAxis];
    n = (int)(kAxis ? p.columns : p.rows);
    const int across = edges_of(kAxis ? p.rows : p.columns);
    place = {m, tile, tile / across, tile % across}, chunks = kAxis ? b.across : b.down;
  }
  __device__ __forceinline__ int block(int side, int k) const { return kAxis ? b.at(side, k) : b.at(k, side); }
  // Whether rows of R are whole pairs.
  __device__ __forceinline__ bool in_pairs() const { return n % 2 == 0 && (u64)root % 8 == 0; }
};

// Products along an axis of all plates; `emit(acc, place, group, warp's floats)` takes each tile's part of a warpgroup. Rows of
// a warp are g and g + 8, or, beside each other, 2 g and 2 g + 1.
constexpr bool beside(int axis, bool transposed) { return axis == 1 || transposed; }
template <int kAxis, bool kTransposed, class Emit>
__device__ __forceinline__ void multiply(const Plate* plates, const i64* first, const char* packed, const float* scales,
                                         const float* roots, int tiles, int count, Emit emit) {
  extern __shared__ __align__(16) char dynamic[];
  __shared__ __align__(8) u64 barriers[2 * kProductRing];
  // Of the first terms of a tile, by their place, plate and tile: whoever copies ahead has looked them up.
  __shared__ int2 plate_at[kProductRing];
  // Where the tile is that a warp makes; what it needs of the next one is on its way already.
  __shared__ Place doing[8];
  const unsigned begin = shared_at(dynamic) + (1024 - shared_at(dynamic) % 1024) % 1024;
  const unsigned full = shared_at(barriers), empty = full + 8 * kProductRing;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kProductRing; ++i) {
      barrier_init(&barriers[i], 1);
      barrier_init(&barriers[kProductRing + i], 256);
    }
    barrier_init_fence();
  }
  __syncthreads();
  Turn turn;
  ProductTile<kAxis> now;

  if (threadIdx.x >= 256) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x != 256) return;
#pragma unroll 1
    for (int tile = (int)blockIdx.x; tile < tiles; tile += (int)gridDim.x) {
      const int m = plate_of(first, count, tile), nth = tile - (int)__ldg(first + m);
      now.take(plates, m, nth, packed, scales, roots);
#pragma unroll 1
      for (int k = 0; k < now.chunks; ++k) {
        const unsigned at = begin + turn.place * kPair, barrier = full + 8 * turn.place;
        if (turn.round > 0) barrier_wait_at(empty + 8 * turn.place, (turn.round - 1) & 1);
        if (k == 0) plate_at[turn.place] = make_int2(m, nth);
        barrier_expect_at(barrier, kPair);
        now.b.copy_two(at, now.block(2 * now.place.column, k), now.block(2 * now.place.column + 1, k), barrier);
        turn.advance(kProductRing);
      }
    }
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  const int group = threadIdx.x / 128, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, g = lane / 4, pair = lane % 4 * 2;
  // Tiles that are left behind the one of which terms are read.
  int tiles_left = (tiles - (int)blockIdx.x - 1) / (int)gridDim.x;
  barrier_wait_at(full, 0);
  now.take(plates, plate_at[0].x, plate_at[0].y, packed, scales, roots);
  Place& done = doing[4 * group + warp];
  auto keep = [&] {
    __syncwarp();
    if (lane == 0) done = now.place;
    __syncwarp();
  };
  keep();
  // Blocks of terms of the tile that is being made; the next one's when it is done.
  int left = now.chunks, k = 0;
  float x[4][2][2][2], scale[2];
  // The rows of the next terms.
  auto load = [&] {
    if (k == now.chunks) {
      k = 0, --tiles_left;
      // The terms after those of the turn are the tile's first: they are under way, for they do not wait for these.
      Turn next = turn;
      next.advance(kProductRing);
      barrier_wait_at(full + 8 * next.place, next.round & 1);
      now.take(plates, plate_at[next.place].x, plate_at[next.place].y, packed, scales, roots);
    }
    constexpr int kNext = beside(kAxis, kTransposed) ? 1 : 8;
    const int slab = now.place.row * kEdge + 64 * group + 16 * warp, row = slab + (kNext == 1 ? 2 * g : g);
    const int rest = now.n - k * kSide;
    const int n = now.n, of_row = kTransposed ? 1 : n, of_term = kTransposed ? n : 1;
    const float* at = now.root + row * of_row + (k * kSide + pair) * of_term;
    if (now.in_pairs() && rest >= kSide && slab + 16 <= now.n) {
      // Two numbers that lie side by side are of two terms, or of two rows.
#pragma unroll
      for (int e = 0; e < 16; ++e) {
        const int skip = kTransposed ? (e / 2 * 8 + e % 2) * n : e % 2 * kNext * n + e / 2 * 8;
        const float2 v = __ldg(reinterpret_cast<const float2*>(at + skip));
        x[e / 4][e / 2 % 2][kTransposed ? 0 : e % 2][kTransposed ? e % 2 : 0] = v.x;
        x[e / 4][e / 2 % 2][kTransposed ? 1 : e % 2][kTransposed ? e % 2 : 1] = v.y;
      }
    } else {
#pragma unroll
      for (int e = 0; e < 32; ++e) {
        const int term = e / 4 * 8 + e % 2, next = e / 2 % 2 * kNext;
        x[e / 8][e / 4 % 2][e / 2 % 2][e % 2] =
            term + pair < rest && row + next < now.n ? __ldg(at + next * of_row + term * of_term) : 0.f;
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) scale[i] = __ldg(now.b.scale + now.block(2 * now.place.column + i, k));
    ++k;
  };
  auto more = [&] { return k < now.chunks || tiles_left > 0; };
  float acc[16][4] = {}, some[16][4];
  load();
  if (group == 1) asm volatile("bar.arrive 1, 256;" ::: "memory");
  bool again = true;
#pragma unroll 1
  while (again) {
    float up[2], by[2][2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      unsigned most = 0;
#pragma unroll
      for (int e = 0; e < 16; ++e) most = max(most, magnitude(x[e / 4][e / 2 % 2][row][e % 2]));
      most = max(most, __shfl_xor_sync(~0u, most, 1));
      most = max(most, __shfl_xor_sync(~0u, most, 2));
      up[row] = scale_up(most);
      by[row][0] = scale_down(most) * scale[0], by[row][1] = scale_down(most) * scale[1];
    }
    unsigned high[4][4], low[4][4];
    split_rows(high, low, x, up);
    again = more();
    if (again) load();
    barrier_wait_at(full + 8 * turn.place, turn.round & 1);
    asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory");
    products_begin();
    multiply_rows<kAxis == 0>(some, high, low, begin + turn.place * kPair);
    products_end();
    // The other warpgroup's turn; no one waits for the last.
    if (group == 0 || again) asm volatile("bar.arrive %0, 256;" ::"r"(2 - group) : "memory");
    products_wait(some);
    arrive_at(empty + 8 * turn.place);
    turn.advance(kProductRing);
#pragma unroll
    for (int n = 0; n < 16; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[n][e] = fmaf(some[n][e], by[e / 2][n / 8], acc[n][e]);
    if (--left > 0) continue;
    int nth = threadIdx.x / 32;
    asm volatile("" : "+r"(nth));
    char* out = dynamic + (begin - shared_at(dynamic)) + kProductRing * kPair;
    emit(acc, done, group, reinterpret_cast<float*>(out) + nth * kWarpFloats);
    keep();
    left = now.chunks;
#pragma unroll
    for (int n = 0; n < 16; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[n][e] = 0.f;
  }
}

// A warpgroup's part of a tile as blocks of numbers, those of columns before `across` and rows before `down`.
template <bool kBeside>
__device__ __forceinline__ void pack_tile(const float (&acc)[16][4], float* own, unsigned* most, char* base, float* scales,
                                          int down, int across, int row, int column) {
  int thread = threadIdx.x;
  asm volatile("" : "+r"(thread));
  const int group = thread / 128, lane = thread % 32, warp = thread / 32 % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    unsigned largest = 0;
#pragma unroll
    for (int e = 0; e < 32; ++e) {
      const unsigned m = magnitude(acc[8 * half + e / 4][e % 4]);
      largest = max(largest, m < 0x7f800000u ? m : 0u);
    }
    largest = __reduce_max_sync(~0u, largest);
    if (lane == 0) most[8 * half + 4 * group + warp] = largest;
  }
  asm volatile("bar.sync %0, 128;" ::"r"(3 + group) : "memory");
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    const int r = 2 * row + group, c = 2 * column + half;
    put_down<kBeside>(own, acc, half);
    if (r >= down || c >= across) continue;
    unsigned largest = 0;
#pragma unroll
    for (int w = 0; w < 4; ++w) largest = max(largest, most[8 * half + 4 * group + w]);
    const float up = scale_up(largest);
    const i64 block = r * (i64)across + c;
    char* tile = base + block * kBlockBytes;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const int i = 4 * s + lane / 8, j = lane % 8 * 8;
      const float4 a = *reinterpret_cast<const float4*>(own + put_at(i, j));
      const float4 b = *reinterpret_cast<const float4*>(own + put_at(i, j) + 4);
      uint4 high, low;
      split(high.x, low.x, a.x * up, a.y * up), split(high.y, low.y, a.z * up, a.w * up);
      split(high.z, low.z, b.x * up, b.y * up), split(high.w, low.w, b.z * up, b.w * up);
      const unsigned place = swizzled_at(16 * warp + i, j);
      *reinterpret_cast<uint4*>(tile + place) = high;
      *reinterpret_cast<uint4*>(tile + kTileBytes + place) = low;
    }
    if (warp == 0 && lane == 0) scales[block] = scale_down(largest);
  }
}

// R_0 x, or R_0^T x, of plates x in blocks of numbers, as blocks of numbers.
template <bool kTransposed>
__device__ __forceinline__ void to_blocks(const Plate* plates, const i64* first, const char* packed, const float* scales,
                                          const float* roots, char* to, float* to_scales, int tiles, int count) {
  __shared__ unsigned most[16];
  auto emit = [&](const float(&acc)[16][4], const Place& t, int, float* own) {
    const Plate& p = plates[t.nth];
    const i64 block = p.block;
    pack_tile<beside(0, kTransposed)>(acc, own, most, to + block * kBlockBytes, to_scales + block, sides_of(p.rows),
                                      sides_of(p.columns), t.row, t.column);
  };
  multiply<0, kTransposed>(plates, first, packed, scales, roots, tiles, count, emit);
}
// scale (R_1 x^T)^T, or with R_1^T, to the flat vector; and of each warp, where that is asked for, the sum of squares.
template <bool kTransposed>
__device__ __forceinline__ void to_flat(const Plate* plates, const i64* first, const char* packed, const float* scales,
                                        const float* roots, float* to, double* squares, float scale, int tiles, int count) {
  auto emit = [&](const float(&acc)[16][4], const Place& t, int group, float*) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    // Two columns of the plate, side by side.
    const int column = t.row * kEdge + 64 * group + 16 * warp + lane / 4 * 2;
    const Plate& p = plates[t.nth];
    const int rows = (int)p.rows, columns = (int)p.columns;
    float* at = to + p.first + column;
    const bool vectors = (u64)at % 8 == 0 && p.stride % 2 == 0;
    double sum = 0;
#pragma unroll
    for (int n = 0; n < 16; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int row = t.column * kEdge + 8 * n + lane % 4 * 2 + e, left = row < rows ? columns - column : 0;
        const float x = scale * acc[n][e], y = scale * acc[n][2 + e];
        store_two(at + row * p.stride, x, y, vectors, left);
        if (left > 0) sum = fma((double)x, (double)x, sum);
        if (left > 1) sum = fma((double)y, (double)y, sum);
      }
    if (!squares) return;
    sum = warp_sum(sum);
    if (lane == 0) squares[(__ldg(first + t.nth) + t.tile) * 8 + 4 * group + warp] = sum;
  };
  multiply<1, kTransposed>(plates, first, packed, scales, roots, tiles, count, emit);
}
