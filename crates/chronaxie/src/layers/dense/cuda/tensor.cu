// dense on tensor cores (compute capability 8.0 and later), at the accuracy of f32: three products of TensorFloat-32 for
// one (tf32.cuh). The equations and shapes are those of dense.cu, where y lies along time, [B, H, T].
//
//   tensor_map_along, _beside    y = weight x + bias                          x along time [B, D, T], or beside it [B, T, D]
//   tensor_gradient              grad_x = weight^T grad_y, by parts of H      x along time
//   tensor_sums_along, _beside   grad_weight = sum_bt grad_y x^T and grad_bias, by parts of the steps
//
// All are one product a b over "terms", with a tile of it in the registers of a block of six warps, two blocks a multiprocessor:
// 128 x 96 of a map (a warp 64 x 32), 96 x 128 of sums (32 x 64). With eight warps a block there are 128 registers a thread, and
// 128 x 128 spills. A side of it lies in memory by its own rows (terms side by side), or by rows of terms. Sixteen terms a stage
// come by cp.async into a ring of four stages of up to 18 KB: 16 bytes at a time where rows are aligned, else 4. Rows of a side
// are 80 bytes apart, so that ldmatrix meets eight different banks; rows of terms 416 or 544 bytes, so that pairs of numbers, four
// rows at a time, do.
//
// Eight terms of a warp are 48 products of tensor cores, 24 splits a thread and 64 additions: tensor cores cut their sums
// off, so no sum of theirs is longer than eight terms, and the sums of those round as f32 does. Which block adds what depends
// on sizes alone; parts are added in their order; there are no atomics. Against float64, with sums that are cut to 25 bits (a
// model, 128 terms): 1.2e-7, f32 units 2.0e-7; tensor cores' sums of all terms 6.9e-7 and too small by 5e-7; TensorFloat-32 3e-4.
//
// What binds: 6 n D H flops at the rate of mma.sync of TensorFloat-32, 0.25 to 0.3 PFLOP/s on an H200. B8 T2048 D128 H8192:
// 103 GFLOP, 0.34 to 0.41 ms for each of the three products, where 33 TFLOP/s of f32 units take 1.04 ms; to write y (537 MB) takes
// 0.125 ms at 4.28 TB/s, and tiles come from the L2, 1.3 GB of them.
#ifndef __CUDACC_RTC__
#include "defaults.cuh"
#endif
#include "mma.cuh"
#include "tf32.cuh"

typedef long long i64;

constexpr int kBlock = 192;
constexpr int kTerms = 16;
constexpr int kRing = 4;

// A block's tile, by what a warp has of it: 16 M rows and 8 N columns, and how many warps there are down and across it.
template <int M, int N, int kDown, int kAcross>
struct Tile {
  static constexpr int kM = M, kN = N, kWarpsDown = kDown;
  static constexpr int kRows = 16 * M * kDown, kColumns = 8 * N * kAcross;
  static_assert(kDown * kAcross * 32 == kBlock, "a warp for each part");
};
typedef Tile<4, 4, 2, 3> Wide;  // 128 x 96
typedef Tile<2, 8, 3, 2> Tall;  // 96 x 128

// Floats from a row of a side to the next, and from a row of terms to the next.
constexpr int kRowPitch = kTerms + 4;
constexpr int term_pitch(int own) { return own + 8; }
constexpr int side_of(int own, bool by_terms) { return by_terms ? kTerms * term_pitch(own) : own * kRowPitch; }

struct Side {
  const float* base;
  i64 stride, batch;  // from a row to the next, and from a batch row to the next
  i64 aligned;        // whether rows are whole pieces of 16 bytes
};
struct Product {
  Side a, b;
  float* to;
  const float* bias;
  i64 to_stride, to_batch, to_part;
  i64 rows, columns, terms;  // of a, of b, of both
  i64 term_batches, parts;   // terms go on over so many batch rows
  i64 aligned;
};

// Up to four floats from memory; what is not there is 0.
__device__ __forceinline__ void copy_piece(unsigned to, const float* from, int count, bool aligned) {
  if (aligned) {
    // A row's next stages come to the L2 with this one: it reads 64 bytes at a time otherwise, from a thousand rows.
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(4 * count) : "memory");
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* at = i < count ? from + i : from;
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to + 4 * i), "l"(at), "r"(i < count ? 4 : 0)
                   : "memory");
    }
  }
}

// A thread's part of the stages of a side of kOwn rows: pieces of four floats in lines (of terms, or of rows of the side) that
// lie kApart from each other.
template <bool kByTerms, int kOwn>
struct Walk {
  static constexpr int kPieces = (kByTerms ? kOwn : kTerms) / 4, kLines = kByTerms ? kTerms : kOwn;
  static_assert(kBlock % kPieces == 0, "threads are whole lines");
  static constexpr int kApart = kBlock / kPieces, kPitch = kByTerms ? term_pitch(kOwn) : kRowPitch;
  const float* at;

  __device__ __forceinline__ static int line() { return threadIdx.x / kPieces; }
  __device__ __forceinline__ static int piece() { return threadIdx.x % kPieces * 4; }
  __device__ __forceinline__ void start(const Side& s, int batch, int first, int term) {
    at = s.base + batch * s.batch + (line() + (kByTerms ? term : first)) * s.stride + piece() + (kByTerms ? first : term);
  }
  // Rows `first ..` of `own`, terms `term ..` of `terms`, to a side of the ring.
  __device__ __forceinline__ void fetch(const Side& s, int first, int own, int term, int terms, unsigned to) const {
    const int lines = (kByTerms ? terms - term : own - first) - line();
    const int left = min(max((kByTerms ? own - first : terms - term) - piece(), 0), 4);
    to += 4 * (line() * kPitch + piece());
#pragma unroll
    for (int i = 0; i < kLines; i += kApart) {
      // The last lines may be fewer than the threads.
      const int count = i < lines ? left : 0;
      if (i + kApart <= kLines || line() + i < kLines)
        copy_piece(to + i * (4 * kPitch), count > 0 ? at + i * s.stride : s.base, count, s.aligned != 0);
    }
  }
  __device__ __forceinline__ void advance(const Side& s) { at += kByTerms ? kTerms * s.stride : kTerms; }
  // From behind `term` terms of a batch row to the next one's first.
  __device__ __forceinline__ void next_batch(const Side& s, int term) { at += s.batch - (kByTerms ? term * s.stride : term); }
};

// Rows 16 m .. of a over eight terms; `at` is the warp's place in the side with the lane's own in it.
template <bool kByTerms, int kPitch>
__device__ __forceinline__ void load_a(float (&x)[4], unsigned at, int m, int eight) {
  if (kByTerms) {
    const unsigned from = at + 4 * (8 * eight * kPitch + 16 * m);
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x[0]), "=f"(x[1]) : "r"(from) : "memory");
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x[2]), "=f"(x[3]) : "r"(from + 16 * kPitch) : "memory");
  } else {
    unsigned r[4];
    load_matrices<false>(r, at + 4 * (16 * m * kRowPitch + 8 * eight));
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] = __uint_as_float(r[e]);
  }
}
// Columns 16 pair .. of b over eight terms: x[n][i] is of product 2 pair + n, terms c + 4 i.
template <bool kByTerms, int kPitch>
__device__ __forceinline__ void load_b(float (&x)[2][2], unsigned at, int pair, int eight) {
  if (kByTerms) {
    const unsigned from = at + 4 * (8 * eight * kPitch + 16 * pair);
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x[0][0]), "=f"(x[1][0]) : "r"(from) : "memory");
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x[0][1]), "=f"(x[1][1]) : "r"(from + 16 * kPitch) : "memory");
  } else {
    unsigned r[4];
    load_matrices<false>(r, at + 4 * (16 * pair * kRowPitch + 8 * eight));
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e / 2][e % 2] = __uint_as_float(r[e]);
  }
}

// acc += a b over a stage. Small products first: what tensor cores cut off of them is nothing beside f32's rounding.
template <class T, bool kAByTerms, bool kBByTerms>
__device__ __forceinline__ void multiply(float (&acc)[T::kM][T::kN][4], unsigned a, unsigned b) {
  constexpr int kPitchA = term_pitch(T::kRows), kPitchB = term_pitch(T::kColumns);
  // Not unrolled: there are no registers to load further ahead.
#pragma unroll 1
  for (int eight = 0; eight < kTerms / 8; ++eight) {
    unsigned b_high[T::kN][2], b_low[T::kN][2];
#pragma unroll
    for (int pair = 0; pair < T::kN / 2; ++pair) {
      float x[2][2];
      load_b<kBByTerms, kPitchB>(x, b, pair, eight);
#pragma unroll
      for (int e = 0; e < 4; ++e)
        split_tf32(b_high[2 * pair + e / 2][e % 2], b_low[2 * pair + e / 2][e % 2], x[e / 2][e % 2]);
    }
#pragma unroll
    for (int m = 0; m < T::kM; ++m) {
      float x[4];
      unsigned high[4], low[4];
      load_a<kAByTerms, kPitchA>(x, a, m, eight);
#pragma unroll
      for (int e = 0; e < 4; ++e) split_tf32(high[e], low[e], x[e]);
#pragma unroll
      for (int from = 0; from < T::kN; from += 4) {
        float some[4][4] = {};
#pragma unroll
        for (int n = 0; n < 4; ++n) mma_tf32(some[n], low, b_high[from + n]);
#pragma unroll
        for (int n = 0; n < 4; ++n) mma_tf32(some[n], high, b_low[from + n]);
#pragma unroll
        for (int n = 0; n < 4; ++n) mma_tf32(some[n], high, b_high[from + n]);
#pragma unroll
        for (int e = 0; e < 16; ++e) acc[m][from + e / 4][e % 4] += some[e / 4][e % 4];
      }
    }
  }
}

__device__ __forceinline__ void store(float* to, float x0, float x1, bool vector, int left) {
  if (vector && left > 1) {
    *reinterpret_cast<float2*>(to) = {x0, x1};
  } else {
    if (left > 0) to[0] = x0;
    if (left > 1) to[1] = x1;
  }
}
__device__ __forceinline__ void store(float* to, const float (&x)[4], bool vector, int left) {
  if (vector && left > 3) {
    *reinterpret_cast<float4*>(to) = {x[0], x[1], x[2], x[3]};
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (e < left) to[e] = x[e];
  }
}

// A tile to memory; `place` is its row, its column, its part and its batch row.
template <class T, bool kAByTerms, bool kBByTerms>
__device__ __forceinline__ void write(const Product& p, const float (&acc)[T::kM][T::kN][4], const int* place) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  float* to = p.to + place[3] * p.to_batch + place[2] * p.to_part;
  const bool vector = p.aligned != 0;
#pragma unroll
  for (int m = 0; m < T::kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int own = place[0] + warp % T::kWarpsDown * (16 * T::kM) + 16 * m + (kAByTerms ? 2 * g + half : g + 8 * half);
      if (own >= p.rows) continue;
      const float start = p.bias ? p.bias[own] : 0.0f;
      float* line = to + own * p.to_stride;
#pragma unroll
      for (int pair = 0; pair < T::kN / 2; ++pair) {
        const float* x0 = &acc[m][2 * pair][2 * half];
        const float* x1 = &acc[m][2 * pair + 1][2 * half];
        const int at = place[1] + warp / T::kWarpsDown * (8 * T::kN) + 16 * pair + (kBByTerms ? 4 * c : 2 * c);
        const int left = static_cast<int>(p.columns) - at;
        if (kBByTerms) {
          // Columns 2 j and 2 j + 1 are column j of one product and of the next.
          const float four[4] = {x0[0] + start, x1[0] + start, x0[1] + start, x1[1] + start};
          store(line + at, four, vector, left);
        } else {
          store(line + at, x0[0] + start, x0[1] + start, vector, left);
          store(line + at + 8, x1[0] + start, x1[1] + start, vector, left - 8);
        }
      }
    }
  }
}

template <class T, bool kAByTerms, bool kBByTerms, bool kSums>
__device__ __forceinline__ void product(const Product& p) {
  extern __shared__ __align__(16) float ring[];
  constexpr int kSideA = side_of(T::kRows, kAByTerms), kStage = kSideA + side_of(T::kColumns, kBByTerms);
  const int rows = static_cast<int>(p.rows), columns = static_cast<int>(p.columns), terms = static_cast<int>(p.terms);
  const unsigned down = (rows + T::kRows - 1) / T::kRows, across = (columns + T::kColumns - 1) / T::kColumns;
  unsigned block = blockIdx.x;
  // Neighbours write what is next in memory.
  const int column = block % across * T::kColumns;
  block /= across;
  const int row = block % down * T::kRows;
  block /= down;
  const int part = block % static_cast<unsigned>(p.parts), batch = block / static_cast<unsigned>(p.parts);
  const int stages = (terms + kTerms - 1) / kTerms;
  const i64 all = stages * p.term_batches, begin = all * part / p.parts;
  const int count = static_cast<int>(all * (part + 1) / p.parts - begin);
  // What is fetched next.
  int at_term = static_cast<int>(begin % stages) * kTerms;
  Walk<kAByTerms, T::kRows> a_walk;
  Walk<kBByTerms, T::kColumns> b_walk;
  a_walk.start(p.a, batch + static_cast<int>(begin / stages), row, at_term);
  b_walk.start(p.b, batch + static_cast<int>(begin / stages), column, at_term);
  const unsigned shared = shared_at(ring);
  auto ahead = [&](int stage) {
    if (stage < count) {
      const unsigned to = shared + stage % kRing * (4 * kStage);
      a_walk.fetch(p.a, row, rows, at_term, terms, to);
      b_walk.fetch(p.b, column, columns, at_term, terms, to + 4 * kSideA);
      at_term += kTerms;
      a_walk.advance(p.a);
      b_walk.advance(p.b);
      if (kSums && at_term >= terms) {
        a_walk.next_batch(p.a, at_term);
        b_walk.next_batch(p.b, at_term);
        at_term = 0;
      }
    }
    copy_commit();
  };
  // What the end needs again waits in shared memory: the registers are full.
  __shared__ int place[4];
  if (threadIdx.x == 0) place[0] = row, place[1] = column, place[2] = part, place[3] = batch;
#pragma unroll 1
  for (int s = 0; s < kRing - 1; ++s) ahead(s);

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_row = warp % T::kWarpsDown * (16 * T::kM), warp_column = warp / T::kWarpsDown * (8 * T::kN);
  const unsigned a_at = kAByTerms ? 4 * (warp_row + lane % 4 * term_pitch(T::kRows) + lane / 4 * 2)
                                  : 4 * warp_row * kRowPitch + lane_down<4 * kRowPitch>();
  const unsigned b_at = 4 * kSideA + (kBByTerms ? 4 * (warp_column + lane % 4 * term_pitch(T::kColumns) + lane / 4 * 2)
                                                : 4 * warp_column * kRowPitch + lane_across<4 * kRowPitch>());
  // The sum of half of the terms of a row of a, of thread 2 row + half.
  static_assert(!kSums || (!kAByTerms && 2 * T::kRows == kBlock), "two threads a row");
  const bool sums = kSums && column == 0;
  float row_sum = 0.0f;
  float acc[T::kM][T::kN][4] = {};
#pragma unroll 1
  for (int s = 0; s < count; ++s) {
    copy_wait(kRing - 2);
    __syncthreads();
    ahead(s + kRing - 1);
    const unsigned at = shared + s % kRing * (4 * kStage);
    if (sums) {
      const float* x = ring + s % kRing * kStage + threadIdx.x / 2 * kRowPitch + threadIdx.x % 2 * 8;
      const float4 u = *reinterpret_cast<const float4*>(x), v = *reinterpret_cast<const float4*>(x + 4);
      row_sum += ((u.x + u.y) + (u.z + u.w)) + ((v.x + v.y) + (v.z + v.w));
    }
    multiply<T, kAByTerms, kBByTerms>(acc, at + a_at, at + b_at);
  }
  copy_wait(0);
  __syncthreads();
  write<T, kAByTerms, kBByTerms>(p, acc, place);
  if (sums) {
    row_sum += __shfl_xor_sync(~0u, row_sum, 1);
    const int own = place[0] + threadIdx.x / 2;
    if (threadIdx.x % 2 == 0 && own < rows) p.to[place[2] * p.to_part + own * p.to_stride + columns] = row_sum;
  }
}
extern "C" __global__ void __launch_bounds__(kBlock, 2) tensor_map_along(Product p) {
  product<Wide, false, true, false>(p);
}
extern "C" __global__ void __launch_bounds__(kBlock, 2) tensor_map_beside(Product p) {
  product<Wide, false, false, false>(p);
}
extern "C" __global__ void __launch_bounds__(kBlock, 2) tensor_gradient(Product p) {
  product<Wide, true, true, false>(p);
}
extern "C" __global__ void __launch_bounds__(kBlock, 2) tensor_sums_along(Product p) {
  product<Tall, false, false, true>(p);
}
extern "C" __global__ void __launch_bounds__(kBlock, 2) tensor_sums_beside(Product p) {
  product<Tall, false, true, true>(p);
}
