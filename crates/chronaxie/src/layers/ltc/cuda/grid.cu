// LTC, forward, with the synapses divided over the multiprocessors of the whole device (the equations: forward.cu; who holds
// and adds what: grid.cuh).
//
// Teams of blocks, one block a multiprocessor, each hold all recurrent synapses by target, and walk groups of kGroupRows batch
// rows, one or two such groups side by side in halves of a block, through all steps and unfolds. Teams are as small as what their
// blocks hold allows: a block reads the states of all neurons and of its rows for every unfold, so that few rows a team are few
// bytes. Ns and Ds come from sensory.cu or forward.cu.
// An unfold: wait for the team (grid.cuh), copy the tile of states [H, kGroupRows] from L2, gates and their sums by piece, meet;
// then a thread for each target of the block and row adds its pieces, divides, and gives the new state.
// Where `before` is given (the unfolds for the backward pass) each step is a row of its own that starts from the state before it.
//
// Work of kRows = 8 gates a lane: loads of a synapse, its source and twice four rows (13 wavefronts of shared memory), 8 + 16 fused
// multiply-adds and 8 (fast: tanh) or 16 (exact) operations of the special-function unit, which takes 16 or 32 clocks for them: it
// binds. Floor (H200, 1.98 GHz, fast) 0.77 ms for B64 T64 H512 at density 0.5, K 6: 3.2e9 gates.
// Bytes of an unfold from L2: 4 H kGroupRows a block and group, 18 a synapse that is not held, which serve kGroupRows gates.
// Time (H100, fast, density 0.5, K 6): B64 T64 H512 1.9 to 2.0 ms, 384 unfolds of some 10,000 clocks: half of them gates, at three
// quarters of the special-function unit's rate, the others the way of the states (the ends of the sums, release, wait, copy).
// 33 blocks a team with 16 rows or twice 8, 16 with 8, 66 with twice 16: within 5 %; 132 with twice 32 7 % more.
// Tried: the gates of one half only while those of the other wait (a lock): as long, so that halves hide little of each other.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
constexpr bool kShared = false;
#endif
constexpr bool kAdjoint = false;
#include "grid.cuh"

// Dynamic shared memory, in this order: held synapses; for each group a tile; for each group, owner and row what the step adds
// (c, num, den, v) and what the next one will (Ns, Ds, time), 16 bytes each; 16 bytes an owner; for each group, piece and row
// two sums; 8 bytes a piece; 4 bytes an owner and 4 more; the held sources.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
ltc_grid(Shares shares,
         const float* __restrict__ gleak, const float* __restrict__ vleak, const float* __restrict__ cm,
         const float2* __restrict__ sensory,                               // [B, steps, H]
         const float* start, i64 start_b, i64 start_h,                     // [B, H], any strides, or null: zeros
         const float* __restrict__ elapsed, i64 elapsed_b, i64 elapsed_t, float dt,  // [B, T] or null: dt
         const float* __restrict__ output_w, const float* __restrict__ output_b,     // [M] or null
         float* __restrict__ out,                                          // [B, T, M]
         float* __restrict__ states,                                       // [B, T, H] or null
         float* final_state,                                               // [B, H]
         float* __restrict__ unfold_states, float* __restrict__ unfold_dens,  // [B, T, K, H] or null
         int batch, int hidden, int outputs, int unfolds, i64 total_steps, i64 t0, int steps, int constrained, float epsilon,
         const float* __restrict__ before, int rows_per_batch,             // [B, T, H] or null; steps of a batch row
         float* __restrict__ exchange, unsigned* arrivals,                 // tiles and counters of all teams
         int team_blocks, int groups, int most_held, int most_owners, int most_pieces) {
  extern __shared__ __align__(16) char shared[];
  const Walkers walkers(groups);
  const int lane = threadIdx.x % 32, rank = blockIdx.x % team_blocks;
  const int mine = blockIdx.x / team_blocks * groups + walkers.group;  // which of the teams' groups
  const int floats = hidden * kGroupRows, most_items = most_owners * kGroupRows;
  float4* const room = (float4*)shared;
  float* const tiles = (float*)(room + walkers.warps * most_held * kStreams);
  float4* const items = (float4*)(tiles + groups * floats);
  float4* const neurons = items + groups * 2 * most_items;
  float* const all_sums = (float*)(neurons + most_owners);
  int2* const piece_list = (int2*)(all_sums + groups * most_pieces * 2 * kGroupRows);
  int* const pieces_of = (int*)(piece_list + most_pieces);  // [owners + 1]: the first of each
  const Share share(shares, walkers, groups, rank, most_held, room, (unsigned short*)(pieces_of + most_owners + 1));
  const int4 first = shares.blocks[rank];
  const int2* const owners = shares.owners + first.z;
  for (int n = threadIdx.x; n < share.pieces; n += kThreads) piece_list[n] = shares.pieces[first.y + n];
  for (int o = threadIdx.x; o <= share.owners; o += kThreads) pieces_of[o] = owners[o].y - first.y;
  for (int o = threadIdx.x; o < share.owners; o += kThreads) {
    const int j = owners[o].x;
    const float g = positive(gleak[j], constrained);
    neurons[o] = make_float4(positive(cm[j], constrained) * (float)unfolds / (elapsed ? 1.0f : dt), g * vleak[j], g + epsilon,
                             __int_as_float(j));
  }
  __syncthreads();
  float* const tile = tiles + walkers.group * floats;
  float4* const own = items + walkers.group * 2 * most_items;  // each of its thread alone
  float4* const ahead = own + most_items;
  float* const sums = all_sums + walkers.group * most_pieces * 2 * kGroupRows;
  const Team team = {exchange, arrivals, mine, team_blocks, floats};
  const int count = share.owners * kGroupRows;

  auto look_ahead = [&](int item, int j, i64 b, int step) {
    copy_ahead<8>(ahead + item, sensory + ((b * steps + step) * opaque(hidden) + j));
    if (elapsed) {
      const i64 sequence = before ? b / rows_per_batch : b, t = t0 + (before ? b - sequence * rows_per_batch : step);
      copy_ahead<4>((float*)(ahead + item) + 2, elapsed + (sequence * elapsed_b + t * elapsed_t));
    }
  };
  const char* const my_rows = (const char*)(tile + lane % kRowLanes * 4);
  const int plane = hidden * kPlaneRows * 4;

  unsigned n = 0;
#pragma unroll 1
  for (int group = mine; (i64)group * kGroupRows < batch; group += (int)gridDim.x / opaque(team_blocks) * groups) {
#pragma unroll 1
    for (int item = walkers.thread; item < count; item += walkers.threads) {
      const int row = item % kGroupRows, j = __float_as_int(neurons[item / kGroupRows].w);
      const i64 b = (i64)group * kGroupRows + row;
      float v = 0.0f;
      ahead[item] = make_float4(0.0f, 0.0f, 1.0f, 0.0f);
      if (b < batch) {
        if (before) {
          // Row b is a step: its state before is there, or for the first step where the sequence starts.
          const i64 sequence = b / rows_per_batch, t = t0 + (b - sequence * rows_per_batch);
          if (t > 0)
            v = before[(sequence * total_steps + t - 1) * hidden + j];
          else if (start)
            v = start[sequence * start_b + j * start_h];
        } else if (start) {
          v = start[b * start_b + j * start_h];
        }
        if (steps > 0)
          look_ahead(item, j, b, 0);
        else
          final_state[b * hidden + j] = v;
      }
      own[item].w = v;
      if (unfold_states && b < batch && steps > 0)
        unfold_states[(before ? b : b * total_steps + t0) * unfolds * hidden + j] = v;
      team.tile(n)[tile_place(j, row, hidden)] = v;
    }
    if (steps == 0) continue;
    team.give(walkers);
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
#pragma unroll 1
      for (int k = 0; k < unfolds; k++, n++) {
        team.take(walkers, n, tile);
        float sum[2 * kRows], p0, q0;
        share.walk(
            shares, walkers, piece_list,
            [&](int) {
#pragma unroll
              for (int i = 0; i < 2 * kRows; i++) sum[i] = 0.0f;
              p0 = q0 = 0.0f;
            },
            [&](float4 s, unsigned source) {
              const char* at = my_rows + source * (kPlaneRows * 4);
#pragma unroll
              for (int c = 0; c < kPlanes; c++) {
                const float4 v = *(const float4*)(at + c * plane);
                const float x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                for (int i = 0; i < 4; i++) {
                  const float r = gate_of(s.x, s.y, x[i]);
                  sum[c * 4 + i] = fmaf(s.w, r, sum[c * 4 + i]);
                  sum[kRows + c * 4 + i] = fmaf(s.z, r, sum[kRows + c * 4 + i]);
                }
              }
              if (kFast) q0 += s.w, p0 += s.z;
            },
            [&](int piece) {
              if (kFast)
#pragma unroll
                for (int i = 0; i < kRows; i++) sum[i] += q0, sum[kRows + i] += p0;
              int from = 0;
              const bool writer = stream_sums<2 * kRows>(sum, lane, from);
              float* to = sums + piece * 2 * kGroupRows;
#pragma unroll
              for (int i = 0; i < kLeft<2 * kRows>; i++) {
                const int at = from + i;
                if (writer) to[at / kRows * kGroupRows + row_place(lane % kRowLanes, at % kRows)] = sum[i];
              }
            });
        walkers.meet();
        const bool ends = k + 1 == unfolds, last = ends && step + 1 == steps;
#pragma unroll 1
        for (int item = walkers.thread; item < count; item += walkers.threads) {
          const int o = item / kGroupRows, row = item % kGroupRows;
          const float4 neuron = neurons[o];
          // Of which the compiler would otherwise keep products in registers that the gates need.
          const int j = __float_as_int(neuron.w), h = opaque(hidden);
          const i64 b = (i64)group * kGroupRows + row;
          float4 s = own[item];
          if (k == 0) {
            const float4 a = ahead[item];
            s.x = elapsed ? __fdiv_rn(neuron.x, a.z) : neuron.x;
            s.y = neuron.y + a.x;
            s.z = neuron.z + s.x + a.y;
            if (step + 1 < steps && b < batch) look_ahead(item, j, b, step + 1);
          }
          float num = 0.0f, den = 0.0f;
          const int end = pieces_of[o + 1];
          for (int piece = pieces_of[o]; piece < end; piece++) {
            num += sums[piece * 2 * kGroupRows + row];
            den += sums[(piece * 2 + 1) * kGroupRows + row];
          }
          den += s.z;
          float next = quotient(num + fmaf(s.x, s.w, s.y), den);
          if (b >= batch) next = 0.0f;
          if (!last) team.tile(n + 1)[tile_place(j, row, h)] = next;
          s.w = next;
          own[item] = s;
          ahead[item].w = den;
        }
        if (!last) team.give(walkers);
        // What nobody waits for.
        const bool kept = ends && !before;
#pragma unroll 1
        for (int item = walkers.thread; item < count && (unfold_states || kept); item += walkers.threads) {
          const int j = __float_as_int(neurons[item / kGroupRows].w), h = opaque(hidden);
          const i64 b = (i64)group * kGroupRows + item % kGroupRows;
          if (b >= batch) continue;
          const i64 at = before ? b : b * total_steps + (t0 + step);
          const float v = own[item].w;
          if (unfold_states) {
            const i64 trace = (at * unfolds + k) * h + j;
            unfold_dens[trace] = ahead[item].w;
            // Of the next unfold, or the first one of the next step.
            if (!ends || (kept && !last)) unfold_states[trace + h] = v;
          }
          if (kept) {
            if (states) states[at * h + j] = v;
            if (j < outputs) {
              float y = v;
              if (output_w) y *= output_w[j];
              if (output_b) y += output_b[j];
              out[at * outputs + j] = y;
            }
            if (last) final_state[b * h + j] = v;
          }
        }
      }
    }
  }
}
