// LTC, backward through the recurrence, where one block, or a cluster of small ones, holds every recurrent synapse and its four
// sums in registers and walks one batch row: the shortest chain of an unfold (the equations, and what it leaves behind:
// adjoint.cu). For problems with few rows, whose time is T K such chains.
//
// What an unfold waits for is alpha alone, one number a neuron: the states are known ahead, and with them
//   dz_ij = alpha_j u_ij,   u_ij = (q_ij - v'_j p_ij) r_ij (1 - r_ij)
// so that gates and u are made while alpha travels, and so are the sums, of which beta_j = -alpha_j v'_j. When alpha is there, an
// unfold is: its loads, in flight together; two operations a synapse; sums over the lanes of a source; a product; store.
//
// A thread holds synapses of one source. Unfolds go in pairs, as in row.cuh. The states v' of all targets are copied to shared
// memory an unfold ahead; all warps of a block meet once an unfold, while alpha travels, so that they are there.
//
// Floor (H200, 1.98 GHz): 14 issue slots a synapse, S / 32 * 14 / 4 clocks of a multiprocessor (H 128 at density 0.5 in a cluster
// of 3: 300; H 64 in one block: 225), and the chain of row.cu with a division less.
// Bytes: as adjoint.cu, and the states once more a block, from L2.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = false;
#include "row.cuh"

// Slots for which there is code of their own: these, and all even numbers from kFewest on.
constexpr int kFewest = kSlots / 2 / 2 * 2;
// Tiles: of alpha, of even and odd unfolds; of v' alike.
constexpr int kStates = 2 * kTile * 4;

// All threads that walk in this block have come here.
__device__ __forceinline__ void meet(int threads) { asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory"); }

// Blocks that walk together.
__device__ __forceinline__ unsigned cluster_size() {
#if __CUDA_ARCH__ >= 900
  if (kCluster) return cluster_blocks();
#endif
  return 1;
}

// Copies one float to an address of shared memory; the thread waits for it by copies_here.
__device__ __forceinline__ void copy_at(unsigned to, const float* from) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
#else
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(*from) : "memory");
#endif
}

struct WalkBack {
  const float* states;   // after each step: [B, T, H]
  const float* elapsed;  // [B, T] or null
  i64 elapsed_b, elapsed_t;
  const float* grad_out;  // [B, T, M]
  i64 grad_b, grad_t, grad_m;
  const float* grad_end;
  i64 end_b, end_h;
  float* grad_start;
  const float* trace_v;  // [B, steps, K, H], a row trace_b apart; denominators lie `dens` elements behind
  i64 trace_b, dens;
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

// The synapses of a lane that has up to kN, and their sums.
template <int kN>
struct Gates {
  float a[kN], p[kN], q[kN];
  const float* b;     // in shared memory
  unsigned from[kN];  // where in a tile their targets lie, in bytes
  float4 sums[kN];
};

// All steps of row b, last first. `round` counts pairs of unfolds since the kernel began. `node`: which neuron, or -1, has the
// place that this thread copies, to the address `copies` of shared memory; `nodes` of all places; `threads` walk in this block.
template <int kN>
__device__ __forceinline__ void walk_back(const WalkBack& w, Gates<kN>& g, Kept& kept, const Neurons& n, const Others& others,
                                          int lanes, char* tiles, unsigned copies, int node, const unsigned short* nodes, int threads, i64 b,
                                          unsigned& round) {
  const int hidden = w.hidden;
  // dL/d out and time of a step, into `kept`.
  auto look_at = [&](int t) {
    if (kept.output_w != 0.0f) copy_ahead<4>(&kept.grad, w.grad_out + (b * w.grad_b + (i64)opaque(n.j) * w.grad_m + t * w.grad_t));
    if (w.elapsed) copy_ahead<4>(&kept.time, w.elapsed + (b * w.elapsed_b + t * w.elapsed_t));
  };
  // The states in `row` into tile kHalf.
  auto copy_states = [&](auto which, const float* row) {
    constexpr int kHalf = decltype(which)::value;
    if (node >= 0) copy_at(copies + kHalf * kTile * 4, row + node);
    if (hidden <= threads) return;
#pragma unroll 1
    for (unsigned more = threads; threadIdx.x + more < hidden; more += threads)
      copy_at(copies + kHalf * kTile * 4 + more * 4, row + nodes[threadIdx.x + more]);
  };
  const int rounds = w.steps * w.unfolds;
  const float* const ends = w.states + (b * w.total_steps + (w.t0 + w.steps - 1)) * hidden;
  // The trace of this row; in it the unfold of round 0, then that of two rounds later than the one under way, or the last.
  const float* const trace = w.trace_v + b * w.trace_b;
  const float* const dens = trace + w.dens;
  int at = (rounds - 1) * hidden;
  auto go_back = [&] { at = max(at - hidden, 0); };
  float v[2], den[2], reciprocal;
  auto look = [&](auto which) {
    constexpr int kHalf = decltype(which)::value;
    v[kHalf] = trace[at + n.j];
    den[kHalf] = dens[at + n.j];
  };
  // The last copies of another row are of no use, but must not come later than these.
  copies_here();
  look_at(w.t0 + w.steps - 1);
  copy_states(Number<0>(), ends);
  copy_states(Number<1>(), trace + at);
  look(Number<0>());
  go_back();
  look(Number<1>());
  float x[kN], u[kN], t[kN], after[kN];
  float alpha, left_over, c, sum_alpha = 0.0f, sum_beta = 0.0f, sum_change = 0.0f;
  // c of a step, whose time has been looked at.
  auto begin_step = [&] {
    const float inverse = w.elapsed ? 1.0f / kept.time : 1.0f;
    kept.inverse = inverse, c = kept.rate_c * inverse;
  };
  // alpha from a = dL/dv' of the unfold of tile kHalf, given to all.
  auto give = [&](auto which, float a) {
    constexpr int kHalf = decltype(which)::value;
    alpha = a * reciprocal;
    if (!kFast) alpha = fmaf(fmaf(-alpha, den[kHalf], a), reciprocal, alpha);
    give_state<kHalf>(others, n, tiles, alpha);
  };
  // What belongs to that alpha: `now` is v, `then` v'.
  auto add_own = [&](float now, float then) {
    const float beta = -alpha * then;
    left_over = alpha * c;
    sum_alpha += alpha, sum_beta += beta, sum_change += fmaf(alpha, now, beta);
  };
  // Gates and u of the unfold of tile kHalf; then its states make room for those of two rounds later, and the next unfold's
  // division is prepared.
  auto prepare = [&](auto which) {
    constexpr int kHalf = decltype(which)::value;
#pragma unroll
    for (int i = 0; i < kN; i++) after[i] = *(const volatile float*)(tiles + g.from[i] + (kStates + kHalf * kTile * 4));
#pragma unroll
    for (int i = 0; i < kN; i += 4) {
      const float4 y = *(const float4*)(g.b + i);
      const float bs[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int h = 0; h < 4 && i + h < kN; h++) t[i + h] = gate_of(g.a[i + h], bs[h], v[kHalf]);
    }
#pragma unroll
    for (int i = 0; i < kN; i++)
      u[i] = fmaf(-after[i], g.p[i], g.q[i]) * (kFast ? fmaf(-t[i], t[i], 1.0f) : fmaf(-t[i], t[i], t[i]));
    // The other one is there, and all have read this one.
    copies_here();
    meet(threads);
    copy_states(which, trace + at);
    go_back();
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(den[1 - kHalf]));
  };
  // alpha of the tile kHalf, when all of it is there: dL/dv of its unfold.
  auto gather = [&](auto which) {
    constexpr int kHalf = decltype(which)::value;
    take_states<kHalf>(others, round & 1);
    float total = 0.0f, other = 0.0f;
#pragma unroll
    for (int i = 0; i < kN; i++) x[i] = *(const volatile float*)(tiles + g.from[i] + kHalf * kTile * 4);
#pragma unroll
    for (int i = 0; i < kN; i++) {
      u[i] *= x[i];
      float& to = i % 2 ? other : total;
      to = fmaf(u[i], g.a[i], to);
    }
    total += other;
#pragma unroll
    for (int o = 1; o < kLanes; o *= 2) total += __shfl_xor_sync(~0u, total, o);
    if (lanes > kLanes) {
#pragma unroll 1
      for (int o = kLanes; o < lanes; o *= 2) total += __shfl_xor_sync(~0u, total, o);
    }
    // a is sigma / 2 and u twice itself, or -sigma log2(e).
    return fmaf(total, kFast ? 1.0f : -0.69314718055994531f, left_over);
  };
  // The sums of each synapse.
  auto add = [&](auto which) {
    constexpr int kHalf = decltype(which)::value;
#pragma unroll
    for (int i = 0; i < kN; i++) {
      const float y = x[i] * t[i];
      g.sums[i].x += y;
      g.sums[i].y = fmaf(-after[i], y, g.sums[i].y);
      g.sums[i].z += u[i];
      g.sums[i].w = fmaf(u[i], kFast ? v[kHalf] : v[kHalf] - g.b[i], g.sums[i].w);
    }
  };
  copies_here();
  meet(threads);
  begin_step();
  float a = n.there ? fmaf(kept.grad, kept.output_w, w.grad_end[b * w.end_b + n.j * w.end_h]) : 0.0f;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(den[0]));
  give(Number<0>(), a);
  add_own(v[0], ends[n.j]);
  prepare(Number<0>());
#pragma unroll 1
  for (int step = w.steps - 1; step >= 0; step--) {
    if (step > 0) look_at(w.t0 + step - 1);
#pragma unroll 1
    for (int k = w.unfolds - 2; k >= 0; k -= 2) {
      a = gather(Number<0>());
      give(Number<1>(), a);
      add(Number<0>());
      add_own(v[1], v[0]);
      look(Number<0>());
      prepare(Number<1>());
      a = gather(Number<1>());
      const bool ends_step = k == 0, ends_row = ends_step && step == 0;
      if (ends_step && !ends_row) a = fmaf(kept.grad, kept.output_w, a);
      if (!ends_row) give(Number<0>(), a);
      add(Number<1>());
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
      if (!ends_row) {
        add_own(v[0], v[1]);
        look(Number<1>());
        prepare(Number<0>());
      }
      round++;
    }
  }
  if (n.writer) w.grad_start[b * hidden + n.j] = a;
}

// All rows of a cluster.
template <int kN>
__device__ __forceinline__ void walk_all(const Schedule& schedule, unsigned block, float4* saved, bool first_chunk, int used,
                                         const WalkBack& w, Kept& kept, const Neurons& n, const Others& others, int lanes,
                                         char* tiles, const unsigned short* nodes, float* bs, int threads, int batch) {
  if constexpr (kN - 2 >= kFewest) {
    if (used <= kN - 2)
      return walk_all<kN - 2>(schedule, block, saved, first_chunk, used, w, kept, n, others, lanes, tiles, nodes, bs, threads, batch);
  }
  Gates<kN> g;
  g.b = bs;
#pragma unroll
  for (int i = 0; i < kN; i++) {
    const float4 x = schedule.folded[(block * kSlots + i) * blockDim.x + threadIdx.x];
    g.a[i] = x.x, bs[i] = x.y, g.p[i] = x.z, g.q[i] = x.w;
    const unsigned pair = schedule.from[(block * (kSlots / 2) + i / 2) * blockDim.x + threadIdx.x];
    g.from[i] = opaque(4 * (i % 2 ? pair >> 16 : pair & 0xffff));
    g.sums[i] = first_chunk ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : saved[(i64)i * blockDim.x];
  }
  unsigned round = 0;
  const int node = opaque(threadIdx.x < w.hidden ? nodes[threadIdx.x] : -1);
  const unsigned copies = opaque((unsigned)__cvta_generic_to_shared(tiles) + kStates + threadIdx.x * 4);
  const unsigned blocks = cluster_size();
#pragma unroll 1
  for (i64 b = blockIdx.x / blocks; b < batch; b += gridDim.x / blocks)
    walk_back<kN>(w, g, kept, n, others, lanes, tiles, copies, node, nodes, threads, b, round);
#pragma unroll
  for (int i = 0; i < kN; i++) saved[(i64)i * blockDim.x] = g.sums[i];
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
ltc_row_adjoint(Schedule schedule, const float* __restrict__ cm,  // [H]
                const float* states,                                                        // [B, T, H]
                const float* __restrict__ elapsed, i64 elapsed_b, i64 elapsed_t, float dt,  // [B, T] or null: dt
                const float* __restrict__ grad_out, i64 grad_b, i64 grad_t, i64 grad_m,     // [B, T, M], any strides
                const float* __restrict__ output_w,                                         // [M] or null
                const float* grad_end, i64 end_b, i64 end_h,  // [B, H]: dL/d(state after the chunk), any strides
                float* grad_start,                            // [B, H]: dL/d(state before the chunk)
                const float* trace_v, const float* trace_den,  // [B, steps, K, H], trace_b apart
                i64 trace_b,
                float2* __restrict__ step_sums,     // [B, steps, H]: sums of alpha and of beta over k
                float* __restrict__ step_changes,   // [B, steps, H] or null: sums of alpha (v - v') over k
                float4* __restrict__ gate_sums,     // [clusters, blocks, kSlots, threads], added to unless first
                float4* __restrict__ neuron_sums,   // [clusters, H]: alpha, beta, alpha (v - v') K / dt; likewise
                unsigned*, int batch, int hidden, int outputs, int unfolds, int total_steps, int t0, int steps, int,
                int first_chunk, int constrained) {
  __shared__ __align__(16) char tiles[2 * kStates];
  __shared__ __align__(16) float bs[kThreads][(kSlots + 3) / 4 * 4];
  __shared__ Kept all_kept[kThreads];
  __shared__ unsigned short nodes[kTile];
  unsigned rank = 0;
#if __CUDA_ARCH__ >= 900
  __shared__ unsigned long long barriers[2];
  if (kCluster) rank = cluster_rank();
#endif
  const unsigned blocks = cluster_size(), cluster = blockIdx.x / blocks;
  // Places of all blocks' neurons.
  for (unsigned i = threadIdx.x; i < blocks * blockDim.x; i += blockDim.x) {
    const int owner = schedule.target[i];
    if (owner >= 0) nodes[owner >> 16] = owner & 0xffff;
  }
  int2 shape = schedule.warps[rank * (blockDim.x / 32) + threadIdx.x / 32];
  shape = make_int2(uniform(shape.x), uniform(shape.y));
  const int owner = schedule.target[rank * blockDim.x + threadIdx.x];
  const int sub = threadIdx.x & (shape.x - 1);
  Neurons n = {owner >= 0, owner >= 0 && sub == 0, 0, 0, 0.0f, 0.0f, 1.0f};
  Kept& kept = all_kept[threadIdx.x];
  kept = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 1.0f, 0.0f, 1.0f};
  if (n.there) {
    n.j = owner & 0xffff, n.place = 4 * (owner >> 16);
    kept.rate_c = positive(cm[n.j], constrained) * (float)unfolds / (elapsed ? 1.0f : dt);
    if (n.j < outputs) kept.output_w = output_w ? output_w[n.j] : 1.0f;
  }
  float4* const saved = gate_sums + ((i64)blockIdx.x * kSlots * blockDim.x + threadIdx.x);
  const WalkBack w = {states, elapsed, elapsed_b, elapsed_t, grad_out, grad_b, grad_t, grad_m, grad_end, end_b, end_h,
                      grad_start, trace_v, trace_b, trace_den - trace_v, step_sums, step_changes, hidden, unfolds, total_steps,
                      t0, steps, elapsed ? (float)unfolds : (float)unfolds / dt};
  Others others = {false, false, 0, 0, 0, 0};
  // A warp without sources has no part in any round of a cluster (exchange.cuh).
  bool walks = true;
  __syncthreads();
#if __CUDA_ARCH__ >= 900
  if (kCluster) {
    const unsigned to = sub < (int)blocks ? sub : 0;
    others.sends = opaque(n.there && sub < (int)blocks), others.sets = threadIdx.x == 0;
    others.tiles = opaque(in_block(shared_address(tiles) + n.place, to));
    others.barriers = opaque(in_block(shared_address(barriers), to));
    others.mine = opaque(shared_address(barriers)), others.bytes = hidden * 4;
    walks = threadIdx.x < 32 || __any_sync(~0u, n.there);
    if (threadIdx.x == 0) {
      for (int i = 0; i < 2; i++) barrier_init(barriers + i, 1);
      barrier_init_fence();
      for (int i = 0; i < 2; i++) barrier_expect(barriers + i, others.bytes);
    }
    __syncthreads();
    cluster_sync();
  }
#endif
  const int threads = __syncthreads_count(walks);
  if (walks && steps > 0)
    walk_all<kSlots>(schedule, rank, saved, first_chunk, shape.y, w, kept, n, others, shape.x, tiles, nodes, bs[threadIdx.x], threads, batch);
  // Without steps the gradient passes through.
  for (i64 b = cluster; steps == 0 && n.writer && b < batch; b += gridDim.x / blocks)
    grad_start[b * hidden + n.j] = grad_end[b * end_b + n.j * end_h];
  if (n.writer) {
    float4* to = neuron_sums + ((i64)cluster * hidden + n.j);
    const float4 s = first_chunk ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : *to;
    *to = make_float4(s.x + kept.alpha, s.y + kept.beta, s.z + kept.change, 0.0f);
  }
#if __CUDA_ARCH__ >= 900
  if (kCluster) cluster_sync();
#endif
}
