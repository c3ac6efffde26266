// linear_scan, backward: lambda_t = grad_h_t + a_{t+1} lambda_{t+1}, where a_{T+1} lambda_{T+1} is grad_h_last, and
//   grad_a_t = lambda_t h_{t-1} (h0 before the first),  grad_x_t = lambda_t,  grad_h0 = a_1 lambda_1
//
//   a, h, grad_h, grad_a, grad_x  [B, D, T] f32, bf16 or f16 (kStored)        h0, grad_h_last, grad_h0  [B, D] f32
//
// The scan runs against the forward pass, so kDescending is true for a recurrence that runs with time. It carries
// mu_t = a_t lambda_t, for which mu_t = a_t mu_{t+1} + a_t grad_h_t: the gate belongs to the same step as the gradient,
// and no shifted copy of a is read. The state h_{t-1} is the one that the scan visits next: it comes from the next
// lane by a shuffle, and only lane 31 reads it, from the neighbouring warp's piece or tile.
//
// Bytes a step: 12 in, 8 out; flops: 3. Memory binds: 214 G steps/s at 4.28 TB/s, 139 clocks for 128 steps on each of
// 132 multiprocessors, in which a warp issues 15 shuffles and about 230 instructions of 139 and 555.
// Who computes what and the four kernels are those of forward.cu; the ring of `bulk` holds a, grad_h, and h with the
// states beyond the tile's end in front (that is the 16 bytes which the tile's last step needs one state of). Halves take
// half the bytes. lambda never depends on a stored state; grad_a does, and has its rounding beside its own.
#ifndef __CUDACC_RTC__
#include "defaults.cuh"
#endif
#include "barriers.cuh"
#include "tile.cuh"

// From gates a and gradients g of the tile's states, and the states after each (in the order of the scan): g becomes
// lambda, and `next` the gradient of a. `mu` is carried, and each vector's last one left in `end`.
template <typename OnBarrier>
__device__ __forceinline__ void scan_tile(const float (&a)[kVectors][kSteps], float (&g)[kVectors][kSteps],
                                          float (&next)[kVectors][kSteps], float (&end)[kVectors], float& mu,
                                          Affine* slots, OnBarrier on_barrier) {
  Affine run[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    run[v] = {a[v][0], a[v][0] * g[v][0]};
#pragma unroll
    for (int k = 1; k < kSteps; ++k) run[v] = then(run[v], {a[v][k], a[v][k] * g[v][k]});
  }
  block_scan<kWarps>(run, end, mu, slots, on_barrier);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      g[v][k] += end[v];
      next[v][k] *= g[v][k];
      end[v] = a[v][k] * g[v][k];
    }
  }
}

// The states that the scan visits after those of `h`: shifted by one, with `beyond` behind lane 31's.
__device__ __forceinline__ void shift(float (&next)[kSteps], const float (&h)[kSteps], float beyond) {
  const float neighbour = __shfl_down_sync(~0u, h[0], 1);
#pragma unroll
  for (int k = 0; k + 1 < kSteps; ++k) next[k] = h[k + 1];
  next[kSteps - 1] = threadIdx.x % 32 == 31 ? beyond : neighbour;
}

template <bool kAligned>
__device__ __forceinline__ void store_tile(Stored* a_row, i64 a_stride, Stored* x_row, i64 x_stride, const Tile& tile,
                                           const float (&grad_a)[kVectors][kSteps],
                                           const float (&grad_x)[kVectors][kSteps], const float (&mu)[kVectors],
                                           float* last) {
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int at = vector_offset(v);
    store_vector<kAligned>(a_row, a_stride, tile, at, grad_a[v]);
    store_vector<kAligned>(x_row, x_stride, tile, at, grad_x[v]);
    if (last && holds_last(tile, at)) *last = mu[v];
  }
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// In the registers of eight blocks of 128 threads halves spill on Blackwell, and by 4 bytes in those of seven where time descends.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kMostBlocks = (kDescending ? 6 : 7) * 128 / (kThreads > 128 ? kThreads : 128);
constexpr int kBlocks = kStored != 0 && kBlocksPerSm > kMostBlocks ? kMostBlocks : kBlocksPerSm;
#else
constexpr int kBlocks = kBlocksPerSm;
#endif
// Rows contiguous in time, each starting at a multiple of 16 bytes, whole vectors long.
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks)
    scan_backward_bulk(Sequence a, State h0, Sequence h, Sequence grad_h, State grad_h_last, Sequence grad_a,
                       Sequence grad_x, State grad_h0, Sizes n) {
  // Where the ring keeps a tile's states: behind the vector that precedes them in memory, or before those that follow.
  constexpr int kHead = kDescending ? kSteps : 0;
  struct Stage {
    Stored a[kTile], g[kTile], h[kTile + kSteps];
  };
  extern __shared__ __align__(128) unsigned char dynamic[];
  const auto ring = reinterpret_cast<Stage*>(dynamic);  // kStages of them
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
  const Stored *fetch_a = row_of(a, n, fetch_row), *fetch_g = row_of(grad_h, n, fetch_row);
  const Stored* fetch_h = row_of(h, n, fetch_row);
  auto fetch = [&](int stage) {
    if (fetch_row >= n.rows || tiles == 0) return;
    const Tile tile = tile_at(fetch_tile, tiles, n.steps);
    const unsigned bytes = sizeof(Stored) * tile.left;
    const bool more = fetch_tile + 1 < tiles;  // the tile that the scan visits next holds the state beyond this one
    const unsigned h_bytes = bytes + (more ? 16 : 0);
    const int head = more ? kHead : 0;
    barrier_expect(&full[stage], 2 * bytes + h_bytes);
    bulk_copy(ring[stage].a, fetch_a + tile.begin, bytes, &full[stage], policy);
    bulk_copy(ring[stage].g, fetch_g + tile.begin, bytes, &full[stage], policy);
    bulk_copy(ring[stage].h + kHead - head, fetch_h + tile.begin - head, h_bytes, &full[stage], policy);
    if (++fetch_tile == tiles) {
      fetch_tile = 0;
      fetch_row += gridDim.x;
      fetch_a = row_of(a, n, fetch_row);
      fetch_g = row_of(grad_h, n, fetch_row);
      fetch_h = row_of(h, n, fetch_row);
    }
  };
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) fetch(s);
  }

  int stage = 0, turn = 0;
  unsigned parity = 0;
  for (i64 row = blockIdx.x; row < n.rows; row += gridDim.x) {
    const float *first = row_of(h0, n, row), *later = row_of(grad_h_last, n, row);
    Stored *to_a = row_of(grad_a, n, row), *to_x = row_of(grad_x, n, row);
    float* last = row_of(grad_h0, n, row);
    const float edge = first ? __ldg(first) : 0.f;
    float mu = __ldg(later);
    if (tiles == 0 && threadIdx.x == 0 && last) *last = mu;
    for (i64 nth = 0; nth < tiles; ++nth) {
      const Tile tile = tile_at(nth, tiles, n.steps);
      float av[kVectors][kSteps], gv[kVectors][kSteps], next[kVectors][kSteps], end[kVectors];
      barrier_wait(&full[stage], parity);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int at = vector_offset(v);
        float hv[kSteps];
        fill(av[v], 1.f);
        fill(gv[v], 0.f);
        fill(hv, edge);
        const Stored* states = ring[stage].h + kHead;
        if (at < tile.left) {
          unpack(av[v], *vector_at(&ring[stage].a[at]));
          unpack(gv[v], *vector_at(&ring[stage].g[at]));
          unpack(hv, *vector_at(&states[at]));
        }
        const float beyond = threadIdx.x % 32 == 31 ? widen(states[kDescending ? at - 1 : at + kSteps]) : 0.f;
        shift(next[v], hv, beyond);
        if (holds_last(tile, at)) next[v][kSteps - 1] = edge;
      }
      scan_tile(av, gv, next, end, mu, slots[turn], [&] {
        if (threadIdx.x == 0) fetch(stage);
      });
      store_tile<true>(to_a, 1, to_x, 1, tile, next, gv, end, last);
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
__device__ __forceinline__ void scan_rows(const Sequence& a, const State& h0, const Sequence& h,
                                          const Sequence& grad_h, const State& grad_h_last, const Sequence& grad_a,
                                          const Sequence& grad_x, const State& grad_h0, const Sizes& n) {
  __shared__ alignas(16) Affine slots[2][kWarps];
  const i64 tiles = tile_count(n.steps);
  int turn = 0;
  for (i64 row = blockIdx.x; row < n.rows; row += gridDim.x) {
    const Stored *a_row = row_of(a, n, row), *g_row = row_of(grad_h, n, row), *h_row = row_of(h, n, row);
    const float *first = row_of(h0, n, row), *later = row_of(grad_h_last, n, row);
    Stored *to_a = row_of(grad_a, n, row), *to_x = row_of(grad_x, n, row);
    float* last = row_of(grad_h0, n, row);
    const float edge = first ? __ldg(first) : 0.f;
    float mu = __ldg(later);
    if (tiles == 0 && threadIdx.x == 0 && last) *last = mu;
    float next_a[kVectors][kSteps], next_g[kVectors][kSteps], next_h[kVectors][kSteps], next_beyond[kVectors];
    auto fetch = [&](const Tile& tile) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int at = vector_offset(v);
        load_vector<kAligned>(next_a[v], a_row, a.t, tile, at, 1.f);
        load_vector<kAligned>(next_g[v], g_row, grad_h.t, tile, at, 0.f);
        load_vector<kAligned>(next_h[v], h_row, h.t, tile, at, edge);
        const i64 t = tile.begin + (kDescending ? at - 1 : at + kSteps);
        const bool reads = threadIdx.x % 32 == 31 && t >= 0 && t < n.steps;
        next_beyond[v] = reads ? widen(__ldg(h_row + t * h.t)) : edge;
      }
    };
    if (tiles > 0) fetch(tile_at(0, tiles, n.steps));
    for (i64 nth = 0; nth < tiles; ++nth) {
      const Tile tile = tile_at(nth, tiles, n.steps);
      float av[kVectors][kSteps], gv[kVectors][kSteps], next[kVectors][kSteps], end[kVectors];
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        copy(av[v], next_a[v]);
        copy(gv[v], next_g[v]);
        shift(next[v], next_h[v], next_beyond[v]);
        if (holds_last(tile, vector_offset(v))) next[v][kSteps - 1] = edge;
      }
      if (nth + 1 < tiles) fetch(tile_at(nth + 1, tiles, n.steps));
      scan_tile(av, gv, next, end, mu, slots[turn], [] {});
      store_tile<kAligned>(to_a, grad_a.t, to_x, grad_x.t, tile, next, gv, end, last);
      turn ^= 1;
    }
  }
}

extern "C" __global__ void __launch_bounds__(kThreads)
    scan_backward_rows(Sequence a, State h0, Sequence h, Sequence grad_h, State grad_h_last, Sequence grad_a,
                       Sequence grad_x, State grad_h0, Sizes n) {
  scan_rows<true>(a, h0, h, grad_h, grad_h_last, grad_a, grad_x, grad_h0, n);
}

// Without a count of blocks ptxas keeps 256 threads to 128 registers, in which two vectors spill.
extern "C" __global__ void __launch_bounds__(kThreads, kThreads * kVectors < 512 ? 0 : 1)
    scan_backward_strided(Sequence a, State h0, Sequence h, Sequence grad_h, State grad_h_last, Sequence grad_a,
                          Sequence grad_x, State grad_h0, Sizes n) {
  scan_rows<false>(a, h0, h, grad_h, grad_h_last, grad_a, grad_x, grad_h0, n);
}

extern "C" __global__ void __launch_bounds__(32 * kChannelWarps)
    scan_backward_channels(Sequence a, State h0, Sequence h, Sequence grad_h, State grad_h_last, Sequence grad_a,
                           Sequence grad_x, State grad_h0, Sizes n) {
  __shared__ Affine slots[2][kChannelWarps][32];
  int turn = 0;
  for (i64 group = 32 * static_cast<i64>(blockIdx.x); group < n.rows; group += 32 * static_cast<i64>(gridDim.x)) {
    // A lane without a row reads the last one and writes nothing.
    const i64 wanted = group + threadIdx.x % 32, row = min(wanted, n.rows - 1);
    const bool writes = wanted < n.rows;
    const float *first = row_of(h0, n, row), *later = row_of(grad_h_last, n, row);
    float* last = row_of(grad_h0, n, row);
    const float edge = first ? __ldg(first) : 0.f;
    float mu = __ldg(later);
    Walk<const Stored> from_a = walk<const Stored>(row_of(a, n, row), a.t, n.steps);
    Walk<const Stored> from_g = walk<const Stored>(row_of(grad_h, n, row), grad_h.t, n.steps);
    // One step ahead of the others, and so with one step less to go.
    Walk<const Stored> from_h = walk<const Stored>(row_of(h, n, row), h.t, n.steps);
    from_h.at += from_h.stride;
    Walk<Stored> to_a = walk<Stored>(row_of(grad_a, n, row), grad_a.t, n.steps);
    Walk<Stored> to_x = walk<Stored>(row_of(grad_x, n, row), grad_x.t, n.steps);
    if (n.steps == 0 && threadIdx.x < 32 && writes && last) *last = mu;

    float next_a[kRun], next_g[kRun], next_h[kRun];
    auto fetch = [&](i64 begin) {
      const int left = run_left(begin, n.steps);
      load_run(next_a, from_a, left, 1.f);
      load_run(next_g, from_g, left, 0.f);
      load_run(next_h, from_h, begin + kSpan < n.steps ? kRun : left - 1, edge);
      return left;
    };
    int left = fetch(0);
    for (i64 begin = 0; begin < n.steps; begin += kSpan) {
      float av[kRun], gv[kRun], hv[kRun];
      Affine run = identity();
#pragma unroll
      for (int k = 0; k < kRun; ++k) {
        av[k] = next_a[k], gv[k] = next_g[k], hv[k] = next_h[k];
        run = then(run, {av[k], av[k] * gv[k]});
      }
      const int next_left = fetch(begin + kSpan);
      float at = span_scan(run, mu, slots[turn]);
#pragma unroll
      for (int k = 0; k < kRun; ++k) {
        gv[k] += at;
        hv[k] *= gv[k];
        at = av[k] * gv[k];
      }
      store_run(to_a, hv, writes ? left : 0);
      store_run(to_x, gv, writes ? left : 0);
      // Steps outside the row change no mu, so `at` is that of the row's first step in the warp that holds it.
      const bool ends = begin + kSpan >= n.steps && left > 0 && left <= kRun;
      if (ends && writes && last) *last = at;
      left = next_left;
      turn ^= 1;
    }
  }
}
