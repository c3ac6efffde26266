// LTC, forward, of many rows: a cluster of blocks holds every synapse once and walks two batch rows side by side, of two groups in
// turn (the equations: forward.cu). Where quad.cu has the synapses of a block twice, once for each half of its threads, here all of
// its warps have slots of their own, half as many blocks hold the whole, and every warp takes the one group's gates while the states
// of the other travel: two halves that go their own ways come to have gates at the same time, and then wait at the same time.
//
// Sixteen warps have synapses and do nothing else: they wait for a tile, take its gates, store their parts of the sums and arrive at a
// barrier. Four more end them, a thread for each target and row: they add parts, make the states and give them to all blocks, and
// begin and end steps, all while the others have gates of the other group. A multiprocessor's quarter has four warps of the
// first kind and one of the second, which hand registers on: 104 and 64 in place of 96 each. What a warp of gates would need beyond
// that, the last two slots' synapses, lies in shared memory, so that several loads are in flight.
// A tile is complete only after all enders have read their parts of the unfold before, so parts need no barrier of their own.
//
// How lanes share a target's synapses: quad.cuh. A lane's parts of both sums of two rows are 16 bytes, of which an ender reads 8.
//
// Work: as quad.cu, with a load of 8 bytes for two gates: 16 warps of 17 slots take 2180 clocks of the special-function unit for an
// unfold of four rows (B128 T256 H256 at density 0.5 in 30 clusters of 4: 1638 unfolds, 1.8 ms), and about 1700 issue slots.
// Measured (H100, B128 D64 H256 at density 0.5, the whole forward pass, of which this is all but the sums over the inputs): T64
// 0.611 ms (quad.cu 0.804), T256 2.36 ms (3.10); less those sums, 0.17 ms of T256, 2650 clocks an unfold of four rows. B64 T64 H256 in
// clusters of 8 0.423 (recurrence.cu 0.642). Racecheck reports parts: it does not follow barriers of shared memory, nor stores that
// complete on them.
// Tried, T64: all slots' synapses in registers, so that loads come one by one, 0.677 ms; the enders as a block's last warps, alike;
// every warp ending its own targets, with 128 registers: 250 instructions in place of 195 for each warp, group and unfold, and
// all warps in step-level work at the same time, 3576 clocks an unfold of four rows.
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
// Whether the threads that end sums are the first ones of a block, or the last.
constexpr bool kEndersFirst = true;
// Threads that end sums: each those of a target and row, of which a block has as many at most.
constexpr int kEnders = kThreads / 32 * kOwners * 2;
// What lies between the parts of the two groups, and the warps whose targets an ender's warp has.
constexpr int kOfGroup = kThreads / 32 * kPlane, kServed = 32 / (2 * kOwners);

// Slots whose synapses are in registers; those of the others are read from shared memory each time.
constexpr int kInRegisters = kSlots - 2;

// What a thread holds.
struct Two {
  float a[kInRegisters], b[kInRegisters], p[kInRegisters], q[kInRegisters];
  const float4* rest;  // of the other slots, kThreads apart
  unsigned from[kSlots / 2];  // byte offsets of sources in a tile, two in one
};

__device__ __forceinline__ void add_two(const Two& held, int slot, const float2& x, float (&num)[2], float (&den)[2]) {
  const float v[2] = {x.x, x.y};
  float t[2];
  const float4 s = slot < kInRegisters ? make_float4(held.a[slot], held.b[slot], held.p[slot], held.q[slot])
                                       : held.rest[(slot - kInRegisters) * kThreads];
#pragma unroll
  for (int r = 0; r < 2; r++) t[r] = gate_of(s.x, s.y, v[r]);
#pragma unroll
  for (int r = 0; r < 2; r++) num[r] = fmaf(s.w, t[r], num[r]), den[r] = fmaf(s.z, t[r], den[r]);
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

// What a thread that ends sums has on its way: of the next step the sums over the inputs, Ns and Ds; its time; the state where a
// part begins.
struct alignas(16) Next {
  float2 sums;
  float time, first;
};
// And what it has of a group.
struct Ending {
  Part p;
  float v, c, num, den;  // the state; c, and what both sums begin with
  i64 trace;             // kRebuild: where this unfold's state and denominator go
};

// A thread has other registers than those that it was started with, where there is an instruction for it.
__device__ __forceinline__ void have_gate_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.inc.sync.aligned.u32 104;");
#endif
}
__device__ __forceinline__ void have_ender_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.dec.sync.aligned.u32 64;");
#endif
}

// Dynamic shared memory: the parts of each warp, of each group.
extern "C" __global__ void __launch_bounds__(kThreads + kEnders, 1)
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
  extern __shared__ __align__(16) float4 parts[];
  // Of each group two.
  __shared__ __align__(16) float2 tiles[2][2][kTile];
  __shared__ unsigned long long barriers[2][2];
  // Of each group one for each of the enders' warps: whose parts are there.
  __shared__ unsigned long long full[2][kEnders / 32];
  __shared__ Next nexts[2][kEnders];
  const unsigned rank = cluster_rank(), blocks = cluster_blocks();
  const bool gates = uniform(kEndersFirst ? threadIdx.x >= kEnders : threadIdx.x < blockDim.x - kEnders);
  // A warp without targets has no part in any round (exchange.cuh).
  auto walks = [&](int warp) {
    const int threads = blockDim.x - kEnders;
    return warp == 0 || (warp < threads / 32 && schedule.target[rank * threads + warp * 32] >= 0);
  };

  const int all_groups = (batch + 1) / 2 * (kRebuild ? rows_per_batch : 1);
  __shared__ Part firsts[2];
  __shared__ float4 rest[kSlots - kInRegisters][kThreads];
  const int cluster = blockIdx.x / blocks, clusters = gridDim.x / blocks;
  if (threadIdx.x < 2) firsts[threadIdx.x] = first_part(threadIdx.x, 2, cluster, clusters, all_groups, steps);
  for (int i = threadIdx.x; i < 2 * kOfGroup; i += blockDim.x) parts[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 4; i++) barrier_init(&barriers[0][0] + i, 1);
    for (int w = 0; w < kEnders / 32; w++) {
      int arrivals = 0;
      for (int i = 0; i < kServed; i++) arrivals += walks(w * kServed + i);
      for (int q = 0; q < 2; q++) barrier_init(&full[q][w], max(arrivals, 1));
    }
    barrier_init_fence();
    for (int i = 0; i < 4; i++) barrier_expect(&barriers[0][0] + i, hidden * 8);
  }
  __syncthreads();

  if (gates) {
    have_gate_registers();
    // Of the threads that have synapses, which this one is.
    const int threads = blockDim.x - kEnders, thread = opaque(threadIdx.x) - (kEndersFirst ? kEnders : 0), warp = thread / 32;
    const int lane = thread % 32;
    Two held;
    held.rest = &rest[0][thread];
    const float4* folded = schedule.folded + (rank * kSlots * threads + thread);
    const unsigned* from = schedule.from + (rank * (kSlots / 2) * threads + thread);
    // Where this lane's part goes, in bytes.
    char* const part = (char*)(parts + (warp * kPlane + schedule.target[(blocks + rank) * threads + thread]));
    const unsigned mine = opaque(shared_address(barriers)), here = opaque(shared_address(full) + warp / kServed * 8);
    const int used = uniform(schedule.warps[rank * (threads / 32) + warp].y);
    const bool has_part = walks(warp);
    float p0 = 0.0f, q0 = 0.0f;
#pragma unroll
    for (int i = 0; i < kSlots; i++) {
      const float4 x = folded[i * threads];
      if (i < kInRegisters)
        held.a[i] = x.x, held.b[i] = x.y, held.p[i] = x.z, held.q[i] = x.w;
      else
        rest[i - kInRegisters][thread] = x;
      if (kFast) p0 += x.z, q0 += x.w;
    }
#pragma unroll
    for (int i = 0; i < kSlots / 2; i++) held.from[i] = from[i * threads] * 8u;
    *(float4*)part = make_float4(q0, p0, q0, p0);
    __syncthreads();
    cluster_sync();
    auto steps_of = [&](int q) { return has_part ? uniform(firsts[q].left + firsts[q].rest) : 0; };
    const int steps0 = steps_of(0), steps1 = steps_of(1), all = max(steps0, steps1);
    unsigned parity = 0;
    auto unfold = [&](auto which, auto of) {
      constexpr int kHalf = decltype(which)::value, kGroup = decltype(of)::value;
      barrier_wait_at(mine + (kGroup * 2 + kHalf) * 8, parity);
      if (thread == 0) barrier_expect_at(mine + (kGroup * 2 + kHalf) * 8, opaque(hidden) * 8);
      float nums[2], dens[2];
      two_gates(held, used, (const char*)tiles[kGroup][kHalf], nums, dens);
      // Those of the unfold before were read, or this one's states were not here.
      *(float4*)(part + kGroup * (kOfGroup * 16)) = make_float4(nums[0], dens[0], nums[1], dens[1]);
      __syncwarp();
      if (lane == 0) barrier_arrive_at(here + kGroup * (kEnders / 32 * 8));
    };
#pragma unroll 1
    for (int step = 0; step < all; step++) {
#pragma unroll 1
      for (int k = 0; k < unfolds; k += 2) {
        if (step < steps0) unfold(Number<0>(), Number<0>());
        if (step < steps1) unfold(Number<0>(), Number<1>());
        if (step < steps0) unfold(Number<1>(), Number<0>());
        if (step < steps1) unfold(Number<1>(), Number<1>());
        parity ^= 1;
      }
    }
    cluster_sync();
    return;
  }

  have_ender_registers();
  // Of the others, which this one is; the warp whose target it has, and which one; its row.
  const int threads = blockDim.x - kEnders, thread = opaque(threadIdx.x) - (kEndersFirst ? 0 : threads), warp = thread / 32;
  const int served = thread / (2 * kOwners), row = thread & 1;
  const int owner = served < threads / 32 ? schedule.target[rank * threads + served * 32 + thread / 2 % kOwners * 8] : -1;
  const bool there = owner >= 0;
  const int j = there ? owner & 0xffff : 0;
  const int most = uniform(there ? schedule.warps[rank * (threads / 32) + served].x : 0);
  const float2* const of_target = (const float2*)(parts + (served * kPlane + thread / 2 % kOwners)) + row;
  // Both sums of group q.
  auto sums = [&](int q) {
    float2 x[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; i++) x[i] = of_target[(q * kOfGroup + i * kOwners) * 2];
    auto add = [](float2& a, const float2& b) { a.x += b.x, a.y += b.y; };
#pragma unroll
    for (int o = 1; o < kTogether; o *= 2)
#pragma unroll
      for (int i = 0; i + o < kTogether; i += 2 * o) add(x[i], x[i + o]);
#pragma unroll 1
    for (int i = kTogether; i < most; i++) add(x[0], of_target[(q * kOfGroup + i * kOwners) * 2]);
    return x[0];
  };
  float rate_c = 0.0f, base_num = 0.0f, base_den = 1.0f;
  if (there) {
    const float g = positive(gleak[j], constrained);
    rate_c = positive(cm[j], constrained) * (float)unfolds / (elapsed ? 1.0f : dt);
    base_num = g * vleak[j];
    base_den = g + epsilon;
  }
  __syncthreads();
  const float2 of_all = sums(0);
  base_num += of_all.x, base_den += of_all.y;
  cluster_sync();

  // kRebuild: groups are of two batch rows and a step, which `step_of` takes from them. Rows beyond the batch stay at zero.
  auto step_of = [&](int& group) {
    const int all = group;
    group = all / rows_per_batch;
    return all - group * rows_per_batch;
  };
  // Without steps the last states are the first.
#pragma unroll 1
  for (int group = cluster; steps == 0 && group < all_groups; group += clusters) {
    const i64 b = (i64)group * 2 + row;
    if (there && b < batch) final_state[b * hidden + j] = start ? start[b * start_b + j * start_h] : 0.0f;
  }
  Next* const kept = &nexts[0][thread];
  // What the step of a part needs is on its way to what is kept, with the state before it if the part begins.
  auto look_at = [&](int q, const Part& p, bool begins) {
    int group = p.group;
    const int step = kRebuild ? step_of(group) : p.step, t = t0 + step;
    const i64 b = (i64)group * 2 + row;
    Next& next = kept[q * kEnders];
    if (!there || b >= batch) {
      next.sums = make_float2(0.0f, 0.0f), next.time = 1.0f, next.first = 0.0f;
      return;
    }
    copy_ahead<8>(&next.sums, sensory + ((b * sums_steps + step) * hidden + j));
    if (elapsed) copy_ahead<4>(&next.time, elapsed + (b * elapsed_b + t * elapsed_t));
    if (!begins) return;
    const float* from = start ? start + (b * start_b + j * start_h) : nullptr;
    // Its state before is in `before`, or for the first step where the sequence starts.
    if (kRebuild && t > 0) from = before + ((b * total_steps + t - 1) * hidden + j);
    if (!kRebuild && p.step > 0) {
      next.first = await_state(carried + (b * hidden + j));
      // For the next launch what was carried is unknown again.
      carried[b * hidden + j] = kAwaited;
    } else if (from) {
      copy_ahead<4>(&next.first, from);
    } else {
      next.first = 0.0f;
    }
  };
  // States go to the same place of each block: each row's thread sends both to every second block.
  const unsigned place = shared_address(tiles) + (there ? owner >> 16 : 0) * 8;
  unsigned to[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const unsigned block = i * 2 + row < blocks ? i * 2 + row : 0;
    to[i] = opaque(in_block(place, block));
  }
  const unsigned to_barriers = opaque(shared_address(barriers) - place);
  const int sends = opaque(there ? ((int)blocks - row + 1) / 2 : 0);
  auto give = [&](int at, float v) {
    const float other = __shfl_xor_sync(~0u, v, 1);
    const float x[2] = {row ? other : v, row ? v : other};
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (i < sends) store_async(to[i] + at * (kTile * 8), x, to[i] + to_barriers + at * 8);
  };
  // The first state of a part, which is on its way.
  auto begin = [&](int q, Ending& e) {
    copies_here();
    e.v = kept[q * kEnders].first;
    give(q * 2, e.v);
  };
  // A step that begins; and what the next one needs. What another cluster makes is awaited at the end of this part only.
  auto begin_step = [&](int q, Ending& e) {
    copies_here();
    const Next next = kept[q * kEnders];
    e.c = elapsed ? __fdiv_rn(rate_c, next.time) : rate_c;
    e.num = base_num + next.sums.x, e.den = base_den + e.c + next.sums.y;
    const bool ends = e.p.left == 1;
    Part then = e.p;
    then.step++, then.left--;
    if (ends && e.p.rest > 0) then = next_part(then, steps);
    if (then.left > 0 && (kRebuild || !ends || then.step == 0)) look_at(q, then, ends);
    if (kRebuild) {
      int group = e.p.group;
      const int step = step_of(group);
      const i64 b = (i64)group * 2 + row;
      const i64 at = ((b >> together / 2) * rows_per_batch + step) * unfolds * hidden + j;
      e.trace = there && b < batch ? at * together + (b & (together - 1)) : -1;
    }
  };
  auto end_step = [&](int q, Ending& e) {
    Part& p = e.p;
    const bool ends = p.left == 1;
    const i64 b = (i64)p.group * 2 + row;
    if (!kRebuild && there && b < batch) {
      const i64 at = b * total_steps + (t0 + p.step);
      if (states) states[at * hidden + j] = e.v;
      if (j < outputs) {
        float y = e.v;
        if (output_w) y *= output_w[j];
        if (output_b) y += output_b[j];
        out[at * outputs + j] = y;
      }
      if (p.step + 1 == steps)
        final_state[b * hidden + j] = e.v;
      else if (ends)
        ((volatile unsigned*)carried)[b * hidden + j] = __float_as_uint(e.v);
    }
    p.step++, p.left--;
    if (ends && p.rest > 0) {
      p = next_part(p, steps);
      if (!kRebuild && p.step > 0) look_at(q, p, true);
      begin(q, e);
    }
    if (p.left > 0) begin_step(q, e);
  };
  // An ender's warp without targets has no part either.
  const bool ender_walks = __any_sync(~0u, there);
  Ending group0, group1;
  auto first = [&](int q, Ending& e) {
    e.p = firsts[q];
    if (!ender_walks) e.p.left = 0;
    if (e.p.left > 0) look_at(q, e.p, true), begin(q, e), begin_step(q, e);
  };
  first(0, group0), first(1, group1);
  const unsigned here = opaque(shared_address(full) + warp * 8);
  auto unfold = [&](int q, int half, Ending& e, bool last) {
    barrier_wait_at(here + q * (kEnders / 32 * 8), half);
    const float2 sum = sums(q);
    const float old = e.v, den = sum.y + e.den;
    e.v = quotient(sum.x + fmaf(e.c, old, e.num), den);
    // After the last one of a part the next part's first state is given instead.
    if (!(last && e.p.left == 1)) give(q * 2 + 1 - half, e.v);
    if (kRebuild && e.trace >= 0) {
      unfold_states[e.trace] = old, unfold_dens[e.trace] = den;
      e.trace += (i64)hidden * together;
    }
    if (last) end_step(q, e);
  };
#pragma unroll 1
  while (true) {
    const bool have0 = group0.p.left > 0, have1 = group1.p.left > 0;
    if (!have0 && !have1) break;
#pragma unroll 1
    for (int k = 0; k < unfolds; k++) {
      const bool last = k + 1 == unfolds;
      if (have0) unfold(0, k & 1, group0, last);
      if (have1) unfold(1, k & 1, group1, last);
    }
  }
  cluster_sync();
#endif
}
