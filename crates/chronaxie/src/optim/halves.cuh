// Products of plates G [m, n] (plates.cuh) on Hopper's tensor cores (sm_90a), of numbers rounded to f16: precision `fast`.
//
//   half_largest     64 x 64: the largest of the gradient, of the first moment and of decay * parameter, a warp's share each; sums of
//                    squares of the whole gradient, and what squares does beside (stepper.cuh)
//   half_bounds      plate: bounds of g = scale grad (+ pull decay parameter) and of the first moment, from those
//   half_moments     64 x 64: moments (plates.cuh), g and first as tiles of f16
//   half_roots       16 rows of a root as tiles of f16, and their largest number (slabs.cuh)
//   half_due         the same of the roots that were made in this step
//   half_gram        128 x 256 on and below the diagonal of G G^T, and then of G^T G:  factor = keep factor + weight (G G^T), packed
//                    triangles
//   multiply_halves  128 x 256 of a b over chunks of 64 terms; what becomes of it is the caller's
//
// A matrix lies in tiles of 64 x 64 f16, 8 KB each, as wgmma reads them. One power of two is a whole plate's, or 16 rows' of a root
// or a product, so that sums stay in the tensor cores' registers over all terms. It brings a bound of the largest number to
// 2^14 .. 2^15: what is above 2^-29 of the bound has 11 bits, what is below is off by 2^-40 of the bound at most. The bound of the
// numbers of a plate is their largest, of moments within what beta1 leaves open; of a row of R x it is n times the largest of R's
// 16 rows times that of x, so that of such a row all above 2^-29 n of what it could be at most have 11 bits; of the step, made
// last, parts have each their own. What tensor cores cut off is 2^-23 a step of 16 terms: 2^-17 of the largest sum over 1024 terms.
//
// A block of 384 threads a multiprocessor strides over the tiles of all plates: two warpgroups of 64 rows multiply, and of the
// third a thread copies ahead into a ring of four places (cp.async.bulk). Tried on an H100, lm350m: L2 asked for the factors' rows
// ahead, as in products.cuh: 1.78 ms for the Gram matrices of an axis where it is 1.42 without (4.7 GB from memory, 3.3); clusters of
// two that share b's tiles (multicast): 1.73 ms for R_0 m where it is 1.24. Of factors the first old numbers come while the last products
// are made, and always those of two parts of a warp's rows: both axes 2.48 ms, with one part and none ahead 2.75; past the caches
// (ld.cs, st.cs) 2.63.
//
// Floors: 2 f16 flops a multiply-add; from L2 48 KB for 128 x 256 x 64 of them, 47 bytes a clock and multiprocessor at the whole
// rate of tensor cores, 30 at what their power leaves of it (0.62 PFLOP/s).
#pragma once
#include "slabs.cuh"

constexpr int kHalfThreads = 384;
constexpr int kDown = 128, kAcross = 256;        // of a tile of a product
constexpr int kPlaces = 4;                       // of the ring
constexpr int kPlaceBytes = 6 * kTileBytes;      // two tiles of a, four of b
constexpr int kWarpFloats = 16 * kSide;          // a warp's part of a tile on its way out: 16 rows of 64

// `runs` are of what lies in no parameter of plates alone, from an element to another; `alone` says which plates lie in such ones. A
// block's sum of squares is of its tiles and pieces, in their order.
extern "C" __global__ void __launch_bounds__(kThreads, 4)
    half_largest(const Plate* plates, const i64* first_tile, const i64* runs, const i64* first_piece, const i64* alone,
                 const float* grad, const float* first, const float* decay, const float* parameter, double* partials,
                 const float* rate, int* step, float* largest_rate, unsigned* largest, int tiles, int count, int pieces,
                 int run_count, int aligned, int pulls) {
  __shared__ double slots[kWarps];
  double sum = 0;
  for (int t = (int)blockIdx.x; t < tiles + pieces; t += (int)gridDim.x) {
    if (t >= tiles) {
      const int r = plate_of(first_piece, run_count, t - tiles);
      const i64 begin = runs[2 * r] + (t - tiles - first_piece[r]) * kChunk, end = min(runs[2 * r + 1], begin + kChunk);
      for (i64 n = begin + threadIdx.x; n < end; n += kThreads) sum = fma((double)grad[n], (double)grad[n], sum);
      continue;
    }
    const int m = plate_of(first_tile, count, t);
    const Plate& p = plates[m];
    const Spot s = spot_of(p, t - (int)first_tile[m]);
    const bool vectors = whole(p, aligned);
    float g[4][4], mean[4][4];
    get(g, grad, s, vectors), get(mean, first, s, vectors);
    unsigned of_g = 0, of_mean = 0, of_pull = 0;
    double squares = 0;
#pragma unroll
    for (int e = 0; e < 16; ++e) {
      const float x = g[e / 4][e % 4];
      of_g = max(of_g, finite_magnitude(x));
      of_mean = max(of_mean, finite_magnitude(mean[e / 4][e % 4]));
      squares = fma((double)x, (double)x, squares);
    }
    if (alone[m]) sum += squares;
    if (pulls) {
      get(g, decay, s, vectors), get(mean, parameter, s, vectors);
#pragma unroll
      for (int e = 0; e < 16; ++e) of_pull = max(of_pull, finite_magnitude(g[e / 4][e % 4] * mean[e / 4][e % 4]));
    }
    of_g = __reduce_max_sync(~0u, of_g), of_mean = __reduce_max_sync(~0u, of_mean), of_pull = __reduce_max_sync(~0u, of_pull);
    if (threadIdx.x % 32 != 0) continue;
    unsigned* at = largest + ((i64)t * kWarps + threadIdx.x / 32) * 3;
    at[0] = of_g, at[1] = of_mean, at[2] = of_pull;
  }
  sum = block_sum(sum, slots);
  if (threadIdx.x > 0) return;
  partials[blockIdx.x] = sum;
  if (blockIdx.x > 0) return;
  if (*step < 2147483647) *step += 1;
  largest_rate[0] = max(largest_rate[0], rate[0]);
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    half_bounds(const i64* first_tile, const unsigned* largest, const double* partials, float* bounds, int runs, double clip,
                float pull, float beta1, float rest1) {
  __shared__ double slots[kWarps];
  __shared__ unsigned most[3];
  if (threadIdx.x < 3) most[threadIdx.x] = 0;
  const float scale = scale_of(partials, runs, clip, slots, nullptr);
  unsigned of[3] = {};
  for (i64 t = first_tile[blockIdx.x] * kWarps + threadIdx.x; t < first_tile[blockIdx.x + 1] * kWarps; t += kThreads)
#pragma unroll
    for (int i = 0; i < 3; ++i) of[i] = max(of[i], largest[3 * t + i]);
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    of[i] = __reduce_max_sync(~0u, of[i]);
    if (threadIdx.x % 32 == 0) atomicMax(&most[i], of[i]);
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  const float g = fminf(scale * __uint_as_float(most[0]) + pull * __uint_as_float(most[2]), 3e38f);
  bounds[2 * blockIdx.x] = g;
  bounds[2 * blockIdx.x + 1] = fminf(beta1 * __uint_as_float(most[1]) + rest1 * g, 3e38f);
}

// Four rows of four numbers of a thread, to a tile.
__device__ __forceinline__ void pack_half(const float (&x)[4][4], float up, char* tile, int row, int column) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint2 v = {pack<false>(x[i][0] * up, x[i][1] * up), pack<false>(x[i][2] * up, x[i][3] * up)};
    *reinterpret_cast<uint2*>(tile + swizzled_at(row + 16 * i, column)) = v;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    half_moments(const Plate* plates, const i64* first_tile, const float* grad, const float* decay, const float* parameter,
                 const double* partials, const int* step, float* first, float* second, float* grad_norm, const float* bounds,
                 char* g_to, char* m_to, double* want, int tiles, int count, int runs, int has_second, int aligned, double clip,
                 float pull, float beta1, float rest1, float keep2, float new2, double ln_beta1, double ln_second, float eps) {
  const MomentsOf o = {grad,  decay,      parameter, partials, step, first, second, grad_norm, want, tiles,    count,     runs,
                       has_second, aligned, clip,    pull,  beta1, rest1,  keep2,     new2, ln_beta1, ln_second, eps};
  moments_of_plates(plates, first_tile, o, [&](const Plate&, int m, i64 block, const float(&g)[4][4], const float(&mean)[4][4],
                                               int row, int column) {
    pack_half(g, up_of(bounds[2 * m]), g_to + block * kTileBytes, row, column);
    pack_half(mean, up_of(bounds[2 * m + 1]), m_to + block * kTileBytes, row, column);
  });
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    half_roots(const Plate* plates, const i64* first, const i64* root_at, const float* roots, char* to, float* largest, int slabs,
               int entries) {
  const SlabsOf o = {plates, first, root_at, roots, to, largest, slabs, entries};
  RoundedSlabs rounded;
  for (int t = (int)blockIdx.x; t < slabs; t += (int)gridDim.x) {
    Held held;
    const Slab s = slab_of(o, t);
    hold(held, s), rounded.put(held, s);
  }
}

// Of a pool's roots those that were made in this step: row `blockIdx.y` of its turn, whose member is the root of `entry_of`, or of no
// plate (-1).
extern "C" __global__ void __launch_bounds__(kThreads, 2)
    half_due(const Plate* plates, const i64* first, const i64* root_at, const float* roots, char* to, float* largest, int slabs,
             int entries, const i64* entry_of, const i64* due, const int* step, int every, int start) {
  const i64 which = member(due, step, every, start), e = which < 0 ? -1 : entry_of[which];
  if (e < 0) return;
  const SlabsOf o = {plates, first, root_at, roots, to, largest, slabs, entries};
  RoundedSlabs rounded;
  for (int t = (int)first[e] + (int)blockIdx.x; t < first[e + 1]; t += (int)gridDim.x) {
    Held held;
    const Slab s = slab_of(o, t);
    hold(held, s), rounded.put(held, s);
  }
}

// Where the tiles of an operand are: those of 64 rows or columns of the product begin one after the other, and of one of these the
// tiles of 64 terms. What lies behind the last of either is never stored, and any numbers do.
struct Halves {
  const char* base;
  i64 side, term;  // bytes to the next
  int sides;       // of the product
  __device__ __forceinline__ const char* at(int s, int k) const { return base + min(s, sides - 1) * side + k * term; }
};
// A matrix of `down` x `across` tiles, row after row of them: its rows are the product's, or its columns are.
__device__ __forceinline__ Halves rows_of(const char* base, int down, int across) {
  return {base, (i64)across * kTileBytes, kTileBytes, down};
}
__device__ __forceinline__ Halves columns_of(const char* base, int across) {
  return {base, kTileBytes, (i64)across * kTileBytes, across};
}
// A tile of a product: `row` and `column` of 128 and 256, and whether its rows are among its columns in a Gram matrix.
struct HalfTile {
  Halves a, b;
  int row, column, chunks;
  bool diagonal;
  bool by_terms;  // of a Gram matrix, both operands
};

// d (64 x 256) += a b over 64 terms: tiles of a's 64 rows and of b's 256 columns.
template <bool kAByTerms, bool kBByTerms>
__device__ __forceinline__ void multiply_half(float (&d)[32][4], unsigned a, unsigned b) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    wgmma<false, kAByTerms, kBByTerms>(d, kAByTerms ? by_terms(a + 2048 * i, kTileBytes) : by_rows(a + 32 * i),
                                       kBByTerms ? by_terms(b + 2048 * i, kTileBytes) : by_rows(b + 32 * i));
}

// All tiles of a product, of which an entry of `first` has some. `find(entry, its tile)` says where one is; `begin(entry, its tile)`
// gives a multiplying warp what `emit(acc, that, early, warp's floats)` needs in the end, so that it is on its way by then, and
// `ahead(that)` early, from memory, while the last products are made.
struct Nothing {};
enum { kOfRows, kOfTerms, kEither };
template <int kB, class Find, class Begin, class Ahead, class Emit>
__device__ __forceinline__ void multiply_halves(const i64* first, int tiles, int count, Find find, Begin begin, Ahead ahead, Emit emit) {
  extern __shared__ __align__(16) char dynamic[];
  __shared__ __align__(8) u64 barriers[2 * kPlaces];
  // Of the first terms of a tile, by their place: entry, the entry's tile, chunks of terms, and a's first tile within the place, 8
  // more where operands are by terms.
  __shared__ int4 tile_at[kPlaces];
  const unsigned skip = (1024 - shared_at(dynamic) % 1024) % 1024, ring = shared_at(dynamic) + skip;
  const unsigned full = shared_at(barriers), empty = full + 8 * kPlaces;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kPlaces; ++i) {
      barrier_init(&barriers[i], 1);
      barrier_init(&barriers[kPlaces + i], 8);
    }
    barrier_init_fence();
  }
  __syncthreads();
  Turn turn;

  if (threadIdx.x >= 256) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x != 256) return;
#pragma unroll 1
    for (int tile = (int)blockIdx.x; tile < tiles; tile += (int)gridDim.x) {
      const int m = plate_of(first, count, tile), nth = tile - (int)__ldg(first + m);
      const HalfTile t = find(m, nth);
#pragma unroll 1
      for (int k = 0; k < t.chunks; ++k) {
        const unsigned at = ring + turn.place * kPlaceBytes, barrier = full + 8 * turn.place;
        if (turn.round > 0) barrier_wait_at(empty + 8 * turn.place, (turn.round - 1) & 1);
        // b's tiles come first; a's are among them on the diagonal.
        if (k == 0) tile_at[turn.place] = make_int4(m, nth, t.chunks, (t.diagonal ? t.row % 2 * 2 : 4) + (t.by_terms ? 8 : 0));
        barrier_expect_at(barrier, t.diagonal ? 4 * kTileBytes : kPlaceBytes);
#pragma unroll
        for (int i = 0; i < 4; ++i) bulk_copy_at(at + i * kTileBytes, t.b.at(4 * t.column + i, k), kTileBytes, barrier);
        if (!t.diagonal)
#pragma unroll
          for (int i = 0; i < 2; ++i) bulk_copy_at(at + (4 + i) * kTileBytes, t.a.at(2 * t.row + i, k), kTileBytes, barrier);
        turn.advance(kPlaces);
      }
    }
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* own = reinterpret_cast<float*>(dynamic + skip + kPlaces * kPlaceBytes) + warp * kWarpFloats;
  float acc[32][4];
#pragma unroll 1
  for (int tile = (int)blockIdx.x; tile < tiles; tile += (int)gridDim.x) {
    barrier_wait_at(full + 8 * turn.place, turn.round & 1);
    const int4 now = tile_at[turn.place];
    const auto place = begin(now.x, now.y);
#pragma unroll
    for (int n = 0; n < 32; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[n][e] = 0.f;
    unsigned before = 0;
#pragma unroll 1
    for (int k = 0; k < now.z; ++k) {
      const unsigned at = ring + turn.place * kPlaceBytes, free = empty + 8 * turn.place;
      if (k > 0) barrier_wait_at(full + 8 * turn.place, turn.round & 1);
      products_begin();
      const unsigned a = at + (now.w % 8 + group) * kTileBytes;
      if (kB == kEither && now.w >= 8) multiply_half<true, true>(acc, a, at);
      else multiply_half<false, kB == kOfTerms>(acc, a, at);
      products_end();
      // Those of the terms before are made then, and nobody reads their tiles any more.
      products_wait_but_one();
      if (k > 0 && lane == 0) arrive_at(before);
      before = free;
      turn.advance(kPlaces);
    }
    const auto early = ahead(place);
    products_wait(acc);
    if (lane == 0) arrive_at(before);
    emit(acc, place, early, own);
  }
}

// A lane whose places are made where it is asked for, and not before the loop over terms, whose registers are all taken.
__device__ __forceinline__ int lane_here() {
  int lane = threadIdx.x % 32;
  asm volatile("" : "+r"(lane));
  return lane;
}

// Sixteen rows of 64 numbers that a warp has of a product, columns 64 `quarter` on, to its place in shared memory: 8 numbers further
// lie exchanged by the row, so that rows and columns are read without conflicts of banks.
__device__ __forceinline__ int put_at(int row, int column) { return row * kSide + (column ^ row % 8 * 8); }
__device__ __forceinline__ void put_down(float* to, const float (&acc)[32][4], int quarter) {
  const int lane = lane_here();
  __syncwarp();
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int low = 0; low < 2; ++low)
      *reinterpret_cast<float2*>(to + put_at(lane / 4 + 8 * low, 8 * n + lane % 4 * 2)) = {acc[8 * quarter + n][2 * low],
                                                                                          acc[8 * quarter + n][2 * low + 1]};
  __syncwarp();
}

// Row and column of the nth tile of 128 x 256 that is on or below the diagonal.
__device__ __forceinline__ int2 half_below_diagonal(int nth) {
  int row = 0;
  while (nth > row / 2) nth -= row++ / 2 + 1;
  return make_int2(row, nth);
}
// Where a row of a packed triangle begins: at most 2^29, as n is at most 2^15.
__device__ __forceinline__ int triangle(int row) { return row * (row + 1) / 2; }

struct HalfFactor {
  float* factor;
  float down;
  int n, row, column;  // of this warp's first
};
// Entry 2 m + axis of `first` has the tiles of the factor of an axis of plate m, so that both find it in L2.
extern "C" __global__ void __launch_bounds__(kHalfThreads, 1)
    half_gram(const Plate* plates, const i64* first, const char* packed, const float* bounds, float* factors, int tiles, int entries,
              float keep, float weight) {
  auto find = [&](int e, int nth) {
    const Plate& p = plates[e / 2];
    const bool columns = e % 2;
    const int down = sides_of(p.rows), across = sides_of(p.columns);
    const char* base = packed + p.block * kTileBytes;
    const Halves side = columns ? columns_of(base, across) : rows_of(base, down, across);
    const int2 at = half_below_diagonal(nth);
    return HalfTile{side, side, at.x, at.y, columns ? down : across, at.x / 2 == at.y, columns};
  };
  auto begin = [&](int e, int nth) {
    const Plate& p = plates[e / 2];
    const int2 at = half_below_diagonal(nth);
    return HalfFactor{factors + p.factors[e % 2], down_of(__ldg(bounds + 2 * (e / 2))), (int)(e % 2 ? p.columns : p.rows),
                      at.x * kDown + (int)threadIdx.x / 32 * 16, at.y * kAcross};
  };
  // Eight rows of 64 columns are a part, and two of them are on their way where they are added to, the first ones while the last
  // products are made. A quarter above the diagonal has none.
  constexpr int kAhead = 2;
  auto each = [&](const HalfFactor& t, int part, auto use) {
    const int lane = lane_here(), row = t.row + part % 2 * 8, column = t.column + kSide * (part / 2) + lane;
    float* line = t.factor + triangle(row) + column;
#pragma unroll
    for (int e = 0; e < 16; ++e) {
      const int r = e / 2, further = e % 2 * 32;
      use(e, line + r * row + triangle(r) + further, row + r < t.n && column + further <= row + r);
    }
  };
  auto load = [&](float(&old)[16], const HalfFactor& t, int part) {
    each(t, part, [&](int e, const float* at, bool there) { old[e] = there ? *at : 0.f; });
  };
  struct Old {
    float of[kAhead][16];
  };
  auto ahead = [&](const HalfFactor& t) {
    Old o;
#pragma unroll
    for (int part = 0; part < kAhead; ++part) load(o.of[part], t, part);
    return o;
  };
  auto emit = [&](const float(&acc)[32][4], const HalfFactor& t, const Old& early, float* own) {
    const int lane = lane_here();
    Old old = early;
#pragma unroll
    for (int part = 0; part < 8; ++part) {
      if (t.column + kSide * (part / 2) >= t.row + kSlab) return;
      if (part % 2 == 0) put_down(own, acc, part / 2);
      float(&was)[16] = old.of[part % kAhead];
      each(t, part, [&](int e, float* at, bool there) {
        const float made = own[put_at(part % 2 * 8 + e / 2, e % 2 * 32 + lane)] * t.down;
        const float now = keep * was[e] + weight * (made * t.down);
        if (there) *at = now;
      });
      if (part + kAhead < 8) load(was, t, part + kAhead);
    }
  };
  multiply_halves<kEither>(first, tiles, entries, find, begin, ahead, emit);
}

// Products with the roots of plates: what they read, tables as of half_roots, and bounds.
struct HalfRoots {
  const i64 *first, *root_at;
  const char* roots;
  const float *largest, *bounds;
  // Of 16 rows of R_0 m, from the plate's slab `s` on.
  __device__ __forceinline__ float bound(const Plate& p, int m, int s) const {
    const int last = 4 * sides_of(p.rows) - 1;
    return (float)p.rows * __ldg(largest + __ldg(first + 2 * m) + min(s, last)) * __ldg(bounds + 2 * m + 1);
  }
};
// A warp's 16 rows of a product, times `by`, to a plate's tiles of f16: those from (row, column) on, of `across` a row.
__device__ __forceinline__ void put_halves(const float (&acc)[32][4], float by, char* to, int row, int column, int across, int warp,
                                           int lane, float* own) {
  char* line = to + (row * (i64)across + column) * kTileBytes + warp * 2048 + lane * 16;
  char* mine = reinterpret_cast<char*>(own);
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    if (column + q >= across) return;
    __syncwarp();
#pragma unroll
    for (int e = 0; e < 16; ++e) {
      const int n = 8 * q + e / 2, low = e % 2;
      *reinterpret_cast<unsigned*>(mine + swizzled_at(lane / 4 + 8 * low, e / 2 * 8 + lane % 4 * 2)) =
          pack<false>(acc[n][2 * low] * by, acc[n][2 * low + 1] * by);
    }
    __syncwarp();
#pragma unroll
    for (int s = 0; s < 4; ++s)
      *reinterpret_cast<uint4*>(line + q * kTileBytes + 512 * s) = *reinterpret_cast<const uint4*>(mine + lane * 16 + 512 * s);
  }
}

struct HalfLeft {
  char* to;
  float by[3];
  int down, across, row, column;  // tiles
};
// R_0 m as tiles of f16.
__device__ __forceinline__ void half_left_of(const Plate* plates, const i64* first, const HalfRoots& o, const char* packed, char* to,
                                             int tiles, int count) {
  auto find = [&](int m, int nth) {
    const Plate& p = plates[m];
    const int down = sides_of(p.rows), across = sides_of(p.columns), wide = (across + 3) / 4;
    return HalfTile{rows_of(o.roots + o.root_at[2 * m] * kTileBytes, down, down),
                    columns_of(packed + p.block * kTileBytes, across), nth / wide, nth % wide, down, false, false};
  };
  auto begin = [&](int m, int nth) {
    const Plate& p = plates[m];
    const int down = sides_of(p.rows), across = sides_of(p.columns), wide = (across + 3) / 4, row = nth / wide * 2;
    const int slab = row * 4 + (int)threadIdx.x / 32;
    const float root = __ldg(o.largest + __ldg(o.first + 2 * m) + min(slab, 4 * down - 1));
    return HalfLeft{to + p.block * kTileBytes,
                    {down_of(root), up_of(o.bound(p, m, slab)), down_of(__ldg(o.bounds + 2 * m + 1))},
                    down, across, row + (int)threadIdx.x / 128, nth % wide * 4};
  };
  auto emit = [&](const float(&acc)[32][4], const HalfLeft& t, Nothing, float* own) {
    const int lane = lane_here(), warp = threadIdx.x / 32 % 4;
    if (t.row < t.down) put_halves(acc, t.by[0] * t.by[1] * t.by[2], t.to, t.row, t.column, t.across, warp, lane, own);
  };
  multiply_halves<kOfTerms>(first, tiles, count, find, begin, [](const HalfLeft&) { return Nothing{}; }, emit);
}

struct HalfRight {
  char* to;              // of the plate
  float* downs;          // of this warp
  const float* largest;  // of R_1's slabs, from the tile's first column on
  double* have;
  float down;
  int sides, across, row, column, slabs;  // tiles; slabs from that column on
};
// scale (R_0 m) R_1^T as tiles of f16, of which 16 rows of 256 columns, a warp's part, are under one power of two, by their largest
// number; the inverse of that and the part's sum of squares.
__device__ __forceinline__ void half_right_of(const Plate* plates, const i64* first, const HalfRoots& o, const char* packed,
                                              char* to, float* downs, double* have, float scale, int tiles, int count) {
  auto find = [&](int m, int nth) {
    const Plate& p = plates[m];
    const int down = sides_of(p.rows), across = sides_of(p.columns), wide = (across + 3) / 4;
    return HalfTile{rows_of(packed + p.block * kTileBytes, down, across),
                    rows_of(o.roots + o.root_at[2 * m + 1] * kTileBytes, across, across),
                    nth / wide,
                    nth % wide,
                    across,
                    false,
                    false};
  };
  auto begin = [&](int m, int nth) {
    const Plate& p = plates[m];
    const int across = sides_of(p.columns), wide = (across + 3) / 4, warp = threadIdx.x / 32;
    const i64 part = (__ldg(first + m) + nth) * 8 + warp;
    return HalfRight{to + p.block * kTileBytes,
                     downs + part,
                     o.largest + __ldg(o.first + 2 * m + 1) + nth % wide * (kAcross / kSlab),
                     have + part,
                     down_of(o.bound(p, m, nth / wide * 8 + warp)),
                     sides_of(p.rows),
                     across,
                     nth / wide * 2 + warp / 4,
                     nth % wide * 4,
                     4 * (across - nth % wide * 4)};
  };
  auto emit = [&](float(&acc)[32][4], const HalfRight& t, Nothing, float* own) {
    const int lane = lane_here(), warp = threadIdx.x / 32 % 4;
    double sum = 0;
    unsigned most = 0;
#pragma unroll
    for (int s = 0; s < kAcross / kSlab; ++s) {
      const float down = s < t.slabs ? scale * down_of(__ldg(t.largest + s)) : 0.f;
      float squares = 0.f;
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        float& x = acc[2 * s + e / 4][e % 4];
        x = x * t.down * down;
        // What lies behind the last column may be no number.
        if (s < t.slabs) most = max(most, finite_magnitude(x)), squares = fmaf(x, x, squares);
      }
      sum += squares;
    }
    most = __reduce_max_sync(~0u, most);
    sum = warp_sum(sum);
    const bool there = t.row < t.sides;
    if (lane == 0) *t.downs = scale_down(most), *t.have = there ? sum : 0.;
    if (there) put_halves(acc, scale_up(most), t.to, t.row, t.column, t.across, warp, lane, own);
  };
  multiply_halves<kOfRows>(first, tiles, count, find, begin, [](const HalfRight&) { return Nothing{}; }, emit);
}
