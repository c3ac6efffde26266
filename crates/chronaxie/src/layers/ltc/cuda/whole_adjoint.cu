// LTC, backward, of short sequences without LayerNorm: one block, or a cluster of kBlocks, does all of one batch row (the equations:
// backward.cu). Each block makes the sums over its share of the inputs, and unfolds its share of the steps, eight of which (of all
// blocks together) go side by side, since the states of all steps are known. The first block walks the adjoint from the last unfold to
// the first, source by source; each pair of alpha and beta stays in shared memory of all blocks, which then go through their shares of the
// recurrent gates, for what is summed of each synapse, and of those of the inputs. What a row sums of each parameter it leaves for
// whole_close.cu, which adds the rows in order.
//
// Chain of an unfold of the walk: alpha and beta to shared memory, barrier, loads, 6 fused multiply-adds in each of four chains, sums over
// lanes. What of dL/dv does not depend on them, a p (1 - t^2) and a q (1 - t^2), is made an unfold ahead in the shadow of that.
// Floor (H200) for B24 T8 D128 H64 at density 0.5 in clusters of four: parameters 96 KB into each multiprocessor, 1500 clocks; sums over
// the inputs 510; unfolds 1540 (128 clocks a step and unfold, of two steps); the walk 48 of 128 clocks for the gates beside a chain of about
// 170: 8200 to 14,300; gates of synapses and inputs 2048 / 4 x 48 and 8192 x 8 / 4 of 12 instructions, 4 x 32 a clock: 2300 and 770.
// Together 8 to 11 us.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = false;
constexpr int kWalkers = 0;
#include "whole.cuh"

// Slots of the recurrent side, by target and by source; values of a state side by side in the tiles of the unfolds.
constexpr int kHeld = 12, kWidth = kMine < 4 ? kMine : 4;

// Synapses of a thread, and the other ends of them.
struct Side12 {
  float4 of[kHeld];
  unsigned from[kHeld / 2];
  __device__ __forceinline__ unsigned other(int i) const { return i % 2 ? from[i / 2] >> 16 : from[i / 2] & 0xffffu; }

  __device__ __forceinline__ void fold(const Schedule& schedule, const Side& side, unsigned scale, int constrained) {
#pragma unroll
    for (int i = 0; i < kHeld / 2; i++) from[i] = schedule.from[i * kOthers + threadIdx.x] * scale;
    fold_slots<kHeld>(side, kOthers, threadIdx.x, constrained, [] {}, [&](int i, const float4& f) { of[i] = f; });
  }
};

// `what` by the number of slots that a warp uses, rounded up.
template <int kN, class What>
__device__ __forceinline__ void by_slots(int used, What what) {
  if constexpr (kN > kHeld / 2) {
    if (used < kN) return by_slots<kN - 1>(used, what);
  }
  what(Number<kN>());
}

// What the walk goes through; global addresses are those of this row.
struct Back {
  const float *trace_v, *trace_inverse;  // [steps K, H]
  float2* pairs;                         // alpha and beta of every unfold, [steps K, H]; in all blocks
  const float *states, *grad_out, *elapsed, *output_w;  // the last two, or one of them: null
  i64 grad_t, grad_m, elapsed_t;
  float dt;
  int hidden, outputs, unfolds, steps;
};

// What a thread knows at the end of its source.
struct Walked {
  float adjoint, out_w, out_b;
};

// dL/dout of a step and the time that it takes, read ahead of its turn.
struct OfStep {
  float grad, time;
  __device__ __forceinline__ void read(const Back& w, int step, int i, bool there) {
    if (step < 0) return;
    grad = there && i < w.outputs ? w.grad_out[step * w.grad_t + i * w.grad_m] : 0.0f;
    time = w.elapsed ? w.elapsed[step * w.elapsed_t] : w.dt;
  }
};

// The sum over the lanes of a source, of which there are four at least; the order is fixed.
__device__ __forceinline__ float sum_of_lanes(float x, int lanes) {
  x += __shfl_xor_sync(~0u, x, 1);
  x += __shfl_xor_sync(~0u, x, 2);
  if (lanes == 4) return x;
#pragma unroll 1
  for (int o = 4; o < lanes; o *= 2) x += __shfl_xor_sync(~0u, x, o);
  return x;
}

// What dL/dv of a source has of alpha and beta of each of kN targets: x.of is a, b, a p, a q.
template <int kN>
__device__ __forceinline__ void slopes_of(const Side12& x, float v, float2 (&slopes)[kN]) {
#pragma unroll
  for (int s = 0; s < kN; s++) {
    const float t = gate_of(x.of[s].x, x.of[s].y, v), slope = fmaf(-t, t, 1.0f);
    slopes[s] = make_float2(x.of[s].w * slope, x.of[s].z * slope);
  }
}

// The walk of source i, where no lane of a warp has more than kN slots; lane `sub` of those of the source.
template <int kN>
__device__ __forceinline__ void walk_back(const Back& w, const Side12& x, int lanes, int i, bool there, int sub, float rate, Walked& end) {
  const int hidden = w.hidden;
  float a = end.adjoint, after = there && w.steps > 0 ? w.states[(w.steps - 1) * hidden + i] : 0.0f;
  const float output_w = there && i < w.outputs && w.output_w ? w.output_w[i] : 1.0f;
  const bool writer = there && sub == 0;
#if __CUDA_ARCH__ >= 900
  const bool sends = kBlocks > 1 && there && sub > 0 && sub < kBlocks;
  const unsigned others = kBlocks > 1 ? in_block(shared_address(w.pairs + i), sends ? sub : 0) : 0;
#endif
  // In units of unfolds, from the last on.
  int n = w.steps * w.unfolds - 1;
  float2 slopes[2][kN];
  float v = 0.0f, next_v = 0.0f;
  if (n >= 0) {
    v = w.trace_v[n * hidden + i], next_v = w.trace_v[(n - 1) * hidden + i];
    slopes_of<kN>(x, v, slopes[0]);
  }
  OfStep next_step = {0.0f, 1.0f};
  next_step.read(w, w.steps - 1, i, there);
#pragma unroll 1
  for (int step = w.steps - 1; step >= 0; step--) {
    const OfStep now = next_step;
    next_step.read(w, step - 1, i, there);
    const float c = rate / now.time;
    a = fmaf(now.grad, output_w, a);
    end.out_w = fmaf(now.grad, after, end.out_w), end.out_b += now.grad;
    float inverse = w.trace_inverse[n * hidden + i];
    auto unfold = [&](int which) {
      const float alpha = a * inverse;
      const float2 mine = make_float2(alpha, -alpha * after);
      if (writer) w.pairs[n * hidden + i] = mine;
#if __CUDA_ARCH__ >= 900
      if (sends) store_at(others + 8 * n * hidden, mine);
#endif
      __syncthreads();
      const char* const pairs = (const char*)(w.pairs + n * hidden);
      float2 pair[kN];
#pragma unroll
      for (int s = 0; s < kN; s++) pair[s] = *(const float2*)(pairs + x.other(s));
      // Before the first unfold there is none: anything will do.
      const int before = max(n - 1, 0), second = max(n - 2, 0);
      inverse = w.trace_inverse[before * hidden + i];
      const float second_v = w.trace_v[second * hidden + i];
      slopes_of<kN>(x, next_v, slopes[1 - which]);
      float total[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int s = 0; s < kN; s++) {
        total[s % 2 * 2] = fmaf(pair[s].x, slopes[which][s].x, total[s % 2 * 2]);
        total[s % 2 * 2 + 1] = fmaf(pair[s].y, slopes[which][s].y, total[s % 2 * 2 + 1]);
      }
      a = fmaf(alpha, c, sum_of_lanes((total[0] + total[1]) + (total[2] + total[3]), lanes));
      after = v, v = next_v, next_v = second_v;
      n--;
    };
#pragma unroll 1
    for (int k = 0; k < w.unfolds; k += 2) {
      unfold(0);
      unfold(1);
    }
  }
  end.adjoint = a;
}

// Dynamic shared memory: Ns and Ds of the steps that a block unfolds, in a part for each block, later the sums of alpha and beta of
// all steps, [steps rounded up to 8, H]; u, [the same, inputs of a block]; v and 1 / den of the unfolds, later changes of steps,
// each [steps K, H] to a multiple of 4; alpha and beta of them; a tile of states, twice [H, kMine]; the matrices of the sides that are staged.
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
                  int input_slots, int source_slots, int source_rows, int staged_sides) {
  extern __shared__ __align__(16) char shared[];
  __shared__ float2 of_neuron[kTile];  // alpha and beta of all unfolds
  const int thread = threadIdx.x, lane = thread % 32;
  const unsigned rank = rank_of_block();
  const i64 b = blockIdx.x / kBlocks;
  const int share = (inputs + kBlocks - 1) / kBlocks, first_input = min((int)rank * share, inputs),
            count = min(share, inputs - first_input);
  const int padded = (steps + kSteps - 1) / kSteps * kSteps, trace = (steps * unfolds * hidden + 3) / 4 * 4;
  float2* const sums = (float2*)shared;
  float* const u = (float*)(sums + padded * hidden);
  float* const trace_v = u + padded * share;
  float* const trace_inverse = trace_v + trace;
  float2* const pairs = (float2*)(trace_inverse + trace);
  char* const tiles = (char*)(pairs + trace);
  char* const room = tiles + (8 * kMine * hidden + 15) / 16 * 16;
  blocks_arrive();
  const RawSide my_inputs = part_of(inputs_target_side, rank, input_slots, (i64)first_input * hidden);
  const Side inputs_target = stage(my_inputs, staged_sides & 2, count * hidden, hidden,
                                   room + (staged_sides & 1 ? 16 * hidden * hidden : 0), thread, kOthers);
  const Side target = stage(target_side, staged_sides & 1, hidden * hidden, hidden, room, thread, kOthers);
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
    Side12 held;
    held.fold(by_target, target, 4u * kWidth, constrained);
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
        by_slots<kHeld>(shape.y, [&](auto slots) {
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
            // All blocks go through the gates afterwards; one walks.
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
  blocks_arrive();
  blocks_wait();
  Walked end = {0.0f, 0.0f, 0.0f};
  if (rank == 0) {
    int2 shape = by_source.warps[thread / 32];
    shape = make_int2(uniform(shape.x), uniform(shape.y));
    const int owner = by_source.target[thread], i = owner < 0 ? 0 : owner & 0xffff, sub = lane & (shape.x - 1);
    const bool there = owner >= 0;
    Side source = target;
    source.at = source_side.at;
    Side12 held;
    held.fold(by_source, source, 8u, constrained);
#pragma unroll
    for (int s = 0; s < kHeld; s++) held.of[s].z *= held.of[s].x, held.of[s].w *= held.of[s].x;
    const float rate = there ? positive(cm[i], constrained) * (float)unfolds : 0.0f;
    if (there) end.adjoint = grad_end[b * end_b + i * end_h];
    const Back w = {trace_v, trace_inverse, pairs, states + b * steps * hidden, grad_out + b * grad_b,
                    elapsed ? elapsed + b * elapsed_b : nullptr, output_w, grad_t, grad_m, elapsed_t, dt, hidden, outputs, unfolds, steps};
    by_slots<kHeld>(shape.y, [&](auto slots) {
      walk_back<decltype(slots)::value>(w, held, shape.x, i, there, sub, rate, end);
    });
    if (there && sub == 0) {
      grad_start[b * hidden + i] = end.adjoint;
      output_columns[b * hidden + i] = make_float2(end.out_w, end.out_b);
    }
  }
  blocks_arrive();
  blocks_wait();
  // Sums over the unfolds of each step, and then over steps.
  float* const changes = trace_inverse;
  for (int e = thread; e < padded * hidden; e += kOthers) {
    const int step = e / hidden, j = e - step * hidden;
    float2 both = make_float2(0.0f, 0.0f);
    if (step < steps) {
      float change = 0.0f;
#pragma unroll 2
      for (int k = unfolds - 1; k >= 0; k--) {
        const int at = (step * unfolds + k) * hidden + j;
        const float2 pair = pairs[at];
        both.x += pair.x, both.y += pair.y;
        change += fmaf(pair.x, trace_v[at], pair.y);
      }
      if (rank == 0 && step_changes) step_changes[b * steps * hidden + e] = change;
      changes[e] = change * ((float)unfolds / (elapsed ? elapsed[b * elapsed_b + step * elapsed_t] : dt));
    }
    sums[e] = both;
  }
  __syncthreads();
  for (int j = thread; j < hidden; j += kOthers) {
    float2 both = make_float2(0.0f, 0.0f);
    float change = 0.0f;
#pragma unroll 4
    for (int step = steps - 1; step >= 0; step--) {
      const float2 pair = sums[step * hidden + j];
      both.x += pair.x, both.y += pair.y, change += changes[step * hidden + j];
    }
    of_neuron[j] = both;
    if (rank == 0) neuron_sums[b * hidden + j] = make_float4(both.x, both.y, change, 0.0f);
  }
  __syncthreads();
  // Of r = (1 + t) / 2 instead of t.
  const auto of_sigmoid = [&](int j, const float4& of) {
    const float2 n = of_neuron[j];
    return make_float4(0.5f * (n.x + of.x), 0.5f * (n.y + of.y), 0.5f * of.z, 0.5f * of.w);
  };
  // What is summed of each synapse: alpha t, beta t, 2 dz, 2 dz v. Two synapses of a thread side by side.
  {
    const int part = (count_synapses + kBlocks - 1) / kBlocks, begin = (int)rank * part, end_of_part = min(begin + part, count_synapses);
#pragma unroll 1
    for (int first = begin + thread; first < end_of_part; first += 2 * kOthers) {
      float4 f[2], of[2];
      int i[2], j[2];
#pragma unroll
      for (int s = 0; s < 2; s++) {
        const int e = first + s * kOthers;
        const uint2 which = synapses[e < end_of_part ? e : first];
        f[s] = fold_one(target, which.x, constrained);
        i[s] = which.y & 0xffffu, j[s] = which.y >> 16;
        of[s] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      }
#pragma unroll 4
      for (int at = 0; at < steps * unfolds * hidden; at += hidden) {
#pragma unroll
        for (int s = 0; s < 2; s++) {
          const float v = trace_v[at + i[s]], t = gate_of(f[s].x, f[s].y, v);
          const float2 pair = pairs[at + j[s]];
          const float dz = fmaf(pair.x, f[s].w, pair.y * f[s].z) * fmaf(-t, t, 1.0f);
          of[s].x = fmaf(pair.x, t, of[s].x);
          of[s].y = fmaf(pair.y, t, of[s].y);
          of[s].z += dz;
          of[s].w = fmaf(dz, v, of[s].w);
        }
      }
#pragma unroll
      for (int s = 0; s < 2; s++)
        if (first + s * kOthers < end_of_part) gate_sums[b * count_synapses + first + s * kOthers] = of_sigmoid(j[s], of[s]);
    }
  }
  // The gates of the inputs.
  const Schedule by_input = part_of(inputs_by_source, rank, source_slots);
  int2 shape = by_input.warps[thread / 32];
  // With the number of slots in use comes where the warp's sums begin.
  const int place = uniform(shape.y >> 8);
  shape = make_int2(uniform(shape.x), uniform(shape.y & 0xff));
  const int owner = by_input.target[thread], e = owner < 0 ? 0 : owner, d = first_input + e, sub = lane & (shape.x - 1);
  Side side = inputs_target;
  side.at = inputs_source_side.at + rank * source_slots * kOthers;
  float2 columns = make_float2(0.0f, 0.0f);
  const float scale = owner >= 0 && input_w ? input_w[d] : 1.0f;
#pragma unroll 1
  for (int first = 0; first < steps; first += kSteps) {
    Ahead next;
    next.read(side, by_input, 0, thread);
    float v[kSteps], total[kSteps];
    const float* at = u + first * count + e * 4;
    *(float4*)v = *(const float4*)at;
    *(float4*)(v + 4) = *(const float4*)(at + 4 * count);
#pragma unroll
    for (int r = 0; r < kSteps; r++) total[r] = 0.0f;
    const bool last = first + kSteps >= steps;
#pragma unroll 1
    for (int slot = 0; slot < shape.y; slot += kAhead) {
      const Ahead now = next;
      if (slot + kAhead < shape.y) next.read(side, by_input, slot + kAhead, thread);
#pragma unroll
      for (int i = 0; i < kAhead; i++) {
        const float4 f = fold_one(side, now.at[i], constrained);
        const unsigned j = now.other(i);
        float4* const to = inputs_sums + (b * source_rows + place + slot + i) * 32 + lane;
        float4 of = first && slot + i < shape.y ? *to : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int r = 0; r < kSteps; r++) {
          const float2 pair = sums[(first + r) * hidden + j];
          const float t = gate_of(f.x, f.y, v[r]);
          const float dz = fmaf(pair.x, f.w, pair.y * f.z) * fmaf(-t, t, 1.0f);
          total[r] = fmaf(dz, f.x, total[r]);
          of.x = fmaf(pair.x, t, of.x);
          of.y = fmaf(pair.y, t, of.y);
          of.z += dz;
          of.w = fmaf(dz, v[r], of.w);
        }
        if (slot + i < shape.y) *to = last ? of_sigmoid(j, of) : of;
      }
    }
    // Of two lanes and more of a source each of the first two ends with the sums of four steps.
    const bool upper = lane & 1;
#pragma unroll
    for (int r = 0; r < 4; r++)
      total[r] = (upper ? total[4 + r] : total[r]) + __shfl_xor_sync(~0u, upper ? total[r] : total[4 + r], 1);
#pragma unroll 1
    for (int o = 2; o < shape.x; o *= 2) {
#pragma unroll
      for (int r = 0; r < 4; r++) total[r] += __shfl_xor_sync(~0u, total[r], o);
    }
    if (owner < 0 || sub > 1) continue;
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const int step = first + (upper ? 4 : 0) + r;
      if (step >= steps) break;
      if (grad_x) grad_x[(b * steps + step) * inputs + d] = total[r] * scale;
      columns.x = fmaf(total[r], x[b * stride_b + step * stride_t + d * stride_d], columns.x);
      columns.y += total[r];
    }
  }
  columns.x += __shfl_xor_sync(~0u, columns.x, 1), columns.y += __shfl_xor_sync(~0u, columns.y, 1);
  if (owner >= 0 && sub == 0) input_columns[b * inputs + d] = columns;
}
