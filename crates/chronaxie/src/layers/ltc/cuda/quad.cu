// LTC, forward, of many rows: a cluster of blocks holds every synapse and walks four batch rows side by side (the equations:
// forward.cu). What recurrence.cu does of two rows, with three quarters of the instructions: an unfold of a warp has about 150
// beside its gates, whatever the number of rows, and a load of 16 bytes serves four gates.
//
// A block has two halves with the same synapses, which walk groups of rows of their own and begin half an unfold apart (not if
// kRebuild, where a part is one step): while the states of one travel, and its sums and divisions are made, the other has gates.
// That takes 128 registers a thread, so that the last slots lie in shared memory; the first of them is read when no more states
// are ahead. Tiles lie at fixed places and unfolds go in pairs: no address and no branch depends on which tile it is.
//
// A target's synapses are dealt to as many lanes of its warp as they need, no power of two, and the parts of its sums
// go through shared memory (quad.cuh): of lists that differ by a third the longest lane has 17 slots where 16 is the mean, and
// loads of 16 bytes meet a bank twice 4 times in 100 (19 slots and 27 in 100 with a power of two of lanes each).
//
// Work: four gates are a load of 16 bytes, an offset, 4 + 8 fused multiply-adds, and 4 (fast: tanh) or 8 (exact: ex2, rcp)
// special operations, 16 a clock and multiprocessor, which bind. Floor (H200, 1.98 GHz, fast): 1.6 ms for B128 T256 H256 at
// density 0.5, 1.8 ms in the 120 multiprocessors that clusters of 8 use.
// Clocks of an unfold of eight rows (H200, fast): 2760 with 128 neurons at full density in a cluster of 4; with 256 at half density in
// a cluster of 8 3550 (H100, ncu: 5.8 million clocks for 1638 unfolds, issue slots used 48 %), and 3630 when lists were uneven:
// these were taken for the difference, and are a tenth of it. What a cluster of 8 costs beside one of 4 is not explained. A block
// of one half alone 2320 and 2640. Tried: two blocks of different clusters on a multiprocessor in the place of two halves, 3540 and
// 3950: each waits for the slowest of its blocks, and all share with others; the next part's states ahead of the last unfold
// (kRebuild), no faster; halves apart if kRebuild, 0.2 % slower; apart by 450 or 800 ns, no difference.
// kRebuild: for the backward pass every step is a row of its own, which starts from the state before it; only the states
// and denominators of its unfolds are written.
// Bytes: as recurrence.cu.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = false;
#include "quad.cuh"

// Slots in registers, which every thread computes, in use or not; and behind them those in shared memory.
constexpr int kOn = kSlots * 4 / 5, kOff = kSlots - kOn;

// Most neurons: states of four rows lie in two tiles of so many.
constexpr int kTile = 256;
// Nanoseconds of half an unfold of one half of a block.
constexpr unsigned kHalfUnfold = 600;
// Slots whose loads are in flight ahead of their gates.
constexpr int kFlight = kFast || __CUDA_ARCH__ >= 1000 ? 3 : kOldCompiler ? 1 : 2;

// What a thread holds.
struct Four {
  float a[kOn], b[kOn], p[kOn], q[kOn];
  unsigned from[kOn / 2];  // byte offsets of sources, two in one
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

// Dynamic shared memory: kKeeps of 16 bytes of each thread; slots behind kOn, of 16 and of 4 bytes; the parts of each warp, of
// numerators and of denominators.
__device__ __forceinline__ float4* dynamic() {
  extern __shared__ __align__(16) float4 elements[];
  return elements;
}
// `off_sources`: offsets of their sources; the first with 65536 times how many of them are in use.
constexpr int kOffAt = 4 * 2 * kThreads, kSourcesAt = kOffAt + kOff * 2 * kThreads, kPartsAt = kSourcesAt + kOff * kThreads / 2;
__device__ __forceinline__ float4* off_slots() { return dynamic() + kOffAt + opaque(threadIdx.x); }
__device__ __forceinline__ unsigned* off_sources() { return (unsigned*)(dynamic() + kSourcesAt) + opaque(threadIdx.x); }

// This lane's part of both sums of four rows. The first slot in shared memory, which most warps have in use, is read in the place
// of states ahead, of which there are no more.
__device__ __forceinline__ void four_gates(const Four& held, const float4* tile, float (&num)[4], float (&den)[4]) {
#pragma unroll
  for (int r = 0; r < 4; r++) num[r] = den[r] = 0.0f;
  float4 x[kOn], w, first;
  unsigned from;
#pragma unroll
  for (int i = 0; i < kFlight; i++) x[i] = four_states(tile, held, i);
#pragma unroll
  for (int i = 0; i < kOn; i++) {
    if (i + kFlight < kOn) x[i + kFlight] = four_states(tile, held, i + kFlight);
    if (i == kOn - kFlight) w = *off_slots(), from = *off_sources();
    if (i == kOn - kFlight + 1) first = *(const float4*)((const char*)tile + (from & 0xffff));
    add_four(held.a[i], held.b[i], held.p[i], held.q[i], x[i], num, den);
  }
  if (from >> 16) add_four(w.x, w.y, w.z, w.w, first, num, den);
#pragma unroll 1
  for (int i = 1; i < (int)(from >> 16); i++) {
    w = off_slots()[i * (2 * kThreads)];
    add_four(w.x, w.y, w.z, w.w, *(const float4*)((const char*)tile + off_sources()[i * (2 * kThreads)]), num, den);
  }
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

static_assert(kKeeps * 2 * kThreads == kOffAt, "");

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
         float* __restrict__ unfold_states, float* __restrict__ unfold_dens,  // kRebuild: [B / together, T, K, H, together]
         int batch, int hidden, int outputs, int unfolds, int total_steps, int t0, int steps,
         int together,  // kRebuild: batch rows whose unfolds lie side by side, 1 or 4
         int constrained, float epsilon,
         const float* __restrict__ before, int rows_per_batch,  // kRebuild: [B, T, H], steps of a batch row
         unsigned* carried) {  // [B, H] of kAwaited where a group may be cut
#if __CUDA_ARCH__ >= 900
  const int sums_steps = steps;
  if (kRebuild) steps = 1;
  __shared__ __align__(16) float4 tiles[2][2][kTile];
  __shared__ Part parts[2 * kThreads / 32];
  __shared__ unsigned long long barriers[2][2];
  float4* const keeps = dynamic() + threadIdx.x;
  auto keep = [&](Keep which) { return keeps + which * (2 * kThreads); };
  const unsigned rank = cluster_rank(), blocks = cluster_blocks();
  const int lane = threadIdx.x % 32;
  auto kept_part = [&] { return parts + opaque(threadIdx.x) / 32u; };
  const Half half = half_of_block();
  // The most parts that a target of this warp has.
  __shared__ int most_parts[2 * kThreads / 32];
  const int2 shape = schedule.warps[rank * (half.threads / 32) + half.thread / 32];
  const int used = uniform(shape.y);
  if (lane == 0) most_parts[threadIdx.x / 32] = shape.x;
  __syncwarp();
  const int owner = schedule.target[rank * half.threads + half.thread];
  const bool there = owner >= 0;
  const int j = there ? owner & 0xffff : 0;
  // Which of the lanes that end its target this one is.
  auto place_of_lane = [&] { return opaque(threadIdx.x) & 7; };
  // Where this lane's part goes, in bytes.
  const unsigned part = opaque((threadIdx.x / 32 * (2 * kPlane) + schedule.target[(blocks + rank) * half.threads + half.thread]) * 16);
  // Both sums of this lane's target and row: it adds those of one, another lane those of the other.
  auto sums = [&](const float (&nums)[4], const float (&dens)[4], float& num, float& den) {
    __syncwarp();
    float4* const to = (float4*)((char*)(dynamic() + kPartsAt) + part);
    to[0] = make_float4(nums[0], nums[1], nums[2], nums[3]), to[kPlane] = make_float4(dens[0], dens[1], dens[2], dens[3]);
    __syncwarp();
    const float4* const parts = parts_of_warp(dynamic() + kPartsAt, 2) + (opaque(threadIdx.x) >> 2 & 1) * kPlane;
    const float mine = parts_sum<kTogether, 4 * kOwners>(parts_of_row(parts), most_parts[opaque(threadIdx.x) / 32u]), other = __shfl_xor_sync(~0u, mine, 4);
    const bool second = opaque(threadIdx.x) & 4;
    num = second ? other : mine, den = second ? mine : other;
  };
  // States go to the same place of each block: of the eight lanes each sends to one.
  const unsigned here = opaque(shared_address(tiles[half.index]) + (there ? owner >> 16 : 0) * 16);
  const bool sends = opaque(there && (unsigned)place_of_lane() < blocks);
  const unsigned mine = opaque(shared_address(barriers[half.index])), bytes = hidden * 16;
  // A warp without targets has no part in any round (exchange.cuh).
  const bool walks = half.thread < 32 || __any_sync(~0u, there);

  auto all_groups = [&] { return (opaque(batch) + 3) / 4 * (kRebuild ? rows_per_batch : 1); };
  auto owner_now = [&] { return __float_as_int(*(const volatile float*)&keep(kNeuron)->w); };
  // Rows beyond the batch stay at zero.
  // kRebuild: groups are of four batch rows and a step, which `step_of` takes from them.
  auto step_of = [&](int& group) {
    const int all = group;
    group = all / rows_per_batch;
    return all - group * rows_per_batch;
  };
  auto row_of_group = [&](int group) { return (i64)group * 4 + four_row(opaque(threadIdx.x)); };
  auto put_part = [&](Part p) {
    __syncwarp();
    if (lane == 0) *kept_part() = p;
    __syncwarp();
  };
  // What the step of a part needs is on its way to `keeps`, with the state before it if the part begins.
  auto look_at = [&](const Part& p, bool begins) {
    int group = p.group;
    const int step = kRebuild ? step_of(group) : p.step, t = t0 + step;
    const i64 b = row_of_group(group);
    const int owner = owner_now(), j = owner & 0xffff, hidden_now = opaque(hidden);
    const bool in = owner >= 0 && b < opaque(batch);
    if (in) {
      copy_ahead<8>(&keep(kNextStep)->x, sensory + ((b * sums_steps + step) * hidden_now + j));
      if (elapsed) copy_ahead<4>(&keep(kNextStep)->z, elapsed + (b * elapsed_b + t * elapsed_t));
      if (begins) {
        const float* from = start ? start + (b * start_b + j * start_h) : nullptr;
        // Its state before is in `before`, or for the first step where the sequence starts.
        if (kRebuild && t > 0) from = before + ((b * total_steps + t - 1) * hidden_now + j);
        if (!kRebuild && p.step > 0)
          keep(kNextStep)->w = await_state(carried + (b * hidden_now + j));
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
    if (in && place_of_lane() < 4) carried[b * hidden_now + j] = kAwaited;
  };
  auto give = [&](int tile, float v) {
    float x[4];
    four_rows(v, opaque(threadIdx.x), x);
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
  for (int i = lane; i < 2 * kPlane; i += 32) parts_of_warp(dynamic() + kPartsAt, 2)[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  Four held;
  {
    const unsigned tiles_at = half.index * (2 * kTile * 16);
    const float4* folded = schedule.folded + (rank * kSlots * half.threads + half.thread);
    const unsigned* from = schedule.from + (rank * (kSlots / 2) * half.threads + half.thread);
    float p0 = 0.0f, q0 = 0.0f;
    // Those of shared memory first, and one by one: registers are short.
#pragma unroll 1
    for (int i = kOn; i < kSlots; i++) {
      const float4 x = folded[i * half.threads];
      const unsigned pair = from[i / 2 * half.threads];
      off_slots()[(i - kOn) * (2 * kThreads)] = x;
      const unsigned in_use = i == kOn ? max(used - kOn, 0) << 16 : 0;
      off_sources()[(i - kOn) * (2 * kThreads)] = (i % 2 ? pair >> 16 : pair & 0xffff) * 16u + tiles_at + in_use;
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
    const float nums[4] = {q0, q0, q0, q0}, dens[4] = {p0, p0, p0, p0};
    float num, den;
    sums(nums, dens, num, den);
    base_num += num, base_den += den;
  }
  put(keep(kNeuron), rate_c, base_num, base_den, __int_as_float(owner));
  four_barriers(barriers[half.index], bytes, half);
  // Without steps the last states are the first.
#pragma unroll 1
  for (int group = half.slot(blocks); steps == 0 && group < all_groups(); group += half.slots(blocks)) {
    const i64 b = row_of_group(group);
    if (there && place_of_lane() < 4 && b < batch) final_state[b * hidden + j] = start ? start[b * start_b + j * start_h] : 0.0f;
  }
  if (!kRebuild) stand_apart(half, kHalfUnfold);
  float v = 0.0f;
  {
    const Part p = first_part(0, 1, half.slot(blocks), half.slots(blocks), all_groups(), steps);
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
  while (kept_part()->left > 0) {
    copies_here();
    bool ends;
    {
      const Part p = *kept_part();
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
        int group = p.group;
        const int step = step_of(group), side = opaque(together), owner = owner_now();
        const i64 b = row_of_group(group);
        const i64 at = ((b >> side / 2) * rows_per_batch + step) * unfolds * opaque(hidden) + (owner & 0xffff);
        float* const to = lane & 4 ? unfold_dens : unfold_states;
        *(float* volatile*)keep(kTrace) = owner >= 0 && b < opaque(batch) ? to + (at * side + (b & (side - 1))) : nullptr;
      }
    }
    auto unfold = [&](auto which, bool last) {
      constexpr int kHalf = decltype(which)::value;
      four_take(mine, kHalf, parity, opaque(hidden) * 16, half);
      float nums[4], dens[4], num, den;
      four_gates(held, tiles[0][kHalf], nums, dens);
      sums(nums, dens, num, den);
      const float4 own = *keep(kThisStep);
      den += own.z;
      const float old = v;
      v = quotient(num + fmaf(own.x, v, own.y), den);
      // After the last one of a part the next part's first state is given instead.
      if (!last) give(1 - kHalf, v);
      if (kRebuild) {
        float* const trace = *(float* volatile*)keep(kTrace);
        if (trace) *trace = lane & 4 ? den : old, *(float* volatile*)keep(kTrace) = trace + opaque(hidden) * opaque(together);
      }
    };
#pragma unroll 1
    for (int k = 0; k < unfolds; k += 2) {
      unfold(Number<0>(), false);
      unfold(Number<1>(), ends && k + 2 == unfolds);
      parity ^= 1;
    }
    Part p = *kept_part();
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
