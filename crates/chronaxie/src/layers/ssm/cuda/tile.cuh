// What the forward and the backward scan share: tensors as arguments, and how a row is cut into tiles.
#pragma once

#include "scan.cuh"
#include "stored.cuh"

using i64 = long long;

struct Sequence {  // [B, D, T], strides in elements
  Stored* data;
  i64 b, d, t;
};

struct State {  // [B, D], strides in elements; data may be null
  float* data;
  i64 b, d;
};

struct Sizes {
  i64 rows, channels, steps;  // rows = B D
};

constexpr int kWarps = kThreads / 32;
constexpr int kSteps = kVector;                      // of a vector: four of f32, eight of a half
constexpr int kTile = kThreads * kVectors * kSteps;  // steps
static_assert(kThreads % 32 == 0 && kVectors > 0 && kStages > 0 && kBlocksPerSm > 0 && kRun > 0, "see tune.rs");

__device__ __forceinline__ Stored* row_of(const Sequence& s, const Sizes& n, i64 row) {
  return s.data + (row / n.channels) * s.b + (row % n.channels) * s.d;
}

__device__ __forceinline__ float* row_of(const State& s, const Sizes& n, i64 row) {
  return s.data ? s.data + (row / n.channels) * s.b + (row % n.channels) * s.d : nullptr;
}

// Tiles start at multiples of kTile whatever the direction, and the last in memory may be cut short. The scan takes
// them in the order of its direction, and so do a block's vectors within a tile.
struct Tile {
  i64 begin;
  int left;       // steps of it that exist, 1 to kTile
  int last_step;  // the step, within the tile, that the scan of the whole row visits last, or -1
};

__device__ __forceinline__ i64 tile_count(i64 steps) { return (steps + kTile - 1) / kTile; }

__device__ __forceinline__ Tile tile_at(i64 nth, i64 tiles, i64 steps) {
  const i64 begin = (kDescending ? tiles - 1 - nth : nth) * kTile;
  const int left = static_cast<int>(min(static_cast<i64>(kTile), steps - begin));
  return {begin, left, nth + 1 < tiles ? -1 : kDescending ? 0 : left - 1};
}

// Where in its tile this thread's v-th vector starts, in steps.
__device__ __forceinline__ int vector_offset(int v) {
  const int nth = ((threadIdx.x / 32) * kVectors + v) * 32 + threadIdx.x % 32;
  return kSteps * (kDescending ? kTile / kSteps - 1 - nth : nth);
}

// Whether the vector at `at` holds the row's last step. It is then the last element in the order of the scan, or only steps
// outside the row follow it, and these change no state.
__device__ __forceinline__ bool holds_last(const Tile& tile, int at) {
  return tile.last_step >= at && tile.last_step < at + kSteps;
}

// The place in memory of element k in the order of the scan.
__device__ __forceinline__ int in_order(int k) { return kDescending ? kSteps - 1 - k : k; }

__device__ __forceinline__ void unpack(float (&to)[kSteps], StoredVector from) {
  float memory[kSteps];
  widen_vector(memory, from);
#pragma unroll
  for (int k = 0; k < kSteps; ++k) to[k] = memory[in_order(k)];
}

__device__ __forceinline__ StoredVector pack(const float (&from)[kSteps]) {
  float memory[kSteps];
#pragma unroll
  for (int k = 0; k < kSteps; ++k) memory[k] = from[in_order(k)];
  return narrow_vector(memory);
}

__device__ __forceinline__ void copy(float (&to)[kSteps], const float (&from)[kSteps]) {
#pragma unroll
  for (int k = 0; k < kSteps; ++k) to[k] = from[k];
}

__device__ __forceinline__ void fill(float (&to)[kSteps], float value) {
#pragma unroll
  for (int k = 0; k < kSteps; ++k) to[k] = value;
}

// A vector in memory, at a multiple of 16 bytes.
__device__ __forceinline__ const StoredVector* vector_at(const Stored* p) {
  return reinterpret_cast<const StoredVector*>(p);
}

// Keeps the compiler from holding the multiples of a stride in registers: adding it once a step is as fast.
__device__ __forceinline__ i64 opaque(i64 stride) {
  asm volatile("" : "+l"(stride));
  return stride;
}

// The steps of the tile's vector at `at`, in the order of the scan; `outside` where there is no such step. With kAligned the
// row is contiguous, starts at a multiple of 16 bytes and is whole vectors long.
template <bool kAligned>
__device__ __forceinline__ void load_vector(float (&to)[kSteps], const Stored* row, i64 stride, const Tile& tile, int at,
                                            float outside) {
  fill(to, outside);
  if constexpr (kAligned) {
    if (at < tile.left) unpack(to, __ldcs(vector_at(row + tile.begin + at)));
  } else {
    const i64 step = opaque(stride);
    const Stored* p = row + (tile.begin + at) * step;
#pragma unroll
    for (int m = 0; m < kSteps; ++m, p += step) {
      if (at + m < tile.left) to[in_order(m)] = widen(__ldg(p));
    }
  }
}

template <bool kAligned>
__device__ __forceinline__ void store_vector(Stored* row, i64 stride, const Tile& tile, int at,
                                             const float (&from)[kSteps]) {
  if constexpr (kAligned) {
    if (at < tile.left) __stcs(reinterpret_cast<StoredVector*>(row + tile.begin + at), pack(from));
  } else {
    const i64 step = opaque(stride);
    Stored* p = row + (tile.begin + at) * step;
#pragma unroll
    for (int m = 0; m < kSteps; ++m, p += step) {
      if (at + m < tile.left) narrow(*p, from[in_order(m)]);
    }
  }
}

// Channels next to each other: a lane owns a row, a warp owns kRun steps that follow each other in the order of the
// scan.
constexpr int kSpan = kChannelWarps * kRun;

// The address and the stride of this warp's next steps in a row.
template <typename T>
struct Walk {
  T* at;
  i64 stride;
};

template <typename T>
__device__ __forceinline__ Walk<T> walk(T* row, i64 stride, i64 steps) {
  const i64 s = (threadIdx.x / 32) * kRun;
  return {row + (kDescending ? steps - 1 - s : s) * stride, kDescending ? -stride : stride};
}

// The next `left` of kRun steps, and `outside` for the rest; then on to the next span.
__device__ __forceinline__ void load_run(float (&to)[kRun], Walk<const Stored>& from, int left, float outside) {
  const i64 step = opaque(from.stride);
  const Stored* p = from.at;
#pragma unroll
  for (int k = 0; k < kRun; ++k, p += step) to[k] = k < left ? widen(__ldg(p)) : outside;
  from.at += kSpan * step;
}

__device__ __forceinline__ void store_run(Walk<Stored>& to, const float (&from)[kRun], int left) {
  const i64 step = opaque(to.stride);
  Stored* p = to.at;
#pragma unroll
  for (int k = 0; k < kRun; ++k, p += step) {
    if (k < left) narrow(*p, from[k]);
  }
  to.at += kSpan * step;
}

// How many of this warp's kRun steps of the span at `begin` exist; 0 or less if none.
__device__ __forceinline__ int run_left(i64 begin, i64 steps) {
  return static_cast<int>(max(static_cast<i64>(0), min(static_cast<i64>(kSpan), steps - begin))) -
         static_cast<int>(threadIdx.x / 32) * kRun;
}

// The state in which this warp's run starts; `state` moves over the whole span. `slots` alternate as in block_scan.
__device__ __forceinline__ float span_scan(Affine run, float& state, Affine (*slots)[32]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  slots[warp][lane] = run;
  __syncthreads();
  float mine = state;
#pragma unroll
  for (int w = 0; w < kChannelWarps; ++w) {
    if (w == warp) mine = state;
    state = apply(slots[w][lane], state);
  }
  return mine;
}
