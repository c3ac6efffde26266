// LTC, backward through the sensory gates, with every sensory synapse and its four sums held in registers:
//   dz_dj = (SA_j q_dj + SB_j p_dj) s_dj (1 - s_dj);  du_d = sum_j dz_dj sigma_dj
// with SA, SB the sums of alpha and beta over the unfolds of a step (adjoint.cu), and for each synapse the sums over all
// rows (b, t) of SA s, SB s, dz, dz (u - mu). Rows are independent (row_sums.cuh); close.cu adds blocks in order.
// Floor (H200): 11.5 / 4 clocks of a multiprocessor for 32 gates; bytes: u once, SA and SB once for each part of the
// inputs, du once.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = false;
#include "row_sums.cuh"

// A row (b, t): its number in the chunk, its batch row, its step of the chunk.
struct Row {
  int n, b, r;
};

extern "C" __global__ void __launch_bounds__(kThreads, 1)
ltc_sensory_adjoint(Schedule schedule, const float* __restrict__ u,  // [rows, D]
                    const float2* __restrict__ step_sums,            // [rows, H]
                    float* __restrict__ grad_u,                      // [rows, D], or the steps from t0 on of [B, T, D]
                    float4* __restrict__ gate_sums,                  // [workers, parts, kSlots, threads], added to unless first
                    int rows, int steps, i64 t0, i64 total_steps, int inputs, int hidden, int parts, int threads,
                    int first_chunk) {
  after_earlier_kernels();
  extern __shared__ __align__(16) char shared[];
  const unsigned part = blockIdx.x % parts, worker = blockIdx.x / parts;
  auto begin = [&](int n) -> Row { return {n, n / steps, n % steps}; };
  auto next = [&](Row row) -> Row { return row.r + 1 < steps ? Row{row.n + 1, row.b, row.r + 1} : Row{row.n + 1, row.b + 1, 0}; };
  auto pair = [&](const Row& row, int j) { return step_sums[(i64)row.n * hidden + j]; };
  auto input = [&](const Row& row, int d) { return u[(i64)row.n * inputs + d]; };
  auto give = [&](const Row& row, int d, int sub, int lane, int lanes, bool there, float (&total)[kRows]) {
    const float sum = owner_sum(total, lane, lanes);
    if (d >= 0 && sub < kRows && there) grad_u[(row.b * total_steps + t0 + row.r) * inputs + d] = sum;
  };
  sum_rows<Row>(schedule, part, worker, gridDim.x / parts, rows, hidden, threads, first_chunk,
                gate_sums + (i64)blockIdx.x * kSlots * threads, shared, begin, next, pair, input, give);
}
