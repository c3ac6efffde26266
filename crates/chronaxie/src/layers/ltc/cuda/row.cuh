// One block, or a cluster, that holds every recurrent synapse and walks one batch row: the chain of an unfold (row.cu,
// whole.cu). kWalkers (said by the kernel): how many of a block's threads walk; 0 is all.
#pragma once
#include "held.cuh"
#if __CUDA_ARCH__ >= 900
#include "cluster.cuh"
#endif

// Most neurons; states lie in two tiles of so many, behind which is room for what lanes without a neuron send. kAllSend (said by the
// kernel): whether all lanes of a cluster's warps do, so that there is no branch around it.
constexpr int kTile = 512, kTileBytes = 4 * kTile + 16;
// The fewest slots for which there is code of their own, and in which steps; loads in flight together; gates between a gate
// and its products.
constexpr int kLeast = kSlots * 2 / 5, kStepN = kSlots > 24 ? 4 : 1;
constexpr int kFlight = kWalkers ? 12 : kSlots <= 24 ? kSlots : 12, kDelay = 4;

struct Walk {
  const float2* sums;  // Ns and Ds: [steps, H] of each row, `sums_b` apart
  i64 sums_b;
  const float* start;
  i64 start_b, start_h;
  const float* elapsed;
  i64 elapsed_b, elapsed_t;
  const float *output_w, *output_b;
  // With unfold_dens null words are kept, [K + 1, H] a step: 1 / den of its first unfold, the state before that, and a word of each
  // other unfold (ltc.cuh).
  float *out, *states, *final_state, *unfold_states, *unfold_dens;
  int hidden, outputs, unfolds, total_steps, t0, steps;
};

// What a lane knows of its target.
struct Neurons {
  bool there, writer;  // whether it has one; whether it writes for it
  int j;
  unsigned place;      // where in a tile it lies, in bytes
  float rate_c, num, den;  // c, or c dt where times are given; what both sums begin with
};

__device__ __forceinline__ void walkers_meet() {
  if constexpr (kWalkers == 0)
    __syncthreads();
  else
    asm volatile("bar.sync 1, %0;" ::"n"(kWalkers == 0 ? 32 : kWalkers) : "memory");
}

__device__ __forceinline__ void read_sources(const Schedule& s, unsigned block, unsigned threads, Held& held) {
#pragma unroll
  for (int i = 0; i < kSlots / 2; i++) {
    const unsigned pair = s.from[(block * (kSlots / 2) + i) * threads + threadIdx.x] * 4u;
    if constexpr (kPacked) {
      held.from[i] = pair;
    } else {
      held.from[2 * i] = opaque(pair & 0xffffu);
      held.from[2 * i + 1] = opaque(pair >> 16);
    }
  }
}

__device__ __forceinline__ Neurons neuron_of(int owner, int lanes, const float* gleak, const float* vleak, const float* cm,
                                             int unfolds, float dt, int constrained, float epsilon, float p0, float q0) {
  Neurons n = {owner >= 0, owner >= 0 && (threadIdx.x & (lanes - 1)) == 0, 0, 0, 0.0f, 0.0f, 1.0f};
  if (n.there) {
    n.j = owner & 0xffff, n.place = 4 * (owner >> 16);
    const float g = positive(gleak[n.j], constrained);
    n.rate_c = positive(cm[n.j], constrained) * (float)unfolds / dt;
    n.num = g * vleak[n.j];
    n.den = g + epsilon;
  }
  n.den += lanes_sum(p0, lanes), n.num += lanes_sum(q0, lanes);
  return n;
}

// Both sums over the lanes of a target; the order is fixed.
template <bool kFew>
__device__ __forceinline__ void lanes_sums(int lanes, float& num, float& den) {
#pragma unroll
  for (int o = 1; o < kLanes; o *= 2) {
    num += __shfl_xor_sync(~0u, num, o);
    den += __shfl_xor_sync(~0u, den, o);
  }
  if constexpr (kFew) return;
#pragma unroll 1
  for (int o = kLanes; o < lanes; o *= 2) {
    num += __shfl_xor_sync(~0u, num, o);
    den += __shfl_xor_sync(~0u, den, o);
  }
}

// This lane's part of both sums, of kN slots, from the tile kHalf: up to kFlight loads in flight, and products kDelay gates
// later, so that nothing waits for one gate.
template <int kN, int kHalf>
__device__ __forceinline__ void gates_of(const char* tiles, const Held& held, float& num, float& den) {
  constexpr int kAhead = kN < kFlight ? kN : kFlight, kBehind = kN < kDelay ? kN : kDelay;
  float x[kN];
  // Products in two turns, so that few wait for the one before; beside other warps in one.
  constexpr int kTurns = kWalkers ? 1 : 2;
  float nums[2] = {0.0f, 0.0f}, dens[2] = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < kAhead; i++) x[i] = *(const volatile float*)(tiles + source_of(held, i) + kHalf * kTileBytes);
#pragma unroll
  for (int i = 0; i < kN + kBehind; i++) {
    if (i + kAhead < kN) x[i + kAhead] = *(const volatile float*)(tiles + source_of(held, i + kAhead) + kHalf * kTileBytes);
    if (i < kN) x[i] = gate_of(held.a[i], held.b[i], x[i]);
    if (i >= kBehind) {
      const int turn = (i - kBehind) % kTurns;
      nums[turn] = fmaf(held.q[i - kBehind], x[i - kBehind], nums[turn]);
      dens[turn] = fmaf(held.p[i - kBehind], x[i - kBehind], dens[turn]);
    }
  }
  num = kTurns > 1 ? nums[0] + nums[1] : nums[0], den = kTurns > 1 ? dens[0] + dens[1] : dens[0];
}

// How the blocks of a cluster tell each other their states (exchange.cuh says why this is enough): a lane sends its target's
// to one block, where the store completes on the barrier of its tile. Addresses are those of shared memory, computed once.
struct Others {
  bool sends, sets;          // whether this lane sends; whether it is the one that sets barriers up again
  unsigned tiles, barriers;  // of the block that it sends to
  unsigned mine, bytes;      // this block's barriers, of 8 bytes; bytes of a tile
};

// Waits for all states in tile kHalf, whose phase has this parity.
template <int kHalf>
__device__ __forceinline__ void take_states(const Others& others, unsigned parity) {
#if __CUDA_ARCH__ >= 900
  if constexpr (kCluster) {
    barrier_wait_at(others.mine + kHalf * 8, parity);
    __syncwarp();
    return;
  }
#endif
  walkers_meet();
}

// Sets the barrier of a tile up again whose states have been waited for: where nothing waits for it, since the phase is not complete
// before.
template <int kHalf>
__device__ __forceinline__ void expect_states(const Others& others) {
#if __CUDA_ARCH__ >= 900
  if (kCluster && others.sets) barrier_expect_at(others.mine + kHalf * 8, others.bytes);
#endif
}

// The state of this lane's target into tile kHalf.
template <int kHalf>
__device__ __forceinline__ void give_state(const Others& others, const Neurons& n, char* tiles, float v) {
#if __CUDA_ARCH__ >= 900
  if constexpr (kCluster) {
    const float x[1] = {v};
    if (kAllSend || others.sends) store_async(others.tiles + kHalf * kTileBytes, x, others.barriers + kHalf * 8);
    return;
  }
#endif
  if (n.writer) *(float*)(tiles + n.place + kHalf * kTileBytes) = v;
}

// The state of neuron j behind a step, and what is put out of it.
__device__ __forceinline__ void write(const Walk& w, i64 row, int j, float v) {
  if (w.states) w.states[row * w.hidden + j] = v;
  if (j >= w.outputs) return;
  float y = v;
  if (w.output_w) y *= w.output_w[j];
  if (w.output_b) y += w.output_b[j];
  w.out[row * w.outputs + j] = y;
}

// An address that stays in registers.
__device__ __forceinline__ float* pinned(float* p) {
  asm volatile("" : "+l"(p));
  return p;
}

// All steps of row b, where no warp uses more than kN slots; unfolds in pairs, of which kKeeps nothing (0), all (1), or words (2). `round`
// counts pairs since the kernel began.
template <int kN, int kKeeps, bool kFew>
__device__ __forceinline__ void walk_slots(const Walk& w, const Held& held, const Neurons& n, const Others& others, int lanes,
                                           char* tiles, i64 b, unsigned& round) {
  const int hidden = w.hidden, j = n.j;
  float v = w.start && n.there ? w.start[b * w.start_b + j * w.start_h] : 0.0f;
  // Of the last row nothing is read any more, and the sums are there.
  if (!kCluster) walkers_meet();
  if (w.steps > 0) give_state<0>(others, n, tiles, v);
  const float2* sums = w.sums + (b * w.sums_b + j);
  float2 next = w.steps > 0 && n.there ? *sums : make_float2(0.0f, 0.0f);
  float time = w.elapsed && w.steps > 0 ? w.elapsed[b * w.elapsed_b + w.t0 * w.elapsed_t] : 1.0f;
#pragma unroll 1
  for (int step = 0; step < w.steps; step++) {
    const float c = w.elapsed ? __fdiv_rn(n.rate_c, time) : n.rate_c;
    const float num0 = n.num + next.x, den0 = n.den + c + next.y;
    const bool ends = step + 1 == w.steps;
    if (!ends) {
      sums += hidden;
      if (n.there) next = *sums;
      if (w.elapsed) time = w.elapsed[b * w.elapsed_b + (w.t0 + step + 1) * w.elapsed_t];
    }
    const i64 row = b * w.total_steps + (w.t0 + step);
    constexpr bool kWordsKept = kKeeps == 2;
    // Both in registers: read anew from the constants each would be waited for behind every unfold.
    float* kept = kKeeps ? pinned(w.unfold_states + (row * (w.unfolds + kWordsKept) * hidden + j)) : nullptr;
    const int pitch = kKeeps ? (int)opaque((unsigned)hidden) : 0;
    float first_den = 0.0f;  // 1 / that
    // One unfold, from the tile kHalf into the other.
    auto unfold = [&](auto which, bool first, bool last) {
      constexpr int kHalf = decltype(which)::value;
      const float base = fmaf(c, v, num0);
      float num, den;
      take_states<kHalf>(others, round & 1);
      gates_of<kN, kHalf>(tiles, held, num, den);
      expect_states<kHalf>(others);
      lanes_sums<kFew>(lanes, num, den);
      den += den0;
      const float old = v;
      const float inverse = reciprocal(den);
      v = quotient(num + base, den, inverse);
      // After the last one the next row's first state is given instead.
      if (kAllSend || !(kCluster && last)) give_state<1 - kHalf>(others, n, tiles, v);
      if (kKeeps == 1) {
        if (n.writer) kept[0] = old, kept[w.unfold_dens - w.unfold_states] = den;
        kept += pitch;
      }
      if (kWordsKept) {
        // Without a branch around any of it.
        first_den = first ? inverse : first_den;
        if (first && n.writer) *kept = first_den;
        kept += pitch;
        const unsigned packed = pack_unfold(old, den, first_den), word = first ? __float_as_uint(old) : packed;
        if (n.writer) *(unsigned*)kept = word;
      }
    };
#pragma unroll 1
    for (int k = 0; k < w.unfolds; k += 2) {
      unfold(Number<0>(), k == 0, false);
      unfold(Number<1>(), false, ends && k + 2 == w.unfolds);
      round++;
    }
    if (n.writer) {
      // Beside other warps registers are short: addresses are made anew.
      const int of = kWalkers ? opaque(j) : j;
      write(w, row, of, v);
    }
  }
  if (kAllSend && w.steps > 0) {
    // What was given behind the last unfold, so that there is no branch; and once more, since what comes goes to the other tile: a block
    // that gives to a tile must know that its last values have come everywhere.
    take_states<0>(others, round & 1);
    expect_states<0>(others);
    give_state<1>(others, n, tiles, v);
    take_states<1>(others, round & 1);
    expect_states<1>(others);
    round++;
  }
  if (n.writer) w.final_state[b * hidden + j] = v;
}

template <int kN>
__device__ __forceinline__ void walk_used(int used, const Walk& w, const Held& held, const Neurons& n, const Others& others, int lanes, char* tiles, i64 b, unsigned& round) {
  // Lists of more lanes than most have code of their own, for all slots alone.
  if (lanes != kLanes) {
    if (!w.unfold_states) return walk_slots<kSlots, 0, false>(w, held, n, others, lanes, tiles, b, round);
    if (w.unfold_dens) return walk_slots<kSlots, 1, false>(w, held, n, others, lanes, tiles, b, round);
    return walk_slots<kSlots, 2, false>(w, held, n, others, lanes, tiles, b, round);
  }
  if constexpr (kN - kStepN >= kLeast) {
    if (used <= kN - kStepN) return walk_used<kN - kStepN>(used, w, held, n, others, lanes, tiles, b, round);
  }
  if (!w.unfold_states)
    walk_slots<kN, 0, true>(w, held, n, others, lanes, tiles, b, round);
  else if (w.unfold_dens)
    walk_slots<kN, 1, true>(w, held, n, others, lanes, tiles, b, round);
  else
    walk_slots<kN, 2, true>(w, held, n, others, lanes, tiles, b, round);
}
