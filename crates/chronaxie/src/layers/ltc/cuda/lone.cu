// LTC, forward, of wirings in which many neurons have no synapses from others (the inter neurons of NCP and AutoNCP, which see inputs
// alone): one block holds all synapses and walks one batch row (the equations: forward.cu).
//
// A neuron without synapses is lone: within a step its unfolds are v' = slope v + offset. So it takes no lane: any thread makes its states
// beside its own gates, an unfold ahead of when they are read. And gates that read lone neurons (four fifths of AutoNCP's) wait for nobody: a
// warp makes those of the next unfold between giving its target's states and waiting for those of others. What is left in the chain of an
// unfold are gates that read targets: near ones. So there are two pairs of tiles, of targets' and of lone neurons' states, each with barriers
// of its own, at which warps arrive when they have written and wait before they read.
//
// A target has as many lanes of a warp, side by side, as its list fills; what they sum ends in the first. Slots are filled with far synapses
// (from lone neurons) from the first on, with near ones from the last back, and used in turns of four, so that all warps run the same code.
//
// Floor (1.98 GHz) of B128 T64 H256 by AutoNCP, 7,437 synapses: 128 rows on 132 multiprocessors, 16 gates a clock: 465 clocks an unfold,
// 384 unfolds: 0.090 ms. Measured on an H100 0.258 ms, of which sensory sums and folding are some 0.02: by ncu some 1200 clocks an unfold, 258
// instructions of each of 11 warps, at which schedulers issue in 60 % of all clocks. In 256 threads of 44 slots, where a lane of a motor neuron has 44
// near ones, 0.271: 1290 clocks, and 1120 of 128 neurons, which have a quarter of the gates; so it is still for
// later compute capabilities, on which NVRTC 13.0 fails to compile the other. Bytes: as recurrence.cu.
// Tried (H100, forward ms): turns of two slots 0.304; code of its own for the far slots of each warp 0.72, since warps wait for instructions;
// the same code without branches for all warps, as many slots as the most have, 0.310, and 0.309 with more ahead; lone states two unfolds ahead
// in three tiles, one barrier an unfold and tiles by address 0.347 (396 instructions); no wait for lone states, which is wrong, 0.311 for
// that 0.310; all gates in the chain, in clusters of two smaller blocks, two on a multiprocessor: 0.450 where lone states went by stores that a barrier
// counts, of which a multiprocessor takes one lane's in 1.3 clocks, and 0.56 where every lane sent. recurrence.cu takes 0.442.
#ifndef CHRONAXIE_PROLOGUE
#include "defaults.cuh"
#endif
constexpr bool kShared = false;
constexpr int kWalkers = 0;
constexpr bool kAllSend = false;
#include "row.cuh"
#if __CUDA_ARCH__ >= 900
#include "barriers.cuh"
#endif

// What a thread has of a neuron and reads once a step, in shared memory: kThreads apart, so that one address serves all. Of its target, if
// it has that's first lane, and then of its lone neuron.
struct Apart {
  float2* at;
  enum { kSums, kRates, kRest, kKinds };
  __device__ __forceinline__ float2& of(bool lone, int kind) const { return at[(kind + (lone ? kKinds : 0)) * kThreads]; }
  // Ns and Ds of the next step.
  __device__ __forceinline__ float2& sums(bool lone) const { return of(lone, kSums); }
  // The neuron, or -1.
  __device__ __forceinline__ int j(bool lone) const { return __float_as_int(of(lone, kRest).y); }
  // Neurons' rate_c, num and den.
  __device__ __forceinline__ void set(bool lone, const Neurons& n, bool there) const {
    of(lone, kSums) = make_float2(0.0f, 0.0f);
    of(lone, kRates) = make_float2(n.rate_c, n.num);
    of(lone, kRest) = make_float2(n.den, __int_as_float(there ? n.j : -1));
  }
  // c, and what num and den begin with in a step.
  __device__ __forceinline__ float3 begin(bool lone, float2 s, bool timed, float time) const {
    const float2 x = of(lone, kRates);
    const float c = timed ? __fdiv_rn(x.x, time) : x.x;
    return make_float3(c, x.y + s.x, of(lone, kRest).x + c + s.y);
  }
};

struct Part {
  Apart apart;
  bool first, alone;           // whether this is the first lane of a target; whether it has a lone neuron
  bool adds[3];                // whether the lane 1, 2, 4 further is of the same target
  int most;                    // the most lanes of a target of this warp
  int far, near;               // slots of this warp, multiples of kTurn
  unsigned place, lone_place;  // bytes from the beginning of a tile
  unsigned states, lones;      // barriers of both tiles
};

// Slots between two questions whether there are more.
constexpr int kTurn = 4;
static_assert(kSlots % kTurn == 0, "all turns are whole");

template <bool kNear>
__device__ __forceinline__ int slot_of(int i) { return kNear ? kSlots - 1 - i : i; }

// This lane's part of both sums of `count` slots, near or far ones; the states of the next turn are read ahead of this one's gates.
template <bool kNear>
__device__ __forceinline__ void add_turns(const Held& held, const char* tile, int count, float& num, float& den) {
  auto load = [&](int i) { return *(const volatile float*)(tile + source_of(held, slot_of<kNear>(i))); };
  float x[kSlots];
  if (count <= 0) return;
#pragma unroll
  for (int i = 0; i < kTurn; i++) x[i] = load(i);
#pragma unroll
  for (int i = 0; i < kSlots; i += kTurn) {
    if (i >= count) break;
#pragma unroll
    for (int e = i; e < i + kTurn; e++)
      if (e + kTurn < kSlots) x[e + kTurn] = load(e + kTurn);
#pragma unroll
    for (int e = i; e < i + kTurn; e++) x[e] = gate_of(held.a[slot_of<kNear>(e)], held.b[slot_of<kNear>(e)], x[e]);
#pragma unroll
    for (int e = i; e < i + kTurn; e++)
      num = fmaf(held.q[slot_of<kNear>(e)], x[e], num), den = fmaf(held.p[slot_of<kNear>(e)], x[e], den);
  }
}

// Both sums over the lanes of a target, in its first; the order is fixed.
__device__ __forceinline__ void sum_up(const Part& p, float& num, float& den) {
#pragma unroll
  for (int i = 0; i < 3; i++) {
    if (p.most <= 1 << i) break;
    const float more = __shfl_down_sync(~0u, num, 1 << i), too = __shfl_down_sync(~0u, den, 1 << i);
    if (p.adds[i]) num += more, den += too;
  }
}

#if __CUDA_ARCH__ >= 900
// This warp has written.
__device__ __forceinline__ void arrive(unsigned barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive_at(barrier);
}

// All steps of row b; unfolds in pairs, `round` counts them since the kernel began. Of the last row nothing is read any more, and the last
// phase of its first tile is this one's first.
__device__ __forceinline__ void walk_row(const Walk& w, const Held& held, const Part& p, char* states, char* lones, i64 b, unsigned& round) {
  const int hidden = w.hidden;
  float v = 0.0f, u = 0.0f, c = 0.0f, num0 = 0.0f, den0 = 1.0f;
  float2 line = make_float2(0.0f, 0.0f);  // slope and offset of the lone neuron's step
  auto timed = [&](int step) { return w.elapsed ? w.elapsed[b * w.elapsed_b + (w.t0 + step) * w.elapsed_t] : 1.0f; };
  auto begin = [&](float2 ours, float2 lones, float time) {
    const float3 s = p.apart.begin(false, ours, w.elapsed, time), l = p.apart.begin(true, lones, w.elapsed, time);
    c = s.x, num0 = s.y, den0 = s.z;
    const float inverse = reciprocal(l.z);
    line = make_float2(l.x * inverse, l.y * inverse);
  };
  auto place = [&](int j, int step) { return w.sums + (b * w.sums_b + (i64)step * hidden + j); };
  auto give = [&](int half) {
    if (p.first) *(float*)(states + half * kTileBytes + p.place) = v;
  };
  auto give_lone = [&](int half) {
    if (p.alone) *(float*)(lones + half * kTileBytes + p.lone_place) = u;
  };
  const int mine = p.apart.j(false), alone = p.apart.j(true);
  if (w.start && mine >= 0) v = w.start[b * w.start_b + mine * w.start_h];
  if (w.start && alone >= 0) u = w.start[b * w.start_b + alone * w.start_h];
  float num = 0.0f, den = 0.0f;  // of far gates
  if (w.steps > 0) {
    const float2 none = make_float2(0.0f, 0.0f);
    begin(mine >= 0 ? *place(mine, 0) : none, alone >= 0 ? *place(alone, 0) : none, timed(0));
    __syncthreads();
    give(0), give_lone(0);
    __syncthreads();
    add_turns<false>(held, lones, p.far, num, den);
  }
#pragma unroll 1
  for (int step = 0; step < w.steps; step++) {
    const bool ends = step + 1 == w.steps;
    if (!ends)
#pragma unroll
      for (int lone = 0; lone < 2; lone++)
        if (const int j = p.apart.j(lone); j >= 0) copy_ahead<8>(&p.apart.sums(lone), place(j, step + 1));
    auto unfold = [&](auto which) {
      constexpr int kHalf = decltype(which)::value, kThen = 1 - kHalf;
      const float base = fmaf(c, v, num0);
      barrier_wait_at(p.states + kHalf * 8, round & 1);
      u = fmaf(line.x, u, line.y);
      give_lone(kThen);
      arrive(p.lones + kThen * 8);
      add_turns<true>(held, states + kHalf * kTileBytes, p.near, num, den);
      sum_up(p, num, den);
      v = quotient(num + base, den + den0);
      give(kThen);
      arrive(p.states + kThen * 8);
      barrier_wait_at(p.lones + kThen * 8, round & 1);
      num = den = 0.0f;
      add_turns<false>(held, lones + kThen * kTileBytes, p.far, num, den);
    };
#pragma unroll 1
    for (int k = 0; k < w.unfolds; k += 2) {
      unfold(Number<0>());
      unfold(Number<1>());
      round++;
    }
    const i64 row = b * w.total_steps + (w.t0 + step);
    if (p.first) write(w, row, p.apart.j(false), v);
    if (p.alone) write(w, row, p.apart.j(true), u);
    if (!ends) {
      copies_here();
      begin(p.apart.sums(false), p.apart.sums(true), timed(step + 1));
    }
  }
  if (p.first) w.final_state[b * hidden + p.apart.j(false)] = v;
  if (p.alone) w.final_state[b * hidden + p.apart.j(true)] = u;
}
#endif

extern "C" __global__ void __launch_bounds__(kThreads, 1)
ltc_lone(Schedule schedule,                                                // behind the targets: the lone neurons, [threads]
         const float* __restrict__ gleak, const float* __restrict__ vleak, const float* __restrict__ cm,
         const float2* __restrict__ sensory,                               // [B, steps, H]
         const float* start, i64 start_b, i64 start_h,                     // [B, H], any strides, or null: zeros
         const float* __restrict__ elapsed, i64 elapsed_b, i64 elapsed_t, float dt,  // [B, T] or null: dt
         const float* __restrict__ output_w, const float* __restrict__ output_b,     // [M] or null
         float* __restrict__ out,                                          // [B, T, M]
         float* __restrict__ states,                                       // [B, T, H] or null
         float* final_state,                                               // [B, H]
         float* __restrict__, float* __restrict__,                         // nothing is kept of unfolds
         int batch, int hidden, int outputs, int unfolds, int total_steps, int t0, int steps, int constrained, float epsilon) {
#if __CUDA_ARCH__ >= 900
  __shared__ __align__(16) char tiles[2 * kTileBytes], lones[2 * kTileBytes];
  __shared__ float2 apart[2 * Apart::kKinds * kThreads];
  __shared__ unsigned long long barriers[4];
  const unsigned thread = threadIdx.x, lane = thread % 32;
  const int2 shape = schedule.warps[thread / 32];
  float p0, q0;
  const Held held = hold(schedule, 0, p0, q0);
  const int owner = schedule.target[thread], alone = schedule.target[blockDim.x + thread];
  const unsigned same = __match_any_sync(~0u, owner), sub = lane - (__ffs(same) - 1);
  Part p = {{apart + thread}, owner >= 0 && sub == 0, alone >= 0};
#pragma unroll
  for (int i = 0; i < 3; i++) p.adds[i] = sub + (1 << i) < (unsigned)__popc(same);
  p.most = uniform(shape.x), p.far = uniform(shape.y & 0xffff), p.near = uniform(shape.y >> 16);
  sum_up(p, q0, p0);
  auto keep = [&](bool lone, int owner, bool there, float p0, float q0) {
    const Neurons n = neuron_of(there ? owner : -1, 1, gleak, vleak, cm, unfolds, elapsed ? 1.0f : dt, constrained, epsilon, p0, q0);
    p.apart.set(lone, n, there);
    return n.place;
  };
  p.place = keep(false, owner, p.first, p0, q0), p.lone_place = keep(true, alone, p.alone, 0.0f, 0.0f);
  p.states = opaque(shared_address(barriers)), p.lones = p.states + 16;
  // Slots that are not in use read any place, and what they make of it counts nothing.
  for (int i = thread; i < 2 * kTileBytes / 4; i += blockDim.x) ((float*)tiles)[i] = ((float*)lones)[i] = 0.0f;
  if (thread < 4) barrier_init(barriers + thread, blockDim.x / 32);
  if (thread < 4) barrier_init_fence();
  __syncthreads();
  arrive(p.states);
  const Walk w = {sensory, (i64)steps * hidden, start, start_b, start_h, elapsed, elapsed_b, elapsed_t, output_w, output_b, out,
                  states, final_state, nullptr, nullptr, hidden, outputs, unfolds, total_steps, t0, steps};
  unsigned round = 0;
#pragma unroll 1
  for (i64 b = blockIdx.x; b < batch; b += gridDim.x) walk_row(w, held, p, tiles, lones, b, round);
#endif
}
