// LTC, backward through the sensory gates, with every sensory synapse and its four sums held in registers:
//   dz_dj = (SA_j q_dj + SB_j p_dj) s_dj (1 - s_dj);  du_d = sum_j dz_dj sigma_dj
// with SA, SB the sums of alpha and beta over the unfolds of a step (adjoint.cu), and for each synapse the sums over all
// rows (b, t) of SA s, SB s, dz, dz (u - mu). Rows are independent: a block holds the synapses of some inputs, in groups of
// threads that hold the same and walk tiles of rows of their own, each at its own pace; at last it adds the sums of its groups in
// order, and close.cu those of blocks. Groups make of one block's sums the work of as many as its multiprocessor has room for.
// Floor (H200): 11.5 / 4 clocks of a multiprocessor for 32 gates; bytes: u once, SA and SB once for each part of the
// inputs, du once.
// Time of D 128, H 128 at density 0.5 (H200): 512 rows 27 us by 34 blocks of one group; 1024 rows 21 us by 128 of four.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = false;
#include "gate_sums.cuh"

constexpr int kTile = 8;  // rows of a tile
static_assert(kRows == 2, "one plane of pairs");

// A row (b, t): its number in the chunk, its batch row, its step of the chunk.
struct Row {
  int n, b, r;
};

// Dynamic shared memory, for each group: alpha and beta of a tile, [kTile / 2, H, 4], and no less than 16 bytes a thread.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
ltc_sensory_adjoint(Schedule schedule, const float* __restrict__ u,  // [rows, D]
                    const float2* __restrict__ step_sums,            // [rows, H]
                    float* __restrict__ grad_u,                      // [rows, D], or the steps from t0 on of [B, T, D]
                    float4* __restrict__ gate_sums,                  // [workers, parts, kSlots, threads], added to unless first
                    int rows, int steps, i64 t0, i64 total_steps, int inputs, int hidden, int parts, int threads,
                    int first_chunk) {
  extern __shared__ __align__(16) char shared[];
  const unsigned part = blockIdx.x % parts, worker = blockIdx.x / parts, workers = gridDim.x / parts;
  const int group = threadIdx.x / threads, groups = blockDim.x / threads, thread = threadIdx.x - group * threads;
  auto meet = [&] { asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(threads) : "memory"); };
  auto next = [&](Row row) -> Row { return row.r + 1 < steps ? Row{row.n + 1, row.b, row.r + 1} : Row{row.n + 1, row.b + 1, 0}; };
  int2 shape = schedule.warps[part * (threads / 32) + thread / 32];
  shape = make_int2(uniform(shape.x), uniform(shape.y));
  const int lane = threadIdx.x % 32, sub = lane & (shape.x - 1), d = schedule.target[part * threads + thread];
  // A lane without an input reads the first.
  const float* const mine = u + (d < 0 ? 0 : d);
  float p0, q0;
  const Held held = hold(schedule, part, p0, q0, nullptr, threads, thread);
  Sums sums;
  float4* const saved = gate_sums + ((i64)blockIdx.x * kSlots * threads + thread);
#pragma unroll
  for (int i = 0; i < kSlots; i++)
    sums.of[i] = first_chunk || group > 0 ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : saved[(i64)i * threads];
  float* const pairs = (float*)(shared + (i64)group * kTile * hidden * 8);
  for (i64 first = ((i64)worker * groups + group) * kTile; first < rows; first += (i64)workers * groups * kTile) {
    const int there = (int)(rows - first < kTile ? rows - first : kTile);
    meet();
    // All rows of a target at once, so that their reads are in flight together.
    for (int j = thread; j < hidden; j += threads) {
      float2 x[kTile];
#pragma unroll
      for (int r = 0; r < kTile; r++) x[r] = step_sums[(first + (r < there ? r : there - 1)) * hidden + j];
#pragma unroll
      for (int r = 0; r < kTile; r += 2) {
        const bool one = r < there, two = r + 1 < there;
        *(float4*)(pairs + ((r / 2) * hidden + j) * 4) =
            make_float4(one ? x[r].x : 0.0f, one ? x[r].y : 0.0f, two ? x[r + 1].x : 0.0f, two ? x[r + 1].y : 0.0f);
      }
    }
    // The inputs of two rows ahead of their gates; those of a row that is not there are the last one's.
    Row row = {(int)first, (int)first / steps, (int)first % steps}, other = there > 1 ? next(row) : row;
    float v[2] = {mine[(i64)row.n * inputs], mine[(i64)other.n * inputs]};
    const char* tile = (const char*)pairs;
    meet();
#pragma unroll 1
    for (int r = 0; r < there; r += 2, tile += hidden * 16) {
      const Row now = lane & 1 ? other : row;
      const bool is_there = r + 1 < there || !(lane & 1);
      const float of_both[2] = {v[0], v[1]};
      float total[2] = {0.0f, 0.0f};
      if (r + 2 < there) {
        row = next(other), other = r + 3 < there ? next(row) : row;
        v[0] = mine[(i64)row.n * inputs], v[1] = mine[(i64)other.n * inputs];
      }
      adjoint_gates<0>(held, sums, shape.y, tile, 0, of_both, total);
      const float sum = owner_sum(total, lane, shape.x);
      if (d >= 0 && sub < kRows && is_there) grad_u[(now.b * total_steps + t0 + now.r) * inputs + d] = sum;
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
