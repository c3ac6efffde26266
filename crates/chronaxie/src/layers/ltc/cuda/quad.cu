// LTC, forward, of many rows: a cluster of blocks holds every synapse and walks four batch rows side by side (the equations:
// forward.cu). What recurrence.cu does of two rows, with three quarters of the instructions: an unfold of a warp has about 150
// beside its gates, whatever the number of rows, and a load of 16 bytes serves four gates.
//
// A block has two halves with the same synapses, which walk groups of rows of their own and begin half an unfold apart (not if
// kRebuild, where a part is one step and registers are shorter still): while the states of one travel, and its sums and divisions are made, the other has gates. That takes 128 registers a thread, so
// that the last slots, which few threads use, lie in shared memory. Tiles lie at fixed places and unfolds go in pairs: no
// address and no branch depends on which tile it is.
//
// Work: four gates are a load of 16 bytes, an offset, 4 + 8 fused multiply-adds, and 4 (fast: tanh) or 8 (exact: ex2, rcp)
// special operations, 16 a clock and multiprocessor, which bind. Floor (H200, 1.98 GHz, fast): 1.6 ms for B128 T256 H256 at
// density 0.5, 1.8 ms in the 120 multiprocessors that clusters of 8 use.
// Clocks of an unfold of eight rows (H200, fast): 2760 with 128 neurons at full density in a cluster of 4, where all lists have 16
// slots; 3600 with 256 at half density in a cluster of 8, where they have up to 19 and meet banks a quarter more often. A block
// of one half alone 2320 and 2640. Tried: two blocks of different clusters on a multiprocessor in the place of two halves, 3540 and 3950: each
// waits for the slowest of its blocks, and all share with others; the next part's states ahead of the last unfold (kRebuild), no
// faster.
// kRebuild: for the backward pass every step is a row of its own, which starts from the state before it; only the states
// and denominators of its unfolds are written.
// Bytes: as recurrence.cu.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = false;
#include "quad.cuh"

// Slots in registers, which every thread computes, in use or not; and behind them those in shared memory.
constexpr int kOn = kSlots * 4 / 5;

// Most neurons: states of four rows lie in two tiles of so many.
constexpr int kTile = 512;
// Nanoseconds of half an unfold of one half of a block.
constexpr unsigned kHalfUnfold = 600;
// Slots whose loads are in flight ahead of their gates.
constexpr int kFlight = 3;

// What a thread holds.
struct Four {
  float a[kOn], b[kOn], p[kOn], q[kOn];
  unsigned from[kOn / 2];  // byte offsets of sources, two in one
};
// A slot in shared memory.
struct Off {
  float a, b, p, q;
  unsigned from;
};

__device__ __forceinline__ float4 four_states(const float4* tile, const Four& held, int slot) {
  return *(const float4*)((const char*)tile + four_source(held.from, slot));
}

__device__ __forceinline__ void add_four(float a, float b, float p, float q, const float4& x, float (&num)[4], float (&den)[4]) {
  const float v[4] = {x.x, x.y, x.z, x.w};
  float t[4];
#pragma unroll
  for (int r = 0; r < 4; r++) t[r] = gate_of(a, b, v[r]);
#pragma unroll
  for (int r = 0; r < 4; r++) num[r] = fmaf(q, t[r], num[r]), den[r] = fmaf(p, t[r], den[r]);
}

// This lane's part of both sums of four rows.
__device__ __forceinline__ void four_gates(const Four& held, const Off* off, int used, const float4* tile, float (&num)[4], float (&den)[4]) {
#pragma unroll
  for (int r = 0; r < 4; r++) num[r] = den[r] = 0.0f;
  float4 x[kOn];
#pragma unroll
  for (int i = 0; i < kFlight; i++) x[i] = four_states(tile, held, i);
#pragma unroll
  for (int i = 0; i < kOn; i++) {
    if (i + kFlight < kOn) x[i + kFlight] = four_states(tile, held, i + kFlight);
    add_four(held.a[i], held.b[i], held.p[i], held.q[i], x[i], num, den);
  }
#pragma unroll 1
  for (const Off* at = off; at < off + (used - kOn) * (2 * kThreads); at += 2 * kThreads)
    add_four(at->a, at->b, at->p, at->q, *(const float4*)((const char*)tile + at->from), num, den);
}

// What a thread keeps of its target and row in shared memory, where registers are short: no other thread reads it. Each is 16
// bytes of all threads in turn.
enum Keep {
  kNextStep,  // its sums over the inputs, Ns and Ds; its time; the state where a part begins
  kThisStep,  // c, and what both sums begin with
  kNeuron,    // c, or c dt where times are given; what both sums begin with but for the inputs; schedule.target
  kTrace,     // kRebuild: where this unfold's state or denominator goes, or null
  kKeeps
};

// Dynamic shared memory: kKeeps of 16 bytes, and the slots behind kOn, of 20 bytes, of each thread of the block.
extern "C" __global__ void __launch_bounds__(2 * kThreads, 1)
ltc_quad(Schedule schedule,
         const float* __restrict__ gleak, const float* __restrict__ vleak, const float* __restrict__ cm,
         const float2* __restrict__ sensory,  // [B, steps, H], also if kRebuild
         const float* start, i64 start_b, i64 start_h,                     // [B, H], any strides, or null: zeros
         const float* __restrict__ elapsed, i64 elapsed_b, i64 elapsed_t, float dt,  // [B, T] or null: dt
         const float* __restrict__ output_w, const float* __restrict__ output_b,     // [M] or null
         float* __restrict__ out,                                          // [B, T, M]
         float* __restrict__ states,                                       // [B, T, H] or null
         float* final_state,                                               // [B, H]
         float* __restrict__ unfold_states, float* __restrict__ unfold_dens,  // kRebuild: [B, T, K, H]
         int batch, int hidden, int outputs, int unfolds, int total_steps, int t0, int steps, int groups,
         int constrained, float epsilon,
         const float* __restrict__ before, int rows_per_batch,  // kRebuild: [B, T, H], steps of a batch row
         unsigned* carried) {  // [B, H] of kAwaited where a group may be cut
#if __CUDA_ARCH__ >= 900
  const int sums_steps = steps;
  if (kRebuild) steps = 1;
  __shared__ __align__(16) float4 tiles[2][2][kTile];
  __shared__ Part parts[2 * kThreads / 32];
  __shared__ unsigned long long barriers[2][2];
  extern __shared__ __align__(16) float4 dynamic[];
  float4* const keeps = dynamic + threadIdx.x;
  auto keep = [&](Keep which) { return keeps + which * (2 * kThreads); };
  const unsigned rank = cluster_rank(), blocks = cluster_blocks();
  const int lane = threadIdx.x % 32;
  Part* const kept_part = parts + threadIdx.x / 32;
  const Half half = half_of_block();
  Off* const off = (Off*)(dynamic + kKeeps * 2 * kThreads) + threadIdx.x;
  int2 shape = schedule.warps[rank * (half.threads / 32) + half.thread / 32];
  shape = make_int2(uniform(shape.x), uniform(shape.y));
  const int lanes = shape.x;
  const int owner = schedule.target[rank * half.threads + half.thread];
  const bool there = owner >= 0;
  const int j = there ? owner & 0xffff : 0;
  // Which of the lanes of its target this one is.
  auto place_of_lane = [&] { return opaque(lane) & (lanes - 1); };
  // States go to the same place of each block: of the first eight lanes each sends to one.
  const unsigned here = opaque(shared_address(tiles[half.index]) + (there ? owner >> 16 : 0) * 16);
  const bool sends = opaque(there && (unsigned)place_of_lane() < blocks);
  const unsigned mine = opaque(shared_address(barriers[half.index])), bytes = hidden * 16;
  // A warp without targets has no part in any round (exchange.cuh).
  const bool walks = half.thread < 32 || __any_sync(~0u, there);

  const int all_groups = (batch + 3) / 4;
  auto owner_now = [&] { return __float_as_int(*(const volatile float*)&keep(kNeuron)->w); };
  // Rows beyond the batch stay at zero.
  auto row_of_group = [&](int group) { return (i64)group * 4 + four_row(lane); };
  auto put_part = [&](Part p) {
    __syncwarp();
    if (lane == 0) *kept_part = p;
    __syncwarp();
  };
  // What the step of a part needs is on its way to `keeps`, with the state before it if the part begins.
  auto look_at = [&](const Part& p, bool begins) {
    const i64 b = row_of_group(p.group);
    const int owner = owner_now(), j = owner & 0xffff;
    const bool in = owner >= 0 && b < batch;
    if (in) {
      const int sequence = kRebuild ? (int)b / rows_per_batch : (int)b;
      const int step = kRebuild ? (int)b - sequence * rows_per_batch : p.step, t = t0 + step;
      copy_ahead<8>(&keep(kNextStep)->x, sensory + (((i64)sequence * sums_steps + step) * hidden + j));
      if (elapsed) copy_ahead<4>(&keep(kNextStep)->z, elapsed + (sequence * elapsed_b + t * elapsed_t));
      if (begins) {
        const float* from = start ? start + (sequence * start_b + j * start_h) : nullptr;
        // Row b is a step: its state before is in `before`, or for the first step where the sequence starts.
        if (kRebuild && t > 0) from = before + (((i64)sequence * total_steps + t - 1) * hidden + j);
        if (!kRebuild && p.step > 0)
          keep(kNextStep)->w = await_state(carried + (b * hidden + j));
        else if (from)
          copy_ahead<4>(&keep(kNextStep)->w, from);
        else
          keep(kNextStep)->w = 0.0f;
      }
    } else {
      put(keep(kNextStep), 0.0f, 0.0f, 1.0f, 0.0f);
    }
    // For the next launch what was carried is unknown again.
    if (kRebuild || !begins || p.step == 0) return;
    __syncwarp();
    if (in && place_of_lane() < 4) carried[b * hidden + j] = kAwaited;
  };
  auto give = [&](int tile, float v) {
    float x[4];
    four_rows(v, lane, x);
    if (sends) store_async(in_block(here + tile * (kTile * 16), lane & 7), x, in_block(mine + tile * 8, lane & 7));
  };

  // Of the neuron, before the synapses take the registers.
  float rate_c = 0.0f, base_num = 0.0f, base_den = 1.0f;
  if (there) {
    const float g = positive(gleak[j], constrained);
    rate_c = positive(cm[j], constrained) * (float)unfolds / (elapsed ? 1.0f : dt);
    base_num = g * vleak[j];
    base_den = g + epsilon;
  }
  put(keep(kNextStep), 0.0f, 0.0f, 1.0f, 0.0f);
  Four held;
  {
    const float4* folded = schedule.folded + (rank * kSlots * half.threads + half.thread);
    const unsigned* from = schedule.from + (rank * (kSlots / 2) * half.threads + half.thread);
    float p0 = 0.0f, q0 = 0.0f;
    const unsigned tiles_at = half.index * (2 * kTile * 16);
    // Those of shared memory first, and one by one: registers are short.
#pragma unroll 1
    for (int i = kOn; i < kSlots; i++) {
      const float4 x = folded[i * half.threads];
      const unsigned pair = from[i / 2 * half.threads];
      off[(i - kOn) * (2 * kThreads)] = {x.x, x.y, x.z, x.w, (i % 2 ? pair >> 16 : pair & 0xffff) * 16u + tiles_at};
      if (kFast) p0 += x.z, q0 += x.w;
    }
#pragma unroll
    for (int i = 0; i < kOn; i++) {
      const float4 x = folded[i * half.threads];
      held.a[i] = x.x, held.b[i] = x.y, held.p[i] = x.z, held.q[i] = x.w;
      if (kFast) p0 += x.z, q0 += x.w;
    }
#pragma unroll
    for (int i = 0; i < kOn / 2; i++) held.from[i] = from[i * half.threads] * 16u + tiles_at * 0x10001u;
    base_den += lanes_sum(p0, lanes), base_num += lanes_sum(q0, lanes);
  }
  put(keep(kNeuron), rate_c, base_num, base_den, __int_as_float(owner));
  four_barriers(barriers[half.index], bytes, half);
  // Without steps the last states are the first.
#pragma unroll 1
  for (int group = half.slot(blocks); steps == 0 && group < all_groups; group += half.slots(blocks)) {
    const i64 b = row_of_group(group);
    if (there && place_of_lane() < 4 && b < batch) final_state[b * hidden + j] = start ? start[b * start_b + j * start_h] : 0.0f;
  }
  if (!kRebuild) stand_apart(half, kHalfUnfold);
  float v = 0.0f;
  {
    const Part p = first_part(0, 1, half.slot(blocks), half.slots(blocks), all_groups, steps);
    const Part none = {0, 0, 0, 0};
    put_part(walks ? p : none);
    if (walks && p.left > 0) {
      look_at(p, true);
      copies_here();
      v = keep(kNextStep)->w;
      give(0, v);
    }
  }
  unsigned parity = 0;
#pragma unroll 1
  while (kept_part->left > 0) {
    copies_here();
    bool ends;
    {
      const Part p = *kept_part;
      const float4 next = *keep(kNextStep), neuron = *keep(kNeuron);
      const float c = elapsed ? __fdiv_rn(neuron.x, next.z) : neuron.x;
      put(keep(kThisStep), c, neuron.y + next.x, neuron.z + c + next.y);
      ends = uniform(p.left == 1);
      // What the next step needs; what another cluster makes is awaited at the end of this part only.
      Part then = p;
      then.step++, then.left--;
      if (ends && p.rest > 0) then = next_part(then, steps);
      const bool known = then.left > 0 && (kRebuild || !ends || then.step == 0);
      if (known) look_at(then, ends);
      if (kRebuild) {
        // Lanes of the first four write the states, the next four the denominators.
        const i64 b = row_of_group(p.group);
        const int owner = owner_now();
        float* const to = lane & 4 ? unfold_dens : unfold_states;
        *(float* volatile*)keep(kTrace) = owner >= 0 && place_of_lane() < 8 && b < batch ? to + (b * unfolds * hidden + (owner & 0xffff)) : nullptr;
      }
    }
    auto unfold = [&](auto which, bool last) {
      constexpr int kHalf = decltype(which)::value;
      four_take(mine, kHalf, parity, opaque(hidden) * 16, half);
      float nums[4], dens[4];
      four_gates(held, off, shape.y, tiles[0][kHalf], nums, dens);
      const float4 own = *keep(kThisStep);
      const float num = four_sum(nums, lane, lanes), den = own.z + four_sum(dens, lane, lanes);
      const float old = v;
      v = quotient(num + fmaf(own.x, v, own.y), den);
      // After the last one of a part the next part's first state is given instead.
      if (!last) give(1 - kHalf, v);
      if (kRebuild) {
        float* const trace = *(float* volatile*)keep(kTrace);
        if (trace) *trace = lane & 4 ? den : old, *(float* volatile*)keep(kTrace) = trace + opaque(hidden);
      }
    };
#pragma unroll 1
    for (int k = 0; k < unfolds; k += 2) {
      unfold(Number<0>(), false);
      unfold(Number<1>(), ends && k + 2 == unfolds);
      parity ^= 1;
    }
    Part p = *kept_part;
    const i64 b = row_of_group(p.group);
    const int owner = owner_now(), j = owner & 0xffff;
    if (!kRebuild && owner >= 0 && place_of_lane() < 4 && b < batch) {
      const i64 at = b * total_steps + (t0 + p.step);
      if (states) states[at * hidden + j] = v;
      if (j < outputs) {
        float y = v;
        if (output_w) y *= output_w[j];
        if (output_b) y += output_b[j];
        out[at * outputs + j] = y;
      }
      if (p.step + 1 == steps)
        final_state[b * hidden + j] = v;
      else if (ends)
        ((volatile unsigned*)carried)[b * hidden + j] = __float_as_uint(v);
    }
    p.step++, p.left--;
    if (ends && p.rest > 0) {
      p = next_part(p, steps);
      if (!kRebuild && p.step > 0) look_at(p, true);
      copies_here();
      v = keep(kNextStep)->w;
      give(0, v);
    }
    put_part(p);
  }
  cluster_sync();
#endif
}
