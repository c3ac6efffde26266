// LTC, backward through the recurrence, where one block, or a cluster of small ones, holds every recurrent synapse and walks one
// batch row: the shortest chain of an unfold (the equations: backward.cu). For problems with few rows, whose time is T K such chains.
//
// With a_j = dL/dv'_j, last unfold first:
//   alpha_j = a_j / den_j      u_ij = sigma_ij (q_ij - v'_j p_ij) r_ij (1 - r_ij)      a_i <- alpha_i c_i + sum_j u_ij alpha_j
// States and denominators are known of all unfolds (the trace), so that u is, too: it is made while alpha travels. What waits for
// alpha is its loads, in flight together, a fused multiply-add each, sums over the few lanes of a source, and two operations. alpha
// of every unfold goes to a trace; what is summed of each synapse is made of that for many unfolds at once (trace_sums.cu).
// Sources lie in their own order, so that a step of the trace comes to shared memory by three bulk copies, a step ahead.
//
// A lane has one source and up to kSlots of its synapses; all warps have the same code. Where its sums fit in registers, too,
// full_adjoint.cu is faster: this one is left for 200 to 256 neurons at density 0.5. What follows was measured with 128 threads, of which
// two blocks shared a multiprocessor, so that 32 rows of 128 neurons went side by side in clusters of 4.
// Floor (H200, 1.98 GHz, B32 T64 H128 K6 at density 0.5, clusters of 4): of an unfold u is some 7 instructions and a special
// operation a slot, 20 slots: about 200 clocks of a scheduler, while alpha travels some 250; loads, products, sums and the store about
// 170. Parts alone, without u (H100, 128 threads, 20 slots): a round of exchange.cuh with its loads, products and two levels of
// shuffles 431 clocks in clusters of 4, 529 of 3, 482 of 2 with 256 threads; 512 threads of one block 657. As it is: 117 us (H100, ncu)
// for 192 unfolds of 32 rows, 1200 clocks each. A barrier in the place of bar.sync, on which warps arrive: 10 us more.
// Tried: 8 lanes a source in 256 threads, of which 30 clusters fit an H100, and a warp beside them that copies the trace word by word
// into the order in which warps give: 168 us (H100) for 192 unfolds of 32 rows, twice one after the other: 0.44 us each.
// Bytes: 8 for each of B T K H read once for each block, 4 written; 8 B T H written.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = false;
constexpr int kWalkers = kThreads;
constexpr bool kAllSend = false;
#include "row_adjoint.cuh"

// The sum over the lanes of a source; the order is fixed.
__device__ __forceinline__ float source_sum(float x, int lanes) {
#pragma unroll
  for (int o = 1; o < kLanes; o *= 2) x += __shfl_xor_sync(~0u, x, o);
  if (lanes == kLanes) return x;
#pragma unroll 1
  for (int o = kLanes; o < lanes; o *= 2) x += __shfl_xor_sync(~0u, x, o);
  return x;
}

// All steps of row b, last first, where no lane uses more than kN slots; unfolds in pairs. `round` counts pairs, and `turn` steps,
// since the kernel began.
template <int kN>
__device__ __forceinline__ void walk_back(const Chain& w, const Held& held, const Neurons& n, const Others& others, int lanes,
                                          char* tiles, const Ahead& ahead, i64 b, unsigned& round, unsigned& turn, Kept* kept) {
  const int dens = 4 * w.unfolds * w.hidden;  // from v of an unfold to den of the one before it
  const bool gives = n.there && n.j < w.outputs;
  const char* now = nullptr;
  float a = n.there ? w.grad_end[b * w.end_b + n.j * w.end_h] : 0.0f, after = 0.0f, inverse = 1.0f, c = n.rate_c;
  // dL/dout and the time of the step that comes, read one step ahead.
  float grad = 0.0f, time = w.dt, per_dt = 0.0f;
  auto look = [&](int step) {
    const int t = w.t0 + step;
    if (gives) grad = w.grad_out[b * w.grad_b + t * w.grad_t + n.j * w.grad_m];
    if (w.elapsed) time = w.elapsed[b * w.elapsed_b + t * w.elapsed_t];
  };
  // Of that step: v after it, 1 / den of its last unfold, c; adds what comes from its output.
  auto begin = [&](int step, float x) {
    per_dt = (float)w.unfolds / time;
    if (w.elapsed) c = __fdiv_rn(n.rate_c, time);
    x = fmaf(grad, kept->scale, x);
    if (step > 0) look(step - 1);
    barrier_wait(ahead.full + (turn & 1), (turn >> 1) & 1);
    now = ahead.step(turn);
    const float* const last = (const float*)(now + dens + n.place);
    after = last[0], inverse = quotient(1.0f, last[w.unfolds * w.hidden]);
    return x;
  };
  if (w.steps > 0) {
    if (threadIdx.x < 32) ahead.copy(w, b, w.steps - 1, turn);
    look(w.steps - 1);
    a = begin(w.steps - 1, a);
  }
  float* alphas = w.alphas + ((b * w.steps * w.unfolds + w.steps * w.unfolds - 1) * w.hidden + n.j);
#pragma unroll 1
  for (int step = w.steps - 1; step >= 0; step--) {
    float sum_alpha = 0.0f, sum_beta = 0.0f, change = 0.0f;
    auto unfold = [&](auto which, int k) {
      constexpr int kHalf = decltype(which)::value;
      const float alpha = a * inverse;
      give_state<kHalf>(others, n, tiles, alpha);
      // While it travels: what is known ahead.
      const char* const row = now + 4 * k * w.hidden;
      const float v = *(const float*)(row + n.place);
      float u[kN];
#pragma unroll
      for (int i = 0; i < kN; i++) u[i] = *(const volatile float*)(row + 4 * w.hidden + source_of(held, i));
#pragma unroll
      for (int i = 0; i < kN; i++) {
        const float t = gate_of(held.a[i], held.b[i], v);
        u[i] = fmaf(-u[i], held.p[i], held.q[i]) * (kFast ? fmaf(-t, t, 1.0f) : fmaf(-t, t, t));
      }
      const float beta = -alpha * after;
      sum_alpha += alpha, sum_beta += beta, change += fmaf(alpha, v, beta);
      if (n.writer) *alphas = alpha;
      alphas -= w.hidden;
      float rest = alpha * c;
      if (kHalf == 1 && k == w.unfolds - 2 && step > 0) {
        // None reads the step before it any more: they have given alpha of this step's first unfold.
        asm volatile("bar.sync 1, %0;" ::"r"(ahead.walkers) : "memory");
        if (threadIdx.x < 32) ahead.copy(w, b, step - 1, turn + 1);
      }
      if (k > 0) {
        after = v, inverse = quotient(1.0f, *(const float*)(row + dens + n.place));
      } else {
        if (n.writer) {
          w.step_sums[(b * w.sums_steps + step) * w.hidden + n.j] = make_float2(sum_alpha, sum_beta);
          if (w.step_changes) w.step_changes[(b * w.steps + step) * w.hidden + n.j] = change;
        }
        kept->alpha += sum_alpha, kept->beta += sum_beta, kept->change = fmaf(change, per_dt, kept->change);
        turn++;
        if (step > 0) rest = begin(step - 1, rest);
      }
      // Made before what follows waits.
#pragma unroll
      for (int i = 0; i < kN; i++) asm volatile("" : "+f"(u[i]));
      take_states<kHalf>(others, round & 1);
      expect_states<kHalf>(others);
      float x[kN], sum[2] = {0.0f, 0.0f};
#pragma unroll
      for (int i = 0; i < kN; i++) x[i] = *(const volatile float*)(tiles + source_of(held, i) + kHalf * kTileBytes);
#pragma unroll
      for (int i = 0; i < kN; i++) sum[i % 2] = fmaf(u[i], x[i], sum[i % 2]);
      a = rest + source_sum(sum[0] + sum[1], lanes);
    };
#pragma unroll 1
    for (int k = w.unfolds; k > 0; k -= 2) {
      unfold(Number<0>(), k - 1);
      unfold(Number<1>(), k - 2);
      round++;
    }
  }
  if (n.writer) w.grad_start[b * w.hidden + n.j] = a;
}

template <int kN>
__device__ __forceinline__ void walk_used(int used, const Chain& w, const Held& held, const Neurons& n, const Others& others, int lanes,
                                          char* tiles, const Ahead& ahead, i64 b, unsigned& round, unsigned& turn, Kept* kept) {
  if constexpr (kN - 2 >= kSlots / 2) {
    if (used <= kN - 2) return walk_used<kN - 2>(used, w, held, n, others, lanes, tiles, ahead, b, round, turn, kept);
  }
  walk_back<kN>(w, held, n, others, lanes, tiles, ahead, b, round, turn, kept);
}

// Dynamic shared memory: two steps of [2 K + 1, H] floats, each a multiple of 16 bytes.
extern "C" __global__ void __launch_bounds__(kThreads, kThreads > 128 ? 1 : 2)
ltc_row_adjoint(Schedule schedule, const float* __restrict__ cm,  // [H]
                const float* __restrict__ states,                 // [B, T, H]
                const float* __restrict__ elapsed, i64 elapsed_b, i64 elapsed_t, float dt,  // [B, T] or null: dt
                const float* __restrict__ grad_out, i64 grad_b, i64 grad_t, i64 grad_m,     // [B, T, M], any strides
                const float* __restrict__ output_w,                                         // [M] or null
                const float* grad_end, i64 end_b, i64 end_h,  // [B, H]: dL/d(state after the chunk), any strides
                float* grad_start,                            // [B, H]: dL/d(state before the chunk)
                const float* trace_v, const float* trace_den, i64 trace_b,  // [B, steps, K, H], trace_b apart
                float* alphas,                    // [B, steps, K, H]; may be trace_den
                float2* __restrict__ step_sums,   // [B, sums_steps, H]: sums of alpha and of beta over k
                float* __restrict__ step_changes,  // [B, steps, H] or null: sums of alpha (v - v') over k
                float4* __restrict__ neuron_sums,  // [clusters, H]: alpha, beta, alpha (v - v') K / dt; added to unless first
                int batch, int hidden, int outputs, int unfolds, int total_steps, int t0, int steps, int sums_steps, int used, int first_chunk,
                int constrained) {
  extern __shared__ __align__(16) float buffers[];
  __shared__ __align__(16) char tiles[2 * kTileBytes];
  __shared__ Kept kept[kThreads];
  __shared__ unsigned long long copied[2];
  unsigned rank = 0, blocks = 1;
#if __CUDA_ARCH__ >= 900
  __shared__ unsigned long long barriers[2];
  if (kCluster) rank = cluster_rank(), blocks = cluster_blocks();
#endif
  const Chain w = {trace_v, trace_den, trace_b, alphas, states, elapsed, elapsed_b, elapsed_t, dt, grad_out, grad_b, grad_t, grad_m,
                   output_w, grad_end, end_b, end_h, grad_start, step_sums, step_changes, hidden, outputs, unfolds, total_steps, t0,
                   steps, sums_steps};
  const unsigned long long addresses = (unsigned long long)trace_v | (unsigned long long)trace_den | (unsigned long long)states;
  const bool bulk = hidden % 4 == 0 && trace_b % 4 == 0 && addresses % 16 == 0;
  const int thread = threadIdx.x, lane = thread % 32, owner = schedule.target[rank * kThreads + thread];
  // A warp without sources has no part in any round of a cluster (exchange.cuh), but that the first one sets barriers up again.
  const bool walks = !kCluster || thread < 32 || __any_sync(~0u, owner >= 0);
  const int walking = __syncthreads_count(walks && lane == 0);
  if (thread == 0) {
    for (int i = 0; i < 2; i++) barrier_init(copied + i, bulk ? 1 : 32);
#if __CUDA_ARCH__ >= 900
    if (kCluster)
      for (int i = 0; i < 2; i++) barrier_init(barriers + i, 1);
    barrier_init_fence();
    if (kCluster)
      for (int i = 0; i < 2; i++) barrier_expect(barriers + i, hidden * 4);
#endif
  }
  __syncthreads();
#if __CUDA_ARCH__ >= 900
  if (kCluster) cluster_sync();
#endif
  const Ahead ahead = {buffers, copied, ((2 * unfolds + 1) * hidden + 3) / 4 * 4, walking * 32, bulk};
  unsigned turn = 0;
  const i64 first = blockIdx.x / blocks, stride = gridDim.x / blocks;
  if (walks) {
    int2 shape = schedule.warps[rank * (kThreads / 32) + thread / 32];
    const int lanes = uniform(shape.x), sub = lane & (lanes - 1);
    float p0, q0;
    Held held = hold(schedule, rank, p0, q0, nullptr, kThreads, thread);
#pragma unroll
    for (int i = 0; i < kSlots; i++) {
      // a is sigma / 2 and u twice itself, or a is -sigma log2(e).
      const float scale = kFast ? held.a[i] : held.a[i] * -0.69314718055994531f;
      held.p[i] *= scale, held.q[i] *= scale;
    }
    Neurons n = {owner >= 0, owner >= 0 && sub == 0, 0, 0, 0.0f, 0.0f, 1.0f};
    if (n.there) {
      n.j = owner & 0xffff, n.place = 4 * (owner >> 16);
      n.rate_c = positive(cm[n.j], constrained) * (float)unfolds / (elapsed ? 1.0f : dt);
    }
    Others others = {false, false, 0, 0, 0, 0};
#if __CUDA_ARCH__ >= 900
    if (kCluster) {
      const unsigned to = sub < (int)blocks ? sub : 0;
      others.sends = opaque(n.there && sub < (int)blocks), others.sets = thread == 0;
      others.tiles = opaque(in_block(shared_address(tiles) + n.place, to));
      others.barriers = opaque(in_block(shared_address(barriers), to));
      others.mine = opaque(shared_address(barriers)), others.bytes = hidden * 4;
    }
#endif
    kept[thread] = {0.0f, 0.0f, 0.0f, n.there && n.j < outputs && output_w ? output_w[n.j] : 1.0f};
    unsigned round = 0;
#pragma unroll 1
    for (i64 b = first; b < batch; b += stride)
      walk_used<kSlots>(used, w, held, n, others, lanes, tiles, ahead, b, round, turn, kept + thread);
    if (n.writer) {
      const Kept total = kept[thread];
      float4* const to = neuron_sums + (first * hidden + n.j);
      const float4 s = first_chunk ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : *to;
      *to = make_float4(s.x + total.alpha, s.y + total.beta, s.z + total.change, 0.0f);
    }
  }
#if __CUDA_ARCH__ >= 900
  if (kCluster) cluster_sync();
#endif
}
