// LTC, backward through the recurrence, of many rows: what adjoint.cu does (its equations and what it leaves behind), as two.cu
// divides the work. A cluster of blocks holds every synapse, by source, with its four sums, and walks four batch rows side by side,
// of two groups in turn: while alpha and beta of one travel, the other has gates. Eight warps of a block have gates and nothing
// else: they wait for a tile, take its gates, store their parts of the sums over targets and arrive at a barrier. Four more end them,
// a thread for each source and row: they add parts, make alpha and beta and give them to all blocks, and begin and end steps. Threads
// with gates have 216 registers, in which lie 18 slots with their sums, and the enders 72. (quad_adjoint.cu has sums for each half of a
// block, the synapses in shared memory, and warps that do all of their owners' work.)
// A tile is complete only after all enders have read their parts of the unfold before, so parts need no barrier of their own; v of
// a block's sources lies beside the tile, and its barrier waits for the enders that store it.
//
// Work: four gates are 2 loads of 16 bytes, 44 operations of which four are special, and one for an address: 8 warps of 17 slots take
// 3200 issue slots of a scheduler and 2200 clocks of the special-function unit and of shared memory each for an unfold of eight rows
// (B128 T256 H256 at density 0.5 in 15 clusters of 8: 1638 unfolds, 2.6 ms of issue slots). Registers bind: they lie in two banks, of
// which each gives one operand a clock, so that a multiply-add of three registers takes two clocks, unless it reads one again that the
// instruction before it read. By the machine code of all slots 984 instructions read 1961 operands and take 1354 clocks, 1.38 each; with
// 16 warps, without the special functions and without all loads from shared memory issue slots stayed 68 to 73 % busy. Hence a is
// part of p and q (`scale_of`): dz is added to the sum over targets, two operands in the place of three.
// Measured (H100, fast, the backward pass of B128 T64 D64 H256 in five chunks, ms): quad_adjoint.cu 2.42; this with all of a group in
// registers of the enders and loads as the compiler places them 2.28; loads and special functions a slot ahead 2.13; what enders keep in
// shared memory in planes 2.08; a in p and q, and waits for the copies of the group alone that is next 2.04. An unfold of eight rows
// 7000 clocks by quad_adjoint.cu in chunks of 20 steps, 5260 by this in chunks of 29 (B128 T256). Exact 3.15 and 2.67.
// Tried, T64: 16 warps of 10 slots, whose threads have 104 registers, 2.19; alpha and beta by bulk copies in the place of stores that
// complete on barriers 2.08 of 2.08; orders of the operations, which the compiler mostly undoes, 2.04 to 2.06.
// Bytes: as adjoint.cu.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = false;
#include "quad.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(__CUDA_ARCH_FEAT_SM100_ALL)
#define CHRONAXIE_REGISTERS_MOVE 1
#endif

// Slots that every thread computes, in use or not.
constexpr int kOn = kSlots * 16 / 20;
// Slots whose synapses are in registers; those of the others, kRest, are read from shared memory each time: of most where
// registers cannot be handed on. kMostRest have their place there.
constexpr int kMostRest = kSlots - 2;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr int kRest = 2;
#elif defined(CHRONAXIE_REGISTERS_MOVE)
constexpr int kRest = kMostRest < 8 ? kMostRest : 8;
#else
constexpr int kRest = kMostRest;
#endif
constexpr int kInRegisters = kSlots - kRest;
// Most neurons. alpha and beta of rows 0 and 1, and of rows 2 and 3, of so many lie in two planes; there are two tiles of each group.
constexpr int kTile = 256;
// Slots whose loads are in flight ahead of their gates.
constexpr int kFlight = 2;
// Threads that end sums: each those of a source and row, of which a block has as many at most.
constexpr int kEnders = kThreads / 32 * kOwners * 4;
// What lies between the parts of the two groups, and the warps whose sources an ender's warp has.
constexpr int kOfGroup = kThreads / 32 * kPlane, kServed = 32 / (4 * kOwners);

// What a thread with gates holds.
struct Turns {
  float a[kInRegisters], b[kInRegisters], p[kInRegisters], q[kInRegisters];
  unsigned rest;              // where the others lie in shared memory, kThreads apart
  unsigned from[kSlots / 2];  // byte offsets of targets in a tile, two in one
  float4 sums[kSlots];        // alpha r, beta r, dz, dz v (held.cuh: of r = tanh, halved, if fast)
};

// A load that stays where it is among the others and the gates.
__device__ __forceinline__ float4 load_here(unsigned at) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(at));
  return x;
}
__device__ __forceinline__ float gate_here(float a, float b, float v) {
  if constexpr (!kFast) return gate_of(a, b, v);
  float t;
  asm volatile("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(fmaf(a, v, b)));
  return t;
}

// A slot's part of the sums over targets of dz sigma, and its own sums. x, y: alpha and beta of rows 0 and 1, and of 2 and 3.
__device__ __forceinline__ void adjoint_four(const float4& w, const float4& x, const float4& y, const float4& v,
                                             const float (&t)[4], float (&total)[4], float4& s) {
  const float alpha[4] = {x.x, x.z, y.x, y.z}, beta[4] = {x.y, x.w, y.y, y.w}, of[4] = {v.x, v.y, v.z, v.w};
  float dz[4];
#pragma unroll
  for (int r = 0; r < 4; r++) {
    const float slope = kFast ? fmaf(-t[r], t[r], 1.0f) : fmaf(-t[r], t[r], t[r]);
    dz[r] = fmaf(alpha[r], w.w, beta[r] * w.z) * slope;
  }
#pragma unroll
  for (int r = 0; r < 4; r++) s.x = fmaf(t[r], alpha[r], s.x), s.y = fmaf(t[r], beta[r], s.y);
#pragma unroll
  for (int r = 0; r < 4; r++) {
    s.z += dz[r];
    s.w = fmaf(dz[r], kFast ? of[r] : of[r] - w.y, s.w);
    total[r] += dz[r];
  }
}

// p and q are held times this, so that what is added to the sum over targets needs no product; the sums of dz and dz v alike. It
// is `a`, but for one so small that nothing were left of them, which the sum over targets does not notice.
__device__ __forceinline__ float scale_of(float a) { return copysignf(fmaxf(fabsf(a), 1e-6f), a); }

__device__ __forceinline__ void turn_gates(Turns& held, int used, unsigned tile, const float4& v, float (&total)[4]) {
  total[0] = total[1] = total[2] = total[3] = 0.0f;
  float4 x[kSlots], y[kSlots], w[kSlots];
  float t[kSlots][4];
  auto load = [&](int i) {
    const unsigned at = tile + four_source(held.from, i);
    x[i] = load_here(at), y[i] = load_here(at + kTile * 16);
    w[i] = i < kInRegisters ? make_float4(held.a[i], held.b[i], held.p[i], held.q[i])
                            : load_here(held.rest + (i - kInRegisters) * (kThreads * 16));
  };
  auto gates = [&](int i) {
    t[i][0] = gate_here(w[i].x, w[i].y, v.x), t[i][1] = gate_here(w[i].x, w[i].y, v.y);
    t[i][2] = gate_here(w[i].x, w[i].y, v.z), t[i][3] = gate_here(w[i].x, w[i].y, v.w);
  };
  auto add = [&](int i) { adjoint_four(w[i], x[i], y[i], v, t[i], total, held.sums[i]); };
  load(0), gates(0);
  if (kFlight > 1) load(1);
#pragma unroll
  for (int i = 0; i < kSlots; i++) {
    if (i >= kOn && i >= used) break;
    if (i + kFlight < kSlots) load(i + kFlight);
    if (i + 1 < kSlots) gates(i + 1);
    add(i);
  }
}

// What an ender keeps of a group in shared memory, where registers are short: no other thread reads it. Each is a number of all
// threads in turn, so that banks differ.
enum Keep {
  kPartGroup, kPartStep, kPartLeft, kPartRest,  // the part that is under way (parts.cuh)
  kGradient, kTime,                             // of the next step, on their way
  kOwn, kRated,                                 // of the unfold that is under way: v; alpha c
  kNextOwn, kNextDen,                           // of the one behind it, on their way: v and its denominator
  kInverse,                                     // 1 / the step's time, or 1
  kAlpha, kBeta, kChange,                       // sums over the step of alpha, beta, alpha (v - v')
  kAllAlpha, kAllBeta, kAllChange,              // the same of the launch, the third times K / dt
  kKeeps
};
// What it has of the unfold that is next: dL/dv', v, v', the denominator, 1 / that.
struct Turn {
  float a, own, later, den, inverse_den;
};

// A thread has other registers than those that it was started with, where there is an instruction for it.
__device__ __forceinline__ void have_gate_registers() {
#ifdef CHRONAXIE_REGISTERS_MOVE
  asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
#endif
}
__device__ __forceinline__ void have_ender_registers() {
#ifdef CHRONAXIE_REGISTERS_MOVE
  asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
#endif
}

// Dynamic shared memory, 16 bytes each: the parts of each warp, of each group; kMostRest synapses of each thread with
// gates; behind them what enders keep of each group, 4 kKeeps bytes each.
extern "C" __global__ void __launch_bounds__(kThreads + kEnders, 1)
ltc_turn_adjoint(Schedule schedule, const float* __restrict__ cm,  // [H]
                 const float* __restrict__ states,                                           // [B, T, H]
                 const float* __restrict__ elapsed, i64 elapsed_b, i64 elapsed_t, float dt,  // [B, T] or null: dt
                 const float* __restrict__ grad_out, i64 grad_b, i64 grad_t, i64 grad_m,     // [B, T, M], any strides
                 const float* __restrict__ output_w,                                         // [M] or null
                 const float* grad_end, i64 end_b, i64 end_h,  // [B, H]: dL/d(state after the chunk), any strides
                 float* grad_start,                            // [B, H]: dL/d(state before the chunk)
                 const float* __restrict__ trace_v, const float* __restrict__ trace_den,  // [B / together, steps, K, H, together], trace_b apart
                 i64 trace_b,
                 float2* __restrict__ step_sums,     // [B, steps, H]: sums of alpha and of beta over k
                 float* __restrict__ step_changes,   // [B, steps, H] or null: sums of alpha (v - v') over k
                 float4* __restrict__ gate_sums,     // [clusters, blocks, kSlots, threads], added to unless first
                 float4* __restrict__ neuron_sums,   // [clusters, H]: alpha, beta, alpha (v - v') K / dt; likewise
                 unsigned* carried,                  // [B, H] of kAwaited where a group may be cut
                 int batch, int hidden, int outputs, int unfolds, int total_steps, int t0, int steps,
                 int together,  // batch rows whose unfolds lie side by side, 1 or 4
                 int first_chunk, int constrained) {
// Blocks of compute capability 12 have not so much shared memory.
#if __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200
  extern __shared__ __align__(16) float4 parts[];
  float4* const rest = parts + 2 * kOfGroup;
  // Of each group two.
  __shared__ __align__(16) float4 tiles[2][2][2][kTile];
  __shared__ __align__(16) float of_sources[2][2][kEnders];
  __shared__ unsigned long long barriers[2][2];
  // Of each group one for each of the enders' warps: whose parts are there.
  __shared__ unsigned long long full[2][kEnders / 32];
  __shared__ Part firsts[2];
  // v of the unfold that was read last, or null.
  __shared__ const float* traces[2][kEnders];
  const unsigned rank = cluster_rank(), blocks = cluster_blocks();
  const int threads = blockDim.x - kEnders;
  const bool gates = uniform(threadIdx.x >= kEnders);
  const int all_groups = (batch + 3) / 4;
  const int cluster = blockIdx.x / blocks, clusters = gridDim.x / blocks;
  // A warp without sources has no part in any round (exchange.cuh).
  auto has_sources = [&](int warp) { return warp < threads / 32 && schedule.target[rank * threads + warp * 32] >= 0; };
  auto walks = [&](int warp) { return warp == 0 || has_sources(warp); };
  if (threadIdx.x < 2) firsts[threadIdx.x] = first_part(threadIdx.x, 2, cluster, clusters, all_groups, steps);
  for (int i = threadIdx.x; i < 2 * kOfGroup; i += blockDim.x) parts[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (threadIdx.x == 0) {
    int givers = 1;
    for (int w = 0; w < kEnders / 32; w++) {
      int arrivals = 0, sources = 0;
      for (int i = 0; i < kServed; i++) arrivals += walks(w * kServed + i), sources += has_sources(w * kServed + i);
      givers += sources > 0;
      for (int q = 0; q < 2; q++) barrier_init(&full[q][w], max(arrivals, 1));
    }
    for (int i = 0; i < 4; i++) barrier_init(&barriers[0][0] + i, givers);
    barrier_init_fence();
    for (int i = 0; i < 4; i++) barrier_expect(&barriers[0][0] + i, hidden * 32);
  }
  __syncthreads();

  if (gates) {
    have_gate_registers();
    const int thread = opaque(threadIdx.x) - kEnders, warp = thread / 32, lane = thread % 32;
    Turns held;
    held.rest = shared_address(rest + thread);
    auto saved_now = [&] {
      return gate_sums + ((i64)opaque(blockIdx.x) * kSlots * (blockDim.x - kEnders) + (opaque(threadIdx.x) - kEnders));
    };
    {
      const float4* folded = schedule.folded + (rank * kSlots * threads + thread);
      const unsigned* from = schedule.from + (rank * (kSlots / 2) * threads + thread);
      const float4* saved = saved_now();
#pragma unroll
      for (int i = 0; i < kSlots; i++) {
        float4 x = folded[i * threads];
        const float scale = scale_of(x.x);
        x.z *= scale, x.w *= scale;
        if (i < kInRegisters)
          held.a[i] = x.x, held.b[i] = x.y, held.p[i] = x.z, held.q[i] = x.w;
        else
          rest[(i - kInRegisters) * kThreads + thread] = x;
        held.sums[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (!first_chunk) held.sums[i] = saved[(i64)i * threads];
        held.sums[i].z *= scale, held.sums[i].w *= scale;
      }
#pragma unroll
      for (int i = 0; i < kSlots / 2; i++) held.from[i] = from[i * threads] * 16u;
    }
    // Where this lane's part goes; its lowest bits say whose of the four.
    const int place = schedule.target[(blocks + rank) * threads + thread];
    float4* const part = parts + (warp * kPlane + place);
    const float4* const own = (const float4*)&of_sources[0][0][0] + (warp * kOwners + (place & (kOwners - 1)));
    const unsigned mine = opaque(shared_address(barriers)), here = opaque(shared_address(full) + warp / kServed * 8);
    const int used = uniform(schedule.warps[rank * (threads / 32) + warp].y);
    const bool has_part = walks(warp);
    const unsigned first_tile = shared_address(tiles);
    cluster_sync();
    auto rounds_of = [&](int q) { return has_part ? uniform((firsts[q].left + firsts[q].rest) * unfolds) : 0; };
    const int rounds0 = rounds_of(0), rounds1 = rounds_of(1), end = 2 * max(rounds0, rounds1);
    // Groups in turn, and of each its two tiles.
#pragma unroll 1
    for (int at = 0; at < end; at++) {
      const int q = at & 1, half = at >> 1 & 1, tile_of = q * 2 + half;
      if (at >> 1 >= (q ? rounds1 : rounds0)) continue;
      barrier_wait_at(mine + tile_of * 8, at >> 2 & 1);
      if (thread == 0) barrier_expect_at(mine + tile_of * 8, opaque(hidden) * 32);
      float total[4];
      turn_gates(held, used, first_tile + tile_of * (kTile * 32), own[tile_of * (kEnders / 4)], total);
      // Those of the unfold before were read, or this one's alpha and beta were not here.
      part[q * kOfGroup] = make_float4(total[0], total[1], total[2], total[3]);
      __syncwarp();
      if (lane == 0) barrier_arrive_at(here + q * (kEnders / 32 * 8));
    }
    float4* const saved = saved_now();
#pragma unroll
    for (int i = 0; i < kSlots; i++) {
      const float scale = scale_of(i < kInRegisters ? held.a[i] : rest[(i - kInRegisters) * kThreads + (opaque(threadIdx.x) - kEnders)].x);
      const float4 x = held.sums[i];
      saved[(i64)i * (blockDim.x - kEnders)] = make_float4(x.x, x.y, __fdividef(x.z, scale), __fdividef(x.w, scale));
    }
    cluster_sync();
    return;
  }

  have_ender_registers();
  // The warp whose source this thread has, and which one; its row.
  const int thread = opaque(threadIdx.x), warp = thread / 32, row = thread & 3;
  const int served = thread / (4 * kOwners);
  const int owner = served < threads / 32 ? schedule.target[rank * threads + served * 32 + thread / 4 % kOwners * 8] : -1;
  const bool there = owner >= 0;
  const int i = there ? owner & 0xffff : 0;
  const int most = uniform(there ? schedule.warps[rank * (threads / 32) + served].x : 0);
  const float* const of_source = (const float*)(parts + (served * kPlane + thread / 4 % kOwners)) + row;
  const float rate = there ? positive(cm[i], constrained) * (float)unfolds / (elapsed ? 1.0f : dt) : 0.0f;
  // Without steps the gradient passes through.
#pragma unroll 1
  for (int group = cluster; steps == 0 && group < all_groups; group += clusters) {
    const i64 b = (i64)group * 4 + row;
    if (there && b < batch) grad_start[b * hidden + i] = grad_end[b * end_b + (i64)i * end_h];
  }
  // Two rows' threads send both to every second block.
  const unsigned base = shared_address(tiles) + ((row >> 1) * kTile + (there ? owner >> 16 : 0)) * 16;
  unsigned to[4];
#pragma unroll
  for (int n = 0; n < 4; n++) {
    const unsigned block = n * 2 + (row & 1);
    to[n] = opaque(in_block(base, block < blocks ? block : 0));
  }
  const unsigned to_barriers = opaque(shared_address(barriers) - base);
  const int sends = opaque(there ? ((int)blocks - (row & 1) + 1) / 2 : 0);
  const unsigned mine = opaque(shared_address(barriers)), here = opaque(shared_address(full) + warp * 8);
  cluster_sync();

  float* const kept = (float*)(rest + kMostRest * kThreads) + thread;
  auto keep = [&](int q, Keep which) -> float& { return kept[(q * kKeeps + which) * kEnders]; };
  auto put_part = [&](int q, const Part& p) {
    keep(q, kPartGroup) = __int_as_float(p.group), keep(q, kPartStep) = __int_as_float(p.step);
    keep(q, kPartLeft) = __int_as_float(p.left), keep(q, kPartRest) = __int_as_float(p.rest);
  };
  auto part_of = [&](int q) -> Part {
    return {__float_as_int(keep(q, kPartGroup)), __float_as_int(keep(q, kPartStep)), __float_as_int(keep(q, kPartLeft)), __float_as_int(keep(q, kPartRest))};
  };
  auto in_batch = [&](const Part& p, i64& b) {
    b = (i64)p.group * 4 + row;
    return there && b < batch;
  };
  // dL/d out and the time of a step are on their way.
  auto look_at_step = [&](int q, const Part& p, int step) {
    i64 b;
    keep(q, kGradient) = 0.0f, keep(q, kTime) = 1.0f;
    if (!in_batch(p, b)) return;
    const int t = t0 + steps - 1 - step;
    if (i < outputs) copy_ahead<4>(&keep(q, kGradient), grad_out + (b * grad_b + t * grad_t + (i64)i * grad_m));
    if (elapsed) copy_ahead<4>(&keep(q, kTime), elapsed + (b * elapsed_b + t * elapsed_t));
  };
  // A step begins, whose gradient and time are on their way, and those of the next one are then.
  auto begin_step = [&](int q, Turn& e, const Part& p) {
    copies_here();
    const float g = keep(q, kGradient);
    e.a += i < outputs && output_w ? g * output_w[i] : g;
    keep(q, kInverse) = elapsed ? 1.0f / keep(q, kTime) : 1.0f;
    keep(q, kAlpha) = keep(q, kBeta) = keep(q, kChange) = 0.0f;
    if (p.left > 1) look_at_step(q, p, p.step + 1);
  };
  // A part begins.
  auto begin = [&](int q, Turn& e, const Part& p) {
    i64 b;
    const float* trace = nullptr;
    e = {0.0f, 0.0f, 0.0f, 1.0f, 1.0f};
    keep(q, kNextOwn) = 0.0f, keep(q, kNextDen) = 1.0f;
    look_at_step(q, p, p.step);
    if (in_batch(p, b)) {
      const int r = steps - 1 - p.step;
      e.later = states[(b * total_steps + t0 + r) * hidden + i];
      trace = trace_v + (((b >> together / 2) * trace_b + ((i64)r * unfolds + unfolds - 1) * hidden + i) * together +
                         (b & (together - 1)));
      e.own = *trace, e.den = trace[trace_den - trace_v];
      if (p.step == 0) {
        e.a = grad_end[b * end_b + (i64)i * end_h];
      } else {
        e.a = await_state(carried + (b * hidden + i));
        // For the next launch what was carried is unknown again.
        carried[b * hidden + i] = kAwaited;
      }
    }
    traces[q][thread] = trace;
    e.inverse_den = reciprocal(e.den);
    begin_step(q, e, p);
  };
  // alpha and beta of the next unfold go to all blocks, and v to this one's warps with gates. `last`: of a part.
  auto give = [&](int q, int half, const Turn& e, bool last) {
    const int tile_of = q * 2 + half;
    const float alpha = quotient(e.a, e.den, e.inverse_den), beta = -alpha * e.later;
    const float other_alpha = __shfl_xor_sync(~0u, alpha, 1), other_beta = __shfl_xor_sync(~0u, beta, 1);
    const bool odd = row & 1;
    const float pair[4] = {odd ? other_alpha : alpha, odd ? other_beta : beta, odd ? alpha : other_alpha, odd ? beta : other_beta};
#pragma unroll
    for (int n = 0; n < 4; n++)
      if (n < sends) store_async(to[n] + tile_of * (kTile * 32), pair, to[n] + to_barriers + tile_of * 8);
    of_sources[q][half][thread] = e.own;
    __syncwarp();
    if (thread % 32 == 0) barrier_arrive_at(mine + tile_of * 8);
    keep(q, kOwn) = e.own, keep(q, kRated) = alpha * keep(q, kInverse) * rate;
    keep(q, kAlpha) += alpha, keep(q, kBeta) += beta, keep(q, kChange) += fmaf(alpha, e.own, beta);
    const float* trace = traces[q][thread];
    if (trace && !last) {
      trace -= hidden * together;
      copy_ahead<4>(&keep(q, kNextOwn), trace);
      copy_ahead<4>(&keep(q, kNextDen), trace + (trace_den - trace_v));
      traces[q][thread] = trace;
    }
    commit_copies();
  };
  // All of a step is known; how many steps of the part follow.
  auto end_step = [&](int q, Turn& e) {
    i64 b;
    Part p = part_of(q);
    const float per_dt = (float)unfolds * (elapsed ? keep(q, kInverse) : 1.0f / dt), change = keep(q, kChange);
    const float alpha = keep(q, kAlpha), beta = keep(q, kBeta);
    keep(q, kAllAlpha) += alpha, keep(q, kAllBeta) += beta, keep(q, kAllChange) = fmaf(change, per_dt, keep(q, kAllChange));
    const bool ends = p.left == 1;
    if (in_batch(p, b)) {
      const i64 at = (b * steps + (steps - 1 - p.step)) * hidden + i;
      step_sums[at] = make_float2(alpha, beta);
      if (step_changes) step_changes[at] = change;
      if (ends) {
        if (p.step + 1 == steps)
          grad_start[b * hidden + i] = e.a;
        else
          ((volatile unsigned*)carried)[b * hidden + i] = __float_as_uint(e.a);
      }
    }
    p.step++, p.left--;
    if (ends && p.rest > 0) p = next_part(p, steps);
    put_part(q, p);
    if (!ends)
      begin_step(q, e, p);
    else if (p.left > 0)
      begin(q, e, p);
    return p.left;
  };
  // An ender's warp without sources has no part either.
  const bool ender_walks = __any_sync(~0u, there);
  // Steps that are left of a part.
  int left0 = 0, left1 = 0;
#pragma unroll 1
  for (int q = 0; q < 2; q++) {
    Part p = firsts[q];
    if (!ender_walks) p.left = 0;
    put_part(q, p);
    keep(q, kAllAlpha) = keep(q, kAllBeta) = keep(q, kAllChange) = 0.0f;
    Turn e;
    if (p.left > 0) begin(q, e, p), give(q, 0, e, false);
    (q ? left1 : left0) = p.left;
  }
  // Groups in turn, and of each its unfolds.
#pragma unroll 1
  for (int at = 0, k = 0; left0 > 0 || left1 > 0; at++) {
    const int q = at & 1, half = at >> 1 & 1;
    if ((q ? left1 : left0) > 0) {
      const bool last = k + 1 == unfolds;
      // What is known ahead of the sum; the other group's copies were the last.
      if (left0 > 0 && left1 > 0)
        earlier_copies_here();
      else
        copies_here();
      Turn e = {0.0f, keep(q, kNextOwn), keep(q, kOwn), keep(q, kNextDen), 0.0f};
      e.inverse_den = reciprocal(e.den);
      const float rated = keep(q, kRated);
      barrier_wait_at(here + q * (kEnders / 32 * 8), half);
      const float sum = parts_sum<kTogether, 4 * kOwners>(of_source + q * (kOfGroup * 4), most);
      // Held.a is sigma / 2 and dz twice itself, or -sigma log2(e).
      e.a = rated + (kFast ? sum : sum * -0.69314718055994531f);
      int left = q ? left1 : left0;
      if (last) {
        left = end_step(q, e);
        (q ? left1 : left0) = left;
      }
      if (left > 0) give(q, 1 - half, e, k + 2 == unfolds && left == 1);
    }
    if (q && ++k == unfolds) k = 0;
  }
  float all_alpha = keep(0, kAllAlpha) + keep(1, kAllAlpha);
  float all_beta = keep(0, kAllBeta) + keep(1, kAllBeta);
  float all_change = keep(0, kAllChange) + keep(1, kAllChange);
#pragma unroll
  for (int o = 1; o < 4; o *= 2) {
    all_alpha += __shfl_xor_sync(~0u, all_alpha, o);
    all_beta += __shfl_xor_sync(~0u, all_beta, o);
    all_change += __shfl_xor_sync(~0u, all_change, o);
  }
  if (there && row == 0) {
    float4* to_neuron = neuron_sums + ((i64)cluster * hidden + i);
    const float4 s = first_chunk ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : *to_neuron;
    *to_neuron = make_float4(s.x + all_alpha, s.y + all_beta, s.z + all_change, 0.0f);
  }
  cluster_sync();
#endif
}
