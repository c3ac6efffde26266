// LTC, backward through the recurrence, where a cluster of small blocks holds every recurrent synapse with its sums and walks one batch
// row (the equations: backward.cu): the chain of row_adjoint.cu, and in what an unfold waits the sums of the one before it.
//
// With a_j = dL/dv'_j, last unfold first:
//   alpha_j = a_j / den_j      u_ij = sigma'_ij (q_ij - v'_j p_ij) r_ij (1 - r_ij)      a_i <- alpha_i c_i + sum_j u_ij alpha_j
// States and denominators are known of all unfolds (the trace, or words: kWords). As soon as alpha of a next unfold is given, the sums of the last one
// are made of alpha, u and the gates that are still there; then u and the gates of the next one. What waits for alpha is its loads, two
// operations each, sums over the few lanes of a source, and two operations.
//
// Sources lie in their own order, so that a step of the trace comes to shared memory by two or three bulk copies, a step ahead; each has as many
// lanes of its warp, side by side, as its list needs, no power of two. All lanes send, so that no branch stands around the store.
// A block has a multiprocessor to itself, or two small ones share it: 32 rows of 128 neurons go side by side in clusters of 3, or of 7
// small blocks.
//
// Floor (H200, 1.98 GHz, B32 T64 H128 K6 at density 0.5): a slot is 14 instructions with 2 loads and a special operation; 8 warps of 14
// slots are 28 slots of a scheduler, 392 of its clocks; beside them about 80 instructions a warp: 550 clocks an unfold, where an exchange
// with its loads and sums alone takes 431 (row_adjoint.cu). As it is: some 990 clocks by 7 blocks (H100; 98 us for
// 192 unfolds of 32 rows, reckoned from the pass, which takes 0.303 ms where it took 0.312 with 103). By ncu's samples a warp takes 35 % of
// them from alpha's arrival to its store, as much beside it (27 what is made meanwhile, 8 steps and the loop), and waits for 16; the rest are
// the other block's. row_adjoint.cu with its sums took 1200 + 490.
// Bytes: 8 (words: 4) for each of B T K H read once for each block, 8 B T H written, 16 a synapse and cluster.
// For compute capability 9.0 alone: code for later ones has up to 12 registers too many (NVRTC 13.0), and was not timed.
// Tried (us for those 192 unfolds, by 7 blocks or 3): dL/dout read into a register a step ahead, and waited for at once, 120 where 114;
// gates of the next unfold behind the store of alpha 112 where 106; the store in a branch of the lanes that send 106 where 103; a branch
// that keeps the products u ahead of the wait, which compilers put behind it: 12 longer by 3 blocks, 2 by 7, with 28 bytes spilled.
// Since then, the whole backward pass of B32 T64 D128 H128 in ms: one loop of all unfolds that begins with the wait (products are then ahead of
// it), with one branch for all that is not in every unfold, 0.303 where 0.312. In that, gates that wait for what is exchanged, behind the
// store or among the shuffles, 0.307 to 0.311; gates of the next unfold ahead of the loop's end, so ahead of the wait, 0.317.
// Of words (2026-11-27, H100, ncu) 200 us for all 384 unfolds in one launch. Words that are made states in shared memory first, a row an
// unfold, took the pass 0.288 ms where it takes 0.238, though warps waited for 17 % of their time: what is beside the chain is on it.
// compute-sanitizer's racecheck reports bulk copies of a step against reads of the one before the last: it does not follow alpha's stores. A copy
// is asked for when alpha of a step's first unfold has come from all warps, and each made its own of all that it had read of the step before.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = false;
constexpr int kWalkers = kThreads;
constexpr bool kAllSend = true;
#include "row_adjoint.cuh"

// What a lane knows of its source's lanes.
struct Part {
  int sub, lanes;  // the how-manieth it is, and of how many
  int first;       // the first of them
};
// The most lanes of a source, and how many most sources have no more than.
constexpr int kParts = 16, kFewParts = 8;

// x / y; where the compiler has fewer registers, without a call, which keeps what lives across it.
__device__ __forceinline__ float divided(float x, float y) {
  if constexpr (kOldCompiler) return quotient(x, y);
  return __fdiv_rn(x, y);
}

// Beside row.cuh's, where sources have fewer lanes than there are blocks: another block to send to.
struct More {
  bool any, sends;  // whether any lane of the warp does; whether this one does
  unsigned tiles, barriers;
};

// alpha of this lane's source into one of the tiles of a block. All lanes send, so that there is no branch: those that no block needs
// what the others send, too.
__device__ __forceinline__ void give_alpha(const Others& others, const More& more, unsigned half, float alpha) {
#if __CUDA_ARCH__ >= 900
  const float x[1] = {alpha};
  store_async(others.tiles + half * kTileBytes, x, others.barriers + half * 8);
  if (more.any && more.sends) store_async(more.tiles + half * kTileBytes, x, more.barriers + half * 8);
#endif
}

// Waits for all of them in that tile, whose phase has this parity.
__device__ __forceinline__ void take_alphas(const Others& others, unsigned half, unsigned parity) {
#if __CUDA_ARCH__ >= 900
  barrier_wait_at(others.mine + half * 8, parity);
  __syncwarp();
#endif
}

// Sets the barrier of that tile up again: where nothing waits for it, since its phase is not complete before.
__device__ __forceinline__ void expect_alphas(const Others& others, unsigned half) {
#if __CUDA_ARCH__ >= 900
  if (others.sets) barrier_expect_at(others.mine + half * 8, others.bytes);
#endif
}

// Copies a step of row b, of which words are kept (row.cuh), to the same place, and the states after it behind them. By the first warp.
__device__ __forceinline__ void copy_words(const Ahead& ahead, const Chain& w, i64 b, int step, unsigned turn) {
  const int n = (w.unfolds + 1) * w.hidden;
  const float* const words = w.trace_v + (b * w.trace_b + (i64)step * n);
  const float* const after = w.states + (b * w.total_steps + (w.t0 + step)) * w.hidden;
  float* const to = (float*)ahead.step(turn);
  unsigned long long* const barrier = ahead.full + (turn & 1);
  if (ahead.bulk) {
    if (threadIdx.x == 0) {
      const unsigned at = shared_address(to), done = shared_address(barrier);
      barrier_expect_at(done, 4 * (n + w.hidden));
      bulk_copy_at(at, words, 4 * n, done);
      bulk_copy_at(at + 4 * n, after, 4 * w.hidden, done);
    }
    return;
  }
#pragma unroll 1
  for (int e = threadIdx.x; e < n; e += 32) copy_ahead<4>(to + e, words + e);
#pragma unroll 1
  for (int e = threadIdx.x; e < w.hidden; e += 32) copy_ahead<4>(to + (n + e), after + e);
  copies_here();
  barrier_arrive(barrier);
}

// The sum over the lanes of a source, in all of them; the order is fixed. Does something of its own behind each of three exchanges.
template <int kMost, typename Meanwhile>
__device__ __forceinline__ float part_sum(float x, const Part& part, Meanwhile meanwhile) {
  float y = __shfl_down_sync(~0u, x, 1);
  meanwhile(Number<0>());
  if (part.sub + 1 < part.lanes) x += y;
  y = __shfl_down_sync(~0u, x, 2);
  meanwhile(Number<1>());
  if (part.sub + 2 < part.lanes) x += y;
  float four[kMost / 4];
#pragma unroll
  for (int i = 0; i < kMost / 4; i++) four[i] = __shfl_sync(~0u, x, part.first + 4 * i);
  meanwhile(Number<2>());
#pragma unroll
  for (int i = 1; i < kMost / 4; i++)
    if (part.lanes > 4 * i) four[0] += four[i];
  return four[0];
}

// tanh or the sigmoid of one synapse as in held.cuh, where it stands.
__device__ __forceinline__ float gate_here(float a, float b, float v) {
  if constexpr (kFast) {
    float t;
    asm volatile("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(fmaf(a, v, b)));
    return t;
  } else {
    float e, r;
    asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(a * (v - b)));
    asm volatile("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + e));
    return r;
  }
}

// Of the slots of a lane, of one unfold: alpha of their targets, alpha u, the gates, and those times v'.
template <int kN>
struct Gates {
  float x[kN], xu[kN], t[kN], w[kN];
};

// What ltc_fold_held made for this thread, where the schedule has `pitch` slots a thread; the others hold nothing.
__device__ __forceinline__ Held hold_used(const Schedule& s, unsigned block, int pitch) {
  Held held;
#pragma unroll
  for (int i = 0; i < kSlots; i++) {
    const float4 x = i < pitch ? s.folded[(block * pitch + i) * kThreads + threadIdx.x] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    held.a[i] = x.x, held.b[i] = x.y, held.p[i] = x.z, held.q[i] = x.w;
  }
#pragma unroll
  for (int i = 0; i < kSlots / 2; i++) {
    const unsigned pair = i < pitch / 2 ? s.from[(block * (pitch / 2) + i) * kThreads + threadIdx.x] * 4u : 0;
    held.from[2 * i] = opaque(pair & 0xffffu);
    held.from[2 * i + 1] = opaque(pair >> 16);
  }
  return held;
}

// Beside what is kept of a neuron, of the step that comes: dL/dout and its time.
struct Keeps : Kept {
  float grad, time;
};

struct Sums {
  float4 of[kSlots];
};

// Adds an unfold whose v was `v`.
template <int kN>
__device__ __forceinline__ void add_unfold(const Held& held, Sums& sums, const Gates<kN>& g, float v) {
#pragma unroll
  for (int i = 0; i < kN; i++) {
    float4& s = sums.of[i];
    s.x = fmaf(g.x[i], g.t[i], s.x);
    s.y = fmaf(-g.x[i], g.w[i], s.y);
    s.z += g.xu[i];
    s.w = fmaf(g.xu[i], kFast ? v : v - held.b[i], s.w);
  }
}

// All steps of row b, last first, where no lane uses more than kN slots; `round` counts unfolds, and `turn` steps, since the kernel
// began.
template <int kN, int kMost>
__device__ __forceinline__ void walk_back(const Chain& w, const Held& held, Sums& sums, const Neurons& n, const Others& others,
                                          const More& more, const Part& part, char* tiles, const Ahead& ahead, i64 b, unsigned& round,
                                          unsigned& turn, Keeps* kept) {
  if (w.steps == 0) {
    if (n.writer) w.grad_start[b * w.hidden + n.j] = w.grad_end[b * w.end_b + n.j * w.end_h];
    return;
  }
  // Rows of a step: v before each unfold, v after the last, den of each; or 1 / den of the first ahead of them.
  const int pitch = 4 * w.hidden, dens = pitch * (kWords ? -1 : w.unfolds + 1), size = 4 * ahead.size;
  const unsigned steps_here = shared_address(ahead.steps) + (kWords ? pitch : 0), tile = shared_address(tiles);
  const bool gives = n.there && n.j < w.outputs, copies = uniform(threadIdx.x) < 32;
  float a = n.there ? w.grad_end[b * w.end_b + n.j * w.end_h] : 0.0f, c = n.rate_c, per_dt = (float)w.unfolds / w.dt;
  // Where dL/dout, the time and the sums of a step are: kept from step to step, or made anew where registers are short.
  auto grad_of = [&](int s) { return w.grad_out + (b * w.grad_b + (w.t0 + s) * w.grad_t + (gives ? n.j * w.grad_m : 0)); };
  auto time_of = [&](int s) { return w.elapsed + (b * w.elapsed_b + (w.t0 + s) * w.elapsed_t); };
  auto sums_of = [&](int s) { return w.step_sums + ((b * w.sums_steps + s) * w.hidden + n.j); };
  auto changes_of = [&](int s) { return w.step_changes + ((b * w.steps + s) * w.hidden + n.j); };
  const float *grad = grad_of(w.steps - 1), *time = w.elapsed ? time_of(w.steps - 1) : nullptr;
  float2* step_sums = sums_of(w.steps - 1);
  float* step_changes = w.step_changes ? changes_of(w.steps - 1) : nullptr;
  // dL/dout and the time of step s, a step ahead.
  auto copy = [&](int s, unsigned turn) {
    if constexpr (kWords)
      copy_words(ahead, w, b, s, turn);
    else
      ahead.copy(w, b, s, turn);
  };
  auto look = [&](int s) {
    if (gives) copy_ahead<4>(&kept->grad, kOldCompiler ? grad_of(s) : grad);
    if (w.elapsed) copy_ahead<4>(&kept->time, kOldCompiler ? time_of(s) : time);
    grad -= w.grad_t;
    if (time) time -= w.elapsed_t;
  };
  // c of the step that comes; adds what comes from its output; and its trace is here.
  auto begin = [&](float& x, const Keeps& its) {
    x = fmaf(its.grad, its.scale, x);
    if (w.elapsed) {
      per_dt = divided((float)w.unfolds, its.time);
      c = divided(n.rate_c, its.time);
    }
    barrier_wait(ahead.full + (turn & 1), (turn >> 1) & 1);
  };
  look(w.steps - 1);
  if (copies) copy(w.steps - 1, turn);
  copies_here();
  begin(a, *kept);
  // The trace of the step, and of its unfold that comes.
  unsigned base = steps_here + uniform((turn & 1) * size), row = base + (w.unfolds - 1) * pitch;
  if (w.steps > 1) look(w.steps - 2);
  // v of the unfold that comes and after it, 1 / den, and its gates; v of the one before.
  float v = at_shared(row + n.place), after = at_shared(row + pitch + n.place), before = 0.0f;
  // 1 / den of unfold k, in which v is before, with what is in its trace, or the step's.
  auto inverse_of = [](float den, float v, int k) {
    if (!kWords) return quotient(1.0f, den);
    const float q = den_quotient(v);
    return k == 0 ? den : den * q;
  };
  float inverse = inverse_of(at_shared((kWords ? base : row) + dens + n.place), v, w.unfolds - 1), t[kN];
#pragma unroll
  for (int i = 0; i < kN; i++) t[i] = gate_of(held.a[i], held.b[i], v);
  float alpha = a * inverse, rest = 0.0f, u[kN];
  give_alpha(others, more, round & 1, alpha);
  // Of the last unfold of which alpha is known: none yet.
  Gates<kN> g;
#pragma unroll
  for (int i = 0; i < kN; i++) g.x[i] = g.xu[i] = g.t[i] = g.w[i] = 0.0f;
  float sum_alpha = 0.0f, sum_beta = 0.0f, change = 0.0f;
  // While alpha travels: the sums of the unfold before, and what is known of this one.
  auto meanwhile = [&] {
#pragma unroll
    for (int i = 0; i < kN; i++) u[i] = at_shared(row + pitch + source_of(held, i));
    add_unfold<kN>(held, sums, g, before);
#pragma unroll
    for (int i = 0; i < kN; i++) {
      g.t[i] = t[i], g.w[i] = t[i] * u[i];
      u[i] = fmaf(-u[i], held.p[i], held.q[i]) * (kFast ? fmaf(-t[i], t[i], 1.0f) : fmaf(-t[i], t[i], t[i]));
    }
    // Made here, which an old compiler would spread over what follows, with more registers than there are.
    if constexpr (kOldCompiler && (kWords || !kFast)) {
#pragma unroll
      for (int i = 0; i < kN; i++) asm volatile("" : "+f"(u[i]), "+f"(g.w[i]), "+f"(g.t[i]));
    }
    const float beta = -alpha * after;
    sum_alpha += alpha, sum_beta += beta, change += fmaf(alpha, v, beta);
    rest = alpha * c;
    row -= pitch;
  };
  // Takes alpha of this unfold, and gives that of the next one, unless it was the last.
  auto pass = [&](auto is_last, int k) {
    constexpr bool kLast = decltype(is_last)::value;
    const unsigned half = round & 1;
    before = v;
    v = at_shared(row + n.place), after = at_shared(row + pitch + n.place);
    const float den = at_shared((kWords ? base : row) + dens + n.place);
    take_alphas(others, half, (round >> 1) & 1);
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kN; i++) g.x[i] = at_shared(tile + half * kTileBytes + source_of(held, i));
#pragma unroll
    for (int i = 0; i < kN; i++) {
      if (i == kN / 2) expect_alphas(others, half);
      g.xu[i] = g.x[i] * u[i];
      sum[i % 4] = fmaf(g.xu[i], held.a[i], sum[i % 4]);
    }
    const float all = part_sum<kMost>((sum[0] + sum[1]) + (sum[2] + sum[3]), part, [&](auto third) {
      constexpr int kThird = decltype(third)::value, kFrom = kN * kThird / 3, kTo = kN * (kThird + 1) / 3;
      if constexpr (kLast) return;
      if (kThird == 0) inverse = inverse_of(den, v, k);
#pragma unroll
      for (int i = kFrom; i < kTo; i++) t[i] = gate_here(held.a[i], held.b[i], v);
    });
    // fast: a is sigma / 2 and u twice itself; or a is -sigma log2(e).
    a = fmaf(all, kFast ? 1.0f : -0.69314718055994531f, rest);
    round++;
    if constexpr (kLast) return;
    alpha = a * inverse;
    give_alpha(others, more, round & 1, alpha);
  };
  // A step is copied behind the second unfold of the one after it: none reads the one before that any more, since alpha of this
  // step's first unfold has come from all. `event`: the unfold behind which there is something to do.
  int step = w.steps - 1, k = w.unfolds - 1;
  bool to_copy = copies && step > 0;
  int event = to_copy ? w.unfolds - 2 : 0;
  meanwhile();
#pragma unroll 1
  while (true) {
    k--;
    pass(Number<0>(), k);
    meanwhile();
    if (k != event) continue;
    if (to_copy) {
      copy(step - 1, turn + 1);
      to_copy = false, event = 0;
      if (k > 0) continue;
    }
    copies_here();
    const Keeps now = *kept;
    if (n.writer) {
      *(kOldCompiler ? sums_of(step) : step_sums) = make_float2(sum_alpha, sum_beta);
      if (w.step_changes) *(kOldCompiler ? changes_of(step) : step_changes) = change;
    }
    step_sums -= w.hidden;
    step_changes -= w.hidden;
    turn++;
    const float per_step = per_dt;
    if (step > 0) {
      begin(rest, now);
      base = 2 * steps_here + size - base, row = base + (w.unfolds - 1) * pitch;
    } else {
      // No v is needed, and this one is there.
      row += pitch;
    }
    kept->alpha = now.alpha + sum_alpha, kept->beta = now.beta + sum_beta, kept->change = fmaf(change, per_step, now.change);
    sum_alpha = sum_beta = change = 0.0f;
    if (step > 1) look(step - 2);
    step--, k = w.unfolds;
    if (step < 0) break;
    to_copy = copies && step > 0, event = to_copy ? w.unfolds - 2 : 0;
  }
  pass(Number<1>(), 0);
  add_unfold<kN>(held, sums, g, before);
  if (n.writer) w.grad_start[b * w.hidden + n.j] = a;
}

template <int kN>
__device__ __forceinline__ void walk_used(int used, const Chain& w, const Held& held, Sums& sums, const Neurons& n, const Others& others,
                                          const More& more, const Part& part, bool wide, char* tiles, const Ahead& ahead, i64 b,
                                          unsigned& round, unsigned& turn, Keeps* kept) {
  if (wide) return walk_back<kSlots, kParts>(w, held, sums, n, others, more, part, tiles, ahead, b, round, turn, kept);
  if constexpr (kN - 1 >= kSlots * 5 / 7) {
    if (used <= kN - 1)
      return walk_used<kN - 1>(used, w, held, sums, n, others, more, part, false, tiles, ahead, b, round, turn, kept);
  }
  walk_back<kN, kFewParts>(w, held, sums, n, others, more, part, tiles, ahead, b, round, turn, kept);
}

// Dynamic shared memory: two steps of [2 K + 1, H] floats, each a multiple of 16 bytes; of words [K + 2, H].
extern "C" __global__ void __launch_bounds__(kThreads, kThreads > 128 ? 1 : 2)
ltc_full_adjoint(Schedule schedule, const float* __restrict__ cm,  // [H]
                 const float* __restrict__ states,                 // [B, T, H]
                 const float* __restrict__ elapsed, i64 elapsed_b, i64 elapsed_t, float dt,  // [B, T] or null: dt
                 const float* __restrict__ grad_out, i64 grad_b, i64 grad_t, i64 grad_m,     // [B, T, M], any strides
                 const float* __restrict__ output_w,                                         // [M] or null
                 const float* grad_end, i64 end_b, i64 end_h,  // [B, H]: dL/d(state after the chunk), any strides
                 float* grad_start,                            // [B, H]: dL/d(state before the chunk)
                 const float* trace_v, const float* trace_den, i64 trace_b,  // [B, steps, K, H], trace_b apart; kWords: [B, T, K + 1, H] (row.cuh) and null
                 float4* __restrict__ gate_sums,    // [clusters, synapses], added to unless first
                 float2* __restrict__ step_sums,    // [B, sums_steps, H]: sums of alpha and of beta over k
                 float* __restrict__ step_changes,  // [B, steps, H] or null: sums of alpha (v - v') over k
                 float4* __restrict__ neuron_sums,  // [clusters, H]: alpha, beta, alpha (v - v') K / dt; added to unless first
                 int batch, int hidden, int outputs, int unfolds, int total_steps, int t0, int steps, int sums_steps, int used,
                 int first_chunk, int constrained) {
  extern __shared__ __align__(16) float buffers[];
  __shared__ __align__(16) char tiles[2 * kTileBytes];
  __shared__ Keeps kept[kThreads];
  __shared__ unsigned long long copied[2];
  unsigned rank = 0, blocks = 1;
#if __CUDA_ARCH__ >= 900
  __shared__ unsigned long long barriers[2];
  if (kCluster) rank = cluster_rank(), blocks = cluster_blocks();
#endif
  const unsigned sent = 4 * schedule.warps[rank * (kThreads / 32)].x;  // bytes that come in a round
  const Chain w = {trace_v, trace_den, trace_b, nullptr, states, elapsed, elapsed_b, elapsed_t, dt, grad_out, grad_b, grad_t, grad_m,
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
      for (int i = 0; i < 2; i++) barrier_expect(barriers + i, sent);
#endif
  }
  __syncthreads();
#if __CUDA_ARCH__ >= 900
  if (kCluster) cluster_sync();
#endif
  const Ahead ahead = {buffers, copied, ((kWords ? unfolds + 2 : 2 * unfolds + 1) * hidden + 3) / 4 * 4, walking * 32, bulk};
  unsigned turn = 0;
  const i64 first = blockIdx.x / blocks, stride = gridDim.x / blocks;
  if (walks) {
    const int pitch = (used + 1) / 2 * 2;  // slots that there is room for
    const Held held = hold_used(schedule, rank, pitch);
    const unsigned mine = __match_any_sync(~0u, owner);
    const Part part = {__popc(mine & ((1u << lane) - 1u)), __popc(mine), __ffs(mine) - 1};
    Neurons n = {owner >= 0, owner >= 0 && part.sub == 0, 0, 0, 0.0f, 0.0f, 1.0f};
    if (n.there) {
      n.j = owner & 0xffff, n.place = 4 * (owner >> 16);
      n.rate_c = positive(cm[n.j], constrained) * (float)unfolds / (elapsed ? 1.0f : dt);
    }
    Others others = {true, thread == 0, 0, 0, 0, 0};
    More more = {false, false, 0, 0};
    const bool wide = uniform(n.there ? part.lanes : 0) > kFewParts;
#if __CUDA_ARCH__ >= 900
    const unsigned to = part.sub % blocks, second = part.sub + part.lanes;
    const unsigned tile = shared_address(tiles) + (n.there ? n.place : 4 * kTile);
    others.tiles = opaque(in_block(tile, to)), others.barriers = opaque(in_block(shared_address(barriers), to));
    others.mine = opaque(shared_address(barriers)), others.bytes = sent;
    more.sends = opaque(n.there && second < blocks), more.any = uniform(more.sends);
    more.tiles = opaque(in_block(tile, more.sends ? second : 0));
    more.barriers = opaque(in_block(shared_address(barriers), more.sends ? second : 0));
#endif
    kept[thread] = {0.0f, 0.0f, 0.0f, n.there && n.j < outputs && output_w ? output_w[n.j] : 1.0f, 0.0f, dt};
    Sums sums;
    // How many synapses this lane has, and where their sums are among those of the cluster.
    auto lying = [&] { return schedule.target[(blocks + rank) * kThreads + opaque(threadIdx.x)]; };
    auto saved = [&](int lies) {
      const int last = schedule.target[2 * blocks * kThreads - 1];
      return gate_sums + ((i64)(opaque(blockIdx.x) / blocks) * ((last >> 5) + (last & 31)) + (lies >> 5));
    };
    {
      const int lies = lying();
      const float4* const before = saved(lies);
#pragma unroll
      for (int i = 0; i < kSlots; i++)
        sums.of[i] = first_chunk || i >= (lies & 31) ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : before[i];
    }
    unsigned round = 0;
#pragma unroll 1
    for (i64 b = first; b < batch; b += stride)
      walk_used<kSlots>(used, w, held, sums, n, others, more, part, wide, tiles, ahead, b, round, turn, kept + thread);
    const int lies = lying();
    float4* const after = saved(lies);
#pragma unroll
    for (int i = 0; i < kSlots; i++)
      if (i < (lies & 31)) after[i] = sums.of[i];
    if (n.writer) {
      const Keeps total = kept[thread];
      float4* const to = neuron_sums + (first * hidden + n.j);
      const float4 s = first_chunk ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : *to;
      *to = make_float4(s.x + total.alpha, s.y + total.beta, s.z + total.change, 0.0f);
    }
  }
#if __CUDA_ARCH__ >= 900
  if (kCluster) cluster_sync();
#endif
}
