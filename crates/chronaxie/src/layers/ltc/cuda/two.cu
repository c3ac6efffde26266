// LTC, forward, of many rows: a cluster of blocks holds every synapse once and walks two batch rows side by side, of two groups in
// turn (the equations: forward.cu). Where quad.cu has the synapses of a block twice, once for each half of its threads, here all of
// its warps have slots of their own, half as many blocks hold the whole, and every warp takes the one group's gates while the states
// of the other travel: two halves that go their own ways come to have gates at the same time, and then wait at the same time.
//
// How lanes share a target's synapses: quad.cuh. A lane's parts of both sums of two rows are 16 bytes, of which the lanes that end
// a target read 8: of the eight of a target the lowest bit is the row, the next one which half of the parts.
//
// Work: as quad.cu, with a load of 8 bytes for two gates: 16 warps of 17 slots take 2180 clocks of the special-function unit for an
// unfold of four rows (B128 T256 H256 at density 0.5 in 30 clusters of 4: 1638 unfolds, 1.8 ms), and about 2200 issue slots.
// kRebuild: as quad.cu.
// Bytes: as recurrence.cu.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = false;
#include "quad.cuh"

// Slots that every thread computes, in use or not.
constexpr int kOn = kSlots - 2;
// Most neurons: states of two rows lie in two tiles of so many for each group.
constexpr int kTile = 256;
// Slots whose loads are in flight ahead of their gates.
constexpr int kFlight = 4;

// What a thread holds.
struct Two {
  float a[kSlots], b[kSlots], p[kSlots], q[kSlots];
  unsigned from[kSlots / 2];  // byte offsets of sources in a tile, two in one
};

__device__ __forceinline__ void add_two(const Two& held, int slot, const float2& x, float (&num)[2], float (&den)[2]) {
  const float v[2] = {x.x, x.y};
  float t[2];
#pragma unroll
  for (int r = 0; r < 2; r++) t[r] = gate_of(held.a[slot], held.b[slot], v[r]);
#pragma unroll
  for (int r = 0; r < 2; r++) num[r] = fmaf(held.q[slot], t[r], num[r]), den[r] = fmaf(held.p[slot], t[r], den[r]);
}

// This lane's part of both sums of two rows.
__device__ __forceinline__ void two_gates(const Two& held, int used, const char* tile, float (&num)[2], float (&den)[2]) {
  num[0] = num[1] = den[0] = den[1] = 0.0f;
  float2 x[kSlots];
  auto load = [&](int i) { x[i] = *(const float2*)(tile + four_source(held.from, i)); };
#pragma unroll
  for (int i = 0; i < kFlight; i++) load(i);
#pragma unroll
  for (int i = 0; i < kOn; i++) {
    // The first that is not always there is read as if it were.
    if (i + kFlight < kOn + 1) load(i + kFlight);
    add_two(held, i, x[i], num, den);
  }
#pragma unroll
  for (int i = kOn; i < kSlots; i++) {
    if (i >= used) break;
    if (i > kOn) load(i);
    add_two(held, i, x[i], num, den);
  }
}

// What a thread keeps of its target and row in shared memory, where registers are short: no other thread reads it. Each is 16
// bytes of all threads in turn; the first three are there for each group.
enum Keep {
  kNextStep,  // its sums over the inputs, Ns and Ds; its time; the state where a part begins
  kThisStep,  // c, and what both sums begin with
  kTrace,     // kRebuild: where this unfold's state or denominator goes, or null
  kOfGroup,
  kNeuron = 2 * kOfGroup,  // c, or c dt where times are given; what both sums begin with but for the inputs; schedule.target
  kKeeps
};

// Dynamic shared memory: kKeeps of 16 bytes of each thread; the parts of each warp.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
ltc_two(Schedule schedule,
        const float* __restrict__ gleak, const float* __restrict__ vleak, const float* __restrict__ cm,
        const float2* __restrict__ sensory,                               // [B, steps, H]
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
  extern __shared__ __align__(16) float4 dynamic[];
  // Of each group two.
  __shared__ __align__(16) float2 tiles[2][2][kTile];
  __shared__ unsigned long long barriers[2][2];
  __shared__ Part parts[kThreads / 32][2];
  __shared__ int most_parts[kThreads / 32];
  const unsigned rank = cluster_rank(), blocks = cluster_blocks();
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  auto keep = [&](int which) { return dynamic + (which * kThreads + opaque(threadIdx.x)); };
  auto of_group = [&](int q, Keep which) { return keep(q * kOfGroup + which); };
  auto part_of = [&](int q) -> Part& { return parts[opaque(threadIdx.x) / 32u][q]; };
  const int2 shape = schedule.warps[rank * warps + threadIdx.x / 32];
  const int used = uniform(shape.y);
  if (lane == 0) most_parts[threadIdx.x / 32] = shape.x;
  const int owner = schedule.target[rank * blockDim.x + threadIdx.x];
  const bool there = owner >= 0;
  const int j = there ? owner & 0xffff : 0;
  // Of the eight lanes that end a target: which this one is, and its row.
  auto place_of_lane = [&] { return opaque(threadIdx.x) & 7; };
  auto row_of_lane = [&] { return opaque(threadIdx.x) & 1; };
  auto writes = [&] { return place_of_lane() < 2; };
  // Where this lane's part goes, in bytes; and the first of those that it adds.
  float4* const all_parts = dynamic + kKeeps * kThreads;
  const unsigned part = opaque((threadIdx.x / 32 * kPlane + schedule.target[(blocks + rank) * blockDim.x + threadIdx.x]) * 16);
  const unsigned first_part_at =
      opaque((threadIdx.x / 32 * kPlane + lane / 8 + (lane >> 1 & 1) * kOwners) * 16 + (lane & 1) * 8);
  // Both sums of this lane's target and row.
  auto sums = [&](const float (&nums)[2], const float (&dens)[2], float& num, float& den) {
    __syncwarp();
    *(float4*)((char*)all_parts + part) = make_float4(nums[0], dens[0], nums[1], dens[1]);
    __syncwarp();
    const char* const at = (const char*)all_parts + first_part_at;
    float2 x[kTogether / 2];
#pragma unroll
    for (int i = 0; i < kTogether / 2; i++) x[i] = *(const float2*)(at + i * (2 * kOwners * 16));
    const int most = most_parts[opaque(threadIdx.x) / 32u];
    num = (x[0].x + x[1].x) + (x[2].x + x[3].x) + x[4].x, den = (x[0].y + x[1].y) + (x[2].y + x[3].y) + x[4].y;
#pragma unroll 1
    for (int i = kTogether / 2; 2 * i < most; i++) {
      const float2 y = *(const float2*)(at + i * (2 * kOwners * 16));
      num += y.x, den += y.y;
    }
    num += __shfl_xor_sync(~0u, num, 2), den += __shfl_xor_sync(~0u, den, 2);
  };
  // States go to the same place of each block: of the eight lanes each sends to one.
  const unsigned target_block = opaque((lane & 7) < (int)blocks ? lane & 7 : 0);
  const bool sends = opaque(there && (unsigned)place_of_lane() < blocks);
  const unsigned here = opaque(in_block(shared_address(tiles) + (there ? owner >> 16 : 0) * 8, target_block));
  const unsigned theirs = opaque(in_block(shared_address(barriers), target_block));
  const unsigned mine = opaque(shared_address(barriers));
  // A warp without targets has no part in any round (exchange.cuh).
  const bool walks = threadIdx.x < 32 || __any_sync(~0u, there);

  const int all_groups = (batch + 1) / 2 * (kRebuild ? rows_per_batch : 1);
  auto owner_now = [&] { return __float_as_int(*(const volatile float*)&keep(kNeuron)->w); };
  // kRebuild: groups are of two batch rows and a step, which `step_of` takes from them. Rows beyond the batch stay at zero.
  auto step_of = [&](int& group) {
    const int all = group;
    group = all / rows_per_batch;
    return all - group * rows_per_batch;
  };
  auto row_of_group = [&](int group) { return (i64)group * 2 + row_of_lane(); };
  auto put_part = [&](int q, Part p) {
    __syncwarp();
    if (lane == 0) part_of(q) = p;
    __syncwarp();
  };
  // What the step of a part needs is on its way to what is kept, with the state before it if the part begins.
  auto look_at = [&](int q, const Part& p, bool begins) {
    int group = p.group;
    const int step = kRebuild ? step_of(group) : p.step, t = t0 + step;
    const i64 b = row_of_group(group);
    const int owner = owner_now(), j = owner & 0xffff, hidden_now = opaque(hidden);
    const bool in = owner >= 0 && b < opaque(batch);
    float4* const next = of_group(q, kNextStep);
    if (in) {
      copy_ahead<8>(&next->x, sensory + ((b * sums_steps + step) * hidden_now + j));
      if (elapsed) copy_ahead<4>(&next->z, elapsed + (b * elapsed_b + t * elapsed_t));
      if (begins) {
        const float* from = start ? start + (b * start_b + j * start_h) : nullptr;
        // Its state before is in `before`, or for the first step where the sequence starts.
        if (kRebuild && t > 0) from = before + ((b * total_steps + t - 1) * hidden_now + j);
        if (!kRebuild && p.step > 0)
          next->w = await_state(carried + (b * hidden_now + j));
        else if (from)
          copy_ahead<4>(&next->w, from);
        else
          next->w = 0.0f;
      }
    } else {
      put(next, 0.0f, 0.0f, 1.0f, 0.0f);
    }
    // For the next launch what was carried is unknown again.
    if (kRebuild || !begins || p.step == 0) return;
    __syncwarp();
    if (in && writes()) carried[b * hidden_now + j] = kAwaited;
  };
  auto give = [&](int q, int tile, float v) {
    const float other = __shfl_xor_sync(~0u, v, 1);
    const bool second = row_of_lane();
    const float x[2] = {second ? other : v, second ? v : other};
    const int at = q * 2 + tile;
    if (sends) store_async(here + at * (kTile * 8), x, theirs + at * 8);
  };

  // Of the neuron, before the synapses take the registers.
  float rate_c = 0.0f, base_num = 0.0f, base_den = 1.0f;
  if (there) {
    const float g = positive(gleak[j], constrained);
    rate_c = positive(cm[j], constrained) * (float)unfolds / (elapsed ? 1.0f : dt);
    base_num = g * vleak[j];
    base_den = g + epsilon;
  }
  for (int q = 0; q < 2; q++) put(of_group(q, kNextStep), 0.0f, 0.0f, 1.0f, 0.0f);
  for (int i = lane; i < kPlane; i += 32) all_parts[threadIdx.x / 32 * kPlane + i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  Two held;
  {
    const float4* folded = schedule.folded + (rank * kSlots * blockDim.x + threadIdx.x);
    const unsigned* from = schedule.from + (rank * (kSlots / 2) * blockDim.x + threadIdx.x);
    float p0 = 0.0f, q0 = 0.0f;
#pragma unroll
    for (int i = 0; i < kSlots; i++) {
      const float4 x = folded[i * blockDim.x];
      held.a[i] = x.x, held.b[i] = x.y, held.p[i] = x.z, held.q[i] = x.w;
      if (kFast) p0 += x.z, q0 += x.w;
    }
#pragma unroll
    for (int i = 0; i < kSlots / 2; i++) held.from[i] = from[i * blockDim.x] * 8u;
    const float nums[2] = {q0, q0}, dens[2] = {p0, p0};
    float num, den;
    sums(nums, dens, num, den);
    base_num += num, base_den += den;
  }
  put(keep(kNeuron), rate_c, base_num, base_den, __int_as_float(owner));
  if (threadIdx.x == 0) {
    for (int i = 0; i < 4; i++) barrier_init(&barriers[0][0] + i, 1);
    barrier_init_fence();
    for (int i = 0; i < 4; i++) barrier_expect(&barriers[0][0] + i, hidden * 8);
  }
  __syncthreads();
  cluster_sync();
  const int cluster = blockIdx.x / blocks, clusters = gridDim.x / blocks;
  // Without steps the last states are the first.
#pragma unroll 1
  for (int group = cluster; steps == 0 && group < all_groups; group += clusters) {
    const i64 b = row_of_group(group);
    if (there && writes() && b < batch) final_state[b * hidden + j] = start ? start[b * start_b + j * start_h] : 0.0f;
  }
  float v0 = 0.0f, v1 = 0.0f;
  // The first state of a part, which is on its way.
  auto begin = [&](int q) {
    copies_here();
    const float v = of_group(q, kNextStep)->w;
    if (q == 0)
      v0 = v;
    else
      v1 = v;
    give(q, 0, v);
  };
#pragma unroll 1
  for (int q = 0; q < 2; q++) {
    const Part p = first_part(q, 2, cluster, clusters, all_groups, steps), none = {0, 0, 0, 0};
    put_part(q, walks ? p : none);
    if (walks && p.left > 0) look_at(q, p, true), begin(q);
  }
  unsigned parity = 0;
#pragma unroll 1
  while (true) {
    copies_here();
    // Bits of groups that have this step, and of those of whose part it is the last.
    int have = 0, ending = 0;
#pragma unroll 1
    for (int q = 0; q < 2; q++) {
      const Part p = part_of(q);
      if (p.left == 0) continue;
      const float4 next = *of_group(q, kNextStep), neuron = *keep(kNeuron);
      const float c = elapsed ? __fdiv_rn(neuron.x, next.z) : neuron.x;
      put(of_group(q, kThisStep), c, neuron.y + next.x, neuron.z + c + next.y);
      const bool ends = p.left == 1;
      have |= 1 << q, ending |= ends << q;
      // What the next step needs; what another cluster makes is awaited at the end of this part only.
      Part then = p;
      then.step++, then.left--;
      if (ends && p.rest > 0) then = next_part(then, steps);
      if (then.left > 0 && (kRebuild || !ends || then.step == 0)) look_at(q, then, ends);
      if (kRebuild) {
        // One lane of a row writes the states, the next one the denominators.
        int group = p.group;
        const int step = step_of(group), side = opaque(together), owner = owner_now();
        const i64 b = row_of_group(group);
        const i64 at = ((b >> side / 2) * rows_per_batch + step) * unfolds * opaque(hidden) + (owner & 0xffff);
        float* const to = lane & 2 ? unfold_dens : unfold_states;
        *(float* volatile*)of_group(q, kTrace) =
            owner >= 0 && b < opaque(batch) && place_of_lane() < 4 ? to + (at * side + (b & (side - 1))) : nullptr;
      }
    }
    have = uniform(have), ending = uniform(ending);
    if (have == 0) break;
    auto unfold = [&](auto which, auto of, float& v, bool last) {
      constexpr int kHalf = decltype(which)::value, kGroup = decltype(of)::value;
      barrier_wait_at(mine + (kGroup * 2 + kHalf) * 8, parity);
      __syncwarp();
      if (threadIdx.x == 0) barrier_expect_at(mine + (kGroup * 2 + kHalf) * 8, opaque(hidden) * 8);
      float nums[2], dens[2], num, den;
      two_gates(held, used, (const char*)tiles[kGroup][kHalf], nums, dens);
      sums(nums, dens, num, den);
      const float4 own = *of_group(kGroup, kThisStep);
      den += own.z;
      const float old = v;
      v = quotient(num + fmaf(own.x, v, own.y), den);
      // After the last one of a part the next part's first state is given instead.
      if (!last) give(kGroup, 1 - kHalf, v);
      if (kRebuild) {
        float* const trace = *(float* volatile*)of_group(kGroup, kTrace);
        if (trace) *trace = lane & 2 ? den : old, *(float* volatile*)of_group(kGroup, kTrace) = trace + opaque(hidden) * opaque(together);
      }
    };
#pragma unroll 1
    for (int k = 0; k < unfolds; k += 2) {
      const bool last = k + 2 == unfolds;
      if (have & 1) unfold(Number<0>(), Number<0>(), v0, false);
      if (have & 2) unfold(Number<0>(), Number<1>(), v1, false);
      if (have & 1) unfold(Number<1>(), Number<0>(), v0, last && (ending & 1));
      if (have & 2) unfold(Number<1>(), Number<1>(), v1, last && (ending & 2));
      parity ^= 1;
    }
#pragma unroll 1
    for (int q = 0; q < 2; q++) {
      if (!(have >> q & 1)) continue;
      Part p = part_of(q);
      const bool ends = ending >> q & 1;
      const i64 b = row_of_group(p.group);
      const int owner = owner_now(), j = owner & 0xffff;
      if (!kRebuild && owner >= 0 && writes() && b < batch) {
        const float v = q == 0 ? v0 : v1;
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
        if (!kRebuild && p.step > 0) look_at(q, p, true);
        begin(q);
      }
      put_part(q, p);
    }
  }
  cluster_sync();
#endif
}
