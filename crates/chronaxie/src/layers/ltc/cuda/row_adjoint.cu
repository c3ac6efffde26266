// LTC, backward through the recurrence, where one block, or a cluster of small ones, holds every recurrent synapse and walks one
// batch row: the shortest chain of an unfold (the equations: adjoint.cu). For problems with few rows, whose time is T K such
// chains. The sums of each synapse are left to unfold_sums.cu, which makes them of all unfolds in parallel; alpha takes the
// place of the denominator in the trace for it.
//
// What an unfold waits for is alpha alone, one number a neuron: the states are known ahead, and with them
//   sigma_ij dz_ij = alpha_j u_ij,   u_ij = sigma_ij (q_ij - v'_j p_ij) r_ij (1 - r_ij)
// so that gates and u are made while alpha travels. When it is there, an unfold is: its loads, in flight together; one operation
// a synapse; sums over the lanes of a source; a product; store.
//
// A thread holds synapses of one source. Unfolds go in pairs, as in row.cuh. A warp of its own copies states and denominators of
// all neurons to shared memory an unfold ahead: what an unfold needs is then one wait away, and no address is made.
//
// Floor (H200, 1.98 GHz): the chain of row.cu with half of its sums and a division less, some 450 clocks in a cluster; 9 issue slots
// a synapse, S / 32 * 9 / 4 clocks of a multiprocessor (H 128 at density 0.5 in a cluster of 4: 144).
// Tried: the sums too, in this kernel's registers, 14 issue slots a synapse: 1790 clocks an unfold of H 128 in a cluster of 3 with 11
// warps of up to 12 slots, as long as adjoint.cu; a warp, whose instructions go in order, takes 1100 to 1400 for 8 to 10 slots.
// Bytes: states and denominators once, states once more a block, and alpha written, all from and to L2.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = false;
#include "cluster.cuh"
#include "row.cuh"

// Slots for which there is code of their own: these, and all even numbers from kFewest on.
constexpr int kFewest = kSlots / 2 / 2 * 2;
// Most neurons, whose values lie in their places of a tile.
constexpr int kPlaces = 256;
// What an unfold needs, of even and of odd ones: v' and v of all neurons, and the denominators of the unfold before.
struct Stages {
  float of[2][3][kPlaces];
  unsigned long long full[2], empty[2];  // complete when it is there, and when all warps have read it
};

// All threads that walk in this block have come here.
__device__ __forceinline__ void meet(int threads) { asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory"); }

// Blocks that walk together.
__device__ __forceinline__ unsigned cluster_size() { return kCluster ? cluster_blocks() : 1; }

struct WalkBack {
  const float* states;   // after each step: [B, T, H]
  const float* elapsed;  // [B, T] or null
  i64 elapsed_b, elapsed_t;
  const float* grad_out;  // [B, T, M]
  i64 grad_b, grad_t, grad_m;
  const float* grad_end;
  i64 end_b, end_h;
  float* grad_start;
  const float* trace_v;  // [B, steps, K, H], a row trace_b apart
  float* trace_den;      // the same of denominators, then of alpha
  i64 trace_b;
  float2* step_sums;
  float* step_changes;
  int hidden, unfolds, total_steps, t0, steps;
  float per_dt;  // K, or K / dt where no times are given
};

// What a thread keeps of its source in shared memory, as registers are short.
struct alignas(16) Kept {
  float alpha, beta, change;  // sums of alpha, of beta, of alpha (v - v') K / dt over everything
  float output_w;             // what dL/d out is multiplied by; 0 if this neuron has no output
  float rate_c;               // c, or c dt where times are given
  float inverse;              // 1 / the step's time, or 1
  float grad, time;           // dL/d out and the time of the step that is next
};

// The synapses of a lane that has up to kN; p and q are times a.
template <int kN>
struct Gates {
  float a[kN], b[kN], p[kN], q[kN];
  unsigned from[kN];  // where in a tile their targets lie, in bytes
};

// All steps of row b, last first. `round` counts pairs of unfolds since the kernel began; `threads` walk in this block.
template <int kN>
__device__ __forceinline__ void walk_back(const WalkBack& w, Gates<kN>& g, Kept& kept, const Neurons& n, const Others& others,
                                          int lanes, char* tiles, Stages& stages, int threads, i64 b,
                                          unsigned& round) {
  const int hidden = w.hidden;
  // dL/d out and time of a step, into `kept`.
  auto look_at = [&](int t) {
    if (kept.output_w != 0.0f) copy_ahead<4>(&kept.grad, w.grad_out + (b * w.grad_b + (i64)opaque(n.j) * w.grad_m + t * w.grad_t));
    if (w.elapsed) copy_ahead<4>(&kept.time, w.elapsed + (b * w.elapsed_b + t * w.elapsed_t));
  };
  float u[kN], v[2], den, reciprocal, alpha, left_over, c, sum_alpha = 0.0f, sum_beta = 0.0f, sum_change = 0.0f;
  // c of a step, whose time has been looked at.
  auto begin_step = [&] {
    const float inverse = w.elapsed ? 1.0f / kept.time : 1.0f;
    kept.inverse = inverse, c = kept.rate_c * inverse;
  };
  auto divide_by = [&](float x) {
    den = n.there ? x : 1.0f;
    asm volatile("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(den));
  };
  // alpha from a = dL/dv' of the unfold of tile kHalf, given to all.
  auto give = [&](auto which, float a) {
    constexpr int kHalf = decltype(which)::value;
    alpha = a * reciprocal;
    if (!kFast) alpha = fmaf(fmaf(-alpha, den, a), reciprocal, alpha);
    give_state<kHalf>(others, n, tiles, alpha);
    // Nothing that can wait comes before that.
    __syncwarp();
  };
  // Gates and u of the unfold of tile kHalf; what belongs to its own alpha; the division of the unfold before.
  auto prepare = [&](auto which) {
    constexpr int kHalf = decltype(which)::value;
    barrier_wait(&stages.full[kHalf], round & 1);
    const char* const stage = (const char*)stages.of[kHalf];
    float after[kN];
    v[kHalf] = *(const volatile float*)(stage + n.place + kPlaces * 4);
#pragma unroll
    for (int i = 0; i < kN; i++) after[i] = *(const volatile float*)(stage + g.from[i]);
    const float before = *(const volatile float*)(stage + n.place + kPlaces * 8);
#pragma unroll
    for (int i = 0; i < kN; i++) {
      const float t = gate_of(g.a[i], g.b[i], v[kHalf]);
      u[i] = fmaf(-after[i], g.p[i], g.q[i]) * (kFast ? fmaf(-t, t, 1.0f) : fmaf(-t, t, t));
    }
    const float beta = -alpha * v[1 - kHalf];
    left_over = alpha * c;
    sum_alpha += alpha, sum_beta += beta, sum_change += fmaf(alpha, v[kHalf], beta);
    divide_by(before);
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(&stages.empty[kHalf]);
  };
  // alpha of the tile kHalf, when all of it is there: dL/dv of its unfold.
  auto gather = [&](auto which) {
    constexpr int kHalf = decltype(which)::value;
    if (kCluster)
      take_states<kHalf>(others, round & 1);
    else
      meet(threads);
    float total = 0.0f, other = 0.0f, x[kN];
#pragma unroll
    for (int i = 0; i < kN; i++) x[i] = *(const volatile float*)(tiles + g.from[i] + kHalf * kTile * 4);
#pragma unroll
    for (int i = 0; i < kN; i++) {
      float& to = i % 2 ? other : total;
      to = fmaf(u[i], x[i], to);
    }
    total += other;
#pragma unroll
    for (int o = 1; o < kLanes; o *= 2) total += __shfl_xor_sync(~0u, total, o);
    if (lanes > kLanes) {
#pragma unroll 1
      for (int o = kLanes; o < lanes; o *= 2) total += __shfl_xor_sync(~0u, total, o);
    }
    // a is sigma / 2 and the rest of u twice itself, or -sigma log2(e).
    return fmaf(total, kFast ? 1.0f : -0.69314718055994531f, left_over);
  };
  look_at(w.t0 + w.steps - 1);
  copies_here();
  begin_step();
  float a = n.there ? fmaf(kept.grad, kept.output_w, w.grad_end[b * w.end_b + n.j * w.end_h]) : 0.0f;
  v[1] = w.states[(b * w.total_steps + (w.t0 + w.steps - 1)) * hidden + n.j];
  float* to = w.trace_den + (b * w.trace_b + (i64)(w.steps * w.unfolds - 1) * hidden + n.j);
  divide_by(*to);
  auto keep_alpha = [&] {
    if (n.writer) *to = alpha;
    to -= hidden;
  };
  give(Number<0>(), a);
  keep_alpha();
  prepare(Number<0>());
#pragma unroll 1
  for (int step = w.steps - 1; step >= 0; step--) {
    if (step > 0) look_at(w.t0 + step - 1);
#pragma unroll 1
    for (int k = w.unfolds - 2; k >= 0; k -= 2) {
      a = gather(Number<0>());
      give(Number<1>(), a);
      keep_alpha();
      prepare(Number<1>());
      const bool ends_step = k == 0, ends_row = ends_step && step == 0;
      if (ends_step) copies_here();
      a = gather(Number<1>());
      if (ends_step && !ends_row) a = fmaf(kept.grad, kept.output_w, a);
      if (!ends_row) {
        give(Number<0>(), a);
        keep_alpha();
      }
      if (ends_step) {
        if (n.writer) {
          const i64 at = (b * w.steps + step) * hidden + opaque(n.j);
          w.step_sums[at] = make_float2(sum_alpha, sum_beta);
          if (w.step_changes) w.step_changes[at] = sum_change;
        }
        kept.alpha += sum_alpha, kept.beta += sum_beta;
        kept.change = fmaf(sum_change, w.per_dt * kept.inverse, kept.change);
        sum_alpha = sum_beta = sum_change = 0.0f;
        if (!ends_row) begin_step();
      }
      round++;
      if (!ends_row) prepare(Number<0>());
    }
  }
  if (n.writer) w.grad_start[b * hidden + n.j] = a;
}

// What the warp that copies does: the stages of each row, last unfold first.
__device__ __forceinline__ void copy_stages(const WalkBack& w, Stages& stages, const unsigned short* nodes, int batch) {
  const int lane = threadIdx.x % 32, rounds = w.steps * w.unfolds;
  constexpr int kEach = kPlaces / 32;
  int node[kEach];
#pragma unroll
  for (int i = 0; i < kEach; i++) node[i] = lane + 32 * i < w.hidden ? nodes[lane + 32 * i] : -1;
  const i64 dens = w.trace_den - w.trace_v;
  unsigned round = 0;
#pragma unroll 1
  for (i64 b = blockIdx.x / cluster_size(); b < batch; b += gridDim.x / cluster_size()) {
    const float* after = w.states + (b * w.total_steps + (w.t0 + w.steps - 1)) * w.hidden;
    const float* v = w.trace_v + (b * w.trace_b + (i64)(rounds - 1) * w.hidden);
#pragma unroll 1
    for (int n = 0; n < rounds; n++, round++) {
      const int half = round & 1;
      if (round >= 2) barrier_wait(&stages.empty[half], (round / 2 - 1) & 1);
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kEach; i++) {
        if (node[i] < 0) continue;
        float* to = stages.of[half][0] + lane + 32 * i;
        copy_ahead<4>(to, after + node[i]);
        copy_ahead<4>(to + kPlaces, v + node[i]);
        if (n + 1 < rounds) copy_ahead<4>(to + 2 * kPlaces, v - w.hidden + dens + node[i]);
      }
      after = v, v -= w.hidden;
      copies_here();
      __syncwarp();
      if (lane == 0) barrier_arrive(&stages.full[half]);
    }
  }
}

// All rows of a cluster.
template <int kN>
__device__ __forceinline__ void walk_all(const Schedule& schedule, unsigned block, int used, const WalkBack& w, Kept& kept,
                                         const Neurons& n, const Others& others, int lanes, char* tiles, Stages& stages,
                                         int threads, int batch) {
  if constexpr (kN - 2 >= kFewest) {
    if (used <= kN - 2)
      return walk_all<kN - 2>(schedule, block, used, w, kept, n, others, lanes, tiles, stages, threads, batch);
  }
  const unsigned held = blockDim.x - 32;
  Gates<kN> g;
#pragma unroll
  for (int i = 0; i < kN; i++) {
    const float4 x = schedule.folded[(block * kSlots + i) * held + threadIdx.x];
    g.a[i] = x.x, g.b[i] = x.y, g.p[i] = x.x * x.z, g.q[i] = x.x * x.w;
    const unsigned pair = schedule.from[(block * (kSlots / 2) + i / 2) * held + threadIdx.x];
    g.from[i] = opaque(4 * (i % 2 ? pair >> 16 : pair & 0xffff));
  }
  unsigned round = 0;
  const unsigned blocks = cluster_size();
#pragma unroll 1
  for (i64 b = blockIdx.x / blocks; b < batch; b += gridDim.x / blocks)
    walk_back<kN>(w, g, kept, n, others, lanes, tiles, stages, threads, b, round);
}

extern "C" __global__ void __launch_bounds__(kThreads + 64, 2)
ltc_row_adjoint(Schedule schedule, const float* __restrict__ cm,  // [H]
                const float* states,                                                        // [B, T, H]
                const float* __restrict__ elapsed, i64 elapsed_b, i64 elapsed_t, float dt,  // [B, T] or null: dt
                const float* __restrict__ grad_out, i64 grad_b, i64 grad_t, i64 grad_m,     // [B, T, M], any strides
                const float* __restrict__ output_w,                                         // [M] or null
                const float* grad_end, i64 end_b, i64 end_h,  // [B, H]: dL/d(state after the chunk), any strides
                float* grad_start,                            // [B, H]: dL/d(state before the chunk)
                const float* trace_v, float* trace_den,        // [B, steps, K, H], trace_b apart; gives alpha in its place
                i64 trace_b,
                float2* __restrict__ step_sums,     // [B, steps, H]: sums of alpha and of beta over k
                float* __restrict__ step_changes,   // [B, steps, H] or null: sums of alpha (v - v') over k
                float4*,
                float4* __restrict__ neuron_sums,   // [clusters, H]: alpha, beta, alpha (v - v') K / dt; added to unless first
                unsigned*, int batch, int hidden, int outputs, int unfolds, int total_steps, int t0, int steps, int,
                int first_chunk, int constrained) {
  after_earlier_kernels();
  __shared__ __align__(16) char tiles[2 * kTile * 4];
  __shared__ Stages stages;
  __shared__ Kept all_kept[kThreads];
  __shared__ unsigned short nodes[kPlaces];
  __shared__ unsigned long long barriers[2];
  // The last warp copies, the others hold synapses.
  const unsigned rank = kCluster ? cluster_rank() : 0, blocks = cluster_size(), cluster = blockIdx.x / blocks, held = blockDim.x - 32;
  const bool copies = threadIdx.x >= held;
  // Places of all blocks' neurons.
  for (unsigned i = threadIdx.x; i < blocks * held; i += blockDim.x) {
    const int owner = schedule.target[i];
    if (owner >= 0) nodes[owner >> 16] = owner & 0xffff;
  }
  int2 shape = copies ? make_int2(32, 0) : schedule.warps[rank * (held / 32) + threadIdx.x / 32];
  shape = make_int2(uniform(shape.x), uniform(shape.y));
  const int owner = copies ? -1 : schedule.target[rank * held + threadIdx.x];
  const int sub = threadIdx.x & (shape.x - 1);
  Neurons n = {owner >= 0, owner >= 0 && sub == 0, 0, 0, 0.0f, 0.0f, 1.0f};
  Kept& kept = all_kept[copies ? 0 : threadIdx.x];
  if (!copies) kept = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 1.0f, 0.0f, 1.0f};
  if (n.there) {
    n.j = owner & 0xffff, n.place = 4 * (owner >> 16);
    kept.rate_c = positive(cm[n.j], constrained) * (float)unfolds / (elapsed ? 1.0f : dt);
    if (n.j < outputs) kept.output_w = output_w ? output_w[n.j] : 1.0f;
  }
  const WalkBack w = {states, elapsed, elapsed_b, elapsed_t, grad_out, grad_b, grad_t, grad_m, grad_end, end_b, end_h,
                      grad_start, trace_v, trace_den, trace_b, step_sums, step_changes, hidden, unfolds, total_steps,
                      t0, steps, elapsed ? (float)unfolds : (float)unfolds / dt};
  Others others = {false, false, 0, 0, 0, 0};
  const unsigned to = sub < (int)blocks ? sub : 0;
  if (kCluster) {
    others.sends = opaque(n.there && sub < (int)blocks), others.sets = threadIdx.x == 0;
    others.tiles = opaque(in_block(shared_address(tiles) + n.place, to));
    others.barriers = opaque(in_block(shared_address(barriers), to));
    others.mine = opaque(shared_address(barriers)), others.bytes = hidden * 4;
  }
  // A warp without sources has no part in any round (exchange.cuh).
  const bool walks = !copies && (threadIdx.x < 32 || __any_sync(~0u, n.there));
  const int threads = __syncthreads_count(walks);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; i++) barrier_init(barriers + i, 1);
    for (int i = 0; i < 2; i++) barrier_init(&stages.full[i], 1), barrier_init(&stages.empty[i], threads / 32);
    barrier_init_fence();
    for (int i = 0; kCluster && i < 2; i++) barrier_expect(barriers + i, others.bytes);
  }
  __syncthreads();
  if (kCluster) cluster_sync();
  if (copies && steps > 0) copy_stages(w, stages, nodes, batch);
  if (walks && steps > 0)
    walk_all<kSlots>(schedule, rank, shape.y, w, kept, n, others, shape.x, tiles, stages, threads, batch);
  // Without steps the gradient passes through.
  for (i64 b = cluster; steps == 0 && n.writer && b < batch; b += gridDim.x / blocks)
    grad_start[b * hidden + n.j] = grad_end[b * end_b + n.j * end_h];
  if (n.writer) {
    float4* sum = neuron_sums + ((i64)cluster * hidden + n.j);
    const float4 s = first_chunk ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : *sum;
    *sum = make_float4(s.x + kept.alpha, s.y + kept.beta, s.z + kept.change, 0.0f);
  }
  if (kCluster) cluster_sync();
}
