// Sums over many independent rows with every synapse and its four sums held in registers: a block holds the synapses of some
// sources, in groups of threads that hold the same and walk tiles of rows of their own, each at its own pace. At last a block
// adds the sums of its groups in order.
#pragma once
#include "gate_sums.cuh"

constexpr int kTile = 8;  // rows of a tile
static_assert(kRows == 2, "one plane of pairs");

// A group of threads: which of how many, and this thread in it.
struct Group {
  int index, groups, thread, threads;
};
__device__ __forceinline__ Group group_of(int threads) {
  const int index = threadIdx.x / threads;
  return {index, (int)blockDim.x / threads, (int)threadIdx.x - index * threads, threads};
}
__device__ __forceinline__ void meet(const Group& g) {
  asm volatile("bar.sync %0, %1;" ::"r"(g.index + 1), "r"(g.threads) : "memory");
}

// `pair(row, j)`: alpha and beta of a target; `input(row, d)`: the value of a source; `give(row, d, sum)`: what its gradient is
// given. A row is what `begin(n)` makes of its number and `next` of the row before. `others` targets; `shared`: for each group
// [kTile / 2, others, 4], or 16 bytes a thread. `saved`: this block's sums, [kSlots, threads], added to unless first.
template <class Row, class Begin, class Next, class Pair, class Input, class Give>
__device__ __forceinline__ void sum_rows(const Schedule& schedule, unsigned part, unsigned worker, unsigned workers, int rows,
                                         int others, int threads, bool first_chunk, float4* saved, char* shared, Begin begin,
                                         Next next, Pair pair, Input input, Give give) {
  const Group g = group_of(threads);
  int2 shape = schedule.warps[part * (threads / 32) + g.thread / 32];
  shape = make_int2(uniform(shape.x), uniform(shape.y));
  const int lane = threadIdx.x % 32, sub = lane & (shape.x - 1), d = schedule.target[part * threads + g.thread];
  float p0, q0;
  const Held held = hold(schedule, part, p0, q0, nullptr, threads, g.thread);
  Sums sums;
  saved += g.thread;
#pragma unroll
  for (int i = 0; i < kSlots; i++)
    sums.of[i] = first_chunk || g.index > 0 ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : saved[(i64)i * threads];
  float* const pairs = (float*)(shared + (i64)g.index * kTile * others * 8);
  for (i64 first = ((i64)worker * g.groups + g.index) * kTile; first < rows; first += (i64)workers * g.groups * kTile) {
    const int there = (int)(rows - first < kTile ? rows - first : kTile);
    const Row start = begin((int)first);
    meet(g);
    // All rows of a target at once, so that their reads are in flight together.
    for (int j = g.thread; j < others; j += threads) {
      float2 x[kTile];
      Row row = start;
#pragma unroll
      for (int r = 0; r < kTile; r++) {
        x[r] = make_float2(0.0f, 0.0f);
        if (r < there) {
          x[r] = pair(row, j);
          if (r + 1 < there) row = next(row);
        }
      }
#pragma unroll
      for (int r = 0; r < kTile; r += 2) *(float4*)(pairs + ((r / 2) * others + j) * 4) = make_float4(x[r].x, x[r].y, x[r + 1].x, x[r + 1].y);
    }
    Row row = start;
    meet(g);
#pragma unroll 1
    for (int r = 0; r < there; r += 2) {
      const bool both = r + 1 < there;
      const Row other = both ? next(row) : row;
      float v[2] = {d >= 0 ? input(row, d) : 0.0f, d >= 0 && both ? input(other, d) : 0.0f}, total[2] = {0.0f, 0.0f};
      adjoint_gates<0>(held, sums, shape.y, (const char*)(pairs + (r / 2) * others * 4), 0, v, total);
      give(lane & 1 ? other : row, d, sub, lane, shape.x, both || !(lane & 1), total);
      row = both && r + 2 < there ? next(other) : other;
    }
  }
  // The groups' sums, in order.
  float4* const mine = (float4*)shared;
#pragma unroll
  for (int i = 0; i < kSlots; i++) {
    __syncthreads();
    mine[threadIdx.x] = sums.of[i];
    __syncthreads();
    if (g.index > 0) continue;
    float4 sum = sums.of[i];
    for (int k = 1; k < g.groups; k++) {
      const float4 x = mine[k * threads + g.thread];
      sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
    }
    saved[(i64)i * threads] = sum;
  }
}
