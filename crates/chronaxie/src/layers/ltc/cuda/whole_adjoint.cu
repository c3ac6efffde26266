// LTC, backward, of short sequences without LayerNorm: one block, or a cluster of kBlocks, does all of one batch row (the equations:
// backward.cu). Each block makes the sums over its share of the inputs, and unfolds its share of the steps, eight of which (of all
// blocks together) go side by side, since the states of all steps are known; or with kWords each reads all unfolds, which the
// forward pass kept, and no sums are made. The first block walks the adjoint from the last unfold to
// the first (whole_walk.cuh), and sends alpha to the others, which meanwhile go through the gates, for what is summed of each synapse
// (whole_gather.cuh), two steps at a time. What a row sums of each parameter it leaves for whole_close.cu, which adds the rows in order.
//
// Floor (H200) for B24 T8 D128 H64 at density 0.5 in clusters of four: parameters 96 KB into each multiprocessor, 1500 clocks; sums over
// the inputs 510; unfolds 1540 (128 clocks a step and unfold, of two steps); the walk 48 of 128 clocks for the gates beside a chain of about
// 170: 8200 to 14,300; the gates of the last two steps after it, 12 instructions each, 4 x 32 a clock: 500. Together 6.5 to 9.5 us.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = false;
constexpr int kWalkers = 0;
constexpr bool kAllSend = false;
#include "whole_gather.cuh"

// Values of a state side by side in the tiles of the unfolds.
constexpr int kWidth = kMine < 4 ? kMine : 4;

// Dynamic shared memory: Ns and Ds of the steps that a block unfolds, in a part for each block, later the sums of alpha and beta of
// all steps, [steps rounded up to 8, H]; u, [the same, inputs of a block]; v of the unfolds and after the last, [steps K + 1, H] to a
// multiple of 4; 1 / den of them, later changes of steps, [steps K, H] likewise; their alphas; a tile of states, twice [H, kMine]; what
// is kept of synapses (Kept), if kKept; the matrices of the sides that are staged.
extern "C" __global__ void __launch_bounds__(kOthers, 1)
ltc_whole_adjoint(Schedule by_target, Schedule by_source, Schedule inputs_by_target, Schedule inputs_by_source,
                  RawSide target_side, RawSide source_side, RawSide inputs_target_side, RawSide inputs_source_side,
                  const uint2* __restrict__ synapses,  // of the recurrent side: place in a matrix; source, 65536 target
                  const float* __restrict__ gleak, const float* __restrict__ vleak, const float* __restrict__ cm,
                  const float* __restrict__ x, i64 stride_b, i64 stride_t, i64 stride_d,
                  const float* __restrict__ input_w, const float* __restrict__ input_b,  // each [D] or null
                  const float* __restrict__ start, i64 start_b, i64 start_h,             // [B, H] or null: zeros
                  const float* __restrict__ elapsed, i64 elapsed_b, i64 elapsed_t, float dt,  // [B, T] or null: dt
                  const float* __restrict__ states,                                        // [B, T, H]
                  const float* __restrict__ words, const float* __restrict__ dens,  // with kWords: [B, T, K + 1, H] (row.cuh), null; or v, den
                  const float* __restrict__ grad_out, i64 grad_b, i64 grad_t, i64 grad_m,  // [B, T, M], any strides
                  const float* __restrict__ output_w,                                      // [M] or null
                  const float* __restrict__ grad_end, i64 end_b, i64 end_h,  // [B, H]: dL/d(final state), any strides
                  float* __restrict__ grad_start,      // [B, H]: dL/dh0
                  float* __restrict__ grad_x,          // [B, T, D] or null
                  float* __restrict__ step_changes,    // [B, T, H] or null: sums of alpha (v - v') over the unfolds of a step
                  float4* __restrict__ gate_sums,      // [B, synapses]
                  float4* __restrict__ inputs_sums,    // [B, rows of slots, 32]
                  float4* __restrict__ neuron_sums,    // [B, H]: alpha, beta, alpha (v - v') K / dt
                  float2* __restrict__ input_columns,  // [B, D]: of dL/du x and dL/du
                  float2* __restrict__ output_columns,  // [B, H]: of dL/dout times state, and dL/dout
                  int hidden, int inputs, int outputs, int unfolds, int steps, int constrained, float epsilon, int count_synapses,
                  int input_slots, int source_slots, int source_rows, int kept_rows, int staged_sides) {
  extern __shared__ __align__(16) char shared[];
  __shared__ float2 of_neuron[kTile];  // alpha and beta of all unfolds
  __shared__ unsigned long long arrived[kMostParts];  // the alphas of each part of steps
  const int thread = threadIdx.x, lane = thread % 32;
  const unsigned rank = rank_of_block();
  const i64 b = blockIdx.x / kBlocks;
  const int share = (inputs + kBlocks - 1) / kBlocks, first_input = min((int)rank * share, inputs),
            count = min(share, inputs - first_input);
  const int padded = (steps + kSteps - 1) / kSteps * kSteps, row_v = ((steps * unfolds + 1) * hidden + 3) / 4 * 4,
            trace = (steps * unfolds * hidden + 3) / 4 * 4, parts = (steps + kPart - 1) / kPart;
  float2* const sums = (float2*)shared;
  float* const u = (float*)(sums + padded * hidden);
  float* const trace_v = u + padded * share;
  float* const trace_inverse = trace_v + row_v;
  float* const alphas = trace_inverse + trace;
  char* const tiles = (char*)(alphas + trace);
  // The recurrent gates are shared by the blocks that do not walk.
  const int sharers = kKept ? kBlocks - 1 : 1, per_sharer = (count_synapses + sharers - 1) / sharers;
  float4* const kept = (float4*)(tiles + (8 * kMine * hidden + 15) / 16 * 16);
  const int kept_gates = kKept ? per_sharer : 0, kept_inputs = kKept ? 32 * kept_rows : 0;
  unsigned* const kept_at = (unsigned*)(kept + 2 * (kept_gates + kept_inputs));
  char* const room = (char*)kept_at + (4 * (kept_gates + kept_inputs) + 15) / 16 * 16;
#if __CUDA_ARCH__ >= 900
  if (kKept && rank > 0 && thread < parts) {
    barrier_init(arrived + thread, 1);
    barrier_init_fence();
    barrier_expect(arrived + thread, (min(kPart, steps - thread * kPart)) * unfolds * hidden * 4);
  }
#endif
  blocks_begin();
  const RawSide my_inputs = part_of(inputs_target_side, rank, input_slots, (i64)first_input * hidden);
  const Side inputs_target = stage(my_inputs, staged_sides & 2, count * hidden, hidden,
                                   room + (staged_sides & 1 ? 16 * hidden * hidden : 0), thread, kOthers);
  const Side target = stage(target_side, staged_sides & 1, hidden * hidden, hidden, room, thread, kOthers);
  if (kWords)
    read_ahead(words + b * steps * (unfolds + (dens ? 0 : 1)) * hidden, steps * unfolds * hidden, thread, kOthers);
  else
    read_ahead(target_side.at, kHeld * kOthers, thread, kOthers), read_ahead(by_target.from, kHeld / 2 * kOthers, thread, kOthers);
  read_ahead(states + b * steps * hidden, steps * hidden, thread, kOthers);
  if (rank == 0) {
    read_ahead(source_side.at, kHeld * kOthers, thread, kOthers), read_ahead(by_source.from, kHeld / 2 * kOthers, thread, kOthers);
    read_ahead(cm, hidden, thread, kOthers);
  } else {
    read_ahead(synapses, count_synapses, thread, kOthers);
  }
  if constexpr (kWords) {
    // u of all steps, and the trace from the words.
    const float* const row = x + b * stride_b;
    for (int step = thread / 32; step < padded; step += kOthers / 32) {
      float* const to = u + (step / kSteps * kSteps + step % kSteps / 4 * 4) * count + step % 4;
      for (int e = lane; e < count; e += 32) {
        const int d = first_input + e;
        float y = step < steps ? row[step * stride_t + d * stride_d] : 0.0f;
        if (input_w) y *= input_w[d];
        if (input_b) y += input_b[d];
        to[4 * e] = y;
      }
    }
    for (int step = thread / 32; step < steps; step += kOthers / 32) {
      const i64 first_row = (b * steps + step) * (unfolds + (dens ? 0 : 1)) * hidden;
      const float* const from = words + first_row;
      for (int j = lane; dens && j < hidden; j += 32) {
        int at = step * unfolds * hidden + j;
#pragma unroll 6
        for (int k = 0; k < unfolds; k++, at += hidden) {
          trace_v[at] = from[k * hidden + j];
          if (rank == 0) trace_inverse[at] = reciprocal(dens[first_row + k * hidden + j]);
        }
      }
      for (int j = lane; !dens && j < hidden; j += 32) {
        const float first = from[j];
        int at = step * unfolds * hidden + j;
#pragma unroll 6
        for (int k = 1; k <= unfolds; k++, at += hidden) {
          const float word = from[k * hidden + j];
          trace_v[at] = word;
          if (rank == 0) trace_inverse[at] = k == 1 ? first : first * den_quotient(word);
        }
      }
    }
    copies_here();
    __syncthreads();
    blocks_begun();
  } else {
  {
    const Inputs in = {x, stride_b, stride_t, stride_d, nullptr, nullptr, input_w, input_b, inputs, first_input, count, 0.0f};
    // Of a step the sums go to the block that unfolds it, which has as many of each block.
    float2* const to = sums + rank * (padded / kBlocks) * hidden;
    input_sums(part_of(inputs_by_target, rank, input_slots), inputs_target, in, b, steps, constrained, u, true,
               [&](int step, int j, float2 both) {
                 const int of_eight = step % kSteps, row = step / kSteps * kMine + of_eight % kMine;
                 store_in(of_eight / kMine, to + row * hidden + j, both);
               });
  }
  blocks_arrive();
  {
    using Sums = StepSums<kMine>;
    int2 shape = by_target.warps[thread / 32];
    shape = make_int2(uniform(shape.x), uniform(shape.y));
    // Without a step no copies were waited for.
    if (steps == 0) copies_here(), __syncthreads();
    Some<kHeld> held;
    held.fold(by_target, target, 4u * kWidth, constrained, thread, kOthers);
    float p0 = 0.0f, q0 = 0.0f;
#pragma unroll
    for (int i = 0; i < kHeld; i++) p0 += held.of[i].z, q0 += held.of[i].w;
    const Neurons n = neuron_of(by_target.target[thread], shape.x, gleak, vleak, cm, unfolds, elapsed ? 1.0f : dt, constrained,
                                epsilon, p0, q0);
    // The sums over the inputs are there.
    blocks_wait();
    const bool writer = n.there && (lane & (shape.x - 1)) < Sums::kGivers;
    const int mine = Sums::first_of(lane), half = 4 * kMine * hidden;
    char* const place = tiles + mine / kWidth * 4 * kWidth * hidden + n.j * 4 * kWidth + mine % kWidth * 4;
    // The unfolds of this block's steps of eight at a time.
#pragma unroll 1
    for (int group = 0; kSteps * group + (int)rank * kMine < steps; group++) {
      const int first = kSteps * group + rank * kMine + mine;
      float v[Sums::kEach], c[Sums::kEach];
      float2 s[Sums::kEach];
      bool there[Sums::kEach];
#pragma unroll
      for (int r = 0; r < Sums::kEach; r++) {
        const int step = first + r;
        there[r] = writer && step < steps;
        v[r] = 0.0f, c[r] = n.rate_c, s[r] = make_float2(0.0f, 0.0f);
        if (there[r]) {
          if (step > 0)
            v[r] = states[(b * steps + step - 1) * hidden + n.j];
          else if (start)
            v[r] = start[b * start_b + n.j * start_h];
          if (elapsed) c[r] = __fdiv_rn(n.rate_c, elapsed[b * elapsed_b + step * elapsed_t]);
          // The blocks' parts in their order.
#pragma unroll
          for (int q = 0; q < kBlocks; q++) {
            const float2 part = sums[(q * (padded / kBlocks) + group * kMine + mine + r) * hidden + n.j];
            s[r].x += part.x, s[r].y += part.y;
          }
        }
      }
      const auto put = [&](int side) {
        if (!writer) return;
        if constexpr (Sums::kEach == 2)
          *(float2*)(place + side) = make_float2(v[0], v[1]);
        else
          *(float*)(place + side) = v[0];
      };
      if (group) __syncthreads();
      put(0);
      int at = first * unfolds * hidden + n.j, side = 0;
#pragma unroll 1
      for (int k = 0; k < unfolds; k++) {
        __syncthreads();
        float num[kMine], den[kMine];
#pragma unroll
        for (int r = 0; r < kMine; r++) num[r] = den[r] = 0.0f;
        by_slots<kHeld, kHeld / 2>(shape.y, [&](auto slots) {
#pragma unroll
          for (int i = 0; i < decltype(slots)::value; i++)
            add_steps(held.of[i], tiles + side + held.other(i), 16 * hidden, num, den);
        });
        Sums::make(num, den, lane, shape.x);
        side ^= half;
#pragma unroll
        for (int r = 0; r < Sums::kEach; r++) {
          float inverse;
          asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(den[r] + (n.den + c[r] + s[r].y)));
          if (there[r]) {
            // All blocks go through gates; one walks.
            const int here = at + r * unfolds * hidden;
#pragma unroll
            for (int q = 0; q < kBlocks; q++) store_in(q, trace_v + here, v[r]);
            store_in(0, trace_inverse + here, inverse);
          }
          v[r] = (num[r] + fmaf(c[r], v[r], n.num + s[r].x)) * inverse;
        }
        put(side);
        at += hidden;
      }
    }
  }
  }
  if (steps > 0)
    for (int j = thread; j < hidden; j += kOthers) trace_v[steps * unfolds * hidden + j] = states[(b * steps + steps - 1) * hidden + j];
  blocks_arrive();
  if (rank == 0) {
    int2 shape = by_source.warps[thread / 32];
    shape = make_int2(uniform(shape.x), uniform(shape.y));
    const int owner = by_source.target[thread], i = owner < 0 ? 0 : owner & 0xffff, sub = lane & (shape.x - 1);
    const bool there = owner >= 0;
    Side source = target;
    source.at = source_side.at;
    Some<kHeld> held;
    held.fold(by_source, source, 4u, constrained, thread, kOthers);
#pragma unroll
    for (int s = 0; s < kHeld; s++) held.of[s].z *= held.of[s].x, held.of[s].w *= held.of[s].x;
    const float rate = there ? positive(cm[i], constrained) * (float)unfolds : 0.0f;
    Walked end = {0.0f, 0.0f, 0.0f};
    if (there) end.adjoint = grad_end[b * end_b + i * end_h];
    const Back w = {trace_v, trace_inverse, alphas, grad_out + b * grad_b, elapsed ? elapsed + b * elapsed_b : nullptr, output_w,
                    grad_t, grad_m, elapsed_t, dt, hidden, outputs, unfolds, steps};
    blocks_wait();
    by_slots<kHeld, kHeld / 2>(shape.y, [&](auto slots) {
      walk_back<decltype(slots)::value>(w, held, shape.x, i, there, sub, rate, arrived, end);
    });
    if (there && sub == 0) {
      grad_start[b * hidden + i] = end.adjoint;
      output_columns[b * hidden + i] = make_float2(end.out_w, end.out_b);
    }
    __syncthreads();
  } else {
    blocks_wait();
  }
  const Schedule by_input = part_of(inputs_by_source, rank, source_slots);
  int2 shape = by_input.warps[thread / 32];
  // With the number of slots in use comes where the warp's sums begin.
  const int place = uniform(shape.y >> 8), kept_place = place - (by_input.warps[0].y >> 8);
  shape = make_int2(uniform(shape.x), uniform(shape.y & 0xff));
  Side input = inputs_target;
  input.at = inputs_source_side.at + rank * source_slots * kOthers;
  const int owner = by_input.target[thread], begin = kKept ? ((int)rank - 1) * per_sharer : 0;
  const bool shares = !kKept || rank > 0;
  const Gather g = {trace_v, alphas, u, sums, trace_inverse, of_neuron, target, input, synapses,
                    shares ? min(begin, count_synapses) : 0, shares ? min(begin + per_sharer, count_synapses) : 0,
                    Kept(kept, kept_at, kept_gates), Kept(kept + 2 * kept_gates, kept_at + kept_gates, kept_inputs),
                    by_input, shape, place, kept_place, x + b * stride_b, elapsed ? elapsed + b * elapsed_b : nullptr,
                    stride_t, stride_d, elapsed_t, gate_sums + b * count_synapses, inputs_sums + b * source_rows * 32,
                    neuron_sums + b * hidden, step_changes ? step_changes + b * steps * hidden : nullptr,
                    grad_x ? grad_x + b * steps * inputs : nullptr, hidden, count, inputs, first_input, unfolds, steps, constrained,
                    dt, owner >= 0 && input_w ? input_w[first_input + owner] : 1.0f, rank == (kKept ? 1 : 0)};
  float2 columns = make_float2(0.0f, 0.0f);
#pragma unroll 1
  for (int part = parts - 1; part >= 0; part--) {
#if __CUDA_ARCH__ >= 900
    if (kKept && rank > 0) barrier_wait(arrived + part, 0);
#endif
    gather_part(g, part, columns);
  }
  columns.x += __shfl_xor_sync(~0u, columns.x, 1), columns.y += __shfl_xor_sync(~0u, columns.y, 1);
  if (owner >= 0 && (lane & (shape.x - 1)) == 0) input_columns[b * inputs + first_input + owner] = columns;
}
