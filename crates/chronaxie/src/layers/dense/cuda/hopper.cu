// dense on Hopper's tensor cores (sm_90a), at the accuracy of f32: every number is the sum of two of f16 under a power of two
// that a block of numbers shares, and three products are made for one. Equations and shapes are those of tensor.cu.
//
//   hopper_pack                  a matrix in blocks of 64 x 64: two tiles of f16, as wgmma reads them, and 2^-k
//   hopper_map_along, _beside    y = weight x + bias; x along time [B, D, T] or beside it [B, T, D]
//     .._held                    the same, D up to 256: a block keeps its rows of the weight
//   hopper_gradient_along, _beside   grad_x = weight^T grad_y, by parts of H
//   hopper_sums_along, _beside   grad_weight = sum_bt grad_y x^T and grad_bias, by parts of the steps
//
// A block of threads has 128 x 128 of a product: two warpgroups of 64 rows, and a warp that copies ahead (16 KB a block of
// numbers, cp.async.bulk) into a ring. Weights and x are packed before; grad_y, the large one, comes from memory straight into
// registers, where its rows of 64 terms get their power of two, and is read once a product (from memory, where D <= 128).
//
// Tensor cores cut their sums off: a sum has no more than 64 terms there, low products first, and goes into one of f32 with
// both powers of two, by one fma. Two warpgroups take turns (kTurns), so that one's numbers are made ready beside the other's
// products. Which block adds what depends on sizes alone; parts are added in their order; there are no atomics.
//
// A number is left with 22 bits or more, where it is more than 2^-17 of the largest of its block or row, and within 2^-39 of
// that one else: f32's accuracy wherever no number is more than 10^6 times the others that share its power. An infinite or NaN
// number makes NaN of its row or column. Products below 1e-34 may be lost, and 2^156 of both largest numbers is infinite.
//
// What binds: 6 n D H flops at f16's rate, 0.62 to 0.79 PFLOP/s on an H200. B8 T2048 D128 H8192: 103 GFLOP, 0.13 to 0.17 ms
// for each of the three products, where 3 x TF32 by mma.sync take 0.34 to 0.41 at the best; to write y or to read grad_y
// (537 MB) takes 0.125 ms at 4.28 TB/s. From L2 each reads 0.55 GB, the map where it holds its weights.
#ifndef __CUDACC_RTC__
#include "defaults.cuh"
#endif
#include "f16x3.cuh"

constexpr int kBlock = 384;             // two warpgroups that multiply, and one of which a thread copies
constexpr int kPackThreads = 256;
constexpr int kRows = 128, kColumns = 128;
constexpr int kMostRing = 6;              // of a map
constexpr int kRing = 6;                  // of sums
// Whether the warpgroups of a sum take turns at tensor cores.
constexpr bool kTurns = true;

struct Pack {
  const float* from;
  i64 stride, batch, rows, columns, aligned, order;
  char* to;
  float* scale;
};
extern "C" __global__ void __launch_bounds__(kPackThreads, 4) hopper_pack(const __grid_constant__ Pack p) {
  __shared__ unsigned most[kPackThreads / 32];
  const i64 rows = p.rows, columns = p.columns, stride = p.stride;
  const i64 across = (columns + kSide - 1) / kSide, down = (rows + kSide - 1) / kSide;
  const i64 block = blockIdx.x, c0 = block % across * kSide, r0 = block / across % down * kSide;
  const int column = threadIdx.x % 16 * 4, row = threadIdx.x / 16;
  const float* at = p.from + block / across / down * p.batch + (r0 + row) * stride + c0 + column;
  const int left = static_cast<int>(min(columns - c0 - column, 4LL));
  float x[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool there = r0 + row + 16 * i < rows;
    if (p.aligned && left == 4 && there) {
      const float4 v = *reinterpret_cast<const float4*>(at + 16 * i * stride);
      x[i][0] = v.x, x[i][1] = v.y, x[i][2] = v.z, x[i][3] = v.w;
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) x[i][e] = there && e < left ? at[16 * i * stride + e] : 0.0f;
    }
  }
  const unsigned largest = pack_block(x, p.to + block * kBlockBytes, row, column, most, static_cast<int>(p.order));
  if (threadIdx.x == 0) p.scale[block] = scale_down(largest);
}

struct Map {
  Packed weight, x;
  const float* bias;
  float* to;
  i64 stride, batch_stride;            // of y
  i64 rows, columns, chunks, batches;  // H, T, blocks of D, B
  i64 ring, aligned;
};

template <bool kHeld, bool kXByTerms>
__device__ __forceinline__ void map(const Map& p) {
  extern __shared__ __align__(16) char dynamic[];
  __shared__ __align__(8) u64 barriers[2 * kMostRing + 2];
  const unsigned begin = shared_at(dynamic) + (1024 - shared_at(dynamic) % 1024) % 1024;
  const int chunks = static_cast<int>(p.chunks), ring = static_cast<int>(p.ring);
  const unsigned places = begin + (kHeld ? chunks * kPair : 0);
  constexpr unsigned kPlace = kHeld ? kPair : 2 * kPair;
  const unsigned full = shared_at(barriers), empty = full + 8 * kMostRing, held = full + 16 * kMostRing, free = held + 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < ring; ++i) {
      barrier_init(&barriers[i], 1);
      barrier_init(&barriers[kMostRing + i], 256);
    }
    barrier_init(&barriers[2 * kMostRing], 1);
    barrier_init(&barriers[2 * kMostRing + 1], 256);
    barrier_init_fence();
  }
  __syncthreads();
  // Tiles of y: steps first, then batch rows, then rows of the weight. A block has those from `tile` on.
  const int across = static_cast<int>((p.columns + kColumns - 1) / kColumns), sheet = static_cast<int>(p.batches) * across;
  const int down = static_cast<int>((p.rows + kRows - 1) / kRows);
  const i64 all = static_cast<i64>(down) * sheet;
  i64 tile = all * blockIdx.x / gridDim.x;
  const i64 end = all * (blockIdx.x + 1) / gridDim.x;
  Turn turn;

  if (threadIdx.x >= 256) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x != 256) return;
    int row = -1;
    unsigned runs = 0;
#pragma unroll 1
    for (; tile < end; ++tile) {
      const int r = static_cast<int>(tile / sheet), rest = static_cast<int>(tile % sheet), b = rest / across, c = rest % across;
      if (kHeld && r != row) {
        if (runs > 0) barrier_wait_at(free, (runs - 1) & 1);
        barrier_expect_at(held, chunks * kPair);
        for (int k = 0; k < chunks; ++k)
          copy_pair(begin + k * kPair, p.weight, block_of(p.weight, 0, 2 * r, k), block_of(p.weight, 0, 2 * r + 1, k), held);
        row = r;
        ++runs;
      }
#pragma unroll 1
      for (int k = 0; k < chunks; ++k) {
        const unsigned at = places + turn.place * kPlace, barrier = full + 8 * turn.place;
        if (turn.round > 0) barrier_wait_at(empty + 8 * turn.place, (turn.round - 1) & 1);
        barrier_expect_at(barrier, kPlace);
        if (!kHeld)
          copy_pair(at + kPair, p.weight, block_of(p.weight, 0, 2 * r, k), block_of(p.weight, 0, 2 * r + 1, k), barrier);
        if (kXByTerms)
          copy_pair(at, p.x, block_of(p.x, b, k, 2 * c), block_of(p.x, b, k, 2 * c + 1), barrier);
        else
          copy_pair(at, p.x, block_of(p.x, b, 2 * c, k), block_of(p.x, b, 2 * c + 1, k), barrier);
        turn.advance(ring);
      }
    }
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  const int group = threadIdx.x / 128, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  float acc[16][4] = {}, some[2][16][4], scale[2][2];
  unsigned runs = 0;
#pragma unroll 1
  while (tile < end) {
    // The tiles of one row of tiles.
    const int r = static_cast<int>(tile / sheet);
    const int tiles = static_cast<int>(min(end, static_cast<i64>(r + 1) * sheet) - tile);
    int rest = static_cast<int>(tile % sheet), b = rest / across, c = rest % across, k = 0;  // of what is begun next
    int done_b = b, done_c = c, done_k = 0;                                                 // of what is done next
    Turn done = turn;
    if (kHeld) barrier_wait_at(held, runs & 1);
    auto start = [&](float(&d)[16][4], float(&both)[2]) {
      const unsigned at = places + turn.place * kPlace;
      const unsigned a = (kHeld ? begin + k * kPair : at + kPair) + group * kTileBytes;
      const float of_a = __ldg(p.weight.scale + block_of(p.weight, 0, 2 * r + group, k));
#pragma unroll
      for (int i = 0; i < 2; ++i)
        both[i] = of_a * __ldg(p.x.scale + (kXByTerms ? block_of(p.x, b, k, 2 * c + i) : block_of(p.x, b, 2 * c + i, k)));
      barrier_wait_at(full + 8 * turn.place, turn.round & 1);
      products_begin();
      multiply_tiles<false, kXByTerms>(d, a, at);
      products_end();
      turn.advance(ring);
      if (++k == chunks) {
        k = 0;
        if (++c == across) c = 0, ++b;
      }
    };
    auto finish = [&](const float(&d)[16][4], const float(&both)[2]) {
      arrive_at(empty + 8 * done.place);
      done.advance(ring);
      take_in(acc, d, both);
      if (++done_k < chunks) return;
      done_k = 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const i64 row = r * kRows + 64 * group + 16 * warp + lane / 4 + 8 * half;
        const int column = done_c * kColumns + lane % 4 * 4;
        if (row < p.rows) {
          const float bias = p.bias ? __ldg(p.bias + row) : 0.0f;
          float* to = p.to + done_b * p.batch_stride + row * p.stride + column;
#pragma unroll
          for (int n = 0; n < 16; n += 2) {
            const float4 y = {acc[n][2 * half] + bias, acc[n][2 * half + 1] + bias, acc[n + 1][2 * half] + bias,
                              acc[n + 1][2 * half + 1] + bias};
            const int left = static_cast<int>(p.columns) - column - 8 * n;
            if (p.aligned && left > 3) {
              __stcs(reinterpret_cast<float4*>(to + 8 * n), y);
            } else {
              store_two(to + 8 * n, y.x, y.y, false, left);
              store_two(to + 8 * n + 2, y.z, y.w, false, left - 2);
            }
          }
        }
#pragma unroll
        for (int n = 0; n < 16; ++n) acc[n][2 * half] = acc[n][2 * half + 1] = 0.0f;
      }
      if (++done_c == across) done_c = 0, ++done_b;
    };
    int left = tiles * chunks;
    start(some[0], scale[0]);
#pragma unroll 1
    for (; left > 2; left -= 2) {
      start(some[1], scale[1]);
      products_wait_but_one(some[0]);
      finish(some[0], scale[0]);
      start(some[0], scale[0]);
      products_wait_but_one(some[1]);
      finish(some[1], scale[1]);
    }
    if (left == 2) {
      start(some[1], scale[1]);
      products_wait_but_one(some[0]);
      finish(some[0], scale[0]);
      products_wait(some[1]);
      finish(some[1], scale[1]);
    } else {
      products_wait(some[0]);
      finish(some[0], scale[0]);
    }
    tile += tiles;
    ++runs;
    if (kHeld && tile < end) arrive_at(free);
  }
}

extern "C" __global__ void __launch_bounds__(kBlock, 1) hopper_map_along_held(const __grid_constant__ Map p) {
  map<true, true>(p);
}
extern "C" __global__ void __launch_bounds__(kBlock, 1) hopper_map_beside_held(const __grid_constant__ Map p) {
  map<true, false>(p);
}
extern "C" __global__ void __launch_bounds__(kBlock, 1) hopper_map_along(const __grid_constant__ Map p) {
  map<false, true>(p);
}
extern "C" __global__ void __launch_bounds__(kBlock, 1) hopper_map_beside(const __grid_constant__ Map p) {
  map<false, false>(p);
}

// grad_y is a: its rows are rows of the product and steps are terms (sums), or the other way round (gradient).
struct Sums {
  const float* y;
  i64 y_stride, y_batch;
  Packed b;
  float* to;
  i64 stride, batch_stride, part;      // of the product: from a row to the next (gradient: from a channel or a step)
  i64 rows, columns, terms;            // of a, of b, of both
  i64 term_batches, parts, aligned;    // terms go on over so many batch rows
};

template <bool kSums, bool kOtherByTerms>
__device__ __forceinline__ void sums(const Sums& p) {
  extern __shared__ __align__(16) char dynamic[];
  __shared__ __align__(8) u64 barriers[2 * kRing];
  // Of b: x with steps as terms, along time by its own rows; the weight with its rows as terms.
  constexpr bool kByTerms = !kSums || kOtherByTerms;
  const unsigned begin = shared_at(dynamic) + (1024 - shared_at(dynamic) % 1024) % 1024;
  const unsigned full = shared_at(barriers), empty = full + 8 * kRing;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kRing; ++i) {
      barrier_init(&barriers[i], 1);
      barrier_init(&barriers[kRing + i], 256);
    }
    barrier_init_fence();
  }
  __syncthreads();
  const int rows = static_cast<int>(p.rows), columns = static_cast<int>(p.columns), terms = static_cast<int>(p.terms);
  const unsigned across = (columns + kColumns - 1) / kColumns, down = (rows + kRows - 1) / kRows;
  unsigned block = blockIdx.x;
  // Neighbours read the same grad_y.
  const int c = block % across;
  block /= across;
  const int r = block % down;
  block /= down;
  const int part = block % static_cast<unsigned>(p.parts), batch = block / static_cast<unsigned>(p.parts);
  const int chunks = (terms + kSide - 1) / kSide;
  const i64 all = chunks * p.term_batches, first = all * part / p.parts;
  const int count = static_cast<int>(all * (part + 1) / p.parts - first);
  int b = batch + static_cast<int>(first / chunks), k = static_cast<int>(first % chunks);
  Turn turn;

  if (threadIdx.x >= 256) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x != 256) return;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const unsigned at = begin + turn.place * kPair, barrier = full + 8 * turn.place;
      if (turn.round > 0) barrier_wait_at(empty + 8 * turn.place, (turn.round - 1) & 1);
      barrier_expect_at(barrier, kPair);
      const int of_b = kSums ? b : 0;
      if (kByTerms)
        copy_pair(at, p.b, block_of(p.b, of_b, k, 2 * c), block_of(p.b, of_b, k, 2 * c + 1), barrier);
      else
        copy_pair(at, p.b, block_of(p.b, of_b, 2 * c, k), block_of(p.b, of_b, 2 * c + 1, k), barrier);
      turn.advance(kRing);
      if (++k == chunks) k = 0, ++b;
    }
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  const int group = threadIdx.x / 128, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, g = lane / 4, pair = lane % 4 * 2;
  // Rows of a: of a sum g and g + 8 of the warp's; of a gradient two steps that lie side by side.
  const int slab = r * kRows + 64 * group + 16 * warp;
  const int own = slab + (kSums ? g : 2 * g);
  const bool whole_rows = slab + 16 <= rows && p.aligned;
  // x[i][half][row][odd] is of term 16 i + 8 half + pair + odd.
  float x[4][2][2][2], scale[2];
  auto load = [&] {
    const float* at = p.y + b * p.y_batch;
    const int left = terms - k * kSide;
    if (kSums)
      at += own * p.y_stride + k * kSide + pair;
    else
      at += (k * static_cast<i64>(kSide) + pair) * p.y_stride + own;
    if (whole_rows && left >= kSide) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const i64 skip = kSums ? 16 * i + 8 * half + e * 8 * p.y_stride : (16 * i + 8 * half + e) * p.y_stride;
            const float2 v = __ldg(reinterpret_cast<const float2*>(at + skip));
            x[i][half][kSums ? e : 0][kSums ? 0 : e] = v.x;
            x[i][half][kSums ? e : 1][kSums ? 1 : e] = v.y;
          }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int row = 0; row < 2; ++row)
#pragma unroll
            for (int odd = 0; odd < 2; ++odd) {
              const int term = 16 * i + 8 * half + odd, beyond = kSums ? 8 * row : row;
              const i64 skip = kSums ? term + beyond * p.y_stride : term * p.y_stride + beyond;
              x[i][half][row][odd] = term + pair < left && own + beyond < rows ? at[skip] : 0.0f;
            }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
      scale[i] = __ldg(p.b.scale + (kByTerms ? block_of(p.b, kSums ? b : 0, k, 2 * c + i) : block_of(p.b, kSums ? b : 0, 2 * c + i, k)));
    if (++k == chunks) k = 0, ++b;
  };
  float acc[16][4] = {}, some[16][4], row_sum[2] = {};
  const bool biased = kSums && c == 0;
  if (count > 0) load();
  if (kTurns && group == 1) asm volatile("bar.arrive 1, 256;" ::: "memory");
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    unsigned most[2] = {};
    float some_sum[2] = {};
#pragma unroll
    for (int e = 0; e < 16; ++e)
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float v = x[e / 4][e / 2 % 2][row][e % 2];
        most[row] = max(most[row], magnitude(v));
        if (biased) some_sum[row] += v;
      }
    float up[2], down_by[2][2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      row_sum[row] += some_sum[row];
      most[row] = max(most[row], __shfl_xor_sync(~0u, most[row], 1));
      most[row] = max(most[row], __shfl_xor_sync(~0u, most[row], 2));
      up[row] = scale_up(most[row]);
      down_by[row][0] = scale_down(most[row]) * scale[0];
      down_by[row][1] = scale_down(most[row]) * scale[1];
    }
    unsigned high[4][4], low[4][4];
    split_rows(high, low, x, up);
    if (i + 1 < count) load();
    barrier_wait_at(full + 8 * turn.place, turn.round & 1);
    if (kTurns) asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory");
    const unsigned at = begin + turn.place * kPair;
    products_begin();
    multiply_rows<kByTerms>(some, high, low, at);
    products_end();
    // The other warpgroup's turn; no one waits for the last.
    if (kTurns && (group == 0 || i + 1 < count)) asm volatile("bar.arrive %0, 256;" ::"r"(2 - group) : "memory");
    products_wait(some);
    arrive_at(empty + 8 * turn.place);
    turn.advance(kRing);
#pragma unroll
    for (int n = 0; n < 16; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[n][e] = fmaf(some[n][e], down_by[e / 2][n / 8], acc[n][e]);
  }

  float* to = p.to + batch * p.batch_stride + part * p.part;
  if (kSums) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = own + 8 * half;
      if (row >= rows) continue;
      float* line = to + row * p.stride;
#pragma unroll
      for (int n = 0; n < 16; ++n) {
        const int column = c * kColumns + 8 * n + pair;
        store_two(line + column, acc[n][2 * half], acc[n][2 * half + 1], false, columns - column);
      }
    }
    if (biased) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        row_sum[half] += __shfl_xor_sync(~0u, row_sum[half], 1);
        row_sum[half] += __shfl_xor_sync(~0u, row_sum[half], 2);
        if (pair == 0 && own + 8 * half < rows) to[(own + 8 * half) * p.stride + columns] = row_sum[half];
      }
    }
  } else {
#pragma unroll
    for (int n = 0; n < 16; ++n) {
      const int column = c * kColumns + 8 * n + pair;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (kOtherByTerms) {
          // [.., D, T]
          if (column + e < columns) store_two(to + (column + e) * p.stride + own, acc[n][e], acc[n][2 + e], p.aligned != 0, rows - own);
        } else if (own + e < rows) {
          // [.., T, D]
          store_two(to + (own + e) * p.stride + column, acc[n][2 * e], acc[n][2 * e + 1], p.aligned != 0, columns - column);
        }
      }
    }
  }
}
extern "C" __global__ void __launch_bounds__(kBlock, 1) hopper_gradient_along(const __grid_constant__ Sums p) {
  sums<false, true>(p);
}
extern "C" __global__ void __launch_bounds__(kBlock, 1) hopper_gradient_beside(const __grid_constant__ Sums p) {
  sums<false, false>(p);
}
extern "C" __global__ void __launch_bounds__(kBlock, 1) hopper_sums_along(const __grid_constant__ Sums p) {
  sums<true, false>(p);
}
extern "C" __global__ void __launch_bounds__(kBlock, 1) hopper_sums_beside(const __grid_constant__ Sums p) {
  sums<true, true>(p);
}
