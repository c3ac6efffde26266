// LTC: sums of gates over columns of U (levels.cuh), of all rows (b, t, k) at once:
//   N_j = sum_i q_ij r_ij, D_j = sum_i p_ij r_ij,  r_ij = sig(sigma_ij (U_i - mu_ij))
//
// A lane has two rows, and all lanes of a warp the same target and synapse: what belongs to a synapse is read once for 64 gates, with no
// conflict, states of 32 rows lie side by side, and sums need no shuffle. A block has the synapses of some targets, which its warps share
// as they are long, in shared memory, and walks tiles of 64 rows, of which one is on its way where there is room for two. The sums of a tile
// go out by way of shared memory, so that rows are written whole.
//
// Floor: a special operation a gate (exact: two), 16 a clock and multiprocessor: AutoNCP with 256 neurons, 5,940 synapses, 49,152 rows (B128 T64 K6)
// 70 us at 1.98 GHz on 132; 1024 neurons, 96,302 synapses, 1,536 rows (B32 T8 K6) 35 us. Beside two special operations, 16 clocks of a
// scheduler, a synapse is some 13 instructions; shared memory 3 of 4 clocks. sensory.cu, whose lanes have synapses, takes 0.27 ms of the first
// in five chunks and 0.13 of the second (H100): its states lie in any bank,
// and a few warps wait for each other's loads and gates. This one: 46 us for a third of the first, 26 for a sixth of it; 87 of the second,
// whose tiles have no room for another.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = false;
#include "held.cuh"

// Rows of a tile, and floats that a column of one takes: odd, so that columns are written without conflicts.
constexpr int kTileRows = 64, kColumn = kTileRows + 1;
constexpr int kWarps = kThreads / 32;

// schedule: from [synapses / 2]: columns in floats, 16 bits each; target: for each part its first synapse and target and their numbers, and
// then for each unit its first synapse of the part, groups of four synapses, target of the part, 0; warps [parts, kWarps]: first unit, units.
// Dynamic shared memory: `most` synapses of 16 bytes and their columns, 2; units' own sums; sums of a tile, [kTileRows, width]; one or two tiles.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
ltc_state_sums(Schedule schedule, const float* __restrict__ u, int pitch,  // [rows, pitch], from the first column on
               float2* __restrict__ sums, int count,                       // [rows, count]
               i64 rows, int inputs, int parts, int most, int width, int two) {
  extern __shared__ __align__(16) char shared[];
  const int part = blockIdx.x % parts, worker = blockIdx.x / parts, workers = gridDim.x / parts;
  const int lane = threadIdx.x % 32, warp = uniform(threadIdx.x / 32);
  const int4 own = ((const int4*)schedule.target)[part];  // first synapse and target, and how many
  const int4* const units = (const int4*)schedule.target + parts;
  const int2 mine = schedule.warps[part * kWarps + warp];
  float4* const synapses = (float4*)shared;
  uint2* const from = (uint2*)(synapses + most);  // of four synapses
  float2* const constant = (float2*)(from + most / 4);
  float2* const stage = constant + width;
  float* const tiles = (float*)(stage + kTileRows * width);
  auto read = [&](i64 first, int half) {
    float* const tile = tiles + half * inputs * kColumn;
    for (int r = warp; r < kTileRows; r += kWarps)
      for (int d = lane; d < inputs; d += 32) {
        if (first + r < rows)
          copy_ahead<4>(tile + (d * kColumn + r), u + ((first + r) * pitch + d));
        else
          tile[d * kColumn + r] = 0.0f;
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
      for (int s = lane; s < 4 * unit.y; s += 32) p += synapses[unit.x + s].z, q += synapses[unit.x + s].w;
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
    const float* const column = tiles + (half * inputs * kColumn + lane);
#pragma unroll 1
    for (int n = mine.x; n < mine.x + mine.y; n++) {
      const int4 unit = units[n];
      const float2 begin = constant[unit.z];
      float num[2] = {begin.x, begin.x}, den[2] = {begin.y, begin.y};
      const float4* w = synapses + unit.x;
      const uint2* f = from + unit.x / 4;
#pragma unroll 2
      for (int e = 0; e < unit.y; e++, w += 4, f++) {
        const uint2 at = *f;
        const unsigned place[4] = {at.x & 0xffffu, at.x >> 16, at.y & 0xffffu, at.y >> 16};
        float x[4][2];
        float4 s[4];
#pragma unroll
        for (int h = 0; h < 4; h++) s[h] = w[h], x[h][0] = column[place[h]], x[h][1] = column[place[h] + 32];
#pragma unroll
        for (int h = 0; h < 4; h++)
#pragma unroll
          for (int r = 0; r < 2; r++) x[h][r] = gate_of(s[h].x, s[h].y, x[h][r]);
#pragma unroll
        for (int h = 0; h < 4; h++)
#pragma unroll
          for (int r = 0; r < 2; r++) num[r] = fmaf(s[h].w, x[h][r], num[r]), den[r] = fmaf(s[h].z, x[h][r], den[r]);
      }
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
