// LTC, backward through the sensory gates, with every sensory synapse and its four sums held in registers:
//   dz_dj = (SA_j q_dj + SB_j p_dj) s_dj (1 - s_dj);  du_d = sum_j dz_dj sigma_dj
// with SA, SB the sums of alpha and beta over the unfolds of a step (adjoint.cu), and for each synapse the sums over all
// rows (b, t) of SA s, SB s, dz, dz (u - mu). Rows are independent: a block holds the synapses of some inputs and walks
// over tiles of rows. Each block adds in the order of its rows, close.cu adds blocks in order.
// Floor (H200): 11.5 / 4 clocks of a multiprocessor for 32 gates; bytes: u once, SA and SB once for each part of the
// inputs, du once.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = false;
#include "gate_sums.cuh"

constexpr int kTile = 8;  // the most rows of a tile
static_assert(kRows <= 2, "one plane of pairs");

// Dynamic shared memory: alpha and beta of a tile, [tile_rows / kRows, H, 2 kRows]; u of it, [tile_rows, D].
extern "C" __global__ void __launch_bounds__(kThreads, 1)
ltc_sensory_adjoint(Schedule schedule, const float* __restrict__ u,  // [rows, D]
                    const float2* __restrict__ step_sums,            // [rows, H]
                    float* __restrict__ grad_u,                      // [rows, D], or the steps from t0 on of [B, T, D]
                    float4* __restrict__ gate_sums,                  // [workers, parts, kSlots, threads], added to unless first
                    i64 rows, i64 steps, i64 t0, i64 total_steps, int inputs, int hidden, int parts, int tile_rows,
                    int first_chunk) {
  after_earlier_kernels();
  __shared__ float* to[kTile];  // where each row of the tile goes
  extern __shared__ __align__(16) float shared[];
  float *pairs = shared, *inputs_of = shared + (i64)tile_rows * hidden * 2;
  const unsigned part = blockIdx.x % parts, worker = blockIdx.x / parts, workers = gridDim.x / parts;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int2 shape = schedule.warps[part * (blockDim.x / 32) + warp];
  shape = make_int2(uniform(shape.x), uniform(shape.y));
  const int d = schedule.target[part * blockDim.x + threadIdx.x], sub = lane & (shape.x - 1);
  float p0, q0;
  const Held held = hold(schedule, part, p0, q0);
  Sums sums;
  float4* saved = gate_sums + (i64)blockIdx.x * kSlots * blockDim.x + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kSlots; i++)
    sums.of[i] = first_chunk ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : saved[(i64)i * blockDim.x];
  for (i64 first = (i64)worker * tile_rows; first < rows; first += (i64)workers * tile_rows) {
    __syncthreads();
    const int there = (int)(rows - first < tile_rows ? rows - first : tile_rows);
    for (int r = threadIdx.x; r < there; r += blockDim.x) {
      const i64 b = (first + r) / steps;
      to[r] = grad_u + (b * total_steps + t0 + (first + r - b * steps)) * inputs;
    }
    // All rows of a target at once, so that their reads are in flight together.
    for (int j = threadIdx.x; j < hidden; j += blockDim.x) {
      float2 x[kTile];
#pragma unroll
      for (int r = 0; r < kTile; r++)
        x[r] = r < there ? step_sums[(first + r) * hidden + j] : make_float2(0.0f, 0.0f);
#pragma unroll
      for (int r = 0; r < kTile; r++) {
        if (r >= tile_rows) break;
        *(float2*)(pairs + (((i64)(r / kRows) * hidden + j) * kRows + r % kRows) * 2) = x[r];
      }
    }
#pragma unroll 4
    for (int e = threadIdx.x; e < tile_rows * inputs; e += blockDim.x)
      inputs_of[e] = e < there * inputs ? u[first * inputs + e] : 0.0f;
    __syncthreads();
    for (int q = 0; q * kRows < there; q++) {
      float v[kRows], total[kRows];
#pragma unroll
      for (int r = 0; r < kRows; r++) {
        v[r] = d >= 0 ? inputs_of[(q * kRows + r) * inputs + d] : 0.0f;
        total[r] = 0.0f;
      }
      adjoint_gates<0>(held, sums, shape.y, (const char*)(pairs + (i64)q * hidden * 2 * kRows), 0, v, total);
      const float sum = owner_sum(total, lane, shape.x);
      const int r = q * kRows + (lane & (kRows - 1));
      if (d >= 0 && sub < kRows && r < there) to[r][d] = sum;
    }
  }
#pragma unroll
  for (int i = 0; i < kSlots; i++) saved[(i64)i * blockDim.x] = sums.of[i];
}
