// LTC, the adjoint, with the synapses divided over the multiprocessors of the whole device by source (the equations: backward.cu;
// who holds and adds what: grid.cuh; the walk: grid.cu).
//
// What travels is alpha and beta of an unfold; a block has of its sources v of that unfold, and adds over their targets
//   a_i <- alpha_i c_i + sum_j (alpha_j q_ij + beta_j p_ij) r_ij (1 - r_ij) sigma_ij
// Then a thread for each source of the block and row makes alpha and beta of the unfold before it, from v and den, which were
// on their way since the unfold began, and writes them to the trace, too: the four sums of each synapse are made from it in
// parallel over all unfolds (ltc_gate_sums).
// Work of kRows = 8 gates a lane: 21 wavefronts of shared memory, 40 multiply-adds and as many others beside 8 (fast) or 16 (exact)
// operations of the special-function unit, which take 16 or 32 clocks: loads bind where it is fast, 1.3 of its time.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
constexpr bool kShared = false;
#endif
constexpr bool kAdjoint = true;
#include "grid.cuh"

// Dynamic shared memory, in this order: held synapses; for each group two tiles, of alpha and of beta; for each group, source and
// row 16 bytes three times (v, alpha, c, beta; the sums of alpha and beta; v, den, dL/dout and time of what comes next); c of each
// source and its number, 16 bytes; v, 4 bytes for each group, source and row; for each group, piece and row a sum; 8 bytes a
// piece; 4 bytes a source and 4 more; the held targets.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
ltc_grid_adjoint(Shares shares, const float* __restrict__ cm,
                 const float* __restrict__ states,                                        // [B, T, H]
                 const float* __restrict__ elapsed, i64 elapsed_b, i64 elapsed_t, float dt,  // [B, T] or null: dt
                 const float* __restrict__ grad_out, i64 grad_b, i64 grad_t, i64 grad_m,  // [B, T, M], any strides
                 const float* __restrict__ output_w,                                      // [M] or null
                 const float* grad_end, i64 end_b, i64 end_h,   // [B, H]: dL/d(state after the chunk), any strides
                 float* grad_start,                             // [B, H]: dL/d(state before the chunk)
                 const float* __restrict__ trace_v, const float* trace_den, i64 trace_b,  // [steps, K, H] a row, trace_b apart
                 float* trace_alpha, float* __restrict__ trace_beta,  // [B, steps, K, H]; alpha may take the place of den
                 float2* __restrict__ step_sums,                // [B, steps, H]: sums of alpha and of beta over k
                 int batch, int hidden, int outputs, int unfolds, i64 total_steps, i64 t0, int steps, int constrained,
                 float* __restrict__ exchange, unsigned* arrivals,  // tiles and counters of all teams
                 int team_blocks, int groups, int most_held, int most_owners, int most_pieces) {
  extern __shared__ __align__(16) char shared[];
  const Walkers walkers(groups);
  const int lane = threadIdx.x % 32, rank = blockIdx.x % team_blocks;
  const int mine = blockIdx.x / team_blocks * groups + walkers.group;  // which of the teams' groups
  const int floats = 2 * hidden * kGroupRows, most_items = most_owners * kGroupRows;
  float4* const room = (float4*)shared;
  float* const tiles = (float*)(room + walkers.warps * most_held * kStreams);
  float4* const items = (float4*)(tiles + groups * floats);
  float4* const neurons = items + groups * 3 * most_items;
  float* const all_v = (float*)(neurons + most_owners);
  float* const all_sums = all_v + groups * most_items;
  int2* const piece_list = (int2*)(all_sums + groups * most_pieces * kGroupRows);
  int* const pieces_of = (int*)(piece_list + most_pieces);  // [owners + 1]: the first of each
  const Share share(shares, walkers, groups, rank, most_held, room, (unsigned short*)(pieces_of + most_owners + 1));
  const int4 first = shares.blocks[rank];
  const int2* const owners = shares.owners + first.z;
  for (int n = threadIdx.x; n < share.pieces; n += kThreads) piece_list[n] = shares.pieces[first.y + n];
  for (int o = threadIdx.x; o <= share.owners; o += kThreads) pieces_of[o] = owners[o].y - first.y;
  for (int o = threadIdx.x; o < share.owners; o += kThreads) {
    const int i = owners[o].x;
    neurons[o] = make_float4(positive(cm[i], constrained) * (float)unfolds / (elapsed ? 1.0f : dt), 0.0f, 0.0f, __int_as_float(i));
  }
  __syncthreads();
  float* const tile = tiles + walkers.group * floats;
  float4* const own = items + walkers.group * 3 * most_items;  // each of its thread alone
  auto step_sum = [&] { return own + opaque(most_owners) * kGroupRows; };
  auto ahead = [&] { return own + opaque(most_owners) * 2 * kGroupRows; };
  auto v_of = [&] { return all_v + walkers.group * opaque(most_owners) * kGroupRows; };  // [owners, kGroupRows]
  auto sums = [&] { return all_sums + walkers.group * opaque(most_pieces) * kGroupRows; };
  const Team team = {exchange, arrivals, mine, team_blocks, floats};
  const int count = share.owners * kGroupRows;

  // What unfold (step, k) of a row needs, on its way.
  auto look_ahead = [&](int item, int i, i64 b, int step, int k) {
    const i64 at = b * trace_b + ((i64)step * unfolds + k) * opaque(hidden) + i;
    copy_ahead<4>((float*)(ahead() + item), trace_v + at);
    copy_ahead<4>((float*)(ahead() + item) + 1, trace_den + at);
    if (k + 1 < unfolds) return;
    if (i < outputs) copy_ahead<4>((float*)(ahead() + item) + 2, grad_out + (b * grad_b + (t0 + step) * grad_t + i * grad_m));
    if (elapsed) copy_ahead<4>((float*)(ahead() + item) + 3, elapsed + (b * elapsed_b + (t0 + step) * elapsed_t));
  };
  // alpha and beta of unfold (step, k), of which a is dL/dv', into tile n.
  auto turn = [&](int item, i64 b, int step, int k, float a, float after, unsigned n) {
    // Of which the compiler would otherwise keep products in registers that the gates need.
    const int row = item % kGroupRows, h = opaque(hidden);
    const float4 neuron = neurons[item / kGroupRows], x = ahead()[item];
    const int i = __float_as_int(neuron.w);
    float4 s = own[item];
    float alpha = 0.0f, beta = 0.0f, v = 0.0f;
    if (b < batch) {
      float4 sum = step_sum()[item];
      if (k + 1 == unfolds) {
        if (i < outputs) a += output_w ? x.z * output_w[i] : x.z;
        s.z = elapsed ? __fdiv_rn(neuron.x, x.w) : neuron.x;
        sum.x = sum.y = 0.0f;
      }
      v = x.x;
      alpha = a / x.y;
      beta = -alpha * after;
      sum.x += alpha, sum.y += beta;
      step_sum()[item] = sum;
    }
    s.x = v, s.y = alpha, s.w = beta;
    own[item] = s;
    v_of()[item] = v;
    float* to = team.tile(n) + tile_place(i, row, h);
    to[0] = alpha;
    to[h * kGroupRows] = beta;
  };
  // What nobody waits for of unfold (step, k), and what the one before it needs.
  auto keep = [&](int group, int step, int k) {
#pragma unroll 1
    for (int item = walkers.thread; item < count; item += walkers.threads) {
      const int i = __float_as_int(neurons[item / kGroupRows].w), h = opaque(hidden);
      const i64 b = (i64)group * kGroupRows + item % kGroupRows;
      if (b >= batch) continue;
      if (k > 0 || step > 0) look_ahead(item, i, b, k > 0 ? step : step - 1, k > 0 ? k - 1 : unfolds - 1);
      const i64 row_step = b * steps + step, at = (row_step * unfolds + k) * h + i;
      trace_alpha[at] = own[item].y;
      trace_beta[at] = own[item].w;
      if (k == 0) step_sums[row_step * h + i] = make_float2(step_sum()[item].x, step_sum()[item].y);
    }
  };
  const char* const my_rows = (const char*)(tile + lane % kRowLanes * 4);
  const int plane = hidden * kPlaneRows * 4;

  unsigned n = 0;
#pragma unroll 1
  for (int group = mine; (i64)group * kGroupRows < batch; group += (int)gridDim.x / opaque(team_blocks) * groups) {
#pragma unroll 1
    for (int item = walkers.thread; item < count && steps > 0; item += walkers.threads) {
      const int i = __float_as_int(neurons[item / kGroupRows].w);
      const i64 b = (i64)group * kGroupRows + item % kGroupRows;
      own[item] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (b < batch) look_ahead(item, i, b, steps - 1, unfolds - 1);
    }
    copies_here();
#pragma unroll 1
    for (int item = walkers.thread; item < count; item += walkers.threads) {
      const int i = __float_as_int(neurons[item / kGroupRows].w);
      const i64 b = (i64)group * kGroupRows + item % kGroupRows;
      const float a = b < batch ? grad_end[b * end_b + i * end_h] : 0.0f;
      if (steps == 0) {
        if (b < batch) grad_start[b * hidden + i] = a;
        continue;
      }
      const float after = b < batch ? states[(b * total_steps + (t0 + steps - 1)) * hidden + i] : 0.0f;
      turn(item, b, steps - 1, unfolds - 1, a, after, n);
    }
    if (steps == 0) continue;
    team.give(walkers);
#pragma unroll 1
    for (int step = steps - 1; step >= 0; step--) {
#pragma unroll 1
      for (int k = unfolds - 1; k >= 0; k--, n++) {
        keep(group, step, k);
        team.take(walkers, n, tile);
        float v[kRows], sum[kRows];
        share.walk(
            shares, walkers, piece_list,
            [&](int owner) {
#pragma unroll
              for (int c = 0; c < kPlanes; c++) {
                const float4 x = *(const float4*)(v_of() + owner * kGroupRows + row_place(lane % kRowLanes, c * 4));
                v[c * 4] = x.x, v[c * 4 + 1] = x.y, v[c * 4 + 2] = x.z, v[c * 4 + 3] = x.w;
              }
#pragma unroll
              for (int i = 0; i < kRows; i++) sum[i] = 0.0f;
            },
            [&](float4 s, unsigned target) {
              const char* at = my_rows + target * (kPlaneRows * 4);
              const float ap = s.x * s.z, aq = s.x * s.w;
#pragma unroll
              for (int c = 0; c < kPlanes; c++) {
                const float4 x = *(const float4*)(at + c * plane), y = *(const float4*)(at + (kPlanes + c) * plane);
                const float alpha[4] = {x.x, x.y, x.z, x.w}, beta[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
                for (int i = 0; i < 4; i++) {
                  const float r = gate_of(s.x, s.y, v[c * 4 + i]);
                  // 4 r (1 - r) of the fast gate, where p, q and a are halves of what they stand for.
                  const float slope = fmaf(-r, r, kFast ? 1.0f : r);
                  sum[c * 4 + i] = fmaf(fmaf(alpha[i], aq, beta[i] * ap), slope, sum[c * 4 + i]);
                }
              }
            },
            [&](int piece) {
              int from = 0;
              const bool writer = stream_sums<kRows>(sum, lane, from);
              float* to = sums() + piece * kGroupRows;
#pragma unroll
              for (int i = 0; i < kLeft<kRows>; i++)
                if (writer) to[row_place(lane % kRowLanes, from + i)] = sum[i];
            });
        walkers.meet();
        const bool last = k == 0 && step == 0;
#pragma unroll 1
        for (int item = walkers.thread; item < count; item += walkers.threads) {
          const int o = item / kGroupRows, row = item % kGroupRows;
          const i64 b = (i64)group * kGroupRows + row;
          const float4 s = own[item];
          float total = 0.0f;
          const int end = pieces_of[o + 1];
          for (int piece = pieces_of[o]; piece < end; piece++) total += sums()[piece * kGroupRows + row];
          // Of the exact gate a is sigma times -log2(e).
          if (!kFast) total *= -0.6931471805599453f;
          const float a = fmaf(s.y, s.z, total);
          if (last) {
            if (b < batch) grad_start[b * hidden + __float_as_int(neurons[o].w)] = a;
          } else {
            turn(item, b, k > 0 ? step : step - 1, k > 0 ? k - 1 : unfolds - 1, a, s.x, n + 1);
          }
        }
        if (!last) team.give(walkers);
      }
    }
  }
}
