// LTC, backward: the four sums of each synapse over all unfolds of a chunk (the equations: backward.cu), of many synapses.
//
// A block has kSlots kThreads synapses whose sources lie in a range of kRange and whose targets are few and side by side (grid.rs),
// and a slice of the rows n = ((b, step), k); a thread has kSlots of them in registers. Tiles of kTile rows of v, alpha and beta lie
// in shared memory four rows side by side, so that a load serves four gates, and twice, so that one is written while the other is
// read; the next is on its way in registers meanwhile.
// Work of four gates: three loads (about 10 wavefronts: neighbouring lanes have one target and near sources) and 4 x 12 issue slots,
// which bind: floor (H200, 1.98 GHz) 3 clocks for 32 gates, 1.2 ms for 3.2e9. Bytes from L2: 4 kRange a row, block and slice.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
#include "ltc.cuh"

constexpr int kRange = 512, kTile = 16, kGroups = kTile / 4;
constexpr int kMostTargets = 64;  // whose alpha and beta a thread each can load four rows of
#ifdef CHRONAXIE_PROLOGUE
static_assert(kThreads == kRange && 2 * kGroups * kMostTargets == kThreads, "a thread has a column");
#endif

// What grid.rs made for a block.
struct alignas(16) Rectangle {
  int first, count;      // synapses, in `order`
  int source, target;    // the first of each
};

// Four rows, `pitch` apart, from n on; zeros from `end` on.
__device__ __forceinline__ float4 four_rows(const float* at, i64 pitch, i64 n, i64 end) {
  float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (n < end) x.x = at[0];
  if (n + 1 < end) x.y = at[pitch];
  if (n + 2 < end) x.z = at[2 * pitch];
  if (n + 3 < end) x.w = at[3 * pitch];
  return x;
}

// Row n of v lies at (n / rows_per_batch) v_b + (n % rows_per_batch) H, alpha and beta at n H. Grid: rectangles, slices. Dynamic
// shared memory: v, then alpha and beta, twice [kGroups, kRange] and [2, kGroups, kMostTargets] of 16 bytes.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
ltc_grid_sums(const Synapse* __restrict__ by_target, const int* __restrict__ source_of, const int* __restrict__ target_index,
              const unsigned* __restrict__ order, const Rectangle* __restrict__ rectangles, const float* __restrict__ v, i64 v_b,
              i64 rows_per_batch, const float* __restrict__ alpha, const float* __restrict__ beta,
              float4* __restrict__ partial,  // [slices, S]
              i64 synapses, i64 rows, i64 slice, int hidden) {
  extern __shared__ __align__(16) char shared[];
  float4* const tiles = (float4*)shared;                       // [2, kGroups, kRange]
  float4* const pairs = tiles + 2 * kGroups * kRange;          // [2, 2, kGroups, kMostTargets]
  const Rectangle mine = rectangles[blockIdx.x];
  const i64 begin = blockIdx.y * slice, end = begin + slice < rows ? begin + slice : rows;

  float a[kSlots], mu[kSlots], p[kSlots], q[kSlots];
  unsigned at[kSlots];  // which column of each tile
  float4 total[kSlots];
#pragma unroll
  for (int i = 0; i < kSlots; i++) {
    const int slot = i * kThreads + (int)threadIdx.x;
    a[i] = mu[i] = p[i] = q[i] = 0.0f, at[i] = 0;
    total[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (slot < mine.count) {
      const unsigned s = order[mine.first + slot];
      const Synapse syn = by_target[s];
      a[i] = (kFast ? 0.5f : -1.4426950408889634f) * syn.sigma, mu[i] = syn.mu, p[i] = syn.p, q[i] = syn.q;
      at[i] = (unsigned)(source_of[s] - mine.source) | (unsigned)(target_index[s] - mine.target) << 16;
    }
  }
  // What this thread loads: a column of v, and four rows of alpha or beta of a target.
  const int column = mine.source + (int)threadIdx.x;
  const bool has_column = column < hidden, contiguous = v_b == rows_per_batch * hidden;
  const int target = threadIdx.x % kMostTargets, group = threadIdx.x / kMostTargets % kGroups;
  const bool of_beta = threadIdx.x >= kThreads / 2, has_target = mine.target + target < hidden;
  float4 next[kGroups], pair;
  auto fetch = [&](i64 n) {
#pragma unroll
    for (int g = 0; g < kGroups; g++) {
      const i64 row = n + g * 4;
      next[g] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (!has_column) continue;
      if (contiguous) {
        next[g] = four_rows(v + row * hidden + column, hidden, row, end);
      } else {
        auto one = [&](i64 r) { return r < end ? v[r / rows_per_batch * v_b + r % rows_per_batch * hidden + column] : 0.0f; };
        next[g] = make_float4(one(row), one(row + 1), one(row + 2), one(row + 3));
      }
    }
    const i64 row = n + group * 4;
    pair = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (has_target) pair = four_rows((of_beta ? beta : alpha) + row * hidden + mine.target + target, hidden, row, end);
  };
  auto put = [&](int buffer) {
#pragma unroll
    for (int g = 0; g < kGroups; g++) tiles[(buffer * kGroups + g) * kRange + threadIdx.x] = next[g];
    pairs[buffer * kThreads + threadIdx.x] = pair;
  };
  fetch(begin);
  put(0);
  __syncthreads();
  int buffer = 0;
#pragma unroll 1
  for (i64 n = begin; n < end; n += kTile, buffer ^= 1) {
    const bool more = n + kTile < end;
    if (more) fetch(n + kTile);
    const float4* const tile = tiles + buffer * kGroups * kRange;
    const float4* const of_targets = pairs + buffer * kThreads;
#pragma unroll
    for (int i = 0; i < kSlots; i++) {
      // Lanes beyond the last synapse add zeros.
      if (i * kThreads + ((int)threadIdx.x & ~31) >= mine.count) break;
      float4 part = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      const float4* const from = tile + (at[i] & 0xffff);
      const float4* const to = of_targets + (at[i] >> 16);
#pragma unroll
      for (int g = 0; g < kGroups; g++) {
        const float4 x = from[g * kRange], y = to[g * kMostTargets], w = to[(kGroups + g) * kMostTargets];
        const float xs[4] = {x.x, x.y, x.z, x.w}, alphas[4] = {y.x, y.y, y.z, y.w}, betas[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const float from_mu = xs[e] - mu[i], z = a[i] * from_mu;
          float r;
          if constexpr (kFast) {
            asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(z));
            r = fmaf(0.5f, r, 0.5f);
          } else {
            float power;
            asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(z));
            asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + power));
          }
          const float dz = fmaf(alphas[e], q[i], betas[e] * p[i]) * fmaf(-r, r, r);
          part.x = fmaf(alphas[e], r, part.x);
          part.y = fmaf(betas[e], r, part.y);
          part.z += dz;
          part.w = fmaf(dz, from_mu, part.w);
        }
      }
      total[i].x += part.x, total[i].y += part.y, total[i].z += part.z, total[i].w += part.w;
    }
    if (more) put(buffer ^ 1);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kSlots; i++) {
    const int slot = i * kThreads + (int)threadIdx.x;
    if (slot < mine.count) partial[blockIdx.y * synapses + order[mine.first + slot]] = total[i];
  }
}
