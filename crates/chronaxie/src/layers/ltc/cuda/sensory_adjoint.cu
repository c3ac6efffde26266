// LTC, backward through the sensory gates, with every sensory synapse and its four sums held in registers:
//   dz_dj = (SA_j q_dj + SB_j p_dj) s_dj (1 - s_dj);  du_d = sum_j dz_dj sigma_dj
// with SA, SB the sums of alpha and beta over the unfolds of a step (adjoint.cu), and for each synapse the sums over all
// rows (b, t) of SA s, SB s, dz, dz (u - mu). Rows are independent: a block holds the synapses of some inputs, in groups of
// threads that hold the same and walk tiles of rows of their own, each at its own pace; at last it adds the sums of its groups in
// order, and close.cu those of blocks. Groups make of one block's sums the work of as many as its multiprocessor has room for.
// Floor (H200): 11.5 / 4 clocks of a multiprocessor for 32 gates; bytes: u once, SA and SB once for each part of the
// inputs, du once.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = false;
#include "gate_sums.cuh"

constexpr int kTile = 8;  // rows of a tile
static_assert(kRows == 2, "one plane of pairs");

// Dynamic shared memory, for each group: alpha and beta of one or two tiles, [kTile / 2, H, 4], and no less than 16 bytes a thread.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
ltc_sensory_adjoint(Schedule schedule, const float* __restrict__ u,  // [rows, D]
                    const float2* __restrict__ step_sums,            // [rows, H]
                    float* __restrict__ grad_u,                      // [rows, D], or the steps from t0 on of [B, T, D]
                    float4* __restrict__ gate_sums,                  // [workers, parts, kSlots, threads], added to unless first
                    int rows, int steps, i64 t0, i64 total_steps, int inputs, int hidden, int parts, int threads,
                    int tiles,  // of a group: of two one is on its way while the other is in use
                    int first_chunk) {
  extern __shared__ __align__(16) char shared[];
  const unsigned part = blockIdx.x % parts, worker = blockIdx.x / parts, workers = gridDim.x / parts;
  const int group = threadIdx.x / threads, groups = blockDim.x / threads, thread = threadIdx.x - group * threads;
  auto meet = [&] { asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(threads) : "memory"); };
  int2 shape = schedule.warps[part * (threads / 32) + thread / 32];
  shape = make_int2(uniform(shape.x), uniform(shape.y));
  const int lane = threadIdx.x % 32, sub = lane & (shape.x - 1), d = schedule.target[part * threads + thread];
  float p0, q0;
  const Held held = hold(schedule, part, p0, q0, nullptr, threads, thread);
  Sums sums;
  float4* const saved = gate_sums + ((i64)blockIdx.x * kSlots * threads + thread);
#pragma unroll
  for (int i = 0; i < kSlots; i++)
    sums.of[i] = first_chunk || group > 0 ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : saved[(i64)i * threads];
  float* const pairs = (float*)(shared + (i64)group * tiles * kTile * hidden * 8);
  const i64 stride = (i64)workers * groups * kTile;
  // alpha and beta of a tile are on their way; zeros where there is no row.
  auto copy_tile = [&](float* to, i64 first) {
    const int there = (int)(rows - first < kTile ? rows - first : kTile);
    for (int j = thread; j < hidden; j += threads) {
      const float2* from = step_sums + (first * hidden + j);
      float2* const at = (float2*)to + j * 2;
#pragma unroll
      for (int r = 0; r < kTile; r++, from += hidden) {
        if (r < there)
          copy_ahead<8>(at + (r / 2 * hidden * 2 + (r & 1)), from);
        else
          at[r / 2 * hidden * 2 + (r & 1)] = make_float2(0.0f, 0.0f);
      }
    }
  };
  // A lane without an input reads the first; of a row that is not there the one before.
  const float* const of_input = u + (d < 0 ? 0 : d);
  auto input = [&](i64 n, float (&v)[2]) {
    v[0] = of_input[n * inputs], v[1] = of_input[(n + 1 < rows ? n + 1 : n) * inputs];
  };
  i64 first = ((i64)worker * groups + group) * kTile;
  float next[2] = {0.0f, 0.0f};
  if (first < rows) copy_tile(pairs, first), input(first, next);
  int tile = 0;
  for (; first < rows; first += stride) {
    const int there = (int)(rows - first < kTile ? rows - first : kTile);
    copies_here();
    meet();
    const float* const now = pairs + tile * (kTile * hidden * 2);
    if (tiles == 2) {
      tile ^= 1;
      if (first + stride < rows) copy_tile(pairs + tile * (kTile * hidden * 2), first + stride);
    }
    // Odd lanes give the second of two rows: of which batch row and which step of the chunk.
    int b = ((int)first + (lane & 1)) / steps, step = (int)first + (lane & 1) - b * steps;
#pragma unroll 1
    for (int r = 0; r < there; r += 2) {
      const float v[2] = {next[0], next[1]};
      const i64 then = r + 2 < there ? first + r + 2 : first + stride;
      if (then < rows) input(then, next);
      float total[2] = {0.0f, 0.0f};
      adjoint_gates<0>(held, sums, shape.y, (const char*)(now + r * hidden * 2), 0, v, total);
      const float sum = owner_sum(total, lane, shape.x);
      if (d >= 0 && sub < kRows && r + (lane & 1) < there) grad_u[(b * total_steps + t0 + step) * inputs + d] = sum;
      for (step += 2; step >= steps; step -= steps) b++;
    }
    if (tiles == 1 && first + stride < rows) {
      meet();
      copy_tile(pairs, first + stride);
    }
  }
  // The groups' sums, in order.
  float4* const all = (float4*)shared;
#pragma unroll
  for (int i = 0; i < kSlots; i++) {
    __syncthreads();
    all[threadIdx.x] = sums.of[i];
    __syncthreads();
    if (group > 0) continue;
    float4 sum = sums.of[i];
    for (int k = 1; k < groups; k++) {
      const float4 x = all[k * threads + thread];
      sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
    }
    saved[(i64)i * threads] = sum;
  }
}
