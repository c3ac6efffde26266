// LTC: sums of gates over columns of U (levels.cuh), of all rows (b, t, k) at once:
//   N_j = sum_i q_ij r_ij, D_j = sum_i p_ij r_ij,  r_ij = sig(sigma_ij (U_i - mu_ij))
//
// A lane has four rows, and all lanes of half a warp the same target and synapse: what belongs to a synapse is read once for 64 gates, with no
// conflict, states of rows lie side by side, and a shuffle adds up both halves (tile_sums in levels.cuh). A block has the synapses of some
// targets, which its warps share as they are long, in shared memory, and walks tiles of 64 rows, of which one is on its way where there is room
// for two. The sums of a tile go out by way of shared memory, so that rows are written whole.
//
// Floor: a special operation a gate (exact: two), 2 clocks for 32, and 2.1 of shared memory beside them: AutoNCP with 256 neurons, 5,940 synapses, 49,152 rows (B128 T64 K6)
// 74 us at 1.98 GHz on 132; 1024 neurons, 96,302 synapses, 1,536 rows (B32 T8 K6) 37 us. Beside a special operation, 8 clocks of a
// scheduler, a gate is some 5.6 instructions, of which three read three registers each. sensory.cu, whose lanes have synapses, takes 0.27 ms of the first
// in five chunks and 0.13 of the second (H100): its states lie in any bank,
// and a few warps wait for each other's loads and gates. This one: 83 us of the second, whose tiles have no room for another: multiprocessors work for
// 0.83 of it, since some have fewer targets, and issue 9.8 instructions a gate with what tiles take to come. With two rows a lane, where a
// synapse took 6.5 clocks of shared memory for 64 gates (a broadcast takes as many as it brings words to a lane), 87 us, and 46 for a third of the first.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = false;
#include "levels.cuh"

constexpr int kWarps = kThreads / 32;

// schedule: from [synapses / 2]: columns in floats, 16 bits each; target: for each part its first synapse and target and their numbers, and
// then for each unit its first synapse of the part, groups of eight synapses, target of the part, 0; warps [parts, kWarps]: first unit, units.
// Dynamic shared memory: `most` synapses of 16 bytes and their columns, 2; units' own sums; sums of a tile, [kTileRows, width]; one or two tiles.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
ltc_state_sums(Schedule schedule, const float* __restrict__ u, int pitch,  // [rows, pitch], from the first column on
               float2* __restrict__ sums, int count,                       // [rows, count]
               i64 rows, int inputs, int parts, int most, int width, int two) {
  extern __shared__ __align__(128) char shared[];  // tile_sums
  const int part = blockIdx.x % parts, worker = blockIdx.x / parts, workers = gridDim.x / parts;
  const int lane = threadIdx.x % 32, warp = uniform(threadIdx.x / 32);
  const int4 own = ((const int4*)schedule.target)[part];  // first synapse and target, and how many
  const int4* const units = (const int4*)schedule.target + parts;
  const int2 mine = schedule.warps[part * kWarps + warp];
  // Tiles first, so that they begin where banks do.
  float* const tiles = (float*)shared;
  float4* const synapses = (float4*)(tiles + (two ? 2 : 1) * inputs * kTileRows);
  uint2* const from = (uint2*)(synapses + most);  // of four synapses
  float2* const constant = (float2*)(from + most / 4);
  float2* const stage = constant + width;
  auto read = [&](i64 first, int half) {
    float* const tile = tiles + half * inputs * kTileRows;
    // A warp has a row of each quarter, so that addresses are kWarps rows apart.
    static_assert(kWarps == 16, "rows of the same place in each quarter");
    const int there = (int)min(rows - first, (i64)kTileRows);
    const float* const from = u + (first + warp) * pitch;
#pragma unroll 2
    for (int d = lane; d < inputs; d += 32) {
      float* const to = tile + in_tile(d, warp);
#pragma unroll
      for (int q = 0; q < kTileRows / kWarps; q++) {
        if (warp + kWarps * q < there)
          copy_ahead<4>(to + kWarps * q, from + (kWarps * q * (i64)pitch + d));
        else
          to[kWarps * q] = 0.0f;
      }
    }
  };
  i64 first = (i64)worker * kTileRows;
  const i64 stride = (i64)workers * kTileRows;
  if (first < rows) read(first, 0);
  for (int s = threadIdx.x; s < own.z; s += kThreads) synapses[s] = schedule.folded[own.x + s];
  for (int s = threadIdx.x; s < own.z / 4; s += kThreads) from[s] = ((const uint2*)schedule.from)[own.x / 4 + s];
  __syncthreads();
  // fast: p and q of all its synapses (held.cuh).
  for (int n = mine.x; n < mine.x + mine.y; n++) {
    const int4 unit = units[n];
    float p = 0.0f, q = 0.0f;
    if (kFast)
      for (int s = lane; s < 8 * unit.y; s += 32) p += synapses[unit.x + s].z, q += synapses[unit.x + s].w;
    p = lanes_sum(p, 32), q = lanes_sum(q, 32);
    if (lane == 0) constant[unit.z] = make_float2(q, p);
  }
  int half = 0;
#pragma unroll 1
  for (; first < rows; first += stride) {
    const bool more = first + stride < rows;
    copies_here();
    __syncthreads();
    if (more && two) read(first + stride, 1 - half);
#pragma unroll 1
    for (int n = mine.x; n < mine.x + mine.y; n++) {
      const int4 unit = units[n];
      const float2 begin = constant[unit.z];
      float num[2] = {begin.x, begin.x}, den[2] = {begin.y, begin.y};
      tile_sums(synapses, from, unit, tiles + half * inputs * kTileRows, lane, num, den);
#pragma unroll
      for (int r = 0; r < 2; r++) stage[(lane + 32 * r) * width + unit.z] = make_float2(num[r], den[r]);
    }
    __syncthreads();
    for (int r = warp; r < kTileRows && first + r < rows; r += kWarps)
      for (int c = lane; c < own.w; c += 32) sums[(first + r) * count + (own.y + c)] = stage[r * width + c];
    if (two)
      half ^= 1;
    else if (more)
      read(first + stride, 0);
  }
}
