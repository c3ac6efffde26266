// LTC, backward: the sums of each recurrent synapse over all unfolds of a chunk, alpha r, beta r, dz, dz (v - mu) (adjoint.cu),
// where row_adjoint.cu has left alpha in the trace: every unfold (b, t, k) is a row of its own (row_sums.cuh), of which
// beta_j = -alpha_j v'_j with the state v' of the next. close.cu adds blocks in order.
// Floor (H200): 10 issue slots a gate, 2.5 clocks of a multiprocessor for 32 (B32 T64 H128 at density 0.5: 30 us); bytes: v' and
// alpha once for each part of the sources, from L2.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = false;
#include "row_sums.cuh"

// An unfold: its batch row, which of the chunk it is, and its state in the trace.
struct Row {
  int b, m;
  const float* v;
};

extern "C" __global__ void __launch_bounds__(kThreads, 1)
ltc_unfold_sums(Schedule schedule, const float* __restrict__ trace_v, const float* __restrict__ trace_alpha,  // [B, steps, K, H]
                const float* __restrict__ states,  // [B, T, H]
                float4* __restrict__ gate_sums,    // [workers, parts, kSlots, threads], added to unless first
                int batch, int hidden, int unfolds, int total_steps, int t0, int steps, int parts, int threads,
                int first_chunk) {
  after_earlier_kernels();
  extern __shared__ __align__(16) char shared[];
  const unsigned part = blockIdx.x % parts, worker = blockIdx.x / parts;
  const int each = steps * unfolds;
  const i64 alphas = trace_alpha - trace_v;
  auto begin = [&](int n) -> Row { return {n / each, n % each, trace_v + (i64)n * hidden}; };
  auto next = [&](Row row) -> Row {
    return row.m + 1 < each ? Row{row.b, row.m + 1, row.v + hidden} : Row{row.b + 1, 0, row.v + hidden};
  };
  auto pair = [&](const Row& row, int j) {
    const float* after = row.m + 1 < each ? row.v + hidden : states + ((i64)row.b * total_steps + (t0 + steps - 1)) * hidden;
    const float alpha = row.v[j + alphas];
    return make_float2(alpha, -alpha * after[j]);
  };
  auto input = [&](const Row& row, int i) { return row.v[i]; };
  auto give = [&](const Row&, int, int, int, int, bool, float (&)[kRows]) {};
  sum_rows<Row>(schedule, part, worker, gridDim.x / parts, batch * each, hidden, threads, first_chunk,
                gate_sums + (i64)blockIdx.x * kSlots * threads, shared, begin, next, pair, input, give);
}
