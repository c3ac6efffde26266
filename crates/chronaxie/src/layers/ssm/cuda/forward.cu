// linear_scan, forward: h_t = a_t h_{t-1} + x_t
//
//   a, x, h  [B, D, T] f32, bf16 or f16 (kStored)        h0, h_last  [B, D] f32
//
// With kDescending time runs from T-1 to 0. A row is one (b, d). Bytes a step: 8 in, 4 out; flops: 2. So memory binds:
// at 4.28 TB/s (a copy on an H200) 357 G steps/s, 1.54 a clock on each of 132 multiprocessors, where 83 clocks pass
// for 128 steps (one float4 a lane). For these a warp issues 14 shuffles and about 155 instructions in all, of 83 and
// 332 that the multiprocessor can: neither binds, and latency is hidden by blocks (8 a multiprocessor). Halves take half
// the bytes, and so 41 clocks for 128 steps: their vectors are eight steps long, which halves the shuffles a step too.
// They are widened exactly where they are read and rounded once where they are written; states stay f32 in between.
//
// Who computes what, rows contiguous in time (bulk, rows, strided): a block takes one row, tile after tile of kTile
// steps. A lane owns kVectors runs of kSteps steps (16 bytes), consecutive lanes consecutive runs, so that every 16-byte
// access of a warp is one piece of 512 bytes without bank conflicts. Runs become affine maps (a, x), maps are scanned by
// shuffles in the warp and folded over the warps in order, and then each run is done again from its starting state:
// the states that are written come from the recurrence itself, and products of gates only carry states across runs.
//
//   bulk      (sm_90 on) a ring of kStages tiles in shared memory that bulk copies fill: at least kStages - 1 tiles of
//             a and x are in flight, whatever the registers hold, and across the rows of a block without a gap
//   rows      (any) the next tile is prefetched in registers by 16-byte loads
//   strided   (any) the same with any stride and alignment, by loads of one element
//   channels  (any) rows next to each other in memory: a lane owns a row, a warp owns a run of kRun steps, so that a
//             warp's access is 128 contiguous bytes (64 of halves); carried over the warps as above
//
// Tried on an H200 with 1024 rows of 65536 steps, forward / forward and backward in ms (2026-11-21; 0.2034 / 0.550
// without any of them): reads that leave L2 last 0.1997 / 0.533, kept, and as much at 4 and 12 times the size; reads
// that leave it first 0.211 / 0.570; plain, write-through or lasting stores instead of streaming ones 0.205 / 0.543 to
// 0.549; blocks that start up to 3 us apart 0.204 / 0.550; tiles of 512 steps 0.207 / 0.557; 256 threads 0.204 / 0.546.
// With as many rows of bf16, read at once in pieces of 2 KB, 128 threads come to 88 % of a copy. Blocks of 256 and 512
// threads, and of two vectors each, read longer pieces of fewer rows. H200, 2026-11-29, bf16, forward and backward alone:
//
//   threads x vectors, tiles, blocks     1024 x 65536     3072 x 33000     6144 x 16384     12288 x 8192
//   128 x 1, 5 and 4, 8                  0.1089 0.1784    -                -                0.1443 0.2488
//   256 x 1, 3, 4                        0.1051 0.1714    0.1577 0.2686    0.1434 0.2434    0.1427 0.2396
//   256 x 2, 2, 2                        0.1043 0.1694    0.1550 0.2569    0.1422 0.2420    0.1413 0.2404
//   256 x 2, 3, 2                        0.1052 0.1700    0.1551 0.2562    0.1430 0.2410    0.1412 0.2404
//   512 x 1, 2, 2                        0.1031 -         -                -                0.1866 -
//   512 x 1, 3, 2                        0.1029 0.1727    0.1568 0.2556    0.1553 0.2417    0.1877 0.2544
//
// What is left to a copy at 1024 x 65536 is a beginning and an end of 8 us: rows of four times that length take 0.3879 and
// 0.6675, 98 and 95 % of a copy. Rows of 8200 steps, whose fifth tile of 2048 is all but empty, 0.1572 forward where 128
// threads take 0.1529; rows of at most 4096 steps are slower forward with 256, by up to twice.
// Tried before on an H100 (2026-11-26; 0.148, backward 0.245): blocks that take parts of rows, 8 tiles each, as they
// come free, states handed on through memory 0.1468 and 0.2437; 16 parts 0.1475 and 0.2448. Rings of 3 and 6 tiles, 64
// threads with two vectors: 0.1475 to 0.1487.
// Ideas: writing through a staged bulk store costs shared memory that the ring needs and saves nothing that binds (one
// 16-byte store a lane for 4 steps). A split of a row over blocks is not needed from about 130 rows on: with 1024 rows
// every block is resident at once.
#ifndef __CUDACC_RTC__
#include "defaults.cuh"
#endif
#include "barriers.cuh"
#include "tile.cuh"

// The tile's states from its gates and inputs.
template <typename OnBarrier>
__device__ __forceinline__ void scan_tile(const float (&a)[kVectors][kSteps], const float (&x)[kVectors][kSteps],
                                          float (&h)[kVectors][kSteps], float& state, Affine* slots,
                                          OnBarrier on_barrier) {
  Affine run[kVectors];
  float start[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    run[v] = {a[v][0], x[v][0]};
#pragma unroll
    for (int k = 1; k < kSteps; ++k) run[v] = then(run[v], {a[v][k], x[v][k]});
  }
  block_scan<kWarps>(run, start, state, slots, on_barrier);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) h[v][k] = start[v] = fmaf(a[v][k], start[v], x[v][k]);
  }
}

template <bool kAligned>
__device__ __forceinline__ void store_tile(Stored* row, i64 stride, const Tile& tile,
                                           const float (&h)[kVectors][kSteps], float* last) {
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int at = vector_offset(v);
    store_vector<kAligned>(row, stride, tile, at, h[v]);
    if (holds_last(tile, at)) *last = h[v][kSteps - 1];
  }
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// Rows contiguous in time, each starting at a multiple of 16 bytes, whole vectors long.
extern "C" __global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    scan_forward_bulk(Sequence a, Sequence x, State h0, Sequence h, State h_last, Sizes n) {
  extern __shared__ __align__(128) unsigned char dynamic[];
  const auto ring = reinterpret_cast<Stored(*)[2][kTile]>(dynamic);  // kStages of them
  __shared__ alignas(8) unsigned long long full[kStages];
  __shared__ alignas(16) Affine slots[2][kWarps];
  const i64 tiles = tile_count(n.steps);

  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) barrier_init(&full[s], 1);
    barrier_init_fence();
  }
  __syncthreads();

  const unsigned long long policy = evict_last();

  // Thread 0 walks ahead of the block over the same sequence of (row, tile).
  i64 fetch_row = blockIdx.x, fetch_tile = 0;
  const Stored *fetch_a = row_of(a, n, fetch_row), *fetch_x = row_of(x, n, fetch_row);
  auto fetch = [&](int stage) {
    if (fetch_row >= n.rows || tiles == 0) return;
    const Tile tile = tile_at(fetch_tile, tiles, n.steps);
    const unsigned bytes = sizeof(Stored) * tile.left;
    barrier_expect(&full[stage], 2 * bytes);
    bulk_copy(ring[stage][0], fetch_a + tile.begin, bytes, &full[stage], policy);
    bulk_copy(ring[stage][1], fetch_x + tile.begin, bytes, &full[stage], policy);
    if (++fetch_tile == tiles) {
      fetch_tile = 0;
      fetch_row += gridDim.x;
      fetch_a = row_of(a, n, fetch_row);
      fetch_x = row_of(x, n, fetch_row);
    }
  };
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) fetch(s);
  }

  int stage = 0, turn = 0;
  unsigned parity = 0;
  for (i64 row = blockIdx.x; row < n.rows; row += gridDim.x) {
    const float* first = row_of(h0, n, row);
    Stored* out = row_of(h, n, row);
    float* last = row_of(h_last, n, row);
    float state = first ? __ldg(first) : 0.f;
    if (tiles == 0 && threadIdx.x == 0) *last = state;
    for (i64 nth = 0; nth < tiles; ++nth) {
      const Tile tile = tile_at(nth, tiles, n.steps);
      float av[kVectors][kSteps], xv[kVectors][kSteps], hv[kVectors][kSteps];
      barrier_wait(&full[stage], parity);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int at = vector_offset(v);
        fill(av[v], 1.f);
        fill(xv[v], 0.f);
        if (at < tile.left) {
          unpack(av[v], *vector_at(&ring[stage][0][at]));
          unpack(xv[v], *vector_at(&ring[stage][1][at]));
        }
      }
      scan_tile(av, xv, hv, state, slots[turn], [&] {
        if (threadIdx.x == 0) fetch(stage);
      });
      store_tile<true>(out, 1, tile, hv, last);
      turn ^= 1;
      if (++stage == kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
}
#endif

template <bool kAligned>
__device__ __forceinline__ void scan_rows(const Sequence& a, const Sequence& x, const State& h0, const Sequence& h,
                                          const State& h_last, const Sizes& n) {
  __shared__ alignas(16) Affine slots[2][kWarps];
  const i64 tiles = tile_count(n.steps);
  int turn = 0;
  for (i64 row = blockIdx.x; row < n.rows; row += gridDim.x) {
    const Stored *a_row = row_of(a, n, row), *x_row = row_of(x, n, row);
    const float* first = row_of(h0, n, row);
    Stored* out = row_of(h, n, row);
    float* last = row_of(h_last, n, row);
    float state = first ? __ldg(first) : 0.f;
    if (tiles == 0 && threadIdx.x == 0) *last = state;
    float next_a[kVectors][kSteps], next_x[kVectors][kSteps];
    auto fetch = [&](const Tile& tile) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        load_vector<kAligned>(next_a[v], a_row, a.t, tile, vector_offset(v), 1.f);
        load_vector<kAligned>(next_x[v], x_row, x.t, tile, vector_offset(v), 0.f);
      }
    };
    if (tiles > 0) fetch(tile_at(0, tiles, n.steps));
    for (i64 nth = 0; nth < tiles; ++nth) {
      float av[kVectors][kSteps], xv[kVectors][kSteps], hv[kVectors][kSteps];
#pragma unroll
      for (int v = 0; v < kVectors; ++v) copy(av[v], next_a[v]), copy(xv[v], next_x[v]);
      if (nth + 1 < tiles) fetch(tile_at(nth + 1, tiles, n.steps));
      scan_tile(av, xv, hv, state, slots[turn], [] {});
      store_tile<kAligned>(out, h.t, tile_at(nth, tiles, n.steps), hv, last);
      turn ^= 1;
    }
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, kStored == 0 ? 0 : 1)
    scan_forward_rows(Sequence a, Sequence x, State h0, Sequence h, State h_last, Sizes n) {
  scan_rows<true>(a, x, h0, h, h_last, n);
}

// Without a count of blocks ptxas keeps 512 threads to 64 registers, and spills.
extern "C" __global__ void __launch_bounds__(kThreads, kThreads < 512 ? 0 : 1)
    scan_forward_strided(Sequence a, Sequence x, State h0, Sequence h, State h_last, Sizes n) {
  scan_rows<false>(a, x, h0, h, h_last, n);
}

extern "C" __global__ void __launch_bounds__(32 * kChannelWarps)
    scan_forward_channels(Sequence a, Sequence x, State h0, Sequence h, State h_last, Sizes n) {
  __shared__ Affine slots[2][kChannelWarps][32];
  int turn = 0;
  for (i64 group = 32 * static_cast<i64>(blockIdx.x); group < n.rows; group += 32 * static_cast<i64>(gridDim.x)) {
    // A lane without a row reads the last one and writes nothing.
    const i64 wanted = group + threadIdx.x % 32, row = min(wanted, n.rows - 1);
    const bool writes = wanted < n.rows;
    const float* first = row_of(h0, n, row);
    float* last = row_of(h_last, n, row);
    float state = first ? __ldg(first) : 0.f;
    Walk<const Stored> from_a = walk<const Stored>(row_of(a, n, row), a.t, n.steps);
    Walk<const Stored> from_x = walk<const Stored>(row_of(x, n, row), x.t, n.steps);
    Walk<Stored> to_h = walk<Stored>(row_of(h, n, row), h.t, n.steps);
    if (n.steps == 0 && threadIdx.x < 32 && writes) *last = state;

    float next_a[kRun], next_x[kRun];
    int left = run_left(0, n.steps);
    load_run(next_a, from_a, left, 1.f);
    load_run(next_x, from_x, left, 0.f);
    for (i64 begin = 0; begin < n.steps; begin += kSpan) {
      float av[kRun], xv[kRun];
      Affine run = identity();
#pragma unroll
      for (int k = 0; k < kRun; ++k) {
        av[k] = next_a[k], xv[k] = next_x[k];
        run = then(run, {av[k], xv[k]});
      }
      const int next_left = run_left(begin + kSpan, n.steps);
      load_run(next_a, from_a, next_left, 1.f);
      load_run(next_x, from_x, next_left, 0.f);
      float at = span_scan(run, state, slots[turn]);
#pragma unroll
      for (int k = 0; k < kRun; ++k) xv[k] = at = fmaf(av[k], at, xv[k]);
      store_run(to_h, xv, writes ? left : 0);
      // Steps outside the row change no state, so `at` is that of the row's last step in the warp that holds it.
      const bool ends = begin + kSpan >= n.steps && left > 0 && left <= kRun;
      if (ends && writes) *last = at;
      left = next_left;
      turn ^= 1;
    }
  }
}
