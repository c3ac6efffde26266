// LTC, backward through the recurrence, of many rows: what adjoint.cu does (its equations and what it leaves behind), four
// batch rows side by side in each half of a block (quad.cu): while alpha and beta of one travel, the other has gates, and each
// scheduler has four warps instead of two. A thread then has 128 registers: the sums of its first slots take half of them, and
// the synapses themselves, and the sums of the last slots, which few warps use, lie in shared memory.
//
// Work: four gates are 3 loads of 16 bytes and 4 (11 + 1 special) operations: 12 wavefronts of shared memory and 48 issue
// slots a warp, which bind alike (together 16.8 clocks of a multiprocessor, measured: 3.6 ms). Floor (H200, 1.98 GHz, 120 multiprocessors): 2.6 ms of wavefronts, 2.6 ms of issue slots for
// B128 T256 H256 at density 0.5.
// Clocks of an unfold of eight rows (H200, fast; cases as in quad.cu) until lists were dealt evenly: 6600 and 8100, adjoint.cu 6660 and
// 8480; of 300 wavefronts a warp, unfold and four rows 204 were synapses and alpha and beta, 40 banks met twice, 20 the copies of v and
// the denominator. Even lists, fewer banks met twice (schedule/four.rs), unfolds of four rows side by side in memory (`together`)
// and the first slot behind kOn read ahead of the wait took the whole backward pass of B128 T256 D64 H256 from 11.56 to
// 10.36 ms (H100, `profile`; each alone was not timed). Reciprocals ahead of the sum: 10.38 to 10.30.
// Bytes: as adjoint.cu, and 16 a synapse and cluster for twice as many clusters.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = true;
#include "quad.cuh"

// Slots whose sums are in registers, which every thread computes, in use or not; and how many there may be behind them.
constexpr int kOn = kSlots * (kFast && !kOldCompiler && __CUDA_ARCH__ < 1000 ? 15 : 14) / 20, kOff = kSlots - kOn;

// Most neurons. alpha and beta of rows 0 and 1, and of rows 2 and 3, of so many lie in two planes; there are two tiles of them.
constexpr int kTile = 256;
// Nanoseconds of half an unfold of one half of a block.
constexpr unsigned kHalfUnfold = 1100;

// The same value, of which nothing is computed ahead of a loop: registers are short.
__device__ __forceinline__ i64 opaque64(i64 x) {
  i64 r;
  asm volatile("mov.b64 %0, %1;" : "=l"(r) : "l"(x));
  return r;
}

struct FourSums {
  float4 of[kOn];  // alpha r, beta r, dz, dz v (held.cuh: of r = tanh, halved, if fast)
};

// A slot's part of the sums over targets of dz sigma, and its own sums.
__device__ __forceinline__ void adjoint_four(const float4& w, const char* tile, unsigned from, const float (&v)[4],
                                             float (&total)[4], float4& s) {
  const float4 x = *(const float4*)(tile + from), y = *(const float4*)(tile + kTile * 16 + from);
  const float alpha[4] = {x.x, x.z, y.x, y.z}, beta[4] = {x.y, x.w, y.y, y.w};
  float t[4];
#pragma unroll
  for (int r = 0; r < 4; r++) t[r] = gate_of(w.x, w.y, v[r]);
#pragma unroll
  for (int r = 0; r < 4; r++) {
    const float rho = fmaf(alpha[r], w.w, beta[r] * w.z);
    const float dz = rho * (kFast ? fmaf(-t[r], t[r], 1.0f) : fmaf(-t[r], t[r], t[r]));
    s.x = fmaf(alpha[r], t[r], s.x);
    s.y = fmaf(beta[r], t[r], s.y);
    s.z += dz;
    s.w = fmaf(dz, kFast ? v[r] : v[r] - w.y, s.w);
    total[r] = fmaf(dz, w.x, total[r]);
  }
}

// What a thread keeps of its source and row in shared memory, where registers are short: no other thread reads it. Each is a
// number of all threads in turn, so that banks differ.
enum Keep {
  kAlpha, kBeta, kChange,           // sums over the step that is under way of alpha, beta, alpha (v - v')
  kAllAlpha, kAllBeta, kAllChange,  // the same of the launch, the third times K / dt
  kInverse, kRate,                  // 1 / the step's time, or 1; c, or c dt where times are given
  kV,                               // v of unfolds of even number, and of odd number
  kDen = kV + 2,                    // their denominators
  kGradient = kDen + 2, kTime,      // of the next step: dL/d out and its time
  kTrace,                           // two numbers each: the address of the unfold that is read next, or null;
  kGradientAt = kTrace + 2,         // of that step's dL/d out; of its time
  kTimeAt = kGradientAt + 2,
  kKeeps = kTimeAt + 2
};

// Where the slots of a warp beyond the first kOn lie in dynamic shared memory: from where to where, in elements of 16 bytes; how
// far behind them are their sums; and by which element to begin so that the same index finds their sources.
struct alignas(16) Rest {
  int first, end, sums, from;
};

// Dynamic shared memory, 16 bytes each: kOn slots of each thread of a half; kKeeps / 4 of each thread of the block; for each warp of a
// half and slot beyond those 32; twice as many sums of these; and a quarter as many for their sources. Behind what threads keep, the
// parts of each warp.
extern "C" __global__ void __launch_bounds__(2 * kThreads, 1)
ltc_quad_adjoint(Schedule schedule, const float* __restrict__ cm,  // [H]
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
#if __CUDA_ARCH__ >= 900
  __shared__ __align__(16) float4 tiles[2][2][2][kTile];
  __shared__ unsigned long long barriers[2][2];
  extern __shared__ __align__(16) float4 dynamic[];
  const unsigned rank = cluster_rank(), blocks = cluster_blocks();
  const Half half = half_of_block();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = half.threads / 32, mine_of_half = half.thread / 32;
  const int2* shapes = schedule.warps + rank * warps;
  const int most_parts = (uniform(shapes[mine_of_half].x) + 1) / 2, used = uniform(shapes[mine_of_half].y);
  const int sub = lane & 7;
  const int owner = schedule.target[rank * half.threads + half.thread];
  const bool there = owner >= 0;
  const int i = there ? owner & 0xffff : 0;
  const unsigned place = there ? owner >> 16 : 0;
  __shared__ Part parts[2 * kThreads / 32];
  __shared__ Rest rests[2 * kThreads / 32];
  float4* const on = dynamic + half.thread;
  // Behind what threads keep and the parts lie the other slots of the half's warps; behind them their sums, of both halves; and
  // their sources.
  float* const keeps = (float*)(dynamic + kOn * kThreads) + threadIdx.x;
  // Where this lane's part of its source's sums goes, in bytes; its lowest bits say whose of the four.
  float4* const first_parts = dynamic + kOn * kThreads + kKeeps / 4 * 2 * kThreads;
  const unsigned part = opaque((warp * kPlane + schedule.target[(blocks + rank) * half.threads + half.thread]) * 16);
  for (int p = lane; p < kPlane; p += 32) first_parts[warp * kPlane + p] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (lane == 0) {
    constexpr int kFrom = kOn * kThreads + kKeeps / 4 * 2 * kThreads + 2 * kThreads / 32 * kPlane;
    Rest rest = {kFrom, 0, 0, 0};
    int all = 0;
    for (int w = 0; w < warps; w++) {
      const int n = 32 * max(shapes[w].y - kOn, 0);
      if (w < mine_of_half) rest.first += n;
      all += n;
    }
    rest.end = rest.first + 32 * max(used - kOn, 0), rest.sums = all * (1 + half.index);
    // Sources are found by the same index as synapses.
    rest.from = kFrom + 3 * all - kFrom / 4;
    rests[warp] = rest;
  }
  __syncwarp();
  // Where its sums are kept from chunk to chunk; not known all the while.
  auto saved_now = [&] {
    const i64 slot = blockIdx.x / cluster_blocks() * 2 + half.index;
    return gate_sums + ((slot * cluster_blocks() + cluster_rank()) * kSlots * half.threads + half.thread);
  };
  auto kept_place = [&](int which) { return keeps + which * (2 * kThreads); };
  auto keep = [&](int which) -> volatile float& { return *(volatile float*)kept_place(which); };
  auto address = [&](int which) -> const float* volatile& {
    return ((const float* volatile*)((float*)(dynamic + kOn * kThreads) + which * (2 * kThreads)))[threadIdx.x];
  };
  {
    // One by one: registers are short.
    float4* const saved = saved_now();
    const float4* folded = schedule.folded + (rank * kSlots * half.threads + half.thread);
#pragma unroll 1
    for (int s = 0; half.index == 0 && s < kOn; s++) on[s * kThreads] = folded[s * half.threads];
    const Rest rest = rests[warp];
#pragma unroll 1
    for (int at = rest.first + lane, s = kOn; at < rest.end; at += 32, s++) {
      if (half.index == 0) dynamic[at] = folded[s * half.threads];
      dynamic[rest.sums + at] = first_chunk ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : saved[(i64)s * half.threads];
      const unsigned pair = schedule.from[(rank * (kSlots / 2) + s / 2) * half.threads + half.thread];
      if (half.index == 0) ((unsigned*)(dynamic + rest.from))[at] = (s % 2 ? pair >> 16 : pair & 0xffff) * 16u;
    }
    keep(kAllAlpha) = keep(kAllBeta) = keep(kAllChange) = 0.0f;
    keep(kRate) = there ? positive(cm[i], constrained) * (float)unfolds / (elapsed ? 1.0f : dt) : 0.0f;
  }
  // Even lanes have rows 0 and 1, odd ones rows 2 and 3: of eight lanes each sends its two rows to two blocks.
  const unsigned first = (lane & 7) >> 1;
  const unsigned here = opaque(shared_address(tiles[half.index]) + ((lane & 1) * kTile + place) * 16);
  const bool sends = opaque(there && first < blocks && sub < 8);
  const unsigned mine = opaque(shared_address(barriers[half.index])), bytes = hidden * 32;
  four_barriers(barriers[half.index], bytes, half);
  // A warp without sources has no part in any round (exchange.cuh).
  const bool walks = half.thread < 32 || __any_sync(~0u, there);

  const int all_groups = (batch + 3) / 4;
  auto row_of_group = [&](int group) { return (i64)group * 4 + four_row(opaque(threadIdx.x)); };
  auto owner_now = [&] {
    return *(const volatile int*)(schedule.target + (cluster_rank() * half.threads + opaque(threadIdx.x) - half.index * half.threads));
  };
  auto writes = [&] { return (opaque(threadIdx.x) & 7) < 4; };
  // Without steps the gradient passes through.
#pragma unroll 1
  for (int group = half.slot(blocks); steps == 0 && group < all_groups; group += half.slots(blocks)) {
    const i64 b = row_of_group(group);
    if (there && writes() && b < batch) grad_start[b * hidden + i] = grad_end[b * end_b + (i64)i * end_h];
  }
  // dL/d out and the time of a step are on their way, and the step before it is the next. Rows beyond the batch have neither
  // gradients nor states.
  auto look_at_step = [&] {
    keep(kGradient) = 0.0f, keep(kTime) = 1.0f;
    const float* at = address(kGradientAt);
    if (at) copy_ahead<4>(kept_place(kGradient), at), address(kGradientAt) = at - opaque64(grad_t);
    if (!elapsed) return;
    at = address(kTimeAt);
    if (at) copy_ahead<4>(kept_place(kTime), at), address(kTimeAt) = at - opaque64(elapsed_t);
  };
  auto gradient = [&](int owner) {
    const int i = owner & 0xffff;
    const float g = keep(kGradient);
    return owner >= 0 && i < outputs && output_w ? g * output_w[i] : g;
  };
  if (lane == 0) {
    const Part p = first_part(0, 1, half.slot(blocks), half.slots(blocks), all_groups, steps);
    const Part none = {0, 0, 0, 0};
    parts[warp] = walks ? p : none;
  }
  __syncwarp();
  unsigned from[(kOn + 1) / 2];
#pragma unroll
  for (int s = 0; s < (kOn + 1) / 2; s++)
    from[s] = schedule.from[(rank * (kSlots / 2) + s) * half.threads + half.thread] * 16u +
              half.index * (4 * kTile * 16) * 0x10001u;
  FourSums sums;
  {
    const float4* before = saved_now();
#pragma unroll
    for (int s = 0; s < kOn; s++) {
      sums.of[s] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (!first_chunk) sums.of[s] = *before;
      before += opaque64(half.threads);
    }
  }

  stand_apart(half, kHalfUnfold);
  unsigned n = 0;
  // v, v' and the denominator of the unfold that is next, and 1 / that: known ahead of what they meet.
  float own = 0.0f, later = 0.0f, den = 1.0f, inverse = 1.0f;
  auto look_at_unfold = [&](unsigned n) {
    copies_here();
    own = keep(kV + (n & 1)), later = keep(kV + (n & 1 ^ 1)), den = keep(kDen + (n & 1)), inverse = reciprocal(den);
  };
#pragma unroll 1
  while (parts[opaque(threadIdx.x) / 32u].left > 0) {
    // dL/dv' of the first unfold; and v'.
    float a = 0.0f;
    {
      const Part p = parts[opaque(threadIdx.x) / 32u];
      const i64 b = row_of_group(p.group);
      const int owner = owner_now(), i = owner & 0xffff, r = steps - 1 - p.step;
      const bool in = owner >= 0 && b < batch;
      const float *trace = nullptr, *grad = nullptr, *time = nullptr;
      keep(kV) = keep(kV + 1) = 0.0f, keep(kDen) = keep(kDen + 1) = 1.0f;
      const int now = n & 1;
      if (in) {
        a = p.step == 0 ? grad_end[b * end_b + (i64)i * end_h] : await_state(carried + (b * hidden + i));
        keep(kV + (now ^ 1)) = states[(b * total_steps + t0 + r) * hidden + i];
        const int side = opaque(together);
        trace = trace_v + (((b >> side / 2) * trace_b + ((i64)r * unfolds + unfolds - 1) * hidden + i) * side + (b & (side - 1)));
        copy_ahead<4>(kept_place(kV + now), trace);
        copy_ahead<4>(kept_place(kDen + now), trace + opaque64(trace_den - trace_v));
        if (i < outputs) grad = grad_out + (b * grad_b + (t0 + r) * grad_t + (i64)i * grad_m);
        if (elapsed) time = elapsed + (b * elapsed_b + (t0 + r) * elapsed_t);
      }
      address(kTrace) = trace, address(kGradientAt) = grad, address(kTimeAt) = time;
      // For the next launch what was carried is unknown again.
      __syncwarp();
      if (p.step > 0 && in && writes()) carried[b * hidden + i] = kAwaited;
      look_at_step();
      look_at_unfold(n);
      a += gradient(owner);
    }
#pragma unroll 1
    while (true) {
      bool ends;
      {
        keep(kAlpha) = keep(kBeta) = keep(kChange) = 0.0f;
        keep(kInverse) = elapsed ? 1.0f / keep(kTime) : 1.0f;
        ends = uniform(parts[opaque(threadIdx.x) / 32u].left == 1);
        if (!ends) look_at_step();
      }
#pragma unroll 1
      for (int k = unfolds - 1; k >= 0; k--, n++) {
        const int tile_of = n & 1;
        const float alpha = quotient(a, den, inverse), beta = -alpha * later;
        {
          const float other_alpha = __shfl_xor_sync(~0u, alpha, 2), other_beta = __shfl_xor_sync(~0u, beta, 2);
          const bool upper = lane & 2;
          const float pair[4] = {upper ? other_alpha : alpha, upper ? other_beta : beta, upper ? alpha : other_alpha,
                                 upper ? beta : other_beta};
          const unsigned to = here + tile_of * (kTile * 32), done = mine + tile_of * 8, block = (lane & 7) >> 1;
#pragma unroll 1
          for (unsigned b = sends ? block : 8; b < cluster_blocks(); b += 4) store_async(in_block(to, b), pair, in_block(done, b));
        }
        const float* trace = address(kTrace);
        if (trace && !(ends && k == 0)) {
          trace -= opaque(hidden) * opaque(together);
          address(kTrace) = trace;
          copy_ahead<4>(kept_place(kV + (tile_of ^ 1)), trace);
          copy_ahead<4>(kept_place(kDen + (tile_of ^ 1)), trace + opaque64(trace_den - trace_v));
        }
        keep(kAlpha) = keep(kAlpha) + alpha, keep(kBeta) = keep(kBeta) + beta;
        keep(kChange) = keep(kChange) + fmaf(alpha, own, beta);
        float v[4], total[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        // Of the source whose synapses this lane has.
#pragma unroll
        for (int r = 0; r < 4; r++) v[r] = __shfl_sync(~0u, own, (part / 16 & (kOwners - 1)) * 8 + lane_of_row(r));
        // The first of the other slots is here when alpha and beta are.
        const Rest rest = rests[opaque(threadIdx.x) / 32u];
        int at = rest.first + (opaque(threadIdx.x) & 31);
        float4 w = make_float4(0.0f, 0.0f, 0.0f, 0.0f), so_far = w;
        unsigned source = 0;
        auto look_at_slot = [&] { w = dynamic[at], so_far = dynamic[rest.sums + at], source = ((const unsigned*)(dynamic + rest.from))[at]; };
        if (at < rest.end) look_at_slot();
        four_take(mine, tile_of, n >> 1 & 1, bytes, half);
        const char* tile = (const char*)tiles[0][tile_of];
#pragma unroll 1
        while (at < rest.end) {
          adjoint_four(w, tile, source + half.index * (4 * kTile * 16), v, total, so_far);
          dynamic[rest.sums + at] = so_far;
          at += 32;
          if (at < rest.end) look_at_slot();
        }
#pragma unroll
        for (int s = 0; s < kOn; s++) adjoint_four(on[s * kThreads], tile, four_source(from, s), v, total, sums.of[s]);
        look_at_unfold(n + 1);
        __syncwarp();
        *(float4*)((char*)first_parts + part) = make_float4(total[0], total[1], total[2], total[3]);
        __syncwarp();
        // It adds every other one.
        const float* const parts = parts_of_row(parts_of_warp(first_parts, 1)) + (opaque(threadIdx.x) >> 2 & 1) * (4 * kOwners);
        float sum = parts_sum<kTogether / 2, 8 * kOwners>(parts, most_parts);
        sum += __shfl_xor_sync(~0u, sum, 4);
        // Held.a is sigma / 2 and dz twice itself, or -sigma log2(e).
        a = fmaf(alpha * keep(kInverse), keep(kRate), kFast ? sum : sum * -0.69314718055994531f);
      }
      // The step ends.
      Part p = parts[opaque(threadIdx.x) / 32u];
      const i64 b = row_of_group(p.group);
      const int owner = owner_now(), i = owner & 0xffff;
      const float per_dt = (float)unfolds * (elapsed ? keep(kInverse) : 1.0f / __int_as_float(opaque(__float_as_int(dt)))), change = keep(kChange);
      keep(kAllAlpha) = keep(kAllAlpha) + keep(kAlpha), keep(kAllBeta) = keep(kAllBeta) + keep(kBeta);
      keep(kAllChange) = fmaf(change, per_dt, keep(kAllChange));
      if (owner >= 0 && writes() && b < batch) {
        const i64 at = (b * steps + (steps - 1 - p.step)) * opaque(hidden) + i;
        step_sums[at] = make_float2(keep(kAlpha), keep(kBeta));
        if (step_changes) step_changes[at] = change;
        if (ends) {
          if (p.step + 1 == steps)
            grad_start[b * hidden + i] = a;
          else
            ((volatile unsigned*)carried)[b * hidden + i] = __float_as_uint(a);
        }
      }
      p.step++, p.left--;
      if (ends && p.rest > 0) p = next_part(p, steps);
      __syncwarp();
      if ((opaque(threadIdx.x) & 31) == 0) parts[opaque(threadIdx.x) / 32u] = p;
      __syncwarp();
      if (ends) break;
      copies_here();
      a += gradient(owner);
    }
  }
  float4* after = saved_now();
#pragma unroll
  for (int s = 0; s < kOn; s++) *after = sums.of[s], after += opaque64(half.threads);
#pragma unroll 1
  for (int s = 0, at = rests[warp].first + lane; s < kOff; s++, at += 32, after += half.threads)
    *after = at < rests[warp].end ? dynamic[rests[warp].sums + at] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  float total_alpha = keep(kAllAlpha), total_beta = keep(kAllBeta), total_change = keep(kAllChange);
#pragma unroll
  for (int o = 1; o < 4; o *= 2) {
    total_alpha += __shfl_xor_sync(~0u, total_alpha, o);
    total_beta += __shfl_xor_sync(~0u, total_beta, o);
    total_change += __shfl_xor_sync(~0u, total_change, o);
  }
  const int last_owner = owner_now();
  if (last_owner >= 0 && (opaque(lane) & 7) == 0) {
    float4* to_neuron = neuron_sums + ((i64)(blockIdx.x / cluster_blocks() * 2 + half.index) * hidden + (last_owner & 0xffff));
    const float4 s = first_chunk ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : *to_neuron;
    *to_neuron = make_float4(s.x + total_alpha, s.y + total_beta, s.z + total_change, 0.0f);
  }
  cluster_sync();
#endif
}
